"""Activation patching: copy activations from one input's pass into another's, and measure the effect.

    effect = (m_patched − m_corrupted) / (m_clean − m_corrupted)

m is the logit difference of the two outputs (Meng et al. 2022; Zhang and Nanda 2023). An effect of 1 means
that the patched activation alone restores the clean output; 0 means that it changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from glassformer.core.errors import ErrorDetail
from glassformer.evaluation.intervals import Interval, ratio_interval
from glassformer.inspection.contrast import Contrast, ContrastedInputs, Inputs, contrast_inputs
from glassformer.inspection.examples import TOKENS_PER_BATCH
from glassformer.inspection.maps import Trust
from glassformer.inspection.record import record
from glassformer.inspection.sites import change_sites, record_states, select_sites, sites
from glassformer.models.base import Model, evaluating
from glassformer.tasks.base import Task

Direction = Literal["denoising", "noising"]
DIRECTIONS: tuple[Direction, ...] = ("denoising", "noising")
DEFAULT_SITES = (
    "*.embedding",
    "*.residual_post",
    "*.heads",
    "*.cross_heads",
    "*.feed_forward",
    "encoder.output",
)
"""Sites that are patched unless others are chosen."""
SMALLEST_DIFFERENCE = 1e-4
"""Smallest |m_clean − m_corrupted| that effects are computed for: a ratio to less is noise."""
MAX_TRIES = 64
"""Maximum number of twins of an input that are tried until one has another output."""


@dataclass(frozen=True)
class PatchedSite:
    """Effects of patching one site, one position or one head at a time."""

    name: str
    axis: Literal["position", "head"]
    effects: list[float]
    gradient: list[float]
    """Approximation of the effects by the gradient (attribution patching), a hint beside the exact ones."""
    intervals: list[Interval | None] | None = None
    """95 % intervals of the mean effects over several pairs of inputs; None where the pairs do not differ."""


@dataclass(frozen=True)
class PatchResult:
    """Effects of patching activations between two inputs, with the checks that must hold."""

    contrast: str
    direction: Direction
    clean: float
    """Metric of the clean input."""
    corrupted: float
    """Metric of the corrupted input."""
    everything: float
    """Effect of patching all embeddings, which must be 1."""
    nothing: float
    """Effect of patching nothing, which must be 0."""
    sites: list[PatchedSite]
    labels: dict[str, list[str]]
    """Token labels of the positions, by stack: `encoder`, and `decoder` of an encoder-decoder."""
    texts: dict[str, str] = field(default_factory=dict)
    """The clean and the corrupted input as text."""
    pairs: int = 1
    gradient_correlation: float | None = None
    """Correlation of the gradient approximation with the exact effects over all cells."""
    untrained: dict[str, Any] | None = None
    """Metric and largest effects of the untrained model on the same inputs."""
    trust: Trust = "cause"
    warning: str | None = None
    """Reason not to trust the output for the clean input, such as an unseen length."""

    def document(self) -> dict[str, Any]:
        """Return the result as a JSON-serialisable dict."""
        return {
            "contrast": self.contrast,
            "direction": self.direction,
            "clean": self.clean,
            "corrupted": self.corrupted,
            "everything": self.everything,
            "nothing": self.nothing,
            "sites": [
                {"name": site.name, "axis": site.axis, "labels": self.labels_of(site)} for site in self.sites
            ],
            "grid": {site.name: site.effects for site in self.sites},
            "gradient": {site.name: site.gradient for site in self.sites},
            "intervals": {site.name: site.intervals for site in self.sites if site.intervals is not None},
            "gradient_correlation": self.gradient_correlation,
            "pairs": self.pairs,
            "untrained": self.untrained,
            "trust": self.trust,
            "warning": self.warning,
            **self.texts,
        }

    def labels_of(self, site: PatchedSite) -> list[str]:
        """Return the label of each cell of a site: a token, or a head."""
        if site.axis == "head":
            return [f"head {head}" for head in range(len(site.effects))]
        labels = self.labels.get(site.name.split(".")[0], [])
        is_complete = len(labels) == len(site.effects)
        return list(labels) if is_complete else [str(index) for index in range(len(site.effects))]

    def largest(self, count: int = 10) -> list[tuple[str, str, float]]:
        """Return site, label and effect of the cells with the largest effects."""
        cells = [
            (site.name, f"{index} {label!r}" if site.axis == "position" else label, effect)
            for site in self.sites
            for index, (label, effect) in enumerate(zip(self.labels_of(site), site.effects, strict=True))
        ]
        return sorted(cells, key=lambda cell: -abs(cell[2]))[:count]


def patch(
    model: Model,
    task: Task,
    clean: np.ndarray,
    corrupted: np.ndarray,
    names: Sequence[str] = DEFAULT_SITES,
    direction: Direction = "denoising",
    *,
    untrained: Model | None = None,
) -> PatchResult:
    """Patch each position or head of the named sites between two inputs of one length."""
    if direction not in DIRECTIONS:
        raise ErrorDetail("no such direction", path="direction", value=direction, allowed=list(DIRECTIONS))
    pair = contrast_inputs(model, task, clean, corrupted)
    found = _measure(model, pair, _patchable(model, names), direction)
    labels = {"encoder": task.input_labels(clean.tolist())}
    if pair.generated or "target" in pair.clean:
        labels["decoder"] = ["<begin>", *task.output_symbols(list(pair.generated))]
    return PatchResult(
        contrast=pair.contrast.name,
        direction=direction,
        **found,
        labels=labels,
        texts={
            "clean_text": task.show_input(clean.tolist()),
            "corrupted_text": task.show_input(corrupted.tolist()),
        },
        gradient_correlation=_correlation(found["sites"]),
        untrained=None if untrained is None else _untrained(untrained, pair, names, direction),
    )


def _patchable(model: Model, names: Sequence[str]) -> list[str]:
    """Return the selected sites that have positions or heads. Patterns without a match are left out."""
    every = sites(model)
    matching = [name for name in names if any(fnmatchcase(known, name) for known in every) or "*" not in name]
    selected = select_sites(model, matching or names)
    wrong = [site.name for site in selected if site.axes not in ("BLD", "BHLK")]
    if wrong:
        raise ErrorDetail(
            "this site has neither positions nor heads that could be patched one by one",
            path="site",
            value=wrong[0],
            allowed=[name for name, site in every.items() if site.axes in ("BLD", "BHLK")],
        )
    return [site.name for site in selected]


def _measure(
    model: Model, pair: ContrastedInputs, names: Sequence[str], direction: Direction
) -> dict[str, Any]:
    """Return the metric of both inputs, the effects at each site, and the two checks."""
    source, target = pair.clean, pair.corrupted
    if direction == "noising":
        source, target = target, source
    states = record_states(model, source, [*names, "*.embedding"])
    with evaluating(model), torch.inference_mode():
        clean, corrupted = (
            float(pair.contrast.value(model(**each))) for each in (pair.clean, pair.corrupted)
        )
    base = corrupted if direction == "denoising" else clean
    scale = (clean - corrupted) if direction == "denoising" else (corrupted - clean)
    if abs(scale) < SMALLEST_DIFFERENCE:
        raise ErrorDetail(
            f"the metric differs by only {abs(scale):.2g} between the inputs",
            path="corrupted",
            hint="choose inputs for which the model's outputs differ more",
        )
    gradients = _gradients(model, target, states, names, pair.contrast)
    found = []
    for name in names:
        values = _patched(model, target, name, states[name], pair.contrast)
        effects = [(value - base) / scale for value in values]
        axis: Literal["position", "head"] = "head" if states[name].ndim == 4 else "position"
        found.append(PatchedSite(name, axis, effects, [value / scale for value in gradients[name]]))
    whole = {name: states[name] for name in states if name.endswith(".embedding")}
    changes = {name: (lambda _, state=state: state) for name, state in whole.items()}
    with torch.inference_mode(), change_sites(model, changes):
        everything = (float(pair.contrast.value(model(**target))) - base) / scale
    with torch.inference_mode(), change_sites(model, {name: lambda x: x for name in names}):
        nothing = (float(pair.contrast.value(model(**target))) - base) / scale
    return {
        "clean": clean,
        "corrupted": corrupted,
        "everything": everything,
        "nothing": nothing,
        "sites": found,
    }


def _patched(model: Model, inputs: Inputs, name: str, state: Tensor, contrast: Contrast) -> list[float]:
    """Return the metric with each position or head (axis 1) of a site replaced in turn, in batches."""
    count = state.shape[1]
    tokens = inputs["tokens"]
    assert tokens is not None
    size = max(1, TOKENS_PER_BATCH // max(1, tokens.shape[1]))
    values: list[float] = []
    for start in range(0, count, size):
        index = torch.arange(start, min(start + size, count), device=tokens.device)
        rows = torch.arange(len(index), device=tokens.device)

        def change(x: Tensor, rows: Tensor = rows, index: Tensor = index) -> Tensor:
            x = x.clone()
            x[rows, index] = state[0, index].to(x)
            return x

        repeated = {
            key: None if value is None else value.expand(len(index), *value.shape[1:])
            for key, value in inputs.items()
        }
        with torch.inference_mode(), change_sites(model, {name: change}):
            values += contrast.value(model(**repeated)).tolist()
    return values


def _gradients(
    model: Model, inputs: Inputs, states: Mapping[str, Tensor], names: Sequence[str], contrast: Contrast
) -> dict[str, list[float]]:
    """Return the first-order approximation of each patch: (source − target) · ∂m/∂target."""
    with torch.enable_grad(), record(model, names, keeps_graph=True) as tape:
        metric = contrast.value(model(**inputs)).sum()
    at = [tape[name] for name in names]
    slopes = torch.autograd.grad(metric, at, allow_unused=True)
    found = {}
    for name, x, slope in zip(names, at, slopes, strict=True):
        product = torch.zeros_like(x) if slope is None else (states[name].to(x) - x.detach()) * slope
        found[name] = product[0].flatten(1).sum(1).tolist()
    return found


def _correlation(found: Sequence[PatchedSite]) -> float | None:
    exact = np.array([value for site in found for value in site.effects])
    fast = np.array([value for site in found for value in site.gradient])
    if len(exact) < 3 or not exact.std() or not fast.std():
        return None
    return float(np.corrcoef(exact, fast)[0, 1])


def _untrained(
    model: Model, pair: ContrastedInputs, names: Sequence[str], direction: Direction
) -> dict[str, Any] | None:
    """Return the metric and the grid of the untrained model, or None if its outputs hardly differ."""
    try:
        found = _measure(model, pair, _patchable(model, names), direction)
    except ErrorDetail:
        return None
    grid = {site.name: site.effects for site in found["sites"]}
    return {"clean": found["clean"], "corrupted": found["corrupted"], "grid": grid}


def find_twin(model: Model, task: Task, tokens: np.ndarray, split: str) -> np.ndarray:
    """Return the first twin of an input for which the model has another output."""
    for seed in range(MAX_TRIES):
        twin = task.twin(tokens, split, seed)
        if twin is None:
            break
        try:
            contrast_inputs(model, task, tokens, twin)
            return twin
        except ErrorDetail:
            continue
    raise ErrorDetail(
        "no change of one token changes the output", path="corrupted", hint="give the second input yourself"
    )


def patch_pairs(
    model: Model,
    task: Task,
    split: str,
    count: int,
    names: Sequence[str] = DEFAULT_SITES,
    direction: Direction = "denoising",
) -> PatchResult:
    """Patch `count` examples of one length and their twins; return mean effects with 95 % intervals.

    The contrast of each pair is its own, so the pairs must agree in the number of decoder positions.
    """
    results: list[PatchResult] = []
    shape: tuple[int, ...] | None = None
    for index in range(len(task.splits[split])):
        tokens = np.asarray(task.splits[split].inputs[index]).astype(np.int64)
        try:
            found = patch(model, task, tokens, find_twin(model, task, tokens, split), names, direction)
        except ErrorDetail:
            continue
        cells = tuple(len(site.effects) for site in found.sites)
        shape = shape or cells
        if cells == shape:
            results.append(found)
        if len(results) == count or index >= 20 * count:
            break
    if not results:
        raise ErrorDetail("no pair of examples could be patched", path="examples", value=count)
    return _mean(results)


@dataclass(frozen=True)
class PairBatch:
    """Many pairs of inputs of one length with known outputs, which are patched together in one pass."""

    base: Inputs
    donor: Inputs
    output: Tensor
    """Output position of each pair (N)."""
    answer: Tensor
    """Token that the donor's output has there (N)."""
    other: Tensor
    """Token that the base's output has there (N)."""

    def metric(self, logits_NLV: Tensor) -> Tensor:
        """Return the logit of the donor's token minus that of the base's token (N)."""
        rows = torch.arange(len(self.output), device=logits_NLV.device)
        found_NV = logits_NLV[rows, self.output]
        return found_NV[rows, self.answer] - found_NV[rows, self.other]

    def effects(self, model: Model, cells: Mapping[str, Sequence[Tensor | int]]) -> dict[str, list[float]]:
        """Return the effect of copying activations from donor to base, for each cell of each named site.

        A cell is a position or a head, the same for all pairs or one per pair (N). The effect is the summed
        change of the metric, as a share of its summed difference between donor and base.
        """
        states = record_states(model, self.donor, list(cells))
        with evaluating(model), torch.inference_mode():
            start, end = (float(self.metric(model(**each)).sum()) for each in (self.base, self.donor))
        rows = torch.arange(len(self.output))

        def at(name: str, cell: Tensor | int) -> float:
            def change(x: Tensor) -> Tensor:
                x = x.clone()
                x[rows, cell] = states[name][rows, cell]
                return x

            with torch.inference_mode(), change_sites(model, {name: change}):
                return (float(self.metric(model(**self.base)).sum()) - start) / (end - start)

        return {name: [at(name, cell) for cell in chosen] for name, chosen in cells.items()}


def _mean(results: Sequence[PatchResult]) -> PatchResult:
    first = results[0]
    merged = []
    for number, site in enumerate(first.sites):
        effects = np.array([each.sites[number].effects for each in results])
        gradient = np.array([each.sites[number].gradient for each in results]).mean(0)
        ones = np.ones(len(results))
        intervals = [ratio_interval(column, ones) for column in effects.T] if len(results) > 1 else None
        merged.append(
            PatchedSite(
                site.name,
                site.axis,
                effects.mean(0).tolist(),
                gradient.tolist(),
                intervals,
            )
        )
    counts = {stack: [str(index) for index in range(len(each))] for stack, each in first.labels.items()}
    return PatchResult(
        contrast="logit difference of each pair",
        direction=first.direction,
        clean=float(np.mean([each.clean for each in results])),
        corrupted=float(np.mean([each.corrupted for each in results])),
        everything=float(np.mean([each.everything for each in results])),
        nothing=float(np.mean([each.nothing for each in results])),
        sites=merged,
        labels=counts,
        pairs=len(results),
        gradient_correlation=_correlation(merged),
    )
