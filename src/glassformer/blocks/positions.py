"""Positional encodings: sinusoidal, learned, relative, ALiBi and rotary.

A positional encoding overrides up to three methods, which do nothing by default: `embed` changes the
embedding, `rotate` changes queries and keys, and `score_bias` is added to the attention scores. The model
always calls all three. Positions are passed explicitly, as (1, L) or (B, L), so that caches and offsets need
no special case. One module serves all layers of a stack.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from glassformer.core.errors import ErrorDetail
from glassformer.core.registry import Kind, register

Sight = Literal["absolute", "distance", "nothing"]
"""Knowledge about positions: absolute positions, only distances between tokens, or nothing."""


class Position(nn.Module):
    """Base class of positional encodings. The base class itself encodes no positions.

    class Mine(gf.nn.Position):
        def score_bias(self, q_BHLK, query_positions_BL, key_positions_BM): ...
    """

    size: int | None = None
    """Value that the module was built for, of the dimension that `size_of` names. None: it fits any size."""
    size_of: Literal["hidden_dim", "head_dim", "num_heads"] = "hidden_dim"

    def check(self, hidden_dim: int, num_heads: int) -> None:
        """Raise an ErrorDetail if an attention module of this size cannot use this positional encoding."""
        name = type(self).__name__
        if type(self).embed is not Position.embed:
            raise ErrorDetail(
                f"{name} acts on the embedding, not on attention",
                path="position",
                hint=f"pass it to the embedding: gf.nn.Embedding(vectors, position=gf.nn.{name}(...))",
            )
        sizes = {"hidden_dim": hidden_dim, "head_dim": hidden_dim // num_heads, "num_heads": num_heads}
        if self.size is not None and self.size != sizes[self.size_of]:
            raise ErrorDetail(
                f"{name} was built for {self.size_of} {self.size}, this attention has {sizes[self.size_of]}",
                path="position",
                hint=f"build it with gf.nn.{name}({sizes[self.size_of]})",
            )

    def embed(self, x_BLD: Tensor, positions_BL: Tensor) -> Tensor:
        """Return the embeddings with position information added. By default, they are unchanged."""
        return x_BLD

    def rotate(self, x_BHLK: Tensor, positions_BL: Tensor) -> Tensor:
        """Return queries or keys rotated by their positions. By default, they are unchanged."""
        return x_BHLK

    def score_bias(
        self, q_BHLK: Tensor, query_positions_BL: Tensor, key_positions_BM: Tensor
    ) -> Tensor | None:
        """Return a bias for the attention scores that broadcasts to (B, H, L, M), or None for no bias."""
        return None


def can_read(tensor: Tensor) -> bool:
    """Return True if reading a value is cheap. The host would have to wait for another device."""
    return tensor.device.type in ("cpu", "mps")


class PositionConfig(Kind):
    """Base class of the configs of positional encodings."""

    sees: ClassVar[Sight] = "absolute"
    """Knowledge of one attention layer: where a token is, only how far two tokens are apart, or neither."""

    def check(self, head_dim: int) -> None:
        """Raise an ErrorDetail if attention heads of width `head_dim` cannot use this positional encoding."""

    def build(self, *, hidden_dim: int, num_heads: int, max_length: int, is_causal: bool) -> Position:
        """Build the positional encoding."""
        raise NotImplementedError

    def parameter_count(self, *, hidden_dim: int, num_heads: int, max_length: int) -> int:
        """Return the number of parameters of the positional encoding."""
        return 0


BASE = 10000.0
"""Base of the frequencies of sinusoidal and rotary encodings. The longest period is 2π × BASE positions."""
SHAW_MAX_DISTANCE = 16
T5_NUM_BUCKETS = 32
T5_MAX_DISTANCE = 128


@register
class NoPositionConfig(PositionConfig):
    """No positional encoding: the model sees a set of tokens, and their order only through a causal mask.

    Use it as a control, to measure how much a task depends on the order of tokens.
    """

    kind: Literal["none"] = "none"
    sees = "nothing"

    def build(self, *, hidden_dim: int, num_heads: int, max_length: int, is_causal: bool) -> Position:
        return Position()


class Sinusoidal(Position):
    """Sines and cosines of decreasing frequency, added to the embedding (Vaswani et al. 2017).

    x = gf.nn.Embedding(gf.nn.TokenEmbedding(256, 64), gf.nn.Sinusoidal(64))(tokens)

    `max_length` is the length of a precomputed table. For longer sequences, values are computed when needed.
    """

    table: Tensor

    def __init__(self, hidden_dim: int, base: float = BASE, max_length: int = 1024) -> None:
        super().__init__()
        self.hidden_dim = hidden_dim
        self.base = base
        self.register_buffer("table", self.encode(torch.arange(max_length)), persistent=False)

    def encode(self, positions: Tensor) -> Tensor:
        even = torch.arange(0, self.hidden_dim, 2, device=positions.device, dtype=torch.float64)
        angles = positions[..., None].double() * self.base ** (-even / self.hidden_dim)
        pairs = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)
        return pairs[..., : self.hidden_dim].float()

    def embed(self, x_BLD: Tensor, positions_BL: Tensor) -> Tensor:
        size = len(self.table)
        if x_BLD.shape[1] > size or not can_read(positions_BL) or int(positions_BL.max()) >= size:
            return x_BLD + self.encode(positions_BL).to(x_BLD.dtype)
        return x_BLD + self.table[positions_BL].to(x_BLD.dtype)


@register
class SinusoidalConfig(PositionConfig):
    """Sines and cosines of the position, of decreasing frequency, added to the embedding (Vaswani et al.
    2017).

    Use it as the default: the model sees absolute positions, at no cost in parameters. A small base
    suits short sequences.
    """

    kind: Literal["sinusoidal"] = "sinusoidal"
    base: float = Field(BASE, gt=1, description="the longest wavelength is 2π × base positions")

    def build(self, *, hidden_dim: int, num_heads: int, max_length: int, is_causal: bool) -> Position:
        return Sinusoidal(hidden_dim, self.base, max_length)


class Learned(Position):
    """Learned vector per position, added to the embedding. Sequences have at most `max_length` tokens.

    x = gf.nn.Embedding(gf.nn.TokenEmbedding(256, 64), gf.nn.Learned(64, max_length=512))(tokens)
    """

    def __init__(self, hidden_dim: int, max_length: int) -> None:
        super().__init__()
        self.table = nn.Embedding(max_length, hidden_dim)
        nn.init.normal_(self.table.weight, std=0.5)  # the scale of the scaled token embeddings

    def embed(self, x_BLD: Tensor, positions_BL: Tensor) -> Tensor:
        longest = self.table.num_embeddings
        needed = int(positions_BL.max()) + 1 if can_read(positions_BL) else x_BLD.shape[1]
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
    """Learned vector per position, added to the embedding, as in GPT-2 and BERT.

    Use it for absolute positions if all lengths are well represented in training. It cannot read a
    sequence that is longer than the model's maximum length.
    """

    kind: Literal["learned"] = "learned"

    def build(self, *, hidden_dim: int, num_heads: int, max_length: int, is_causal: bool) -> Position:
        return Learned(hidden_dim, max_length)

    def parameter_count(self, *, hidden_dim: int, num_heads: int, max_length: int) -> int:
        return max_length * hidden_dim


class SimplePosition(Position):
    """Weak baseline: position / max_length, added to the embedding along one fixed direction.

    x = gf.nn.Embedding(gf.nn.TokenEmbedding(256, 64), gf.nn.SimplePosition(64, max_length=512))(tokens)

    The direction has alternating signs, because a layer norm removes a constant added to all components.
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
    """One number, position / maximum length, added to the embedding along one fixed direction.

    Use it as a weak baseline: neighbouring positions are hard to tell apart in long sequences.
    """

    kind: Literal["simple"] = "simple"

    def build(self, *, hidden_dim: int, num_heads: int, max_length: int, is_causal: bool) -> Position:
        return SimplePosition(hidden_dim, max_length)


def distances(query_positions_BL: Tensor, key_positions_BM: Tensor) -> Tensor:
    """Return key position minus query position (B, L, M). It is negative for keys before the query."""
    return key_positions_BM[:, None, :] - query_positions_BL[:, :, None]


class ShawRelative(Position):
    """Relative positions of Shaw et al. (2018) for keys: the query times a learned vector per distance.

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
    """Relative positions of Shaw et al. (2018): a learned vector per distance between query and key,
    clipped to a maximum, changes the score.

    Use it for tasks that depend on nearby tokens. It sees only distances: a task that needs the
    absolute position, such as reversal, is learned badly with few layers.
    """

    kind: Literal["relative"] = "relative"
    sees = "distance"
    max_distance: int = Field(SHAW_MAX_DISTANCE, ge=1, description="distances are clipped to this value")

    def build(self, *, hidden_dim: int, num_heads: int, max_length: int, is_causal: bool) -> Position:
        return ShawRelative(hidden_dim // num_heads, self.max_distance)

    def parameter_count(self, *, hidden_dim: int, num_heads: int, max_length: int) -> int:
        return (2 * self.max_distance + 1) * (hidden_dim // num_heads)


class T5Relative(Position):
    """T5's relative positions (Raffel et al. 2020): a learned score bias per head and bucket of distances.

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
        """Return the bucket index of each distance. Buckets for longer distances are wider."""
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
    """T5's relative positions (Raffel et al. 2020): a learned score bias per head and range of distances,
    finer for short distances.

    Use it for text of varying length, where exact far distances do not matter. It sees only distances:
    reversal is learned badly.
    """

    kind: Literal["t5"] = "t5"
    sees = "distance"
    num_buckets: int = Field(T5_NUM_BUCKETS, ge=4, multiple_of=4, description="number of distance buckets")
    max_distance: int = Field(T5_MAX_DISTANCE, ge=2, description="larger distances share the last bucket")

    def check(self, head_dim: int) -> None:
        if self.max_distance <= self.num_buckets // 2:
            raise ErrorDetail(
                f"max_distance {self.max_distance} is not more than half of num_buckets {self.num_buckets}",
                path="max_distance",
                value=self.max_distance,
                hint=f"max_distance={self.num_buckets * 4}",
            )

    def build(self, *, hidden_dim: int, num_heads: int, max_length: int, is_causal: bool) -> Position:
        return T5Relative(num_heads, self.num_buckets, self.max_distance, is_causal)

    def parameter_count(self, *, hidden_dim: int, num_heads: int, max_length: int) -> int:
        return self.num_buckets * num_heads


class ALiBi(Position):
    """ALiBi (Press et al. 2022): a score penalty proportional to the distance, with a fixed slope per head.

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
        """Return the ALiBi slope of each head.

        The slopes are a geometric sequence if the number of heads is a power of 2. Otherwise, the heads
        beyond the largest power of 2 get slopes between those of the others.
        """
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
    """ALiBi (Press et al. 2022): a fixed penalty on each score, proportional to the distance between query
    and key.

    Use it for language models that read texts longer than those of training. It favours near tokens and
    sees only distances: reversal is learned badly.
    """

    kind: Literal["alibi"] = "alibi"
    sees = "distance"

    def build(self, *, hidden_dim: int, num_heads: int, max_length: int, is_causal: bool) -> Position:
        return ALiBi(num_heads)


class Rotary(Position):
    """Rotary encoding (RoPE, Su et al. 2021): queries and keys rotate by angles proportional to the position.

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
    """Raise an ErrorDetail if `head_dim` is odd, because rotary encoding rotates pairs of components."""
    if head_dim % 2:
        raise ErrorDetail(
            f"rotary positions rotate pairs of components, and head width {head_dim} is odd",
            path="kind",
            value="rotary",
            hint="choose hidden_dim and num_heads so that hidden_dim / num_heads is even",
        )


@register
class RotaryConfig(PositionConfig):
    """Rotary encoding (RoPE, Su et al. 2021): queries and keys rotate by angles proportional to their
    positions, so that a score depends on the distance between them.

    Use it for text, as our presets for text do. It sees only distances, so one layer cannot learn
    reversal, where the distance to the mirrored token differs for each token: it reaches about 60 % at
    length 16. Take sinusoidal or learned positions there, or more layers and heads.
    """

    kind: Literal["rotary"] = "rotary"
    sees = "distance"
    base: float = Field(BASE, gt=1, description="the slowest rotation takes 2π × base positions")

    def check(self, head_dim: int) -> None:
        _check_even(head_dim)

    def build(self, *, hidden_dim: int, num_heads: int, max_length: int, is_causal: bool) -> Position:
        return Rotary(hidden_dim // num_heads, self.base)
