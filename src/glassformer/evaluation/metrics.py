"""Metrics for token, class and real-valued predictions, accumulated batch by batch."""

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

LOWER_IS_BETTER = frozenset(
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


EXPLANATIONS: dict[str, str] = {
    "loss": "mean of -log(probability of the correct output), or of the squared error; 0 is perfect",
    "accuracy": "share of correct tokens, or of correct sequences for a classifier",
    "exact_match": "share of sequences whose tokens are all correct",
    "macro_f1": "mean over the classes of F1, which is high if precision and recall both are",
    "ece": "expected calibration error: mean gap between confidence and accuracy; 0 is perfect",
    "perplexity": "exp(loss): number of equally likely tokens that would be as hard to predict",
    "bits_per_character": "loss in bits per character of text, comparable across tokenizers",
    "bleu": "overlap of 1 to 4 words in a row with the reference translation, from 0 to 100",
    "chrf": "overlap of 1 to 6 characters in a row with the reference translation, from 0 to 100",
    "ter": "edits needed to reach the reference translation, in percent of its words; 0 is perfect",
    "mean_absolute_error": "mean distance between predicted and true value, in units of the target",
    "root_mean_squared_error": "root of the mean squared distance; large errors count more",
    "r_squared": "share of the variance of the targets that the predictions explain; 1 is perfect",
    "correlation": "linear correlation of predictions and targets, from -1 to 1",
}
"""One-sentence explanation of each metric, by name."""


def perplexity(loss: float) -> float:
    """Return the perplexity of a mean loss. It is finite, because the loss is capped at 700."""
    return math.exp(min(loss, 700.0))


def is_better(name: str, new: float, old: float | None) -> bool:
    """Return True if `new` is better than `old`: lower for losses and errors, else higher. NaN is worst."""
    if math.isnan(new):
        return False
    if old is None or math.isnan(old):
        return True
    return new < old if lower_is_better(name) else new > old


def lower_is_better(name: str) -> bool:
    """Return True for metrics that are losses, perplexities or errors."""
    return name in LOWER_IS_BETTER


def reaches(name: str, value: float, target: float) -> bool:
    """Return True if a metric's value is at least as good as the target."""
    return value <= target if lower_is_better(name) else value >= target


Progress = Callable[[str, int, int], None]
"""Callback that receives the name of an activity, the number of steps done, and the total of steps."""


@dataclass(frozen=True)
class Decoded:
    """Generated outputs for examples of a split, in the order of the split."""

    numbers: np.ndarray
    """Indices of the examples in the split."""
    outputs: list[list[int]]
    references: list[list[int]]
    lines: list[str]
    """Outputs as text."""


@dataclass(frozen=True)
class Measured:
    """Result of an evaluation: metrics, and how the numbers were measured."""

    metrics: dict[str, float]
    intervals: dict[str, Interval] = field(default_factory=dict)
    """Confidence intervals (95 %) of the metrics that have one."""
    protocol: dict[str, Any] = field(default_factory=dict)
    """Settings that affect a number besides model and data, such as a scorer's signature."""
    details: dict[str, Any] = field(default_factory=dict)
    """Confusion matrix and calibration, as a JSON-serialisable dict."""
    decoded: Decoded | None = None

    def merge(self, later: Measured) -> Measured:
        """Combine two results. If both have a value of the same name, `later` wins."""
        return Measured(
            self.metrics | later.metrics,
            self.intervals | later.intervals,
            self.protocol | later.protocol,
            self.details | later.details,
            later.decoded or self.decoded,
        )


class SplitOfExamples(Protocol):
    """Protocol of a split, with the methods that evaluation needs."""

    def __len__(self) -> int: ...
    def lengths(self) -> np.ndarray: ...


class Evaluable(Protocol):
    """Protocol of a task, with the methods that evaluation needs. `tasks/base.py` documents them."""

    generates_outputs: ClassVar[bool]

    @property
    def splits(self) -> Mapping[str, SplitOfExamples]: ...
    def batch(self, split: str, indices: np.ndarray, epoch: int | None = None) -> Batch: ...
    def output_symbols(self, tokens: Sequence[int]) -> list[str]: ...
    def count_characters(self, split: str) -> int | None: ...
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
CALIBRATION_PROTOCOL = (
    f"ece (expected calibration error): {CALIBRATION_BINS} bins of equal width"
    " over the likeliest class's probability"
)
MAX_CONFUSION_CLASSES = 200
"""Maximum number of classes for which the details of a result contain the confusion matrix."""


@dataclass(frozen=True)
class Classified:
    """Predicted class, actual class and probability of the predicted class, one entry per example."""

    predicted: np.ndarray
    actual: np.ndarray
    confidence: np.ndarray
    classes: int

    def __len__(self) -> int:
        return len(self.actual)

    @cached_property
    def confusion(self) -> np.ndarray:
        """Confusion matrix: rows are actual classes, columns predicted ones."""
        cells = self.actual * self.classes + self.predicted
        return np.bincount(cells, minlength=self.classes**2).reshape(self.classes, self.classes)

    def accuracy_interval(self) -> Interval:
        """Return the Wilson confidence interval of the accuracy."""
        return wilson_interval(float((self.predicted == self.actual).mean()), len(self))

    def macro_f1(self) -> float:
        """Return the mean F1 over all classes that occur as a prediction or as a target."""
        both, predicted, actual = self._class_counts()
        return float(_macro_f1(both[None], (predicted + actual)[None])[0]) if len(self) else 0.0

    def macro_f1_interval(self) -> Interval | None:
        """Return the bootstrap interval of macro-F1, resampled as counts of the confusion matrix, or None."""
        cells, filled = np.unique(self.actual * self.classes + self.predicted, return_counts=True)
        drawn = np.random.default_rng(SEED).multinomial(len(self), filled / len(self), size=RESAMPLES)
        rows, columns = np.divmod(cells, self.classes)
        is_row, is_column = (
            (side[:, None] == np.union1d(rows, columns)).astype(np.float64) for side in (rows, columns)
        )
        return percentile_interval(_macro_f1(drawn @ (is_row * is_column), drawn @ (is_row + is_column)))

    def per_class(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return one dict per class with precision, recall and F1. Undefined values are None."""
        return _per_class(names, self._class_counts())

    def calibration(self) -> list[dict[str, Any]]:
        """Return mean confidence and accuracy of ten confidence bins of equal width, one dict per bin."""
        numbers, confidence, correct = self._bins()
        bins = []
        for index, number in enumerate(numbers):
            bins.append(
                {
                    "from": index / CALIBRATION_BINS,
                    "to": (index + 1) / CALIBRATION_BINS,
                    "examples": int(number),
                    "confidence": float(confidence[index] / number) if number else None,
                    "accuracy": float(correct[index] / number) if number else None,
                }
            )
        return bins

    def expected_calibration_error(self) -> float:
        """Return the mean |confidence − accuracy| over confidence bins, weighted by number of examples."""
        _, confidence, correct = self._bins()
        return float(np.abs(confidence - correct).sum() / max(len(self), 1))

    def details(self, names: Sequence[str]) -> dict[str, Any]:
        """Return per-class metrics, calibration and confusion matrix as a JSON-serialisable dict."""
        found: dict[str, Any] = {
            "classes": list(names),
            "per_class": self.per_class(names),
            "calibration": {
                "mean_confidence": float(self.confidence.mean()),
                "bins": self.calibration(),
            },
        }
        if self.classes <= MAX_CONFUSION_CLASSES:
            found["confusion"] = self.confusion.tolist()
        return found

    def _class_counts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the numbers of correct, predicted and actual examples of each class."""
        both = np.bincount(self.actual[self.predicted == self.actual], minlength=self.classes)
        predicted = np.bincount(self.predicted, minlength=self.classes)
        return both, predicted, np.bincount(self.actual, minlength=self.classes)

    def _bins(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return number of examples, sum of confidences and number correct of each confidence bin."""
        bins = np.ceil(self.confidence * CALIBRATION_BINS).astype(np.int64) - 1
        bins = bins.clip(0, CALIBRATION_BINS - 1)
        correct = (self.predicted == self.actual).astype(np.float64)
        return (
            np.bincount(bins, minlength=CALIBRATION_BINS),
            np.bincount(bins, weights=self.confidence, minlength=CALIBRATION_BINS),
            np.bincount(bins, weights=correct, minlength=CALIBRATION_BINS),
        )


def _per_class(names: Sequence[str], counts: Sequence[np.ndarray]) -> list[dict[str, Any]]:
    """Return one dict per class, from the numbers of correct, predicted and actual examples of each class."""
    return [
        {
            "class": name,
            "precision": float(both / predicted) if predicted else None,
            "recall": float(both / actual) if actual else None,
            "f1": float(2 * both / (predicted + actual)) if predicted + actual else None,
            "examples": int(actual),
        }
        for name, both, predicted, actual in zip(names, *counts, strict=True)
    ]


def _macro_f1(both: np.ndarray, predicted_and_actual: np.ndarray) -> np.ndarray:
    """Return the macro-F1 of each row of counts by class. Classes that do not occur in a row are left out."""
    occurs = predicted_and_actual > 0
    f1 = np.divide(2.0 * both, predicted_and_actual, out=np.zeros(both.shape), where=occurs)
    return np.asarray(f1.sum(1) / np.maximum(occurs.sum(1), 1))


def real_metrics(predicted: np.ndarray, actual: np.ndarray) -> dict[str, float]:
    """Return regression metrics by name, without undefined ones such as the correlation of a constant."""
    values = _metrics(_statistics(predicted, actual).sum(0, keepdims=True))
    return {name: float(value[0]) for name, value in values.items() if math.isfinite(value[0])}


def real_intervals(predicted: np.ndarray, actual: np.ndarray) -> dict[str, Interval]:
    """Return bootstrap confidence intervals of the regression metrics, by name."""
    values = _metrics(resampled_sums(_statistics(predicted, actual)))
    finite = {name: value for name, value in values.items() if np.isfinite(value).all()}
    return known_intervals({name: percentile_interval(value) for name, value in finite.items()})


def known_intervals(intervals: Mapping[str, Interval | None]) -> dict[str, Interval]:
    """Return the intervals that are not None, by name."""
    return {name: interval for name, interval in intervals.items() if interval is not None}


def _statistics(predicted: np.ndarray, actual: np.ndarray) -> np.ndarray:
    """Return statistics whose sums determine all regression metrics, one row per example."""
    # Subtract the mean: squares of numbers far from 0 would lose digits.
    centre = actual.mean() if len(actual) else 0.0
    p, a = predicted.astype(np.float64) - centre, actual.astype(np.float64) - centre
    return np.stack([np.ones_like(a), abs(p - a), (p - a) ** 2, p, a, p * p, a * a, p * a], axis=1)


def _metrics(sums: np.ndarray) -> dict[str, np.ndarray]:
    """Compute the regression metrics from sums of `_statistics`, one value per row of sums."""
    number, absolute, squared, p, a, pp, aa, pa = sums.T
    # Below this, a variance is rounding error and the numbers are equal.
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
    """Accumulator of losses and predictions over batches, for metrics and their confidence intervals."""

    def __init__(self, model: Model, *, is_thorough: bool) -> None:
        self.model = model
        self.is_thorough = is_thorough
        self.loss = 0.0
        self.correct = 0
        self.count = 0
        self._columns: dict[str, list[np.ndarray]] = {}
        self.class_counts: np.ndarray | None = None
        """Numbers of correct, predicted and actual tokens of each class; None for other tasks."""

    def add(self, batch: Batch) -> None:
        """Run the model on a batch and add its losses and predictions."""
        if batch.targets.ndim == 1:
            self._add_sequences(batch)
        else:
            self._add_tokens(batch)

    def _add_tokens(self, batch: Batch) -> None:
        """Add a batch with one target per token, if possible without holding all logits in memory."""
        head, targets_BL = self.model.head, batch.targets
        count_B = (targets_BL != IGNORED).sum(-1)
        is_tagger = self.is_thorough and isinstance(self.model.task_type, TokenClassification)
        if isinstance(head, ClassHead) and head.is_plain:
            hidden_BLD = self.model.hidden(**batch.inputs)
            losses_BL, hits_BL = head.loss_per_target(hidden_BLD, targets_BL, self.model.tied_weight())
            loss_B = losses_BL.double().sum(-1)
            if is_tagger:
                predicted_BL = head(hidden_BLD, self.model.tied_weight()).argmax(-1)
        else:
            logits_BLV = self.model(**batch.inputs)
            loss_B = self._row_losses(logits_BLV, targets_BL)
            predicted_BL = logits_BLV.argmax(-1)
            hits_BL = (predicted_BL == targets_BL) & (targets_BL != IGNORED)
        if is_tagger:
            self._count_classes(predicted_BL, targets_BL)
        self.loss += float(loss_B.sum())
        self.correct += int(hits_BL.sum())
        self.count += int(count_B.sum())
        for name, values in (("loss", loss_B), ("count", count_B), ("correct", hits_BL.sum(-1))):
            self._append(name, values)

    def _count_classes(self, predicted_BL: Tensor, targets_BL: Tensor) -> None:
        """Add the numbers of correct, predicted and actual tokens of each class."""
        is_target = targets_BL != IGNORED
        predicted, actual = predicted_BL[is_target].cpu().numpy(), targets_BL[is_target].cpu().numpy()
        task_type = self.model.task_type
        assert isinstance(task_type, TokenClassification)
        counted = (predicted[predicted == actual], predicted, actual)
        counts = np.stack([np.bincount(each, minlength=task_type.classes) for each in counted])
        self.class_counts = counts if self.class_counts is None else self.class_counts + counts

    def _add_sequences(self, batch: Batch) -> None:
        """Add a batch with one target per sequence."""
        outputs = self.model(**batch.inputs)
        loss_output = self.model.head.compute_loss(outputs, batch.targets)
        self.loss += float(loss_output.loss)
        self.correct += int(loss_output.correct)
        self.count += int(loss_output.count)
        if self.is_thorough:
            self._append("loss", self._row_losses(outputs, batch.targets))
        self._append("count", torch.ones_like(batch.targets))
        self._append("actual", batch.targets)
        if batch.targets.is_floating_point():
            self._append("predicted", outputs.squeeze(-1))
        else:
            self._append("predicted", outputs.argmax(-1))
            self._append("confidence", outputs.float().softmax(-1).amax(-1))

    def _append(self, name: str, values: Tensor) -> None:
        """Append one value per example to a column."""
        self._columns.setdefault(name, []).append(values.cpu().numpy())

    def _row_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each example."""
        compute_loss = self.model.head.compute_loss
        rows = zip(outputs.split(1), targets.split(1), strict=True)
        return torch.stack([compute_loss(output, target).loss for output, target in rows]).cpu().double()

    def column(self, name: str) -> np.ndarray:
        """Return one value per example, in the order in which the examples were added."""
        arrays = self._columns.get(name)
        return np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int64)

    def mean_loss(self) -> float:
        """Return the mean loss per target."""
        return self.loss / max(self.count, 1)

    def accuracy(self) -> float:
        """Return the fraction of targets that were predicted correctly."""
        return self.correct / max(self.count, 1)

    def measured(self, task: Evaluable, split: str) -> Measured:
        """Return the metrics of all added examples, which depend on the model's task type."""
        measure = _BY_TASK_TYPE.get(type(self.model.task_type), _tokens)
        measured = Measured({"loss": self.mean_loss()}).merge(measure(self, task, split))
        if not self.is_thorough or not self.count:
            return measured
        intervals = known_intervals({"loss": self.loss_interval(), **measured.intervals})
        return Measured(measured.metrics, intervals, measured.protocol, measured.details)

    def loss_interval(self) -> Interval | None:
        """Return the bootstrap confidence interval of the mean loss, or None."""
        return ratio_interval(self.column("loss"), self.column("count"))


def _tokens(tally: Tally, task: Evaluable, split: str) -> Measured:
    metrics = {"accuracy": tally.accuracy()}
    if not tally.is_thorough:
        return Measured(metrics)
    return Measured(metrics, {"accuracy": share_interval(tally.column("correct"), tally.column("count"))})


def _token_classes(tally: Tally, task: Evaluable, split: str) -> Measured:
    is_exact = tally.column("correct") == tally.column("count")
    exact = Measured({"exact_match": float(is_exact.sum() / max(len(is_exact), 1))})
    if tally.is_thorough:
        exact.intervals["exact_match"] = share_interval(is_exact, np.ones(len(is_exact)))
    if tally.class_counts is not None:
        both, predicted, actual = tally.class_counts
        names = [" ".join(task.output_symbols([number])) for number in range(len(both))]
        macro_f1 = float(_macro_f1(both[None], (predicted + actual)[None])[0])
        exact.details.update(
            classes=names, per_class=_per_class(names, [both, predicted, actual]), macro_f1=macro_f1
        )
    return _tokens(tally, task, split).merge(exact)


def _sequence_outputs(tally: Tally, task: Evaluable, split: str) -> Measured:
    predicted, actual = tally.column("predicted"), tally.column("actual")
    task_type = tally.model.task_type
    assert isinstance(task_type, SequenceClassification)
    if task_type.is_regression:
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
        known_intervals(
            {"accuracy": classified.accuracy_interval(), "macro_f1": classified.macro_f1_interval()}
        ),
        {"calibration": CALIBRATION_PROTOCOL},
        classified.details([" ".join(task.output_symbols([number])) for number in range(task_type.outputs)]),
    )


def _language(tally: Tally, task: Evaluable, split: str) -> Measured:
    functions: dict[str, Callable[[float], float]] = {"perplexity": perplexity}
    # The number of characters is known for a whole split only.
    is_whole = len(tally.column("count")) == len(task.splits[split])
    characters = task.count_characters(split) if is_whole else None
    if characters:
        tokens_per_character = tally.count / characters
        functions["bits_per_character"] = lambda loss: loss * tokens_per_character / math.log(2)
    derived = Measured({name: function(tally.mean_loss()) for name, function in functions.items()})
    if tally.is_thorough and tally.count:
        if (interval := tally.loss_interval()) is not None:
            low, high = interval
            derived.intervals.update(
                {name: (function(low), function(high)) for name, function in functions.items()}
            )
        derived.protocol.update({"characters": characters} if characters else {})
    return _tokens(tally, task, split).merge(derived)


_BY_TASK_TYPE: dict[type[TaskType], Callable[[Tally, Evaluable, str], Measured]] = {
    TokenClassification: _token_classes,
    SequenceClassification: _sequence_outputs,
    CausalLM: _language,
    MaskedLM: _language,
}
