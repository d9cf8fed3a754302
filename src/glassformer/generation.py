"""Writing, token by token: greedy, sampling and beam search, for every model that can `start` and `advance`.

    [[best]] = generate(model, {"tokens": source_BM}, begin=BOS, end=EOS, max_length=20,
                        strategy=BeamConfig(size=4), forbidden=[PAD, BOS])

A row of the batch is searched along up to W branches at once; greedy and sampling are searches with one
branch. All rows and branches pass through the model together, and those that have ended leave the batch.
It knows nothing of tasks or tokenizers: tokens are numbers, and the caller says which are special.

Axes: B rows still being written, W branches of a row, C candidates for its next branches, N = B × W lines,
T tokens written so far, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from glassformer.data.batching import generator
from glassformer.errors import Problem
from glassformer.models.base import DecodingState, Generating, Model
from glassformer.models.shapes import SequenceToSequence
from glassformer.registry import Kind, register

Inputs = dict[str, Tensor | None]


@dataclass(frozen=True)
class Hypothesis:
    """One way to go on: the new tokens alone, without the prompt and without `end`."""

    tokens: list[int]
    log_probabilities: list[float]
    """The model's own, of each new token; that of `end` comes last, if it was reached."""
    score: float
    """What a strategy ranks by: the sum of the log-probabilities, which a beam divides by a length penalty."""
    is_finished: bool
    """Whether `end` was reached; if not, the limit cut it off."""

    @property
    def log_probability(self) -> float:
        return math.fsum(self.log_probabilities)


Fate = Literal["kept", "finished", "cut", "dropped"]


@dataclass(frozen=True)
class Candidate:
    """A branch of the last step and a token after it. `cut`: it went as far as the limit allows."""

    branch: int
    token: int
    log_probability: float
    sum: float
    fate: Fate


@dataclass(frozen=True)
class Step:
    """What was weighed for one row. Branch i is the i-th candidate that the step before kept."""

    alternatives: list[list[tuple[int, float]]]
    """For each branch its likeliest next tokens and their probabilities."""
    candidates: list[Candidate]


@dataclass
class Trace:
    """Handed to `generate`, it holds afterwards the steps of each row."""

    alternatives: int = 5
    rows: list[list[Step]] = field(default_factory=list)


# ---------------------------------------------------------------- strategies


class Chooser:
    """A strategy at work on one batch."""

    size: int = 1
    """How many branches a row has at most, and how many ends are enough."""
    n_best: int = 1

    def choose(
        self, sums_BW: Tensor, log_probabilities_BWV: Tensor, rows_B: Tensor, step: int
    ) -> tuple[Tensor, Tensor]:
        """Branches (B, C) and the tokens (B, C) after them, best first; a candidate is not proposed twice."""
        raise NotImplementedError

    def score(self, sums: Tensor, lengths: Tensor | float) -> Tensor:
        """What hypotheses are ranked by. For the same sum a longer one must not score less."""
        return sums


class DecodingConfig(Kind):
    """How the next token is chosen."""

    def build(self, row_numbers: Sequence[int], max_length: int) -> Chooser:
        raise NotImplementedError


class Greedy(Chooser):
    def choose(
        self, sums_BW: Tensor, log_probabilities_BWV: Tensor, rows_B: Tensor, step: int
    ) -> tuple[Tensor, Tensor]:
        token_B1 = log_probabilities_BWV.argmax(-1)  # of equals the first
        return torch.zeros_like(token_B1), token_B1


@register
class GreedyConfig(DecodingConfig):
    """Always the likeliest token."""

    kind: Literal["greedy"] = "greedy"

    def build(self, row_numbers: Sequence[int], max_length: int) -> Chooser:
        return Greedy()


class Sample(Chooser):
    """Inverts the cumulative distribution at one uniform number per row and step, drawn beforehand."""

    def __init__(self, temperature: float, top_k: int | None, top_p: float | None, uniform_BT: Tensor) -> None:
        self.temperature = temperature
        self.top_k = top_k
        self.top_p = top_p
        self.uniform_BT = uniform_BT

    def choose(
        self, sums_BW: Tensor, log_probabilities_BWV: Tensor, rows_B: Tensor, step: int
    ) -> tuple[Tensor, Tensor]:
        cumulative_BV = self.weights(log_probabilities_BWV[:, 0]).cumsum(-1, dtype=torch.float64)
        total_B1 = cumulative_BV[:, -1:]
        drawn_B1 = total_B1 * self.uniform_BT.to(total_B1.device)[rows_B, step, None]
        below_B1 = torch.nextafter(total_B1, torch.zeros_like(total_B1))  # in case the product was rounded up
        token_B1 = torch.searchsorted(cumulative_BV, torch.minimum(drawn_B1, below_B1), right=True)
        return torch.zeros_like(token_B1), token_B1

    def weights(self, log_probabilities_BV: Tensor) -> Tensor:
        """What each token is drawn in proportion to: temperature, then top-k, then top-p of what is left."""
        peak_B1 = log_probabilities_BV.amax(-1, keepdim=True)
        weights_BV = ((log_probabilities_BV - peak_B1) / self.temperature).exp()
        if self.top_k is None and self.top_p is None:
            return weights_BV
        best_BK, order_BK = top(weights_BV, min(self.top_k or weights_BV.shape[-1], weights_BV.shape[-1]))
        if self.top_p is not None:
            before_BK = best_BK.cumsum(-1) - best_BK
            best_BK = best_BK.masked_fill(before_BK >= self.top_p * best_BK.sum(-1, keepdim=True), 0)
        return torch.zeros_like(weights_BV).scatter(-1, order_BK, best_BK)


@register
class SampleConfig(DecodingConfig):
    """Drawn at random. What a row gets follows from the seed and its number, not from the rows beside it."""

    kind: Literal["sample"] = "sample"
    temperature: float = Field(1.0, gt=0, description="below 1 favours the likely tokens, above 1 the unlikely")
    top_k: int | None = Field(None, ge=1, description="only from this many likeliest tokens; none: all")
    top_p: float | None = Field(
        None, gt=0, le=1, description="only from the fewest likeliest tokens with this probability; none: all"
    )
    seed: int = Field(0, ge=0)

    def build(self, row_numbers: Sequence[int], max_length: int) -> Chooser:
        draws = [generator(self.seed, "sample", number).random(max_length) for number in row_numbers]
        return Sample(self.temperature, self.top_k, self.top_p, torch.stack([torch.from_numpy(d) for d in draws]))


class Beam(Chooser):
    def __init__(self, size: int, n_best: int, length_penalty: float) -> None:
        self.size = size
        self.n_best = n_best
        self.length_penalty = length_penalty

    def choose(
        self, sums_BW: Tensor, log_probabilities_BWV: Tensor, rows_B: Tensor, step: int
    ) -> tuple[Tensor, Tensor]:
        # A branch adds at most `size` candidates that go on and one that ends, and all of them at most
        # `size` that go on and `size` that end.
        each = min(self.size + 1, log_probabilities_BWV.shape[-1])
        best_BWK, token_BWK = top(log_probabilities_BWV, each)
        sums_BC = (sums_BW[..., None] + best_BWK).flatten(1)
        order_BC = sums_BC.argsort(dim=-1, descending=True, stable=True)[:, : 2 * self.size]
        return order_BC // each, token_BWK.flatten(1).gather(1, order_BC)

    def score(self, sums: Tensor, lengths: Tensor | float) -> Tensor:
        return sums / lengths**self.length_penalty


@register
class BeamConfig(DecodingConfig):
    """The best of several branches; those that have ended are compared by sum / length**length_penalty.

    Of branches with equal sums the better one of the step before comes first, then the lower token.
    A row is done when `size` branches have ended, or when none that goes on can still be among the n best.
    """

    kind: Literal["beam"] = "beam"
    size: int = Field(4, ge=1, description="branches kept at each step")
    length_penalty: float = Field(
        1.0, ge=0, description="the sum of log-probabilities is divided by length (with the end) to this power"
    )
    n_best: int = Field(1, ge=1, description="how many answers, at most size")

    @model_validator(mode="after")
    def _check_n_best(self) -> Self:
        if self.n_best > self.size:
            raise Problem(
                f"a beam of size {self.size} has no {self.n_best} best",
                place="n_best",
                value=self.n_best,
                remedy=f"n_best={self.size}, or a larger size",
            )
        return self

    def build(self, row_numbers: Sequence[int], max_length: int) -> Chooser:
        return Beam(self.size, self.n_best, self.length_penalty)


def top(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest values along the last axis and their places; of equals the first, which `topk` does not promise."""
    extra = min(count + 1, values.shape[-1])
    best, places = values.topk(extra)
    if bool(((best[..., 1:] == best[..., :-1]) & (best[..., 1:] > -torch.inf)).any()):
        best, places = values.sort(dim=-1, descending=True, stable=True)
    return best[..., :count], places[..., :count]


# ---------------------------------------------------------------- the engine


@torch.inference_mode()
def generate(
    model: Generating,
    inputs: Inputs | None = None,
    *,
    begin: int | None = None,
    prompt_BL: Tensor | None = None,
    real_BL: Tensor | None = None,
    end: int | None,
    max_length: int | Sequence[int] | None = None,
    min_length: int = 0,
    strategy: DecodingConfig | None = None,
    forbidden: Sequence[int] = (),
    row_numbers: Sequence[int] | None = None,
    trace: Trace | None = None,
) -> list[list[Hypothesis]]:
    """The hypotheses of each row, best first.

    - `inputs`: what the model reads before it writes, the source of an encoder-decoder. A language model
      reads nothing but its prompt, and needs none.
    - `begin` and `prompt_BL` are what a row starts with, in this order; one of them is needed. Prompts may
      differ in length: they are padded on the right, and `real_BL` is True where a token is real.
    - `end` ends a row. None: only the limit does.
    - `max_length`: how many tokens are written at most, the `end` counted, for all rows or for each;
      None: as many as the model has room for. `min_length`: before that many, `end` is not chosen.
    - `strategy`: how the next token is chosen; None: greedy.
    - `forbidden`: tokens that are never written, such as padding. Probabilities stay the model's own.
    - `row_numbers`: which random numbers a row gets; None: 0, 1, … Give the numbers of the examples, and
      a sample does not depend on how they are cut into batches.
    """
    inputs, prefix_BL, real_BL = _prefix(inputs, begin, prompt_BL, real_BL)
    rows = len(prefix_BL)
    if rows == 0:
        return []
    lengths_B = torch.full((rows,), prefix_BL.shape[1]) if real_BL is None else real_BL.sum(1).cpu()
    limits_B = _limits(model, lengths_B, max_length, min_length).to(prefix_BL.device)
    numbers = range(rows) if row_numbers is None else row_numbers
    chooser = (strategy or GreedyConfig()).build(numbers, int(limits_B.max()))
    search = _Search(chooser, limits_B, end, min_length, forbidden, trace)
    with _evaluating(model):
        state = model.start(**inputs)
        logits_NV = model.advance(state, prefix_BL, real_BL)
        while len(tokens_N := search.step(logits_NV)):
            if search.lines_N is not None:
                state.select(search.lines_N)
            logits_NV = model.advance(state, tokens_N[:, None])
    return search.answers()


class _Search:
    """The branches of all rows that are not done yet, and the hypotheses of all rows."""

    def __init__(
        self,
        chooser: Chooser,
        limits_B: Tensor,
        end: int | None,
        min_length: int,
        forbidden: Sequence[int],
        trace: Trace | None,
    ) -> None:
        rows, device = len(limits_B), limits_B.device
        self.chooser = chooser
        self.end = -1 if end is None else end
        self.min_length = min_length
        self.forbidden = sorted(set(forbidden))
        self.trace = trace
        if trace is not None:
            trace.rows = [[] for _ in range(rows)]
        self.hypotheses: list[list[Hypothesis]] = [[] for _ in range(rows)]
        self.length = 0
        self.lines_N: Tensor | None = None
        """Which lines of the step before go on; None: all of them, as they are."""
        self.rows_B = torch.arange(rows, device=device)
        self.limits_B = limits_B
        self.sums_BW = torch.zeros(rows, 1, dtype=torch.float64, device=device)
        self.tokens_BWT = torch.empty(rows, 1, 0, dtype=torch.long, device=device)
        self.log_probabilities_BWT = torch.empty(rows, 1, 0, dtype=torch.float64, device=device)
        self.ended_BS = torch.full((rows, chooser.size), -torch.inf, dtype=torch.float64, device=device)
        """The scores of the best hypotheses that have reached the end, best first."""

    def step(self, logits_NV: Tensor) -> Tensor:
        """Choose the next token of each line; return those that go through the model again."""
        log_probabilities_BWV = self._log_probabilities(logits_NV).unflatten(0, self.sums_BW.shape)
        branch_BC, token_BC = self.chooser.choose(
            self.sums_BW, log_probabilities_BWV, self.rows_B, self.length
        )
        gain_BC = log_probabilities_BWV[torch.arange(len(branch_BC))[:, None], branch_BC, token_BC].double()
        sum_BC = self.sums_BW.gather(1, branch_BC) + gain_BC
        self._check(sum_BC)
        self.length += 1
        candidates = _Candidates(branch_BC, token_BC, gain_BC, sum_BC)

        possible_BC = sum_BC > -torch.inf
        is_end_BC = token_BC == self.end
        finished_BC = possible_BC & is_end_BC
        finished_BC[:, self.chooser.size :] = False
        going_BC = possible_BC & ~is_end_BC
        going_BC &= going_BC.cumsum(1) <= self.chooser.size

        score_BC = self.chooser.score(sum_BC, float(self.length))
        ended_BS = torch.cat([self.ended_BS, score_BC.masked_fill(~finished_BC, -torch.inf)], 1)
        self.ended_BS = ended_BS.sort(1, descending=True).values[:, : self.chooser.size]
        has_enough_B = self.ended_BS[:, -1] > -torch.inf
        cut_BC = going_BC & ((self.length >= self.limits_B) & ~has_enough_B)[:, None]
        best_sum_B = sum_BC.masked_fill(~going_BC, -torch.inf).amax(1)
        reach_B = self.chooser.score(best_sum_B, self.limits_B)
        is_hopeless_B = reach_B <= self.ended_BS[:, self.chooser.n_best - 1]
        is_done_B = has_enough_B | is_hopeless_B | (self.length >= self.limits_B)
        kept_BC = going_BC & ~is_done_B[:, None]

        self._collect(candidates, finished_BC, score_BC, is_finished=True)
        self._collect(candidates, cut_BC, score_BC, is_finished=False)
        if self.trace is not None:
            self._record(self.trace, log_probabilities_BWV, candidates, kept_BC, finished_BC, cut_BC)
        return self._go_on(candidates, kept_BC, ~is_done_B)
