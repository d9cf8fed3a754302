"""Encoder blocks, decoder blocks, and stacks of blocks.

A sublayer has a norm before or after it. The absent one is an Identity, so that pre-norm and post-norm run
the same code:

    x = after(x + dropout(sublayer(before(x))))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from torch import Tensor, nn

from glassformer.blocks.attention import (
    CrossAttention,
    LayerCache,
    MultiHeadAttention,
    PositionContext,
    SelfAttention,
    check_width,
)
from glassformer.blocks.dropout import Dropout
from glassformer.blocks.feed_forward import FeedForward
from glassformer.blocks.masks import CAUSAL, EVERYTHING, Mask
from glassformer.blocks.norms import LayerNorm
from glassformer.blocks.positions import Position
from glassformer.core.errors import ErrorDetail

NormPlacement = Literal["pre", "post"]
MakeNorm = Callable[[int], nn.Module]
"""Function that builds a norm of a given width: a class such as `RMSNorm`, or a config's `build`."""


class Residual(nn.Module):
    """Residual connection around a sublayer, with dropout, and with a norm before or after the sublayer."""

    def __init__(self, norm: nn.Module, norm_placement: NormPlacement, dropout: float) -> None:
        super().__init__()
        self.before = norm if norm_placement == "pre" else nn.Identity()
        self.after = norm if norm_placement == "post" else nn.Identity()
        self.dropout = Dropout(dropout)

    def forward(self, x_BLD: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Add the sublayer's output to its input."""
        return self.after(x_BLD + self.dropout(sublayer(self.before(x_BLD))))


class StochasticDepth(nn.Module):
    """Random skipping of a whole block, for each sequence, in training (Huang et al. 2016).

    The change that the block makes is scaled by 1 / (1 − p), so that all blocks run unscaled in evaluation.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.dropout = Dropout(probability)

    def forward(self, before_BLD: Tensor, after_BLD: Tensor) -> Tensor:
        """Return the block's input for skipped sequences, and its scaled output for the others."""
        if not self.training or not self.dropout.p:
            return after_BLD
        is_kept_B11 = self.dropout(after_BLD.new_ones(len(after_BLD), 1, 1))
        return before_BLD + is_kept_B11 * (after_BLD - before_BLD)


class BlockCache:
    """Key/value caches of one block: `own` for self-attention, `cross` for cross-attention."""

    def __init__(self) -> None:
        self.own = LayerCache()
        self.cross = LayerCache()

    def select(self, rows: Tensor) -> None:
        """Keep only the cached keys and values of these batch rows, in the order of `rows`."""
        self.own.select(rows)
        self.cross.select(rows)

    def join(self, other: BlockCache) -> None:
        """Append the batch rows of another block cache."""
        self.own.join(other.own)
        self.cross.join(other.cross)


def _check_parts(hidden_dim: int, num_heads: int | None, *attentions: MultiHeadAttention | None) -> None:
    """Raise an ErrorDetail unless exactly one is given: `num_heads`, or attentions of width `hidden_dim`."""
    for attention in attentions:
        if (num_heads is None) == (attention is None):
            raise ErrorDetail(
                "a block needs either num_heads or its attention modules",
                path="num_heads",
                value=num_heads,
                hint="pass num_heads: EncoderBlock(64, num_heads=4)",
            )
        if attention is not None and attention.hidden_dim != hidden_dim:
            raise ErrorDetail(
                f"the attention has width {attention.hidden_dim}, the block has width {hidden_dim}",
                path="attention",
                hint=f"build both with hidden_dim {hidden_dim}",
            )


class EncoderBlock(nn.Module):
    """Transformer encoder block: self-attention, then a feed-forward network.

    y = gf.nn.EncoderBlock(64, num_heads=4)(x)     # x and y: (B, L, 64)
    block = gf.nn.EncoderBlock(64, num_heads=4, norm=gf.nn.RMSNorm, position=gf.nn.Rotary(16),
                               feed_forward=gf.nn.SwiGLU(64, 256), dropout=0.1)

    Pass `num_heads` to let the block build its attention, or pass your own `attention`.
    """

    def __init__(
        self,
        hidden_dim: int,
        num_heads: int | None = None,
        *,
        attention: SelfAttention | None = None,
        feed_forward: nn.Module | None = None,
        norm: MakeNorm = LayerNorm,
        norm_placement: NormPlacement = "pre",
        dropout: float = 0.0,
        stochastic_depth: float = 0.0,
        position: Position | None = None,
    ) -> None:
        super().__init__()
        _check_parts(hidden_dim, num_heads, attention)
        self.attention = attention or SelfAttention(hidden_dim, num_heads or 1, position=position)
        self.feed_forward = FeedForward(hidden_dim, dropout=dropout) if feed_forward is None else feed_forward
        self.attention_residual = Residual(norm(hidden_dim), norm_placement, dropout)
        self.feed_forward_residual = Residual(norm(hidden_dim), norm_placement, dropout)
        self.stochastic_depth = StochasticDepth(stochastic_depth)

    def forward(
        self,
        x_BLD: Tensor,
        positions: PositionContext | None = None,
        mask: Mask = EVERYTHING,
        cache: BlockCache | None = None,
    ) -> Tensor:
        """Apply self-attention, then the feed-forward network. Return a tensor (B, L, D)."""
        if positions is None:
            check_width(x_BLD, self.attention.hidden_dim, "EncoderBlock")
        own = None if cache is None else cache.own
        y_BLD = self.attention_residual(x_BLD, lambda x: self.attention(x, positions, mask, own))
        return self.stochastic_depth(x_BLD, self.feed_forward_residual(y_BLD, self.feed_forward))


class DecoderBlock(nn.Module):
    """Transformer decoder block: causal self-attention, cross-attention, then a feed-forward network.

    y = gf.nn.DecoderBlock(64, num_heads=4)(x, memory)     # x: (B, L, 64), memory: (B, M, 64)

    Pass `num_heads` to let the block build both attention modules, or pass both of your own.
    """

    def __init__(
        self,
        hidden_dim: int,
        num_heads: int | None = None,
        *,
        attention: SelfAttention | None = None,
        cross_attention: CrossAttention | None = None,
        feed_forward: nn.Module | None = None,
        norm: MakeNorm = LayerNorm,
        norm_placement: NormPlacement = "pre",
        dropout: float = 0.0,
        stochastic_depth: float = 0.0,
        position: Position | None = None,
    ) -> None:
        super().__init__()
        _check_parts(hidden_dim, num_heads, attention, cross_attention)
        self.attention = attention or SelfAttention(hidden_dim, num_heads or 1, position=position)
        self.cross_attention = cross_attention or CrossAttention(hidden_dim, num_heads or 1)
        self.feed_forward = FeedForward(hidden_dim, dropout=dropout) if feed_forward is None else feed_forward
        self.attention_residual = Residual(norm(hidden_dim), norm_placement, dropout)
        self.cross_attention_residual = Residual(norm(hidden_dim), norm_placement, dropout)
        self.feed_forward_residual = Residual(norm(hidden_dim), norm_placement, dropout)
        self.stochastic_depth = StochasticDepth(stochastic_depth)

    def project_memory(self, memory_BMD: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cross-attention keys and values of the encoder's output, for the cache."""
        return self.cross_attention.keys_and_values(memory_BMD)

    def forward(
        self,
        x_BLD: Tensor,
        memory_BMD: Tensor | None = None,
        positions: PositionContext | None = None,
        mask: Mask = CAUSAL,
        memory_mask: Mask = EVERYTHING,
        cache: BlockCache | None = None,
    ) -> Tensor:
        """Apply self-attention, cross-attention and the feed-forward network. Return a tensor (B, L, D).

        `memory_BMD` is the encoder's output. If it is None, the cache must hold its keys and values, which
        `project_memory` returns.
        """
        if positions is None:
            check_width(x_BLD, self.attention.hidden_dim, "DecoderBlock")
        own = None if cache is None else cache.own
        memory = cache.cross if memory_BMD is None and cache is not None else memory_BMD
        if memory is None:
            raise ErrorDetail(
                "a decoder block needs the encoder's output",
                path="DecoderBlock",
                hint="call block(x, memory), or use an EncoderBlock with a causal mask",
            )
        y_BLD = self.attention_residual(x_BLD, lambda x: self.attention(x, positions, mask, own))
        y_BLD = self.cross_attention_residual(y_BLD, lambda x: self.cross_attention(x, memory, memory_mask))
        return self.stochastic_depth(x_BLD, self.feed_forward_residual(y_BLD, self.feed_forward))


class EncoderStack(nn.Module):
    """Encoder blocks one after another, and a norm after the last.

    stack = gf.nn.EncoderStack([gf.nn.EncoderBlock(64, num_heads=4) for _ in range(6)], gf.nn.LayerNorm(64))
    y = stack(x)     # x and y: (B, L, 64)
    """

    def __init__(self, blocks: Sequence[EncoderBlock], final_norm: nn.Module | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(blocks)
        self.final_norm = nn.Identity() if final_norm is None else final_norm

    def forward(
        self,
        x_BLD: Tensor,
        positions: PositionContext | None = None,
        mask: Mask = EVERYTHING,
        caches: Sequence[BlockCache] | None = None,
    ) -> Tensor:
        """Run all blocks and the final norm. `caches` has one cache per block."""
        for number, block in enumerate(self.layers):
            x_BLD = block(x_BLD, positions, mask, None if caches is None else caches[number])
        return self.final_norm(x_BLD)


class DecoderStack(nn.Module):
    """Decoder blocks one after another, and a norm after the last.

    stack = gf.nn.DecoderStack([gf.nn.DecoderBlock(64, num_heads=4) for _ in range(6)], gf.nn.LayerNorm(64))
    y = stack(x, memory)     # x: (B, L, 64), memory: (B, M, 64)
    """

    def __init__(self, blocks: Sequence[DecoderBlock], final_norm: nn.Module | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(blocks)
        self.final_norm = nn.Identity() if final_norm is None else final_norm

    def forward(
        self,
        x_BLD: Tensor,
        memory_BMD: Tensor | None = None,
        positions: PositionContext | None = None,
        mask: Mask = CAUSAL,
        memory_mask: Mask = EVERYTHING,
        caches: Sequence[BlockCache] | None = None,
    ) -> Tensor:
        """Run all blocks and the final norm. If `memory_BMD` is None, its keys and values must be cached."""
        for number, block in enumerate(self.layers):
            cache = None if caches is None else caches[number]
            x_BLD = block(x_BLD, memory_BMD, positions, mask, memory_mask, cache)
        return self.final_norm(x_BLD)
