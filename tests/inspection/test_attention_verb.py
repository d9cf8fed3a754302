"""`glassformer attention` and `Run.attention`, on a run trained for a few steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassformer.cli import main
from glassformer.inspection.maps import AttentionMaps
from glassformer.inspection.statistics import head_statistics
from glassformer.runs.run import Run
from glassformer.runs.session import train

REVERSAL: dict[str, Any] = {
    "task.length": 8,
    "task.categories": 8,
    "task.train_examples": 8000,
    "task.validation_examples": 100,
    "task.test_examples": 100,
    "model.num_layers": 1,
    "model.num_heads": 1,
    "model.hidden_dim": 32,
    "model.feed_forward_dim": 64,
    "model.dropout": 0.0,
    "model.input": "one-hot",
    "model.position": {"kind": "sinusoidal", "base": 20.0},
    "training.optimizer.learning_rate": 0.01,
    "training.schedule.warmup_steps": 20,
    "training.batch_size": 64,
    "training.max_epochs": 2,
    "training.threads": 1,
}


@pytest.fixture(scope="module")
def reversal_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reversal")
    (folder / "reversal.yaml").write_text("task: {kind: reversal}\n")
    train(str(folder / "reversal.yaml"), REVERSAL, run=folder / "run")
    return folder / "run"


def attention(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["attention", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("ending", "start"),
    [("png", b"\x89PNG"), ("svg", b"<?xml"), ("html", b"<!doctype html>"), ("npz", b"PK")],
)
def test_every_format_is_written(
    ending: str, start: bytes, trained_once: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / f"map.{ending}"
    code, stdout, _ = attention(capsys, trained_once, "3 1 2", "--out", out)
    assert code == 0 and f"wrote {out}" in stdout and "✓ each row sums to 1" in stdout
    assert out.read_bytes().startswith(start)
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


def test_the_document(trained_once: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "map.npz"
    code, stdout, _ = attention(capsys, trained_once, 3, 1, 2, 0, "--heads", 1, "--out", out, "--json")
    document = json.loads(stdout)
    assert code == 0
    assert (document["run"], document["out"], document["input"]) == (str(trained_once), str(out), "3 1 2 0")
    assert document["output"] == Run(trained_once).predict("3 1 2 0")["output"]
    assert document["checks"]["passed"] is True and document["checks"]["row_error"] < 1e-5
    part = document["sites"]["encoder"]
    assert (part["layers"], part["heads"], part["queries"], part["keys"]) == ([0], [1], 4, 4)
    maps = AttentionMaps.load(out)
    assert maps["encoder"].queries == ["3", "1", "2", "0"]
    assert part["largest_weight"] == pytest.approx(maps["encoder"].weights.max())
    assert len(part["statistics"]["patterns"]["anti-diagonal"]["mass"][0]) == 1


def test_without_input_the_first_test_example_is_read(trained_once: Path) -> None:
    run = Run(trained_once)
    maps = run.attention()
    assert maps["encoder"].queries == [str(token) for token in run.task.splits["test"].inputs[0]]
    assert maps.title == f"{trained_once.name} · {run.checkpoint}"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--out", "map.pgn"], "did you mean '.png'?"),
        (["--out", "map"], ".png, .svg, .html, .npz"),
        (["0 1 2 3 0 1 2"], "too long: 7 tokens"),
        (["9"], "unknown symbol '9'"),
        (["--layers", "5"], "layers: no such layer"),
        (["--layers", "one"], "--layers 0,1"),
        (["--heads", "2"], "heads: no such head"),
        (["--rows", "4"], "--rows 0:100"),
        (["--rows", "7:9"], "rows: no such rows"),
        (["--site", "crosss"], "allowed: encoder"),
        (["--checkpoint", "lattest"], "did you mean 'latest'?"),
    ],
)
def test_what_is_wrong_is_said_in_a_few_lines(
    arguments: list[str],
    expected: str,
    trained_once: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if "--out" not in arguments:
        arguments = [*arguments, "--out", str(tmp_path / "map.png")]
    code, stdout, stderr = attention(capsys, trained_once, *arguments)
    assert (code, stdout) == (2, "")
    assert expected in stderr and len(stderr.splitlines()) <= 5 and "Traceback" not in stderr
    assert list(tmp_path.iterdir()) == []


def test_failed_checks_are_shown_and_exit_with_1(
    trained_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("glassformer.inspection.maps.ROW_TOLERANCE", -1.0)
    code, stdout, _ = attention(capsys, trained_once, "--out", tmp_path / "map.png")
    assert code == 1 and "✗ a row's sum differs" in stdout and (tmp_path / "map.png").exists()


def test_a_trained_reversal_model_reads_backwards_and_its_control_does_not(reversal_run: Path) -> None:
    run = Run(reversal_run)
    assert run.evaluate("test")["metrics"]["accuracy"] > 0.99
    trained, control = (
        head_statistics(run.attention(untrained=untrained)["encoder"]) for untrained in (False, True)
    )
    assert trained.patterns["anti-diagonal"].mass.item() >= 0.9
    assert abs(control.patterns["anti-diagonal"].above_uniform.item()) < 0.15
    assert trained.entropy.item() < 0.3 < 0.8 < control.entropy.item()


def test_the_untrained_control_is_the_same_each_time(trained_once: Path) -> None:
    one, other = (Run(trained_once).attention("3 1 2", untrained=True) for _ in range(2))
    np.testing.assert_array_equal(one["encoder"].weights, other["encoder"].weights)
    assert "untrained" in one.title
    trained = Run(trained_once).attention("3 1 2")
    assert not np.allclose(one["encoder"].weights, trained["encoder"].weights)


def test_a_run_shows_itself_in_a_notebook(trained_once: Path) -> None:
    shown = Run(trained_once)._repr_html_()
    assert "reversal" in shown and "<td>test</td>" in shown and "<td>model.num_heads</td><td>2</td>" in shown
    assert f"<td>{Run(trained_once).folder.results()['metrics']['test']['accuracy']:.4g}</td>" in shown


def test_an_untrained_length_is_a_warning_of_every_inspection(trained_once: Path) -> None:
    """All inspections have the warning of `predict`, so that every program that shows them can show it."""
    run, text = Run(trained_once), "3 1 2"
    (prediction,) = run.predict([text])
    assert prediction["warning"] == "the model was trained on sequences of 6 tokens, not of 3"
    assert run.attention(text).warning == run.trace(text).warning == prediction["warning"]
    assert run.occlude(text, 0, examples=2).warning == prediction["warning"]
    assert run.attention().warning is run.trace().warning is run.occlude(None, 0, examples=2).warning is None


def test_a_trace_without_a_search_has_no_table_of_nodes(
    trained_once: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", str(trained_once)]) == 0
    assert "node" not in capsys.readouterr().out
