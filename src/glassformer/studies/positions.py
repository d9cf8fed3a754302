"""Every positional encoding on three tasks, on the training lengths and on longer sequences.

Train and validation examples have up to N words or digits, test examples N + 1 to 2 N. No example is in two
splits. The files are the same on every machine, because all seeds are fixed.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glassformer.blocks.positions import PositionConfig
from glassformer.core.registry import kinds
from glassformer.datasets.grammar import translation_pairs
from glassformer.evaluation.evaluate import evaluate
from glassformer.plotting.lines import Axis, Chart, Line, draw, save
from glassformer.runs.run import Run
from glassformer.storage.files import atomic_write, json_bytes
from glassformer.studies.recipes import RecipeRun, RecipeStudy, Setting, costs, number, with_interval
from glassformer.studies.study import (
    Overrides,
    Results,
    Row,
    StudyContext,
    load_definition,
    table_head,
    table_row,
    texts_of,
)

DEFINITION = load_definition("positions")
THEORY: Mapping[str, str] = DEFINITION["theory"]

Pair = tuple[str, str]
Measure = Callable[[str], int]
"""Function that returns the length of an input, in words or digits."""
Draw = Callable[[str, int, int, np.random.Generator], Iterator[Pair]]
"""Function that yields endless (input, target) pairs for a split, within a range of lengths."""

SEED = 0
HELD_OUT = 5
"""One in this many sums is kept out of training, so that validation and test also get short sums."""
GRAMMAR_PAIRS = 4_000
"""Number of sentence pairs generated at a time, until enough have the right length."""
MIN_EXAMPLES = 8
"""Minimum number of examples of one length for a point in the plot of accuracy by length."""


def words(source: str) -> int:
    """Return the number of words in an input."""
    return len(source.split())


def digits(source: str) -> int:
    """Return the number of digits of the first number in a sum. The second number has as many digits."""
    return len(source.partition("+")[0])


@dataclass(frozen=True)
class LengthData:
    """Data files of one task. The test split has longer examples than the train and validation splits."""

    name: str
    draw: Draw
    shortest: int
    longest: int
    """Maximum length of a training example. Test examples are longer, up to twice this length."""
    train_examples: int
    other_examples: int
    """Number of examples in the validation split, and also in the test split."""
    measure: Measure = words

    @property
    def folder(self) -> str:
        """Name of the data folder, with a hash of everything that determines the data."""
        content = (self.name, self.shortest, self.longest, self.train_examples, self.other_examples, SEED)
        return f"{self.name}-{hashlib.sha256(repr(content).encode()).hexdigest()[:8]}"

    def files(self) -> dict[str, str]:
        """Return the relative file path of each split."""
        return {split: f"{self.folder}/{split}.tsv" for split in ("train", "validation", "test")}

    def lengths(self, file: Path) -> np.ndarray:
        """Return an array with the number of input tokens in each line of a file."""
        lines = file.read_text(encoding="utf-8").splitlines()
        return np.array([self.measure(line.partition("\t")[0]) for line in lines])

    def write(self, parent: Path) -> None:
        """Write the files of the train, validation and test splits, unless they exist."""
        seen: set[str] = set()
        bounds = {
            "validation": (self.shortest, self.longest, self.other_examples),
            "test": (self.longest + 1, 2 * self.longest, self.other_examples),
            "train": (self.shortest, self.longest, self.train_examples),
        }
        files = {split: parent / name for split, name in self.files().items()}
        if all(file.is_file() for file in files.values()):
            return
        for index, (split, (low, high, count)) in enumerate(bounds.items()):
            drawn = self.draw(split, low, high, np.random.default_rng((SEED, index)))
            lines: list[str] = []
            while len(lines) < count:
                source, target = next(drawn)
                if source not in seen:
                    seen.add(source)
                    lines.append(f"{source}\t{target}\n")
            files[split].parent.mkdir(parents=True, exist_ok=True)
            atomic_write(files[split], "".join(lines).encode())


def draw_reversals(split: str, low: int, high: int, rng: np.random.Generator) -> Iterator[Pair]:
    """Yield random sequences of the digits 0 to 9, each with its reversal as the target."""
    while True:
        tokens = rng.integers(0, 10, rng.integers(low, high, endpoint=True)).astype(str).tolist()
        yield " ".join(tokens), " ".join(reversed(tokens))


def draw_sums(split: str, low: int, high: int, rng: np.random.Generator) -> Iterator[Pair]:
    """Yield sums of two random numbers with equally many digits, such as `12+34`, with their results."""
    while True:
        digits = int(rng.integers(low, high, endpoint=True))
        first, second = rng.integers(10 ** (digits - 1), 10**digits, 2).tolist()
        is_held_out = (first + 2 * second) % HELD_OUT == 0
        if is_held_out == (split != "train"):
            yield f"{first}+{second}", str(first + second)


def draw_sentences(split: str, low: int, high: int, rng: np.random.Generator) -> Iterator[Pair]:
    """Yield pairs of English and French sentences from a grammar, within a range of English words.

    Word combinations of the train split do not occur in the other splits.
    """
    while True:
        pairs = translation_pairs(GRAMMAR_PAIRS, int(rng.integers(2**31)), split)
        yield from (pair for pair in pairs if low <= len(pair[0].split()) <= high)


@dataclass(frozen=True)
class LengthTask:
    """Task of the study: its data, its preset and its options."""

    data: LengthData
    source: str
    """Name of the preset to which `options` are applied."""
    unit: str
    """Unit in which lengths are counted, such as words or digits."""
    options: Overrides
    decoded: str | None = None
    """Metric of outputs that the model generates without teacher forcing, or None."""


@dataclass(frozen=True, kw_only=True)
class PositionStudy(RecipeStudy):
    """Study of the accuracy by positional encoding, task and sequence length."""

    tasks: Sequence[LengthTask] = ()
    quick_tasks: Sequence[LengthTask] = ()

    def selected(self, context: StudyContext) -> list[Setting]:
        """Return one row of the table (a `Setting`) per task and registered positional encoding."""
        return [
            _setting(task, kind) for task in self._tasks(context) for kind in sorted(kinds(PositionConfig))
        ]

    def runs(self, context: StudyContext) -> list[RecipeRun]:
        """Write the data files, then return the runs of the study."""
        for task in self._tasks(context):
            task.data.write(context.folder / "data")
        return super().runs(context)

    def path_overrides(self, setting: Setting, context: StudyContext) -> Overrides:
        """Return config overrides that set `task.data` to the absolute paths of the study's data files."""
        files = setting.overrides["task"]["data"]
        folder = (context.folder / "data").resolve()
        return {f"task.data.{split}": str(folder / files[split]) for split in ("train", "validation", "test")}

    @property
    def metric_label(self) -> str:
        """Description of the metric in `table.md`."""
        return f"{self.metric} of tokens"

    def value(self, results: Results) -> float:
        """Return a run's metric on the validation set, which has the training lengths."""
        return float(results["metrics"]["validation"][self.metric])

    def extra_results(
        self, runs: Sequence[RecipeRun], rows: list[Row], context: StudyContext
    ) -> dict[str, Any]:
        """Add accuracies on longer sequences, of generated outputs and by length to `rows`; return plots."""
        tasks = {task.data.name: task for task in self._tasks(context)}
        for row in rows:
            name, _, kind = row["setting"].partition(", ")
            own = [run for run in runs if run.setting.name == row["setting"]]
            if not own:  # reused from an earlier measurement
                continue
            row |= {"task": name, "position": kind, "theory": THEORY.get(kind, "")}
            results = [run.job.results()["metrics"] for run in own]
            row["beyond"] = statistics.fmean(result["test"][self.metric] for result in results)
            decoded = tasks[name].decoded
            for key, split in (("decoded", "validation"), ("decoded_beyond", "test")):
                values = [result[split][decoded] for result in results if decoded]
                row[key] = statistics.fmean(values) if values else None
            by_seed = [self._by_length(run, tasks[name].data, context) for run in own]
            row["by_length"] = {
                length: statistics.fmean(values[length] for values in by_seed) for length in by_seed[0]
            }
        return {
            "tasks": {
                name: {"longest": task.data.longest, "unit": task.unit, "decoded": task.decoded}
                for name, task in tasks.items()
            },
            "plot": self._plot(rows, tasks, context),
        }

    def _tasks(self, context: StudyContext) -> Sequence[LengthTask]:
        return self.quick_tasks if context.is_quick else self.tasks

    def _by_length(self, run: RecipeRun, data: LengthData, context: StudyContext) -> dict[str, float]:
        """Return the accuracy by length. It is cached in a file, because measuring takes long."""
        file = context.folder / "lengths" / f"{run.job.path.name}.json"
        if not file.is_file():
            file.parent.mkdir(exist_ok=True)
            found = _accuracy_by_length(run.job.path, data, context.folder / "data", self.metric)
            atomic_write(file, json_bytes(found))
        return dict(json.loads(file.read_bytes()))

    def _plot(self, rows: Sequence[Row], tasks: Mapping[str, LengthTask], context: StudyContext) -> list[str]:
        charts = []
        for name in dict.fromkeys(row["task"] for row in rows):
            lines = [_line(row) for row in rows if row["task"] == name and row["by_length"]]
            x, y = Axis(tasks[name].unit, is_whole=True), Axis("accuracy of tokens", is_percent=True)
            limit = ("longest in training", tasks[name].data.longest + 0.5)
            charts.append(Chart(name, lines, x, y, limit=limit))
        seeds = max(len(row["seeds"]) for row in rows)
        caption = "Left of the line: training lengths, other examples. "
        caption += "One seed." if seeds == 1 else f"Means over {seeds} seeds."
        return save(draw(charts, self.title, caption), context.folder / "lengths-plot")

    def table(self, document: Mapping[str, Any]) -> list[str]:
        """Return the lines of one Markdown table per task, the most accurate positional encoding first."""
        lines: list[str] = []
        for name, task in document["tasks"].items():
            rows = [row for row in document["rows"] if row["task"] == name]
            longest, decoded = task["longest"], task["decoded"]
            if not rows:
                continue
            heads = ["position", f"to {longest}", f"{longest + 1} to {2 * longest}"]
            heads += [f"{decoded}, to {longest}", f"{decoded}, beyond"] if decoded else []
            lines += ["", f"## {name}, by {task['unit']}", "", *table_head(*heads, "steps", "seconds")]
            for row in sorted(rows, key=lambda row: -row["ours"]):
                cells = [row["position"], with_interval(row["ours"], row["interval"]), number(row["beyond"])]
                cells += [f"{row[key]:.4g}" for key in ("decoded", "decoded_beyond") if decoded]
                lines.append(table_row([*cells, *costs(row)]))
        return lines[1:]

    def sections(self, document: Mapping[str, Any]) -> list[str]:
        """Return the lines of `table.md` with the picture, and the expected behaviour of each encoding."""
        lines = ["![Accuracy against length](lengths-plot.png)", "", "## Theory", ""]
        theory = {row["position"]: row["theory"] for row in document["rows"]}
        return [*lines, *(f"- `{kind}`: {text}" for kind, text in theory.items() if text), ""]


def _setting(task: LengthTask, kind: str) -> Setting:
    data = {**task.data.files(), "columns": {"input": 0, "target": 1}}
    options = {
        # All kinds train at the same learning rate. Most recover from a spike of the loss.
        "training.divergence.spike_factor": None,
        **task.options,
        "task": {**task.options["task"], "data": data},
        "model.position": {"kind": kind},
    }
    return Setting(f"{task.data.name}, {kind}", None, task.source, options, is_quick=True)


def _line(row: Row) -> Line:
    lengths = sorted(map(int, row["by_length"]))
    return Line(row["position"], [(length, row["by_length"][str(length)]) for length in lengths])


def _accuracy_by_length(path: Path, data: LengthData, folder: Path, metric: str) -> dict[str, float]:
    """Compute the teacher-forced accuracy by length, on the validation and test splits."""
    run = Run(path)
    found: dict[str, float] = {}
    for split in ("validation", "test"):
        examples = run.task.splits[split]
        lengths = data.lengths(folder / data.files()[split])
        for length in np.unique(lengths).tolist():
            chosen = np.flatnonzero(lengths == length)
            if len(chosen) >= MIN_EXAMPLES:
                name = f"{split} of length {length}"
                run.task.splits[name] = examples.take(chosen)
                measured = evaluate(run.model, run.task, name, run.config.evaluation, decodes=False)
                found[str(length)] = measured[metric]
    return found


def _task(data: LengthData, **options: Any) -> LengthTask:
    task = DEFINITION["tasks"][data.name]
    return LengthTask(data, task["source"], task["unit"], {**task["options"], **options}, task["decoded"])


def _reversal(longest: int, train_examples: int, steps: int) -> LengthTask:
    data = LengthData("reversal", draw_reversals, longest // 2, longest, train_examples, 400)
    return _task(data, **{"training.max_steps": steps})


POSITIONS = PositionStudy(
    **texts_of(DEFINITION),
    settings=(),
    seeds=1,
    tasks=[
        _reversal(12, 20_000, 1000),
        _task(LengthData("arithmetic", draw_sums, 1, 2, 6000, 400, digits)),
        _task(LengthData("translation", draw_sentences, 2, 8, 20_000, 400)),
    ],
    quick_tasks=[_reversal(8, 8_000, 200)],
)
