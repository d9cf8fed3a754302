"""Baselines beside scikit-learn, and the warning at the end of a training."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassformer.data.batching import Examples
from glassformer.evaluation.baselines import bag_of_words_accuracy, measure_baselines
from glassformer.models.task_types import SequenceClassification
from glassformer.runs.ending import baseline_warnings
from glassformer.runs.experiment import Experiment, resolve
from glassformer.runs.run import Run
from glassformer.runs.session import open_session

TYPE = SequenceClassification(vocabulary=60, max_length=12, outputs=3)


def examples(count: int, seed: int) -> Examples:
    """Return rows in which tokens of one third of the vocabulary are more frequent, by class."""
    random = np.random.default_rng(seed)
    targets = random.choice(3, count, p=[0.5, 0.3, 0.2])
    rows = [
        np.where(random.random(n) < 0.35, 20 * target + random.integers(0, 20, n), random.integers(0, 60, n))
        for target, n in zip(targets, random.integers(3, 12, count), strict=True)
    ]
    return Examples(rows, targets.astype(np.int16))


def test_the_bag_of_words_agrees_with_scikit_learn() -> None:
    pytest.importorskip("sklearn")
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    train, test = examples(600, 0), examples(400, 1)
    texts = [[" ".join(f"t{token}" for token in row) for row in split.inputs] for split in (train, test)]
    vectorizer = TfidfVectorizer(sublinear_tf=True)
    model = LogisticRegression(C=10.0, max_iter=1000, tol=1e-8)
    model.fit(vectorizer.fit_transform(texts[0]), train.targets)
    theirs = model.score(vectorizer.transform(texts[1]), test.targets)
    assert bag_of_words_accuracy(train, test, TYPE) == pytest.approx(theirs, abs=0.01)


def test_the_majority_class_comes_from_train() -> None:
    splits = {"train": examples(300, 0), "test": Examples([np.array([1])] * 4, np.array([0, 0, 1, 2]))}
    assert measure_baselines(splits, "test", TYPE)["majority_class"] == 0.5


def test_tasks_without_classes_have_no_baseline() -> None:
    assert Experiment(resolve("reversal", {"task.train_examples": 50})).baselines("test") == {}


def results(
    accuracy: float, majority: float = 0.5, bag_of_words: float = 0.7, best: int = 5
) -> dict[str, Any]:
    return {
        "metrics": {"test": {"accuracy": accuracy}},
        "baselines": {"test": {"majority_class": majority, "bag_of_words": bag_of_words}},
        "steps": 10,
        "epochs": 2,
        "best_step": best,
    }


class Task:
    def __init__(self) -> None:
        self.splits = {"test": examples(400, 2)}


@pytest.mark.parametrize(
    ("accuracy", "best", "parts"),
    [
        (0.5, 5, ["not clearly better than the majority class (0.5000)", "dropout"]),
        (0.53, 10, ["on 400 examples", "more epochs (training.max_epochs=4)"]),
        (0.6, 5, ["below a bag of words on the same tokens (0.7000)"]),
        (0.69, 5, []),
        (0.9, 5, []),
    ],
)
def test_a_model_that_a_baseline_beats_gets_a_warning(accuracy: float, best: int, parts: list[str]) -> None:
    warnings = baseline_warnings(results(accuracy, best=best), Task())  # type: ignore[arg-type]
    assert len(warnings) == bool(parts)
    for part in parts:
        assert part in warnings[0]


def test_a_classifier_of_noise_is_told_so_at_its_end(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    lines = [f"text number {random.integers(10**6)} of noise\t{random.integers(2)}" for _ in range(200)]
    (tmp_path / "noise.tsv").write_text("\n".join(lines))
    overrides = {"task.data.train": str(tmp_path / "noise.tsv"), "training.max_steps": 20}
    ended = open_session("classification", overrides, run=tmp_path / "run").run()
    assert ended["baselines"]["validation"]["majority_class"] > 0
    assert "not clearly better than the majority class" in ended["warnings"][-1]
    assert Run(tmp_path / "run").folder.results()["warnings"] == ended["warnings"]
