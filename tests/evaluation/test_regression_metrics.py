"""Compare metrics of real values with NumPy's and scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest

from glassformer.evaluation.metrics import real_intervals, real_metrics


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_equal_to_the_references(offset: float) -> None:
    random = np.random.default_rng(0)
    actual = random.normal(offset, 2.0, 300)
    predicted = 0.8 * (actual - offset) + offset + random.normal(0, 0.5, 300)
    found = real_metrics(predicted, actual)
    errors = predicted - actual
    assert found["mean_absolute_error"] == pytest.approx(np.abs(errors).mean())
    assert found["root_mean_squared_error"] == pytest.approx(np.sqrt((errors**2).mean()))
    assert found["correlation"] == pytest.approx(np.corrcoef(predicted, actual)[0, 1])
    assert found["r_squared"] == pytest.approx(1 - (errors**2).sum() / ((actual - actual.mean()) ** 2).sum())
    metrics = pytest.importorskip("sklearn.metrics")
    assert found["r_squared"] == pytest.approx(metrics.r2_score(actual, predicted))
    intervals = real_intervals(predicted, actual)
    assert intervals.keys() == found.keys()
    for name, (low, high) in intervals.items():
        assert low < found[name] < high < low + 1


def test_perfect_predictions_have_no_interval() -> None:
    actual = np.arange(20.0)
    assert real_intervals(actual, actual) == {}


def test_what_is_undefined_is_left_out() -> None:
    actual = np.array([1.0, 2.0, 3.0, 4.0], dtype=np.float32)
    errors = {"mean_absolute_error", "root_mean_squared_error"}
    assert real_metrics(np.full(4, 0.1, dtype=np.float32), actual).keys() == errors | {"r_squared"}
    assert real_metrics(actual, np.full(4, 0.1, dtype=np.float32)).keys() == errors
    assert real_metrics(actual[:1], actual[:1]).keys() == errors
    assert real_metrics(actual, actual)["correlation"] == pytest.approx(1)
