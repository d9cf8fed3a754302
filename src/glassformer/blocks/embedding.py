"""Embedding layers: token ids to vectors, plus positions, an optional norm, and dropout."""

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
    """Base class of input networks, which map token ids (B, L) to vectors (B, L, D)."""

    @property
    def weight_VD(self) -> Tensor:
        """Embedding matrix (V, D), which a tied output layer shares."""
        raise NotImplementedError


class InputConfig(Kind):
    """Base class of the configs of input networks."""

    def build(self, vocabulary: int, hidden_dim: int) -> InputNet:
        """Build the input network."""
        raise NotImplementedError

    def parameter_count(self, vocabulary: int, hidden_dim: int) -> int:
        """Return the number of parameters of the input network."""
        raise NotImplementedError


class TokenEmbedding(InputNet):
    """Learned vector per token. `scale` multiplies it by √D, as in Vaswani et al. (2017).

    x = gf.nn.TokenEmbedding(vocabulary=256, hidden_dim=64)(tokens)     # tokens: (B, L), x: (B, L, 64)
    """

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
class TokenEmbeddingConfig(InputConfig):
    """Learned vector per token, looked up in a table.

    Use it as the default.
    """

    kind: Literal["tokens"] = "tokens"
    scale: bool = Field(True, description="multiply the vectors by the square root of hidden_dim")

    def build(self, vocabulary: int, hidden_dim: int) -> InputNet:
        return TokenEmbedding(vocabulary, hidden_dim, self.scale)

    def parameter_count(self, vocabulary: int, hidden_dim: int) -> int:
        return vocabulary * hidden_dim


class OneHot(InputNet):
    """One-hot encoding of each token, then dropout and a linear layer.

    x = gf.nn.OneHot(vocabulary=256, hidden_dim=64)(tokens)     # tokens: (B, L), x: (B, L, 64)

    A one-hot vector times a matrix is one column of the matrix, so the column is looked up instead.
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
    """One-hot encoding of each token (a vector of zeros with a single one), followed by a linear layer.

    Use it for few categories: it computes the same function as a table plus a bias, and starts with
    smaller vectors.
    """

    kind: Literal["one-hot"] = "one-hot"
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout on the one-hot input")

    def build(self, vocabulary: int, hidden_dim: int) -> InputNet:
        return OneHot(vocabulary, hidden_dim, self.dropout)

    def parameter_count(self, vocabulary: int, hidden_dim: int) -> int:
        return vocabulary * hidden_dim + hidden_dim


class Embedding(nn.Module):
    """Embedding layer: input network, positional encoding, an optional norm, and dropout.

    x = gf.nn.Embedding(gf.nn.TokenEmbedding(256, 64), gf.nn.Sinusoidal(64), dropout=0.1)(tokens)

    If `vectors` is None, `forward` uses the network `shared`, so that source and target share one table.
    """

    def __init__(
        self,
        vectors: InputNet | None,
        position: Position | None = None,
        norm: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.vectors = vectors
        self.position = Position() if position is None else position
        self.norm = nn.Identity() if norm is None else norm
        self.dropout = Dropout(dropout)

    def input_net(self, shared: InputNet | None = None) -> InputNet:
        """Return the embedding's own input network, or `shared` if it has none."""
        net = shared if self.vectors is None else self.vectors
        assert net is not None
        return net

    def forward(
        self, tokens_BL: Tensor, positions_BL: Tensor | None = None, shared: InputNet | None = None
    ) -> Tensor:
        """Return the vectors (B, L, D) of the tokens. Without `positions_BL`, positions are 0, 1, …"""
        if positions_BL is None:
            positions_BL = torch.arange(tokens_BL.shape[1], device=tokens_BL.device)[None]
        vectors_BLD = self.input_net(shared)(tokens_BL)
        return self.dropout(self.norm(self.position.embed(vectors_BLD, positions_BL)))
