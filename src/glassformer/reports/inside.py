"""What only the model itself can tell: parameters, answers, attention maps. What fails is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from glassformer.errors import Problem, UserError
from glassformer.experiment import Experiment
from glassformer.inspection.maps import AttentionMaps
from glassformer.inspection.taps import layers
from glassformer.models.base import Model
from glassformer.models.closed_form import Comparison, compare
from glassformer.models.size import count_by_module
from glassformer.reports.reading import Record
from glassformer.reports.samples import Samples, take_samples
from glassformer.tasks.base import Task
from glassformer.trained import Run

MOST_CELLS = 1_500_000
"""Of all maps of one model together: about a megabyte of the page."""
REFUSALS = (UserError, Problem)


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
    inside.shape = " ".join((type(task.shape).__doc__ or "").split())
    by_module = count_by_module(model)
    try:
        terms = record.config.model.parameter_terms(task.shape)
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
