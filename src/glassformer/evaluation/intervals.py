"""Confidence intervals: bootstrap, Wilson, Student's t."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np

Interval = tuple[float, float]

RESAMPLES = 1000
SEED = 12345
"""Bootstrap seed. It is sacreBLEU's default, so that its command line draws the same sentences."""
NORMAL_QUANTILE = 1.959963984540054
PROTOCOL = (
    f"95 %, over examples; shares: Wilson with the effective number of examples; "
    f"all others: percentiles of {RESAMPLES:,} bootstrap resamples, seed {SEED}, and none if all resamples"
    f" have the same value"
)
DEGENERATE = 1e-9
"""Width of a bootstrap interval, as a fraction of its bounds, below which all resamples have one value."""
_CHUNK_CELLS = 8_000_000
"""Maximum number of elements in an array of drawn example indices, to limit memory."""


def resampled_sums(rows: np.ndarray, resamples: int = RESAMPLES, seed: int = SEED) -> np.ndarray:
    """Return the column sums of bootstrap resamples of `rows` (examples, columns), one row per resample."""
    random = np.random.default_rng(seed)
    number, sums = len(rows), np.empty((resamples, rows.shape[1]))
    size = max(1, _CHUNK_CELLS // max(number, 1))
    for start in range(0, resamples, size):
        draws = min(size, resamples - start)
        drawn = random.choice(number, size=(draws, number), replace=True)
        cells = drawn + number * np.arange(draws)[:, None]
        times_drawn = np.bincount(cells.ravel(), minlength=draws * number).reshape(draws, number)
        sums[start : start + draws] = times_drawn @ rows
    return sums


def percentile_interval(values: np.ndarray) -> Interval | None:
    """Return the 95 % interval of bootstrap values: without the lowest and highest 1/40, as in sacreBLEU.

    Return None if the interval would be a single point. Resamples of equal examples, such as examples that
    are all right, cannot show how much other examples would differ.
    """
    ordered, outside = np.sort(values), len(values) // 40
    low, high = float(ordered[outside]), float(ordered[-1 - outside])
    return None if high - low <= DEGENERATE * max(abs(low), abs(high)) else (low, high)


def ratio_interval(numerators: np.ndarray, denominators: np.ndarray) -> Interval | None:
    """Return the bootstrap confidence interval of a ratio of sums over examples, such as loss per token.

    Return None if all resamples have the same ratio.
    """
    sums = resampled_sums(np.stack([numerators, denominators], axis=1).astype(np.float64))
    return percentile_interval(sums[:, 0] / np.maximum(sums[:, 1], 1))


def wilson_interval(share: float, number: float) -> Interval:
    """Return the Wilson confidence interval, within 0 and 1, of a fraction of `number` independent cases."""
    square = NORMAL_QUANTILE**2
    centre = (share + square / (2 * number)) / (1 + square / number)
    spread = math.sqrt(share * (1 - share) / number + square / (4 * number**2))
    half = NORMAL_QUANTILE * spread / (1 + square / number)
    return max(0.0, min(centre - half, share)), min(1.0, max(centre + half, share))


def share_interval(correct: np.ndarray, counts: np.ndarray) -> Interval:
    """Return the confidence interval of the fraction of correct parts, such as tokens, of the examples.

    Each example has `counts` parts. This is Wilson's interval with the effective number of cases: the number
    of independent cases with the same variance. If the examples do not vary, each one counts as one case.
    """
    total = int(counts.sum())
    if total == 0:
        return 0.0, 1.0
    share = float(correct.sum()) / total
    variance = float(np.square(correct - share * counts).sum()) / total**2
    cases = share * (1 - share) / variance if variance > 0 else float((counts > 0).sum())
    return wilson_interval(share, min(cases, total))


def mean_intervals(
    values: np.ndarray, resamples: int = RESAMPLES
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mean and confidence bounds (low, high) of each column of `values` (examples, columns).

    NaN marks a missing value. With `resamples=0`, low and high are NaN.
    """
    is_there, columns = ~np.isnan(values), values.shape[1]
    known = np.where(is_there, values, 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = known.sum(0) / is_there.sum(0)
        if not resamples:
            return mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan)
        sums = resampled_sums(np.concatenate([known, is_there], axis=1).astype(np.float64), resamples)
        drawn = sums[:, :columns] / sums[:, columns:]
    drawn = np.where(np.isnan(drawn), mean, drawn)  # a resample without any value
    ordered, outside = np.sort(drawn, axis=0), len(drawn) // 40
    return mean, ordered[outside], ordered[-1 - outside]


T_95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


def student_interval(values: Sequence[float]) -> list[float] | None:
    """Return the 95 % confidence interval of the mean by Student's t, or None for fewer than two values."""
    if len(values) < 2:
        return None
    half = _quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.fmean(values)
    return [mean - half, mean + half]


def _quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t, from a table or by the Cornish-Fisher expansion."""
    z = 1.959964
    series = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return T_95.get(freedom, series)
