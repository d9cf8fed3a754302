"""What a report is about, gathered once; the sections show it, the tables are also written elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from glassformer.config import format_value
from glassformer.reports.inside import Inside
from glassformer.reports.reading import TEST, VALIDATION, Record
from glassformer.reports.settings import Setting, by_setting, differing
from glassformer.reports.studies import Study
from glassformer.reports.tables import Cell, Quantity, Table

OVER_SEEDS = "Intervals: 95 %, of the mean over seeds, by Student's t."
OVER_EXAMPLES = "Intervals: 95 %, over examples."


@dataclass(frozen=True)
class Content:
    records: list[Record]
    studies: list[Study]
    insides: list[Inside]
    """Of one run a setting, for the first few settings."""
    arguments: list[str] = field(default_factory=list)
    """What was typed after `glassformer report`."""
    plugins: list[str] = field(default_factory=list)

    @cached_property
    def settings(self) -> list[Setting]:
        return by_setting(self.records)

    @property
    def title(self) -> str:
        if self.studies:
            return " · ".join(study.title for study in self.studies)
        if len(self.records) == 1:
            return self.records[0].name
        kinds = list(dict.fromkeys(record.task_kind for record in self.records))
        return f"{', '.join(kinds)}: {len(self.records)} runs"

    @property
    def problems(self) -> list[str]:
        found = [problem for study in self.studies for problem in study.problems]
        return found + [problem for record in self.records for problem in record.problems]

    def tables(self) -> list[Table]:
        """Those of the numbers: what Markdown and LaTeX are written of."""
        told = [table for study in self.studies for table in study.tables if not table.is_aside]
        return told + results_tables(self.settings)


def results_tables(settings: Sequence[Setting]) -> list[Table]:
    """Of one setting its metrics by split; of several a row each. Settings with other metrics stand apart."""
    with_numbers = [setting for setting in settings if setting.split is not None]
    if len(with_numbers) == 1:
        return [_one_setting(with_numbers[0])]
    tables = []
    alike: dict[tuple[Any, ...], list[Setting]] = {}
    for setting in with_numbers:
        assert setting.split is not None
        key = (setting.split, setting.headline, frozenset(setting.metrics(setting.split)))
        alike.setdefault(key, []).append(setting)
    for (split, *_), group in alike.items():
        tables.append(_several_settings(split, group))
    # What is said under several tables in a row is said under the last.
    return [
        replace(
            table,
            notes=[note for note in table.notes if not any(note in later.notes for later in tables[at:])],
        )
        for at, table in enumerate(tables, start=1)
    ]


def _one_setting(setting: Setting) -> Table:
    splits = [split for split in (TEST, VALIDATION) if setting.metrics(split)]
    metrics = list(dict.fromkeys(metric for split in splits for metric in setting.metrics(split)))
    rows: list[list[Cell]] = [
        [_words(metric), *(setting.quantity(split, metric) for split in splits)] for metric in metrics
    ]
    headings = [f"{split} ({_measured_on(setting)})" for split in splits]
    return Table(setting.label, ["metric", *headings], rows, _interval_notes([setting]))


def _several_settings(split: str, settings: Sequence[Setting]) -> Table:
    metrics = settings[0].metrics(split)
    rows: list[list[Cell]] = [
        [setting.label, setting.counted, *(setting.quantity(split, metric) for metric in metrics)]
        for setting in settings
    ]
    headings = ["setting", "runs", *map(_words, metrics)]
    return Table(f"{split.capitalize()} set", headings, rows, _interval_notes(settings))


def _measured_on(setting: Setting) -> str:
    seeds = len(setting.finished)
    return f"mean of {seeds} seeds" if seeds > 1 else "one run"


def _interval_notes(settings: Sequence[Setting]) -> list[str]:
    notes = []
    several = [len(setting.finished) > 1 for setting in settings]
    if any(several):
        notes.append(OVER_SEEDS if all(several) else f"{OVER_SEEDS} Of a single run: over examples.")
    elif any(
        isinstance(quantity, Quantity) and quantity.interval is not None
        for setting in settings
        for quantity in (setting.quantity(setting.split or TEST, name) for name in [setting.headline or ""])
    ):
        notes.append(OVER_EXAMPLES)
    if any(_is_point(setting) for setting in settings):
        notes.append("An interval without a width: every seed gave the same number.")
    return notes + [note for setting in settings for note in setting.notes]


def _is_point(setting: Setting) -> bool:
    if setting.split is None or len(setting.finished) < 2:
        return False
    found = [setting.quantity(setting.split, metric) for metric in setting.metrics(setting.split)]
    limits = [quantity.interval for quantity in found if quantity is not None and quantity.interval]
    return any(low == high for low, high in limits)


def runs_table(settings: Sequence[Setting]) -> Table:
    """Every run, finished or not."""
    names = list(dict.fromkeys(setting.headline for setting in settings if setting.headline))
    rows: list[list[Cell]] = []
    for setting in settings:
        for record in setting.records:
            facts = record.results.facts
            rows.append(
                [
                    record.name,
                    setting.label if len(settings) > 1 else None,
                    record.status.name,
                    "" if record.seed is None else str(record.seed),
                    record.status.step,
                    facts.get("seconds"),
                    *(final_or_last(record, name) for name in names),
                ]
            )
    headings = ["run", "setting", "state", "seed", "steps", "seconds", *map(_words, names)]
    if len(settings) == 1:
        rows = [[*row[:1], *row[2:]] for row in rows]
        headings.remove("setting")
    return Table("", headings, rows)


def final_or_last(record: Record, metric: str) -> Cell:
    """What its end measured, or its last validation, which says so."""
    split = record.results.split
    if record.is_finished and split is not None:
        return record.results.metrics[split].get(metric)
    points = record.curve.of(metric)
    if not points:
        return None
    step, value = points[-1]
    return f"(validation at step {step:,.0f}: {value:.4g})"


def differences_tables(settings: Sequence[Setting]) -> tuple[Table | None, Table | None]:
    """Of the options that all have, and of those that only some kinds have."""
    readable = [setting for setting in settings if setting.options]
    paths = differing([setting.options for setting in readable]) if readable else []
    shared = [path for path in paths if all(path in setting.options for setting in readable)]
    own = [path for path in paths if path not in shared]
    return (
        _differences("Where the settings differ", shared, readable),
        _differences("Options that only some have", own, readable),
    )


def _differences(caption: str, paths: Sequence[str], settings: Sequence[Setting]) -> Table | None:
    rows: list[list[Cell]] = [[path, *(_option(setting, path) for setting in settings)] for path in paths]
    return Table(caption, ["option", *(setting.label for setting in settings)], rows) if rows else None


def _option(setting: Setting, path: str) -> str | None:
    return format_value(setting.options[path]) if path in setting.options else None


def _words(metric: str) -> str:
    return metric.replace("_", " ")
