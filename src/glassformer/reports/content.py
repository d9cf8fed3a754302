"""Content of a report, gathered once from run folders and their models."""

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
from glassformer.reports.samples import SampleSet, take_samples
from glassformer.reports.study_folder import StudyFolder
from glassformer.reports.summary import TEST, VALIDATION, RunGroup, RunSummary, differing, group_runs
from glassformer.reports.tables import Cell, Quantity, Table
from glassformer.runs.experiment import Experiment
from glassformer.runs.run import Run
from glassformer.tasks.base import Task

MAX_CELLS = 1_500_000
"""Maximum number of map cells per model, about one megabyte of the page."""
EXPECTED_ERRORS = (UserError, ErrorDetail)


@dataclass(frozen=True)
class ModelSize:
    """Number of parameters of a model."""

    total: int
    by_module: dict[str, int]
    comparisons: list[Comparison]
    """Comparison with the closed form, if the model has one."""


@dataclass
class ModelView:
    """Parameters, predictions and attention maps of one model."""

    summary: RunSummary
    checkpoint: str | None = None
    task_description: str = ""
    """Type of the task in words."""
    size: ModelSize | None = None
    samples: SampleSet | None = None
    maps: AttentionMaps | None = None
    maps_note: str = ""
    """Selection of the maps, if not all are shown."""
    warnings: list[str] = field(default_factory=list)


def inspect_model(summary: RunSummary, checkpoint: str, samples: int, with_maps: bool) -> ModelView:
    """Load the model of a run; failures become warnings."""
    view = ModelView(summary)
    if summary.config is None:
        view.warnings.append("The model is not loaded: its config is not valid here.")
        return view
    run = _load(summary, checkpoint, view)
    if run is None:
        return view
    view.checkpoint = run.checkpoint
    if samples:
        try:
            view.samples = take_samples(run, samples)
        except EXPECTED_ERRORS as error:
            view.warnings.append(f"No samples: {_first_line(error)}")
    if with_maps:
        try:
            _take_maps(run, view)
        except EXPECTED_ERRORS as error:
            view.warnings.append(f"No attention maps: {_first_line(error)}")
    return view


def _load(summary: RunSummary, checkpoint: str, view: ModelView) -> Run | None:
    """Load the run with its checkpoint; without one, build the model and count its parameters."""
    try:
        run = Run(summary.folder.path, checkpoint)
    except (
        *EXPECTED_ERRORS,
        KeyError,
        TypeError,
        ValueError,
        OSError,
    ) as error:  # errors that damaged files cause
        view.warnings.append(f"The model is not loaded: {_first_line(error)}")
    else:
        _describe(summary, run.task, run.model, view)
        return run
    try:
        assert summary.config is not None
        task = summary.folder.restore_task(summary.config.task, summary.config.seed)
        _describe(summary, task, Experiment(summary.config, task).build_model(), view)
    except (*EXPECTED_ERRORS, KeyError, TypeError, ValueError, OSError) as error:
        view.warnings.append(f"The parameters cannot be counted: {_first_line(error)}")
    return None


def _describe(summary: RunSummary, task: Task, model: Model, view: ModelView) -> None:
    assert summary.config is not None
    view.task_description = " ".join((type(task.task_type).__doc__ or "").split())
    by_module = count_by_module(model)
    try:
        terms = summary.config.model.parameter_terms(task.task_type)
    except NotImplementedError:
        terms = {}
    total = sum(by_module.values())
    view.size = ModelSize(total, by_module, compare(terms, by_module))
    reported = summary.results.facts.get("parameters")
    if reported is not None and reported != total:
        view.warnings.append(f"results.json reports {reported:,} parameters, and the model has {total:,}.")


def _take_maps(run: Run, view: ModelView) -> None:
    chosen, view.maps_note = _choose(run)
    view.maps = run.attention(layers=chosen[0], heads=chosen[1])
    if not view.maps.checks.passed:
        view.warnings.append("The attention maps failed a check, see below them.")


def _choose(run: Run) -> tuple[tuple[Sequence[int] | None, Sequence[int] | None], str]:
    """Select all heads if the page stays small, else fewer layers, then fewer heads."""
    sites = layers(run.model)
    if not sites:
        return (None, None), ""  # the error that follows gives the reason
    examples = run.task.splits.get("test") or run.task.splits["validation"]
    length = int(examples.lengths()[0])
    depth = min(len(modules) for modules in sites.values())
    heads = min(attention.num_heads for modules in sites.values() for attention in modules)
    ends = sorted({0, depth - 1})
    cells = length * length * len(sites)
    if cells * depth * heads <= MAX_CELLS:
        return (None, None), ""
    fewer = max(1, min(heads, MAX_CELLS // (cells * len(ends))))
    if cells * len(ends) * fewer > MAX_CELLS:
        ends = [depth - 1]
    words = (
        f"Shown: layer{'s' if len(ends) > 1 else ''} {' and '.join(map(str, ends))} of {depth},"
        f" {fewer} of {heads} heads each; glassformer attention draws all of them."
    )
    return (ends, list(range(fewer))), words


def _first_line(error: Exception) -> str:
    return (
        str(error).splitlines()[0]
        if isinstance(error, EXPECTED_ERRORS)
        else f"{type(error).__name__}: {error}"
    )


OVER_SEEDS = "Intervals: 95 %, of the mean over seeds (Student's t)."
OVER_EXAMPLES = "Intervals: 95 %, over examples."


@dataclass(frozen=True)
class ReportContent:
    """Everything that a report shows."""

    summaries: list[RunSummary]
    studies: list[StudyFolder]
    views: list[ModelView]
    """One model per group, for the first few groups."""
    arguments: list[str] = field(default_factory=list)
    """Command-line arguments of `glassformer report`."""
    plugins: list[str] = field(default_factory=list)

    @cached_property
    def groups(self) -> list[RunGroup]:
        """Runs grouped by options and data."""
        return group_runs(self.summaries)

    @property
    def title(self) -> str:
        """Title of the report."""
        if self.studies:
            return " · ".join(study.title for study in self.studies)
        if len(self.summaries) == 1:
            return self.summaries[0].name
        kinds = list(dict.fromkeys(summary.task_kind for summary in self.summaries))
        return f"{', '.join(kinds)}: {len(self.summaries)} runs"

    @property
    def warnings(self) -> list[str]:
        """Warnings of all studies and runs."""
        found = [warning for study in self.studies for warning in study.warnings]
        return found + [warning for summary in self.summaries for warning in summary.warnings]

    def tables(self) -> list[Table]:
        """Tables of numbers, for Markdown and LaTeX."""
        tables = [table for study in self.studies for table in study.tables if not table.is_aside]
        return tables + results_tables(self.groups)


def results_tables(groups: Sequence[RunGroup]) -> list[Table]:
    """Metrics by split for one group, or one row per group; other metrics give further tables."""
    with_numbers = [group for group in groups if group.split is not None]
    if len(with_numbers) == 1:
        return [_one_setting(with_numbers[0])]
    by_metrics: dict[tuple[Any, ...], list[RunGroup]] = {}
    for group in with_numbers:
        assert group.split is not None
        key = (group.split, group.primary_metric, frozenset(group.metrics(group.split)))
        by_metrics.setdefault(key, []).append(group)
    tables = [_several_settings(split, same) for (split, *_), same in by_metrics.items()]
    # A note below several consecutive tables appears below the last one only.
    return [
        replace(
            table,
            notes=[note for note in table.notes if not any(note in later.notes for later in tables[at:])],
        )
        for at, table in enumerate(tables, start=1)
    ]


def _one_setting(group: RunGroup) -> Table:
    splits = [split for split in (TEST, VALIDATION) if group.metrics(split)]
    metrics = list(dict.fromkeys(metric for split in splits for metric in group.metrics(split)))
    rows: list[list[Cell]] = [
        [_words(metric), *(group.quantity(split, metric) for split in splits)] for metric in metrics
    ]
    headings = [f"{split} ({_measured_on(group)})" for split in splits]
    return Table(group.label, ["metric", *headings], rows, _interval_notes([group]))


def _several_settings(split: str, groups: Sequence[RunGroup]) -> Table:
    metrics = groups[0].metrics(split)
    rows: list[list[Cell]] = [
        [group.label, group.counted, *(group.quantity(split, metric) for metric in metrics)]
        for group in groups
    ]
    headings = ["setting", "runs", *map(_words, metrics)]
    return Table(f"{split.capitalize()} set", headings, rows, _interval_notes(groups))


def _measured_on(group: RunGroup) -> str:
    seeds = len(group.finished)
    return f"mean of {seeds} seeds" if seeds > 1 else "one run"


def _interval_notes(groups: Sequence[RunGroup]) -> list[str]:
    notes = []
    several = [len(group.finished) > 1 for group in groups]
    if any(several):
        notes.append(OVER_SEEDS if all(several) else f"{OVER_SEEDS} With a single run: over examples.")
    elif any(
        isinstance(quantity, Quantity) and quantity.interval is not None
        for group in groups
        for quantity in (group.quantity(group.split or TEST, name) for name in [group.primary_metric or ""])
    ):
        notes.append(OVER_EXAMPLES)
    if any(_is_point(group) for group in groups):
        notes.append("An interval of width zero: every seed gave the same number.")
    return notes + [note for group in groups for note in group.notes]


def _is_point(group: RunGroup) -> bool:
    if group.split is None or len(group.finished) < 2:
        return False
    found = [group.quantity(group.split, metric) for metric in group.metrics(group.split)]
    limits = [quantity.interval for quantity in found if quantity is not None and quantity.interval]
    return any(low == high for low, high in limits)


def runs_table(groups: Sequence[RunGroup]) -> Table:
    """Table of all runs, finished or not."""
    names = list(dict.fromkeys(group.primary_metric for group in groups if group.primary_metric))
    rows: list[list[Cell]] = []
    for group in groups:
        for summary in group.summaries:
            facts = summary.results.facts
            rows.append(
                [
                    summary.name,
                    group.label if len(groups) > 1 else None,
                    summary.status.name,
                    "" if summary.seed is None else str(summary.seed),
                    summary.status.step,
                    facts.get("seconds"),
                    *(final_or_last(summary, name) for name in names),
                ]
            )
    headings = ["run", "setting", "state", "seed", "steps", "seconds", *map(_words, names)]
    if len(groups) == 1:
        rows = [[*row[:1], *row[2:]] for row in rows]
        headings.remove("setting")
    return Table("", headings, rows)


def final_or_last(summary: RunSummary, metric: str) -> Cell:
    """Final value, or the last validation, marked as such."""
    split = summary.results.split
    if summary.is_finished and split is not None:
        return summary.results.metrics[split].get(metric)
    points = summary.curve.of(metric)
    if not points:
        return None
    step, value = points[-1]
    return f"(validation at step {step:,.0f}: {value:.4g})"


def differences_tables(groups: Sequence[RunGroup]) -> tuple[Table | None, Table | None]:
    """Differences in options that all groups have, and in options of some kinds only."""
    readable = [group for group in groups if group.options]
    paths = differing([group.options for group in readable]) if readable else []
    shared = [path for path in paths if all(path in group.options for group in readable)]
    own = [path for path in paths if path not in shared]
    return (
        _differences("Differences between settings", shared, readable),
        _differences("Options of some settings only", own, readable),
    )


def _differences(caption: str, paths: Sequence[str], groups: Sequence[RunGroup]) -> Table | None:
    rows: list[list[Cell]] = [[path, *(_option(group, path) for group in groups)] for path in paths]
    return Table(caption, ["option", *(group.label for group in groups)], rows) if rows else None


def _option(group: RunGroup, path: str) -> str | None:
    return format_value(group.options[path]) if path in group.options else None


def _words(metric: str) -> str:
    return metric.replace("_", " ")
