"""Baselines beside scikit-learn, and the warning at the end of a training."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassformer.data.batching import Examples
from glassformer.evaluation.baselines import bag_of_words_accuracy, measure_baselines
from glassformer.models.task_types import SequenceClassification
from glassformer.runs.ending import baseline_warnings, closing_lines, describe_baselines
from glassformer.runs.experiment import Experiment, resolve
from glassformer.runs.run import Run
from glassformer.runs.session import open_session

OWN_TEXTS = resolve("classification", {"task.data.train": "mine.csv"})
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


def test_a_split_with_other_proportions_names_its_best_constant() -> None:
    """Measure a validation split in which the majority class of train is rare."""
    splits = {
        "train": Examples([np.array([1])] * 10, np.array([0] * 6 + [1] * 4)),
        "validation": Examples([np.array([1])] * 19, np.array([0] * 4 + [1] * 15)),
    }
    names = ["negative", "positive"]
    found = measure_baselines(splits, "validation", TYPE, names.__getitem__)
    assert (found["majority_label"], found["best_constant_label"]) == ("negative", "positive")
    assert found["majority_class"] == pytest.approx(4 / 19)
    text = describe_baselines(found)
    assert "0.2105 always 'negative', the majority class of train" in text
    assert "0.7895 always 'positive', the most frequent class here" in text
    measured = results(0.75) | {"metrics": {"test": {"accuracy": 0.75}}, "baselines": {"test": found}}
    (warning,) = baseline_warnings(measured, Task(), OWN_TEXTS)  # type: ignore[arg-type]
    assert "not clearly better than always 'positive' (0.7895)" in warning


def test_tasks_without_classes_have_no_baseline() -> None:
    assert Experiment(resolve("reversal", {"task.train_examples": 50})).baselines("test") == {}


def results(
    accuracy: float, majority: float = 0.5, bag_of_words: float = 0.7, best: int = 5, train: float = 1.0
) -> dict[str, Any]:
    return {
        "train_metrics": {"accuracy": train},
        "metrics": {"test": {"accuracy": accuracy}},
        "baselines": {"test": {"majority_class": majority, "bag_of_words": bag_of_words}},
        "steps": 10,
        "epochs": 2,
        "best_step": best,
        "uses_last": False,
        "ended": "max_epochs",
    }


class Task:
    def __init__(self) -> None:
        self.splits = {"test": examples(400, 2)}


@pytest.mark.parametrize(
    ("accuracy", "best", "parts"),
    [
        (0.5, 5, ["not clearly better than the majority class (0.5000)", "dropout"]),
        (0.53, 10, ["on 400 examples", "more epochs (training.max_epochs=4)"]),
        (
            0.6,
            5,
            ["below a bag of words on the same tokens", "a linear model", "(a bag of words has 0.7000)"],
        ),
        (0.69, 5, []),
        (0.9, 5, []),
    ],
)
def test_a_model_that_a_baseline_beats_gets_a_warning(accuracy: float, best: int, parts: list[str]) -> None:
    warnings = baseline_warnings(results(accuracy, best=best), Task(), OWN_TEXTS)  # type: ignore[arg-type]
    assert len(warnings) == bool(parts)
    for part in parts:
        assert part in warnings[0]


def advice(train: float, *overrides: str) -> str:
    """Return the warning for a test accuracy of 0.6, below a bag of words."""
    config = resolve("classification", ["task.data.train=mine.csv", *overrides])
    (warning,) = baseline_warnings(results(0.6, train=train), Task(), config)  # type: ignore[arg-type]
    return warning


def test_the_advice_for_underfitting_is_the_opposite_of_that_for_overfitting() -> None:
    underfitted = advice(0.66)
    for option in ("model.dropout=0.1", "model.stochastic_depth=0", "model.num_layers=2", "more epochs"):
        assert option in underfitted
    assert "more model.dropout" not in underfitted and "accuracy 0.6600" in underfitted
    assert "model.num_layers" not in advice(0.66, "model.num_layers=2")
    assert "more model.dropout" in advice(1.0) and "more model.dropout" in advice(0.8)


def test_fewer_layers_are_advised_only_if_there_are_several() -> None:
    assert "fewer model.num_layers" not in advice(1.0)
    assert "fewer model.num_layers" in advice(1.0, "model.num_layers=2")


@pytest.mark.parametrize(
    ("error", "highest", "r_squared", "is_warned"),
    [(1.0, 1.2, 0.5, False), (1.0, 2.1, 0.3, True), (3.0, 3.5, -0.1, True), (1.0, 1.2, -0.1, True)],
)
def test_a_regression_that_the_mean_beats_gets_a_warning(
    error: float, highest: float, r_squared: float, is_warned: bool
) -> None:
    ended = results(0.0) | {
        "metrics": {"test": {"mean_absolute_error": error, "r_squared": r_squared}},
        "intervals": {"test": {"mean_absolute_error": (0.9 * error, highest)}},
        "baselines": {"test": {"train_mean": 2.0}},
        "train_metrics": {"r_squared": 0.99},
    }
    warnings = baseline_warnings(ended, Task(), OWN_TEXTS)  # type: ignore[arg-type]
    assert len(warnings) == is_warned
    for warning in warnings:
        assert "not clearly better than the mean of the training targets (2.0000)" in warning


def test_the_baseline_of_a_regression_is_the_mean_of_the_training_targets() -> None:
    rows = [np.array([1])] * 2
    splits = {"train": Examples(rows, np.array([1.0, 3.0])), "test": Examples(rows, np.array([2.0, 7.0]))}
    number = SequenceClassification(vocabulary=4, max_length=3, is_regression=True)
    assert measure_baselines(splits, "test", number) == {"train_mean": 2.5}


def test_a_regression_of_large_numbers_beats_their_mean(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    effect = random.normal(0, 60, 12)
    rows = [random.integers(0, 12, 5) for _ in range(300)]
    lines = [" ".join(f"w{word}" for word in row) + f"\t{1000 + effect[row].sum()}" for row in rows]
    (tmp_path / "sums.tsv").write_text("\n".join(lines))
    overrides = {
        "task.data.train": str(tmp_path / "sums.tsv"),
        "task.target": "number",
        "training.max_steps": 150,
    }
    ended = open_session("classification", overrides, run=tmp_path / "run").run()
    constant = ended["baselines"]["validation"]["train_mean"]
    assert ended["metrics"]["validation"]["mean_absolute_error"] < 0.6 * constant
    assert ended["warnings"] == []
    run = Run(tmp_path / "run")
    assert run.evaluate()["metrics"] == ended["metrics"]["validation"]
    assert 700 < float(run.predict("w1 w2 w3")["output"]) < 1300


def test_an_interrupted_regression_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    lines = [f"w{i % 7} w{i % 5}\t{1000 + 10 * (i % 7) - 30 * (i % 5)}" for i in range(250)]
    (tmp_path / "sums.tsv").write_text("\n".join(lines))
    data = {"task.data.train": str(tmp_path / "sums.tsv"), "task.target": "number"}
    ended = []
    for name, stops_at in (("whole", 99), ("parts", 13)):
        session = open_session("classification", data | {"training.max_steps": 30}, run=tmp_path / name)
        session.should_stop = lambda stop=stops_at, of=session: of.trainer.state.step == stop  # type: ignore[misc]
        session.run()
        ended.append(open_session(str(tmp_path / name), resume=True).run())
    whole, parts = ended
    assert parts["resumed_from"] == 13
    assert parts["metrics"] == whole["metrics"] and parts["baselines"] == whole["baselines"]


@pytest.mark.parametrize(("count", "uses_last"), [(100, True), (400, False)])
def test_ten_validation_texts_do_not_select_a_checkpoint(tmp_path: Path, count: int, uses_last: bool) -> None:
    random = np.random.default_rng(3)
    lines = [f"text number {random.integers(10**6)} of noise\t{random.integers(2)}" for _ in range(count)]
    (tmp_path / "noise.tsv").write_text("\n".join(lines))
    overrides = {"task.data.train": str(tmp_path / "noise.tsv"), "training.max_steps": 80}
    session = open_session("classification", overrides, run=tmp_path / "run")
    ended = session.run()
    assert ended["uses_last"] == uses_last
    assert (ended["best_step"] == 80) == uses_last  # noise: validation is best before the end
    assert any("the last checkpoint is used" in line for line in closing_lines(ended)) == uses_last


def test_a_classifier_of_noise_is_told_so_at_its_end(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    lines = [f"text number {random.integers(10**6)} of noise\t{random.integers(2)}" for _ in range(200)]
    (tmp_path / "noise.tsv").write_text("\n".join(lines))
    overrides = {"task.data.train": str(tmp_path / "noise.tsv"), "training.max_steps": 20}
    ended = open_session("classification", overrides, run=tmp_path / "run").run()
    assert ended["baselines"]["validation"]["majority_class"] > 0
    assert "not clearly better than always '" in ended["warnings"][-1]
    run = Run(tmp_path / "run")
    assert run.folder.results()["warnings"] == ended["warnings"]
    assert run.evaluate()["warnings"][-1] == ended["warnings"][-1] and ended["warnings"][-1] in repr(run)
    again = open_session(str(tmp_path / "run"), resume=True).run()
    assert again["warnings"] == ended["warnings"]
