"""Compare intervals with each other, with published values, and with their coverage."""

from __future__ import annotations

import numpy as np
import pytest

from glassformer.evaluation import intervals
from glassformer.evaluation.intervals import (
    percentile_interval,
    ratio_interval,
    resampled_sums,
    share_interval,
    wilson_interval,
)


def test_resampling_draws_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(1).integers(0, 9, (50, 3)).astype(np.float64)
    drawn = np.random.default_rng(12345).choice(50, size=(1000, 50), replace=True)
    whole = resampled_sums(rows)
    np.testing.assert_array_equal(whole, rows[drawn].sum(1))
    monkeypatch.setattr(intervals, "_CHUNK_CELLS", 7 * 50)  # in chunks: the same draws
    np.testing.assert_array_equal(resampled_sums(rows), whole)


def test_wilson_against_published_values() -> None:
    # Newcombe, Statistics in Medicine 17 (1998), table I.
    assert wilson_interval(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson_interval(15 / 148, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson_interval(0 / 20, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson_interval(1 / 29, 29) == pytest.approx((0.0061, 0.1718), abs=5e-5)
    assert wilson_interval(1.0, 20) == pytest.approx((0.8389, 1.0), abs=5e-5)


def test_bootstrap_of_an_accuracy_is_near_wilson_and_normal() -> None:
    correct = (np.random.default_rng(0).random(2000) < 0.8).astype(np.float64)
    share = correct.mean()
    half = 1.96 * np.sqrt(share * (1 - share) / 2000)
    resampled = ratio_interval(correct, np.ones(2000))
    assert resampled == pytest.approx((share - half, share + half), abs=0.003)
    assert resampled == pytest.approx(wilson_interval(share, 2000), abs=0.003)
    assert share_interval(correct, np.ones(2000)) == pytest.approx(wilson_interval(share, 2000), abs=1e-12)


def test_tokens_of_one_sequence_are_not_independent() -> None:
    random = np.random.default_rng(0)
    counts = random.integers(5, 40, 400)
    is_easy = random.random(400) < 0.7
    correct = np.where(is_easy, counts, counts // 10).astype(np.float64)
    share = correct.sum() / counts.sum()
    by_sequence, by_token = share_interval(correct, counts), wilson_interval(share, counts.sum())
    assert by_sequence == pytest.approx(ratio_interval(correct, counts), abs=0.006)
    assert by_sequence[1] - by_sequence[0] > 3 * (by_token[1] - by_token[0])


def test_all_correct_is_not_certain() -> None:
    low, high = share_interval(np.full(24, 6), np.full(24, 6))
    assert (low, high) == (pytest.approx(wilson_interval(1.0, 24)[0]), 1.0) and 0.8 < low < 0.9
    assert share_interval(np.zeros(3), np.zeros(3)) == (0.0, 1.0)


def test_equal_examples_have_no_bootstrap_interval() -> None:
    assert ratio_interval(np.full(26, 0.1), np.ones(26)) is None  # sums of 0.1 differ in the last digit
    assert ratio_interval(np.array([3.0]), np.array([2])) is None
    assert percentile_interval(np.zeros(1000)) is None
    almost = np.ones(26)
    almost[0] = 0.0
    low, high = ratio_interval(almost, np.ones(26)) or (1.0, 1.0)
    assert low < 25 / 26 < high


def test_a_mean_is_held_nineteen_times_of_twenty() -> None:
    random = np.random.default_rng(0)
    held = 0
    for _ in range(200):
        losses = random.exponential(2.0, 100)
        interval = percentile_interval(resampled_sums(losses[:, None], 200)[:, 0] / 100)
        assert interval is not None
        low, high = interval
        held += low <= 2.0 <= high
    assert 0.88 <= held / 200 <= 0.98
