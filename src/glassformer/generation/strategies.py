"""How the next token is chosen: greedy, sampling, beam.

A strategy sees the branches of each row, their sums of log-probabilities so far and the log-probabilities of
every next token, and proposes candidates. What becomes of these (ended, kept, dropped) is up to `search.py`.

Axes: B rows, W branches of a row, C candidates of a row, K likeliest tokens, T steps, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from glassformer.data.batching import generator
from glassformer.errors import Problem
from glassformer.registry import Kind, register


class Chooser:
    """A strategy at work on one batch. This one has one branch a row, and scores by the sum."""

    size: int = 1
    """How many branches of a row go on at most, and how many ended ones are enough."""
    n_best: int = 1
    """How many hypotheses a row answers with."""

    def choose(
        self, sums_BW: Tensor, log_probabilities_BWV: Tensor, rows_B: Tensor, step: int
    ) -> tuple[Tensor, Tensor]:
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


def top(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest values of the last axis and their places; of equals the first, unlike `topk`."""
    best, places = values.topk(min(count + 1, values.shape[-1]))
    if bool(((best[..., 1:] == best[..., :-1]) & best[..., 1:].isfinite()).any()):
        best, places = values.sort(dim=-1, descending=True, stable=True)
    return best[..., :count], places[..., :count]


class Greedy(Chooser):
    def choose(
        self, sums_BW: Tensor, log_probabilities_BWV: Tensor, rows_B: Tensor, step: int
    ) -> tuple[Tensor, Tensor]:
        token_B1 = log_probabilities_BWV.argmax(-1)  # of equals the first
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

    def choose(
        self, sums_BW: Tensor, log_probabilities_BWV: Tensor, rows_B: Tensor, step: int
    ) -> tuple[Tensor, Tensor]:
        cumulative_BV = self.weights(log_probabilities_BWV[:, 0]).cumsum(-1, dtype=torch.float64)
        total_B1 = cumulative_BV[:, -1:].contiguous()
        uniform_B1 = self.uniform_BT[rows_B.cpu(), step, None].to(total_B1.device)
        below_B1 = torch.nextafter(total_B1, torch.zeros_like(total_B1))  # the product may be rounded up
        drawn_B1 = torch.minimum(total_B1 * uniform_B1, below_B1)
        token_B1 = torch.searchsorted(cumulative_BV, drawn_B1, right=True)
        return torch.zeros_like(token_B1), token_B1

    def weights(self, log_probabilities_BV: Tensor) -> Tensor:
        """What each token is drawn in proportion to: temperature, then top-k, then top-p of what is left."""
        peak_B1 = log_probabilities_BV.amax(-1, keepdim=True)
        weights_BV = ((log_probabilities_BV - peak_B1) / self.temperature).exp()
        if self.top_k is None and self.top_p is None:
            return weights_BV
        vocabulary = weights_BV.shape[-1]
        best_BK, places_BK = top(weights_BV, min(self.top_k or vocabulary, vocabulary))
        if self.top_p is not None:
            upto_BK = best_BK.cumsum(-1, dtype=torch.float64)
            best_BK = best_BK.masked_fill(upto_BK - best_BK >= self.top_p * upto_BK[:, -1:], 0)
        return torch.zeros_like(weights_BV).scatter(-1, places_BK, best_BK)


@register
class SampleConfig(DecodingConfig):
    """Drawn at random. What a row gets follows from the seed and its number, not from the rows beside it."""

    kind: Literal["sample"] = "sample"
    temperature: float = Field(
        1.0, gt=0, description="below 1 favours the likely tokens, above 1 the unlikely"
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

    def choose(
        self, sums_BW: Tensor, log_probabilities_BWV: Tensor, rows_B: Tensor, step: int
    ) -> tuple[Tensor, Tensor]:
        # Of one branch at most `size` continuations and its end are ever needed; of all branches together
        # at most `size` continuations and as many ends.
        each = min(self.size + 1, log_probabilities_BWV.shape[-1])
        best_BWK, token_BWK = top(log_probabilities_BWV, each)
        sums_BC = (sums_BW[..., None] + best_BWK).flatten(1)
        order_BC = sums_BC.argsort(dim=-1, descending=True, stable=True)[:, : 2 * self.size]
        return order_BC // each, token_BWK.flatten(1).gather(1, order_BC)

    def score(self, sums: Tensor, lengths: Tensor | float) -> Tensor:
        return sums / lengths**self.length_penalty


@register
class BeamConfig(DecodingConfig):
    """Several branches at once, of which the `size` with the largest sums go on.

    A branch that reaches the end while among the `size` best becomes a hypothesis, scored by
    sum / length**length_penalty, where the end counts as a token. A row is done when `size` branches have
    ended, or when none that goes on can still be among the n best. Of branches with equal sums the one whose
    beginning was better comes first, then the one with the lower token number.
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
            raise Problem(
                f"a beam of size {self.size} does not have {self.n_best} best",
                place="n_best",
                value=self.n_best,
                remedy=f"n_best={self.size}, or a larger size",
            )
        return self

    def build(self, row_numbers: Sequence[int], max_length: int) -> Chooser:
        return Beam(self.size, self.n_best, self.length_penalty)
