"""Options of a preset for the user's own data, and the commands that reproduce a config."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glassformer as gf
from glassformer.cli import main
from glassformer.runs.commands import nearest_preset
from glassformer.runs.ending import _longer
from glassformer.runs.experiment import Experiment, resolve
from glassformer.runs.run import Run
from glassformer.runs.session import open_session


def test_a_preset_has_other_options_for_the_users_own_data() -> None:
    generated = resolve("classification")
    own = resolve("classification", {"task.data.train": "mine.csv"})
    assert generated.model.dropout != own.model.dropout
    assert (
        resolve("classification", {"task.data.train": "mine.csv", "model.dropout": 0.2}).model.dropout == 0.2
    )
    assert resolve("classification", ["model.dropout=0.2"]).model.dropout == 0.2


@pytest.mark.parametrize("change", [{}, {"model.dropout": 0.1}, {"model.dropout": 0.5, "seed": 3}])
def test_the_command_of_a_config_with_own_data_gives_the_same_config(change: dict[str, Any]) -> None:
    config = resolve("classification", {"task.data.train": "mine.csv", **change})
    found = nearest_preset(config)
    assert found is not None
    name, overrides = found
    assert name == "classification" and overrides.keys() >= change.keys() - {"model.dropout"}
    assert resolve(name, overrides) == config


def test_a_model_that_starts_from_a_run_keeps_the_options_of_the_preset() -> None:
    changes = {"task.data.train": "mine.csv", "training.start_from": "runs/masked-language-model-1"}
    assert resolve("classification", changes).model == resolve("classification").model


def test_evaluate_warns_if_the_data_files_have_changed(tmp_path: Path) -> None:
    """Reverse the lines of the file: other lines are split off, so training examples would be measured."""
    file, lines = (
        tmp_path / "mine.tsv",
        [f"text {i} is {'good' if i % 2 else 'bad'}\t{i % 2}" for i in range(80)],
    )
    file.write_text("\n".join(lines))
    options = {"task.data.train": str(file), "training.max_steps": 2}
    open_session("classification", options, run=tmp_path / "run").run()
    assert not [text for text in Run(tmp_path / "run").evaluate()["warnings"] if "have changed" in text]
    file.write_text("\n".join(reversed(lines)))
    assert "the data have changed since the run started" in Run(tmp_path / "run").evaluate()["warnings"][0]


def test_a_label_that_looks_like_a_missing_value_has_a_warning(tmp_path: Path) -> None:
    lines = [f"text {i} here\t{('good', 'bad', 'NaN', 'NA', '?')[i % 5]}" for i in range(100)]
    (tmp_path / "mine.tsv").write_text("\n".join(lines))
    notes = Experiment(resolve("classification", {"task.data.train": str(tmp_path / "mine.tsv")})).notes
    found = [note.split()[4] for note in notes if "examples) may be a missing value" in note]
    assert sorted(found) == ["'?'", "'NA'", "'NaN'"]


def test_numbers_as_labels_have_a_warning(tmp_path: Path) -> None:
    lines = ["review,score", *(f"text {i} here,{i % 60 / 10}" for i in range(90))]
    (tmp_path / "mine.csv").write_text("\n".join(lines))
    options = {"task.data.train": str(tmp_path / "mine.csv")}
    notes = Experiment(resolve("classification", options)).notes
    assert "mine.csv is read with commas between columns, with a header line" in "".join(notes)
    assert [note for note in notes if "labels are numbers" in note and "task.target=number" in note]
    options["task.target"] = "number"
    assert not [note for note in Experiment(resolve("classification", options)).notes if "WARNING" in note]


def test_training_on_own_pairs_stops_at_a_perfect_bleu_twice() -> None:
    generated, own = (
        resolve("translation", options).training.stopping for options in ({}, {"task.data.train": "a.tsv"})
    )
    assert generated.target is None and (own.target, own.consecutive) == (99.99, 2)
    options = {"task.data.train": "a.tsv", "training.stopping.target": None}
    assert resolve("translation", options).training.stopping.target is None


def test_the_advice_names_the_limit_that_ended_the_training() -> None:
    results: dict[str, Any] = {"ended": "max_steps", "steps": 30, "epochs": 1}
    assert _longer(results) == "more steps (training.max_steps=60)"
    assert _longer(results | {"ended": "max_epochs"}) == "more epochs (training.max_epochs=2)"


def test_lines_of_a_training_on_data_in_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Copies of the data are not named, one batch has no progress, and a warning follows the end."""
    texts, labels = [f"text {i} here" for i in range(60)], [i % 7 % 2 for i in range(60)]
    run = gf.train(inputs=texts, targets=labels, overrides={"training.max_steps": 3}, run=tmp_path / "run")
    lines = capsys.readouterr().err
    assert not any(words in lines for words in ("jsonl", "JSON objects", "stored in"))
    assert "1 of 1" not in lines
    assert "the training loss includes training.label_smoothing=0.1" in lines
    assert lines.index("ended at step 3") < lines.index("WARNING: validation accuracy")
    assert "sequence classification, task='classification', validation: loss=" in repr(run)
    numbers = [i % 7 / 2 for i in range(60)]
    gf.train(inputs=texts, targets=numbers, overrides={"training.max_steps": 3}, run=tmp_path / "regression")
    assert "label_smoothing" not in capsys.readouterr().err


def test_a_rare_class_is_in_each_split_and_has_a_warning(tmp_path: Path) -> None:
    """Of 300 texts, 12 are positive: chance may leave none of them for validation."""
    lines = [f"text {i} is {'good' if i % 25 == 0 else 'bad'}\t{int(i % 25 == 0)}" for i in range(300)]
    (tmp_path / "mine.tsv").write_text("\n".join(lines))
    for seed in range(8):
        options = {"task.data.train": str(tmp_path / "mine.tsv"), "task.data_seed": seed}
        task = Experiment(resolve("classification", options)).task
        assert np.count_nonzero(task.splits["validation"].targets) in (1, 2)
        assert [note for note in task.notes if "1 of 2 labels have fewer than 5 examples" in note]


def test_a_tagger_that_predicts_the_most_frequent_label_has_a_warning(tmp_path: Path) -> None:
    rows = [[f"w{(i + j) % 7}" for j in range(8)] for i in range(100)]
    labels = [["P" if i % 10 == 0 and j == 0 else "O" for j in range(8)] for i in range(100)]
    few_steps = {"training.max_steps": 8, "model.hidden_dim": 16}
    run = gf.train(inputs=rows, targets=labels, overrides=few_steps, run=tmp_path / "run", progress=False)
    found = run.evaluate("validation")
    rare, common = found["details"]["per_class"][::-1]
    assert (rare["class"], rare["recall"], rare["precision"]) == ("P", 0.0, None)
    assert common["recall"] == 1 and found["details"]["macro_f1"] == pytest.approx(common["f1"] / 2)
    assert [text for text in found["warnings"] if "not clearly better than the most frequent label" in text]
    new = run.evaluate(inputs=rows[:10], targets=labels[:10])
    assert new["baselines"] == {"most_frequent_label": pytest.approx(79 / 80)}


def test_repeated_texts_are_counted_once_in_a_split(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts, labels = [f"text {i}" for i in range(30)] * 10, [i % 2 for i in range(30)] * 10
    gf.train(inputs=texts, targets=labels, overrides={"training.max_steps": 1}, run=tmp_path / "run")
    assert "validation: 30 of 300 training examples, split off, 3 different inputs" in capsys.readouterr().err


STOPPED = "the training of this model was stopped at step 3 of 9"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that was stopped at step 3 of 9."""
    options = {"task.length": 4, "task.train_examples": 50, "training.max_steps": 9, "training.save_every": 1}
    path = tmp_path_factory.mktemp("stopped") / "run"
    session = open_session("reversal", options, run=path)
    session.should_stop = lambda: session.trainer.state.step >= 3
    session.run()
    return path


@pytest.mark.parametrize(
    "verb",
    [
        ["predict", "1 2 3 4"],
        ["attention", "1 2 3 4", "--out", "map.npz"],
        ["heads", "--examples", "2"],
        ["intervene", "--head", "encoder:0:0", "--examples", "2"],
        ["trace", "1 2 3 4"],
    ],
    ids=lambda verb: verb[0],
)
def test_verbs_report_a_stopped_run(
    verb: list[str],
    stopped: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([verb[0], str(stopped), *verb[1:]]) == 0
    captured = capsys.readouterr()
    assert captured.err.count(STOPPED) == 1 and STOPPED not in captured.out


def test_an_evaluation_of_a_stopped_run_has_a_warning(
    stopped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(stopped), "--json"]) == 0
    captured = capsys.readouterr()
    warnings = json.loads(captured.out)["warnings"]
    assert [text for text in warnings if text.startswith(f"WARNING: {STOPPED}")]
    assert captured.err.count(STOPPED) == 1
    assert main(["evaluate", str(stopped)]) == 0
    assert capsys.readouterr().out.count(STOPPED) == 1
