"""The branches of a batch and what becomes of them: which end, which go on, which are dropped.

It sees log-probabilities and never the model. A row of the batch is searched along up to W branches at once;
greedy decoding and sampling are searches with one branch.

Axes: B rows still being written, W branches of a row, C candidates of a row, N = B × W lines, K likeliest
tokens, T tokens written so far, S hypotheses that are enough for a row, V vocabulary. Sums are in double
precision, so that unequal log-probabilities stay unequal when added to a sum: a beam of 1 is exactly greedy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from glassformer.core.errors import ErrorDetail
from glassformer.generation.strategies import Chooser, Scores


@dataclass(frozen=True)
class Hypothesis:
    """One way to go on: the new tokens alone, without the prompt and without the end."""

    tokens: list[int]
    log_probabilities: list[float]
    """The model's own, of each new token; that of the end comes last, if reached. Empty: not asked for."""
    score: float
    """What it is ranked by: the sum of the log-probabilities, which a beam divides by a length penalty."""
    is_finished: bool
    """Whether the end was reached; if not, the limit cut it off."""

    @property
    def log_probability(self) -> float:
        return math.fsum(self.log_probabilities)


Fate = Literal["kept", "finished", "cut", "dropped"]


@dataclass(frozen=True)
class Candidate:
    """A token after a branch. `cut`: a hypothesis that went as far as the limit allows."""

    branch: int
    token: int
    log_probability: float
    sum: float
    """Of the log-probabilities of the whole branch with this token."""
    fate: Fate


@dataclass(frozen=True)
class Step:
    """What was weighed for one row. Branch i is the i-th candidate that the step before kept."""

    alternatives: list[list[tuple[int, float]]]
    """For each branch its likeliest next tokens and their probabilities."""
    candidates: list[Candidate]
    """What the strategy proposed, best first."""


@dataclass
class Trace:
    """Handed to `generate`, it holds the steps of each row afterwards."""

    alternatives: int = 5
    """How many of them to note."""
    rows: list[list[Step]] = field(default_factory=list)
    hypotheses: list[list[Hypothesis]] = field(default_factory=list)
    """Of each row all that were found, best first; the strategy answers with the first `n_best`."""
    end: int | None = None


@dataclass(frozen=True)
class _Candidates:
    branch_BC: Tensor
    token_BC: Tensor
    log_probability_BC: Tensor
    sum_BC: Tensor
    score_BC: Tensor

    @property
    def is_one(self) -> bool:
        """Whether each row has but one."""
        return self.token_BC.shape[1] == 1


@dataclass(frozen=True)
class _Fates:
    finished_BC: Tensor
    cut_BC: Tensor
    kept_BC: Tensor


@dataclass(frozen=True)
class BeamUpdate:
    """What is written next. No rows: all are done."""

    rows_B: Tensor
    """The rows that go on, as places among those of this step."""
    beam_indices_BW: Tensor
    """Which of the row's branches each of its next ones goes on from."""
    lines_BW: Tensor
    """The same as places among all branches of this step."""
    tokens_BW: Tensor


ROWS_AT_ONCE = 32
"""Of logits: what is made of them stays in a CPU's cache."""
SMALLEST_SUM = 1e-30
"""Of exponentials of logits as they are; below it single precision loses digits."""


class Search:
    """The rows that are not done yet, with their branches, and the hypotheses of all rows."""

    def __init__(
        self,
        chooser: Chooser,
        limits_B: Tensor,
        end: int | None,
        min_length: int = 0,
        forbidden: Sequence[int] = (),
        trace: Trace | None = None,
        is_scored: bool = True,
    ) -> None:
        rows, device = len(limits_B), limits_B.device
        self.chooser = chooser
        self.limits_B = limits_B
        self.end = end
        self.min_length = min_length
        self.forbidden = list(forbidden)
        self.trace = trace
        # Who always takes the likeliest token needs no probability to find it, and they take a pass over all.
        self.is_scored = is_scored or not chooser.takes_likeliest or trace is not None
        if trace is not None:
            trace.rows, trace.end = [[] for _ in range(rows)], end
        self.hypotheses: list[list[Hypothesis]] = [[] for _ in range(rows)]
        self.length = 0
        self.rows_B = torch.arange(rows, device=device)
        self.sums_BW = torch.zeros(rows, 1, dtype=torch.float64, device=device)
        self.tokens_BWT = torch.empty(rows, 1, 0, dtype=torch.long, device=device)
        self.log_probabilities_BWT = torch.empty(rows, 1, 0, dtype=torch.float64, device=device)
        # The scores of the best hypotheses that have reached the end, best first.
        self.ended_BS = torch.full((rows, chooser.size), -torch.inf, dtype=torch.float64, device=device)

    def answers(self) -> list[list[Hypothesis]]:
        """The hypotheses of each row, best first; of equals the one that was there first."""
        ranked = [sorted(found, key=lambda hypothesis: -hypothesis.score) for found in self.hypotheses]
        if self.trace is not None:
            self.trace.hypotheses = ranked
        return [found[: self.chooser.n_best] for found in ranked]

    def step(self, logits_NV: Tensor) -> BeamUpdate:
        """Choose the next tokens."""
        scores = self._scores(logits_NV)
        candidates = self._propose(scores)
        fates = self._judge(candidates)
        self._collect(candidates, fates.finished_BC, is_finished=True)
        self._collect(candidates, fates.cut_BC, is_finished=False)
        if self.trace is not None:
            self._note(self.trace, scores, candidates, fates)
        return self._go_on(candidates, fates.kept_BC)

    def _scores(self, logits_NV: Tensor) -> Scores:
        """The model's own, but for the tokens that must not be chosen now: those are impossible."""
        logits_NV = logits_NV if logits_NV.dtype == torch.float64 else logits_NV.float()
        if self.is_scored:
            totals_N1 = torch.cat([_total(part_NV) for part_NV in logits_NV.split(ROWS_AT_ONCE)])
            self._check_numbers(totals_N1[:, 0].isnan())  # one NaN, or +∞, makes the whole sum NaN
        else:
            totals_N1 = logits_NV.new_zeros(len(logits_NV), 1, dtype=torch.float64)
        logits_NV[:, self.forbidden] = -torch.inf
        if self.end is not None and self.length < self.min_length:
            logits_NV[:, self.end] = -torch.inf
        return Scores(logits_NV.unflatten(0, self.sums_BW.shape), totals_N1.unflatten(0, self.sums_BW.shape))

    def _check_numbers(self, is_broken_N: Tensor) -> None:
        if bool(is_broken_N.any()):
            row = int(self.rows_B[is_broken_N.nonzero()[0] // self.sums_BW.shape[1]])
            raise ErrorDetail(
                f"the model's scores are not numbers, for token {self.length + 1} of row {row}",
                path="model",
                hint="its weights may have diverged: take an earlier checkpoint",
            )

    def _propose(self, scores: Scores) -> _Candidates:
        branch_BC, token_BC = self.chooser.choose(self.sums_BW, scores, self.rows_B, self.length)
        place_B1 = torch.arange(len(branch_BC), device=branch_BC.device)[:, None]
        logit_BC = scores.logits_BWV[place_B1, branch_BC, token_BC].double()
        if not self.is_scored:  # the likeliest token is one without a number, if there is any
            self._check_numbers((logit_BC[:, 0].isnan()) | (logit_BC[:, 0] == torch.inf))
        self.length += 1
        log_probability_BC = logit_BC - scores.totals_BW1[place_B1, branch_BC, 0]
        sum_BC = self.sums_BW.gather(1, branch_BC) + log_probability_BC
        if bool((sum_BC[:, 0] == -torch.inf).any()):
            raise ErrorDetail(
                f"no token is possible at place {self.length}",
                path="forbidden",
                hint="forbid fewer tokens",
            )
        score_BC = self.chooser.score(sum_BC, float(self.length))
        return _Candidates(branch_BC, token_BC, log_probability_BC, sum_BC, score_BC)

    def _judge(self, candidates: _Candidates) -> _Fates:
        return self._judge_one(candidates) if candidates.is_one else self._judge_several(candidates)

    def _judge_one(self, candidates: _Candidates) -> _Fates:
        """As `_judge_several` does, where there is nothing to weigh: the first end is the only one."""
        is_last_B1 = self.limits_B[:, None] <= self.length
        if self.end is None:
            return _Fates(torch.zeros_like(is_last_B1), cut_BC=is_last_B1, kept_BC=~is_last_B1)
        finished_BC = candidates.token_BC == self.end
        return _Fates(finished_BC, cut_BC=is_last_B1 & ~finished_BC, kept_BC=~(is_last_B1 | finished_BC))

    def _judge_several(self, candidates: _Candidates) -> _Fates:
        size = self.chooser.size
        possible_BC = candidates.sum_BC > -torch.inf
        is_end_BC = torch.zeros_like(possible_BC) if self.end is None else candidates.token_BC == self.end
        finished_BC = possible_BC & is_end_BC
        finished_BC[:, size:] = False
        going_BC = possible_BC & ~is_end_BC
        going_BC &= going_BC.cumsum(1) <= size

        scores_BC = candidates.score_BC.masked_fill(~finished_BC, -torch.inf)
        self.ended_BS = torch.cat([self.ended_BS, scores_BC], 1).sort(1, descending=True).values[:, :size]
        best_sum_B = candidates.sum_BC.masked_fill(~going_BC, -torch.inf).amax(1)
        is_settled_B = self.chooser.score(best_sum_B, float(self.length)) <= self.ended_BS[:, -1]
        # Sums only fall: no continuation scores more than today's best sum would at full length.
        reach_B = self.chooser.score(best_sum_B, self.limits_B)
        is_hopeless_B = reach_B <= self.ended_BS[:, self.chooser.n_best - 1]
        is_last_B = self.limits_B <= self.length
        is_done_B = is_settled_B | is_hopeless_B | is_last_B
        return _Fates(
            finished_BC,
            cut_BC=going_BC & is_last_B[:, None],
            kept_BC=going_BC & ~is_done_B[:, None],
        )

    def _collect(self, candidates: _Candidates, chosen_BC: Tensor, is_finished: bool) -> None:
        places, columns = chosen_BC.nonzero(as_tuple=True)
        if not len(places):
            return
        branches = candidates.branch_BC[places, columns]
        tokens = torch.cat([self.tokens_BWT[places, branches], candidates.token_BC[places, columns, None]], 1)
        log_probabilities = torch.cat(
            [
                self.log_probabilities_BWT[places, branches],
                candidates.log_probability_BC[places, columns, None],
            ],
            1,
        )
        if is_finished:
            tokens = tokens[:, :-1]
        found = (self.rows_B[places], tokens, log_probabilities, candidates.score_BC[places, columns])
        for row, written, values, score in zip(*(tensor.tolist() for tensor in found), strict=True):
            if not self.is_scored:
                values, score = [], math.nan
            self.hypotheses[row].append(Hypothesis(written, values, score, is_finished))

    def _go_on(self, candidates: _Candidates, kept_BC: Tensor) -> BeamUpdate:
        if candidates.is_one and bool(kept_BC.all()):
            return self._all_go_on(candidates)
        counts_B = kept_BC.sum(1)
        width = int(counts_B.max())
        places_B = _fill_gaps(counts_B > 0)
        places_B1 = places_B[:, None]
        # The kept ones first, in their order; a row with fewer of them is filled up with impossible ones.
        columns_BW = kept_BC[places_B].byte().argsort(dim=1, descending=True, stable=True)[:, :width]
        branches_BW = candidates.branch_BC[places_B1, columns_BW]
        tokens_BW = candidates.token_BC[places_B1, columns_BW]
        log_probabilities_BW = candidates.log_probability_BC[places_B1, columns_BW]
        is_filling_BW = ~kept_BC[places_B1, columns_BW]
        lines_BW = places_B1 * self.sums_BW.shape[1] + branches_BW

        self.sums_BW = candidates.sum_BC[places_B1, columns_BW].masked_fill(is_filling_BW, -torch.inf)
        self.tokens_BWT = torch.cat([self.tokens_BWT[places_B1, branches_BW], tokens_BW[..., None]], -1)
        self.log_probabilities_BWT = torch.cat(
            [self.log_probabilities_BWT[places_B1, branches_BW], log_probabilities_BW[..., None]], -1
        )
        self.rows_B, self.limits_B = self.rows_B[places_B], self.limits_B[places_B]
        self.ended_BS = self.ended_BS[places_B]
        return BeamUpdate(places_B, branches_BW, lines_BW, tokens_BW)

    def _all_go_on(self, candidates: _Candidates) -> BeamUpdate:
        """As `_go_on` does, where every row has one branch and keeps it."""
        self.sums_BW = candidates.sum_BC
        self.tokens_BWT = torch.cat([self.tokens_BWT, candidates.token_BC[..., None]], -1)
        self.log_probabilities_BWT = torch.cat(
            [self.log_probabilities_BWT, candidates.log_probability_BC[..., None]], -1
        )
        rows_B = torch.arange(len(self.rows_B), device=self.rows_B.device)
        return BeamUpdate(rows_B, candidates.branch_BC, rows_B[:, None], candidates.token_BC)

    def _note(self, trace: Trace, scores: Scores, candidates: _Candidates, fates: _Fates) -> None:
        best_BWK, token_BWK = (tensor.tolist() for tensor in scores.top(trace.alternatives))
        sums_BW = self.sums_BW.tolist()
        fields = (candidates.branch_BC, candidates.token_BC, candidates.log_probability_BC, candidates.sum_BC)
        columns = [tensor.tolist() for tensor in (*fields, fates.finished_BC, fates.cut_BC, fates.kept_BC)]
        for place, row in enumerate(self.rows_B.tolist()):
            alternatives = [
                [
                    (token, math.exp(value))
                    for token, value in zip(tokens, values, strict=True)
                    if value > -math.inf
                ]
                for tokens, values, total in zip(
                    token_BWK[place], best_BWK[place], sums_BW[place], strict=True
                )
                if total > -math.inf
            ]
            noted = [
                Candidate(branch, token, value, total, _fate(is_finished, is_cut, is_kept))
                for branch, token, value, total, is_finished, is_cut, is_kept in zip(
                    *(column[place] for column in columns), strict=True
                )
                if total > -math.inf
            ]
            trace.rows[row].append(Step(alternatives, noted))


def _total(logits_NV: Tensor) -> Tensor:
    """The logarithm of the sum of all probabilities, in double precision.

    Of all log-probabilities the search needs a few: the others are not worked out.
    """
    sums_N1 = logits_NV.exp().sum(-1, keepdim=True)
    if bool(((sums_N1 > SMALLEST_SUM) & (sums_N1 < torch.inf)).all()):
        return sums_N1.double().log()
    largest_N1 = logits_NV.amax(-1, keepdim=True)
    sums_N1 = (logits_NV - largest_N1).exp_().sum(-1, keepdim=True)
    return largest_N1.double() + sums_N1.double().log()


def _fill_gaps(is_going_B: Tensor) -> Tensor:
    """The places of the rows that go on: each stays where it is, but the last ones fill the gaps.

    So whatever is kept of each row moves as little as it can.
    """
    going = is_going_B.nonzero().squeeze(1)
    places = torch.arange(len(going), device=going.device)
    places[~is_going_B[: len(going)]] = going[going >= len(going)]
    return places


def _fate(is_finished: bool, is_cut: bool, is_kept: bool) -> Fate:
    if is_finished:
        return "finished"
    if is_cut:
        return "cut"
    return "kept" if is_kept else "dropped"
