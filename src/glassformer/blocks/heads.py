"""Output heads of models: pooling, output networks, the last linear layer, and the loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.blocks import reference
from glassformer.blocks.dropout import Dropout
from glassformer.blocks.feed_forward import linear
from glassformer.blocks.norms import LAYER_NORM_EPSILON, LayerNorm
from glassformer.core.errors import ErrorDetail
from glassformer.core.registry import Kind, register

IGNORED = -100
"""Target id of a position that is not predicted, such as padding."""

FLOAT32_SPREAD = 1e-4
"""Smallest ratio of standard deviation to mean for which float32 has three digits of the spread."""

ALIGNMENT = 16
"""Number of float32 values in a CPU cache line of 64 bytes."""


def pad_to_alignment(weight_OI: Tensor, bias_O: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Zero-pad weight and bias to a multiple of 16 outputs, so that rows of products are cache-line aligned.

    On a CPU, a matrix product with unaligned rows takes up to 1.5 times as long.
    """
    missing = -len(weight_OI) % ALIGNMENT
    if not missing:
        return weight_OI, bias_O
    return F.pad(weight_OI, (0, 0, 0, missing)), None if bias_O is None else F.pad(bias_O, (0, missing))


CHUNK = 256
"""Rows of logits that the loss computes at a time: enough for a fast matmul, few enough for a CPU's cache."""


class LinearCrossEntropy(torch.autograd.Function):
    """Autograd function for a linear layer with cross-entropy, which never holds all logits in memory.

    It computes the logits in chunks of rows, and the gradients in the same pass, during `forward`.
    """

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
        project = _projection(weight_VD, bias_V)
        for start in range(0, len(hidden_ND), CHUNK):
            rows = slice(start, start + CHUNK)
            hidden, targets = hidden_ND[rows], targets_N[rows, None]
            logits = project(hidden)
            logits.sub_(logits.amax(1, keepdim=True))
            target_logits = logits.gather(1, targets)
            correct += (target_logits == 0).sum()
            expected = (1 - smoothing) * target_logits.sum()
            if smoothing:
                expected = expected + smoothing * logits.sum() / logits.shape[1]
            totals = logits.exp_().sum(1, keepdim=True)
            loss += totals.log().sum() - expected
            if not needs_gradients:
                continue
            # The gradient of the logits is softmax − (smoothed) target, written over the logits.
            logits.div_(totals).sub_(smoothing / logits.shape[1])
            logits.scatter_add_(1, targets, torch.full_like(totals, smoothing - 1))
            torch.mm(logits, weight_VD, out=hidden_gradient_ND[rows])
            weight_gradient_VD.addmm_(logits.T, hidden)
            if bias_gradient_V is not None:
                bias_gradient_V += logits.sum(0)
            del logits  # before the next chunk is allocated
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


LinearFunction = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""Function with the arguments and the output of `F.linear`."""


def _projection(
    weight_VD: Tensor, bias_V: Tensor | None, linear: LinearFunction = F.linear
) -> Callable[[Tensor], Tensor]:
    """Return the function from hidden vectors to logits, with weights padded once for all chunks."""
    weight, bias = pad_to_alignment(weight_VD, bias_V)
    return lambda hidden_ND: linear(hidden_ND, weight, bias)[:, : len(weight_VD)]


def linear_cross_entropy(
    hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, targets_N: Tensor, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return the summed `F.cross_entropy(F.linear(...))`, and the number of correctly predicted rows."""
    loss, correct = LinearCrossEntropy.apply(hidden_ND, weight_VD, bias_V, targets_N, smoothing)
    return loss, correct


CrossEntropy = Callable[..., tuple[Tensor, Tensor]]
"""Function with the arguments and outputs of `linear_cross_entropy`."""


def cross_entropy_per_row(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    linear: LinearFunction = F.linear,
) -> tuple[Tensor, Tensor]:
    """Return the loss of each row, and a bool per row that is True if the prediction is correct."""
    losses, hits = [], []
    project = _projection(weight_VD, bias_V, linear)
    for hidden, targets in zip(hidden_ND.split(CHUNK), targets_N.split(CHUNK), strict=True):
        logits = project(hidden)
        target_logits = logits.gather(1, targets[:, None]).squeeze(1)
        losses.append(logits.logsumexp(1) - target_logits)
        hits.append(target_logits == logits.amax(1))
    return torch.cat(losses), torch.cat(hits)


@dataclass(frozen=True)
class LossOutput:
    """Summed loss and numbers of correct predictions and targets of a batch, which add up over batches."""

    loss: Tensor
    correct: Tensor
    count: Tensor

    @property
    def mean(self) -> Tensor:
        """Mean loss per target."""
        return self.loss / self.count.clamp(min=1)


class PoolingConfig(Kind):
    """Base class of the configs of pooling, which reduces a sequence to one vector. Padding has no effect."""

    def build(self, dim: int) -> nn.Module:
        """Build the pooling module."""
        raise NotImplementedError

    def parameter_count(self, dim: int) -> int:
        """Return the number of parameters of the pooling module."""
        return 0


class MeanPooling(nn.Module):
    """Mean of the vectors at real positions (not padding).

    pooled = gf.nn.MeanPooling()(x, mask)     # x: (B, L, D), mask: (B, L), pooled: (B, D)
    """

    def forward(self, x_BLD: Tensor, attention_mask_BL: Tensor | None = None) -> Tensor:
        if attention_mask_BL is None:
            return x_BLD.mean(1)
        weights_BL = attention_mask_BL.to(x_BLD.dtype)
        return (x_BLD * weights_BL[..., None]).sum(1) / weights_BL.sum(1, keepdim=True).clamp(min=1)


class MaxPooling(nn.Module):
    """Maximum of each component over the real positions (not padding).

    pooled = gf.nn.MaxPooling()(x, mask)     # x: (B, L, D), mask: (B, L), pooled: (B, D)
    """

    def forward(self, x_BLD: Tensor, attention_mask_BL: Tensor | None = None) -> Tensor:
        if attention_mask_BL is None:
            return x_BLD.amax(1)
        largest_BD = x_BLD.masked_fill(~attention_mask_BL[..., None], torch.finfo(x_BLD.dtype).min).amax(1)
        return largest_BD.masked_fill(~attention_mask_BL.any(1, keepdim=True), 0.0)


class FirstPooling(nn.Module):
    """Vector of the first position. With `transform_dim`, a linear layer of this width and tanh follow.

    pooled = gf.nn.FirstPooling()(x)     # x: (B, L, D), pooled: (B, D)
    """

    def __init__(self, transform_dim: int | None = None) -> None:
        super().__init__()
        self.linear = None if transform_dim is None else linear(transform_dim, transform_dim)

    def forward(self, x_BLD: Tensor, attention_mask_BL: Tensor | None = None) -> Tensor:
        first_BD = x_BLD[:, 0]
        return first_BD if self.linear is None else torch.tanh(self.linear(first_BD))


class LastPooling(nn.Module):
    """Vector of the last real position (not padding). In a causal model, only this one sees all tokens.

    pooled = gf.nn.LastPooling()(x, mask)     # x: (B, L, D), mask: (B, L), pooled: (B, D)
    """

    def forward(self, x_BLD: Tensor, attention_mask_BL: Tensor | None = None) -> Tensor:
        return x_BLD[:, -1] if attention_mask_BL is None else last_token(x_BLD, attention_mask_BL)


class AttentionPooling(nn.Module):
    """Mean of the vectors at real positions (not padding), weighted by attention from one learned query.

    pooled = gf.nn.AttentionPooling(64)(x, mask)     # x: (B, L, 64), mask: (B, L), pooled: (B, 64)
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query = linear(dim, 1, bias=False)

    def forward(self, x_BLD: Tensor, attention_mask_BL: Tensor | None = None) -> Tensor:
        weights_BL = reference.weights(self.query(x_BLD).squeeze(-1), attention_mask_BL)
        return (weights_BL[..., None] * x_BLD).sum(1)


def last_token(x_BLD: Tensor, attention_mask_BL: Tensor) -> Tensor:
    """Return the vector (B, D) of each row's last real token. Padding must be on the right."""
    last_B = (attention_mask_BL.sum(1) - 1).clamp(min=0)
    return x_BLD[torch.arange(len(x_BLD), device=x_BLD.device), last_B]


@register
class MeanPoolingConfig(PoolingConfig):
    """Mean of the vectors at all real positions; padding has no effect.

    Use it as the default: every token contributes equally.
    """

    kind: Literal["mean"] = "mean"

    def build(self, dim: int) -> nn.Module:
        return MeanPooling()


@register
class MaxPoolingConfig(PoolingConfig):
    """Maximum of each component over all real positions; padding has no effect.

    Use it if a single word or token can decide the class.
    """

    kind: Literal["max"] = "max"

    def build(self, dim: int) -> nn.Module:
        return MaxPooling()


@register
class FirstPoolingConfig(PoolingConfig):
    """Vector of the first position, as in BERT.

    Use it with pre-trained models that were built this way; not with a causal model, whose first
    position sees nothing else.
    """

    kind: Literal["first"] = "first"
    transform: bool = Field(False, description="apply a linear layer and tanh to the vector, as BERT does")

    def build(self, dim: int) -> nn.Module:
        return FirstPooling(dim if self.transform else None)

    def parameter_count(self, dim: int) -> int:
        return dim * dim + dim if self.transform else 0


@register
class LastPoolingConfig(PoolingConfig):
    """Vector of the last real position; padding has no effect.

    Use it with causal attention, where only the last position has read the whole sequence.
    """

    kind: Literal["last"] = "last"

    def build(self, dim: int) -> nn.Module:
        return LastPooling()


@register
class AttentionPoolingConfig(PoolingConfig):
    """Mean of the vectors at all real positions, weighted by attention from a learned query.

    Use it if few tokens of a long text matter, and the model has to find them.
    """

    kind: Literal["attention"] = "attention"

    def build(self, dim: int) -> nn.Module:
        return AttentionPooling(dim)

    def parameter_count(self, dim: int) -> int:
        return dim


class OutputConfig(Kind):
    """Base class of the configs of output networks, between the last block and the last linear layer."""

    def build(self, dim: int, dropout: float) -> nn.Module:
        """Build the output network."""
        raise NotImplementedError

    def parameter_count(self, dim: int) -> int:
        """Return the number of parameters of the output network."""
        return 0


@register
class LinearOutputConfig(OutputConfig):
    """No output network: one linear layer turns the last vectors into logits.

    Use it as the default.
    """

    kind: Literal["linear"] = "linear"

    def build(self, dim: int, dropout: float) -> nn.Module:
        return nn.Identity()


@register
class MLPOutputConfig(OutputConfig):
    """Linear layer, layer norm, ReLU and dropout before the last linear layer.

    Use it for classifiers and taggers whose classes are not linear in the last vectors.
    """

    kind: Literal["mlp"] = "mlp"

    def build(self, dim: int, dropout: float) -> nn.Module:
        return nn.Sequential(linear(dim, dim), LayerNorm(dim), nn.ReLU(), Dropout(dropout))

    def parameter_count(self, dim: int) -> int:
        return dim * dim + dim + 2 * dim


@register
class TransformOutputConfig(OutputConfig):
    """Linear layer, GELU and layer norm before the last linear layer: the output network of BERT.

    Use it for masked language models.
    """

    kind: Literal["transform"] = "transform"
    epsilon: float = Field(LAYER_NORM_EPSILON, gt=0, description="small number added to the variance")

    def build(self, dim: int, dropout: float) -> nn.Module:
        return nn.Sequential(linear(dim, dim), nn.GELU(), LayerNorm(dim, self.epsilon))

    def parameter_count(self, dim: int) -> int:
        return dim * dim + dim + 2 * dim


class Head(nn.Module):
    """Base class of output heads: the output network `body`, then a linear layer with `outputs` outputs.

    A tied head has no weight matrix of its own. Its `forward` receives the embedding matrix as `tied_VD`.
    """

    linear: LinearFunction = staticmethod(F.linear)
    """Function of the last layer. Evaluation and prediction in int8 install another one."""

    def __init__(
        self,
        hidden_dim: int,
        outputs: int,
        body: nn.Module | None = None,
        is_tied: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.body = nn.Identity() if body is None else body
        self.weight = None if is_tied else nn.Parameter(torch.empty(outputs, hidden_dim))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        if self.weight is not None:
            # Small, so that the first predictions are near uniform and the first loss is near ln(outputs).
            nn.init.normal_(self.weight, std=0.2 * hidden_dim**-0.5)

    def output_weight(self, tied_VD: Tensor | None) -> Tensor:
        """Return the head's own weight matrix, or `tied_VD` if the head is tied."""
        weight_VD = tied_VD if self.weight is None else self.weight
        assert weight_VD is not None
        return weight_VD

    def forward(self, hidden: Tensor, tied_VD: Tensor | None = None) -> Tensor:
        """Compute the outputs for hidden vectors: logits, or real values."""
        return self.linear(self.body(hidden), self.output_weight(tied_VD), self.bias)

    def compute_loss(self, outputs: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> LossOutput:
        """Return the summed loss of the head's outputs for these targets."""
        raise NotImplementedError

    def loss_from_hidden(
        self, hidden: Tensor, targets: Tensor, tied_VD: Tensor | None = None, label_smoothing: float = 0.0
    ) -> LossOutput:
        """Return the summed loss for hidden vectors. It equals `compute_loss` of the head's outputs."""
        return self.compute_loss(self(hidden, tied_VD), targets, label_smoothing)


class ClassHead(Head):
    """Logits over classes or tokens, with cross-entropy loss. Targets of −100 are ignored.

    head = gf.nn.ClassHead(64, 10)
    logits = head(x)                                      # x: (B, L, 64) or (B, 64)
    loss = head.loss_from_hidden(x, targets).mean         # without holding all logits in memory
    """

    cross_entropy: CrossEntropy = staticmethod(linear_cross_entropy)
    """Function that computes the loss from hidden vectors and weights. Training may install another one."""

    def compute_loss(self, outputs: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> LossOutput:
        """Return the summed cross-entropy of the logits."""
        logits, flat = outputs.flatten(0, -2), targets.flatten()
        loss = F.cross_entropy(
            logits, flat, ignore_index=IGNORED, reduction="sum", label_smoothing=label_smoothing
        )
        with torch.no_grad():
            is_target = flat != IGNORED
            correct = ((logits.argmax(-1) == flat) & is_target).sum()
        return LossOutput(loss, correct, is_target.sum())

    def loss_from_hidden(
        self, hidden: Tensor, targets: Tensor, tied_VD: Tensor | None = None, label_smoothing: float = 0.0
    ) -> LossOutput:
        """Return the summed cross-entropy, computed in chunks. Positions without a target are skipped.

        On a device other than a CPU, all logits are computed at once: the host would have to wait for the
        number of targets.
        """
        device = hidden.device.type
        if device != "cpu" or not self.is_plain or torch.is_autocast_enabled(device):
            return super().loss_from_hidden(hidden, targets, tied_VD, label_smoothing)
        flat = targets.flatten()
        rows = (flat != IGNORED).nonzero().squeeze(1)
        hidden_ND = self.body(hidden.flatten(0, -2)[rows])
        weight_VD = self.output_weight(tied_VD)
        loss, correct = self.cross_entropy(hidden_ND, weight_VD, self.bias, flat[rows], label_smoothing)
        return LossOutput(loss, correct, torch.tensor(len(rows), device=targets.device))

    @property
    def is_plain(self) -> bool:
        """True if no subclass overrides `forward` or `compute_loss`: the chunked loss calls neither."""
        return type(self).forward is Head.forward and type(self).compute_loss is ClassHead.compute_loss

    def loss_per_target(
        self, hidden: Tensor, targets: Tensor, tied_VD: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return loss and correctness (bool) of each target. Ignored targets have 0 and False."""
        losses = torch.zeros_like(targets, dtype=torch.float32)
        hits = torch.zeros_like(targets, dtype=torch.bool)
        is_target = targets != IGNORED
        if bool(is_target.any()):
            hidden_ND, weight_VD = self.body(hidden[is_target]), self.output_weight(tied_VD)
            found = cross_entropy_per_row(hidden_ND, weight_VD, self.bias, targets[is_target], self.linear)
            losses[is_target], hits[is_target] = found[0].float(), found[1]
        return losses, hits


def real_dtype(device: torch.device, mean: float, scale: float) -> torch.dtype:
    """Return the dtype of values with this mean and scale: float64, or float32 on a device without float64.

    Raise ErrorDetail if the device has only float32, which would round the values.
    """
    if device.type != "mps":
        return torch.float64
    if scale < FLOAT32_SPREAD * abs(mean):
        raise ErrorDetail(
            f"the targets, {mean:g} on average, vary by {scale:g}: this device has only float32",
            path="training.device",
            value=str(device),
            hint="training.device=cpu, or subtract a constant from the targets",
        )
    return torch.float32


class RegressionHead(Head):
    """Head for one real value, with squared-error loss. A prediction within 0.5 of the target is correct.

    head = gf.nn.RegressionHead(64, mean=1000.0, scale=300.0)   # of the training targets
    values = head(x)                                      # x: (B, 64), values: (B, 1)
    loss = head.compute_loss(values, targets).mean        # targets: (B,)

    Values and targets are in the unit of the targets. The loss is that of standardised targets,
    `(target - mean) / scale`, so that learning does not depend on the unit.
    """

    def __init__(
        self,
        hidden_dim: int,
        outputs: int = 1,
        body: nn.Module | None = None,
        bias: bool = True,
        mean: float = 0.0,
        scale: float = 1.0,
    ) -> None:
        super().__init__(hidden_dim, outputs, body, bias=bias)
        self.mean, self.scale = mean, scale

    def forward(self, hidden: Tensor, tied_VD: Tensor | None = None) -> Tensor:
        """Compute real values for hidden vectors. With a mean or a scale they are float64.

        A float32 cannot hold a value such as 1.7e9 to the nearest 50.
        """
        values = super().forward(hidden, tied_VD)
        if (self.mean, self.scale) == (0.0, 1.0):
            return values
        return values.to(real_dtype(values.device, self.mean, self.scale)) * self.scale + self.mean

    def compute_loss(self, outputs: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> LossOutput:
        """Return the summed squared error of standardised values. `label_smoothing` has no effect."""
        errors = outputs.squeeze(-1) - targets
        dtype = torch.promote_types(self.output_weight(None).dtype, torch.float32)
        return LossOutput(
            (errors / self.scale).to(dtype).square().sum(),
            (errors.detach().abs() < 0.5).sum(),
            torch.tensor(targets.numel(), device=targets.device),
        )
