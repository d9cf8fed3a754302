"""Statistics of every attention head, averaged over examples, with intervals; also during training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassformer.blocks import reference
from glassformer.blocks.attention import Kernel, MultiHeadAttention, explicit_scores
from glassformer.blocks.masks import Mask
from glassformer.core.errors import ErrorDetail
from glassformer.evaluation.intervals import RESAMPLES, mean_intervals
from glassformer.inspection.examples import ExampleGroup, group_examples
from glassformer.inspection.maps import SITES, Site, Trust
from glassformer.inspection.record import attentions, layers, swap_kernels, value_norms
from glassformer.inspection.statistics import Layout, Measured, measure, nested, templates
from glassformer.models.base import Model
from glassformer.tasks.base import Task

CELLS_AT_ONCE = 1 << 22
"""Attention weights computed at a time."""


@dataclass(frozen=True)
class Average:
    """Mean over examples with its 95 % interval; arrays are (layers, heads), NaN where undefined."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def document(self) -> dict[str, Any]:
        """Return nested lists for JSON."""
        interval = nested(np.stack([self.low, self.high], axis=-1))
        return {"mean": nested(self.mean), "interval": interval}


@dataclass(frozen=True)
class SiteAverages:
    """Averaged statistics of all heads of one attention site."""

    patterns: dict[str, dict[str, Average]]
    """`mass`, `above_uniform` and `value_weighted` of each pattern."""
    entropy: Average
    distance: Average
    value_share: Average

    def document(self) -> dict[str, Any]:
        """Return the averages for JSON."""
        layers, heads = self.entropy.mean.shape
        return {
            "layers": list(range(layers)),
            "heads": list(range(heads)),
            "patterns": {
                name: {kind: average.document() for kind, average in kinds.items()}
                for name, kinds in self.patterns.items()
            },
            "entropy": self.entropy.document(),
            "distance": self.distance.document(),
            "value_share": self.value_share.document(),
        }


class _Observer:
    """Kernels that measure every attention call immediately and store numbers instead of maps."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.found: dict[MultiHeadAttention, list[Measured]] = {}
        self._patterns: list[dict[str, dict[str, np.ndarray]]] = []

    def begin(self, group: ExampleGroup) -> None:
        """Prepare for a forward pass over this group."""
        self._patterns = group.patterns(self.task)

    def kernel(self, attention: MultiHeadAttention, site: Site) -> Kernel:
        """Return a kernel that measures the weights and computes the output with the module's own kernel."""
        inner = attention.kernel

        def observe(
            q_BHLK: Tensor, k_BHMK: Tensor, v_BHMK: Tensor, mask: Mask, bias: Tensor | None, dropout: float
        ) -> Tensor:
            batch, heads, queries, _ = q_BHLK.shape
            keys = k_BHMK.shape[2]
            allowed = mask.dense(queries, keys, q_BHLK.device)
            size = max(1, CELLS_AT_ONCE // max(1, heads * queries * keys))
            for start in range(0, batch, size):
                part = slice(start, start + size)
                scores_BHLM = explicit_scores(q_BHLK[part], k_BHMK[part], _part(bias, part))
                may = _part(allowed, part)
                own = self._templates(site, range(batch)[part], queries, keys)
                found = measure(
                    reference.weights(scores_BHLM, may),
                    Layout(queries, keys, may, own, device=q_BHLK.device),
                    is_cross=site == "cross",
                    value_norms_BHM=value_norms(attention, v_BHMK[part]),
                )
                self.found.setdefault(attention, []).append(found)
            return inner(q_BHLK, k_BHMK, v_BHMK, mask, bias, dropout)

        return observe

    def _templates(self, site: Site, examples: range, queries: int, keys: int) -> dict[str, Tensor]:
        """Return the general patterns, the same for all examples, and the task's own, one per example."""
        own = [self._patterns[number].get(site, {}) for number in examples]
        names = [name for name, cells in own[0].items() if cells.shape == (queries, keys)]
        stacked = {name: np.stack([patterns[name] for patterns in own])[:, None] for name in names}
        return templates(queries, keys, stacked)


def _part(tensor: Tensor | None, part: slice) -> Tensor | None:
    """Slice the examples of a tensor that broadcasts to (B, H, L, M)."""
    return tensor if tensor is None or tensor.ndim < 4 or len(tensor) == 1 else tensor[part]


def average_heads(
    model: Model, task: Task, groups: Sequence[ExampleGroup], *, has_intervals: bool = True
) -> dict[Site, SiteAverages]:
    """Average the statistics of every head over all examples, by site.

    Decoders are measured with teacher forcing. Without `has_intervals` it is faster, and intervals are NaN.
    """
    measured = measure_heads(model, task, groups)
    return {site: _averages(measured[site], has_intervals) for site in SITES if site in measured}


def heads_document(
    model: Model, control: Model | None, task: Task, groups: Sequence[ExampleGroup]
) -> dict[str, Any]:
    """Return the statistics of every head for JSON, and those of the untrained `control` if given."""
    models = {"sites": model} | ({} if control is None else {"untrained": control})
    trust: Trust = "fact"
    return {
        "trust": trust,
        "examples": sum(len(group.inputs) for group in groups),
        **{
            key: {site: averages.document() for site, averages in average_heads(of, task, groups).items()}
            for key, of in models.items()
        },
    }


def measure_heads(
    model: Model, task: Task, groups: Sequence[ExampleGroup]
) -> dict[Site, list[list[Measured]]]:
    """Measure every layer of each site; the innermost list has one item per chunk of examples."""
    observer, device = _Observer(task), next(model.parameters()).device
    kernels = {attention: observer.kernel(attention, site) for attention, site in attentions(model).items()}
    sites = layers(model)
    for site, modules in sites.items():
        if len({attention.num_heads for attention in modules}) > 1:
            raise ErrorDetail("cannot tabulate heads: layers differ in their number of heads", path=site)
    with torch.inference_mode(), swap_kernels(model, kernels):
        for group in groups:
            observer.begin(group)
            model.hidden(**group.batch.to(device).inputs)
    return {site: [observer.found[attention] for attention in modules] for site, modules in sites.items()}


def _averages(measured: list[list[Measured]], has_intervals: bool) -> SiteAverages:
    """Average the measurements of all layers of one site."""
    names = list(dict.fromkeys(name for chunks in measured for chunk in chunks for name in chunk.mass))

    def column(kind: str, name: str | None = None) -> np.ndarray:
        """Return one statistic as (examples, layers, heads)."""
        return np.stack([_joined(chunks, kind, name) for chunks in measured], axis=1)

    patterns = {}
    for name in names:
        mass, uniform = column("mass", name), column("uniform", name)
        patterns[name] = {
            "mass": _average(mass, has_intervals),
            "above_uniform": _average(mass - uniform, has_intervals),
            "value_weighted": _average(column("value_weighted", name), has_intervals),
        }
    length = column("value_length")
    share = length / length.sum(-1, keepdims=True)
    others = (column("entropy"), column("distance"), share)
    return SiteAverages(patterns, *(_average(values, has_intervals) for values in others))


def _joined(chunks: Sequence[Measured], kind: str, name: str | None) -> np.ndarray:
    """Join one statistic of all chunks as (examples, heads); NaN for examples without the pattern."""
    found = []
    for chunk in chunks:
        values = getattr(chunk, kind)
        if name is not None:
            values = values.get(name, torch.full_like(chunk.entropy, torch.nan))
        found.append(values.numpy())
    return np.concatenate(found)


def _average(values: np.ndarray, has_intervals: bool) -> Average:
    shape = values.shape[1:]
    flat = values.reshape(len(values), -1)
    mean, low, high = mean_intervals(flat, RESAMPLES if has_intervals else 0)
    return Average(mean.reshape(shape), low.reshape(shape), high.reshape(shape))


class HeadProbe:
    """Probe that the trainer calls every few steps: pattern scores of every head."""

    def __init__(self, task: Task, every: int, examples: int, keeps_snapshots: bool = False) -> None:
        self.task = task
        self.every = every
        self.examples = examples
        self.keeps_snapshots = keeps_snapshots

    @cached_property
    def _groups(self) -> list[ExampleGroup]:
        return group_examples(self.task, "validation", self.examples)

    def is_due(self, step: int) -> bool:
        """Return True if this step is probed."""
        return step % self.every == 0

    def measure(self, model: Model) -> dict[str, Any]:
        """Return the fields of a `head_probe` event.

        `scores[site][pattern][layer][head]` is the share of attention on a pattern.
        """
        averages = average_heads(model, self.task, self._groups, has_intervals=False)
        return {
            "examples": sum(len(group.inputs) for group in self._groups),
            "scores": {site: _scores(found) for site, found in averages.items()},
            "uniform": {site: _uniform(found) for site, found in averages.items()},
            "entropy": {site: nested(found.entropy.mean) for site, found in averages.items()},
        }


def _scores(averages: SiteAverages) -> dict[str, Any]:
    return {name: nested(kinds["mass"].mean) for name, kinds in averages.patterns.items()}


def _uniform(averages: SiteAverages) -> dict[str, float | None]:
    """Return the share that a head with equal weights has on each pattern; it is the same for all heads."""

    def level(mass: Average, above: Average) -> float | None:
        values = (mass.mean - above.mean).ravel()
        return None if np.isnan(values).all() else round(float(np.nanmean(values)), 6)

    return {name: level(kinds["mass"], kinds["above_uniform"]) for name, kinds in averages.patterns.items()}
