"""Multi-head attention, self and cross, with a key/value cache and a place to tap it.

The kernel is an attribute: `fused_kernel` in training, and `inspection.capture` puts a recording
one in its place for a pass. Nothing else changes, and there is no flag.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.blocks import reference
from glassformer.blocks.feed_forward import linear
from glassformer.blocks.masks import EVERYTHING, Mask
from glassformer.blocks.positions import Position

Kernel = Callable[[Tensor, Tensor, Tensor, Mask, Tensor | None, float], Tensor]


def fused_kernel(
    q_BHLK: Tensor, k_BHMK: Tensor, v_BHMK: Tensor, mask: Mask, bias: Tensor | None, dropout: float
) -> Tensor:
    """PyTorch's own kernel. A causal mask alone is never written out."""
    queries, keys = q_BHLK.shape[2], k_BHMK.shape[2]
    if bias is None and mask.is_causal and mask.allowed is None and queries == keys:
        return F.scaled_dot_product_attention(q_BHLK, k_BHMK, v_BHMK, is_causal=True, dropout_p=dropout)
    allowed = mask.dense(queries, keys, q_BHLK.device)
    if bias is None:
        return F.scaled_dot_product_attention(q_BHLK, k_BHMK, v_BHMK, allowed, dropout)
    added = bias if allowed is None else bias.masked_fill(~allowed, -torch.inf)
    return F.scaled_dot_product_attention(q_BHLK, k_BHMK, v_BHMK, added.to(q_BHLK.dtype), dropout)


DROP_IN_KERNELS: set[Kernel] = {fused_kernel}
"""Kernels that compute plain attention for any number of queries. Others may expect one query per step."""


def explicit_scores(q_BHLK: Tensor, k_BHMK: Tensor, bias: Tensor | None) -> Tensor:
    scores_BHLM = torch.matmul(q_BHLK, k_BHMK.transpose(-2, -1)) / math.sqrt(q_BHLK.shape[-1])
    return scores_BHLM if bias is None else scores_BHLM + bias


def explicit_weights(q_BHLK: Tensor, k_BHMK: Tensor, mask: Mask, bias: Tensor | None) -> Tensor:
    """The weights that the fused kernel never shows."""
    allowed = mask.dense(q_BHLK.shape[2], k_BHMK.shape[2], q_BHLK.device)
    return reference.weights(explicit_scores(q_BHLK, k_BHMK, bias), allowed)


@dataclass(frozen=True)
class PositionContext:
    """Where queries and keys stand, and the position module that makes something of it."""

    position: Position
    query_positions_BL: Tensor
    key_positions_BM: Tensor


def select_rows(x_BHMK: Tensor, rows: Tensor, length: int) -> Tensor:
    """These rows in this order, as far as `length`. Where most stay in place, the others alone move."""
    if len(rows) <= len(x_BHMK):
        places = (rows != torch.arange(len(rows), device=rows.device)).nonzero().squeeze(1)
        if 2 * len(places) <= len(rows):
            x_BHMK[places, :, :length] = x_BHMK[rows[places], :, :length]
            return x_BHMK[: len(rows)]
    new = x_BHMK.new_empty(len(rows), *x_BHMK.shape[1:])
    new[:, :, :length] = x_BHMK[rows, :, :length]
    return new


class LayerCache:
    """The keys and values that one attention has seen; they grow in place."""

    def __init__(self) -> None:
        self.length = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def extend(self, k_BHLK: Tensor, v_BHLK: Tensor) -> tuple[Tensor, Tensor]:
        """Append, and return all keys and values so far."""
        end = self.length + k_BHLK.shape[2]
        if self._keys is None or self._values is None or end > self._keys.shape[2]:
            capacity = 2 * end if self.length else end  # what is read at once may well be all
            self._keys = self._grown(self._keys, k_BHLK, capacity)
            self._values = self._grown(self._values, v_BHLK, capacity)
        self._keys[:, :, self.length : end] = k_BHLK
        self._values[:, :, self.length : end] = v_BHLK
        self.length = end
        return self.get()

    def fill(self, rows: Tensor, k_BHLK: Tensor, v_BHLK: Tensor, *, batch: int, length: int) -> None:
        """Set the beginnings of these rows of a batch; where nothing is set, there are zeros."""
        if self._keys is None or self._values is None:
            _, heads, _, width = k_BHLK.shape
            self._keys = k_BHLK.new_zeros(batch, heads, length, width)
            self._values = torch.zeros_like(self._keys)
            self.length = length
        self._keys[rows, :, : k_BHLK.shape[2]] = k_BHLK
        self._values[rows, :, : v_BHLK.shape[2]] = v_BHLK

    def get(self) -> tuple[Tensor, Tensor]:
        assert self._keys is not None and self._values is not None
        return self._keys[:, :, : self.length], self._values[:, :, : self.length]

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order."""
        if self._keys is not None and self._values is not None:
            self._keys = select_rows(self._keys, rows, self.length)
            self._values = select_rows(self._values, rows, self.length)

    def _grown(self, old: Tensor | None, like: Tensor, capacity: int) -> Tensor:
        batch, heads, _, width = like.shape
        new = like.new_empty(batch, heads, capacity, width)
        if old is not None:
            new[:, :, : self.length] = old[:, :, : self.length]
        return new


class MultiHeadAttention(nn.Module):
    """What self- and cross-attention share: heads, kernel, output projection."""

    kernel: Kernel

    def __init__(
        self,
        hidden_dim: int,
        num_heads: int,
        num_key_value_heads: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.num_key_value_heads = num_key_value_heads or num_heads
        self.head_dim = hidden_dim // num_heads
        self.query_dim = num_heads * self.head_dim
        self.key_value_dim = self.num_key_value_heads * self.head_dim
        self.dropout = dropout
        self.output = linear(self.query_dim, hidden_dim, bias)
        self.kernel = fused_kernel

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.unflatten(-1, (heads, self.head_dim)).transpose(1, 2)

    def _attend(
        self, q_BHLK: Tensor, k_BHMK: Tensor, v_BHMK: Tensor, mask: Mask, bias: Tensor | None
    ) -> Tensor:
        groups = self.num_heads // self.num_key_value_heads
        if groups > 1:
            k_BHMK = k_BHMK.repeat_interleave(groups, dim=1)
            v_BHMK = v_BHMK.repeat_interleave(groups, dim=1)
        dropout = self.dropout if self.training else 0.0
        mixed_BHLK = self.kernel(q_BHLK, k_BHMK, v_BHMK, mask, bias, dropout)
        return self.output(mixed_BHLK.transpose(1, 2).flatten(2))


def stacked_linear(inputs: int, parts: list[int], bias: bool) -> nn.Linear:
    """One matrix for several projections, each with the Xavier weights it would have had alone."""
    layer = linear(inputs, sum(parts), bias)
    for part in layer.weight.split(parts):
        nn.init.xavier_uniform_(part)
    return layer


class SelfAttention(MultiHeadAttention):
    def __init__(
        self,
        hidden_dim: int,
        num_heads: int,
        num_key_value_heads: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(hidden_dim, num_heads, num_key_value_heads, bias, dropout)
        self.parts = [self.query_dim, self.key_value_dim, self.key_value_dim]
        self.query_key_value = stacked_linear(hidden_dim, self.parts, bias)

    def forward(
        self,
        x_BLD: Tensor,
        positions: PositionContext,
        mask: Mask = EVERYTHING,
        cache: LayerCache | None = None,
    ) -> Tensor:
        q_BLD, k_BLD, v_BLD = self.query_key_value(x_BLD).split(self.parts, dim=-1)
        q_BHLK = self._split(q_BLD, self.num_heads)
        k_BHLK = self._split(k_BLD, self.num_key_value_heads)
        v_BHLK = self._split(v_BLD, self.num_key_value_heads)
        position = positions.position
        q_BHLK = position.rotate(q_BHLK, positions.query_positions_BL)
        k_BHMK = position.rotate(k_BHLK, positions.query_positions_BL)
        v_BHMK = v_BHLK
        if cache is not None:
            k_BHMK, v_BHMK = cache.extend(k_BHMK, v_BHMK)
        bias = position.score_bias(q_BHLK, positions.query_positions_BL, positions.key_positions_BM)
        return self._attend(q_BHLK, k_BHMK, v_BHMK, mask, bias)


class CrossAttention(MultiHeadAttention):
    """From the decoder to the encoder's output: distances between two languages mean nothing here."""

    def __init__(
        self,
        hidden_dim: int,
        num_heads: int,
        num_key_value_heads: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(hidden_dim, num_heads, num_key_value_heads, bias, dropout)
        self.query = linear(hidden_dim, self.query_dim, bias)
        self.key_value = stacked_linear(hidden_dim, [self.key_value_dim] * 2, bias)

    def keys_and_values(self, memory_BMD: Tensor) -> tuple[Tensor, Tensor]:
        k_BMD, v_BMD = self.key_value(memory_BMD).chunk(2, dim=-1)
        return self._split(k_BMD, self.num_key_value_heads), self._split(v_BMD, self.num_key_value_heads)

    def forward(self, x_BLD: Tensor, memory: Tensor | LayerCache, mask: Mask = EVERYTHING) -> Tensor:
        """`memory`: what the encoder gives (B, M, D), or the keys and values that were made of it."""
        q_BHLK = self._split(self.query(x_BLD), self.num_heads)
        k_BHMK, v_BHMK = memory.get() if isinstance(memory, LayerCache) else self.keys_and_values(memory)
        return self._attend(q_BHLK, k_BHMK, v_BHMK, mask, None)
