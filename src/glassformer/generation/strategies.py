"""Decoding strategies: greedy, sampling, beam search.

A strategy sees the beams of each row, the sums of their log-probabilities and the scores of every next token,
and proposes candidates. `search.py` decides which candidates end, continue or are dropped.

Axes: B rows, W beams of a row, C candidates of a row, K most probable tokens, T steps, V vocabulary.
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
    """Logits of every next token of every beam, and the log-sum-exp of each beam's logits.

    A logit minus this log-sum-exp is a log-probability.
    """

    logits_BWV: Tensor
    totals_BW1: Tensor
    """Log-sum-exp of all logits of each beam, in double precision."""

    def top(self, count: int) -> tuple[Tensor, Tensor]:
        """Return the largest log-probabilities of each beam, in descending order, and their token ids."""
        best_BWK, token_BWK = top(self.logits_BWV, min(count, self.logits_BWV.shape[-1]))
        return best_BWK - self.totals_BW1, token_BWK


class Strategy:
    """Base class of decoding strategies for one batch. By default, a row has one beam."""

    size: int = 1
    """Maximum number of beams per row, and number of finished hypotheses that complete a row."""
    n_best: int = 1
    """Number of hypotheses returned per row."""
    is_greedy: bool = False
    """True if the strategy always takes the most probable token."""

    def choose(self, sums_BW: Tensor, scores: Scores, rows_B: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Return distinct candidates, best first: beams (B, C) to continue, and their next tokens (B, C)."""
        raise NotImplementedError

    def score(self, sums: Tensor, lengths: Tensor | float) -> Tensor:
        """Return the score that ranks hypotheses. Of equal sums, the longer one must not score less."""
        return sums


class DecodingConfig(Kind):
    """Base class of the configs of decoding strategies."""

    def build(self, row_numbers: Sequence[int], max_length: int) -> Strategy:
        """Build the strategy for a batch of rows, each of at most `max_length` steps."""
        raise NotImplementedError


def first_largest(values: Tensor) -> Tensor:
    """Return the index of the largest value along the last axis. On ties, return the first."""
    if values.device.type != "cpu":
        return values.argmax(-1)
    # NumPy is several times as fast as PyTorch here. Row by row, because for all rows it would copy them
    # first.
    indices = [row.argmax() for row in values.flatten(0, -2).numpy()]
    return torch.tensor(indices).view(values.shape[:-1])


def top(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest values along the last axis in descending order, and their indices.

    On ties the lower index comes first, which `topk` does not guarantee.
    """
    if count >= values.shape[-1]:
        best, indices = values.sort(dim=-1, descending=True, stable=True)
        return best, indices
    best, indices = _largest(values, count + 1)
    indices, order = indices.sort(dim=-1)
    best, order = best.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    indices = indices.gather(-1, order)
    # If the last value taken equals the first one left out, others left out may have lower indices.
    is_tied = (best[..., -2] == best[..., -1]) & best[..., -1].isfinite()
    if bool(is_tied.any()):
        indices[is_tied] = values[is_tied].sort(dim=-1, descending=True, stable=True).indices[:, : count + 1]
    return best[..., :count], indices[..., :count]


LEAST_TEMPERATURE = 1e-3
"""Smallest temperature of sampling. Below it, logits divided by it would overflow."""
BLOCKS = 16
"""Number of blocks that a long row is divided into to find its largest values."""


def _largest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the same values and indices as `topk`, faster for long rows.

    A long row is reshaped to a matrix of BLOCKS rows. Only the columns with the largest maxima are searched.
    """
    width = values.shape[-1] // BLOCKS
    if width < 4 * count:
        best, indices = values.topk(count)
        return best, indices
    blocks = values[..., : BLOCKS * width].unflatten(-1, (BLOCKS, width))
    columns = blocks.amax(-2).topk(count).indices
    starts = torch.arange(0, BLOCKS * width, width, device=values.device)[:, None]
    rest = torch.arange(BLOCKS * width, values.shape[-1], device=values.device)
    indices = torch.cat(
        [(columns[..., None, :] + starts).flatten(-2), rest.expand(*columns.shape[:-1], -1)], dim=-1
    )
    best, order = values.gather(-1, indices).topk(count)
    return best, indices.gather(-1, order)


class Greedy(Strategy):
    """Greedy decoding: the most probable token, or the one with the lowest id on ties."""

    is_greedy = True

    def choose(self, sums_BW: Tensor, scores: Scores, rows_B: Tensor, step: int) -> tuple[Tensor, Tensor]:
        token_B1 = first_largest(scores.logits_BWV)
        return torch.zeros_like(token_B1), token_B1


@register
class GreedyConfig(DecodingConfig):
    """Greedy decoding: take the most probable token at each step, or the one with the lowest id on ties.

    Use it as the default: it is the fastest, and always gives the same output.
    """

    kind: Literal["greedy"] = "greedy"

    def build(self, row_numbers: Sequence[int], max_length: int) -> Strategy:
        return Greedy()


class Sample(Strategy):
    """Random sampling, by inverting the cumulative distribution at one uniform number per row and step."""

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
        # The uniform number is at most 1 − 2⁻⁵³, so that the product stays below the total even when rounded.
        drawn_B1 = uniform_B1 * cumulative_BV[:, -1:]
        token_B1 = torch.searchsorted(cumulative_BV, drawn_B1, right=True)
        return torch.zeros_like(token_B1), token_B1

    def weights(self, logits_BV: Tensor) -> Tensor:
        """Return the unnormalised probabilities after temperature, then top-k, then top-p."""
        logs_BV = (logits_BV - logits_BV.amax(-1, keepdim=True)) / self.temperature
        if self.top_k is not None:
            logs_BV = _only(logs_BV, *top(logs_BV, self.top_k))
        if self.top_p is not None:
            logs_BV = _only(logs_BV, *_nucleus(logs_BV, self.top_p))
        return logs_BV.exp()


def _only(logs_BV: Tensor, best_BK: Tensor, indices_BK: Tensor) -> Tensor:
    """Return a tensor with these values at these indices, and −∞ elsewhere."""
    return torch.full_like(logs_BV, -torch.inf).scatter(-1, indices_BK, best_BK)


def _nucleus(logs_BV: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Return logs and indices of the fewest tokens whose total probability reaches `share`.

    The result may contain further tokens, whose logs are set to −∞.
    """
    share_B1 = share * logs_BV.exp().sum(-1, keepdim=True, dtype=torch.float64)
    # Sorting a whole vocabulary takes longer than a small model, and a few tokens are usually enough.
    best_BK, indices_BK = top(logs_BV, 128)
    if bool((best_BK.exp().sum(-1, keepdim=True, dtype=torch.float64) < share_B1).any()):
        best_BK, indices_BK = top(logs_BV, logs_BV.shape[-1])
    weights_BK = best_BK.exp()
    before_BK = weights_BK.cumsum(-1, dtype=torch.float64) - weights_BK
    return best_BK.masked_fill(before_BK >= share_B1, -torch.inf), indices_BK


@register
class SampleConfig(DecodingConfig):
    """Random sampling: draw each token by its probability. A row's random numbers depend on
    the seed and on the row's number, not on other rows.

    Use it to generate varied text; a temperature below 1 makes it more careful.
    """

    kind: Literal["sample"] = "sample"
    temperature: float = Field(
        1.0, ge=LEAST_TEMPERATURE, description="below 1 favours probable tokens, above 1 improbable ones"
    )
    top_k: int | None = Field(
        None, ge=1, description="sample from this many most probable tokens; none: from all"
    )
    top_p: float | None = Field(
        None,
        gt=0,
        le=1,
        description="sample from the fewest most probable tokens with this total probability; none: from all",
    )
    seed: int = Field(0, ge=0, description="random seed")

    def build(self, row_numbers: Sequence[int], max_length: int) -> Strategy:
        draws = [generator(self.seed, "sample", int(number)).random(max_length) for number in row_numbers]
        return Sample(self.temperature, self.top_k, self.top_p, torch.from_numpy(np.stack(draws)))


class Beam(Strategy):
    """Beam search: the candidates are the most probable continuations of all beams."""

    def __init__(self, size: int, n_best: int, length_penalty: float) -> None:
        self.size = size
        self.n_best = n_best
        self.length_penalty = length_penalty

    def choose(self, sums_BW: Tensor, scores: Scores, rows_B: Tensor, step: int) -> tuple[Tensor, Tensor]:
        # Of one beam, at most `size` continuations and its end are needed; of all beams together, at most
        # `size` continuations and as many ends.
        best_BWK, token_BWK = scores.top(self.size + 1)
        sums_BC = (sums_BW[..., None] + best_BWK).flatten(1)
        order_BC = sums_BC.argsort(dim=-1, descending=True, stable=True)[:, : 2 * self.size]
        return order_BC // best_BWK.shape[-1], token_BWK.flatten(1).gather(1, order_BC)

    def score(self, sums: Tensor, lengths: Tensor | float) -> Tensor:
        return sums / lengths**self.length_penalty


@register
class BeamConfig(DecodingConfig):
    """Beam search: at each step, the `size` beams (partial outputs) with the largest sums of
    log-probabilities continue.

    Use it for translation, where it usually scores above greedy decoding, at `size` times the work.

    A beam that chooses the end token while among the `size` best becomes a hypothesis. Its score is
    sum / length**length_penalty, and its length includes the end token. A row is done when `size` hypotheses
    score at least as much as the best continuing beam does now, or when no continuing beam can still become
    one of the `n_best` hypotheses that are returned. On equal sums, a continuation of the better beam comes
    first, and of the same beam, the one with the lower token id.
    """

    kind: Literal["beam"] = "beam"
    size: int = Field(4, ge=1, description="number of beams")
    length_penalty: float = Field(
        1.0,
        ge=0,
        description="divide the sum of log-probabilities by length to this power; 0: do not divide",
    )
    n_best: int = Field(1, ge=1, description="number of hypotheses returned per row, at most size")

    @model_validator(mode="after")
    def _check_n_best(self) -> Self:
        if self.n_best > self.size:
            raise ErrorDetail(
                f"a beam of size {self.size} cannot return {self.n_best} hypotheses",
                path="n_best",
                value=self.n_best,
                hint=f"n_best={self.size}, or a larger size",
            )
        return self

    def build(self, row_numbers: Sequence[int], max_length: int) -> Strategy:
        return Beam(self.size, self.n_best, self.length_penalty)
