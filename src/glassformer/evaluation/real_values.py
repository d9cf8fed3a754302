"""How near predicted numbers come to the actual ones. Knows arrays, nothing of models."""

from __future__ import annotations

import math

import numpy as np

from glassformer.evaluation.bootstrap import Interval, percentile_interval, resampled_sums


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
