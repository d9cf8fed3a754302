"""Position-wise feed-forward networks (two-layer and SwiGLU) and their configs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.blocks.dropout import Dropout
from glassformer.core.registry import Kind, register

Activation = Callable[[Tensor], Tensor]


def linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    """Build a linear layer with Xavier-uniform weights and zero biases, the default of all blocks."""
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


class FeedForward(nn.Module):
    """Two linear layers with an activation between them. The default inner width is 4 × hidden_dim.

    y = gf.nn.FeedForward(64, 256, activation=torch.relu)(x)     # x and y: (B, L, 64)
    """

    def __init__(
        self,
        hidden_dim: int,
        feed_forward_dim: int | None = None,
        activation: Activation = F.gelu,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        feed_forward_dim = feed_forward_dim or 4 * hidden_dim
        self.up = linear(hidden_dim, feed_forward_dim, bias)
        self.down = linear(feed_forward_dim, hidden_dim, bias)
        self.dropout = Dropout(dropout)
        self.activation = activation

    def forward(self, x_BLD: Tensor) -> Tensor:
        """Apply the network to each position independently."""
        hidden_BLF = self.activation(self.up(x_BLD))
        return self.down(self.dropout(hidden_BLF))


class SwiGLU(nn.Module):
    """Gated feed-forward network: the SiLU of one projection multiplies another (Shazeer 2020).

    y = gf.nn.SwiGLU(64, 256)(x)     # x and y: (B, L, 64)
    """

    def __init__(
        self, hidden_dim: int, feed_forward_dim: int | None = None, bias: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        feed_forward_dim = feed_forward_dim or 4 * hidden_dim
        self.gate = linear(hidden_dim, feed_forward_dim, bias)
        self.up = linear(hidden_dim, feed_forward_dim, bias)
        self.down = linear(feed_forward_dim, hidden_dim, bias)
        self.dropout = Dropout(dropout)

    def forward(self, x_BLD: Tensor) -> Tensor:
        """Apply the network to each position independently."""
        hidden_BLF = F.silu(self.gate(x_BLD)) * self.up(x_BLD)
        return self.down(self.dropout(hidden_BLF))


class FeedForwardConfig(Kind):
    """Base class of the configs of feed-forward networks."""

    def build(self, dim: int, feed_forward_dim: int, bias: bool, dropout: float) -> nn.Module:
        """Build the feed-forward network."""
        raise NotImplementedError

    def matrices(self) -> int:
        """Return the number of weight matrices, which each have dim × feed_forward_dim weights."""
        return 2

    def parameter_count(self, dim: int, feed_forward_dim: int, bias: bool) -> int:
        """Return the number of weights, plus the number of biases if `bias` is True."""
        weights = self.matrices() * dim * feed_forward_dim
        return weights + (self.matrices() - 1) * feed_forward_dim + dim if bias else weights


@register
class ReLUConfig(FeedForwardConfig):
    """Two linear layers with ReLU, max(x, 0), between them (Vaswani et al. 2017).

    Use it for the fastest training, and for models whose neurons are to be inspected: most of them are
    zero.
    """

    kind: Literal["relu"] = "relu"

    def build(self, dim: int, feed_forward_dim: int, bias: bool, dropout: float) -> nn.Module:
        return FeedForward(dim, feed_forward_dim, torch.relu_, bias, dropout)


@register
class GELUConfig(FeedForwardConfig):
    """Two linear layers with GELU, a smooth variant of ReLU, between them, as in GPT-2 and BERT.

    Use it as the default.
    """

    kind: Literal["gelu"] = "gelu"
    approximate: Literal["none", "tanh"] = Field(
        "none", description="tanh: the approximation that GPT-2 uses, slightly faster"
    )

    def build(self, dim: int, feed_forward_dim: int, bias: bool, dropout: float) -> nn.Module:
        activation = partial(F.gelu, approximate=self.approximate)
        return FeedForward(dim, feed_forward_dim, activation, bias, dropout)


@register
class SiLUConfig(FeedForwardConfig):
    """Two linear layers with SiLU, x × sigmoid(x), between them.

    Use it to compare with swiglu, which has the same activation and a gate.
    """

    kind: Literal["silu"] = "silu"

    def build(self, dim: int, feed_forward_dim: int, bias: bool, dropout: float) -> nn.Module:
        return FeedForward(dim, feed_forward_dim, F.silu, bias, dropout)


@register
class SwiGLUConfig(FeedForwardConfig):
    """Gated network: the SiLU of one linear layer multiplies another, and a third maps back (Shazeer
    2020).

    Use it for language models. It has three matrices instead of two: take two thirds of
    feed_forward_dim for equal size.
    """

    kind: Literal["swiglu"] = "swiglu"

    def build(self, dim: int, feed_forward_dim: int, bias: bool, dropout: float) -> nn.Module:
        return SwiGLU(dim, feed_forward_dim, bias, dropout)

    def matrices(self) -> int:
        return 3
