"""Content of a report, gathered once from run folders and their models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, TypeVar

from glassformer.core.config import format_value
from glassformer.core.errors import ErrorDetail, UserError
from glassformer.cost.parameters import count_by_module
from glassformer.inspection.maps import AttentionMaps
from glassformer.inspection.record import layers
from glassformer.models.base import Model
from glassformer.models.closed_form import Comparison, compare
from glassformer.models.task_types import TaskType
from glassformer.reports.samples import SampleSet, take_samples
from glassformer.reports.study_folder import StudyFolder
from glassformer.reports.summary import TEST, VALIDATION, RunGroup, RunSummary, differing, group_runs
from glassformer.reports.tables import Cell, Table
from glassformer.runs.experiment import Experiment
from glassformer.runs.run import Run
from glassformer.tasks.base import Task

MAX_CELLS = 1_500_000
"""Maximum number of attention weights per model in the page, which take about one megabyte."""
EXPECTED_ERRORS = (UserError, ErrorDetail)
DAMAGE_ERRORS = (KeyError, TypeError, ValueError, OSError)
"""Exceptions that reading a damaged run folder may raise."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class ModelSize:
    """Parameter count of a model, by module and in total."""

    by_module: dict[str, int]
    comparisons: list[Comparison]
    """Comparison of each count with its formula; empty if the model has no formulas."""

    @property
    def total(self) -> int:
        """Total number of parameters."""
        return sum(self.by_module.values())


@dataclass
class ModelView:
    """Content of a report about one model: parameter counts, predictions and attention maps."""

    summary: RunSummary
    checkpoint: str | None = None
    task_description: str = ""
    """Description of the task type, such as token classification, in words."""
    size: ModelSize | None = None
    samples: SampleSet | None = None
    maps: AttentionMaps | None = None
    maps_note: str = ""
    """Sentence about which layers and heads are shown; empty if all attention maps are shown."""
    warnings: list[str] = field(default_factory=list)


def inspect_model(summary: RunSummary, checkpoint: str, samples: int, with_maps: bool) -> ModelView:
    """Load the model of a run and collect what a report shows about it. Failures become warnings."""
    view = ModelView(summary)
    if summary.config is None:
        view.warnings.append("The model is not loaded: its config is not valid here.")
        return view
    run = _load(summary, checkpoint, view)
    if run is None:
        return view
    view.checkpoint = run.checkpoint
    if samples:
        view.samples = _attempt(view, "No samples", lambda: take_samples(run, samples))
    if with_maps:
        _attempt(view, "No attention maps", lambda: _take_maps(run, view))
    return view


def _attempt(
    view: ModelView, prefix: str, call: Callable[[], Result], errors: tuple[type[Exception], ...] = ()
) -> Result | None:
    """Return the result of `call`; on a user error or one of `errors`, add a warning and return None."""
    try:
        return call()
    except EXPECTED_ERRORS as error:
        view.warnings.append(f"{prefix}: {str(error).splitlines()[0]}")
    except errors as error:
        view.warnings.append(f"{prefix}: {type(error).__name__}: {error}")
    return None


def _load(summary: RunSummary, checkpoint: str, view: ModelView) -> Run | None:
    """Load the run with its checkpoint; if that fails, only count the parameters and return None."""

    def count() -> None:
        assert summary.config is not None
        task = summary.folder.restore_task(summary.config.task, summary.config.seed)
        _describe(summary, task, Experiment(summary.config, task).build_model(), view)

    load = partial(Run, summary.folder.path, checkpoint)
    run = _attempt(view, "The model is not loaded", load, DAMAGE_ERRORS)
    if run is None:
        _attempt(view, "The parameters cannot be counted", count, DAMAGE_ERRORS)
    else:
        _describe(summary, run.task, run.model, view)
    return run


def _describe(summary: RunSummary, task: Task, model: Model, view: ModelView) -> None:
    assert summary.config is not None
    view.task_description = _describe_type(task.task_type)
    by_module = count_by_module(model)
    try:
        terms = summary.config.model.parameter_terms(task.task_type)
    except NotImplementedError:
        terms = {}
    view.size = ModelSize(by_module, compare(terms, by_module))
    reported, total = summary.results.facts.get("parameters"), view.size.total
    if reported is not None and reported != total:
        view.warnings.append(f"results.json reports {reported:,} parameters, and the model has {total:,}.")


def _describe_type(task_type: TaskType) -> str:
    """Return a task type in words, such as `token classification; each output is one of 10`."""
    choice = f"; each output is one of {task_type.num_outputs:,}" if task_type.num_outputs > 1 else ""
    return f"{task_type.describe()}{choice}"


def _take_maps(run: Run, view: ModelView) -> None:
    chosen, view.maps_note = _choose(run)
    view.maps = run.attention(layers=chosen[0], heads=chosen[1])
    if not view.maps.checks.passed:
        view.warnings.append("The attention maps failed a check, see below them.")


def _choose(run: Run) -> tuple[tuple[Sequence[int] | None, Sequence[int] | None], str]:
    """Return the layers and heads to show, fewer if the page would grow too large, and a note about them."""
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


OVER_SEEDS = "Intervals: 95 %, of the mean over seeds (Student's t)."
OVER_EXAMPLES = "Intervals: 95 %, over examples."


@dataclass(frozen=True)
class ReportContent:
    """Everything that a report shows: runs, studies, models and commands."""

    summaries: list[RunSummary]
    studies: list[StudyFolder]
    views: list[ModelView]
    """One model per group of runs, for the first few groups."""
    arguments: list[str] = field(default_factory=list)
    """Command-line arguments of `glassformer report`."""
    plugins: list[str] = field(default_factory=list)

    @cached_property
    def groups(self) -> list[RunGroup]:
        """Groups of runs that have the same options and data and differ only in the seed."""
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
        """Warnings about all studies and runs, such as damaged files."""
        found = [warning for study in self.studies for warning in study.warnings]
        return found + [warning for summary in self.summaries for warning in summary.warnings]

    def tables(self) -> list[Table]:
        """Return the tables of results that are exported as Markdown and LaTeX."""
        tables = [table for study in self.studies for table in study.tables if not table.is_aside]
        return tables + results_tables(self.groups)


def results_tables(groups: Sequence[RunGroup]) -> list[Table]:
    """Build the results tables: one row per group of runs, or the metrics by split if there is one group."""
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
    headings = [f"{split} ({group.measured_on})" for split in splits]
    return Table(group.label, ["metric", *headings], rows, _interval_notes([group]))


def _several_settings(split: str, groups: Sequence[RunGroup]) -> Table:
    metrics = groups[0].metrics(split)
    rows: list[list[Cell]] = [
        [group.label, group.counted, *(group.quantity(split, metric) for metric in metrics)]
        for group in groups
    ]
    headings = ["setting", "runs", *map(_words, metrics)]
    return Table(f"{split.capitalize()} set", headings, rows, _interval_notes(groups))


def _interval_notes(groups: Sequence[RunGroup]) -> list[str]:
    notes = []
    several = [len(group.finished) > 1 for group in groups]
    if any(several):
        notes.append(OVER_SEEDS if all(several) else f"{OVER_SEEDS} With a single run: over examples.")
    elif any((quantity := group.primary_quantity) and quantity.interval for group in groups):
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
    """Build a table with one row per run, finished or not."""
    names = list(dict.fromkeys(group.primary_metric for group in groups if group.primary_metric))
    setting = ["setting"] if len(groups) > 1 else []
    rows: list[list[Cell]] = [
        [
            summary.name,
            *(group.label for _ in setting),
            summary.status.name,
            "" if summary.seed is None else str(summary.seed),
            summary.status.step,
            summary.results.facts.get("seconds"),
            *(final_or_last(summary, name) for name in names),
        ]
        for group in groups
        for summary in group.summaries
    ]
    return Table("", ["run", *setting, "state", "seed", "steps", "seconds", *map(_words, names)], rows)


def final_or_last(summary: RunSummary, metric: str) -> Cell:
    """Return the final metric of a finished run, otherwise its last validation as text with the step."""
    split = summary.results.split
    if summary.is_finished and split is not None:
        return summary.results.metrics[split].get(metric)
    points = summary.curve.of(metric)
    if not points:
        return None
    step, value = points[-1]
    return f"(validation at step {step:,.0f}: {value:.4g})"


def differences_tables(groups: Sequence[RunGroup]) -> tuple[Table | None, Table | None]:
    """Build two tables of the options in which groups of runs differ.

    The first has the options that all groups have, the second those that only some groups have.
    """
    readable = [group for group in groups if group.options]
    paths = differing([group.options for group in readable]) if readable else []
    shared = [path for path in paths if all(path in group.options for group in readable)]
    own = [path for path in paths if path not in shared]
    return (
        _differences("Differences between settings", shared, readable),
        _differences("Options of some settings only", own, readable),
    )


def _differences(caption: str, paths: Sequence[str], groups: Sequence[RunGroup]) -> Table | None:
    shown = [{path: format_value(value) for path, value in group.options.items()} for group in groups]
    rows: list[list[Cell]] = [[path, *(options.get(path) for options in shown)] for path in paths]
    return Table(caption, ["option", *(group.label for group in groups)], rows) if rows else None


def _words(metric: str) -> str:
    return metric.replace("_", " ")
