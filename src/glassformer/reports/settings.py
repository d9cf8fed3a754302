"""Runs by their setting: those that differ in their seed alone are one measurement, repeated."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from glassformer.config import Tree, flatten, format_value
from glassformer.errors import shorten
from glassformer.reports.reading import SPLITS, Record
from glassformer.reports.tables import Quantity
from glassformer.reproduce.study import interval

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
    def headline(self) -> str | None:
        return next((record.results.headline for record in self.finished if record.results.headline), None)

    @property
    def counted(self) -> str:
        """`3 of 4`, where one has no end yet."""
        done, all_of_them = len(self.finished), len(self.records)
        return f"{done}" if done == all_of_them else f"{done} of {all_of_them}"

    def metrics(self, split: str) -> list[str]:
        """The headline first."""
        names = [name for record in self.finished for name in record.results.metrics.get(split, {})]
        return sorted(dict.fromkeys(names), key=lambda name: name != self.headline)

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
        low_high = interval(values)
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
