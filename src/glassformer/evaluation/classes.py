"""How well classes are told apart: confusions, F1 of each class, and whether confidence means anything.

Knows arrays of class numbers, nothing of models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from glassformer.evaluation.bootstrap import RESAMPLES, SEED, Interval, percentile_interval, wilson_interval

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
