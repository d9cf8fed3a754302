"""Numbers from counts. Padding never counts."""

from __future__ import annotations

import math

import numpy as np


def perplexity(loss: float) -> float:
    return math.exp(min(loss, 700.0))


def macro_f1(predicted: np.ndarray, actual: np.ndarray) -> float:
    """The mean F1 over the classes that occur in either."""
    scores = []
    for label in np.union1d(predicted, actual):
        both = int(((predicted == label) & (actual == label)).sum())
        either = int((predicted == label).sum() + (actual == label).sum())
        scores.append(2 * both / either)
    return float(np.mean(scores)) if scores else 0.0


def is_better(name: str, new: float, old: float | None) -> bool:
    """Losses, perplexities and errors fall; everything else rises. NaN is never better."""
    if math.isnan(new):
        return False
    if old is None or math.isnan(old):
        return True
    return new < old if falls(name) else new > old


def falls(name: str) -> bool:
    return name in {"loss", "perplexity", "bits_per_character", "ter", "mean_absolute_error"}


def reaches(name: str, value: float, target: float) -> bool:
    return value <= target if falls(name) else value >= target
