"""A run as its files tell it: what can be read is read, and what cannot is said. No model is loaded.

A report shows what went wrong; it must not go wrong itself. So nothing in a run's files is believed to have
the right form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glassformer.config import Tree, flatten, validate
from glassformer.errors import UserError
from glassformer.experiment import ExperimentConfig
from glassformer.reports.tables import Quantity
from glassformer.runs import RunFolder, Status
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

    headline: str | None = None
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
    headline = document.get("headline")
    known = ("steps", "epochs", "seconds", "tokens_per_second", "parameters", "best_step", "ended")
    return Results(
        headline if isinstance(headline, str) else None,
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
