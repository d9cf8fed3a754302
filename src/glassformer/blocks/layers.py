"""Encoder block, decoder block, and a stack of either.

A norm that is absent is an Identity, so that pre-norm and post-norm are the same code:

    x = after(x + dropout(sublayer(before(x))))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from torch import Tensor, nn

from glassformer.blocks.attention import CrossAttention, LayerCache, PositionContext, SelfAttention
from glassformer.blocks.dropout import Dropout
from glassformer.blocks.masks import EVERYTHING, Mask

NormPlacement = Literal["pre", "post"]
MakeNorm = Callable[[], nn.Module]


class Residual(nn.Module):
    """What surrounds a sublayer: a norm before or after it, dropout, and the sum."""

    def __init__(self, make_norm: MakeNorm, positions: NormPlacement, dropout: float) -> None:
        super().__init__()
        self.before = make_norm() if positions == "pre" else nn.Identity()
        self.after = make_norm() if positions == "post" else nn.Identity()
        self.dropout = Dropout(dropout)

    def forward(self, x_BLD: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return self.after(x_BLD + self.dropout(sublayer(self.before(x_BLD))))


class BlockCache:
    """What one decoder block remembers: its own past, and the encoder's output as it reads it."""

    def __init__(self) -> None:
        self.own = LayerCache()
        self.cross = LayerCache()

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order."""
        self.own.select(rows)
        self.cross.select(rows)


class EncoderBlock(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(
        self,
        attention: SelfAttention,
        feed_forward: nn.Module,
        make_norm: MakeNorm,
        positions: NormPlacement = "pre",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.attention = attention
        self.feed_forward = feed_forward
        self.attention_residual = Residual(make_norm, positions, dropout)
        self.feed_forward_residual = Residual(make_norm, positions, dropout)

    def forward(
        self,
        x_BLD: Tensor,
        positions: PositionContext,
        mask: Mask = EVERYTHING,
        cache: BlockCache | None = None,
    ) -> Tensor:
        own = None if cache is None else cache.own
        x_BLD = self.attention_residual(x_BLD, lambda x: self.attention(x, positions, mask, own))
        return self.feed_forward_residual(x_BLD, self.feed_forward)


class DecoderBlock(nn.Module):
    """Causal self-attention, cross-attention to the encoder's output, then feed-forward."""

    def __init__(
        self,
        attention: SelfAttention,
        cross_attention: CrossAttention,
        feed_forward: nn.Module,
        make_norm: MakeNorm,
        positions: NormPlacement = "pre",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.attention = attention
        self.cross_attention = cross_attention
        self.feed_forward = feed_forward
        self.attention_residual = Residual(make_norm, positions, dropout)
        self.cross_attention_residual = Residual(make_norm, positions, dropout)
        self.feed_forward_residual = Residual(make_norm, positions, dropout)

    def read_source(self, memory_BMD: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values that a cache keeps of what the encoder gives."""
        return self.cross_attention.keys_and_values(memory_BMD)

    def forward(
        self,
        x_BLD: Tensor,
        positions: PositionContext,
        mask: Mask,
        memory_BMD: Tensor | None,
        memory_mask: Mask = EVERYTHING,
        cache: BlockCache | None = None,
    ) -> Tensor:
        """Without `memory_BMD` the cache has read it already, by `read_source`."""
        own = None if cache is None else cache.own
        memory = cache.cross if memory_BMD is None and cache is not None else memory_BMD
        assert memory is not None
        x_BLD = self.attention_residual(x_BLD, lambda x: self.attention(x, positions, mask, own))
        x_BLD = self.cross_attention_residual(x_BLD, lambda x: self.cross_attention(x, memory, memory_mask))
        return self.feed_forward_residual(x_BLD, self.feed_forward)


class EncoderStack(nn.Module):
    def __init__(self, blocks: Sequence[EncoderBlock], final_norm: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(blocks)
        self.final_norm = final_norm

    def forward(
        self,
        x_BLD: Tensor,
        positions: PositionContext,
        mask: Mask = EVERYTHING,
        caches: Sequence[BlockCache] | None = None,
    ) -> Tensor:
        for number, block in enumerate(self.layers):
            x_BLD = block(x_BLD, positions, mask, None if caches is None else caches[number])
        return self.final_norm(x_BLD)


class DecoderStack(nn.Module):
    def __init__(self, blocks: Sequence[DecoderBlock], final_norm: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(blocks)
        self.final_norm = final_norm

    def forward(
        self,
        x_BLD: Tensor,
        positions: PositionContext,
        mask: Mask,
        memory_BMD: Tensor | None,
        memory_mask: Mask = EVERYTHING,
        caches: Sequence[BlockCache] | None = None,
    ) -> Tensor:
        """Without `memory_BMD` the caches have read it already."""
        for number, block in enumerate(self.layers):
            cache = None if caches is None else caches[number]
            x_BLD = block(x_BLD, positions, mask, memory_BMD, memory_mask, cache)
        return self.final_norm(x_BLD)
