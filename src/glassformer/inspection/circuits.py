"""Smallest sets of heads: which heads suffice if all others are replaced by their mean outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.blocks.heads import IGNORED
from glassformer.core.errors import ErrorDetail
from glassformer.inspection.ablation import Change, ablate_heads, all_heads, mean_outputs
from glassformer.inspection.examples import ExampleGroup
from glassformer.inspection.maps import Trust
from glassformer.inspection.record import HeadId
from glassformer.models.base import Model, evaluating

RANDOM_SETS = 20
"""Number of random sets of heads that a found set is compared with."""


def teacher_forced(
    model: Model, groups: Sequence[ExampleGroup], change: Change = nullcontext
) -> tuple[np.ndarray, float]:
    """Return which outputs are correct (examples, outputs), and the mean loss per output.

    The model reads the correct outputs before each one. All outputs of an example are correct if and only if
    greedy decoding generates exactly these. The examples must have equal numbers of outputs.
    """
    device, hits, losses = next(model.parameters()).device, [], []
    with evaluating(model), torch.inference_mode():
        for group in groups:
            batch = group.batch.to(device)
            if batch.targets.ndim != 2:
                raise ErrorDetail("the task has one output per sequence, not one per token", path="task")
            with change():
                logits_BLV = model(**batch.inputs)
            loss_BL = F.cross_entropy(logits_BLV.mT, batch.targets, reduction="none", ignore_index=IGNORED)
            hits.append((logits_BLV.argmax(-1) == batch.targets).cpu().numpy())
            losses.append(loss_BL.double().mean(1).cpu().numpy())
    if len({each.shape[1] for each in hits}) > 1:
        raise ErrorDetail("the examples have different numbers of outputs", path="examples")
    return np.concatenate(hits), float(np.concatenate(losses).mean())


@dataclass(frozen=True)
class HeadSet:
    """Smallest set of heads that a greedy search found, with the search itself."""

    heads: list[HeadId]
    exact_match: float
    """Exact match on other examples if only these heads remain."""
    random: float
    """The same for random sets of as many heads, on average."""
    whole: float
    """Exact match of the whole model on these examples."""
    removed: list[HeadId]
    """All heads in the order in which the search removed them."""
    curve: list[float]
    """Exact match after each removal. The first entry is the whole model, the last has no head left."""
    trust: Trust = "cause"

    def document(self) -> dict[str, Any]:
        """Return the set as a JSON-serialisable dict, with heads such as `cross:1:0`."""
        return {
            "heads": [name_of(where) for where in self.heads],
            "removed": [name_of(where) for where in self.removed],
            "exact_match": self.exact_match,
            "random": self.random,
            "whole": self.whole,
            "curve": self.curve,
            "trust": self.trust,
        }


def name_of(where: HeadId) -> str:
    """Return the address of a head as the command line writes it, such as `cross:1:0`."""
    return f"{where.site}:{where.layer}:{where.head}"


def smallest_set(
    model: Model, choosing: Sequence[ExampleGroup], measuring: Sequence[ExampleGroup], keep: float = 0.99
) -> HeadSet:
    """Return the smallest set of heads that keeps a share `keep` of the exact match, by a greedy search.

    Each step replaces by its mean the head whose replacement increases the loss on `choosing` least. The
    number of heads is chosen on `choosing` too, and all exact matches are measured on `measuring`. A greedy
    search gives an upper bound: a smaller set may exist.
    """
    heads = all_heads(model)
    means = mean_outputs(model, choosing, heads)
    removed: list[HeadId] = []
    chosen_on = [_exact(model, choosing, {})]
    while len(removed) < len(heads):
        gone = {where: means[where] for where in removed}
        left = [where for where in heads if where not in gone]
        losses = [
            teacher_forced(model, choosing, ablate_heads(model, gone | {where: means[where]}))[1]
            for where in left
        ]
        removed.append(left[int(np.argmin(losses))])
        chosen_on.append(_exact(model, choosing, {where: means[where] for where in removed}))
    count = max(index for index, value in enumerate(chosen_on) if value >= keep * chosen_on[0])
    curve = [
        _exact(model, measuring, {where: means[where] for where in removed[:index]})
        for index in range(len(heads) + 1)
    ]
    rng = np.random.default_rng(0)
    sets = [rng.permutation(len(heads))[:count] for _ in range(RANDOM_SETS)]
    at_random = [_exact(model, measuring, {heads[i]: means[heads[i]] for i in each}) for each in sets]
    return HeadSet(
        sorted(removed[count:], key=heads.index),
        curve[count],
        float(np.mean(at_random)),
        curve[0],
        removed,
        curve,
    )


def _exact(model: Model, groups: Sequence[ExampleGroup], gone: Mapping[HeadId, Tensor]) -> float:
    """Return the exact match without some heads; teacher forcing gives the same as greedy decoding."""
    change = ablate_heads(model, gone) if gone else nullcontext
    return float(teacher_forced(model, groups, change)[0].all(1).mean())


def effect_on_outputs(
    model: Model, choosing: Sequence[ExampleGroup], measuring: Sequence[ExampleGroup]
) -> dict[str, list[float]]:
    """Return how much the accuracy at each output falls if one head is replaced by its mean, by head."""
    heads = all_heads(model)
    means = mean_outputs(model, choosing, heads)
    before = teacher_forced(model, measuring)[0].mean(0)
    return {
        name_of(where): (
            before - teacher_forced(model, measuring, ablate_heads(model, {where: means[where]}))[0].mean(0)
        ).tolist()
        for where in heads
    }
