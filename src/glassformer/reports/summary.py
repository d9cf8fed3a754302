"""Summaries of runs, read from their files and grouped: runs of a group differ in their seed only."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from glassformer.core.config import Tree, flatten, format_value, validate
from glassformer.core.errors import UserError, shorten
from glassformer.evaluation.intervals import student_interval
from glassformer.reports.tables import Quantity
from glassformer.runs.experiment import ExperimentConfig
from glassformer.runs.folder import RunFolder, Status, options_in_force
from glassformer.training.events import read_lines

TEST, VALIDATION = "test", "validation"
SPLITS = (TEST, VALIDATION)
DONE = "done"

MEANINGS = {
    "new": "has not started training",
    "running": "is still training",
    "stalled": "is training, but has not written for minutes",
    "stopped": "was stopped before its end and can be resumed",
    "crashed": "crashed: the process was killed, or the machine went down",
    "damaged": "is damaged",
    "diverged": "diverged: its loss grew too large, and the training stopped",
    "done": "is finished",
}


@dataclass(frozen=True)
class RunResults:
    """Final measurements of a run, from its `results.json`."""

    primary_metric: str | None = None
    metrics: Mapping[str, Mapping[str, Quantity]] = field(default_factory=dict)
    """Value and confidence interval of each metric, by split and metric name."""
    facts: Tree = field(default_factory=dict)
    """Other numbers of the run, such as steps, seconds, parameters and tokens_per_second."""
    protocol: Mapping[str, Tree] = field(default_factory=dict)

    @property
    def split(self) -> str | None:
        """Split whose metrics are reported: test if it was measured, otherwise validation, or None."""
        return next((split for split in SPLITS if self.metrics.get(split)), None)


@dataclass
class TrainingCurve:
    """Training losses and validation metrics by step, from the event log of a run."""

    losses: list[tuple[float, float]] = field(default_factory=list)
    """Pairs of step and training loss."""
    validations: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    lines_lost: int = 0

    def of(self, metric: str) -> list[tuple[float, float]]:
        """Return the validation metric as a list of pairs (step, value)."""
        return [(step, metrics[metric]) for step, metrics in self.validations if metric in metrics]


@dataclass(frozen=True)
class RunSummary:
    """Content of a run folder, as far as its files can be read."""

    folder: RunFolder
    given: str
    """Path of the run as given on the command line."""
    status: Status
    tree: Tree
    """Config as a nested dict; empty if the file cannot be read."""
    config: ExperimentConfig | None
    """Validated config; None if it is not valid here, for example because a plug-in is not loaded."""
    results: RunResults
    environment: Tree
    curve: TrainingCurve
    warnings: list[str]

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return self.folder.path.resolve().name

    @property
    def is_finished(self) -> bool:
        """True if the run is done and has results."""
        return self.status.name == DONE and self.results.split is not None

    @property
    def is_imported(self) -> bool:
        """True if the model of the run was imported. Such a run has no measurements."""
        return self.status.name == DONE and "imported" in self.environment

    @property
    def seed(self) -> int | None:
        """Seed in the config, or None if the config has none."""
        seed = self.tree.get("seed")
        return seed if isinstance(seed, int) else None

    @property
    def task_kind(self) -> str:
        """Kind of the task in the config, such as `reversal`, or `unknown`."""
        return str(flatten(self.tree).get("task.kind", "unknown"))

    def state(self) -> str:
        """Return the state and the progress of the run as text."""
        words = MEANINGS.get(self.status.name, self.status.name)
        if self.is_imported:
            return "is an imported model, which was not trained here"
        if self.is_finished or not self.status.step:
            return words
        of = f" of {self.status.total_steps:,}" if isinstance(self.status.total_steps, int) else ""
        return f"{words}; it reached step {self.status.step:,}{of}"


def read_run(given: str) -> RunSummary:
    """Read a run folder. Damaged files become warnings; a folder that is not a run is a user error."""
    folder = RunFolder.open(Path(given))
    warnings: list[str] = []

    def attempt(read: Any, otherwise: Any) -> Any:
        try:
            return read()
        except UserError as error:
            warnings.append(str(error).splitlines()[0])
        except (OSError, TypeError, ValueError, AttributeError) as error:
            warnings.append(f"{folder.path}: cannot be read: {error}")
        return otherwise

    tree: Tree = attempt(folder.config, {})
    config = attempt(lambda: validate(ExperimentConfig, tree), None) if tree else None
    if config is not None:
        tree = config.dump()
    status = attempt(lambda: _checked(folder.status()), Status("damaged", 0, None, None))
    results = attempt(lambda: read_results(folder.results()), RunResults())
    environment = attempt(folder.environment, {})
    curve = attempt(lambda: read_curve(folder.events.path), TrainingCurve())
    if curve.lines_lost:
        warnings.append(f"{folder.events.path}: unreadable lines: {curve.lines_lost:,}")
    lacks_results = status.name == DONE and results.split is None and "imported" not in environment
    if lacks_results:
        warnings.append(f"{folder.path}: its state is done, but its results are missing")
    if not tree or lacks_results:
        status = Status("damaged", status.step, status.total_steps, None)
    return RunSummary(folder, given, status, tree, config, results, environment, curve, warnings)


def _checked(status: Status) -> Status:
    if not isinstance(status.name, str) or not isinstance(status.step, int):
        raise ValueError("status.json has an unexpected form")
    return status


def read_results(document: Mapping[str, Any]) -> RunResults:
    """Parse the content of `results.json`. Entries of an unexpected form are skipped."""
    metrics: dict[str, dict[str, Quantity]] = {}
    intervals = _tree(document.get("intervals"))
    for split, measured in _tree(document.get("metrics")).items():
        limits = _tree(intervals.get(split))
        metrics[str(split)] = {
            str(name): Quantity(value, interval_of(limits.get(name)))
            for name, value in _tree(measured).items()
            if is_number(value)
        }
    primary_metric = document.get("primary_metric")
    known = ("steps", "epochs", "seconds", "tokens_per_second", "parameters", "best_step", "ended_because")
    return RunResults(
        primary_metric if isinstance(primary_metric, str) else None,
        metrics,
        {name: document[name] for name in known if isinstance(document.get(name), (int, float, str))},
        {str(split): _tree(of_split) for split, of_split in _tree(document.get("protocol")).items()},
    )


def read_curve(path: Path) -> TrainingCurve:
    """Read training losses and validation metrics from an event log, and count unreadable lines."""
    curve = TrainingCurve()
    for line in read_lines(path):
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            curve.lines_lost += 1
            continue
        if not isinstance(event, dict) or not is_number(event.get("step")):
            continue
        if event.get("event") == "step" and is_number(event.get("loss")):
            curve.losses.append((event["step"], event["loss"]))
        elif event.get("event") == "validation":
            metrics = {name: value for name, value in event.items() if is_number(value)}
            curve.validations.append((event["step"], metrics))
    return curve


def is_number(value: object) -> bool:
    """Return True for an int or a float, but not for a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def interval_of(value: object) -> tuple[float, float] | None:
    """Return a confidence interval as a pair (low, high), or None if the value is not a pair of numbers."""
    if isinstance(value, (list, tuple)) and len(value) == 2 and all(map(is_number, value)):
        return value[0], value[1]
    return None


def _tree(value: object) -> Tree:
    return value if isinstance(value, dict) else {}


DATA = "data (SHA-256)"
"""Name of an artificial option that distinguishes runs with equal options and different data."""
LONGEST_LABEL = 72
MAX_NAMED = 4
"""Maximum number of options in a group's label. Groups that differ in more are labelled by run names."""
NOT_A_SETTING = ("seed", "inspection.")
"""Config paths that are ignored when runs are grouped: the seed, and inspection during training."""


@dataclass(frozen=True)
class RunGroup:
    """Group of runs whose options and data are equal except for the seed."""

    label: str
    options: Tree
    """Option values by config path, without the seed."""
    summaries: list[RunSummary]
    notes: list[str] = field(default_factory=list)

    @property
    def finished(self) -> list[RunSummary]:
        """Finished runs, at most one per seed, because a repeated seed is not a second measurement."""
        by_seed: dict[Any, RunSummary] = {}
        for summary in self.summaries:
            if summary.is_finished:
                by_seed.setdefault(summary.folder.path if summary.seed is None else summary.seed, summary)
        return list(by_seed.values())

    @property
    def split(self) -> str | None:
        """Split whose metrics are reported: test if it was measured, otherwise validation, or None."""
        splits = {summary.results.split for summary in self.finished}
        return next((split for split in SPLITS if split in splits), None)

    @property
    def primary_metric(self) -> str | None:
        """Name of the task's primary metric, or None if no run is finished."""
        return next(filter(None, (summary.results.primary_metric for summary in self.finished)), None)

    @property
    def counted(self) -> str:
        """Number of finished runs as text: `4` if all are finished, otherwise `3 of 4`."""
        done, total = len(self.finished), len(self.summaries)
        return f"{done}" if done == total else f"{done} of {total}"

    @property
    def measured_on(self) -> str:
        """Number of measured seeds as text, such as `mean of 3 seeds`."""
        return f"mean of {len(self.finished)} seeds" if len(self.finished) > 1 else "one run"

    def metrics(self, split: str) -> list[str]:
        """Return the names of all metrics of a split, the primary metric first."""
        names = [name for summary in self.finished for name in summary.results.metrics.get(split, {})]
        return sorted(dict.fromkeys(names), key=lambda name: name != self.primary_metric)

    def quantity(self, split: str, metric: str) -> Quantity | None:
        """Return a metric's mean and Student's t interval over seeds; for one run, its value and interval."""
        measured = [summary.results.metrics.get(split, {}) for summary in self.finished]
        found = [metrics[metric] for metrics in measured if metric in metrics]
        if len(found) < 2:
            return found[0] if found else None
        values = [quantity.value for quantity in found]
        return Quantity(statistics.fmean(values), interval_of(student_interval(values)))

    @property
    def primary_quantity(self) -> Quantity | None:
        """Value and confidence interval of the primary metric on the reported split."""
        return self.quantity(self.split or TEST, self.primary_metric or "")


def group_runs(summaries: Sequence[RunSummary]) -> list[RunGroup]:
    """Group runs that differ only in the seed, in the order in which they were given."""
    groups: dict[str, list[RunSummary]] = {}
    for summary in summaries:
        groups.setdefault(_key(summary), []).append(summary)
    options = [_options(group[0]) for group in groups.values()]
    if len(set(map(_json, options))) < len(options):  # equal options, other data
        for of_group, group in zip(options, groups.values(), strict=True):
            of_group[DATA] = str(group[0].environment.get("data_sha256"))[:12]
    named = _comparable_paths(options)
    labels = [_label(*pair, named) for pair in zip(groups.values(), options, strict=True)]
    made = []
    for label, of_group, group in zip(labels, options, groups.values(), strict=True):
        unique = label if labels.count(label) == 1 else f"{label} ({group[0].name})"
        made.append(RunGroup(unique, of_group, group, _notes(group)))
    return made


def differing(options: Sequence[Tree]) -> list[str]:
    """Return the config paths at which the options differ."""
    missing = object()
    paths = dict.fromkeys(path for of_one in options for path in of_one)
    return [
        path
        for path in paths
        if any(of_one.get(path, missing) != options[0].get(path, missing) for of_one in options)
    ]


def _options(summary: RunSummary) -> Tree:
    options = options_in_force(flatten(summary.tree))
    return {path: options[path] for path in options if not path.startswith(NOT_A_SETTING)}


def _key(summary: RunSummary) -> str:
    if not summary.tree:
        return str(summary.folder.path.resolve())
    return _json([_options(summary), summary.environment.get("data_sha256")])


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _comparable_paths(options: Sequence[Tree]) -> list[str]:
    """Return the config paths that may label groups of runs: those at which comparable options differ.

    Options of two different kinds are not comparable. If two groups have different optimizers, the path of
    the optimizer's `kind` is returned, and its options are left out.
    """
    return [
        path
        for path in differing(options)
        if any(
            one[path] != other[path] and _same_kinds(one, other, path)
            for one, other in combinations([of_one for of_one in options if path in of_one], 2)
        )
    ]


def _same_kinds(one: Tree, other: Tree, path: str) -> bool:
    """Return True if each config section around the option has the same `kind` in `one` and `other`."""
    parts = path.split(".")
    above = [".".join([*parts[:depth], "kind"]) for depth in range(1, len(parts))]
    return all(one.get(kind) == other.get(kind) for kind in above if kind != path)


def _label(group: Sequence[RunSummary], options: Tree, named: Sequence[str]) -> str:
    present = [path for path in named if path in options]
    if not 0 < len(present) <= MAX_NAMED:
        return group[0].name if len(group) == 1 else f"{_common_name(group)} ({len(group)} runs)"
    shown = [f"{_short(path)} {format_value(options[path])}" for path in present]
    return shorten(" · ".join(shown), LONGEST_LABEL)


def _short(path: str) -> str:
    """Return a short name for a config path, such as `position` for `model.position.kind`."""
    parts = path.removesuffix(".kind").split(".")
    return ".".join(parts[1:]) or parts[0]


def _common_name(group: Sequence[RunSummary]) -> str:
    """Return the common prefix of the run names."""
    first, last = min(summary.name for summary in group), max(summary.name for summary in group)
    same = next((index for index, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[:same].rstrip("-_. 0123456789") or first


def _notes(group: Sequence[RunSummary]) -> list[str]:
    seen: dict[Any, str] = {}
    notes = []
    for summary in group:
        if not summary.is_finished or summary.seed is None:
            continue
        if summary.seed in seen:
            notes.append(
                f"{summary.name} has the same seed {summary.seed} as {seen[summary.seed]} and is not counted."
            )
        seen.setdefault(summary.seed, summary.name)
    return notes
