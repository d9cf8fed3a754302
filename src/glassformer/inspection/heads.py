"""Heads in numbers: statistics averaged over examples, with intervals, also during training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from glassformer.blocks import reference
from glassformer.blocks.attention import Kernel, MultiHeadAttention, explicit_scores
from glassformer.blocks.masks import Mask
from glassformer.core.config import Node
from glassformer.core.errors import ErrorDetail
from glassformer.evaluation.intervals import RESAMPLES, mean_intervals
from glassformer.inspection.examples import Group, groups_of
from glassformer.inspection.maps import SITES, Site, Trust
from glassformer.inspection.record import attentions, layers, swap_kernels, value_norms
from glassformer.inspection.statistics import Layout, Measured, measure, nested, templates
from glassformer.models.base import Model
from glassformer.tasks.base import Task

CELLS_AT_ONCE = 1 << 22
"""Weights that are written out at a time."""


@dataclass(frozen=True)
class Average:
    """Arrays are (layers, heads); NaN where no example has what is asked for."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def document(self) -> dict[str, Any]:
        interval = nested(np.stack([self.low, self.high], axis=-1))
        return {"mean": nested(self.mean), "interval": interval}


@dataclass(frozen=True)
class SiteAverages:
    patterns: dict[str, dict[str, Average]]
    """For each pattern `mass`, `above_uniform` and `value_weighted`."""
    entropy: Average
    distance: Average
    value_share: Average

    def document(self) -> dict[str, Any]:
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
    """Measures each call of an attention at once, and keeps numbers, not maps."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.found: dict[MultiHeadAttention, list[Measured]] = {}
        self._patterns: list[dict[str, dict[str, np.ndarray]]] = []

    def begin(self, group: Group) -> None:
        self._patterns = group.patterns(self.task)

    def kernel(self, attention: MultiHeadAttention, place: Site) -> Kernel:
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
                own = self._templates(place, range(batch)[part], queries, keys)
                found = measure(
                    reference.weights(scores_BHLM, may),
                    Layout(queries, keys, may, own, device=q_BHLK.device),
                    is_cross=place == "cross",
                    value_norms_BHM=value_norms(attention, v_BHMK[part]),
                )
                self.found.setdefault(attention, []).append(found)
            return inner(q_BHLK, k_BHMK, v_BHMK, mask, bias, dropout)

        return observe

    def _templates(self, place: Site, examples: range, queries: int, keys: int) -> dict[str, Tensor]:
        """Those of every task are the same for all examples, the task's own may not be."""
        own = [self._patterns[number].get(place, {}) for number in examples]
        names = [name for name, cells in own[0].items() if cells.shape == (queries, keys)]
        stacked = {name: np.stack([of_one[name] for of_one in own])[:, None] for name in names}
        return templates(queries, keys, stacked)


def _part(tensor: Tensor | None, part: slice) -> Tensor | None:
    """Some examples of something that broadcasts to (B, H, L, M)."""
    return tensor if tensor is None or tensor.ndim < 4 or len(tensor) == 1 else tensor[part]


def average_heads(
    model: Model, task: Task, groups: Sequence[Group], *, has_intervals: bool = True
) -> dict[Site, SiteAverages]:
    """By place, over all these examples; the right answer stands before each token that is written.

    Without `has_intervals` it takes less time, and intervals are NaN.
    """
    measured = measure_heads(model, task, groups)
    return {place: _place(measured[place], has_intervals) for place in SITES if place in measured}


def heads_document(
    model: Model, control: Model | None, task: Task, groups: Sequence[Group]
) -> dict[str, Any]:
    """For JSON: every head of a model and, beside it, of its untrained control."""
    models = {"places": model} | ({} if control is None else {"untrained": control})
    trust: Trust = "fact"
    return {
        "trust": trust,
        "examples": sum(len(group.inputs) for group in groups),
        **{
            key: {place: averages.document() for place, averages in average_heads(of, task, groups).items()}
            for key, of in models.items()
        },
    }


def measure_heads(model: Model, task: Task, groups: Sequence[Group]) -> dict[Site, list[list[Measured]]]:
    """For each layer of each place what was measured, some examples at a time."""
    observer, device = _Observer(task), next(model.parameters()).device
    kernels = {attention: observer.kernel(attention, place) for attention, place in attentions(model).items()}
    for place, of_place in layers(model).items():
        if len({attention.num_heads for attention in of_place}) > 1:
            raise ErrorDetail("layers differ in their number of heads: no table of them", path=place)
    with torch.inference_mode(), swap_kernels(model, kernels):
        for group in groups:
            observer.begin(group)
            model.hidden(**group.batch.to(device).inputs)
    return {
        place: [observer.found[attention] for attention in of_place]
        for place, of_place in layers(model).items()
    }


def _place(of_layers: list[list[Measured]], has_intervals: bool) -> SiteAverages:
    names = list(dict.fromkeys(name for parts in of_layers for part in parts for name in part.mass))

    def column(kind: str, name: str | None = None) -> np.ndarray:
        """(examples, layers, heads)."""
        return np.stack([_joined(parts, kind, name) for parts in of_layers], axis=1)

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


def _joined(parts: Sequence[Measured], kind: str, name: str | None) -> np.ndarray:
    """(examples, heads); NaN for examples that do not have the pattern at all."""
    found = []
    for part in parts:
        values = getattr(part, kind)
        if name is not None:
            values = values.get(name, torch.full_like(part.entropy, torch.nan))
        found.append(values.numpy())
    return np.concatenate(found)


def _average(values: np.ndarray, has_intervals: bool) -> Average:
    shape = values.shape[1:]
    flat = values.reshape(len(values), -1)
    mean, low, high = mean_intervals(flat, RESAMPLES if has_intervals else 0)
    return Average(mean.reshape(shape), low.reshape(shape), high.reshape(shape))


class InspectionConfig(Node):
    """What is looked at while a model trains. It decides nothing about the weights."""

    watch: bool = Field(False, description="note the scores of all heads in the record")
    every: int = Field(
        50, ge=1, description="steps between two looks; the first and the last are looked at too"
    )
    examples: int = Field(16, ge=1, description="validation examples that a look is averaged over")
    keep_checkpoints: bool = Field(
        False, description="keep the weights of each look, so that one can go through them like a film"
    )


class HeadProbe:
    """What the trainer calls when a look is due."""

    def __init__(self, task: Task, config: InspectionConfig) -> None:
        self.task = task
        self.config = config

    @cached_property
    def _groups(self) -> list[Group]:
        return groups_of(self.task, "validation", self.config.examples)

    @property
    def keeps_weights(self) -> bool:
        return self.config.keep_checkpoints

    def is_due(self, step: int) -> bool:
        return step % self.config.every == 0

    def look(self, model: Model) -> dict[str, Any]:
        """`scores[place][pattern][layer][head]`: the share of attention on a pattern."""
        averages = average_heads(model, self.task, self._groups, has_intervals=False)
        return {
            "examples": sum(len(group.inputs) for group in self._groups),
            "scores": {place: _scores(of_place) for place, of_place in averages.items()},
            "uniform": {place: _uniform(of_place) for place, of_place in averages.items()},
            "entropy": {place: nested(of_place.entropy.mean) for place, of_place in averages.items()},
        }


def _scores(of_place: SiteAverages) -> dict[str, Any]:
    return {name: nested(kinds["mass"].mean) for name, kinds in of_place.patterns.items()}


def _uniform(of_place: SiteAverages) -> dict[str, float | None]:
    """What a head with equal weights would have: the same for all heads."""

    def level(mass: Average, above: Average) -> float | None:
        values = (mass.mean - above.mean).ravel()
        return None if np.isnan(values).all() else round(float(np.nanmean(values)), 6)

    return {name: level(kinds["mass"], kinds["above_uniform"]) for name, kinds in of_place.patterns.items()}
