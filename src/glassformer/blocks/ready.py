"""Parts of a model made ready for many calls: nothing is learned meanwhile, and no weight changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.blocks.dropout import Dropout
from glassformer.blocks.feed_forward import FeedForward, GatedFeedForward
from glassformer.blocks.layers import Residual
from glassformer.blocks.products import multiply

Function = Callable[..., Tensor]


ALIGNMENT = 16
"""Numbers in a line of a CPU's cache."""


def filled_up(weight_OI: Tensor, bias_O: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """With outputs of zero at the end: each row of answers begins where a line of the cache does.

    On a CPU a product whose rows begin at odd places takes up to half as long again.
    """
    missing = -len(weight_OI) % ALIGNMENT
    if not missing:
        return weight_OI, bias_O
    return F.pad(weight_OI, (0, 0, 0, missing)), None if bias_O is None else F.pad(bias_O, (0, missing))


def ready_product(weight_OI: Tensor, bias_O: Tensor | None) -> Callable[[Tensor], Tensor]:
    """`F.linear` with this weight and bias; on a CPU faster with few rows.

    The matrix stands column after column in memory. Where an answer is wider than what is asked, the bias is
    one more row of the matrix, and what is asked has a 1 at its end: PyTorch would write the bias into every
    row of the answer before it multiplies.
    """
    outputs, inputs = weight_OI.shape
    matrix_IO = weight_OI.detach().t()
    bias_O = None if bias_O is None else bias_O.detach()
    is_wide = bias_O is not None and outputs > inputs
    if bias_O is not None and is_wide:
        matrix_IO, bias_O = torch.cat([matrix_IO, bias_O[None]]), None
    matrix_IO = matrix_IO.contiguous()

    def product(x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        if is_wide:
            rows = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
        return multiply(rows, matrix_IO, bias_O).view(*x.shape[:-1], outputs)

    return product


def _function(part: nn.Module) -> Function | None:
    """What the part does in evaluation, as a plain function; None: it is called as it is."""
    if type(part) is nn.Linear and is_plain(part.weight):
        return ready_product(part.weight.data, None if part.bias is None else part.bias.data)
    if type(part) is nn.LayerNorm:
        shape, epsilon = list(part.normalized_shape), part.eps
        return lambda x: torch.layer_norm(x, shape, part.weight, part.bias, epsilon, False)
    if type(part) in (nn.Identity, Dropout):
        return lambda x: x
    return part.forward if type(part) in (FeedForward, GatedFeedForward, Residual) else None


def is_plain(weight: Tensor) -> bool:
    """Whole, and on a CPU: weights that processes share are of another type."""
    return type(weight.data) is Tensor and weight.device.type == "cpu"


@contextmanager
def ready(module: nn.Module) -> Iterator[None]:
    """Within it small parts are plain functions to those that call them: a call of a module takes some µs."""
    shadows = [
        (parent, name, function)
        for parent in module.modules()
        for name, part in parent.named_children()
        if not isinstance(parent, nn.ModuleList | nn.Sequential) and (function := _function(part)) is not None
    ]
    try:
        for parent, name, function in shadows:
            parent.__dict__[name] = function  # found before the module of that name
        yield
    finally:
        for parent, name, _ in shadows:
            parent.__dict__.pop(name, None)
