"""Tables of the verbs in narrow terminals and in pipes, and help texts that list kinds."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from glassformer.cli import main
from glassformer.cli.heads import _table as _heads_table
from glassformer.cli.intervene import EXAMPLES as EDGE_EXAMPLES
from glassformer.cli.output import Output
from glassformer.cli.patch import _show as _show_patches
from glassformer.cli.runs import _cell, _compare, _list
from glassformer.core.config import merge
from glassformer.inspection.patching import PatchedSite, PatchResult
from glassformer.interchange import TARGETS
from glassformer.reports.summary import _options, read_run
from glassformer.runs.experiment import resolve
from glassformer.runs.folder import RunFolder
from glassformer.studio.runs import _differences

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


def test_an_option_that_another_one_replaces_is_left_out(
    folders: list[RunFolder], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`training.batch_tokens` replaces `training.batch_size`, which was listed beside it."""
    config = folders[0].config()

    def configs(**changes: list[int | None]) -> None:
        trees = [
            merge(config, {"training": dict(zip(changes, values, strict=True))})
            for values in zip(*changes.values(), strict=True)
        ]
        by_name = dict(zip(NAMES, trees, strict=True))
        monkeypatch.setattr(RunFolder, "config", lambda folder: by_name[folder.path.name])

    configs(batch_size=[64, 128], batch_tokens=[8000, 8000])
    assert _compare(folders, Output(is_json=True)) == {"differences": {}}
    assert [found["differences"] for found in _differences(folders)] == [{}]
    shown = folders[0]._repr_html_()
    assert "training.batch_tokens" in shown and "training.batch_size" not in shown
    configs(batch_size=[64, 128], batch_tokens=[None, None])
    assert list(_compare(folders, Output(is_json=True))["differences"]) == ["config.training.batch_size"]
    summary = replace(read_run(str(folders[0].path)), tree=folders[0].config())
    assert _options(summary)["training.batch_size"] == 64
    assert "training.batch_size" not in _options(
        replace(summary, tree=merge(summary.tree, {"training": {"batch_tokens": 8000}}))
    )


def test_patching_shows_the_positions_with_the_largest_effects(capsys: pytest.CaptureFixture[str]) -> None:
    """The first 12 of 24 positions were shown, and the only effect was at position 19."""
    effects = [1.0 if position == 19 else 0.0 for position in range(24)]
    sites = [
        PatchedSite("encoder.0.residual_post", "position", effects, effects),
        PatchedSite("encoder.0.heads", "head", [0.25], [0.25]),
    ]
    labels = {"encoder": [str(position % 10) for position in range(24)]}
    _show_patches(PatchResult("logit", "denoising", 1, 0, 1, 0, sites, labels), Output(is_json=False))
    lines = capsys.readouterr().out.splitlines()
    at = next(number for number, line in enumerate(lines) if "with the largest effects" in line)
    assert "12 of 24 positions" in lines[at]
    columns, cells = lines[at + 1].split(), lines[at + 2].split()[1:]
    assert cells[columns.index("19")] == "1.00" and cells.count("0.00") == len(columns) - 1 == 11
    assert lines[at + 3].split() == ["encoder.0.heads", "0.25"]


def test_a_table_of_heads_has_whole_cells_in_80_columns() -> None:
    """An encoder of arithmetic has eight statistics; `diagona / l` and `(0.246 / )` were on two lines."""
    names = ["diagonal", "anti-diagonal", "previous token", "first token", "same digit, other operand"]
    patterns = {name: {"mass": {"mean": [[0.1234]]}} for name in names}
    statistics = {name: {"mean": [[3.1456]]} for name in ("entropy", "distance", "value_share")}
    averages = {"layers": [0], "heads": [0], "patterns": patterns, **statistics}
    for width, is_terminal in ((80, True), (60, False)):
        output, stream = Output(is_json=False), io.StringIO()
        output._console = Console(
            file=stream, width=width, force_terminal=is_terminal, soft_wrap=True, color_system=None
        )
        output.show_table(_heads_table("encoder", averages, averages))
        lines = stream.getvalue().splitlines()
        assert lines[-2].split() == ["(0.123)"] * 5 + ["(3.146)"] * 3
        assert all(word in stream.getvalue() for word in ("diagonal", "previous", "distance"))
        assert max(map(len, lines)) <= 80


def test_the_example_edge_is_the_one_that_the_preset_needs() -> None:
    """Output 2 of a reversal of 100 tokens is token 97. The example named token 15, which changes nothing."""
    (example,) = [line for line in EDGE_EXAMPLES if "--edge" in line]
    edge = next(word for word in example.split() if word.startswith("encoder:"))
    query, key = map(int, edge.split(":")[3:])
    assert key == resolve("reversal", []).task.length - 1 - query  # type: ignore[attr-defined]
    root = Path(__file__).parents[2]
    assert all(f"--edge {edge}" in (root / page).read_text() for page in ("README.md", "docs/inspection.md"))


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
