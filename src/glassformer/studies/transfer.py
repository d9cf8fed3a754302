"""Transfer studies: does pre-training help to classify reviews? Arms × numbers of labels × seeds.

An arm is one way to initialise and train the classifier. The pre-trained arms start from one pre-training
run. The three arms have the same tokenizer and architecture. Only the initial weights and the trained
parameters differ. A bag-of-words baseline is the control. A further arm may fine-tune an imported model.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from glassformer.core.config import Tree, unflatten
from glassformer.core.errors import user_error
from glassformer.core.system import threads_per_worker
from glassformer.evaluation.intervals import student_interval
from glassformer.plotting.lines import Axis, Chart, draw, mean_line, save
from glassformer.runs.experiment import ExperimentConfig, resolve
from glassformer.runs.folder import RunFolder
from glassformer.storage.files import atomic_write, file_sha256
from glassformer.studies.study import (
    Job,
    Overrides,
    Results,
    Row,
    Study,
    StudyContext,
    config_key,
    heading,
    load_definition,
    metric_on_test,
    plural,
    run_all,
    table_head,
    table_row,
)
from glassformer.studies.transfer_data import (
    BASELINE,
    BASELINE_HINT,
    PretrainingText,
    TextPlan,
    TextSource,
    gather_text,
    has_baseline,
    measure_baseline,
)
from glassformer.studies.transfer_imported import ImportedArm, imported_lines, log_expected_cost
from glassformer.tasks.classification import ClassificationConfig
from glassformer.tasks.text import DataReport


@dataclass(frozen=True)
class Arm:
    """Arm of the study: one way to initialise and train the classifier, such as full fine-tuning."""

    name: str
    is_pretrained: bool
    freeze: tuple[str, ...] = ()


SCRATCH = Arm("from scratch", is_pretrained=False)
FROZEN = Arm("frozen backbone", is_pretrained=True, freeze=("backbone",))
FINE_TUNED = Arm("full fine-tuning", is_pretrained=True)
ARMS = (SCRATCH, FROZEN, FINE_TUNED)

EVERY_ARM: Overrides = {"task.unseen_only": True, "training.validate_every": None}
"""Overrides for all runs: no training texts in the test set, and one validation per epoch."""


@dataclass(frozen=True)
class TransferOptions:
    """Config overrides for the presets. A later field replaces values of an earlier field."""

    pretraining: Overrides = field(default_factory=dict)
    quick_pretraining: Overrides = field(default_factory=dict)
    arms: Overrides = field(default_factory=dict)
    """Overrides for all three ways to train the classifier."""
    by_arm: Mapping[str, Overrides] = field(default_factory=dict)
    by_labels: Mapping[int | None, Overrides] = field(default_factory=dict)
    quick_arms: Overrides = field(default_factory=dict)


@dataclass(frozen=True)
class LabelCount:
    """Number of labelled texts: the requested number (None for all), and the actual number."""

    asked: int | None
    number: int

    @property
    def name(self) -> str:
        """Text for table rows and run names, such as `100 labels`."""
        return f"{self.number} labels"


@dataclass(frozen=True, kw_only=True)
class TransferStudy(Study):
    """Study of how much pre-training helps a text classifier, by number of labelled texts."""

    classifier: str
    """Name of the classifier's preset."""
    pretraining: str
    """Name of the pre-training preset. The classifier's preset replaces its model, tokenizer and length."""
    labels: Sequence[int | None]
    """Numbers of labelled texts to compare. None means all texts."""
    options: TransferOptions
    text: TextPlan | None = None
    """Sources of the pre-training text. If None, the preset generates its own text."""
    imported: Sequence[ImportedArm] = ()
    """Further arms, which start from models that were pre-trained elsewhere."""
    published: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Published accuracies by number of labels (0 for all) and by name of the arm."""
    quick_labels: Sequence[int | None] = (100,)
    metric: str = "accuracy"

    def measure(self, context: StudyContext) -> dict[str, Any]:
        """Pre-train once, train all classifiers and measure the baseline; return the rows and plots.

        With `--keep`, the rows of an earlier measurement are reused. With `--finished`, the table has the
        rows whose runs are complete.
        """
        labels = self._label_counts(context)
        kept = {row["setting"]: {**row, "kept": True} for row in context.earlier.get("rows", [])}
        omitted = self._omitted(labels, kept, context)
        imported = [arm for arm in self.imported if arm.name not in omitted]
        jobs: dict[tuple[str, LabelCount], list[Job]] = {}
        record = context.earlier.get("pretraining")
        if record is None or not _has_all(kept, [arm.name for arm in ARMS], labels):
            text = self._gather_text(context)
            pretraining = self._pretrain(context, text)
            jobs = self._own_jobs(labels, context, pretraining)
            record = _pretraining_record(pretraining, self.pretraining, text)
        models = {found["arm"]: found for found in context.earlier.get("imported", [])}
        for arm in imported:
            if not _has_all(kept, [arm.name], labels):
                jobs |= self._imported_jobs(arm, labels, context)
                models[arm.name] = arm.record(arm.import_run(context))
        jobs = {cell: found for cell, found in jobs.items() if _setting(*cell) not in kept}
        if context.trains:
            self._train(jobs, context)
        names = [arm.name for arm in ARMS] + [arm.name for arm in imported]
        rows = [
            kept.get(_setting(name, count)) or self._row(name, count, jobs[name, count])
            for count in labels
            for name in names
            if _setting(name, count) in kept or all(job.results() for job in jobs[name, count])
        ]
        if has_baseline():
            rows += [
                kept.get(_setting(BASELINE, each)) or self._baseline_row(each, context) for each in labels
            ]
        else:
            omitted[BASELINE] = f"scikit-learn is not installed: {BASELINE_HINT}"
        for name, reason in omitted.items():
            context.log(f"omitted: {name}; {reason}")
        return {
            "rows": rows,
            "left_out": omitted,
            "missing": [job.name for found in jobs.values() for job in found if not job.results()],
            "pretraining": record,
            "imported": list(models.values()),
            "plot": self._plot(rows, context),
        }

    def _omitted(
        self, labels: Sequence[LabelCount], kept: Mapping[str, Row], context: StudyContext
    ) -> dict[str, str]:
        """Return the imported arms that are not measured, with the reasons."""
        reasons = {arm.name: arm.reason_to_omit(context) for arm in self.imported}
        return {name: why for name, why in reasons.items() if why and not _has_all(kept, [name], labels)}

    def _train(self, jobs: Mapping[tuple[str, LabelCount], Sequence[Job]], context: StudyContext) -> None:
        """Train the runs that are not finished, after the expected cost of those of imported models."""
        for arm in self.imported:
            own = [job for (name, _), found in jobs.items() for job in found if name == arm.name]
            log_expected_cost(arm, own, context)
        context.run(
            [job for found in jobs.values() for job in found],
            describe=lambda results: f"test {self.metric} {metric_on_test(results, self.metric):.4f}",
        )

    def _pretrain(self, context: StudyContext, text: PretrainingText | None) -> Job:
        """Run the pre-training unless it is finished; return its job."""
        job = self._pretraining_job(context, text)
        if not context.trains and not job.results():
            hint = "omit --finished to train it"
            raise user_error("the pre-training has not finished", path=str(job.path), hint=hint)
        context.log(f"pre-training in {job.path}")
        threads = threads_per_worker(1)
        run_all([job], workers=1, threads=threads, describe=_describe_pretraining, log=context.log)
        return job

    def _own_jobs(
        self, labels: Sequence[LabelCount], context: StudyContext, pretraining: Job
    ) -> dict[tuple[str, LabelCount], list[Job]]:
        """Return the runs of each arm and number of labels.

        The longest are first, so that no worker starts a long run while the others are already idle. Runs of
        imported models come after them, because they take longer than all others together.
        """
        tokenizer = _copy_tokenizer(pretraining, context.folder)
        return {
            (arm.name, count): self._jobs(count, arm, context, pretraining, tokenizer)
            for count in reversed(labels)
            for arm in ARMS
        }

    def markdown(self, document: Mapping[str, Any]) -> str:
        """Return the text of `table.md` for the content of `results.json`."""
        rows: Sequence[Row] = document["rows"]
        arms = list(dict.fromkeys(row["arm"] for row in rows))
        labels = list(dict.fromkeys(row["labels"] for row in rows))
        cells = {(row["arm"], row["labels"]): row for row in rows}
        lines = [*heading(document), "## Test accuracy", ""]
        lines += _grid(arms, labels, cells, _accuracy)
        lines += _published_lines(arms, labels, cells)
        lines += ["", *_explanation(document), ""]
        lines += ["## Validation accuracy after the first epoch, mean", ""]
        trained = list(dict.fromkeys(row["arm"] for row in rows if "accuracy_by_epoch" in row))
        lines += _grid(trained, labels, cells, _first_epoch)
        plot = next(name for name in document["plot"] if name.endswith(".png"))
        lines += ["", f"![Validation accuracy against epochs]({plot})", ""]
        lines += ["## Pre-training", "", *_pretraining_lines(document["pretraining"]), ""]
        return "\n".join(lines)

    def _label_counts(self, context: StudyContext) -> list[LabelCount]:
        """Return the numbers of labels; raise a user error if the training data has fewer."""
        texts = _classification(self._config(SCRATCH, None, context.is_quick)).texts(DataReport())
        total = len(texts["train"])
        asked = self.quick_labels if context.is_quick else self.labels
        for count in asked:
            if count is not None and count > total:
                raise user_error(
                    f"the study needs {count:,} labelled texts, and this file has {total:,}",
                    path=texts["train"].name,
                    hint="use the complete data set of the catalogue",
                )
        return [LabelCount(count, total if count is None else count) for count in asked]

    def _gather_text(self, context: StudyContext) -> PretrainingText | None:
        if self.text is None:
            return None
        context.log("gathering the pre-training text")
        task = _classification(self._config(SCRATCH, None, context.is_quick))
        text = gather_text(self.text, task, context.folder, is_quick=context.is_quick)
        removed = text.record["left_out"]["holds a test text"]
        context.log(f"{text.path}: {text.record['lines']:,} lines; removed {removed:,} with a test text")
        return text

    def _pretraining_job(self, context: StudyContext, text: PretrainingText | None) -> Job:
        """Build the pre-training run with the classifier's model, tokenizer and length, unless overridden."""
        target = self._config(SCRATCH, None, context.is_quick)
        task: Tree = {
            "tokenizer": target.dump()["task"]["tokenizer"],
            "max_length": _classification(target).max_length,
        }
        if text is not None:
            task["data"] = {"train": text.path.name, "format": "text"}
        # The classifier has another output, so tying it is an option of the pre-training alone.
        model = {name: value for name, value in target.model.dump().items() if name != "tied_output"}
        quick = self.options.quick_pretraining if context.is_quick else {}
        config = resolve(self.pretraining, {"task": task, "model": model, "seed": 0})
        config = config.with_overrides(unflatten({**self.options.pretraining, **quick}))
        key = config_key(config)
        if text is not None:
            config = config.with_overrides({"task": {"data": {"train": str(text.path)}}})
        return Job("pre-training", config, context.folder / "runs" / f"pretraining-{key}")

    def _config(self, arm: Arm, labels: int | None, is_quick: bool, seed: int = 0) -> ExperimentConfig:
        """Build the config of an arm, without the paths of the tokenizer and the pre-trained weights."""
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

    def _jobs(
        self, labels: LabelCount, arm: Arm, context: StudyContext, pretraining: Job, tokenizer: Path
    ) -> list[Job]:
        """Return the training runs of one arm and number of labels, one per seed."""
        start = pretraining.path if arm.is_pretrained else None
        jobs = []
        for seed in range(context.seeds):
            config = self._config(arm, labels.asked, context.is_quick, seed)
            key = config_key(config, tokenizer.name, start.name if start else "")
            paths = {
                "task.tokenizer": {"kind": "file", "path": str(tokenizer)},
                "training.start_from": str(start) if start else None,
            }
            name = f"{labels.name}, {arm.name}, seed {seed}"
            slug = name.replace(",", "").replace(" ", "-")
            path = context.folder / "runs" / f"{slug}-{key}"
            jobs.append(Job(name, config.with_overrides(unflatten(paths)), path))
        return jobs

    def _imported_jobs(
        self, arm: ImportedArm, labels: Sequence[LabelCount], context: StudyContext
    ) -> dict[tuple[str, LabelCount], list[Job]]:
        """Return the training runs of an imported model by number of labels, the largest number first."""
        run = arm.import_run(context)
        jobs: dict[tuple[str, LabelCount], list[Job]] = {}
        for count in reversed(labels):
            jobs[arm.name, count] = []
            for seed in range(context.seeds):
                config = arm.config(self.classifier, run, count.asked, {**EVERY_ARM, "seed": seed})
                job = arm.job(config, f"{count.name}, {arm.name}, seed {seed}", run)
                jobs[arm.name, count].append(job)
        return jobs

    def _row(self, arm: str, labels: LabelCount, jobs: Sequence[Job]) -> Row:
        results = [job.results() for job in jobs]
        values = [metric_on_test(result, self.metric) for result in results]
        return {
            "setting": _setting(arm, labels),
            "published": self.published.get(labels.asked or 0, {}).get(arm),
            "theirs": None,
            "ours": statistics.fmean(values),
            "interval": student_interval(values),
            "lowest": min(values),
            "seeds": [job.config.seed for job in jobs],
            "arm": arm,
            "labels": labels.number,
            "values": values,
            "seconds": [result["seconds"] for result in results],
            "steps": [result["steps"] for result in results],
            "parameters": results[0]["parameters"],
            "accuracy_by_epoch": [[float(event[self.metric]) for event in job.validations()] for job in jobs],
            "best_epoch": [_best_epoch(job) for job in jobs],
            "runs": [job.path.name for job in jobs],
        }

    def _baseline_row(self, labels: LabelCount, context: StudyContext) -> Row:
        name = _setting(BASELINE, labels)
        task = _classification(self._config(SCRATCH, labels.asked, context.is_quick))
        result = measure_baseline(task)
        context.log(f"{name}: test {self.metric} {result.test_accuracy:.4f}")
        return {
            "setting": name,
            "published": None,
            "theirs": None,
            "ours": result.test_accuracy,
            "interval": list(result.interval),
            "lowest": result.test_accuracy,
            "seeds": [],
            "arm": BASELINE,
            "labels": labels.number,
            "values": [result.test_accuracy],
            "seconds": [result.seconds],
            "control": {**asdict(result), "interval": list(result.interval)},
        }

    def _plot(self, rows: Sequence[Row], context: StudyContext) -> list[str]:
        charts = [
            accuracy_chart([row for row in rows if row["labels"] == number])
            for number in dict.fromkeys(row["labels"] for row in rows)
        ]
        seeds = f"Mean of {context.seeds} seeds; bands from the lowest to the highest. "
        caption = (seeds if context.seeds > 1 else "One seed. ") + "Each panel has its own number of epochs."
        return save(draw(charts, self.title, caption), context.folder / "curves")


def accuracy_chart(rows: Sequence[Row]) -> Chart:
    """Build a chart of validation accuracy by epoch: one line per arm, the baseline as a horizontal line."""
    curves = {row["arm"]: row["accuracy_by_epoch"] for row in rows if "accuracy_by_epoch" in row}
    level = next((row["control"]["validation_accuracy"] for row in rows if "control" in row), None)
    return Chart(
        f"{rows[0]['labels']:,} labels",
        [mean_line(arm, range(1, max(map(len, runs)) + 1), runs) for arm, runs in curves.items()],
        Axis("epoch", is_whole=True),
        Axis("validation accuracy", is_percent=True),
        level=None if level is None else (BASELINE, level),
    )


def _setting(arm: str, labels: LabelCount) -> str:
    """Return the name of a row."""
    return f"{arm}, {labels.name}"


def _has_all(rows: Mapping[str, Row], arms: Sequence[str], labels: Sequence[LabelCount]) -> bool:
    """Return True if there is a row for each of the arms and numbers of labels."""
    return all(_setting(arm, count) in rows for arm in arms for count in labels)


def _classification(config: ExperimentConfig) -> ClassificationConfig:
    assert isinstance(config.task, ClassificationConfig)  # from a preset of this package
    return config.task


def _copy_tokenizer(pretraining: Job, folder: Path) -> Path:
    """Copy the tokenizer to the study's folder, so that runs from scratch do not need the pre-training."""
    source = pretraining.path / "tokenizer.json"
    path = folder / f"tokenizer-{file_sha256(source)[:8]}.json"
    if not path.exists():
        atomic_write(path, source.read_bytes())
    return path


def _describe_pretraining(results: Results) -> str:
    name = results["primary_metric"]
    return f"validation {name} {results['metrics']['validation'][name]:.4f}"


def _pretraining_record(job: Job, preset: str, text: PretrainingText | None) -> dict[str, Any]:
    results = job.results()
    copied = ("seed", "steps", "epochs", "seconds", "parameters", "best_step")
    return {
        "preset": preset,
        "task": job.config.task.kind,
        "embedding_init": job.config.training.embedding_init.kind,
        "run": job.path.name,
        **{name: results[name] for name in copied},
        "validation": results["metrics"]["validation"],
        "text": text.record if text else None,
    }


def _best_epoch(job: Job) -> int | None:
    """Return the epoch of the best checkpoint, whose weights were tested, or None if it is not logged."""
    best = job.results()["best_step"]
    events = (event for event in RunFolder(job.path).events if event["event"] == "validation")
    return next((event["epoch"] for event in events if event["step"] == best), None)


# ---------------------------------------------------------------- table.md


def _grid(
    arms: Sequence[str],
    labels: Sequence[int],
    cells: Mapping[tuple[str, int], Row],
    show: Callable[[Row], str],
) -> list[str]:
    """Return a table of arms by numbers of labels. A cell whose runs have not finished is a dash."""
    rows = []
    for count in labels:
        shown = (show(cells[arm, count]) if (arm, count) in cells else "–" for arm in arms)
        rows.append(table_row([f"{count:,}", *shown]))
    return [*table_head("labels", *arms), *rows]


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _accuracy(row: Row) -> str:
    if row["interval"] is None:
        return f"{_percent(row['ours'])} %"
    low, high = row["interval"]
    return f"{_percent(row['ours'])} % ({_percent(low)} … {_percent(min(high, 1.0))})"


def _first_epoch(row: Row) -> str:
    return f"{_percent(statistics.fmean(run[0] for run in row['accuracy_by_epoch']))} %"


def _published_lines(
    arms: Sequence[str], labels: Sequence[int], cells: Mapping[tuple[str, int], Row]
) -> list[str]:
    lines = []
    for count in labels:
        values = [cells.get((arm, count), {}).get("published") for arm in arms]
        if any(value is not None for value in values):
            shown = ("" if value is None else f"about {100 * value:.0f} %" for value in values)
            lines.append(table_row([f"{count:,}, published", *shown]))
    return lines


def _explanation(document: Mapping[str, Any]) -> list[str]:
    rows: Sequence[Row] = document["rows"]
    seeds = len(rows[0]["seeds"])
    control = next((row["control"] for row in rows if "control" in row), None)
    seconds = sum(value for row in rows if "control" not in row for value in row["seconds"])
    lines = [
        f"Models: mean of {plural(seeds, 'seed')}, with the best weights on the validation split"
        + (" and the 95 % interval of the mean over seeds (Student's t)" if seeds > 1 else "")
        + f". {', '.join(arm.name for arm in ARMS)}: the same architecture and tokenizer. The pre-trained"
        " arms start from **one** pre-training (seed 0), so their intervals do not cover the variation"
        " between pre-trainings."
    ]
    for record in document.get("imported", []):
        lines += imported_lines(record)
    if control is not None:
        lines += [
            f"{BASELINE}: words and word pairs, C chosen on the validation split. It is deterministic,"
            f" so there is one run; its interval is over the {control['test_examples']:,} test texts"
            " (bootstrap), a variation that the other intervals do not show. It has the same labels,"
            " validation texts and test texts."
        ]
    if reused := list(dict.fromkeys(row["arm"] for row in rows if row.get("kept"))):
        lines += [f"Reused from an earlier measurement: {', '.join(reused)}."]
    lines += [f"Omitted: {arm}; {why}." for arm, why in document["left_out"].items()]
    if document.get("missing"):
        count, first = len(document["missing"]), document["missing"][0]
        lines += [f"**Not finished:** {plural(count, 'run')}, among them {first}."]
    workers, threads = document["workers"], document["threads_per_worker"]
    lines += [
        f"Total training time without the pre-training: {seconds / 60:.1f} minutes, with"
        f" {plural(workers, 'worker')} of {plural(threads, 'thread')}."
    ]
    return "\n\n".join(lines).split("\n")


def _pretraining_lines(record: Mapping[str, Any]) -> list[str]:
    measured = ", ".join(f"{name} {value:.4g}" for name, value in record["validation"].items())
    training = (
        f"{record['steps']:,} steps in {record['seconds'] / 60:.1f} minutes."
        f" On its validation split: {measured}."
        if record["steps"]
        else "no training step: initial weights only."
    )
    facts = [f"Preset `{record['preset']}`"]
    facts += [f"task `{record['task']}`"] if "task" in record else []
    facts += [f"{record['parameters']:,} parameters"]
    facts += [f"embedding init: {record['embedding_init']}"] if "embedding_init" in record else []
    lines = [f"{', '.join(facts)}; {training}"]
    text = record["text"]
    if text is not None:
        left_out = "; ".join(f"{why} {count:,}" for why, count in text["left_out"].items())
        lines += ["", f"Text: {text['lines']:,} lines, SHA-256 `{text['sha256']}`. Omitted: {left_out}.", ""]
        lines += [f"- {name}: {count:,}" for name, count in text["by_source"].items()]
        if text.get("own_times", 1) > 1:
            lines += ["", f"One epoch reads the task's own texts {text['own_times']} times."]
    return lines


def _study(name: str, definition: Mapping[str, Any]) -> TransferStudy:
    text = definition.get("text")
    if text is not None:
        text = TextPlan(**{**text, "sources": [TextSource(**source) for source in text["sources"]]})
    options = TransferOptions(**definition["options"])
    imported = [ImportedArm(**arm) for arm in definition.get("imported", [])]
    return TransferStudy(name=name, **{**definition, "options": options, "text": text, "imported": imported})


TRANSFER_STUDIES = [_study(name, definition) for name, definition in load_definition("transfer").items()]
