"""The transfer experiment: arms × numbers of labels × seeds, and a bag of words as the control.

One pre-training is shared by all runs that start from it. From scratch, frozen and fine-tuned models read
with the same tokenizer and have the same architecture, which is that of the classifier's preset: only the
first weights and what is trained differ. Every run's name holds a checksum of its options: a changed option
is another run, and nothing that was measured with other options can slip into the table.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from glassformer.core.config import Tree, unflatten
from glassformer.core.errors import user_error
from glassformer.evaluation.intervals import student_interval
from glassformer.runs.experiment import ExperimentConfig, resolve
from glassformer.runs.folder import RunFolder
from glassformer.storage.files import file_sha256, replace_file
from glassformer.studies import bag_of_words, charts, curves
from glassformer.studies.jobs import Job, Results, key_of, run_all, threads_for
from glassformer.studies.pretraining_text import PretrainingText, TextPlan, gather
from glassformer.studies.study import Effort, test_value
from glassformer.studies.transfer_table import markdown
from glassformer.tasks.classification import ClassificationConfig
from glassformer.tasks.text import DataReport

Overrides = Mapping[str, Any]


@dataclass(frozen=True)
class Arm:
    name: str
    is_pretrained: bool
    freeze: tuple[str, ...] = ()


SCRATCH = Arm("from scratch", is_pretrained=False)
FROZEN = Arm("frozen backbone", is_pretrained=True, freeze=("backbone",))
FINE_TUNED = Arm("full fine-tuning", is_pretrained=True)
ARMS = (SCRATCH, FROZEN, FINE_TUNED)


@dataclass(frozen=True)
class Options:
    """What differs from the presets, as overrides; later ones win over earlier ones, in this order."""

    pretraining: Overrides = field(default_factory=dict)
    quick_pretraining: Overrides = field(default_factory=dict)
    arms: Overrides = field(default_factory=dict)
    """Of all three arms."""
    by_arm: Mapping[str, Overrides] = field(default_factory=dict)
    by_labels: Mapping[int | None, Overrides] = field(default_factory=dict)
    quick_arms: Overrides = field(default_factory=dict)


@dataclass(frozen=True)
class TransferStudy:
    name: str
    title: str
    about: str
    classifier: str
    """The preset of the arms."""
    pretraining: str
    """The preset of the pre-training, which takes model, tokenizer and length from the classifier's."""
    labels: Sequence[int | None]
    """How many labelled texts; None: all."""
    options: Options
    text: TextPlan | None = None
    """None: the pre-training's preset makes its own text."""
    published: Mapping[tuple[str, int | None], float] = field(default_factory=dict)
    """By arm and labels."""
    quick_labels: Sequence[int | None] = (100,)
    seeds: int = 3
    metric: str = "accuracy"

    def measure(self, effort: Effort) -> dict[str, Any]:
        effort.refuse_parts()
        labels = self._label_counts(effort)
        text = self._gather(effort)
        pretraining = self._pretraining_job(effort, text)
        effort.say(f"pre-training in {pretraining.path}")
        alone = threads_for(1)
        run_all([pretraining], workers=1, threads=alone, describe=_pretrained, say=effort.say)
        cells = self._cells(effort, labels, pretraining)
        effort.run(
            [cell.job for cell in cells],
            describe=lambda results: f"test {self.metric} {test_value(results, self.metric):.4f}",
        )
        rows = [
            self._row(arm, count, [cell for cell in cells if (cell.arm, cell.labels) == (arm, count)])
            for count in labels
            for arm in ARMS
        ]
        left_out = {}
        if bag_of_words.is_available():
            rows += [self._control_row(count, effort) for count in labels]
        else:
            left_out[bag_of_words.NAME] = f"scikit-learn is not installed: {bag_of_words.REMEDY}"
            effort.say(f"left out: {bag_of_words.NAME}; {left_out[bag_of_words.NAME]}")
        return {
            "about": self.about,
            "rows": rows,
            "left_out": left_out,
            "pretraining": _pretraining_record(pretraining, self.pretraining, text),
            "plot": self._plot(rows, effort),
        }

    def markdown(self, document: Mapping[str, Any]) -> str:
        return markdown(document)

    def _label_counts(self, effort: Effort) -> list[Labels]:
        """Before anything is trained: that there are so many, and that the data are here at all."""
        texts = _classification(self._config(SCRATCH, None, effort.is_quick)).texts(DataReport())
        total = len(texts["train"])
        asked = self.quick_labels if effort.is_quick else self.labels
        for count in asked:
            if count is not None and count > total:
                raise user_error(
                    f"{count:,} labels are asked for, and there are {total:,}",
                    path=texts["train"].name,
                    hint="the whole set, as the catalogue has it",
                )
        return [Labels(count, total if count is None else count) for count in asked]

    def _gather(self, effort: Effort) -> PretrainingText | None:
        if self.text is None:
            return None
        effort.say("gathering the text for pre-training")
        task = _classification(self._config(SCRATCH, None, effort.is_quick))
        text = gather(self.text, task, effort.folder, is_quick=effort.is_quick)
        removed = text.record["left_out"]["holds a test text"]
        effort.say(f"{text.path}: {text.record['lines']:,} lines; {removed:,} removed that held a test text")
        return text

    def _pretraining_job(self, effort: Effort, text: PretrainingText | None) -> Job:
        """Its architecture, tokenizer and length are the classifier's unless the options say otherwise."""
        target = self._config(SCRATCH, None, effort.is_quick)
        task: Tree = {
            "tokenizer": target.dump()["task"]["tokenizer"],
            "max_length": _classification(target).max_length,
        }
        if text is not None:
            task["data"] = {"train": text.path.name, "format": "text"}
        # Whether the output is tied is the pre-training's own affair: a classifier has another output.
        model = {name: value for name, value in target.model.dump().items() if name != "tied_output"}
        quick = self.options.quick_pretraining if effort.is_quick else {}
        config = resolve(self.pretraining, {"task": task, "model": model, "seed": 0})
        config = config.with_overrides(unflatten({**self.options.pretraining, **quick}))
        key = key_of(config)
        if text is not None:
            config = config.with_overrides({"task": {"data": {"train": str(text.path)}}})
        return Job("pre-training", config, effort.folder / "runs" / f"pretraining-{key}")

    def _config(self, arm: Arm, labels: int | None, is_quick: bool, seed: int = 0) -> ExperimentConfig:
        """Everything but the places of tokenizer and pre-trained weights."""
        options = self.options
        changes = {
            **options.arms,
            **options.by_arm.get(arm.name, {}),
            **options.by_labels.get(labels, {}),
            **(options.quick_arms if is_quick else {}),
            **EVERY_ARM,
            "task.train_limit": labels,
            "training.freeze": list(arm.freeze),
            "seed": seed,
        }
        return resolve(self.classifier, changes)

    def _cells(self, effort: Effort, labels: Sequence[Labels], pretraining: Job) -> list[Cell]:
        tokenizer = _copy_tokenizer(pretraining, effort.folder)
        cells = []
        # The longest first, so that the last worker does not wait alone.
        for count in reversed(labels):
            for arm in ARMS:
                for seed in range(effort.seeds):
                    config = self._config(arm, count.asked, effort.is_quick, seed)
                    key = key_of(config, tokenizer.name, pretraining.path.name if arm.is_pretrained else "")
                    places = {
                        "task.tokenizer": {"kind": "file", "path": str(tokenizer)},
                        "training.start_from": str(pretraining.path) if arm.is_pretrained else None,
                    }
                    name = f"{count.name}, {arm.name}, seed {seed}"
                    slug = name.replace(",", "").replace(" ", "-")
                    path = effort.folder / "runs" / f"{slug}-{key}"
                    job = Job(name, config.with_overrides(unflatten(places)), path)
                    cells.append(Cell(arm, count, seed, job))
        return cells

    def _row(self, arm: Arm, labels: Labels, cells: Sequence[Cell]) -> dict[str, Any]:
        results = [cell.job.results() for cell in cells]
        values = [test_value(result, self.metric) for result in results]
        return {
            "setting": f"{arm.name}, {labels.name}",
            "published": self.published.get((arm.name, labels.asked)),
            "theirs": None,
            "ours": statistics.fmean(values),
            "interval": student_interval(values),
            "lowest": min(values),
            "seeds": [cell.seed for cell in cells],
            "arm": arm.name,
            "labels": labels.number,
            "values": values,
            "seconds": [result["seconds"] for result in results],
            "steps": [result["steps"] for result in results],
            "parameters": results[0]["parameters"],
            "accuracy_by_epoch": [_validations(cell.job, self.metric) for cell in cells],
            "best_epoch": [_best_epoch(cell.job) for cell in cells],
            "runs": [cell.job.path.name for cell in cells],
        }

    def _control_row(self, labels: Labels, effort: Effort) -> dict[str, Any]:
        name = f"{bag_of_words.NAME}, {labels.name}"
        task = _classification(self._config(SCRATCH, labels.asked, effort.is_quick))
        control = bag_of_words.measure(task)
        effort.say(f"{name}: test {self.metric} {control.test_accuracy:.4f}")
        return {
            "setting": name,
            "published": None,
            "theirs": None,
            "ours": control.test_accuracy,
            "interval": list(control.interval),
            "lowest": control.test_accuracy,
            "seeds": [],
            "arm": bag_of_words.NAME,
            "labels": labels.number,
            "values": [control.test_accuracy],
            "seconds": [control.seconds],
            "control": {**asdict(control), "interval": list(control.interval)},
        }

    def _plot(self, rows: Sequence[Mapping[str, Any]], effort: Effort) -> list[str]:
        panels = []
        for number in dict.fromkeys(row["labels"] for row in rows):
            own = [row for row in rows if row["labels"] == number]
            panels.append(
                curves.Panel(
                    f"{number:,} labels",
                    {row["arm"]: row["accuracy_by_epoch"] for row in own if "accuracy_by_epoch" in row},
                    next((row["control"]["validation_accuracy"] for row in own if "control" in row), None),
                )
            )
        seeds = f"Mean of {effort.seeds} seeds; bands from the lowest to the highest. "
        caption = (seeds if effort.seeds > 1 else "One seed. ") + "Each panel has its own number of epochs."
        return charts.write(
            curves.draw(panels, self.title, bag_of_words.NAME, caption), effort.folder / "curves"
        )


@dataclass(frozen=True)
class Labels:
    """How many labelled texts: what the study says (None: all), and the number itself."""

    asked: int | None
    number: int

    @property
    def name(self) -> str:
        return f"{self.number} labels"


@dataclass(frozen=True)
class Cell:
    arm: Arm
    labels: Labels
    seed: int
    job: Job


EVERY_ARM: Overrides = {"task.unseen_only": True, "training.validate_every": None}
"""One test for all, without texts that stand in train; a point of the curve for each epoch."""


def _classification(config: ExperimentConfig) -> ClassificationConfig:
    assert isinstance(config.task, ClassificationConfig)  # a preset of ours
    return config.task


def _copy_tokenizer(pretraining: Job, folder: Path) -> Path:
    """Under a name of its own, so that the arm from scratch does not depend on the pre-training."""
    source = pretraining.path / "tokenizer.json"
    path = folder / f"tokenizer-{file_sha256(source)[:8]}.json"
    if not path.exists():
        replace_file(path, source.read_bytes())
    return path


def _pretrained(results: Results) -> str:
    metrics = results["metrics"]["validation"]
    return f"validation {results['headline']} {metrics[results['headline']]:.4f}"


def _pretraining_record(job: Job, preset: str, text: PretrainingText | None) -> dict[str, Any]:
    results = job.results()
    kept = ("seed", "steps", "epochs", "seconds", "parameters", "best_step")
    return {
        "preset": preset,
        "task": job.config.task.kind,
        "embedding_init": job.config.training.embedding_init.kind,
        "run": job.path.name,
        **{name: results[name] for name in kept},
        "validation": results["metrics"]["validation"],
        "text": text.record if text else None,
    }


def _validations(job: Job, metric: str) -> list[float]:
    """By epoch; what a roll-back made anew counts as it was last."""
    events = (event for event in RunFolder(job.path).events if event["event"] == "validation")
    found = {event["epoch"]: float(event[metric]) for event in events}
    return [found[epoch] for epoch in sorted(found)]


def _best_epoch(job: Job) -> int | None:
    """The epoch whose weights were tested."""
    best = job.results()["best_step"]
    events = (event for event in RunFolder(job.path).events if event["event"] == "validation")
    return next((event["epoch"] for event in events if event["step"] == best), None)
