"""Content of a report, gathered once from the run folders and their models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from glassformer.core.config import format_value
from glassformer.core.errors import ErrorDetail, UserError
from glassformer.cost.parameters import count_by_module
from glassformer.inspection.maps import AttentionMaps
from glassformer.inspection.record import layers
from glassformer.models.base import Model
from glassformer.models.closed_form import Comparison, compare
from glassformer.reports.records import TEST, VALIDATION, Record, Setting, by_setting, differing
from glassformer.reports.samples import Samples, take_samples
from glassformer.reports.studies import Study
from glassformer.reports.tables import Cell, Quantity, Table
from glassformer.runs.experiment import Experiment
from glassformer.runs.run import Run
from glassformer.tasks.base import Task

MOST_CELLS = 1_500_000
"""Of all maps of one model together: about a megabyte of the page."""
REFUSALS = (UserError, ErrorDetail)


@dataclass(frozen=True)
class Parameters:
    total: int
    by_module: dict[str, int]
    comparisons: list[Comparison]
    """Beside the closed form, where the model states one."""


@dataclass
class Inside:
    record: Record
    checkpoint: str | None = None
    shape: str = ""
    """What the task asks of the model, in words."""
    parameters: Parameters | None = None
    samples: Samples | None = None
    maps: AttentionMaps | None = None
    maps_words: str = ""
    """Which of the maps are shown, if not all."""
    problems: list[str] = field(default_factory=list)


def look_inside(record: Record, checkpoint: str, samples: int, with_maps: bool) -> Inside:
    inside = Inside(record)
    if record.config is None:
        inside.problems.append("The model is not loaded: its config cannot be used here.")
        return inside
    run = _load(record, checkpoint, inside)
    if run is None:
        return inside
    inside.checkpoint = run.checkpoint
    if samples:
        try:
            inside.samples = take_samples(run, samples)
        except REFUSALS as error:
            inside.problems.append(f"No samples: {_first_line(error)}")
    if with_maps:
        try:
            _take_maps(run, inside)
        except REFUSALS as error:
            inside.problems.append(f"No attention maps: {_first_line(error)}")
    return inside


def _load(record: Record, checkpoint: str, inside: Inside) -> Run | None:
    """With its checkpoint or, where that is not to be had, at least its size."""
    try:
        run = Run(record.folder.path, checkpoint)
    except (*REFUSALS, KeyError, TypeError, ValueError, OSError) as error:  # whatever damaged files lead to
        inside.problems.append(f"The model is not loaded: {_first_line(error)}")
    else:
        _describe(record, run.task, run.model, inside)
        return run
    try:
        assert record.config is not None
        task = record.folder.restore_task(record.config.task, record.config.seed)
        _describe(record, task, Experiment(record.config, task).build_model(), inside)
    except (*REFUSALS, KeyError, TypeError, ValueError, OSError) as error:
        inside.problems.append(f"Its parameters cannot be counted: {_first_line(error)}")
    return None


def _describe(record: Record, task: Task, model: Model, inside: Inside) -> None:
    assert record.config is not None
    inside.shape = " ".join((type(task.task_type).__doc__ or "").split())
    by_module = count_by_module(model)
    try:
        terms = record.config.model.parameter_terms(task.task_type)
    except NotImplementedError:
        terms = {}
    total = sum(by_module.values())
    inside.parameters = Parameters(total, by_module, compare(terms, by_module))
    told = record.results.facts.get("parameters")
    if told is not None and told != total:
        inside.problems.append(f"results.json tells of {told:,} parameters, and the model has {total:,}.")


def _take_maps(run: Run, inside: Inside) -> None:
    chosen, inside.maps_words = _choose(run)
    inside.maps = run.attention(layers=chosen[0], heads=chosen[1])
    if not inside.maps.checks.passed:
        inside.problems.append("The attention maps failed a check, which is said under them.")


def _choose(run: Run) -> tuple[tuple[Sequence[int] | None, Sequence[int] | None], str]:
    """Every head, as long as the page stays small; else fewer layers, then fewer heads."""
    places = layers(run.model)
    if not places:
        return (None, None), ""  # what is refused then says why
    examples = run.task.splits.get("test") or run.task.splits["validation"]
    length = int(examples.lengths()[0])
    depth = min(len(of_place) for of_place in places.values())
    heads = min(attention.num_heads for of_place in places.values() for attention in of_place)
    ends = sorted({0, depth - 1})
    cells = length * length * len(places)
    if cells * depth * heads <= MOST_CELLS:
        return (None, None), ""
    fewer = max(1, min(heads, MOST_CELLS // (cells * len(ends))))
    if cells * len(ends) * fewer > MOST_CELLS:
        ends = [depth - 1]
    words = (
        f"Shown: layer{'s' if len(ends) > 1 else ''} {' and '.join(map(str, ends))} of {depth},"
        f" {fewer} of {heads} heads each; glassformer attention draws all of them."
    )
    return (ends, list(range(fewer))), words


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if isinstance(error, REFUSALS) else f"{type(error).__name__}: {error}"


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
    split_balanced: dict[tuple[Any, ...], list[Setting]] = {}
    for setting in with_numbers:
        assert setting.split is not None
        key = (setting.split, setting.primary_metric, frozenset(setting.metrics(setting.split)))
        split_balanced.setdefault(key, []).append(setting)
    for (split, *_), group in split_balanced.items():
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
        for quantity in (
            setting.quantity(setting.split or TEST, name) for name in [setting.primary_metric or ""]
        )
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
    names = list(dict.fromkeys(setting.primary_metric for setting in settings if setting.primary_metric))
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
