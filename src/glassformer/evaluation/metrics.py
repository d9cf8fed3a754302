"""Metrics of tokens, classes and real values, gathered batch by batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from glassformer.blocks.heads import IGNORED, ClassHead
from glassformer.data.batching import Batch
from glassformer.evaluation.intervals import (
    RESAMPLES,
    SEED,
    Interval,
    percentile_interval,
    ratio_interval,
    resampled_sums,
    share_interval,
    wilson_interval,
)
from glassformer.generation import DecodingConfig
from glassformer.models.base import Model
from glassformer.models.task_types import (
    CausalLM,
    MaskedLM,
    SequenceClassification,
    TaskType,
    TokenClassification,
)

FALLING = frozenset(
    {
        "loss",
        "perplexity",
        "bits_per_character",
        "ter",
        "ece",
        "mean_absolute_error",
        "root_mean_squared_error",
    }
)


def perplexity(loss: float) -> float:
    return math.exp(min(loss, 700.0))


def is_better(name: str, new: float, old: float | None) -> bool:
    """Losses, perplexities and errors fall; everything else rises. NaN is never better."""
    if math.isnan(new):
        return False
    if old is None or math.isnan(old):
        return True
    return new < old if falls(name) else new > old


def falls(name: str) -> bool:
    return name in FALLING


def reaches(name: str, value: float, target: float) -> bool:
    return value <= target if falls(name) else value >= target


Progress = Callable[[str, int, int], None]
"""DataReport what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True)
class Decoded:
    """What a model wrote by itself for examples of a split, in the split's order."""

    numbers: np.ndarray
    """Which examples."""
    outputs: list[list[int]]
    references: list[list[int]]
    lines: list[str]
    """The outputs as a person reads them."""


@dataclass(frozen=True)
class Measured:
    metrics: dict[str, float]
    intervals: dict[str, Interval] = field(default_factory=dict)
    """95 %, for the metrics that have one."""
    protocol: dict[str, Any] = field(default_factory=dict)
    """What a number depends on besides the model and the data, such as a scorer's signature."""
    details: dict[str, Any] = field(default_factory=dict)
    """As JSON: confusions, calibration."""
    decoded: Decoded | None = None

    def and_then(self, later: Measured) -> Measured:
        """Both; where they name the same, the later one."""
        return Measured(
            self.metrics | later.metrics,
            self.intervals | later.intervals,
            self.protocol | later.protocol,
            self.details | later.details,
            later.decoded or self.decoded,
        )


class SplitOfExamples(Protocol):
    def __len__(self) -> int: ...
    def lengths(self) -> np.ndarray: ...


class Evaluable(Protocol):
    """What the evaluator needs of a task; `tasks/base.py` says what each means."""

    generates_outputs: ClassVar[bool]

    @property
    def splits(self) -> Mapping[str, SplitOfExamples]: ...
    def batch(self, split: str, indices: np.ndarray, epoch: int | None = None) -> Batch: ...
    def output_symbols(self, tokens: Sequence[int]) -> list[str]: ...
    def characters(self, split: str) -> int | None: ...
    def text_pairs(self, split: str) -> tuple[Sequence[str], Sequence[str]] | None: ...
    def compare(
        self, outputs: Sequence[Sequence[int]], references: Sequence[Sequence[int]]
    ) -> dict[str, float]: ...
    def decode(
        self,
        model: Model,
        split: str,
        batches: Sequence[np.ndarray],
        decoding: DecodingConfig,
        progress: Progress | None = None,
    ) -> Decoded: ...


CALIBRATION_BINS = 10
CALIBRATION_PROTOCOL = f"ece: {CALIBRATION_BINS} bins of equal width over the likeliest class's probability"
MOST_CLASSES_IN_A_MATRIX = 200


@dataclass(frozen=True)
class Classified:
    """Class numbers below `classes`, and how likely the predicted class was said to be, an example each."""

    predicted: np.ndarray
    actual: np.ndarray
    confidence: np.ndarray
    classes: int

    def __len__(self) -> int:
        return len(self.actual)

    @cached_property
    def confusion(self) -> np.ndarray:
        """How often each class (row) was taken for each class (column)."""
        cells = self.actual * self.classes + self.predicted
        return np.bincount(cells, minlength=self.classes**2).reshape(self.classes, self.classes)

    def accuracy_interval(self) -> Interval:
        return wilson_interval(float((self.predicted == self.actual).mean()), len(self))

    def macro_f1(self) -> float:
        """The mean F1 over the classes that occur, predicted or actual."""
        both, predicted, actual = self._class_counts()
        return float(_macro_f1(both[None], (predicted + actual)[None])[0]) if len(self) else 0.0

    def macro_f1_interval(self) -> Interval:
        """To draw examples is to draw cells of the confusion matrix as often as they are filled."""
        cells, filled = np.unique(self.actual * self.classes + self.predicted, return_counts=True)
        drawn = np.random.default_rng(SEED).multinomial(len(self), filled / len(self), size=RESAMPLES)
        rows, columns = np.divmod(cells, self.classes)
        is_row, is_column = (
            (side[:, None] == np.union1d(rows, columns)).astype(np.float64) for side in (rows, columns)
        )
        return percentile_interval(_macro_f1(drawn @ (is_row * is_column), drawn @ (is_row + is_column)))

    def per_class(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """A class that was never predicted has no precision, one that never occurs no recall."""
        table = []
        for name, both, predicted, actual in zip(names, *self._class_counts(), strict=True):
            table.append(
                {
                    "class": name,
                    "precision": float(both / predicted) if predicted else None,
                    "recall": float(both / actual) if actual else None,
                    "f1": float(2 * both / (predicted + actual)) if predicted + actual else None,
                    "examples": int(actual),
                }
            )
        return table

    def calibration(self) -> list[dict[str, Any]]:
        """Examples by confidence, ten bins of equal width: how sure the model was, how often it was right."""
        numbers, confidence, correct = self._bins()
        bins = []
        for place, number in enumerate(numbers):
            bins.append(
                {
                    "from": place / CALIBRATION_BINS,
                    "to": (place + 1) / CALIBRATION_BINS,
                    "examples": int(number),
                    "confidence": float(confidence[place] / number) if number else None,
                    "accuracy": float(correct[place] / number) if number else None,
                }
            )
        return bins

    def expected_calibration_error(self) -> float:
        """The distance between confidence and accuracy, over the bins, weighed by their examples."""
        _, confidence, correct = self._bins()
        return float(np.abs(confidence - correct).sum() / max(len(self), 1))

    def details(self, names: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {
            "classes": list(names),
            "per_class": self.per_class(names),
            "calibration": {
                "mean_confidence": float(self.confidence.mean()),
                "bins": self.calibration(),
            },
        }
        if self.classes <= MOST_CLASSES_IN_A_MATRIX:
            found["confusion"] = self.confusion.tolist()
        return found

    def _class_counts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        both = np.bincount(self.actual[self.predicted == self.actual], minlength=self.classes)
        predicted = np.bincount(self.predicted, minlength=self.classes)
        return both, predicted, np.bincount(self.actual, minlength=self.classes)

    def _bins(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        place = np.ceil(self.confidence * CALIBRATION_BINS).astype(np.int64) - 1
        place = place.clip(0, CALIBRATION_BINS - 1)
        correct = (self.predicted == self.actual).astype(np.float64)
        return (
            np.bincount(place, minlength=CALIBRATION_BINS),
            np.bincount(place, weights=self.confidence, minlength=CALIBRATION_BINS),
            np.bincount(place, weights=correct, minlength=CALIBRATION_BINS),
        )


def _macro_f1(both: np.ndarray, predicted_and_actual: np.ndarray) -> np.ndarray:
    """For rows of counts by class; what occurs nowhere in a row does not count there."""
    occurs = predicted_and_actual > 0
    f1 = np.divide(2.0 * both, predicted_and_actual, out=np.zeros(both.shape), where=occurs)
    return np.asarray(f1.sum(1) / np.maximum(occurs.sum(1), 1))


def real_metrics(predicted: np.ndarray, actual: np.ndarray) -> dict[str, float]:
    """Without those that are undefined: numbers that are all the same have no correlation."""
    values = _metrics(_statistics(predicted, actual).sum(0, keepdims=True))
    return {name: float(value[0]) for name, value in values.items() if math.isfinite(value[0])}


def real_intervals(predicted: np.ndarray, actual: np.ndarray) -> dict[str, Interval]:
    values = _metrics(resampled_sums(_statistics(predicted, actual)))
    return {name: percentile_interval(value) for name, value in values.items() if np.isfinite(value).all()}


def _statistics(predicted: np.ndarray, actual: np.ndarray) -> np.ndarray:
    """What all metrics follow from by sums, an example a row."""
    # Numbers far from 0 would lose their digits in the squares.
    centre = actual.mean() if len(actual) else 0.0
    p, a = predicted.astype(np.float64) - centre, actual.astype(np.float64) - centre
    return np.stack([np.ones_like(a), abs(p - a), (p - a) ** 2, p, a, p * p, a * a, p * a], axis=1)


def _metrics(sums: np.ndarray) -> dict[str, np.ndarray]:
    number, absolute, squared, p, a, pp, aa, pa = sums.T
    # Below this a spread is rounding: the numbers are all the same.
    tiny = 1e-12 * np.maximum(aa + pp, np.finfo(np.float64).tiny)
    with np.errstate(divide="ignore", invalid="ignore"):
        spread_p, spread_a = pp - p * p / number, aa - a * a / number
        spread_p, spread_a = (np.where(spread > tiny, spread, np.nan) for spread in (spread_p, spread_a))
        return {
            "mean_absolute_error": absolute / np.maximum(number, 1),
            "root_mean_squared_error": np.sqrt(squared / np.maximum(number, 1)),
            "r_squared": 1 - squared / spread_a,
            "correlation": (pa - p * a / number) / np.sqrt(spread_p * spread_a),
        }


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
            losses_BL, hits_BL = head.loss_per_target(hidden_BLD, targets_BL, self.model.tied_weight())
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
        loss_output = self.model.head.compute_loss(answers, batch.targets)
        self.loss += float(loss_output.loss)
        self.correct += int(loss_output.correct)
        self.count += int(loss_output.count)
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
        compute_loss = self.model.head.compute_loss
        rows = zip(answers.split(1), targets.split(1), strict=True)
        return torch.stack([compute_loss(answer, target).loss for answer, target in rows]).cpu().double()

    def column(self, name: str) -> np.ndarray:
        """A number for each example, in the order in which they came."""
        kept = self._columns.get(name)
        return np.concatenate(kept) if kept else np.zeros(0, dtype=np.int64)

    def mean_loss(self) -> float:
        return self.loss / max(self.count, 1)

    def accuracy(self) -> float:
        return self.correct / max(self.count, 1)

    def measured(self, task: Evaluable, split: str) -> Measured:
        measure = _OF_SHAPE.get(type(self.model.task_type), _tokens)
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
    task_type = tally.model.task_type
    assert isinstance(task_type, SequenceClassification)
    if task_type.is_real:
        intervals = real_intervals(predicted, actual) if tally.is_thorough else {}
        return Measured(real_metrics(predicted, actual), intervals)
    classified = Classified(predicted, actual, tally.column("confidence"), task_type.outputs)
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
        classified.details([" ".join(task.output_symbols([number])) for number in range(task_type.outputs)]),
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


_OF_SHAPE: dict[type[TaskType], Callable[[Tally, Evaluable, str], Measured]] = {
    TokenClassification: _per_token,
    SequenceClassification: _per_sequence,
    CausalLM: _language,
    MaskedLM: _language,
}
