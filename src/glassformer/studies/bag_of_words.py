"""The control: TF-IDF of words and pairs of words, and logistic regression. What a user would pick instead.

It sees the texts of the task's own splits, so the same labels and the same test as a model; scikit-learn does
the rest, and is optional. Nothing here is drawn at random but the bootstrap, which has its own fixed seed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np

from glassformer.evaluation.intervals import Interval, ratio_interval
from glassformer.tasks.classification import ClassificationConfig
from glassformer.tasks.text import DataReport, Texts

NAME = "TF-IDF + logistic regression"
REMEDY = "pip install 'glassformer[classic]'"
STRENGTHS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Of C, from which the validation split chooses; of equals, the most regularised."""


@dataclass(frozen=True)
class Control:
    labels: int
    """How many it was trained on."""
    strength: float
    validation_accuracy: float
    test_accuracy: float
    interval: Interval
    """Of the test accuracy, over test examples."""
    test_examples: int
    features: int
    seconds: float


def is_available() -> bool:
    return find_spec("sklearn") is not None


def measure(task: ClassificationConfig) -> Control:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    started = time.perf_counter()
    splits = task.texts(DataReport())
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    train = vectorizer.fit_transform(_texts(splits["train"]))
    validation, test = (vectorizer.transform(_texts(splits[split])) for split in ("validation", "test"))
    best, best_accuracy, best_strength = None, -1.0, 0.0
    for strength in STRENGTHS:
        model = LogisticRegression(C=strength, max_iter=2000).fit(train, _labels(splits["train"]))
        accuracy = float(_correct(model.predict(validation), splits["validation"]).mean())
        if accuracy > best_accuracy:
            best, best_accuracy, best_strength = model, accuracy, strength
    assert best is not None
    correct = _correct(best.predict(test), splits["test"])
    return Control(
        labels=len(splits["train"]),
        strength=best_strength,
        validation_accuracy=best_accuracy,
        test_accuracy=float(correct.mean()),
        interval=ratio_interval(correct, np.ones(len(correct))),
        test_examples=len(correct),
        features=train.shape[1],
        seconds=round(time.perf_counter() - started, 3),
    )


def _texts(split: Texts) -> list[str]:
    return [str(text) for text in split.column("input")]


def _labels(split: Texts) -> list[str]:
    return [str(label).strip() for label in split.column("target")]


def _correct(predicted: Sequence[str], split: Texts) -> np.ndarray:
    return (np.asarray(predicted) == np.asarray(_labels(split))).astype(np.float64)
