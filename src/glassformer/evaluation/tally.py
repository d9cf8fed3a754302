"""Sums over teacher-forced batches of any size, and the metrics that follow from the shape of the answer."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from glassformer.data.batching import IGNORED, Batch
from glassformer.evaluation.bootstrap import Interval, ratio_interval, share_interval
from glassformer.evaluation.classes import CALIBRATION_PROTOCOL, Classified
from glassformer.evaluation.interface import Evaluable, Measured
from glassformer.evaluation.metrics import perplexity
from glassformer.evaluation.real_values import real_intervals, real_metrics
from glassformer.models.base import Model
from glassformer.models.heads import ClassHead
from glassformer.models.shapes import MaskedToken, NextToken, PerSequence, PerToken, Shape


class Tally:
    """With `is_thorough` it also keeps what intervals need: the loss of each example."""

    def __init__(self, model: Model, *, is_thorough: bool) -> None:
        self.model = model
        self.is_thorough = is_thorough
        self.loss = 0.0
        self.correct = 0
        self.count = 0
        self._columns: dict[str, list[np.ndarray]] = {}

    def add(self, batch: Batch) -> None:
        if batch.targets.ndim == 1:
            self._add_sequences(batch)
        else:
            self._add_tokens(batch)

    def _add_tokens(self, batch: Batch) -> None:
        """If it can be, without the answers: those of a large vocabulary would not fit into memory."""
        head, targets_BL = self.model.head, batch.targets
        count_B = (targets_BL != IGNORED).sum(-1)
        if isinstance(head, ClassHead) and head.is_plain:
            hidden_BLD = self.model.hidden(**batch.inputs)
            losses_BL, hits_BL = head.score_each(hidden_BLD, targets_BL, self.model.tied_weight())
            loss_B = losses_BL.double().sum(-1)
        else:
            answers = self.model(**batch.inputs)
            loss_B = self._row_losses(answers, targets_BL)
            hits_BL = (answers.argmax(-1) == targets_BL) & (targets_BL != IGNORED)
        self.loss += float(loss_B.sum())
        self.correct += int(hits_BL.sum())
        self.count += int(count_B.sum())
        for name, values in (("loss", loss_B), ("count", count_B), ("correct", hits_BL.sum(-1))):
            self._keep(name, values)

    def _add_sequences(self, batch: Batch) -> None:
        answers = self.model(**batch.inputs)
        score = self.model.head.score(answers, batch.targets)
        self.loss += float(score.loss)
        self.correct += int(score.correct)
        self.count += int(score.count)
        if self.is_thorough:
            self._keep("loss", self._row_losses(answers, batch.targets))
        self._keep("count", torch.ones_like(batch.targets))
        self._keep("actual", batch.targets)
        if batch.targets.is_floating_point():
            self._keep("predicted", answers.squeeze(-1))
        else:
            self._keep("predicted", answers.argmax(-1))
            self._keep("confidence", answers.float().softmax(-1).amax(-1))

    def _keep(self, name: str, values: Tensor) -> None:
        self._columns.setdefault(name, []).append(values.cpu().numpy())

    def _row_losses(self, answers: Tensor, targets: Tensor) -> Tensor:
        score = self.model.head.score
        rows = zip(answers.split(1), targets.split(1), strict=True)
        return torch.stack([score(answer, target).loss for answer, target in rows]).cpu().double()

    def column(self, name: str) -> np.ndarray:
        """A number for each example, in the order in which they came."""
        kept = self._columns.get(name)
        return np.concatenate(kept) if kept else np.zeros(0, dtype=np.int64)

    def mean_loss(self) -> float:
        return self.loss / max(self.count, 1)

    def accuracy(self) -> float:
        return self.correct / max(self.count, 1)

    def measured(self, task: Evaluable, split: str) -> Measured:
        measure = _OF_SHAPE.get(type(self.model.shape), _tokens)
        measured = Measured({"loss": self.mean_loss()}).and_then(measure(self, task, split))
        if not self.is_thorough or not self.count:
            return measured
        intervals = {"loss": self.loss_interval(), **measured.intervals}
        return Measured(measured.metrics, intervals, measured.protocol, measured.details)

    def loss_interval(self) -> Interval:
        return ratio_interval(self.column("loss"), self.column("count"))


def _tokens(tally: Tally, task: Evaluable, split: str) -> Measured:
    metrics = {"accuracy": tally.accuracy()}
    if not tally.is_thorough:
        return Measured(metrics)
    return Measured(metrics, {"accuracy": share_interval(tally.column("correct"), tally.column("count"))})


def _per_token(tally: Tally, task: Evaluable, split: str) -> Measured:
    is_exact = tally.column("correct") == tally.column("count")
    exact = Measured({"exact_match": float(is_exact.sum() / max(len(is_exact), 1))})
    if tally.is_thorough:
        exact.intervals["exact_match"] = share_interval(is_exact, np.ones(len(is_exact)))
    return _tokens(tally, task, split).and_then(exact)


def _per_sequence(tally: Tally, task: Evaluable, split: str) -> Measured:
    predicted, actual = tally.column("predicted"), tally.column("actual")
    shape = tally.model.shape
    assert isinstance(shape, PerSequence)
    if shape.is_real:
        intervals = real_intervals(predicted, actual) if tally.is_thorough else {}
        return Measured(real_metrics(predicted, actual), intervals)
    classified = Classified(predicted, actual, tally.column("confidence"), shape.outputs)
    metrics = {
        "accuracy": tally.accuracy(),
        "macro_f1": classified.macro_f1(),
        "ece": classified.expected_calibration_error(),
    }
    if not tally.is_thorough:
        return Measured(metrics)
    return Measured(
        metrics,
        {"accuracy": classified.accuracy_interval(), "macro_f1": classified.macro_f1_interval()},
        {"calibration": CALIBRATION_PROTOCOL},
        classified.details([" ".join(task.output_symbols([number])) for number in range(shape.outputs)]),
    )


def _language(tally: Tally, task: Evaluable, split: str) -> Measured:
    of_loss: dict[str, Callable[[float], float]] = {"perplexity": perplexity}
    # The number of characters is that of a whole split.
    is_whole = len(tally.column("count")) == len(task.splits[split])
    characters = task.characters(split) if is_whole else None
    if characters:
        tokens_a_character = tally.count / characters
        of_loss["bits_per_character"] = lambda loss: loss * tokens_a_character / math.log(2)
    other_words = Measured({name: function(tally.mean_loss()) for name, function in of_loss.items()})
    if tally.is_thorough and tally.count:
        low, high = tally.loss_interval()
        other_words.intervals.update(
            {name: (function(low), function(high)) for name, function in of_loss.items()}
        )
        other_words.protocol.update({"characters": characters} if characters else {})
    return _tokens(tally, task, split).and_then(other_words)


_OF_SHAPE: dict[type[Shape], Callable[[Tally, Evaluable, str], Measured]] = {
    PerToken: _per_token,
    PerSequence: _per_sequence,
    NextToken: _language,
    MaskedToken: _language,
}
