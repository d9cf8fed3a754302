"""Multi-head self-attention and cross-attention, with a key/value cache.

The kernel is the function that computes attention from queries, keys and values: `fused_kernel` by default.
`inspection.capture` installs a recording kernel for one forward pass, and decoding on a CPU installs a faster
one. So the attention modules need no flags for either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from glassformer.blocks import reference
from glassformer.blocks.feed_forward import linear
from glassformer.blocks.masks import EVERYTHING, Mask
from glassformer.blocks.positions import Position
from glassformer.core.errors import ErrorDetail

Kernel = Callable[[Tensor, Tensor, Tensor, Mask, Tensor | None, float], Tensor]


def fused_kernel(
    q_BHLK: Tensor, k_BHMK: Tensor, v_BHMK: Tensor, mask: Mask, bias: Tensor | None, dropout: float
) -> Tensor:
    """Compute attention with PyTorch's fused kernel.

    If the mask is only causal, it is passed as the flag `is_causal`, which needs no mask tensor.
    """
    queries, keys = q_BHLK.shape[2], k_BHMK.shape[2]
    if bias is None and mask.is_causal and mask.allowed is None and queries == keys:
        return F.scaled_dot_product_attention(q_BHLK, k_BHMK, v_BHMK, is_causal=True, dropout_p=dropout)
    allowed = mask.dense(queries, keys, q_BHLK.device)
    if bias is None:
        return F.scaled_dot_product_attention(q_BHLK, k_BHMK, v_BHMK, allowed, dropout)
    added = bias if allowed is None else bias.masked_fill(~allowed, -torch.inf)
    return F.scaled_dot_product_attention(q_BHLK, k_BHMK, v_BHMK, added.to(q_BHLK.dtype), dropout)


DROP_IN_KERNELS: set[Kernel] = {fused_kernel}
"""Kernels that compute plain attention for any number of queries. Other kernels may expect a single query."""

MAX_SCORES, BLOCK_SCORES = 1 << 21, 1 << 19
"""Largest number of queries × keys for which a bias or a causal mask with padding is computed at once.

Above it, blocks of queries with at most `BLOCK_SCORES` take turns.
"""


def explicit_scores(q_BHLK: Tensor, k_BHMK: Tensor, bias: Tensor | None) -> Tensor:
    """Return the attention scores q·kᵀ / √K plus the bias (B, H, L, M), before mask and softmax."""
    scores_BHLM = torch.matmul(q_BHLK, k_BHMK.transpose(-2, -1)) / math.sqrt(q_BHLK.shape[-1])
    return scores_BHLM if bias is None else scores_BHLM + bias


def explicit_weights(q_BHLK: Tensor, k_BHMK: Tensor, mask: Mask, bias: Tensor | None) -> Tensor:
    """Return the attention weights (B, H, L, M), which the fused kernel does not return."""
    allowed = mask.dense(q_BHLK.shape[2], k_BHMK.shape[2], q_BHLK.device)
    return reference.weights(explicit_scores(q_BHLK, k_BHMK, bias), allowed)


@dataclass(frozen=True)
class PositionContext:
    """Positional encoding for one attention call, with the positions of the queries and of the keys."""

    position: Position
    query_positions_BL: Tensor
    key_positions_BM: Tensor

    @classmethod
    def arange(cls, position: Position, x_BLD: Tensor, start: int = 0) -> PositionContext:
        """Build a context in which query positions count from `start` and key positions count from 0."""
        positions_1M = torch.arange(start + x_BLD.shape[1], device=x_BLD.device)[None]
        return cls(position, positions_1M[:, start:], positions_1M)

    def bias(self, q_BHLK: Tensor, queries: slice, keys: int) -> Tensor | None:
        """Return the score bias of these queries for the first `keys` keys."""
        return self.position.score_bias(
            q_BHLK, self.query_positions_BL[:, queries], self.key_positions_BM[:, :keys]
        )


def select_rows(x_BHMK: Tensor, rows: Tensor, length: int) -> Tensor:
    """Return these batch rows of a cache, in this order. If few rows move, the cache is changed in place."""
    if len(rows) <= len(x_BHMK):
        moved = (rows != torch.arange(len(rows), device=rows.device)).nonzero().squeeze(1)
        if 2 * len(moved) <= len(rows):
            x_BHMK[moved, :, :length] = x_BHMK[rows[moved], :, :length]
            return x_BHMK[: len(rows)]
    new = x_BHMK.new_empty(len(rows), *x_BHMK.shape[1:])
    new[:, :, :length] = x_BHMK[rows, :, :length]
    return new


def _stack_rows(first_BHMK: Tensor, second_BHMK: Tensor, length: int) -> Tensor:
    """Return the rows of both tensors, padded with zeros to `length`, with room for as many more tokens."""
    rows = len(first_BHMK)
    new = first_BHMK.new_zeros(rows + len(second_BHMK), first_BHMK.shape[1], 2 * length, first_BHMK.shape[3])
    new[:rows, :, : first_BHMK.shape[2]] = first_BHMK
    new[rows:, :, : second_BHMK.shape[2]] = second_BHMK
    return new


class LayerCache:
    """Key/value cache of one attention module, in a buffer that grows.

    attention(x, mask=Mask(is_causal=True), cache=cache)   # appends the keys and values of x
    """

    def __init__(self) -> None:
        self.length = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def extend(self, k_BHLK: Tensor, v_BHLK: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values, and return all keys and values so far."""
        end = self.length + k_BHLK.shape[2]
        if self._keys is None or self._values is None or end > self._keys.shape[2]:
            capacity = 2 * end if self.length else end  # the first call may be the only one
            self._keys = self._grown(self._keys, k_BHLK, capacity)
            self._values = self._grown(self._values, v_BHLK, capacity)
        self._keys[:, :, self.length : end] = k_BHLK
        self._values[:, :, self.length : end] = v_BHLK
        self.length = end
        return self.get()

    def fill(self, rows: Tensor, k_BHLK: Tensor, v_BHLK: Tensor, *, batch: int, length: int) -> None:
        """Set the first L keys and values of these batch rows. All other entries are zero."""
        if self._keys is None or self._values is None:
            _, heads, _, width = k_BHLK.shape
            self._keys = k_BHLK.new_zeros(batch, heads, length, width)
            self._values = torch.zeros_like(self._keys)
            self.length = length
        self._keys[rows, :, : k_BHLK.shape[2]] = k_BHLK
        self._values[rows, :, : v_BHLK.shape[2]] = v_BHLK

    def get(self) -> tuple[Tensor, Tensor]:
        """Return all keys and values so far."""
        assert self._keys is not None and self._values is not None
        return self._keys[:, :, : self.length], self._values[:, :, : self.length]

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order."""
        if self._keys is not None and self._values is not None:
            self._keys = select_rows(self._keys, rows, self.length)
            self._values = select_rows(self._values, rows, self.length)

    def pick(self, index_BM: Tensor) -> None:
        """Keep these positions of each row, in this order."""
        if self._keys is not None and self._values is not None:
            heads, width = self._keys.shape[1], self._keys.shape[3]
            index_BHMK = index_BM[:, None, :, None].expand(-1, heads, -1, width)
            self._keys, self._values = (x_BHMK.gather(2, index_BHMK) for x_BHMK in self.get())
            self.length = index_BM.shape[1]

    def join(self, other: LayerCache) -> None:
        """Append the rows of another cache. The shorter rows are padded with zeros on the right."""
        if other._keys is None or other._values is None:
            return
        if self._keys is None or self._values is None:
            self._keys, self._values, self.length = other._keys, other._values, other.length
            return
        length = max(self.length, other.length)
        pairs = zip(self.get(), other.get(), strict=True)
        self._keys, self._values = (_stack_rows(own, more, length) for own, more in pairs)
        self.length = length

    def _grown(self, old: Tensor | None, like: Tensor, capacity: int) -> Tensor:
        """Copy the cached tensor into a new, larger buffer and return the buffer."""
        batch, heads, _, width = like.shape
        new = like.new_empty(batch, heads, capacity, width)
        if old is not None:
            new[:, :, : self.length] = old[:, :, : self.length]
        return new


def check_heads(hidden_dim: int, num_heads: int, num_key_value_heads: int | None) -> None:
    """Raise an ErrorDetail unless num_heads divides hidden_dim and num_key_value_heads divides num_heads."""
    if num_heads < 1 or hidden_dim % num_heads:
        divisors = [str(n) for n in range(1, min(hidden_dim, 64) + 1) if hidden_dim % n == 0]
        raise ErrorDetail(
            f"{num_heads} heads do not divide hidden_dim {hidden_dim}",
            path="num_heads",
            value=num_heads,
            allowed=divisors,
        )
    if num_key_value_heads is not None and (num_key_value_heads < 1 or num_heads % num_key_value_heads):
        raise ErrorDetail(
            f"{num_key_value_heads} key/value heads do not divide num_heads {num_heads}",
            path="num_key_value_heads",
            value=num_key_value_heads,
            hint="num_key_value_heads=1",
        )


def check_width(x_BLD: Tensor, hidden_dim: int, path: str) -> None:
    """Raise an ErrorDetail unless the tensor has the shape (batch, length, hidden_dim)."""
    if x_BLD.ndim != 3 or x_BLD.shape[-1] != hidden_dim:
        raise ErrorDetail(
            f"expected a tensor of shape (batch, length, {hidden_dim})",
            path=path,
            value=tuple(x_BLD.shape),
            hint=f"build the block for the width of its input, or project the input to width {hidden_dim}",
        )


class BlockedAttention(torch.autograd.Function):
    """Autograd function that calls `attend(q, k, v, block)` for one block of queries after another.

    It saves its inputs alone. The backward pass computes each block again, with the same random numbers. All
    results are allocated before the first block, because memory of the same size is then free for each block.
    """

    @staticmethod
    def forward(
        ctx: Any,
        attend: Callable[[Tensor, Tensor, Tensor, slice], Tensor],
        is_causal: bool,
        has_draws: bool,
        q_BHLK: Tensor,
        k_BHMK: Tensor,
        v_BHMK: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        ctx.attend, ctx.is_causal = attend, is_causal
        ctx.random_state = _random_state(q_BHLK.device) if has_draws else None
        ctx.autocast = _autocast(q_BHLK.device.type)
        ctx.save_for_backward(q_BHLK, k_BHMK, v_BHMK, *parameters)
        mixed_BHLK = torch.empty_like(q_BHLK)
        for block, visible in query_blocks(q_BHLK.shape[2], k_BHMK.shape[2], is_causal):
            mixed_BHLK[:, :, block] = attend(
                q_BHLK[:, :, block], k_BHMK[:, :, :visible], v_BHMK[:, :, :visible], block
            )
        return mixed_BHLK

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_BHLK: Tensor) -> tuple[Tensor | None, ...]:
        q_BHLK, k_BHMK, v_BHMK, *parameters = ctx.saved_tensors
        gradients = [torch.zeros_like(tensor) for tensor in (q_BHLK, k_BHMK, v_BHMK)]
        weights = {parameter: torch.zeros_like(parameter) for parameter in parameters}
        used: set[Tensor] = set()
        with torch.enable_grad(), ctx.autocast, _drawing_again(ctx.random_state, q_BHLK.device):
            for block, visible in query_blocks(q_BHLK.shape[2], k_BHMK.shape[2], ctx.is_causal):
                parts = [q_BHLK[:, :, block], k_BHMK[:, :, :visible], v_BHMK[:, :, :visible]]
                parts = [part.detach().requires_grad_() for part in parts]
                found = torch.autograd.grad(
                    ctx.attend(*parts, block),
                    [*parts, *parameters],
                    gradient_BHLK[:, :, block],
                    allow_unused=True,
                )
                sums = [gradients[0][:, :, block], *(g[:, :, :visible] for g in gradients[1:])]
                for total, part in zip([*sums, *weights.values()], found, strict=True):
                    if part is not None:
                        total += part
                used.update(p for p, part in zip(parameters, found[3:], strict=True) if part is not None)
        return (None, None, None, *gradients, *(g if p in used else None for p, g in weights.items()))


def query_blocks(queries: int, keys: int, is_causal: bool) -> Iterator[tuple[slice, int]]:
    """Yield blocks of queries, each with the number of keys from the first one that the block needs."""
    size = max(1, BLOCK_SCORES // keys)
    eighth = -(-keys // 8)  # few different sizes, because those of growing tensors would fragment the memory
    for start in range(0, queries, size):
        block = slice(start, min(start + size, queries))
        last = keys - queries + block.stop if is_causal else keys
        yield block, min(keys, -(-last // eighth) * eighth)


def _autocast(device: str) -> AbstractContextManager[Any]:
    """Return a context with the autocast of this moment, which a backward pass does not have by itself."""
    if device in ("cpu", "cuda", "mps") and torch.is_autocast_enabled(device):
        return torch.autocast(device, torch.get_autocast_dtype(device))
    return nullcontext()


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


@contextmanager
def _drawing_again(state: Tensor | None, device: torch.device) -> Iterator[None]:
    """Draw random numbers from this state inside a `with` block; None: no numbers are drawn."""
    if state is None:
        yield
        return
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        if device.type == "cuda":
            torch.cuda.set_rng_state(state, device)
        else:
            torch.set_rng_state(state)
        yield


class MultiHeadAttention(nn.Module):
    """Base class of self-attention and cross-attention: heads, kernel and output projection.

    gf.nn.SelfAttention(64, num_heads=4)      # query, key and value from one sequence
    gf.nn.CrossAttention(64, num_heads=4)     # query from one sequence, key and value from another
    """

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
        check_heads(hidden_dim, num_heads, num_key_value_heads)
        self.hidden_dim = hidden_dim
        self.num_heads = num_heads
        self.num_key_value_heads = num_key_value_heads or num_heads
        self.head_dim = hidden_dim // num_heads
        self.query_dim = num_heads * self.head_dim
        self.key_value_dim = self.num_key_value_heads * self.head_dim
        self.dropout = dropout
        self.output = linear(self.query_dim, hidden_dim, bias)
        self.kernel = fused_kernel

    def _split(self, x: Tensor, heads: int) -> Tensor:
        """Split the last axis into heads: (B, L, H × K) to (B, H, L, K)."""
        return x.unflatten(-1, (heads, self.head_dim)).transpose(1, 2)

    def _attend(
        self,
        q_BHLK: Tensor,
        k_BHMK: Tensor,
        v_BHMK: Tensor,
        mask: Mask,
        positions: PositionContext | None = None,
    ) -> Tensor:
        """Apply the kernel, then the output projection. Shared key/value heads are repeated first."""
        if not isinstance(mask, Mask):
            raise ErrorDetail(
                f"expected a gf.nn.Mask, not a value of type {type(mask).__name__}",
                path="mask",
                hint="padding: gf.nn.Mask.of(attention_mask=mask), with True at real tokens;"
                " causal: gf.nn.Mask(is_causal=True)",
            )
        groups = self.num_heads // self.num_key_value_heads
        if groups > 1:
            k_BHMK = k_BHMK.repeat_interleave(groups, dim=1)
            v_BHMK = v_BHMK.repeat_interleave(groups, dim=1)
        dropout = self.dropout if self.training else 0.0
        queries, keys = q_BHLK.shape[2], k_BHMK.shape[2]
        has_bias = positions is not None and type(positions.position).score_bias is not Position.score_bias
        # A fused kernel needs no tensor of all scores, unless it also has one of these to apply.
        needs_scores = has_bias or dropout > 0 or (mask.is_causal and mask.allowed is not None)
        if needs_scores and self.kernel in DROP_IN_KERNELS and queries * keys > MAX_SCORES:
            mixed_BHLK = self._attend_in_blocks(q_BHLK, k_BHMK, v_BHMK, mask, positions, dropout)
        else:
            bias = None if positions is None else positions.bias(q_BHLK, slice(None), keys)
            mixed_BHLK = self.kernel(q_BHLK, k_BHMK, v_BHMK, mask, bias, dropout)
        return self.output(mixed_BHLK.transpose(1, 2).flatten(2))

    def _attend_in_blocks(
        self,
        q_BHLK: Tensor,
        k_BHMK: Tensor,
        v_BHMK: Tensor,
        mask: Mask,
        positions: PositionContext | None,
        dropout: float,
    ) -> Tensor:
        """Apply the kernel to one block of queries after another, so that no tensor has all scores."""
        before = k_BHMK.shape[2] - q_BHLK.shape[2]

        def attend(q_BHLK: Tensor, k_BHMK: Tensor, v_BHMK: Tensor, block: slice) -> Tensor:
            visible = k_BHMK.shape[2]
            bias = None if positions is None else positions.bias(q_BHLK, block, visible)
            block_mask = mask.of_block(block, visible, before, q_BHLK.device)
            return self.kernel(q_BHLK, k_BHMK, v_BHMK, block_mask, bias, dropout)

        trained = [] if positions is None else [p for p in positions.position.parameters() if p.requires_grad]
        return BlockedAttention.apply(attend, mask.is_causal, dropout > 0, q_BHLK, k_BHMK, v_BHMK, *trained)


def stacked_linear(inputs: int, parts: list[int], bias: bool) -> nn.Linear:
    """Build one linear layer for several projections. Each projection has its own Xavier initialisation."""
    layer = linear(inputs, sum(parts), bias)
    for part in layer.weight.split(parts):
        nn.init.xavier_uniform_(part)
    return layer


class SelfAttention(MultiHeadAttention):
    """Multi-head attention of a sequence to itself.

    y = gf.nn.SelfAttention(64, num_heads=4)(x)                                     # x and y: (B, L, 64)
    y = gf.nn.SelfAttention(64, 4, position=gf.nn.Rotary(16))(x, mask=gf.nn.Mask(is_causal=True))

    The layers of a model share one positional encoding, which each call receives as `positions`. Without
    `positions`, the module uses its own `position` and numbers tokens from 0, or from the end of the cache.
    """

    def __init__(
        self,
        hidden_dim: int,
        num_heads: int,
        num_key_value_heads: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        position: Position | None = None,
    ) -> None:
        super().__init__(hidden_dim, num_heads, num_key_value_heads, bias, dropout)
        self.parts = [self.query_dim, self.key_value_dim, self.key_value_dim]
        self.query_key_value = stacked_linear(hidden_dim, self.parts, bias)
        if position is not None:
            position.check(hidden_dim, num_heads)
        self.position = position

    def forward(
        self,
        x_BLD: Tensor,
        positions: PositionContext | None = None,
        mask: Mask = EVERYTHING,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """Attend from each vector to all vectors that the mask allows, including cached ones."""
        if positions is None:
            check_width(x_BLD, self.hidden_dim, "SelfAttention")
            start = 0 if cache is None else cache.length
            positions = PositionContext.arange(self.position or Position(), x_BLD, start)
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
        return self._attend(q_BHLK, k_BHMK, v_BHMK, mask, positions)


class CrossAttention(MultiHeadAttention):
    """Multi-head attention from the decoder to the encoder's output. It does not use positions.

    y = gf.nn.CrossAttention(64, num_heads=4)(x, memory)     # x: (B, L, 64), memory: (B, M, 64)
    """

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
        """Return the keys and values (B, H, M, K) of the encoder's output. Decoding caches them."""
        k_BMD, v_BMD = self.key_value(memory_BMD).chunk(2, dim=-1)
        return self._split(k_BMD, self.num_key_value_heads), self._split(v_BMD, self.num_key_value_heads)

    def forward(self, x_BLD: Tensor, memory: Tensor | LayerCache, mask: Mask = EVERYTHING) -> Tensor:
        """Attend from each vector to `memory`: the encoder's output (B, M, D), or its cached projections."""
        q_BHLK = self._split(self.query(x_BLD), self.num_heads)
        k_BHMK, v_BHMK = memory.get() if isinstance(memory, LayerCache) else self.keys_and_values(memory)
        return self._attend(q_BHLK, k_BHMK, v_BHMK, mask)
