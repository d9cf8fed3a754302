"""Runs as read from their files, and grouped by setting: repetitions differ in their seed alone."""

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
from glassformer.runs.folder import RunFolder, Status
from glassformer.training.events import lines_of

TEST, VALIDATION = "test", "validation"
SPLITS = (TEST, VALIDATION)
DONE = "done"

MEANINGS = {
    "new": "has not begun to train",
    "running": "is still being trained",
    "stalled": "is being trained, but has been silent for minutes",
    "stopped": "was stopped before its end and can be resumed",
    "crashed": "ended without a word, before its end: the process was killed, or the machine went down",
    "damaged": "cannot be read as it is",
    "diverged": "diverged: its loss grew beyond what a model can learn from, and the training was given up",
    "done": "is finished",
}


@dataclass(frozen=True)
class Results:
    """What the end of training measured."""

    primary_metric: str | None = None
    metrics: Mapping[str, Mapping[str, Quantity]] = field(default_factory=dict)
    """By split and name."""
    facts: Tree = field(default_factory=dict)
    """steps, seconds, parameters, tokens_per_second, best_step, ended"""
    protocol: Mapping[str, Tree] = field(default_factory=dict)

    @property
    def split(self) -> str | None:
        """Where it was measured: on the test set, if it has one."""
        return next((split for split in SPLITS if self.metrics.get(split)), None)


@dataclass(frozen=True)
class Curve:
    """What the record says of the way."""

    losses: list[tuple[float, float]] = field(default_factory=list)
    """Step and training loss."""
    validations: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    lines_lost: int = 0

    def of(self, metric: str) -> list[tuple[float, float]]:
        return [(step, metrics[metric]) for step, metrics in self.validations if metric in metrics]


@dataclass(frozen=True)
class Record:
    folder: RunFolder
    given: str
    """The path as it was typed."""
    status: Status
    tree: Tree
    """The config; empty if it cannot be read."""
    config: ExperimentConfig | None
    """None if this version, without a plug-in, does not know what it says."""
    results: Results
    environment: Tree
    curve: Curve
    problems: list[str]

    @property
    def name(self) -> str:
        return self.folder.path.resolve().name

    @property
    def is_finished(self) -> bool:
        return self.status.name == DONE and self.results.split is not None

    @property
    def seed(self) -> int | None:
        seed = self.tree.get("seed")
        return seed if isinstance(seed, int) else None

    @property
    def task_kind(self) -> str:
        return str(flatten(self.tree).get("task.kind", "unknown"))

    def state(self) -> str:
        """In words: how it stands, and how far it came."""
        words = MEANINGS.get(self.status.name, self.status.name)
        if self.is_finished or not self.status.step:
            return words
        of = f" of {self.status.total_steps:,}" if isinstance(self.status.total_steps, int) else ""
        return f"{words}; it came to step {self.status.step:,}{of}"


def read_run(given: str) -> Record:
    """A UserError only if there is no run."""
    folder = RunFolder.open(Path(given))
    problems: list[str] = []

    def attempt(read: Any, otherwise: Any) -> Any:
        try:
            return read()
        except UserError as error:
            problems.append(str(error).splitlines()[0])
        except (OSError, TypeError, ValueError, AttributeError) as error:
            problems.append(f"{folder.path}: cannot be read: {error}")
        return otherwise

    tree: Tree = attempt(folder.config, {})
    config = attempt(lambda: validate(ExperimentConfig, tree), None) if tree else None
    if config is not None:
        tree = config.dump()
    status = attempt(lambda: _checked(folder.status()), Status("damaged", 0, None, None))
    results = attempt(lambda: read_results(folder.results()), Results())
    environment = attempt(folder.environment, {})
    curve = attempt(lambda: read_curve(folder.events.path), Curve())
    if curve.lines_lost:
        problems.append(f"{folder.events.path}: lines that cannot be read: {curve.lines_lost:,}")
    if status.name == DONE and results.split is None:
        problems.append(f"{folder.path}: it says that it is done, and its results are not there")
    if not tree or (status.name == DONE and results.split is None):
        status = Status("damaged", status.step, status.total_steps, None)
    return Record(folder, given, status, tree, config, results, environment, curve, problems)


def _checked(status: Status) -> Status:
    if not isinstance(status.name, str) or not isinstance(status.step, int):
        raise ValueError("status.json is of another form")
    return status


def read_results(document: Mapping[str, Any]) -> Results:
    """Of `results.json`; entries of another form than ours are passed over."""
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
    known = ("steps", "epochs", "seconds", "tokens_per_second", "parameters", "best_step", "ended")
    return Results(
        primary_metric if isinstance(primary_metric, str) else None,
        metrics,
        {name: document[name] for name in known if isinstance(document.get(name), (int, float, str))},
        {str(split): _tree(of_split) for split, of_split in _tree(document.get("protocol")).items()},
    )


def read_curve(path: Path) -> Curve:
    curve = Curve()
    lost = 0
    for line in lines_of(path):
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            lost += 1
            continue
        if not isinstance(event, dict) or not is_number(event.get("step")):
            continue
        if event.get("event") == "step" and is_number(event.get("loss")):
            curve.losses.append((event["step"], event["loss"]))
        elif event.get("event") == "validation":
            metrics = {name: value for name, value in event.items() if is_number(value)}
            curve.validations.append((event["step"], metrics))
    return Curve(curve.losses, curve.validations, lost)


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def interval_of(value: object) -> tuple[float, float] | None:
    if isinstance(value, (list, tuple)) and len(value) == 2 and all(map(is_number, value)):
        return value[0], value[1]
    return None


def _tree(value: object) -> Tree:
    return value if isinstance(value, dict) else {}


DATA = "data (SHA-256)"
"""Stands among the options where runs with equal options have read other data."""
LONGEST_LABEL = 72
MOST_NAMED = 4
"""Differences in a label: settings that differ in more are told apart by the names of their runs."""
NOT_A_SETTING = ("seed", "inspection.")
"""What is looked at while a model trains decides nothing about it."""


@dataclass(frozen=True)
class Setting:
    label: str
    options: Tree
    """By path, without the seed."""
    records: list[Record]
    notes: list[str] = field(default_factory=list)

    @property
    def finished(self) -> list[Record]:
        """Each seed once: the same run twice is no second measurement."""
        by_seed: dict[Any, Record] = {}
        for record in self.records:
            if record.is_finished:
                by_seed.setdefault(record.folder.path if record.seed is None else record.seed, record)
        return list(by_seed.values())

    @property
    def split(self) -> str | None:
        """Where its numbers come from."""
        return next(
            (split for split in SPLITS if any(record.results.split == split for record in self.finished)),
            None,
        )

    @property
    def primary_metric(self) -> str | None:
        return next(
            (record.results.primary_metric for record in self.finished if record.results.primary_metric), None
        )

    @property
    def counted(self) -> str:
        """`3 of 4`, where one has no end yet."""
        done, all_of_them = len(self.finished), len(self.records)
        return f"{done}" if done == all_of_them else f"{done} of {all_of_them}"

    def metrics(self, split: str) -> list[str]:
        """The headline first."""
        names = [name for record in self.finished for name in record.results.metrics.get(split, {})]
        return sorted(dict.fromkeys(names), key=lambda name: name != self.primary_metric)

    def quantity(self, split: str, metric: str) -> Quantity | None:
        """Of several seeds the mean, with Student's interval; of one its own number, with its own."""
        found = [
            of_split[metric]
            for record in self.finished
            if metric in (of_split := record.results.metrics.get(split, {}))
        ]
        if len(found) < 2:
            return found[0] if found else None
        values = [quantity.value for quantity in found]
        low_high = student_interval(values)
        return Quantity(statistics.fmean(values), None if low_high is None else (low_high[0], low_high[1]))


def by_setting(records: Sequence[Record]) -> list[Setting]:
    """In the order in which they were given."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(_key(record), []).append(record)
    options = [_options(group[0]) for group in groups.values()]
    told = {json.dumps(of_group, sort_keys=True, default=str) for of_group in options}
    if len(told) < len(options):  # equal options, other data
        for of_group, group in zip(options, groups.values(), strict=True):
            of_group[DATA] = str(group[0].environment.get("data_sha256"))[:12]
    named = _telling(options)
    labels = [
        _label(group, of_group, named) for group, of_group in zip(groups.values(), options, strict=True)
    ]
    return [
        Setting(
            label if labels.count(label) == 1 else f"{label} ({group[0].name})",
            of_group,
            group,
            _notes(group),
        )
        for label, of_group, group in zip(labels, options, groups.values(), strict=True)
    ]


def differing(options: Sequence[Tree]) -> list[str]:
    """The paths at which settings do not agree."""
    missing = object()
    paths = dict.fromkeys(path for of_one in options for path in of_one)
    return [
        path
        for path in paths
        if any(of_one.get(path, missing) != options[0].get(path, missing) for of_one in options)
    ]


def _options(record: Record) -> Tree:
    return {path: value for path, value in flatten(record.tree).items() if not path.startswith(NOT_A_SETTING)}


def _key(record: Record) -> str:
    if not record.tree:
        return str(record.folder.path.resolve())
    options = _options(record)
    return json.dumps([options, record.environment.get("data_sha256")], sort_keys=True, default=str)


def _telling(options: Sequence[Tree]) -> list[str]:
    """Differences that are worth naming: the options of two kinds are not compared with each other."""
    return [
        path
        for path in differing(options)
        if any(
            one[path] != other[path] and _same_kinds(one, other, path)
            for one, other in combinations([of_one for of_one in options if path in of_one], 2)
        )
    ]


def _same_kinds(one: Tree, other: Tree, path: str) -> bool:
    """Of everything that the option belongs to."""
    parts = path.split(".")
    above = [".".join([*parts[:depth], "kind"]) for depth in range(1, len(parts))]
    return all(one.get(kind) == other.get(kind) for kind in above if kind != path)


def _label(group: Sequence[Record], options: Tree, named: Sequence[str]) -> str:
    there = [path for path in named if path in options]
    if not 0 < len(there) <= MOST_NAMED:
        return group[0].name if len(group) == 1 else f"{_common_name(group)} ({len(group)} runs)"
    shown = [f"{_short(path)} {format_value(options[path])}" for path in there]
    return shorten(" · ".join(shown), LONGEST_LABEL)


def _short(path: str) -> str:
    """`position` for `model.position.kind`, `length` for `task.length`."""
    parts = path.removesuffix(".kind").split(".")
    return ".".join(parts[1:]) or parts[0]


def _common_name(group: Sequence[Record]) -> str:
    """What the names of all begin with."""
    first, last = min(record.name for record in group), max(record.name for record in group)
    same = next((place for place, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[:same].rstrip("-_. 0123456789") or first


def _notes(group: Sequence[Record]) -> list[str]:
    seen: dict[Any, str] = {}
    notes = []
    for record in group:
        if not record.is_finished or record.seed is None:
            continue
        if record.seed in seen:
            notes.append(
                f"{record.name} has the seed {record.seed} of {seen[record.seed]}, and is not counted twice."
            )
        seen.setdefault(record.seed, record.name)
    return notes
