"""Statistics of maps whose values are known."""

from __future__ import annotations

import numpy as np
import pytest

from glassformer.inspection.statistics import head_statistics

from .conftest import make_maps

LENGTH = 8


def test_uniform_attention_is_nothing_above_uniform() -> None:
    statistics = head_statistics(make_maps(np.full((LENGTH, LENGTH), 1 / LENGTH))["encoder"])
    for pattern in statistics.patterns.values():
        assert pattern.mass == pytest.approx(1 / LENGTH)
        assert pattern.above_uniform == pytest.approx(0, abs=1e-6)
    assert statistics.entropy == pytest.approx(1)
    assert statistics.distance == pytest.approx((LENGTH**2 - 1) / (3 * LENGTH))


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("diagonal", np.eye(LENGTH)),
        ("anti-diagonal", np.eye(LENGTH)[::-1]),
        ("previous token", np.eye(LENGTH, k=-1) + np.eye(LENGTH)[[0]].T * np.eye(LENGTH)[[0]]),
        ("first token", np.eye(LENGTH)[[0] * LENGTH]),
    ],
)
def test_a_pure_pattern_has_all_of_the_mass(name: str, weights: np.ndarray) -> None:
    statistics = head_statistics(make_maps(weights.copy())["encoder"])
    assert statistics.patterns[name].mass == pytest.approx(1)
    assert statistics.patterns[name].above_uniform == pytest.approx(1 - 1 / LENGTH)
    assert statistics.entropy == pytest.approx(0, abs=1e-6)


def test_uniform_under_a_causal_mask_counts_what_each_row_may_see() -> None:
    allowed = np.tril(np.ones((4, 4), dtype=bool))
    weights = allowed / allowed.sum(1, keepdims=True)
    statistics = head_statistics(make_maps(weights, allowed)["encoder"])
    assert statistics.patterns["first token"].mass == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)
    assert statistics.patterns["first token"].above_uniform == pytest.approx(0, abs=1e-6)
    assert statistics.entropy == pytest.approx(1)


def test_rows_that_may_attend_to_nothing_do_not_count() -> None:
    allowed = np.ones((4, 4), dtype=bool)
    allowed[1] = False
    statistics = head_statistics(make_maps(np.eye(4) * allowed, allowed)["encoder"])
    assert statistics.patterns["diagonal"].mass == pytest.approx(1)
    assert statistics.distance == pytest.approx(0)


def test_a_pattern_without_cells_is_none() -> None:
    document = head_statistics(make_maps(np.ones((1, 1)))["encoder"]).document()
    assert document["patterns"]["previous token"]["mass"] == [[None]]
    assert document["entropy"] == [[None]]
    assert document["patterns"]["diagonal"]["mass"] == [[1.0]]
