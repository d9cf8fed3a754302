"""The position-wise network between two attentions."""

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


class FeedForwardConfig(Kind):
    """The network that each position passes through alone."""

    def build(self, dim: int, feed_forward_dim: int, bias: bool, dropout: float) -> nn.Module:
        raise NotImplementedError

    def matrices(self) -> int:
        """How many dim × feed_forward_dim matrices it has."""
        return 2

    def parameter_count(self, dim: int, feed_forward_dim: int, bias: bool) -> int:
        """All matrices but the last lead into the hidden layer, and so do their biases."""
        weights = self.matrices() * dim * feed_forward_dim
        return weights + (self.matrices() - 1) * feed_forward_dim + dim if bias else weights


class FeedForward(nn.Module):
    def __init__(
        self, dim: int, feed_forward_dim: int, activation: Activation, bias: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.up = linear(dim, feed_forward_dim, bias)
        self.down = linear(feed_forward_dim, dim, bias)
        self.dropout = Dropout(dropout)
        self.activation = activation

    def forward(self, x_BLD: Tensor) -> Tensor:
        hidden_BLF = self.activation(self.up(x_BLD))
        return self.down(self.dropout(hidden_BLF))


class GatedFeedForward(nn.Module):
    def __init__(
        self, dim: int, feed_forward_dim: int, activation: Activation, bias: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.gate = linear(dim, feed_forward_dim, bias)
        self.up = linear(dim, feed_forward_dim, bias)
        self.down = linear(feed_forward_dim, dim, bias)
        self.dropout = Dropout(dropout)
        self.activation = activation

    def forward(self, x_BLD: Tensor) -> Tensor:
        hidden_BLF = self.activation(self.gate(x_BLD)) * self.up(x_BLD)
        return self.down(self.dropout(hidden_BLF))


def linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    """A linear map with Xavier weights and zero biases, as every map here starts."""
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


@register
class ReLUConfig(FeedForwardConfig):
    kind: Literal["relu"] = "relu"

    def build(self, dim: int, feed_forward_dim: int, bias: bool, dropout: float) -> nn.Module:
        return FeedForward(dim, feed_forward_dim, torch.relu_, bias, dropout)


@register
class GELUConfig(FeedForwardConfig):
    kind: Literal["gelu"] = "gelu"
    approximate: Literal["none", "tanh"] = Field(
        "none", description="tanh: the form of GPT-2, a little faster"
    )

    def build(self, dim: int, feed_forward_dim: int, bias: bool, dropout: float) -> nn.Module:
        return FeedForward(
            dim, feed_forward_dim, partial(F.gelu, approximate=self.approximate), bias, dropout
        )


@register
class SiLUConfig(FeedForwardConfig):
    kind: Literal["silu"] = "silu"

    def build(self, dim: int, feed_forward_dim: int, bias: bool, dropout: float) -> nn.Module:
        return FeedForward(dim, feed_forward_dim, F.silu, bias, dropout)


@register
class SwiGLUConfig(FeedForwardConfig):
    kind: Literal["swiglu"] = "swiglu"

    def build(self, dim: int, feed_forward_dim: int, bias: bool, dropout: float) -> nn.Module:
        return GatedFeedForward(dim, feed_forward_dim, F.silu, bias, dropout)

    def matrices(self) -> int:
        return 3
