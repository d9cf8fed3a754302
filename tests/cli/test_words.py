"""Suggestions and notes of the commands in a user's first hour."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from glassformer.cli import main
from glassformer.cli.predict import _own_options
from glassformer.core.errors import UserError, near_file, user_error
from glassformer.runs.folder import RunFolder
from glassformer.training.progress import LineReporter


@pytest.fixture
def runs(trained_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with a trained run in `runs/mine-1`."""
    shutil.copytree(trained_once, tmp_path / "runs" / "mine-1")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


@pytest.mark.parametrize("name", ["mine-1", "mine1", "runs/mine-2"])
def test_a_run_without_its_folder_is_found(name: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", name, "1 2 3"]) == 2
    assert "did you mean runs/mine-1?" in capsys.readouterr().err


def test_resume_without_a_source_continues_the_run(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = json.loads((runs / "mine-1" / "results.json").read_text())["steps"]
    assert main(["train", "--run", "runs/mine-1", "--resume"]) == 0
    text = capsys.readouterr().err
    assert "measuring again" in text
    assert "to train longer: glassformer train runs/mine-1 --resume training.max_" in text
    assert (
        main(["train", "--run", "runs/mine-1", "--resume", f"training.max_steps={steps + 1}", "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out)["steps"] == steps + 1
    assert main(["train", "--run", "runs/none", "--resume"]) == 2
    assert "runs/none: no such run" in capsys.readouterr().err


def test_a_limit_that_is_passed_is_not_a_total(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "runs/mine-1", "--resume", "training.max_steps=1"]) == 0
    text = capsys.readouterr().err
    assert " of 1:" not in text and "small_data" not in text


def test_the_runs_of_a_sweep_have_a_row(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(runs / "mine-1", runs / "sweep-a" / "runs" / "trial-0000-seed-0")
    assert main(["runs", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["run"] for row in found["runs"]] == ["runs/mine-1"]
    row = {"path": "runs/sweep-a", "runs": 1, "finished": 1, "metric": None, "best": None}
    assert found["groups"] == [row]
    (runs / "sweep-a" / "results.json").write_text('{"metric": "loss", "best": {"value": 0.25}}')
    assert main(["runs"]) == 0
    text = capsys.readouterr().out
    assert "0.2500" in text and "glassformer runs --runs runs/sweep-a/runs" in text


def test_progress_has_a_unit_and_no_count_of_one() -> None:
    stream = io.StringIO()
    LineReporter(stream).progress("validation, measuring batches", 28, 50)
    LineReporter(stream).progress("validation, measuring batches", 1, 1)
    assert stream.getvalue() == "validation, measuring batches: 28 of 50\nvalidation, measuring batches\n"


def test_only_a_near_file_is_suggested() -> None:
    """Equal extensions made every neighbour look near."""
    files = ["nohead.csv", "huge.tsv", "train.csv", "train.tsv"]
    assert near_file("none.csv", files) is None
    assert near_file("hge.tsv", files) == "huge.tsv"
    assert near_file("tarin.tsv", files) == "train.tsv"
    assert near_file("train.csv.gz", files) == "train.csv"


def test_no_input_is_an_error(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was no output and exit code 0."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert main(["predict", "runs/mine-1"]) == 2
    assert "standard input: no input" in capsys.readouterr().err


def test_the_hints_of_predict_name_its_own_options() -> None:
    with pytest.raises(UserError) as raised, _own_options(None):
        raise user_error("not UTF-8", hint="set task.data.encoding=latin-1, or the file's encoding")
    assert "set --encoding latin-1, or" in str(raised.value)
    with pytest.raises(UserError) as raised, _own_options("input=Title,Body"):
        raise user_error("no column 'Title,Body'", value="Title,Body", allowed=["Title", "Body"])
    assert "try:     --columns input=[Title,Body]" in str(raised.value) and "mean" not in str(raised.value)


def _closed_pipe() -> io.TextIOWrapper:
    """Return a stream whose reader has ended."""
    reader, writer = os.pipe()
    os.close(reader)
    return io.TextIOWrapper(io.FileIO(writer, "w"), "utf-8", write_through=True)


@pytest.mark.parametrize("names", [("stdout",), ("stderr",), ("stdout", "stderr")])
def test_training_finishes_without_a_reader(
    names: tuple[str, ...], tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in names:
        monkeypatch.setattr(sys, name, _closed_pipe())
    assert main(["train", str(tiny_file), "--run", str(tmp_path / "run")]) == 0
    assert json.loads((tmp_path / "run" / "results.json").read_text())["steps"] == 24


def test_output_that_nobody_reads_is_not_a_success(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", _closed_pipe())
    monkeypatch.setattr(sys, "stderr", _closed_pipe())
    assert main(["predict", "runs/mine-1", "1 2 3 0 1 2"]) == 141


def test_an_unfinished_run_is_measured_with_a_warning(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    RunFolder(runs / "mine-1").heartbeat("running", 16, 24)
    warning = (
        "WARNING: the training of this model crashed at step 16 of 24;"
        " to finish it: glassformer train runs/mine-1 --resume"
    )
    assert main(["evaluate", "runs/mine-1"]) == 0
    assert warning in capsys.readouterr().out
    assert main(["evaluate", "runs/mine-1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == [warning]


def test_a_regression_has_no_accuracy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glassformer.training.progress.SECONDS_BETWEEN_LINES", 0.0)
    (tmp_path / "own.tsv").write_text(
        "\n".join(f"text number {number}\t{number / 7}" for number in range(60))
    )
    options = [f"task.data.train={tmp_path / 'own.tsv'}", "task.target=number", "training.max_steps=2"]
    small = ["model.hidden_dim=8", "model.num_heads=1", "model.num_layers=1", "training.log_every=1"]
    run = tmp_path / "run"
    assert main(["train", "classification", *options, *small, "--run", str(run)]) == 0
    text = capsys.readouterr().err
    assert "step 1/2  loss" in text and "accuracy" not in text
    steps = [event for event in RunFolder(run).events if event["event"] == "step"]
    assert steps and not any("accuracy" in event for event in steps)
