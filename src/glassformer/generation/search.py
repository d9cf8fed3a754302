"""Decoding search over a batch, which decides at each step which beams end, continue or are dropped.

The search sees log-probabilities, not the model. Each row of the batch has up to W beams. Greedy decoding
and sampling are searches with one beam.

Axes: B unfinished rows, W beams of a row, C candidates of a row, N = B × W, K most probable tokens, T tokens
generated so far, S hypotheses that complete a row, V vocabulary. Sums are in double precision, so that
unequal log-probabilities stay unequal when added to a sum, and beam search of size 1 equals greedy decoding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from glassformer.core.errors import ErrorDetail
from glassformer.generation.strategies import Scores, Strategy


@dataclass(frozen=True)
class Hypothesis:
    """One generated sequence: the new tokens, without the prompt and without the end token."""

    tokens: list[int]
    log_probabilities: list[float]
    """Log-probability of each new token, and of the end token if reached. Empty if `is_scored` is False."""
    score: float
    """Ranking score: the sum of the log-probabilities, which beam search divides by a length penalty."""
    is_finished: bool
    """True if the end token was reached, False if the length limit truncated the sequence."""

    @property
    def log_probability(self) -> float:
        """Log-probability of the whole sequence."""
        return math.fsum(self.log_probabilities)


Status = Literal["kept", "finished", "truncated", "dropped"]


@dataclass(frozen=True)
class Candidate:
    """One possible next token of one beam."""

    beam: int
    token: int
    log_probability: float
    sum: float
    """Sum of the log-probabilities of all tokens of the beam, this one included."""
    status: Status
    """Outcome: continued, ended by the end token, ended by the length limit, or discarded."""


@dataclass(frozen=True)
class Step:
    """Candidates of one row at one decoding step. Beam i is the i-th candidate kept by the previous step."""

    alternatives: list[list[tuple[int, float]]]
    """Most probable next tokens of each beam, with their probabilities."""
    candidates: list[Candidate]
    """Candidates that the strategy proposed, best first."""


@dataclass
class Trace:
    """Record of a `generate` call: the steps and hypotheses of each row."""

    alternatives: int = 5
    """Number of alternative tokens to record per beam."""
    rows: list[list[Step]] = field(default_factory=list)
    hypotheses: list[list[Hypothesis]] = field(default_factory=list)
    """All hypotheses of each row, best first. `generate` returns the first `n_best` of them."""
    end: int | None = None


@dataclass(frozen=True)
class _Candidates:
    beam_BC: Tensor
    token_BC: Tensor
    log_probability_BC: Tensor
    sum_BC: Tensor
    score_BC: Tensor

    @property
    def is_one(self) -> bool:
        """True if each row has a single candidate."""
        return self.token_BC.shape[1] == 1


@dataclass(frozen=True)
class _Statuses:
    finished_BC: Tensor
    truncated_BC: Tensor
    kept_BC: Tensor


@dataclass(frozen=True)
class BeamUpdate:
    """Rows, beams and tokens of the next decoding step. If there are no rows, all sequences are complete."""

    rows_B: Tensor
    """Indices of the rows that continue, among the rows of this step."""
    beam_indices_BW: Tensor
    """Index (within its row) of the beam of this step that each beam of the next step continues."""
    flat_indices_BW: Tensor
    """Beam indices as in `beam_indices_BW`, but counted over all N beams of the batch."""
    tokens_BW: Tensor


CHUNK_ROWS = 32
"""Number of rows of logits per chunk, so that intermediate results stay in a CPU's cache."""
SMALLEST_SUM = 1e-30
"""Smallest sum of exponentials that is accurate in single precision. Below it, log-sum-exp is used."""


class Search:
    """State of a decoding search: the unfinished rows with their beams, and the hypotheses of all rows."""

    def __init__(
        self,
        strategy: Strategy,
        limits_B: Tensor,
        end: int | None,
        min_length: int = 0,
        forbidden: Sequence[int] = (),
        trace: Trace | None = None,
        is_scored: bool = True,
    ) -> None:
        rows, device = len(limits_B), limits_B.device
        self.strategy = strategy
        self.limits_B = limits_B
        self.end = end
        self.min_length = min_length
        self.forbidden = list(forbidden)
        self.trace = trace
        # A strategy that takes the most probable token needs no probabilities, which cost a pass over all
        # logits.
        self.is_scored = is_scored or not strategy.is_greedy or trace is not None
        if trace is not None:
            trace.rows, trace.end = [[] for _ in range(rows)], end
        self.hypotheses: list[list[Hypothesis]] = [[] for _ in range(rows)]
        self.length = 0
        self.rows_B = torch.arange(rows, device=device)
        self.sums_BW = torch.zeros(rows, 1, dtype=torch.float64, device=device)
        self.tokens_BWT = torch.empty(rows, 1, 0, dtype=torch.long, device=device)
        self.log_probabilities_BWT = torch.empty(rows, 1, 0, dtype=torch.float64, device=device)
        # Scores of the best finished hypotheses, best first.
        self.ended_BS = torch.full((rows, strategy.size), -torch.inf, dtype=torch.float64, device=device)

    def results(self) -> list[list[Hypothesis]]:
        """Return the hypotheses of each row, best first. Ties keep the order in which they were found."""
        ranked = [sorted(found, key=lambda hypothesis: -hypothesis.score) for found in self.hypotheses]
        if self.trace is not None:
            self.trace.hypotheses = ranked
        return [found[: self.strategy.n_best] for found in ranked]

    def step(self, logits_NV: Tensor) -> BeamUpdate:
        """Choose the next tokens from the logits, and return the beams of the next step."""
        scores = self._scores(logits_NV)
        return self._finish_step(self._propose(scores), scores)

    @property
    def needs_tokens_only(self) -> bool:
        """True if each step needs only the most probable token of each row: pass it to `step_tokens`."""
        return not self.is_scored and self.min_length == 0

    def step_tokens(self, token_B: Tensor) -> BeamUpdate:
        """Continue each row with its most probable token. A negative number marks broken logits."""
        self._check_finite(token_B < 0)
        self.length += 1
        nothing_B1 = torch.zeros_like(self.sums_BW)
        zeros_B1 = torch.zeros_like(token_B)[:, None]
        return self._finish_step(
            _Candidates(zeros_B1, token_B[:, None], nothing_B1, nothing_B1, nothing_B1), None
        )

    def _finish_step(self, candidates: _Candidates, scores: Scores | None) -> BeamUpdate:
        """Collect finished candidates, and return the beams of the next step."""
        statuses = self._classify(candidates)
        self._collect(candidates, statuses.finished_BC, is_finished=True)
        self._collect(candidates, statuses.truncated_BC, is_finished=False)
        if self.trace is not None and scores is not None:
            self._record(self.trace, scores, candidates, statuses)
        return self._continue(candidates, statuses.kept_BC)

    def _scores(self, logits_NV: Tensor) -> Scores:
        """Return the scores of all next tokens, with −∞ for the tokens that must not be chosen now."""
        logits_NV = logits_NV if logits_NV.dtype == torch.float64 else logits_NV.float()
        if self.is_scored:
            totals_N1 = torch.cat([_log_total(chunk_NV) for chunk_NV in logits_NV.split(CHUNK_ROWS)])
            self._check_finite(totals_N1[:, 0].isnan())  # one NaN, or +∞, makes the whole sum NaN
        else:
            totals_N1 = logits_NV.new_zeros(len(logits_NV), 1, dtype=torch.float64)
        logits_NV[:, self.forbidden] = -torch.inf
        if self.end is not None and self.length < self.min_length:
            logits_NV[:, self.end] = -torch.inf
        return Scores(logits_NV.unflatten(0, self.sums_BW.shape), totals_N1.unflatten(0, self.sums_BW.shape))

    def _check_finite(self, is_broken_N: Tensor) -> None:
        """Raise an ErrorDetail if any row has a NaN or infinite logit."""
        if bool(is_broken_N.any()):
            row = int(self.rows_B[is_broken_N.nonzero()[0] // self.sums_BW.shape[1]])
            raise ErrorDetail(
                f"the model's logits are NaN or infinite at token {self.length + 1} of row {row}",
                path="model",
                hint="use an earlier checkpoint, because the weights may have diverged",
            )

    def _propose(self, scores: Scores) -> _Candidates:
        """Ask the strategy for candidates. Return them with their sums of log-probabilities and scores."""
        beam_BC, token_BC = self.strategy.choose(self.sums_BW, scores, self.rows_B, self.length)
        index_B1 = torch.arange(len(beam_BC), device=beam_BC.device)[:, None]
        logit_BC = scores.logits_BWV[index_B1, beam_BC, token_BC].double()
        if not self.is_scored:  # argmax returns a NaN or +∞ if there is one
            self._check_finite((logit_BC[:, 0].isnan()) | (logit_BC[:, 0] == torch.inf))
        self.length += 1
        log_probability_BC = logit_BC - scores.totals_BW1[index_B1, beam_BC, 0]
        sum_BC = self.sums_BW.gather(1, beam_BC) + log_probability_BC
        if bool((sum_BC[:, 0] == -torch.inf).any()):
            raise ErrorDetail(
                f"all tokens are forbidden at position {self.length}",
                path="forbidden",
                hint="forbid fewer tokens",
            )
        score_BC = self.strategy.score(sum_BC, float(self.length))
        return _Candidates(beam_BC, token_BC, log_probability_BC, sum_BC, score_BC)

    def _classify(self, candidates: _Candidates) -> _Statuses:
        return self._classify_one(candidates) if candidates.is_one else self._classify_several(candidates)

    def _classify_one(self, candidates: _Candidates) -> _Statuses:
        """Classify the only candidate of each row. This is a fast path of `_classify_several`."""
        is_last_B1 = self.limits_B[:, None] <= self.length
        if self.end is None:
            return _Statuses(torch.zeros_like(is_last_B1), truncated_BC=is_last_B1, kept_BC=~is_last_B1)
        finished_BC = candidates.token_BC == self.end
        return _Statuses(
            finished_BC,
            truncated_BC=is_last_B1 & ~finished_BC,
            kept_BC=~(is_last_B1 | finished_BC),
        )

    def _classify_several(self, candidates: _Candidates) -> _Statuses:
        """Decide which candidates end, are truncated or continue, and which rows are done."""
        size = self.strategy.size
        possible_BC = candidates.sum_BC > -torch.inf
        is_end_BC = torch.zeros_like(possible_BC) if self.end is None else candidates.token_BC == self.end
        finished_BC = possible_BC & is_end_BC
        finished_BC[:, size:] = False
        continuing_BC = possible_BC & ~is_end_BC
        continuing_BC &= continuing_BC.cumsum(1) <= size

        scores_BC = candidates.score_BC.masked_fill(~finished_BC, -torch.inf)
        self.ended_BS = torch.cat([self.ended_BS, scores_BC], 1).sort(1, descending=True).values[:, :size]
        best_sum_B = candidates.sum_BC.masked_fill(~continuing_BC, -torch.inf).amax(1)
        is_complete_B = self.strategy.score(best_sum_B, float(self.length)) <= self.ended_BS[:, -1]
        # Sums only decrease: no continuation scores more than the best sum now, at full length.
        reach_B = self.strategy.score(best_sum_B, self.limits_B)
        is_hopeless_B = reach_B <= self.ended_BS[:, self.strategy.n_best - 1]
        is_last_B = self.limits_B <= self.length
        is_done_B = is_complete_B | is_hopeless_B | is_last_B
        return _Statuses(
            finished_BC,
            truncated_BC=continuing_BC & is_last_B[:, None],
            kept_BC=continuing_BC & ~is_done_B[:, None],
        )

    def _collect(self, candidates: _Candidates, chosen_BC: Tensor, is_finished: bool) -> None:
        """Store the chosen candidates as hypotheses."""
        index, columns = chosen_BC.nonzero(as_tuple=True)
        if not len(index):
            return
        beams = candidates.beam_BC[index, columns]
        tokens = torch.cat([self.tokens_BWT[index, beams], candidates.token_BC[index, columns, None]], 1)
        log_probabilities = torch.cat(
            [self.log_probabilities_BWT[index, beams], candidates.log_probability_BC[index, columns, None]], 1
        )
        if is_finished:
            tokens = tokens[:, :-1]
        found = (self.rows_B[index], tokens, log_probabilities, candidates.score_BC[index, columns])
        for row, row_tokens, values, score in zip(*(tensor.tolist() for tensor in found), strict=True):
            if not self.is_scored:
                values, score = [], math.nan
            self.hypotheses[row].append(Hypothesis(row_tokens, values, score, is_finished))

    def _continue(self, candidates: _Candidates, kept_BC: Tensor) -> BeamUpdate:
        """Keep the chosen candidates as the beams of the next step, and drop finished rows."""
        if candidates.is_one and bool(kept_BC.all()):
            return self._continue_all(candidates)
        counts_B = kept_BC.sum(1)
        width = int(counts_B.max())
        index_B = _fill_gaps(counts_B > 0)
        index_B1 = index_B[:, None]
        # Kept candidates first, in their order; a row with fewer of them is padded with impossible ones.
        columns_BW = kept_BC[index_B].byte().argsort(dim=1, descending=True, stable=True)[:, :width]
        beams_BW = candidates.beam_BC[index_B1, columns_BW]
        tokens_BW = candidates.token_BC[index_B1, columns_BW]
        log_probabilities_BW = candidates.log_probability_BC[index_B1, columns_BW]
        is_padding_BW = ~kept_BC[index_B1, columns_BW]
        flat_indices_BW = index_B1 * self.sums_BW.shape[1] + beams_BW

        self.sums_BW = candidates.sum_BC[index_B1, columns_BW].masked_fill(is_padding_BW, -torch.inf)
        self.tokens_BWT = torch.cat([self.tokens_BWT[index_B1, beams_BW], tokens_BW[..., None]], -1)
        self.log_probabilities_BWT = torch.cat(
            [self.log_probabilities_BWT[index_B1, beams_BW], log_probabilities_BW[..., None]], -1
        )
        self.rows_B, self.limits_B = self.rows_B[index_B], self.limits_B[index_B]
        self.ended_BS = self.ended_BS[index_B]
        return BeamUpdate(index_B, beams_BW, flat_indices_BW, tokens_BW)

    def _continue_all(self, candidates: _Candidates) -> BeamUpdate:
        """Continue every row with its single beam. This is a fast path of `_continue`."""
        self.sums_BW = candidates.sum_BC
        self.tokens_BWT = torch.cat([self.tokens_BWT, candidates.token_BC[..., None]], -1)
        self.log_probabilities_BWT = torch.cat(
            [self.log_probabilities_BWT, candidates.log_probability_BC[..., None]], -1
        )
        rows_B = torch.arange(len(self.rows_B), device=self.rows_B.device)
        return BeamUpdate(rows_B, candidates.beam_BC, rows_B[:, None], candidates.token_BC)

    def _record(self, trace: Trace, scores: Scores, candidates: _Candidates, statuses: _Statuses) -> None:
        """Add the step to the trace."""
        best_BWK, token_BWK = (tensor.tolist() for tensor in scores.top(trace.alternatives))
        sums_BW = self.sums_BW.tolist()
        fields = (candidates.beam_BC, candidates.token_BC, candidates.log_probability_BC, candidates.sum_BC)
        flags = (statuses.finished_BC, statuses.truncated_BC, statuses.kept_BC)
        columns = [tensor.tolist() for tensor in (*fields, *flags)]
        for index, row in enumerate(self.rows_B.tolist()):
            alternatives = [
                [
                    (token, math.exp(value))
                    for token, value in zip(tokens, values, strict=True)
                    if value > -math.inf
                ]
                for tokens, values, total in zip(
                    token_BWK[index], best_BWK[index], sums_BW[index], strict=True
                )
                if total > -math.inf
            ]
            recorded = [
                Candidate(beam, token, value, total, _status(is_finished, is_truncated, is_kept))
                for beam, token, value, total, is_finished, is_truncated, is_kept in zip(
                    *(column[index] for column in columns), strict=True
                )
                if total > -math.inf
            ]
            trace.rows[row].append(Step(alternatives, recorded))


def _log_total(logits_NV: Tensor) -> Tensor:
    """Return the log-sum-exp of each row, in double precision.

    The search needs few log-probabilities, so it does not compute the log-softmax of the whole vocabulary.
    """
    sums_N1 = logits_NV.exp().sum(-1, keepdim=True)
    if bool(((sums_N1 > SMALLEST_SUM) & (sums_N1 < torch.inf)).all()):
        return sums_N1.double().log()
    largest_N1 = logits_NV.amax(-1, keepdim=True)
    sums_N1 = (logits_NV - largest_N1).exp_().sum(-1, keepdim=True)
    return largest_N1.double() + sums_N1.double().log()


def _fill_gaps(is_kept_B: Tensor) -> Tensor:
    """Return the indices of the kept rows, ordered so that the caches of as few rows as possible move.

    Each kept row keeps its index if possible, and the last ones fill the gaps.
    """
    kept = is_kept_B.nonzero().squeeze(1)
    index = torch.arange(len(kept), device=kept.device)
    index[~is_kept_B[: len(kept)]] = kept[kept >= len(kept)]
    return index


def _status(is_finished: bool, is_truncated: bool, is_kept: bool) -> Status:
    if is_finished:
        return "finished"
    if is_truncated:
        return "truncated"
    return "kept" if is_kept else "dropped"
