"""Matrix products in bfloat16 for training on a CPU, installed like a kernel; all else stays in float32.

Weights, gradients, optimizer state, norms, softmax, residual stream and loss are float32. A product reads its
two factors in bfloat16 and adds up in float32. PyTorch has no product on a CPU that returns float32 from
bfloat16 factors, so the sum is rounded to bfloat16 once and converted to float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from glassformer.blocks.feed_forward import FeedForward, SwiGLU
from glassformer.blocks.heads import ClassHead, linear_cross_entropy, pad_to_alignment
from glassformer.generation.cpu import is_local
from glassformer.models.base import Model

BF16 = torch.bfloat16

MIN_WEIGHTS, MIN_MULTIPLY_ADDS = 1 << 14, 1 << 23
"""Minimum size of a matrix, and of a product with it. Smaller ones stay in float32, which is faster."""


class Linear(torch.autograd.Function):
    """Autograd function of a linear layer whose three products (one forward, two backward) are in bfloat16.

    It also receives the bfloat16 copies of weight and bias. Its output has the type `dtype`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight_OI: Tensor,
        bias_O: Tensor | None,
        copy_OI: Tensor,
        bias_copy_O: Tensor | None,
        dtype: torch.dtype,
    ) -> Tensor:
        x16 = x.to(BF16)
        ctx.save_for_backward(x16, copy_OI)
        ctx.dtype = x.dtype
        outputs = len(copy_OI)
        # A new tensor, not a view of one: an activation may then work in-place on it.
        y16 = x16.new_empty(*x.shape[:-1], outputs)
        rows, y_NO = x16.flatten(0, -2), y16.view(-1, outputs)
        if bias_copy_O is None:
            torch.mm(rows, copy_OI.t(), out=y_NO)
        else:
            torch.addmm(bias_copy_O, rows, copy_OI.t(), out=y_NO)
        return y16.to(dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x16, copy_OI = ctx.saved_tensors
        gradient_NO = gradient.flatten(0, -2)
        gradient16_NO = gradient_NO.to(BF16)
        x_gradient = weight_gradient = bias_gradient = None
        if ctx.needs_input_grad[0]:
            x_gradient = torch.mm(gradient16_NO, copy_OI).view(x16.shape).to(ctx.dtype)
        if ctx.needs_input_grad[1]:
            weight_gradient = torch.mm(gradient16_NO.t(), x16.flatten(0, -2)).float()
        if ctx.needs_input_grad[2]:
            bias_gradient = gradient_NO.sum(0).float()
        return x_gradient, weight_gradient, bias_gradient, None, None, None


BLOCK, CHUNK = 1024, 64
"""Rows of logits that one product computes, and rows of them that are in float32 at a time.

A block is large enough for fast products, and a chunk is small enough for a CPU's cache.
"""


class LinearCrossEntropy(torch.autograd.Function):
    """Autograd function of the output layer with cross-entropy, like the one in `blocks.heads`.

    The products are in bfloat16; log-sum-exp, softmax and loss are in float32. The copies are padded from V
    to P outputs. The additional rows of the weight are zero and the additional biases are −∞, so that their
    softmax is zero.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        copy_PD: Tensor,
        bias_copy_P: Tensor,
        targets_N: Tensor,
        smoothing: float,
    ) -> tuple[Tensor, Tensor]:
        hidden16_ND, vocabulary = hidden_ND.to(BF16), len(weight_VD)
        hidden_gradient_ND = torch.empty_like(hidden16_ND)
        weight_gradient_PD: Tensor | None = None
        bias_gradient_P = hidden_ND.new_zeros(len(copy_PD))
        loss, correct = hidden_ND.new_zeros(()), torch.zeros((), dtype=torch.long)
        for start in range(0, len(hidden_ND), BLOCK):
            rows = slice(start, start + BLOCK)
            logits16_NP = torch.addmm(bias_copy_P, hidden16_ND[rows], copy_PD.t())
            for logits16, targets in zip(logits16_NP.split(CHUNK), targets_N[rows].split(CHUNK), strict=True):
                found = _cross_entropy(logits16.float(), targets[:, None], vocabulary, smoothing)
                loss += found[0]
                correct += found[1]
                logits16.copy_(found[2])  # from here on, it holds the gradient of the logits
            torch.mm(logits16_NP, copy_PD, out=hidden_gradient_ND[rows])
            product_PD = torch.mm(logits16_NP.t(), hidden16_ND[rows]).float()
            if weight_gradient_PD is None:
                weight_gradient_PD = product_PD
            else:
                weight_gradient_PD += product_PD
            bias_gradient_P += logits16_NP.sum(0)
        if weight_gradient_PD is None:  # no targets
            weight_gradient_PD = torch.zeros_like(weight_VD)
        bias_gradient_V = None if bias_V is None else bias_gradient_P[:vocabulary]
        ctx.gradients = (hidden_gradient_ND.float(), weight_gradient_PD[:vocabulary], bias_gradient_V)
        ctx.mark_non_differentiable(correct)
        return loss, correct

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, loss_gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        scaled = [None if g is None else g.mul_(loss_gradient) for g in ctx.gradients]
        del ctx.gradients
        return (*scaled, None, None, None, None)


def _cross_entropy(
    logits_NP: Tensor, targets_N1: Tensor, vocabulary: int, smoothing: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the summed loss, the number of correct rows, and the gradient of the logits (N, P).

    Two logits that are equal in bfloat16 both count as the largest one.
    """
    largest_N1, expected_N1 = logits_NP.amax(1, keepdim=True), logits_NP.gather(1, targets_N1)
    probabilities_NP = torch.softmax(logits_NP, 1)
    # The largest probability is at least 1 / V, so its logarithm is accurate.
    totals_N1 = largest_N1 - probabilities_NP.amax(1, keepdim=True).log()
    log_probability_N1 = expected_N1 - totals_N1
    loss = (smoothing - 1) * log_probability_N1.sum()
    share = smoothing / vocabulary
    if smoothing:
        loss = loss + smoothing * totals_N1.sum() - share * logits_NP[:, :vocabulary].sum()
        probabilities_NP[:, :vocabulary].sub_(share)
    # 1 − p is computed from the logarithm: in bfloat16 a p near 1 has an error as large as 1 − p.
    probabilities_NP.scatter_(1, targets_N1, log_probability_N1.expm1() + (smoothing - share))
    return loss, (expected_N1 == largest_N1).sum(), probabilities_NP


class Products:
    """Products in bfloat16 for one model: copies of its weights, and functions that multiply by them."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.layers = [m for m in model.modules() if type(m) is nn.Linear and m.weight.numel() >= MIN_WEIGHTS]
        self.has_large_head = isinstance(model.head, ClassHead) and _head_size(model) >= MIN_WEIGHTS
        self._copies: dict[Tensor, Tensor] = {}
        self._head_copies: tuple[Tensor, Tensor] | None = None

    @property
    def has_large_matrices(self) -> bool:
        """True if the model has at least one matrix that is large enough for products in bfloat16."""
        return bool(self.layers) or self.has_large_head

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Multiply in bfloat16 inside a `with` block, in which the weights must not change."""
        self._update_copies()
        inner = {part for module in self.model.modules() for part in _inner_layers(module)}
        head = self.model.head
        try:
            for layer in self.layers:
                layer.__dict__["forward"] = self._linear(layer, BF16 if layer in inner else torch.float32)
            if self.has_large_head:
                head.__dict__["cross_entropy"] = self.cross_entropy
            yield
        finally:
            for layer in self.layers:
                layer.__dict__.pop("forward", None)
            head.__dict__.pop("cross_entropy", None)

    @torch.no_grad()
    def _update_copies(self) -> None:
        """Convert the weights, once for all micro-batches of a step. Sharded ones are converted when used."""
        tensors = [t for layer in self.layers for t in (layer.weight, layer.bias) if t is not None]
        tensors = list(filter(is_local, tensors))
        for tensor in tensors:
            if tensor not in self._copies:
                self._copies[tensor] = torch.empty_like(tensor, dtype=BF16)
        if tensors:
            torch._foreach_copy_([self._copies[tensor] for tensor in tensors], tensors)
        if self.has_large_head:
            weight_VD = self.model.head.output_weight(self.model.tied_weight())
            self._head_copies = (
                padded_copies(weight_VD, self.model.head.bias) if is_local(weight_VD) else None
            )

    def _copy(self, tensor: Tensor) -> Tensor:
        copy = self._copies.get(tensor)
        return tensor.detach().to(BF16) if copy is None else copy

    def _linear(self, layer: nn.Linear, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
        """Return a function that replaces `layer.forward` and returns tensors of this type."""

        def forward(x: Tensor) -> Tensor:
            if x.numel() * len(layer.weight) < MIN_MULTIPLY_ADDS:
                return F.linear(x.to(layer.weight.dtype), layer.weight, layer.bias)
            bias_copy = None if layer.bias is None else self._copy(layer.bias)
            return Linear.apply(x, layer.weight, layer.bias, self._copy(layer.weight), bias_copy, dtype)

        return forward

    def cross_entropy(
        self,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        smoothing: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        """Compute what `blocks.heads.linear_cross_entropy` computes, with products in bfloat16."""
        if hidden_ND.numel() * len(weight_VD) < MIN_MULTIPLY_ADDS:
            return linear_cross_entropy(hidden_ND, weight_VD, bias_V, targets_N, smoothing)
        copies = self._head_copies or padded_copies(weight_VD, bias_V)
        return LinearCrossEntropy.apply(hidden_ND, weight_VD, bias_V, *copies, targets_N, smoothing)


def _head_size(model: Model) -> int:
    return model.head.output_weight(model.tied_weight()).numel()


def _inner_layers(module: nn.Module) -> tuple[nn.Module, ...]:
    """Return the layers before an activation. Their outputs stay in bfloat16 for the next product."""
    if isinstance(module, FeedForward):
        return (module.up,)
    return (module.gate, module.up) if isinstance(module, SwiGLU) else ()


@torch.no_grad()
def padded_copies(weight_VD: Tensor, bias_V: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return weight and bias in bfloat16, padded to a multiple of 16 outputs whose logits are −∞."""
    vocabulary = len(weight_VD)
    copy_PD, _ = pad_to_alignment(weight_VD.to(BF16), None)
    bias_copy_P = copy_PD.new_full((len(copy_PD),), -torch.inf)
    bias_copy_P[:vocabulary] = 0.0 if bias_V is None else bias_V
    return copy_PD, bias_copy_P
