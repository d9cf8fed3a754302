"""How a model knows where a token stands.

A position may act in up to three places, each with a neutral default: on the embedding (`embed`),
on queries and keys (`rotate`), on the scores (`score_bias`). Attention always calls all of them.
Positions come in explicitly, (1, L) or (B, L), so caches and offsets need no special case.
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
    """The neutral position: every method leaves the model as it is."""

    def embed(self, x_BLD: Tensor, positions_BL: Tensor) -> Tensor:
        return x_BLD

    def rotate(self, x_BHLK: Tensor, positions_BL: Tensor) -> Tensor:
        return x_BHLK

    def score_bias(
        self, q_BHLK: Tensor, query_positions_BL: Tensor, key_positions_BM: Tensor
    ) -> Tensor | None:
        """What is added to the scaled scores; it broadcasts to (B, H, L, M)."""
        return None


class PositionConfig(Kind):
    """How a model knows where a token stands."""

    def check(self, head_dim: int) -> None:
        """Raise a ErrorDetail if a head of this width cannot carry it."""

    def build(self, *, hidden_dim: int, num_heads: int, max_length: int, is_causal: bool) -> Position:
        raise NotImplementedError

    def parameter_count(self, *, hidden_dim: int, num_heads: int, max_length: int) -> int:
        return 0


@register
class NoPositionConfig(PositionConfig):
    kind: Literal["none"] = "none"

    def build(self, *, hidden_dim: int, num_heads: int, max_length: int, is_causal: bool) -> Position:
        return Position()


class Sinusoidal(Position):
    """Sines and cosines of falling frequency, added to the embedding (Vaswani et al. 2017)."""

    table: Tensor

    def __init__(self, hidden_dim: int, base: float, max_length: int) -> None:
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
    kind: Literal["sinusoidal"] = "sinusoidal"
    base: float = Field(10000.0, gt=1, description="the longest wave is 2π × base positions")

    def build(self, *, hidden_dim: int, num_heads: int, max_length: int, is_causal: bool) -> Position:
        return Sinusoidal(hidden_dim, self.base, max_length)


class Learned(Position):
    """A vector per position, learned; nothing beyond `max_length`."""

    def __init__(self, hidden_dim: int, max_length: int) -> None:
        super().__init__()
        self.table = nn.Embedding(max_length, hidden_dim)
        nn.init.normal_(self.table.weight, std=0.5)  # as loud as the scaled token vectors

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
    kind: Literal["learned"] = "learned"

    def build(self, *, hidden_dim: int, num_heads: int, max_length: int, is_causal: bool) -> Position:
        return Learned(hidden_dim, max_length)

    def parameter_count(self, *, hidden_dim: int, num_heads: int, max_length: int) -> int:
        return max_length * hidden_dim


class Simple(Position):
    """position ÷ maximum length, one number along one direction: a baseline that works badly.

    The signs take turns, because a layer norm would take a number that all components share out again.
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
class SimpleConfig(PositionConfig):
    kind: Literal["simple"] = "simple"

    def build(self, *, hidden_dim: int, num_heads: int, max_length: int, is_causal: bool) -> Position:
        return Simple(hidden_dim, max_length)


def distances(query_positions_BL: Tensor, key_positions_BM: Tensor) -> Tensor:
    """key position − query position, (B, L, M): negative for the past."""
    return key_positions_BM[:, None, :] - query_positions_BL[:, :, None]


class Relative(Position):
    """A learned vector per clipped distance, dotted with the query (Shaw et al. 2018, keys only)."""

    def __init__(self, head_dim: int, max_distance: int) -> None:
        super().__init__()
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
class RelativeConfig(PositionConfig):
    kind: Literal["relative"] = "relative"
    max_distance: int = Field(16, ge=1, description="distances beyond this one share a vector")

    def build(self, *, hidden_dim: int, num_heads: int, max_length: int, is_causal: bool) -> Position:
        return Relative(hidden_dim // num_heads, self.max_distance)

    def parameter_count(self, *, hidden_dim: int, num_heads: int, max_length: int) -> int:
        return (2 * self.max_distance + 1) * (hidden_dim // num_heads)


class Buckets(Position):
    """A learned bias per head and bucket of distance; far buckets are wider (T5, Raffel et al. 2020)."""

    def __init__(self, num_heads: int, num_buckets: int, max_distance: int, is_causal: bool) -> None:
        super().__init__()
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.is_causal = is_causal
        self.table = nn.Embedding(num_buckets, num_heads)
        nn.init.normal_(self.table.weight, std=0.02)

    def bucket(self, distances_BLM: Tensor) -> Tensor:
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
class BucketsConfig(PositionConfig):
    kind: Literal["t5"] = "t5"
    num_buckets: int = Field(32, ge=4, multiple_of=4)
    max_distance: int = Field(128, ge=2, description="from here on all distances share a bucket")

    def check(self, head_dim: int) -> None:
        if self.max_distance <= self.num_buckets // 2:
            raise ErrorDetail(
                "must be more than half of num_buckets",
                path="max_distance",
                value=self.max_distance,
                hint=f"max_distance={self.num_buckets * 4}",
            )

    def build(self, *, hidden_dim: int, num_heads: int, max_length: int, is_causal: bool) -> Position:
        return Buckets(num_heads, self.num_buckets, self.max_distance, is_causal)

    def parameter_count(self, *, hidden_dim: int, num_heads: int, max_length: int) -> int:
        return self.num_buckets * num_heads


class ALiBi(Position):
    """A penalty that grows with distance, with a slope per head (Press et al. 2022); both ways alike."""

    slopes_H: Tensor

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.register_buffer("slopes_H", torch.tensor(self._slopes(num_heads)), persistent=False)

    @staticmethod
    def _slopes(num_heads: int) -> list[float]:
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
    kind: Literal["alibi"] = "alibi"

    def build(self, *, hidden_dim: int, num_heads: int, max_length: int, is_causal: bool) -> Position:
        return ALiBi(num_heads)


class Rotary(Position):
    """Queries and keys turned by an angle that grows with the position (Su et al. 2021)."""

    frequencies: Tensor

    def __init__(self, head_dim: int, base: float) -> None:
        super().__init__()
        even = torch.arange(0, head_dim, 2, dtype=torch.float64)
        self.register_buffer("frequencies", (base ** (-even / head_dim)).float(), persistent=False)

    def rotate(self, x_BHLK: Tensor, positions_BL: Tensor) -> Tensor:
        angles_BL = positions_BL[:, None, :, None] * self.frequencies
        cosine, sine = angles_BL.cos().to(x_BHLK.dtype), angles_BL.sin().to(x_BHLK.dtype)
        first, second = x_BHLK.chunk(2, dim=-1)
        return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)


@register
class RotaryConfig(PositionConfig):
    kind: Literal["rotary"] = "rotary"
    base: float = Field(10000.0, gt=1, description="the slowest turn takes 2π × base positions")

    def check(self, head_dim: int) -> None:
        if head_dim % 2:
            raise ErrorDetail(
                f"rotary positions turn pairs, and a head of width {head_dim} has an odd one",
                path="kind",
                value="rotary",
                hint="choose hidden_dim / num_heads even",
            )

    def build(self, *, hidden_dim: int, num_heads: int, max_length: int, is_causal: bool) -> Position:
        return Rotary(hidden_dim // num_heads, self.base)
