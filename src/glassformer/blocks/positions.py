"""Positional encodings.

A position module implements up to three methods, each neutral by default: `embed` changes the embedding,
`rotate` changes queries and keys, and `score_bias` is added to the attention scores. The model always calls
all three. Positions are passed explicitly, as (1, L) or (B, L), so caches and offsets need no special case.
One module serves all layers of a stack.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from glassformer.core.errors import ErrorDetail
from glassformer.core.registry import Kind, register


class Position(nn.Module):
    """Base class of positional encodings; by itself it encodes no positions.

    class Mine(gf.nn.Position):
        def score_bias(self, q_BHLK, query_positions_BL, key_positions_BM): ...
    """

    size: int | None = None
    """Width (of the hidden vector or of a head) or number of heads that the module was built for."""
    size_of: Literal["hidden_dim", "head_dim", "num_heads"] = "hidden_dim"

    def check(self, hidden_dim: int, num_heads: int) -> None:
        """Raise an ErrorDetail if an attention of this size cannot use the module."""
        name = type(self).__name__
        if type(self).embed is not Position.embed:
            raise ErrorDetail(
                f"{name} acts on the embedding, not on attention",
                path="position",
                hint=f"gf.nn.Embedding(vectors, position=gf.nn.{name}(...))",
            )
        sizes = {"hidden_dim": hidden_dim, "head_dim": hidden_dim // num_heads, "num_heads": num_heads}
        if self.size is not None and self.size != sizes[self.size_of]:
            raise ErrorDetail(
                f"{name} was built for {self.size_of} {self.size}, this attention has {sizes[self.size_of]}",
                path="position",
                hint=f"gf.nn.{name}({sizes[self.size_of]})",
            )

    def embed(self, x_BLD: Tensor, positions_BL: Tensor) -> Tensor:
        """Add positions to the embedding."""
        return x_BLD

    def rotate(self, x_BHLK: Tensor, positions_BL: Tensor) -> Tensor:
        """Rotate queries or keys by their positions."""
        return x_BHLK

    def score_bias(
        self, q_BHLK: Tensor, query_positions_BL: Tensor, key_positions_BM: Tensor
    ) -> Tensor | None:
        """Bias of the scaled scores, which broadcasts to (B, H, L, M), or None."""
        return None


class PositionConfig(Kind):
    """Kind of positional encoding."""

    def check(self, head_dim: int) -> None:
        """Raise an ErrorDetail if heads of this width cannot use it."""

    def build(self, *, hidden_dim: int, num_heads: int, max_length: int, is_causal: bool) -> Position:
        """Build the module."""
        raise NotImplementedError

    def parameter_count(self, *, hidden_dim: int, num_heads: int, max_length: int) -> int:
        """Count the parameters."""
        return 0


BASE = 10000.0
"""Base of the frequencies of sinusoidal and rotary positions: the slowest has period 2π × BASE."""
SHAW_MAX_DISTANCE = 16
T5_NUM_BUCKETS = 32
T5_MAX_DISTANCE = 128


@register
class NoPositionConfig(PositionConfig):
    """No positions: the order of the tokens is invisible, but for a causal mask."""

    kind: Literal["none"] = "none"

    def build(self, *, hidden_dim: int, num_heads: int, max_length: int, is_causal: bool) -> Position:
        return Position()


class Sinusoidal(Position):
    """Sines and cosines of decreasing frequency, added to the embedding (Vaswani et al. 2017).

    x = gf.nn.Embedding(gf.nn.TokenEmbedding(256, 64), gf.nn.Sinusoidal(64))(tokens)

    `max_length` sizes a precomputed table. Longer sequences work too, and compute their values.
    """

    table: Tensor

    def __init__(self, hidden_dim: int, base: float = BASE, max_length: int = 1024) -> None:
        super().__init__()
        self.hidden_dim = hidden_dim
        self.base = base
        self.register_buffer("table", self._encode(torch.arange(max_length)), persistent=False)

    def _encode(self, positions: Tensor) -> Tensor:
        even = torch.arange(0, self.hidden_dim, 2, device=positions.device, dtype=torch.float64)
        angles = positions[..., None].double() * self.base ** (-even / self.hidden_dim)
        pairs = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)
        return pairs[..., : self.hidden_dim].float()

    def embed(self, x_BLD: Tensor, positions_BL: Tensor) -> Tensor:
        if x_BLD.shape[1] > len(self.table) or int(positions_BL.max()) >= len(self.table):
            return x_BLD + self._encode(positions_BL).to(x_BLD.dtype)
        return x_BLD + self.table[positions_BL].to(x_BLD.dtype)


@register
class SinusoidalConfig(PositionConfig):
    """Sines and cosines added to the embedding."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    base: float = Field(BASE, gt=1, description="the longest wave is 2π × base positions")

    def build(self, *, hidden_dim: int, num_heads: int, max_length: int, is_causal: bool) -> Position:
        return Sinusoidal(hidden_dim, self.base, max_length)


class Learned(Position):
    """Learned vector per position, added to the embedding. Sequences end at `max_length`.

    x = gf.nn.Embedding(gf.nn.TokenEmbedding(256, 64), gf.nn.Learned(64, max_length=512))(tokens)
    """

    def __init__(self, hidden_dim: int, max_length: int) -> None:
        super().__init__()
        self.table = nn.Embedding(max_length, hidden_dim)
        nn.init.normal_(self.table.weight, std=0.5)  # the scale of the scaled token embeddings

    def embed(self, x_BLD: Tensor, positions_BL: Tensor) -> Tensor:
        longest, needed = self.table.num_embeddings, int(positions_BL.max()) + 1
        if needed > longest:
            raise ErrorDetail(
                f"learned positions end at length {longest}, this sequence needs {needed}",
                path="model.position.kind",
                value="learned",
                hint="train with a longer maximum length, or use another position kind",
            )
        return x_BLD + self.table(positions_BL)


@register
class LearnedConfig(PositionConfig):
    """Learned vector per position."""

    kind: Literal["learned"] = "learned"

    def build(self, *, hidden_dim: int, num_heads: int, max_length: int, is_causal: bool) -> Position:
        return Learned(hidden_dim, max_length)

    def parameter_count(self, *, hidden_dim: int, num_heads: int, max_length: int) -> int:
        return max_length * hidden_dim


class SimplePosition(Position):
    """Position divided by the maximum length, added along one direction: a baseline that works badly.

    x = gf.nn.Embedding(gf.nn.TokenEmbedding(256, 64), gf.nn.SimplePosition(64, max_length=512))(tokens)

    The signs alternate, because a layer norm removes a number that is the same in all components.
    """

    signs_D: Tensor

    def __init__(self, hidden_dim: int, max_length: int) -> None:
        super().__init__()
        self.max_length = max_length
        signs_D = 1.0 - 2.0 * (torch.arange(hidden_dim) % 2)
        self.register_buffer("signs_D", signs_D, persistent=False)

    def embed(self, x_BLD: Tensor, positions_BL: Tensor) -> Tensor:
        return x_BLD + (positions_BL / self.max_length).to(x_BLD.dtype)[..., None] * self.signs_D


@register
class SimplePositionConfig(PositionConfig):
    """Position divided by the maximum length."""

    kind: Literal["simple"] = "simple"

    def build(self, *, hidden_dim: int, num_heads: int, max_length: int, is_causal: bool) -> Position:
        return SimplePosition(hidden_dim, max_length)


def distances(query_positions_BL: Tensor, key_positions_BM: Tensor) -> Tensor:
    """Key position minus query position (B, L, M): negative for the past."""
    return key_positions_BM[:, None, :] - query_positions_BL[:, :, None]


class ShawRelative(Position):
    """Learned vector per clipped distance, multiplied with the query (Shaw et al. 2018, keys only).

    y = gf.nn.SelfAttention(64, num_heads=4, position=gf.nn.ShawRelative(head_dim=16))(x)
    """

    size_of = "head_dim"

    def __init__(self, head_dim: int, max_distance: int = SHAW_MAX_DISTANCE) -> None:
        super().__init__()
        self.size = head_dim
        self.max_distance = max_distance
        self.table = nn.Embedding(2 * max_distance + 1, head_dim)
        nn.init.xavier_uniform_(self.table.weight)

    def score_bias(
        self, q_BHLK: Tensor, query_positions_BL: Tensor, key_positions_BM: Tensor
    ) -> Tensor | None:
        distances_BLM = distances(query_positions_BL, key_positions_BM)
        index_BLM = distances_BLM.clamp(-self.max_distance, self.max_distance) + self.max_distance
        by_distance_BHLC = q_BHLK @ self.table.weight.T / math.sqrt(q_BHLK.shape[-1])
        index_BHLM = index_BLM[:, None].expand(*by_distance_BHLC.shape[:3], -1)
        return by_distance_BHLC.gather(-1, index_BHLM)


@register
class ShawRelativeConfig(PositionConfig):
    """Learned vector per clipped distance."""

    kind: Literal["relative"] = "relative"
    max_distance: int = Field(SHAW_MAX_DISTANCE, ge=1, description="longer distances share a vector")

    def build(self, *, hidden_dim: int, num_heads: int, max_length: int, is_causal: bool) -> Position:
        return ShawRelative(hidden_dim // num_heads, self.max_distance)

    def parameter_count(self, *, hidden_dim: int, num_heads: int, max_length: int) -> int:
        return (2 * self.max_distance + 1) * (hidden_dim // num_heads)


class T5Relative(Position):
    """Learned bias per head and bucket of distances; far buckets are wider (T5, Raffel et al. 2020).

    y = gf.nn.SelfAttention(64, num_heads=4, position=gf.nn.T5Relative(num_heads=4))(x)
    """

    size_of = "num_heads"

    def __init__(
        self,
        num_heads: int,
        num_buckets: int = T5_NUM_BUCKETS,
        max_distance: int = T5_MAX_DISTANCE,
        is_causal: bool = False,
    ) -> None:
        super().__init__()
        self.size = num_heads
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.is_causal = is_causal
        self.table = nn.Embedding(num_buckets, num_heads)
        nn.init.normal_(self.table.weight, std=0.02)

    def bucket(self, distances_BLM: Tensor) -> Tensor:
        """Bucket number of each distance: one per short distance, then logarithmic ones."""
        buckets = self.num_buckets
        offset_BLM = torch.zeros_like(distances_BLM)
        if self.is_causal:
            far_BLM = (-distances_BLM).clamp(min=0)
        else:
            buckets //= 2
            offset_BLM = (distances_BLM > 0) * buckets
            far_BLM = distances_BLM.abs()
        exact = buckets // 2
        ratio_BLM = (far_BLM.clamp(min=exact).double() / exact).log() / math.log(self.max_distance / exact)
        wide_BLM = (exact + (ratio_BLM * (buckets - exact)).long()).clamp(max=buckets - 1)
        return offset_BLM + torch.where(far_BLM < exact, far_BLM, wide_BLM)

    def score_bias(
        self, q_BHLK: Tensor, query_positions_BL: Tensor, key_positions_BM: Tensor
    ) -> Tensor | None:
        bias_BLMH = self.table(self.bucket(distances(query_positions_BL, key_positions_BM)))
        return bias_BLMH.permute(0, 3, 1, 2)


@register
class T5RelativeConfig(PositionConfig):
    """Learned bias per head and bucket of distances."""

    kind: Literal["t5"] = "t5"
    num_buckets: int = Field(T5_NUM_BUCKETS, ge=4, multiple_of=4, description="number of buckets")
    max_distance: int = Field(T5_MAX_DISTANCE, ge=2, description="all distances from here on share a bucket")

    def check(self, head_dim: int) -> None:
        if self.max_distance <= self.num_buckets // 2:
            raise ErrorDetail(
                "must be more than half of num_buckets",
                path="max_distance",
                value=self.max_distance,
                hint=f"max_distance={self.num_buckets * 4}",
            )

    def build(self, *, hidden_dim: int, num_heads: int, max_length: int, is_causal: bool) -> Position:
        return T5Relative(num_heads, self.num_buckets, self.max_distance, is_causal)

    def parameter_count(self, *, hidden_dim: int, num_heads: int, max_length: int) -> int:
        return self.num_buckets * num_heads


class ALiBi(Position):
    """Penalty proportional to the distance, with one slope per head (Press et al. 2022).

    y = gf.nn.SelfAttention(64, num_heads=4, position=gf.nn.ALiBi(num_heads=4))(x)

    Past and future distances get the same penalty.
    """

    slopes_H: Tensor
    size_of = "num_heads"

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.size = num_heads
        self.register_buffer("slopes_H", torch.tensor(self._slopes(num_heads)), persistent=False)

    @staticmethod
    def _slopes(num_heads: int) -> list[float]:
        """Geometric slopes for a power of 2; further heads get slopes between them."""
        power = 2 ** int(math.log2(num_heads))
        slopes = [2 ** (-8 * (head + 1) / power) for head in range(power)]
        between = [2 ** (-4 * (2 * head + 1) / power) for head in range(num_heads - power)]
        return slopes + between

    def score_bias(
        self, q_BHLK: Tensor, query_positions_BL: Tensor, key_positions_BM: Tensor
    ) -> Tensor | None:
        distances_BLM = distances(query_positions_BL, key_positions_BM).abs()
        return -self.slopes_H[:, None, None].to(q_BHLK.dtype) * distances_BLM[:, None]


@register
class ALiBiConfig(PositionConfig):
    """Penalty proportional to the distance."""

    kind: Literal["alibi"] = "alibi"

    def build(self, *, hidden_dim: int, num_heads: int, max_length: int, is_causal: bool) -> Position:
        return ALiBi(num_heads)


class Rotary(Position):
    """Rotation of queries and keys by an angle proportional to the position (Su et al. 2021).

    y = gf.nn.SelfAttention(64, num_heads=4, position=gf.nn.Rotary(head_dim=16))(x)
    """

    frequencies: Tensor
    size_of = "head_dim"

    def __init__(self, head_dim: int, base: float = BASE) -> None:
        super().__init__()
        _check_even(head_dim)
        self.size = head_dim
        even = torch.arange(0, head_dim, 2, dtype=torch.float64)
        self.register_buffer("frequencies", (base ** (-even / head_dim)).float(), persistent=False)

    def rotate(self, x_BHLK: Tensor, positions_BL: Tensor) -> Tensor:
        angles_BL = positions_BL[:, None, :, None] * self.frequencies
        cosine, sine = angles_BL.cos().to(x_BHLK.dtype), angles_BL.sin().to(x_BHLK.dtype)
        first, second = x_BHLK.chunk(2, dim=-1)
        return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)


def _check_even(head_dim: int) -> None:
    """Raise an ErrorDetail if heads of this width do not consist of pairs."""
    if head_dim % 2:
        raise ErrorDetail(
            f"rotary positions rotate pairs of components, and head width {head_dim} is odd",
            path="kind",
            value="rotary",
            hint="choose hidden_dim / num_heads even",
        )


@register
class RotaryConfig(PositionConfig):
    """Rotation of queries and keys."""

    kind: Literal["rotary"] = "rotary"
    base: float = Field(BASE, gt=1, description="the slowest rotation takes 2π × base positions")

    def check(self, head_dim: int) -> None:
        _check_even(head_dim)

    def build(self, *, hidden_dim: int, num_heads: int, max_length: int, is_causal: bool) -> Position:
        return Rotary(hidden_dim // num_heads, self.base)
