"""Tables of the verbs in narrow terminals and in pipes, and help texts that list kinds."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from glassformer.cli import main
from glassformer.cli.output import Output
from glassformer.cli.runs import _cell, _compare, _list
from glassformer.interchange import TARGETS
from glassformer.runs.folder import RunFolder

NAMES = ("reversal-with-rotary-positions-1", "reversal-with-rotary-positions-2")


@pytest.fixture
def folders(trained_once: Path, tmp_path: Path) -> list[RunFolder]:
    """Return two runs with long names."""
    for name in NAMES:
        (tmp_path / name).symlink_to(trained_once)
    return [RunFolder(tmp_path / name) for name in NAMES]


def narrow_terminal() -> tuple[Output, io.StringIO]:
    output, stream = Output(is_json=False), io.StringIO()
    output._console = Console(file=stream, width=60, force_terminal=True, soft_wrap=True, color_system=None)
    return output, stream


def test_runs_have_their_whole_names_in_a_narrow_terminal(folders: list[RunFolder]) -> None:
    output, stream = narrow_terminal()
    _list(folders, Path("runs"), output, is_empty=False)
    _compare(folders, output)
    shown = stream.getvalue()
    assert all(shown.count(str(folder.path)) == 2 for folder in folders)


def test_nothing_is_shortened_in_a_pipe(
    tmp_path: Path, trained_once: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ("long-name-" * 15)).symlink_to(trained_once)
    assert main(["runs", "--runs", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "long-name-" * 15 in out and "max_epochs" in out and "accuracy" in out and "…" not in out


def test_measured_numbers_have_four_digits_and_options_all() -> None:
    assert _cell("results.metrics.test.accuracy", 0.94123456) == "0.9412"
    assert _cell("results.tokens_per_second", 123456.7) == "123,457"
    assert _cell("config.training.optimizer.learning_rate", 0.00123456) == "0.00123456"


def test_the_help_of_export_lists_every_target(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"one of {', '.join(sorted(TARGETS))}" in shown


def test_the_error_of_one_input_is_printed_once(
    trained_once: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(trained_once), "1 2 x"]) == 2
    captured = capsys.readouterr()
    error = "unknown symbol 'x' at position 2 (counted from 0): expected numbers from 0 to 3"
    assert captured.out == f"1 2 x  →  error: {error}\n"
    assert captured.err == ""
    assert main(["predict", str(trained_once), "1 2 x", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["predictions"][0]["error"]
    assert main(["predict", str(trained_once), "1 2 x", "--keep-going"]) == 0
    capsys.readouterr()
    assert main(["predict", str(trained_once), "1 2 x", "1 2 3"]) == 2
    assert "1 of 2 inputs have an error" in capsys.readouterr().err
