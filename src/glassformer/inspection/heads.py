"""Statistics of every attention head, averaged over examples with confidence intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from glassformer.blocks import reference
from glassformer.blocks.attention import Kernel, MultiHeadAttention, explicit_scores
from glassformer.blocks.masks import Mask
from glassformer.core.errors import ErrorDetail
from glassformer.evaluation.intervals import RESAMPLES, mean_intervals
from glassformer.inspection.examples import ExampleGroup, group_examples
from glassformer.inspection.induction import (
    DUPLICATE,
    INDUCTION,
    MOST_ABLATED,
    RepeatedTokens,
    ablate_on_repeated,
    copying,
    half_losses,
    mean_losses,
    repeated_tokens,
    why_left_out,
)
from glassformer.inspection.maps import SITES, Site, Trust
from glassformer.inspection.record import HeadId, attentions, layers, swap_kernels, value_norms
from glassformer.inspection.statistics import (
    Layout,
    Measured,
    Pattern,
    Statistics,
    arrange,
    explain,
    measure,
    nested,
    templates,
)
from glassformer.models.base import Model
from glassformer.tasks.base import Task

CELLS_AT_ONCE = 1 << 22
"""Maximum number of attention weights in memory at a time, which bounds the memory of a measurement."""


@dataclass(frozen=True)
class Average:
    """Mean over examples with its 95 % confidence interval: arrays (layers, heads), NaN where undefined."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def document(self) -> dict[str, Any]:
        """Return mean and interval as a JSON-serialisable dict of nested lists."""
        interval = nested(np.stack([self.low, self.high], axis=-1))
        return {"mean": nested(self.mean), "interval": interval}


SiteAverages: TypeAlias = Statistics[Average]
"""Averaged statistics of all heads at one attention site (encoder, decoder or cross)."""


class _Observer:
    """Maker of attention kernels that compute statistics of the weights in each call and drop the weights."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.found: dict[MultiHeadAttention, list[Measured]] = {}
        self._patterns: list[dict[str, dict[str, np.ndarray]]] = []

    def begin(self, group: ExampleGroup) -> None:
        """Compute the task's attention patterns for these examples, before the model reads them."""
        self._patterns = group.patterns(self.task)

    def kernel(self, attention: MultiHeadAttention, site: Site) -> Kernel:
        """Return an attention kernel that measures the weights and computes the output as the module does."""
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
        """Return boolean masks by pattern name: general ones (L, M), and the task's own, one per example."""
        own = [self._patterns[number].get(site, {}) for number in examples]
        names = [name for name, cells in own[0].items() if cells.shape == (queries, keys)]
        stacked = {name: np.stack([patterns[name] for patterns in own])[:, None] for name in names}
        return templates(queries, keys, stacked)


def _part(tensor: Tensor | None, part: slice) -> Tensor | None:
    """Return the slice `part` of the examples of a tensor that broadcasts to (B, H, L, M)."""
    return tensor if tensor is None or tensor.ndim < 4 or len(tensor) == 1 else tensor[part]


def average_heads(
    model: Model, task: Task, groups: Sequence[ExampleGroup], *, has_intervals: bool = True
) -> dict[Site, SiteAverages]:
    """Return the statistics of every head, averaged over all examples, by site (encoder, decoder or cross).

    Decoders are measured with teacher forcing. Without `has_intervals` the bootstrap is skipped to save time,
    and the intervals are NaN.
    """
    measured = measure_heads(model, task, groups)
    average = partial(_average, has_intervals=has_intervals)
    return {site: arrange(_columns(measured[site])).map(average) for site in SITES if site in measured}


def heads_document(
    model: Model, control: Model | None, task: Task, groups: Sequence[ExampleGroup]
) -> dict[str, Any]:
    """Return the head statistics of a model as a JSON-serialisable dict.

    The key `untrained` has the statistics of `control`, an untrained model, if it is given. The key
    `explanations` has one sentence per site and statistic.
    """

    def document(averages: SiteAverages) -> dict[str, Any]:
        layers, heads = (list(range(count)) for count in averages.entropy.mean.shape)
        return {"layers": layers, "heads": heads, **asdict(averages.map(Average.document))}

    models = {"sites": model} | ({} if control is None else {"untrained": control})
    reason = why_left_out(task)
    repeated = [] if reason else repeated_tokens(task)
    averages = {
        key: with_repeated(average_heads(of, task, groups), of, task, repeated) for key, of in models.items()
    }
    trust: Trust = "fact"
    return {
        "trust": trust,
        "examples": sum(len(group.inputs) for group in groups),
        "explanations": {site: explain(site, task.pattern_explanations) for site in averages["sites"]},
        **{key: {site: document(of) for site, of in found.items()} for key, found in averages.items()},
        "repeated": {"left_out": reason}
        if reason
        else repeated_document(model, control, repeated, averages["sites"]),
    }


def with_repeated(
    averages: Mapping[Site, SiteAverages],
    model: Model,
    task: Task,
    repeated: Sequence[RepeatedTokens],
    *,
    has_intervals: bool = True,
) -> dict[Site, SiteAverages]:
    """Return the averages with the scores of induction and duplicate-token heads as further patterns."""
    found = dict(averages)
    if repeated:
        site = repeated[0].site
        scores = average_heads(model, task, repeated, has_intervals=has_intervals)[site].patterns
        own = {name: scores[name] for name in (INDUCTION, DUPLICATE)}
        found[site] = replace(found[site], patterns={**found[site].patterns, **own})
    return found


def repeated_document(
    model: Model,
    control: Model | None,
    repeated: Sequence[RepeatedTokens],
    averages: Mapping[Site, SiteAverages],
) -> dict[str, Any]:
    """Return the losses on repeated random tokens, and what they become without each head, as a dict.

    Only the heads with the highest induction scores are ablated.
    """
    site = repeated[0].site
    score = averages[site].patterns[INDUCTION].mass.mean
    best = np.argsort(-score, axis=None, kind="stable")[:MOST_ABLATED]
    heads = [HeadId(site, *map(int, np.unravel_index(index, score.shape))) for index in best]
    copies = copying(model, repeated)
    return {
        "site": site,
        "sequences": sum(len(group.inputs) for group in repeated),
        "periods": [group.period for group in repeated],
        "loss": mean_losses(half_losses(model, repeated)),
        "untrained_loss": control and mean_losses(half_losses(control, repeated)),
        "copying": None if copies is None else nested(copies),
        "ablated": ablate_on_repeated(model, repeated, heads),
    }


def measure_heads(
    model: Model, task: Task, groups: Sequence[ExampleGroup]
) -> dict[Site, list[list[Measured]]]:
    """Return the statistics of each attention call: site (encoder, decoder or cross) → layer → chunk.

    A chunk is a part of a group of examples that is measured at once, to limit the memory.
    """
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


def _columns(measured: list[list[Measured]]) -> dict[tuple[str, str], np.ndarray]:
    """Return each statistic as an array (examples, layers, heads); NaN where an example lacks a pattern."""

    def joined(chunks: list[Measured], key: tuple[str, str]) -> np.ndarray:
        missing = (torch.full_like(chunk["entropy", ""], torch.nan) for chunk in chunks)
        return torch.cat([chunk.get(key, nan) for chunk, nan in zip(chunks, missing, strict=True)]).numpy()

    keys = dict.fromkeys(key for chunks in measured for chunk in chunks for key in chunk)
    return {key: np.stack([joined(chunks, key) for chunks in measured], axis=1) for key in keys}


def _average(values: np.ndarray, has_intervals: bool) -> Average:
    shape = values.shape[1:]
    flat = values.reshape(len(values), -1)
    mean, low, high = mean_intervals(flat, RESAMPLES if has_intervals else 0)
    return Average(mean.reshape(shape), low.reshape(shape), high.reshape(shape))


class HeadProbe:
    """Probe that measures each head's attention on patterns, such as the diagonal, during training.

    The trainer calls it every `every` steps. It uses the first examples of the validation split.
    """

    def __init__(self, task: Task, every: int, examples: int, keeps_snapshots: bool = False) -> None:
        self.task = task
        self.every = every
        self.examples = examples
        self.keeps_snapshots = keeps_snapshots

    @cached_property
    def _groups(self) -> list[ExampleGroup]:
        return group_examples(self.task, "validation", self.examples)

    @cached_property
    def _repeated(self) -> list[RepeatedTokens]:
        """Sequences that measure induction heads; none if the task's models cannot have them."""
        return [] if why_left_out(self.task) else repeated_tokens(self.task, self.examples)

    def is_due(self, step: int) -> bool:
        """Return True if the heads are measured at this step."""
        return step % self.every == 0

    def measure(self, model: Model) -> dict[str, Any]:
        """Return the fields of a `head_probe` event as a JSON-serialisable dict.

        `scores[site][pattern][layer][head]` is the share of the head's attention on the pattern. A model that
        predicts next tokens also has `repeated_loss`, its losses on repeated random tokens.
        """
        averages = average_heads(model, self.task, self._groups, has_intervals=False)
        averages = with_repeated(averages, model, self.task, self._repeated, has_intervals=False)
        losses = {"repeated_loss": mean_losses(half_losses(model, self._repeated))} if self._repeated else {}
        return {
            **losses,
            "examples": sum(len(group.inputs) for group in self._groups),
            "scores": {
                site: {name: nested(pattern.mass.mean) for name, pattern in found.patterns.items()}
                for site, found in averages.items()
            },
            "uniform": {
                site: {name: _uniform(pattern) for name, pattern in found.patterns.items()}
                for site, found in averages.items()
            },
            "entropy": {site: nested(found.entropy.mean) for site, found in averages.items()},
        }


def _uniform(pattern: Pattern[Average]) -> float | None:
    """Return a pattern's share of the attention if all weights were equal; None if it occurs nowhere."""
    values = (pattern.mass.mean - pattern.above_uniform.mean).ravel()
    return None if np.isnan(values).all() else round(float(np.nanmean(values)), 6)
