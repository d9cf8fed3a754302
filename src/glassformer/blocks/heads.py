"""Heads: pooling, output networks, the last linear map, and the loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.blocks import reference
from glassformer.blocks.dropout import Dropout
from glassformer.blocks.feed_forward import linear
from glassformer.core.registry import Kind, register

IGNORED = -100
"""Target id of a position that is not predicted, such as padding."""

ALIGNMENT = 16
"""Floats per CPU cache line."""


def pad_to_alignment(weight_OI: Tensor, bias_O: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Zero-pad the output dimension to a multiple of 16, so that product rows are cache-line aligned.

    On a CPU, a product with unaligned rows takes up to 1.5 times as long.
    """
    missing = -len(weight_OI) % ALIGNMENT
    if not missing:
        return weight_OI, bias_O
    return F.pad(weight_OI, (0, 0, 0, missing)), None if bias_O is None else F.pad(bias_O, (0, missing))


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
    weight, bias = pad_to_alignment(weight_VD, bias_V)
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


@dataclass(frozen=True)
class LossOutput:
    """Sums over the targets that count, so that batches of any size add up rightly."""

    loss: Tensor
    correct: Tensor
    count: Tensor


class PoolingConfig(Kind):
    """How the vectors of a sequence become one. What stands at padding must not matter."""

    def build(self, dim: int) -> nn.Module:
        raise NotImplementedError

    def parameter_count(self, dim: int) -> int:
        return 0


class MeanPooling(nn.Module):
    def forward(self, x_BLD: Tensor, attention_mask_BL: Tensor | None) -> Tensor:
        if attention_mask_BL is None:
            return x_BLD.mean(1)
        weights_BL = attention_mask_BL.to(x_BLD.dtype)
        return (x_BLD * weights_BL[..., None]).sum(1) / weights_BL.sum(1, keepdim=True).clamp(min=1)


class MaxPooling(nn.Module):
    def forward(self, x_BLD: Tensor, attention_mask_BL: Tensor | None) -> Tensor:
        if attention_mask_BL is None:
            return x_BLD.amax(1)
        largest_BD = x_BLD.masked_fill(~attention_mask_BL[..., None], torch.finfo(x_BLD.dtype).min).amax(1)
        return largest_BD.masked_fill(~attention_mask_BL.any(1, keepdim=True), 0.0)


class FirstPooling(nn.Module):
    def forward(self, x_BLD: Tensor, attention_mask_BL: Tensor | None) -> Tensor:
        return x_BLD[:, 0]


class LastPooling(nn.Module):
    """The last real position: the only one of a causal model that has read everything."""

    def forward(self, x_BLD: Tensor, attention_mask_BL: Tensor | None) -> Tensor:
        return x_BLD[:, -1] if attention_mask_BL is None else last_token(x_BLD, attention_mask_BL)


class AttentionPooling(nn.Module):
    """A learned query weighs the positions."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query = linear(dim, 1, bias=False)

    def forward(self, x_BLD: Tensor, attention_mask_BL: Tensor | None) -> Tensor:
        weights_BL = reference.weights(self.query(x_BLD).squeeze(-1), attention_mask_BL)
        return (weights_BL[..., None] * x_BLD).sum(1)


def last_token(x_BLD: Tensor, attention_mask_BL: Tensor) -> Tensor:
    last_B = (attention_mask_BL.sum(1) - 1).clamp(min=0)
    return x_BLD[torch.arange(len(x_BLD), device=x_BLD.device), last_B]


@register
class MeanPoolingConfig(PoolingConfig):
    kind: Literal["mean"] = "mean"

    def build(self, dim: int) -> nn.Module:
        return MeanPooling()


@register
class MaxPoolingConfig(PoolingConfig):
    kind: Literal["max"] = "max"

    def build(self, dim: int) -> nn.Module:
        return MaxPooling()


@register
class FirstPoolingConfig(PoolingConfig):
    kind: Literal["first"] = "first"

    def build(self, dim: int) -> nn.Module:
        return FirstPooling()


@register
class LastPoolingConfig(PoolingConfig):
    kind: Literal["last"] = "last"

    def build(self, dim: int) -> nn.Module:
        return LastPooling()


@register
class AttentionPoolingConfig(PoolingConfig):
    kind: Literal["attention"] = "attention"

    def build(self, dim: int) -> nn.Module:
        return AttentionPooling(dim)

    def parameter_count(self, dim: int) -> int:
        return dim


class OutputConfig(Kind):
    """What stands between the last block and the last linear map."""

    def build(self, dim: int, dropout: float) -> nn.Module:
        raise NotImplementedError

    def parameter_count(self, dim: int) -> int:
        return 0


@register
class LinearOutputConfig(OutputConfig):
    kind: Literal["linear"] = "linear"

    def build(self, dim: int, dropout: float) -> nn.Module:
        return nn.Identity()


@register
class MLPOutputConfig(OutputConfig):
    """Linear, norm, ReLU, dropout: the output net of a small predictor."""

    kind: Literal["mlp"] = "mlp"

    def build(self, dim: int, dropout: float) -> nn.Module:
        return nn.Sequential(linear(dim, dim), nn.LayerNorm(dim), nn.ReLU(), Dropout(dropout))

    def parameter_count(self, dim: int) -> int:
        return dim * dim + dim + 2 * dim


@register
class TransformOutputConfig(OutputConfig):
    """Linear, GELU, norm: BERT's output net."""

    kind: Literal["transform"] = "transform"
    epsilon: float = 1e-5

    def build(self, dim: int, dropout: float) -> nn.Module:
        return nn.Sequential(linear(dim, dim), nn.GELU(), nn.LayerNorm(dim, eps=self.epsilon))

    def parameter_count(self, dim: int) -> int:
        return dim * dim + dim + 2 * dim


class Head(nn.Module):
    """An output net and a linear map to `outputs` numbers; a tied one borrows the embedding's matrix."""

    def __init__(
        self, body: nn.Module, dim: int, outputs: int, is_tied: bool = False, bias: bool = True
    ) -> None:
        super().__init__()
        self.body = body
        self.weight = None if is_tied else nn.Parameter(torch.empty(outputs, dim))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        if self.weight is not None:
            # Small, so that the first guess is near uniform and the first loss near ln(outputs).
            nn.init.normal_(self.weight, std=0.2 * dim**-0.5)

    def forward(self, hidden: Tensor, tied_VD: Tensor | None = None) -> Tensor:
        weight = tied_VD if self.weight is None else self.weight
        assert weight is not None
        return F.linear(self.body(hidden), weight, self.bias)

    def compute_loss(self, answers: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> LossOutput:
        raise NotImplementedError

    def loss_from_hidden(
        self, hidden: Tensor, targets: Tensor, tied_VD: Tensor | None, label_smoothing: float = 0.0
    ) -> LossOutput:
        """As `compute_loss` of the answers to these vectors, for training."""
        return self.compute_loss(self(hidden, tied_VD), targets, label_smoothing)


class ClassHead(Head):
    """Answers are logits over classes or tokens; the loss is cross-entropy."""

    def compute_loss(self, answers: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> LossOutput:
        logits, flat = answers.flatten(0, -2), targets.flatten()
        loss = F.cross_entropy(
            logits, flat, ignore_index=IGNORED, reduction="sum", label_smoothing=label_smoothing
        )
        with torch.no_grad():
            asked = flat != IGNORED
            correct = ((logits.argmax(-1) == flat) & asked).sum()
        return LossOutput(loss, correct, asked.sum())

    def loss_from_hidden(
        self, hidden: Tensor, targets: Tensor, tied_VD: Tensor | None, label_smoothing: float = 0.0
    ) -> LossOutput:
        """Places that are not asked for are never computed."""
        weight_VD = tied_VD if self.weight is None else self.weight
        assert weight_VD is not None
        if not self.is_plain or torch.is_autocast_enabled(hidden.device.type):
            return super().loss_from_hidden(hidden, targets, tied_VD, label_smoothing)
        flat = targets.flatten()
        asked = (flat != IGNORED).nonzero().squeeze(1)
        hidden_ND = self.body(hidden.flatten(0, -2)[asked])
        loss, correct = linear_cross_entropy(hidden_ND, weight_VD, self.bias, flat[asked], label_smoothing)
        return LossOutput(loss, correct, torch.tensor(len(asked), device=targets.device))

    @property
    def is_plain(self) -> bool:
        """Whether answers and loss are what is said here, and not a subclass's own."""
        return type(self).forward is Head.forward and type(self).compute_loss is ClassHead.compute_loss

    def loss_per_target(
        self, hidden: Tensor, targets: Tensor, tied_VD: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The loss and the success of each target, in their form; 0 and False where none is asked for."""
        losses = torch.zeros_like(targets, dtype=torch.float32)
        hits = torch.zeros_like(targets, dtype=torch.bool)
        is_asked = targets != IGNORED
        weight_VD = tied_VD if self.weight is None else self.weight
        assert weight_VD is not None
        if bool(is_asked.any()):
            found = cross_entropy_each(self.body(hidden[is_asked]), weight_VD, self.bias, targets[is_asked])
            losses[is_asked], hits[is_asked] = found[0].float(), found[1]
        return losses, hits


class RegressionHead(Head):
    """The answer is a number; the loss is the squared error, and an answer within 0.5 counts as correct."""

    def compute_loss(self, answers: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> LossOutput:
        errors = answers.squeeze(-1) - targets
        return LossOutput(
            errors.square().sum(),
            (errors.detach().abs() < 0.5).sum(),
            torch.tensor(targets.numel(), device=targets.device),
        )
