"""How the next token is chosen: greedy, sampling, beam.

A strategy sees the branches of each row, their sums of log-probabilities so far and the scores of every next
token, and proposes candidates. What becomes of these (ended, kept, dropped) is up to `search.py`.

Axes: B rows, W branches of a row, C candidates of a row, K likeliest tokens, T steps, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from glassformer.core.errors import ErrorDetail
from glassformer.core.registry import Kind, register
from glassformer.data.batching import generator


@dataclass(frozen=True)
class Scores:
    """What the model says to each next token: its logit, less the branch's total, is a log-probability."""

    logits_BWV: Tensor
    totals_BW1: Tensor
    """The logarithm of the sum of all probabilities, in double precision."""

    def top(self, count: int) -> tuple[Tensor, Tensor]:
        """The largest log-probabilities of each branch, falling, and their tokens."""
        best_BWK, token_BWK = top(self.logits_BWV, min(count, self.logits_BWV.shape[-1]))
        return best_BWK - self.totals_BW1, token_BWK


class Chooser:
    """A strategy at work on one batch. This one has one branch a row, and scores by the sum."""

    size: int = 1
    """How many branches of a row go on at most, and how many hypotheses are enough."""
    n_best: int = 1
    """How many hypotheses a row answers with."""
    takes_likeliest: bool = False
    """Whether it always takes the likeliest token, whatever the others are."""

    def choose(self, sums_BW: Tensor, scores: Scores, rows_B: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Branches (B, C) and the tokens (B, C) after them, best first, none of them twice."""
        raise NotImplementedError

    def score(self, sums: Tensor, lengths: Tensor | float) -> Tensor:
        """What hypotheses are ranked by. Of two with the same sum the longer must not score less."""
        return sums


class DecodingConfig(Kind):
    """How the next token is chosen."""

    def build(self, row_numbers: Sequence[int], max_length: int) -> Chooser:
        """For a batch of these rows, none of which takes more than `max_length` steps."""
        raise NotImplementedError


def first_largest(values: Tensor) -> Tensor:
    """The place of the largest value of the last axis; of equals the first."""
    if values.device.type != "cpu":
        return values.argmax(-1)
    # Several times as fast as PyTorch's own; of all rows at once NumPy would make a copy first.
    places = [row.argmax() for row in values.flatten(0, -2).numpy()]
    return torch.tensor(places).view(values.shape[:-1])


def top(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest values of the last axis, falling, and their places; of equals the first, unlike `topk`."""
    if count >= values.shape[-1]:
        best, places = values.sort(dim=-1, descending=True, stable=True)
        return best, places
    best, places = _largest(values, count + 1)
    places, order = places.sort(dim=-1)
    best, order = best.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    places = places.gather(-1, order)
    # Where the last one taken and the first one left are equal, others left may stand before them.
    is_open = (best[..., -2] == best[..., -1]) & best[..., -1].isfinite()
    if bool(is_open.any()):
        places[is_open] = values[is_open].sort(dim=-1, descending=True, stable=True).indices[:, : count + 1]
    return best[..., :count], places[..., :count]


BLOCKS = 16
"""Into so many parts of a row the largest values are looked for side by side."""


def _largest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """As `topk`. Of a long row, cut into blocks, only columns whose largest value is large are looked at."""
    width = values.shape[-1] // BLOCKS
    if width < 4 * count:
        best, places = values.topk(count)
        return best, places
    blocks = values[..., : BLOCKS * width].unflatten(-1, (BLOCKS, width))
    columns = blocks.amax(-2).topk(count).indices
    starts = torch.arange(0, BLOCKS * width, width, device=values.device)[:, None]
    rest = torch.arange(BLOCKS * width, values.shape[-1], device=values.device)
    places = torch.cat(
        [(columns[..., None, :] + starts).flatten(-2), rest.expand(*columns.shape[:-1], -1)], dim=-1
    )
    best, order = values.gather(-1, places).topk(count)
    return best, places.gather(-1, order)


class Greedy(Chooser):
    takes_likeliest = True

    def choose(self, sums_BW: Tensor, scores: Scores, rows_B: Tensor, step: int) -> tuple[Tensor, Tensor]:
        token_B1 = first_largest(scores.logits_BWV)
        return torch.zeros_like(token_B1), token_B1


@register
class GreedyConfig(DecodingConfig):
    """Always the likeliest token; of equals the one with the lowest number."""

    kind: Literal["greedy"] = "greedy"

    def build(self, row_numbers: Sequence[int], max_length: int) -> Chooser:
        return Greedy()


class Sample(Chooser):
    """Inverts the cumulative distribution at one uniform number per row and step, drawn beforehand."""

    def __init__(
        self, temperature: float, top_k: int | None, top_p: float | None, uniform_BT: Tensor
    ) -> None:
        self.temperature = temperature
        self.top_k = top_k
        self.top_p = top_p
        self.uniform_BT = uniform_BT

    def choose(self, sums_BW: Tensor, scores: Scores, rows_B: Tensor, step: int) -> tuple[Tensor, Tensor]:
        cumulative_BV = self.weights(scores.logits_BWV[:, 0]).cumsum(-1, dtype=torch.float64)
        uniform_B1 = self.uniform_BT[rows_B.cpu(), step, None].to(cumulative_BV.device)
        # At most 1 − 2⁻⁵³, so that the product stays below the total, even when rounded.
        drawn_B1 = uniform_B1 * cumulative_BV[:, -1:]
        token_B1 = torch.searchsorted(cumulative_BV, drawn_B1, right=True)
        return torch.zeros_like(token_B1), token_B1

    def weights(self, logits_BV: Tensor) -> Tensor:
        """What each token is drawn in proportion to: temperature, then top-k, then top-p of what is left."""
        logs_BV = (logits_BV - logits_BV.amax(-1, keepdim=True)) / self.temperature
        if self.top_k is not None:
            logs_BV = _only(logs_BV, *top(logs_BV, self.top_k))
        if self.top_p is not None:
            logs_BV = _only(logs_BV, *_nucleus(logs_BV, self.top_p))
        return logs_BV.exp()


def _only(logs_BV: Tensor, best_BK: Tensor, places_BK: Tensor) -> Tensor:
    return torch.full_like(logs_BV, -torch.inf).scatter(-1, places_BK, best_BK)


def _nucleus(logs_BV: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """The fewest likeliest tokens that have this share of the whole; the rest of what is returned is −∞."""
    share_B1 = share * logs_BV.exp().sum(-1, keepdim=True, dtype=torch.float64)
    # Sorting a whole vocabulary takes longer than a small model does, and a few tokens are mostly enough.
    best_BK, places_BK = top(logs_BV, 128)
    if bool((best_BK.exp().sum(-1, keepdim=True, dtype=torch.float64) < share_B1).any()):
        best_BK, places_BK = top(logs_BV, logs_BV.shape[-1])
    weights_BK = best_BK.exp()
    before_BK = weights_BK.cumsum(-1, dtype=torch.float64) - weights_BK
    return best_BK.masked_fill(before_BK >= share_B1, -torch.inf), places_BK


@register
class SampleConfig(DecodingConfig):
    """Drawn at random. What a row gets follows from the seed and its number, not from the rows beside it."""

    kind: Literal["sample"] = "sample"
    temperature: float = Field(
        1.0, ge=1e-3, description="below 1 favours the likely tokens, above 1 the unlikely"
    )
    top_k: int | None = Field(None, ge=1, description="only from this many likeliest tokens; none: from all")
    top_p: float | None = Field(
        None,
        gt=0,
        le=1,
        description="only from the fewest likeliest tokens with this probability; none: from all",
    )
    seed: int = Field(0, ge=0)

    def build(self, row_numbers: Sequence[int], max_length: int) -> Chooser:
        draws = [generator(self.seed, "sample", int(number)).random(max_length) for number in row_numbers]
        return Sample(self.temperature, self.top_k, self.top_p, torch.from_numpy(np.stack(draws)))


class Beam(Chooser):
    def __init__(self, size: int, n_best: int, length_penalty: float) -> None:
        self.size = size
        self.n_best = n_best
        self.length_penalty = length_penalty

    def choose(self, sums_BW: Tensor, scores: Scores, rows_B: Tensor, step: int) -> tuple[Tensor, Tensor]:
        # Of one branch at most `size` continuations and its end are ever needed; of all branches together
        # at most `size` continuations and as many ends.
        best_BWK, token_BWK = scores.top(self.size + 1)
        sums_BC = (sums_BW[..., None] + best_BWK).flatten(1)
        order_BC = sums_BC.argsort(dim=-1, descending=True, stable=True)[:, : 2 * self.size]
        return order_BC // best_BWK.shape[-1], token_BWK.flatten(1).gather(1, order_BC)

    def score(self, sums: Tensor, lengths: Tensor | float) -> Tensor:
        return sums / lengths**self.length_penalty


@register
class BeamConfig(DecodingConfig):
    """Several branches at once, of which the `size` with the largest sums go on.

    A branch that reaches the end while among the `size` best becomes a hypothesis, scored by
    sum / length**length_penalty, where the end counts as a token. A row is done when `size` hypotheses score
    no less than the best branch that goes on does now, or when no such branch can still be among the n best.
    Of branches with equal sums the one whose beginning was better comes first, then the one with the lower
    token number.
    """

    kind: Literal["beam"] = "beam"
    size: int = Field(4, ge=1, description="branches that go on at each step")
    length_penalty: float = Field(
        1.0,
        ge=0,
        description="the sum of log-probabilities is divided by length to this power; 0: not at all",
    )
    n_best: int = Field(1, ge=1, description="how many hypotheses a row answers with, at most size")

    @model_validator(mode="after")
    def _check_n_best(self) -> Self:
        if self.n_best > self.size:
            raise ErrorDetail(
                f"a beam of size {self.size} does not have {self.n_best} best",
                path="n_best",
                value=self.n_best,
                hint=f"n_best={self.size}, or a larger size",
            )
        return self

    def build(self, row_numbers: Sequence[int], max_length: int) -> Chooser:
        return Beam(self.size, self.n_best, self.length_penalty)
