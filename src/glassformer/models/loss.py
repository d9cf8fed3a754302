"""Cross-entropy of a linear map, a few rows at a time: the logits of a whole batch never exist.

For a large vocabulary those logits, and the passes over them, cost more than the rest of a small model.
Axes: N places, D hidden, V classes or tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.blocks.ready import filled_up

CHUNK = 256
"""Rows at a time: enough for a matrix product to be efficient, few enough to stay in the cache."""


class LinearCrossEntropy(torch.autograd.Function):
    """The summed loss and how many places have their target on top; gradients are made on the way."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        smoothing: float,
    ) -> tuple[Tensor, Tensor]:
        needs_gradients = any(ctx.needs_input_grad)
        hidden_gradient_ND = torch.empty_like(hidden_ND)
        weight_gradient_VD = torch.zeros_like(weight_VD)
        bias_gradient_V = None if bias_V is None else torch.zeros_like(bias_V)
        loss = hidden_ND.new_zeros(())
        correct = torch.zeros((), dtype=torch.long, device=hidden_ND.device)
        asking = _asking(weight_VD, bias_V)
        for start in range(0, len(hidden_ND), CHUNK):
            rows = slice(start, start + CHUNK)
            hidden, targets = hidden_ND[rows], targets_N[rows, None]
            scores = asking(hidden)
            scores.sub_(scores.amax(1, keepdim=True))
            asked = scores.gather(1, targets)
            correct += (asked == 0).sum()
            wished = (1 - smoothing) * asked.sum()
            if smoothing:
                wished = wished + smoothing * scores.sum() / scores.shape[1]
            totals = scores.exp_().sum(1, keepdim=True)
            loss += totals.log().sum() - wished
            if not needs_gradients:
                continue
            scores.div_(totals).sub_(smoothing / scores.shape[1])
            scores.scatter_add_(1, targets, torch.full_like(totals, smoothing - 1))
            torch.mm(scores, weight_VD, out=hidden_gradient_ND[rows])
            weight_gradient_VD.addmm_(scores.T, hidden)
            if bias_gradient_V is not None:
                bias_gradient_V += scores.sum(0)
        if needs_gradients:
            ctx.gradients = (hidden_gradient_ND, weight_gradient_VD, bias_gradient_V)
        ctx.mark_non_differentiable(correct)
        return loss, correct

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, loss_gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        scaled = [None if g is None else g.mul_(loss_gradient) for g in ctx.gradients]
        del ctx.gradients
        return (*scaled, None, None)


def _asking(weight_VD: Tensor, bias_V: Tensor | None) -> Callable[[Tensor], Tensor]:
    """The linear map, for many chunks."""
    weight, bias = filled_up(weight_VD, bias_V)
    return lambda hidden_ND: F.linear(hidden_ND, weight, bias)[:, : len(weight_VD)]


def cross_entropy_each(
    hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, targets_N: Tensor
) -> tuple[Tensor, Tensor]:
    """The loss of each place and whether its target is on top, without gradients."""
    losses, hits = [], []
    asking = _asking(weight_VD, bias_V)
    for hidden, targets in zip(hidden_ND.split(CHUNK), targets_N.split(CHUNK), strict=True):
        scores = asking(hidden)
        asked = scores.gather(1, targets[:, None]).squeeze(1)
        losses.append(scores.logsumexp(1) - asked)
        hits.append(asked == scores.amax(1))
    return torch.cat(losses), torch.cat(hits)


def linear_cross_entropy(
    hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, targets_N: Tensor, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The sum that `F.cross_entropy` of `F.linear` gives, and how many places have their target on top."""
    loss, correct = LinearCrossEntropy.apply(hidden_ND, weight_VD, bias_V, targets_N, smoothing)
    return loss, correct
