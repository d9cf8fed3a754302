"""From token numbers to vectors: the input net, positions, dropout."""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.blocks.dropout import Dropout
from glassformer.blocks.feed_forward import linear
from glassformer.blocks.positions import Position
from glassformer.core.registry import Kind, register


class InputNet(nn.Module):
    """Token numbers (B, L) in, vectors (B, L, D) out."""

    @property
    def weight_VD(self) -> Tensor:
        """The matrix that a tied output borrows."""
        raise NotImplementedError


class InputConfig(Kind):
    """How a token becomes a vector."""

    def build(self, vocabulary: int, hidden_dim: int) -> InputNet:
        raise NotImplementedError

    def parameter_count(self, vocabulary: int, hidden_dim: int) -> int:
        raise NotImplementedError


class TokenEmbedding(InputNet):
    """A learned vector per token; `scale` multiplies it by √D, as Vaswani et al. did."""

    def __init__(self, vocabulary: int, hidden_dim: int, scale: bool = True) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, hidden_dim)
        self.factor = math.sqrt(hidden_dim) if scale else 1.0
        nn.init.normal_(self.table.weight, std=0.5 * hidden_dim**-0.5)

    @property
    def weight_VD(self) -> Tensor:
        return self.table.weight

    def forward(self, tokens_BL: Tensor) -> Tensor:
        return self.table(tokens_BL) * self.factor


@register
class TokenVectorsConfig(InputConfig):
    kind: Literal["tokens"] = "tokens"
    scale: bool = Field(True, description="multiply the vectors by the root of hidden_dim")

    def build(self, vocabulary: int, hidden_dim: int) -> InputNet:
        return TokenEmbedding(vocabulary, hidden_dim, self.scale)

    def parameter_count(self, vocabulary: int, hidden_dim: int) -> int:
        return vocabulary * hidden_dim


class OneHot(InputNet):
    """A one-hot vector, input dropout, a linear input net.

    The product of a one-hot vector with a matrix is one column of it, so that column is looked up.
    """

    def __init__(self, vocabulary: int, hidden_dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.net = linear(vocabulary, hidden_dim)
        self.dropout = Dropout(dropout)

    @property
    def weight_VD(self) -> Tensor:
        return self.net.weight.T

    def forward(self, tokens_BL: Tensor) -> Tensor:
        hot_BL = self.dropout(torch.ones_like(tokens_BL, dtype=self.net.weight.dtype))
        return F.embedding(tokens_BL, self.weight_VD) * hot_BL[..., None] + self.net.bias


@register
class OneHotConfig(InputConfig):
    kind: Literal["one-hot"] = "one-hot"
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout on the one-hot input")

    def build(self, vocabulary: int, hidden_dim: int) -> InputNet:
        return OneHot(vocabulary, hidden_dim, self.dropout)

    def parameter_count(self, vocabulary: int, hidden_dim: int) -> int:
        return vocabulary * hidden_dim + hidden_dim


class Embedding(nn.Module):
    """Input net, then positions, then an optional norm, then dropout.

    Without vectors of its own it borrows those that it is handed: one table for two languages.
    """

    def __init__(self, vectors: InputNet | None, position: Position, norm: nn.Module, dropout: float) -> None:
        super().__init__()
        self.vectors = vectors
        self.position = position
        self.norm = norm
        self.dropout = Dropout(dropout)

    def input_net(self, borrowed: InputNet | None = None) -> InputNet:
        net = borrowed if self.vectors is None else self.vectors
        assert net is not None
        return net

    def forward(self, tokens_BL: Tensor, positions_BL: Tensor, borrowed: InputNet | None = None) -> Tensor:
        vectors_BLD = self.input_net(borrowed)(tokens_BL)
        return self.dropout(self.norm(self.position.embed(vectors_BLD, positions_BL)))
