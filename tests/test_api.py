"""Front door of the library: `gf.train` on data in memory, of every kind and container, and `gf.sweep`."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glassformer as gf
from glassformer.api import TASKS
from glassformer.training.trainer import Trainer

FEW_STEPS = {
    "training.max_steps": 4,
    "training.max_epochs": None,
    "training.validation_examples": 20,
    "model.hidden_dim": 16,
}
TEXTS = [f"a {mood} film number {number}" for number in range(40) for mood in ("good", "bad")]
LABELLED = [[f"w{number % 7}", "x", "y"] for number in range(40)]
ROWS = np.random.default_rng(0).integers(0, 5, (80, 6))


def train(tmp_path: Path, **options: Any) -> gf.Run:
    return gf.train(overrides=FEW_STEPS, run=tmp_path / "run", progress=False, **options)


KINDS: dict[str, tuple[Any, Any, str]] = {
    "classification": (TEXTS, ["pos", "neg"] * 40, "a good one"),
    "regression": (TEXTS, [0.5, 1.5] * 40, "a good one"),
    "translation": (TEXTS, [text.replace("film", "livre") for text in TEXTS], "a good film"),
    "language-model": (TEXTS, None, "a good"),
    "token-classification": (ROWS, ROWS[:, ::-1], "1 2 3 4 0 1"),
    "sequence-classification": (ROWS, (ROWS.sum(1) % 2).tolist(), "1 2 3 4 0 1"),
    "sequence-regression": (ROWS, ROWS.sum(1) / 2, "1 2 3 4 0 1"),
    "sequence-to-sequence": (ROWS, [row[:3] for row in ROWS], "1 2 3 4 0 1"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_data_is_inferred_trained_and_predicted(kind: str, tmp_path: Path) -> None:
    inputs, targets, question = KINDS[kind]
    run = train(tmp_path, inputs=inputs, targets=targets)
    expected = TASKS[kind].get("preset", "tokens")
    assert run.config.task.kind == expected
    assert getattr(run.config.task, "target", None) == TASKS[kind].get(
        "task.target", getattr(run.config.task, "target", None)
    )
    assert run.evaluate("validation")["examples"] > 0
    one, (first, second) = run.predict(question), run.predict([question, question])
    assert one["error"] is None and one["output"] is not None
    assert first["output"] == second["output"] == one["output"]
    assert str(run.path) in repr(run)
    if kind == "language-model":
        with pytest.raises(gf.UserError, match="prompt: expected one text"):
            run.generate(5)  # type: ignore[arg-type]


def containers() -> dict[str, Callable[[list[Any]], Any]]:
    return {
        "tuple": tuple,
        "numpy": np.array,
        "pandas": lambda values: pytest.importorskip("pandas").Series(values),
        "polars": lambda values: pytest.importorskip("polars").Series(values),
        "generator": lambda values: (value for value in values),
    }


@pytest.mark.parametrize("container", containers())
def test_every_container_holds_the_same_data(container: str, tmp_path: Path) -> None:
    make = containers()[container]
    lists = gf.train(
        inputs=TEXTS, targets=["pos", "neg"] * 40, overrides=FEW_STEPS, run=tmp_path / "lists", progress=False
    )
    other = train(tmp_path, inputs=make(TEXTS), targets=make(["pos", "neg"] * 40))
    assert [run.evaluate("validation")["metrics"] for run in (lists, other)].count(
        lists.evaluate("validation")["metrics"]
    ) == 2


def test_tensors_are_sequences_of_tokens(tmp_path: Path) -> None:
    run = train(tmp_path, inputs=torch.tensor(ROWS), targets=torch.tensor(ROWS).flip(1))
    assert run.config.task.target == "token-labels"


def test_given_splits_are_used(tmp_path: Path) -> None:
    run = train(
        tmp_path,
        inputs=TEXTS,
        targets=["pos", "neg"] * 40,
        validation=(["a fine film", "a poor film"], ["pos", "neg"]),
        test=(["one good film"], ["pos"]),
    )
    assert run.evaluate("validation")["examples"] == 2
    assert run.evaluate("test")["examples"] == 1


def test_a_finished_run_on_data_in_memory_resumes(tmp_path: Path) -> None:
    options = {"inputs": TEXTS, "targets": ["pos", "neg"] * 40}
    first = train(tmp_path, **options)
    with pytest.raises(gf.UserError, match="already contains a run"):
        train(tmp_path, **options)
    again = train(tmp_path, **options, resume=True)
    assert again.evaluate("validation")["metrics"] == first.evaluate("validation")["metrics"]


def data_of(run: gf.Run) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (run.path / "data").iterdir()}


def test_resuming_with_other_data_leaves_the_data_of_the_run(tmp_path: Path) -> None:
    run = train(tmp_path, inputs=TEXTS, targets=["pos", "neg"] * 40)
    data, metrics = data_of(run), run.evaluate("validation")["metrics"]
    with pytest.raises(gf.UserError, match="trained on other data: train differs"):
        train(tmp_path, inputs=TEXTS, targets=["neg", "pos"] * 40, resume=True)
    assert data_of(run) == data
    again = gf.train(run.path, resume=True, progress=False)
    assert again.evaluate("validation")["metrics"] == metrics


def test_missing_data_are_restored_by_the_same_data_only(tmp_path: Path) -> None:
    run = train(tmp_path, inputs=TEXTS, targets=["pos", "neg"] * 40)
    data = data_of(run)
    (run.path / "data" / "train.jsonl").unlink()
    with pytest.raises(gf.UserError, match="the data have changed"):
        train(tmp_path, inputs=TEXTS, targets=["neg", "pos"] * 40, resume=True)
    assert data_of(run) == {}
    train(tmp_path, inputs=TEXTS, targets=["pos", "neg"] * 40, resume=True)
    assert data_of(run) == data


def test_changed_data_in_the_run_folder_are_not_evaluated(tmp_path: Path) -> None:
    run = train(tmp_path, inputs=TEXTS, targets=["pos", "neg"] * 40)
    file = run.path / "data" / "train.jsonl"
    file.write_text(
        file.read_text().replace('"pos"', '"none"').replace('"neg"', '"pos"').replace("none", "neg")
    )
    with pytest.raises(gf.UserError, match="the data have changed"):
        gf.Run(run.path).evaluate("validation")


def test_a_run_is_resumed_by_its_folder_alone_or_with_its_data(tmp_path: Path) -> None:
    data = {"inputs": TEXTS, "targets": ["pos", "neg"] * 40}
    first = train(tmp_path, **data)
    for options in ({}, data):  # without the overrides of the first call
        again = gf.train(run=first.path, resume=True, progress=False, **options)
        assert again.config == first.config
    with pytest.raises(gf.UserError, match="no such run"):
        gf.train(run=tmp_path / "none", resume=True)


@pytest.mark.parametrize(("number", "error"), [("SIGINT", KeyboardInterrupt), ("SIGTERM", SystemExit)])
def test_a_stopped_training_raises_once_it_is_saved(
    number: str, error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = Trainer.fit

    def stop_and_fit(trainer: Trainer) -> Any:
        os.kill(os.getpid(), signal.Signals[number])
        return fit(trainer)

    monkeypatch.setattr(Trainer, "fit", stop_and_fit)
    with pytest.raises(error) as raised:
        train(tmp_path, inputs=TEXTS, targets=["pos", "neg"] * 40)
    if number == "SIGINT":
        assert f"gf.train({str(tmp_path / 'run')!r}, resume=True)" in str(raised.value)
    monkeypatch.undo()
    run = gf.train(run=tmp_path / "run", resume=True, progress=False)
    assert run.folder.results()["steps"] == 4


def test_columns_of_a_table_are_joined(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"title": TEXTS, "body": TEXTS[::-1], "label": ["pos", "neg"] * 40})
    run = train(tmp_path, inputs=table[["title", "body"]], targets=table["label"])
    first = json.loads((run.path / "data" / "train.jsonl").read_text().splitlines()[0])
    assert first["input"] == f"{TEXTS[0]} | {TEXTS[-1]}"


def draw() -> tuple[Any, ...]:
    return torch.rand(2).tolist(), np.random.rand(2).tolist(), random.random()


def test_a_training_keeps_the_random_states_of_the_caller(tmp_path: Path) -> None:
    for seed in (1, 2):
        found = []
        for is_training in (False, True):
            torch.manual_seed(seed), np.random.seed(seed), random.seed(seed)
            if is_training:
                options = {"inputs": TEXTS, "targets": LABELS, "overrides": FEW_STEPS, "progress": False}
                gf.train(run=tmp_path / f"{seed}", **options)
                gf.train(run=tmp_path / f"{seed}", resume=True, progress=False)
            found.append(draw())
        assert found[0] == found[1]


def test_numpy_values_are_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"training.max_steps": np.int64(4), "model.dropout": np.float32(0.25)}
    run = gf.train(
        inputs=TEXTS, targets=LABELS, overrides=FEW_STEPS | options, run=tmp_path / "run", progress=False
    )
    assert run.config.training.max_steps == 4 and run.config.model.dropout == 0.25
    defined: list[Any] = []

    def run_sweep(definition: Any, *arguments: Any, **options: Any) -> tuple[dict[str, Any], None]:
        defined.append(definition)
        return {}, None

    monkeypatch.setattr("glassformer.sweeps.coordinator.run_sweep", run_sweep)
    values = {"task.length": np.int64(4), "model.dropout": np.linspace(0, 0.2, 2)}
    gf.sweep("reversal", values, out=tmp_path / "sweep", progress=False)
    assert defined[0].space.axes["model.dropout"].listed() == [0.0, 0.2]


LABELS = ["pos", "neg"] * 40
TABLE = {"title": TEXTS, "body": [f"so {text}" for text in TEXTS[::-1]], "number": list(range(80))}


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_run_reads_the_columns_that_it_was_trained_on(
    library: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = pytest.importorskip(library).DataFrame(TABLE)
    columns, swapped = ["title", "body"], ["body", "title"]
    options: dict[str, Any] = {"overrides": FEW_STEPS, "run": tmp_path / "run"}
    validation = (table[swapped][:10], LABELS[:10])
    trained = gf.train(inputs=table[columns], targets=LABELS, validation=validation, **options)
    assert "inputs are read from 'title' + 'body' joined by ' | '" in capsys.readouterr().err
    assert f"columns={columns}" in repr(trained)
    for run in (trained, gf.Run(trained.path)):
        expected = [row["input"] for row in run.predict(table[columns][:3])]
        assert expected[0] == f"{TEXTS[0]} | so {TEXTS[-1]}"
        for frame in (table[swapped], table[["number", *columns]]):
            assert [row["input"] for row in run.predict(frame[:3])] == expected
            right, other = (run.evaluate(inputs=each, targets=LABELS) for each in (table[columns], frame))
            assert other["metrics"] == right["metrics"] and other["warnings"] == right["warnings"]
            assert "inputs are read from 'title' + 'body' joined by ' | '" in other["notes"]
            assert run.attention(frame[:1]).about["input"] == expected[0]
        for wrong in (table[["body"]], table["body"], table[["number", "title"]]):
            with pytest.raises(gf.UserError, match=r"columns \['title', 'body'\], and these data have \['"):
                run.predict(wrong)
            with pytest.raises(gf.UserError, match=r"columns \['title', 'body'\], and these data have \['"):
                run.evaluate(inputs=wrong, targets=LABELS)
        with pytest.raises(gf.UserError, match="expected one input, not a table of 2"):
            run.attention(table[:2])
    with pytest.raises(gf.UserError, match=r"validation.inputs: .*these data have \['body'\]"):
        gf.train(
            inputs=table[columns],
            targets=LABELS,
            validation=(table[["body"]], LABELS),
            run=tmp_path / "other",
        )
    if library == "pandas":
        assert trained.predict(table.iloc[0])[0]["input"] == expected[0]
        assert trained.attention(table.iloc[0]).about["input"] == expected[0]


def test_a_run_on_one_column_reads_no_other(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(TABLE)
    run = train(tmp_path, inputs=table["body"], targets=LABELS)
    (first,) = run.predict(table[:1])
    assert first["input"] == TABLE["body"][0]
    assert run.predict(table["title"][:1])[0]["input"] == TEXTS[0]
    with pytest.raises(gf.UserError, match=r"trained on the columns \['body'\], and these data have"):
        run.predict(table[["title", "number"]])
    plain = gf.train(inputs=TEXTS, targets=LABELS, overrides=FEW_STEPS, run=tmp_path / "2", progress=False)
    with pytest.raises(gf.UserError, match="one text per row, and this table has the columns"):
        plain.predict(table)
    assert plain.predict(table[["title"]])[0]["input"] == TEXTS[0]


def test_columns_of_tokens_are_read_by_name(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(ROWS, columns=list("abcdef"))
    run = train(tmp_path, inputs=table, targets=(ROWS.sum(1) % 2).tolist())
    shuffled = table.assign(more=1)[["more", *"fedcba"]]
    assert run.predict(shuffled) == run.predict(table) == run.predict(ROWS)


def test_prediction_reads_token_lists_and_reports_missing_values(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    run = train(tmp_path, inputs=LABELLED, targets=[["A", "B", "C"], ["B", "A", "C"]] * 20)
    text, *rest = run.predict(["w1 x y", ["w1", "x", "y"], None, float("nan"), 3])
    assert rest[0]["output"] == text["output"] and rest[0]["input"] == "w1 x y"
    assert [row["error"] for row in rest[1:]] == [
        "expected a text, not None",
        "expected a text, not nan",
        "expected a text, not 3",
    ]
    assert "[[...]]" in run.predict(["w1", "x"])[0]["warning"]
    assert run.predict(np.array([1, 2]))[0]["error"] == (
        "expected a text, not 1; pass the tokens of one input as [[...]]"
    )
    assert run.attention(["w1", "x", "y"])["encoder"].weights.shape[-1] == 3
    wrong_calls: list[Callable[[], Any]] = [
        lambda: run.attention([["w1"]]),
        lambda: run.attention(3),  # type: ignore[arg-type]
        lambda: run.evaluate((LABELLED, LABELLED)),  # type: ignore[arg-type]
        lambda: run.evaluate(LABELLED, LABELLED),  # type: ignore[arg-type]
        lambda: run.evaluate(None, LABELLED),  # type: ignore[arg-type]
        lambda: run.evaluate(inputs=__file__),
        lambda: run.predict_file(pandas.DataFrame({"a": [1]}), tmp_path / "out.csv"),  # type: ignore[arg-type]
        lambda: list(run.predict_each(pandas.DataFrame({"a": [1]}))),  # type: ignore[arg-type]
        lambda: run.predict(3),  # type: ignore[call-overload]
    ]
    for call in wrong_calls:
        with pytest.raises(gf.UserError):
            call()


@pytest.mark.parametrize("kind", ["text", "tokens"])
@pytest.mark.parametrize("values", [[3, 7], [True, False], [0.5, 1.0], ["3", "x"], [3, "x"]])
def test_an_output_has_the_type_of_the_targets(kind: str, values: list[Any], tmp_path: Path) -> None:
    inputs = TEXTS if kind == "text" else ROWS
    task = "classification" if kind == "text" else "sequence-classification"
    run = train(tmp_path, inputs=inputs, targets=values * 40, task=task)
    for opened in (run, gf.Run(run.path)):
        found = opened.predict(TEXTS[0] if kind == "text" else "1 2 3 4 0 1")
        assert [type(label) for label in found["probabilities"]] in (
            [*map(type, values)],
            [*map(type, values[::-1])],
        )
        assert found["output"] in values and type(found["output"]) in map(type, values)
        assert found["candidates"][0]["output"] is found["output"]
        json.dumps(found)


def test_a_regression_returns_floats(tmp_path: Path) -> None:
    run = train(tmp_path, inputs=TEXTS, targets=[1, 2] * 40, task="regression")
    assert type(run.predict("a good film")["output"]) is float


def test_unknown_symbols_in_most_of_a_split_are_a_warning(tmp_path: Path) -> None:
    new = [["q", "r", "s"]] * 4
    run = train(
        tmp_path,
        inputs=LABELLED,
        targets=["A", "B"] * 20,
        validation=(new, ["A", "B"] * 2),
    )
    assert any("(12 in total)" in line for line in run.evaluate("validation")["warnings"])


def test_many_distinct_integers_hint_at_regression(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    targets = [number // 2 for number in range(80)]
    gf.train(inputs=TEXTS * 2, targets=targets * 2, overrides=FEW_STEPS, run=tmp_path / "run")
    assert 'task="regression"' in capsys.readouterr().err


def test_whole_floats_hint_at_classification(tmp_path: Path) -> None:
    run = train(tmp_path, inputs=TEXTS, targets=[0.0, 1.0] * 40)
    warning = "WARNING: the targets are whole floats with only 2 distinct values, taken as numbers"
    assert warning in repr(run) and type(run.predict(np.array("a good film"))["output"]) is float


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": TEXTS, "overrides": ["pos", "neg"] * 40}, "source: expected a preset"),
        ({"inputs": TEXTS, "validation": 0.2}, "validation: expected a pair"),
        ({"inputs": TEXTS, "test": TEXTS}, "test: expected a pair"),
        ({"inputs": TEXTS, "targets": [["a", "b"]] * 80}, "targets[0]: the target of a text is a list"),
        (
            {"inputs": TEXTS, "targets": ["a", "b"] * 40, "test": (["x"], [["a"]]), "task": "classification"},
            "test.targets[0]: the target of a text is a list",
        ),
        (
            {"inputs": LABELLED, "targets": [["A", "B", "C"]] * 39 + [["A"]]},
            "targets[39]: 39 of 40 rows have one label per token, but this one has 1 for 3 tokens",
        ),
        (
            {"inputs": list(zip(TEXTS, TEXTS, strict=True)), "targets": ["pos", "neg"] * 40},
            "inputs[0]: each input is a sequence of 2 texts",
        ),
        ({}, "source: nothing to train on"),
        ({"inputs": []}, "inputs: no examples"),
        ({"inputs": "a text"}, "inputs: this is one text, not a list of texts"),
        ({"inputs": ["one long text"]}, "inputs: this is one text, not a list of texts"),
        ({"inputs": "a text", "targets": [1]}, "inputs: this is not a list or a column of values"),
        ({"inputs": __file__, "targets": [1]}, "inputs: this is a file, not data"),
        ({"inputs": TEXTS, "targets": [1] * 80}, "targets: all 80 targets are 1: nothing to classify"),
        ({"inputs": TEXTS, "targets": [f"{n / 7:.3f}" for n in range(80)]}, "targets: the targets are texts"),
        ({"inputs": ["pos", "neg"] * 40, "targets": TEXTS}, "inputs: the inputs have 2 distinct values and"),
        ({"inputs": ["a", "b"], "targets": [1.0, float("inf")]}, "targets[1]: the value is infinite"),
        ({"inputs": TEXTS, "targets": [0.5] * 79 + [1e300]}, "inputs[79], targets[79]: the number is too"),
        ({"inputs": TEXTS, "targets": [0.5] * 80}, "inputs, targets: all 72 training targets are 0.5"),
        ({"inputs": 5}, "inputs: this is not a list or a column of values"),
        ({"inputs": ["a", None]}, "inputs[1]: a value is missing"),
        ({"inputs": ["a", "b"], "targets": [1.0, float("nan")]}, "targets[1]: a value is missing"),
        ({"inputs": ["a", [1]]}, "inputs[1]: inputs must all be texts, or all be sequences of tokens"),
        ({"inputs": ["a", 3]}, "inputs[1]: inputs must all be texts, or all be sequences of tokens"),
        ({"inputs": ["a"], "targets": ["x", "y"]}, "targets: there are 1 inputs and 2 targets"),
        ({"inputs": [object()]}, "inputs[0]: this is not a text, a number or a sequence of tokens"),
        ({"inputs": TEXTS, "targets": TEXTS, "task": "translate"}, "task: unknown kind of data"),
        ({"inputs": TEXTS, "resume": True}, "run: resume needs a run folder"),
    ],
)
def test_bad_data_is_refused_and_leaves_nothing(
    options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(gf.UserError) as error:
        gf.train(**options, progress=False)
    assert str(error.value).startswith(message)
    assert not list(tmp_path.rglob("*.jsonl"))


@pytest.mark.parametrize(("inputs", "one"), [(TEXTS, True), (ROWS, 1.0), (TEXTS, 1.0)])
def test_labels_that_are_equal_in_python_are_refused(inputs: Any, one: Any, tmp_path: Path) -> None:
    with pytest.raises(gf.UserError) as error:
        train(tmp_path, inputs=inputs, targets=[1, 0, one, 0] * 20)
    place = r"inputs\[\d+\], targets\[\d+\]"
    assert re.match(
        rf"{place}: the label {one} equals the label 1 of another type at {place}", str(error.value)
    )


def test_bad_options_leave_no_data_behind(tmp_path: Path) -> None:
    with pytest.raises(gf.UserError, match="num_layer"):
        gf.train(
            inputs=TEXTS,
            targets=["pos", "neg"] * 40,
            overrides={"model.num_layer": 1},
            run=tmp_path / "run",
            progress=False,
        )
    assert not (tmp_path / "run").exists()


def test_progress_is_shown_unless_it_is_switched_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gf.train(inputs=TEXTS, targets=["pos", "neg"] * 40, overrides=FEW_STEPS, run=tmp_path / "loud")
    assert "classification, 80 examples" in capsys.readouterr().err
    train(tmp_path, inputs=TEXTS, targets=["pos", "neg"] * 40)
    assert capsys.readouterr().err == ""


def test_a_notebook_gets_a_bar_that_is_updated_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, html: str) -> None:
            shown.append(html)

    def display(html: str, display_id: bool) -> Handle:
        shown.append(html)
        return Handle()

    module = types.ModuleType("IPython.display")
    module.HTML, module.display = str, display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    monkeypatch.setattr("glassformer.training.progress.SECONDS_BETWEEN_UPDATES", 0.0)
    options = {**FEW_STEPS, "training.log_every": 1}
    gf.train(inputs=TEXTS, targets=["pos", "neg"] * 40, overrides=options, run=tmp_path / "run")
    assert len(shown) == 5 and shown[0].startswith('<progress value="0" max="4">')
    assert "step 4 of 4 loss" in shown[-1]
