"""Probes: equal to scikit-learn, exact where a label is in the input, and independent of the batch."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glassformer.cli import main
from glassformer.core.errors import ErrorDetail, UserError
from glassformer.inspection.probes import (
    Erasure,
    ProbeResult,
    collect,
    fit,
    label_names,
    labelled_batches,
    predicted,
    probe,
)
from glassformer.models.base import Model
from glassformer.runs.experiment import Experiment
from glassformer.tasks.arithmetic import _carry

from .conftest import experiment
from .test_patching import FEW, TASKS, sharpened

MANY = {**FEW, "train_examples": 150, "test_examples": 60}


def probe_of(built: Experiment, model: Model, label: str, size: int = 20_000, **options: Any) -> ProbeResult:
    split = "test" if "test" in built.task.splits else "validation"
    counts = {name: np.arange(min(200, len(built.task.splits[name]))) for name in ("train", split)}
    train, test = (
        partial(labelled_batches, built.task, label, name, indices, size) for name, indices in counts.items()
    )
    measured = [each.batch for each in test()]
    options = {"untrained": [built.build_model().eval()], "removes": False} | options
    return probe(model, built.task, label, train, test, measured=measured, split=split, **options)


@pytest.mark.thorough
def test_a_probe_equals_scikit_learn() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    random = np.random.default_rng(0)
    x = random.normal(size=(300, 8)) * random.uniform(0.1, 10, 8) + random.normal(size=8)
    y = (x @ random.normal(size=(8, 3)) + 3 * random.normal(size=(300, 3))).argmax(1)
    weight, bias = fit(
        torch.tensor(x, dtype=torch.float32)[None], torch.tensor(y)[None, None], torch.ones(1, 1, 300), 3
    )
    scaled = (x - x.mean(0)) / x.std(0)
    theirs = linear_model.LogisticRegression(C=1.0, tol=1e-8, max_iter=1000).fit(scaled, y)
    logits = torch.tensor(x, dtype=torch.float32) @ weight[0, 0].T + bias[0, 0]
    np.testing.assert_allclose(logits.softmax(-1).numpy(), theirs.predict_proba(scaled), atol=2e-3)
    ours = predicted(torch.tensor(x, dtype=torch.float32)[None], weight, bias)[0, 0].numpy()
    assert (ours == theirs.predict(scaled)).mean() > 0.99


def test_fits_in_a_batch_equal_single_fits() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(3, 80, 6), torch.randint(0, 4, (3, 2, 80))
    weight, _ = fit(x, y, torch.ones(3, 2, 80), 4)
    for group in range(3):
        for task in range(2):
            alone, _ = fit(x[group][None], y[group, task][None, None], torch.ones(1, 1, 80), 4)
            torch.testing.assert_close(weight[group, task], alone[0, 0], atol=2e-2, rtol=0)


def test_the_token_itself_is_read_at_the_embedding_and_a_control_needs_more_width() -> None:
    """The states are token embeddings. One coordinate has the label `half`, and none has a control label."""
    built = experiment({"kind": "copy", "length": 6, "categories": 40, **MANY}, hidden_dim=8)
    model = built.build_model().eval()
    found = probe_of(built, model, "token", names=["encoder.embedding"])
    assert found.rows[0].accuracy == found.rows[0].untrained == 1.0
    assert len(found.classes) == 40 and found.coverage == 1

    built = experiment({"kind": "copy", "length": 6, "categories": 120, **MANY}, hidden_dim=4)
    model = built.build_model().eval()
    with torch.no_grad():
        model.token_embedding()[:, 0] = 5 * torch.sign(torch.arange(120) - 59.5)  # type: ignore[index]

    def halves(name: str, split: str, indices: list[int]) -> list[dict[str, list[str]]]:
        rows = built.task.splits[split].inputs
        return [
            {"encoder": ["upper" if token > 59 else "lower" for token in rows[index]]} for index in indices
        ]

    built.task.label_names = lambda: {"half": "half of the vocabulary"}  # type: ignore[method-assign]
    built.task.position_labels = halves  # type: ignore[assignment, method-assign]
    row = probe_of(built, model, "half", names=["encoder.embedding"]).rows[0]
    assert row.accuracy == 1.0 and row.position is None
    assert row.control is not None and row.control < 0.66  # chance is 0.5
    assert row.selectivity == pytest.approx(1 - row.control)
    low, high = row.selectivity_interval or (0, 0)
    assert low < row.selectivity < high and row.untrained < 0.8


@pytest.mark.parametrize("name", TASKS)
def test_results_do_not_depend_on_the_batch_size_or_padding(name: str) -> None:
    built = experiment(TASKS[name])
    model, split = sharpened(built), "test" if "test" in built.task.splits else "validation"
    indices = np.arange(min(24, len(built.task.splits[split])))
    sites = ["encoder.0.residual_post", "encoder.1.residual_post"]
    together, alone = (
        collect(model, labelled_batches(built.task, "token", split, indices, size), sites)
        for size in (20_000, 1)
    )
    for site in sites:
        torch.testing.assert_close(together[site].states_ND, alone[site].states_ND, atol=1e-5, rtol=0)
        assert together[site].labels.tolist() == alone[site].labels.tolist()
        assert together[site].examples.tolist() == alone[site].examples.tolist()


def test_probes_do_not_depend_on_the_batch_size() -> None:
    built = experiment(TASKS["seq2seq"])
    model = sharpened(built)
    results = [probe_of(built, model, "sign", size, names=["*.1.residual_post"]) for size in (20_000, 1)]
    for one, other in zip(*(result.rows for result in results), strict=True):
        assert one.accuracy == pytest.approx(other.accuracy, abs=0.05)
    assert {row.site.split(".")[0] for row in results[0].rows} == {"encoder", "decoder"}
    assert {row.position for row in results[0].rows} == {None, *range(9)}


def test_labels_of_arithmetic() -> None:
    task = experiment({"kind": "arithmetic", "max_examples": 60}).task
    assert [
        _carry(27, 35),
        _carry(21, 35),
        _carry(27, -35),
        _carry(27, -32),
        _carry(-9, -1),
        _carry(0, 0),
    ] == [
        "carry",
        "no carry",
        "carry",
        "carry",
        "carry",
        "no carry",
    ]
    assert _carry(35, -24) == "no carry"
    for index in range(20):
        tokens = task.splits["train"].inputs[index].tolist()
        first, operation, second = task._read_expression(" ".join(task.input_symbols(tokens)))  # type: ignore[attr-defined]
        result = first + second if operation == 0 else first - second
        (digits,) = task.position_labels("digit", "train", [index])
        tens, ones = divmod(abs(result), 10)
        assert digits["encoder"] == [None, None, tens, ones, None, None, tens, ones, None]
        assert digits["decoder"] == [None, tens, ones, None]
        (sign,) = task.position_labels("sign", "train", [index])
        assert set(sign["decoder"]) == {"NEGATIVE" if result < 0 else "POSITIVE"}


def test_labels_of_the_grammar() -> None:
    task = experiment({"kind": "translation", "examples": 300, "max_length": 60}).task
    assert {"gender", "number", "tense", "negation", "token", "position", "output"} == set(label_names(task))
    indices = list(range(len(task.splits["test"].inputs)))
    found = {name: task.position_labels(name, "test", indices) for name in task.label_names()}
    texts = task.input_texts("test", indices)
    for index, text in enumerate(texts):
        for name, values in (
            ("gender", {"masculine", "feminine", None}),
            ("number", {"singular", "plural", None}),
            ("tense", {"present", "past", "future"}),
            ("negation", {"negated", "affirmative"}),
        ):
            labels = found[name][index]
            assert len(labels["encoder"]) == len(task.splits["test"].inputs[index])
            assert len(labels["decoder"]) == len(task.splits["test"].targets[index]) - 1
            assert set(labels["encoder"]) <= values
        if " not " in text and " that " not in text and text.count(" not ") == 1 and "," not in text:
            clauses = any(word in text for word in (" if ", " when ", " because ", " and ", " but ", " who "))
            assert clauses or set(found["negation"][index]["encoder"]) == {"negated"}
    # The article of the French target agrees with its noun.
    symbols = [task.output_symbols(row[:-1].tolist()) for row in task.splits["test"].targets]
    genders = {
        label
        for row, own in zip(symbols, found["gender"], strict=True)
        for symbol, label in zip(row, own["decoder"], strict=True)
        if symbol.strip("▁") == "une" and label
    }
    assert genders <= {"feminine"}


def test_what_is_removed_can_no_longer_be_read() -> None:
    torch.manual_seed(0)
    y = torch.randint(0, 3, (400,))
    x = (torch.randn(400, 12) + 2 * torch.randn(3, 12)[y]) * torch.logspace(-2, 2, 12)
    erasure = Erasure.of(x, y, 3)
    assert erasure.rank == 2
    left = erasure.apply(x)
    for label in range(3):  # the means of the classes are equal
        torch.testing.assert_close(
            left[y == label].mean(0) / x.std(0), x.mean(0) / x.std(0), atol=1e-4, rtol=0
        )
    torch.testing.assert_close(erasure.apply(left), left, atol=1e-4, rtol=1e-4)
    ones = torch.ones(1, 1, 400)
    for states, least, most in ((x, 0.9, 1.0), (left, 0.2, 0.45)):
        guesses = predicted(states[None], *fit(states[None], y[None, None], ones, 3))[0, 0]
        assert least <= float((guesses == y).float().mean()) <= most
    by_chance = erasure.random(0)
    assert by_chance.rank == 2 and not torch.allclose(by_chance.apply(x), left)


def test_removing_the_token_from_every_position_changes_the_loss() -> None:
    built = experiment({"kind": "copy", "length": 5, "categories": 6, **MANY})
    found = probe_of(built, sharpened(built), "token", names=["encoder.embedding"], removes=True)
    (removal,) = found.removals
    assert removal.rank == 5 and removal.accuracy <= removal.majority + 0.15
    assert removal.loss.change != 0 and removal.loss.interval is not None
    document = json.loads(json.dumps(found.document()))
    assert document["trust"] == "fact" and document["removals"][0]["trust"] == "cause"


def test_wrong_labels_and_sites_are_explained() -> None:
    built = experiment(TASKS["tokens"])
    model = sharpened(built)
    with pytest.raises(ErrorDetail, match="no such label"):
        probe_of(built, model, "carry")
    with pytest.raises(ErrorDetail, match="no vector per position"):
        probe_of(built, model, "token", names=["encoder.0.heads"])
    with pytest.raises(UserError, match="no such site"):
        probe_of(built, model, "token", names=["encoder.9.attention"])


def test_the_verb(trained_once: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ("--examples", "20", "--seeds", "1")
    for suffix in ("png", "csv"):
        out = tmp_path / f"probes.{suffix}"
        assert main(["probe", str(trained_once), "token", *few, "--out", str(out), "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["label"] == "token" and out.stat().st_size > 100
    keys = {"site", "position", "accuracy", "control", "selectivity", "untrained", "interval"}
    assert keys <= set(document["rows"][0])
    assert main(["probe", str(trained_once), "--json"]) == 0
    assert {"token", "position", "output"} <= set(json.loads(capsys.readouterr().out)["labels"])
    assert main(["probe", str(trained_once), "token", "--split", "train"]) == 2
    assert "measure them on validation or test" in capsys.readouterr().err


def test_a_column_of_a_file(trained_once: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The label is the first token, so that the embedding of position 0 has it."""
    random = np.random.default_rng(0)
    rows = [random.integers(0, 2, 3).tolist() for _ in range(60)]
    lines = ["input,first", *(f"{' '.join(map(str, row))},{'odd' if row[0] else 'even'}" for row in rows)]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(lines) + "\n")
    command = ["probe", str(trained_once), "first", "--file", str(path), "--seeds", "1", "--json"]
    assert main(command) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["classes"] == ["even", "odd"] and document["split"] == "rows.csv"
    first = next(row for row in document["rows"] if row["position"] == 0)
    assert first["accuracy"] == 1.0
    assert main(["probe", str(trained_once), "last", "--file", str(path)]) == 2
    assert "no such column" in capsys.readouterr().err
