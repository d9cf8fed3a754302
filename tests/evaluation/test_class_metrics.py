"""Compare confusion matrix, F1 and calibration with scikit-learn and with counts by hand."""

from __future__ import annotations

import numpy as np
import pytest

from glassformer.evaluation.intervals import percentile_interval
from glassformer.evaluation.metrics import Classified

CLASSES = 5


@pytest.fixture
def classified() -> Classified:
    """Five classes: the last never occurs, and the fourth is never predicted."""
    random = np.random.default_rng(0)
    actual = random.choice(4, 400, p=[0.5, 0.3, 0.15, 0.05])
    predicted = np.where(random.random(400) < 0.7, actual, random.integers(0, 3, 400))
    predicted[predicted == 3] = 0
    return Classified(predicted, actual, 0.3 + 0.7 * random.random(400), CLASSES)


def test_equal_to_scikit_learn(classified: Classified) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    actual, predicted = classified.actual, classified.predicted
    expected = metrics.confusion_matrix(actual, predicted, labels=range(CLASSES))
    np.testing.assert_array_equal(classified.confusion, expected)
    assert classified.macro_f1() == pytest.approx(metrics.f1_score(actual, predicted, average="macro"))
    precision, recall, f1, support = metrics.precision_recall_fscore_support(
        actual, predicted, labels=range(CLASSES), zero_division=np.nan
    )
    for number, row in enumerate(classified.per_class("abcde")):
        theirs = [precision[number], recall[number], f1[number]]
        ours = [row["precision"], row["recall"], row["f1"]]
        assert [np.nan if value is None else value for value in ours] == pytest.approx(theirs, nan_ok=True)
        assert row["examples"] == support[number]


def test_by_hand() -> None:
    classified = Classified(
        predicted=np.array([0, 0, 1, 1, 1]),
        actual=np.array([0, 1, 1, 1, 0]),
        confidence=np.array([0.95, 0.65, 1.0, 0.65, 0.7]),
        classes=3,
    )
    assert classified.confusion.tolist() == [[1, 1, 0], [1, 2, 0], [0, 0, 0]]
    # F1 of class 0: 2·1/(2+2); of class 1: 2·2/(3+3); class 2 does not occur and does not count.
    assert classified.macro_f1() == pytest.approx((1 / 2 + 2 / 3) / 2)
    # Bin 0.6 to 0.7 holds three, confidence 2.0 in sum, one right; bin 0.9 to 1.0 two, 1.95, two right.
    assert classified.expected_calibration_error() == pytest.approx((1.0 + 0.05) / 5)
    bins = classified.calibration()
    assert [row["examples"] for row in bins] == [0, 0, 0, 0, 0, 0, 3, 0, 0, 2]
    assert bins[6] == {
        "from": 0.6,
        "to": 0.7,
        "examples": 3,
        "confidence": pytest.approx(2 / 3),
        "accuracy": pytest.approx(1 / 3),
    }
    assert bins[0]["accuracy"] is None
    details = classified.details(["no", "yes", "never"])
    assert details["calibration"]["mean_confidence"] == pytest.approx(3.95 / 5)
    assert details["per_class"][2] == {
        "class": "never",
        "precision": None,
        "recall": None,
        "f1": None,
        "examples": 0,
    }


def test_interval_of_macro_f1_is_that_of_drawing_examples(classified: Classified) -> None:
    random = np.random.default_rng(3)
    values = []
    for _ in range(1000):
        drawn = random.integers(0, len(classified), len(classified))
        again = Classified(
            classified.predicted[drawn], classified.actual[drawn], classified.confidence[drawn], CLASSES
        )
        values.append(again.macro_f1())
    assert classified.macro_f1_interval() == pytest.approx(percentile_interval(np.array(values)), abs=0.01)


def test_macro_f1_of_examples_that_are_all_right_has_no_interval() -> None:
    right = np.arange(26) % CLASSES
    classified = Classified(right, right, np.ones(26), CLASSES)
    assert classified.macro_f1() == 1
    # Resamples may lack a class, but F1 is 1 in all of them. The accuracy shows how little 26 examples mean.
    assert classified.macro_f1_interval() is None
    assert classified.accuracy_interval() == (pytest.approx(0.87127, abs=1e-4), 1.0)


def test_a_calibrated_model_has_a_small_error() -> None:
    random = np.random.default_rng(0)
    confidence = 0.5 + 0.5 * random.random(20_000)
    actual = np.zeros(20_000, dtype=np.int64)
    honest = (random.random(20_000) > confidence).astype(np.int64)
    assert Classified(honest, actual, confidence, 2).expected_calibration_error() < 0.02
    too_sure = Classified(honest, actual, np.ones(20_000), 2)
    assert too_sure.expected_calibration_error() == pytest.approx(honest.mean())
