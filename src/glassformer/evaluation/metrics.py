"""Numbers from counts, and which of two is the better one. Padding never counts."""

from __future__ import annotations

import math

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
