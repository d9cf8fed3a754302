"""`glassformer sweep` from the command to its results, with real workers."""

from __future__ import annotations

import base64
import html
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import glassformer as gf
from glassformer.cli import main
from glassformer.evaluation.intervals import student_interval
from glassformer.runs.experiment import resolve
from glassformer.runs.folder import RunFolder

RunSweep = Callable[..., dict[str, Any]]
RATE = "training.optimizer.learning_rate"


@pytest.fixture
def sweep(capfd: pytest.CaptureFixture[str]) -> RunSweep:
    def run(*arguments: object, code: int = 0) -> dict[str, Any]:
        capfd.readouterr()
        assert main(["sweep", *map(str, arguments), "--json"]) == code
        output = capfd.readouterr()
        assert output.out.count("\n") == 1
        document = json.loads(output.out)
        assert isinstance(document, dict)
        return document | {"stderr": output.err}

    return run


def test_a_sweep_reports_the_numbers_of_its_runs(sweep: RunSweep, tiny_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    command = (tiny_file, f"{RATE}=1e-2,1e-4,1e2", "training.max_epochs=2", "--seeds", 2, "--workers", 2)
    document = sweep(*command, "--out", out)
    assert {"study", "storage", "best", "trials"} <= document.keys()
    assert document["storage"] == f"sqlite:///{out}/sweep.db"
    assert document["command"][:4] == ["glassformer", "sweep", str(tiny_file), f"{RATE}=1e-2,1e-4,1e2"]
    assert json.loads((out / "results.json").read_bytes())["command"] == document["command"]
    assert [(trial["trial"], trial["seed"]) for trial in document["trials"]] == [
        (setting, seed) for setting in range(3) for seed in range(2)
    ]
    for trial in document["trials"]:
        config = RunFolder(Path(trial["run"])).config()
        assert config["training"]["optimizer"]["learning_rate"] == trial["params"][RATE]
        assert (config["seed"], config["training"]["max_epochs"]) == (trial["seed"], 2)
        if trial["params"][RATE] == 100:
            assert trial["state"] == "diverged" and trial["explanation"].startswith("step ")
            assert trial["explanation"] in document["stderr"]
        else:
            assert trial["state"] == "complete" and trial["attempts"] == 1
            assert trial["metrics"] == RunFolder(Path(trial["run"])).results()["metrics"]

    for row in document["settings"][:2]:
        runs = [trial for trial in document["trials"] if trial["trial"] == row["trial"]]
        values = [trial["metrics"]["validation"]["accuracy"] for trial in runs]
        assert row["value"] == pytest.approx(statistics.fmean(values))
        assert row["interval"] == pytest.approx(student_interval(values))
    complete = [row for row in document["settings"] if row["state"] == "complete"]
    assert document["best"]["value"] == max(row["value"] for row in complete)
    assert document["settings"][2]["state"] == "diverged" and not document["settings"][2]["is_best_group"]
    table = (out / "table.md").read_text(encoding="utf-8")
    assert f"{document['best']['value']:.4f}" in table and "seed 1 diverged: step" in table
    assert (
        "best group: no run failed, and validation accuracy is within 5 % of the best" in document["stderr"]
    )
    assert "--seeds 3" not in document["stderr"]
    best = resolve(str(out / "best.yaml")).dump()
    assert best["training"]["optimizer"]["learning_rate"] == document["best"]["params"][RATE]
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG") and (out / "curves.svg").exists()

    before = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/results.json")}
    again = sweep(*document["command"][2:])
    assert again["trials"] == document["trials"] and again["best"] == document["best"]
    assert {path: path.stat().st_mtime_ns for path in out.glob("runs/*/results.json")} == before
    assert main(["sweep", str(tiny_file), f"{RATE}=1e-2,1e-3", "--out", str(out)]) == 2


def test_a_script_without_a_guard_is_told_to_add_one(tiny_file: Path, tmp_path: Path) -> None:
    """It was reported as eleven workers that died, after half a minute."""
    script = tmp_path / "script.py"
    script.write_text(
        "import glassformer as gf\n"
        f"gf.sweep({str(tiny_file)!r}, {{{RATE!r}: [1e-3, 1e-2]}}, out={str(tmp_path / 'out')!r})\n"
    )
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1 and ended.stderr.count("Traceback") == 1
    assert "call gf.sweep under if __name__ == '__main__':" in ended.stderr


def test_the_same_command_continues_an_interrupted_sweep(
    sweep: RunSweep, tiny_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "sweep"
    command = (tiny_file, "model.num_layers=1,2", "training.max_epochs=100", "--out", out)
    latest = out / "runs" / "trial-0000-seed-0" / "checkpoints" / "latest"

    def interrupt() -> None:
        while not latest.exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    stopped = sweep(*command, code=130)
    assert "run the same command again to continue" in stopped["stderr"] and stopped["counts"]["complete"] < 2
    log = (latest.parents[1] / "events.jsonl").read_bytes()
    document = sweep(*command)
    assert [trial["state"] for trial in document["trials"]] == ["complete", "complete"]
    assert (latest.parents[1] / "events.jsonl").read_bytes().startswith(log)
    assert sorted(path.name for path in (out / "runs").iterdir()) == [
        f"trial-000{setting}-seed-0" for setting in (0, 1)
    ]


def test_tpe_with_pruning_writes_optunas_plots(sweep: RunSweep, tiny_file: Path, tmp_path: Path) -> None:
    document = sweep(
        *(tiny_file, f"{RATE}=log:1e-5..1e-1", "model.num_layers=1..2", "training.validate_every=4"),
        *("--trials", 8, "--prune", "--workers", 2, "--out", tmp_path / "sweep"),
    )
    states = [trial["state"] for trial in document["trials"]]
    assert len(states) == 8 and set(states) <= {"complete", "pruned", "diverged"}
    assert (document["sampler"], document["pruner"]) == ("tpe", "median")
    for trial in document["trials"]:
        assert 1e-5 <= trial["params"][RATE] <= 1e-1 and trial["params"]["model.num_layers"] in (1, 2)
        run = RunFolder(Path(trial["run"]))
        if trial["state"] == "pruned":
            assert trial["steps"] < 24 and run.status().name == "stopped" and not run.results()
    assert document["importances"].keys() == {RATE, "model.num_layers"}
    for name in ("parallel.html", "importance.html"):
        page = (tmp_path / "sweep" / name).read_text(encoding="utf-8")
        assert 'src="plotly.min.js"' in page and "https://cdn" not in page
    assert (tmp_path / "sweep" / "plotly.min.js").stat().st_size > 1_000_000

    gf.report(tmp_path / "sweep", tmp_path / "report.html", samples=0, maps=0)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    for name in ("parallel.svg", "importance.svg"):
        assert name in document["files"]
        picture = base64.b64encode((tmp_path / "sweep" / name).read_bytes()).decode()
        assert f"data:image/svg+xml;base64,{picture}" in page
    assert html.escape(shlex.join(document["command"])) in page


def test_halving_stops_runs_that_fall_behind(sweep: RunSweep, tiny_file: Path, tmp_path: Path) -> None:
    """The first trial gives the length of trials; the second sets the value that the others miss."""
    document = sweep(
        *(tiny_file, f"{RATE}=1e-3,1e-2,1e-6,1e-7", "training.validate_every=4", "--metric", "loss"),
        *("--prune", "--pruner", "halving", "--out", tmp_path / "sweep"),
    )
    assert document["pruner"] == "halving"
    assert [trial["state"] for trial in document["trials"]] == ["complete", "complete", "pruned", "pruned"]
    for trial in document["trials"][2:]:
        assert trial["steps"] == 4 and "fell behind" in trial["explanation"]
    assert document["best"]["params"][RATE] == 1e-2


def test_a_setting_that_cannot_be_trained_is_reported_with_its_reason(
    sweep: RunSweep, tiny_file: Path, tmp_path: Path
) -> None:
    document = sweep(
        *(tiny_file, "training.start_from=/nowhere/a,/nowhere/b", "--out", tmp_path / "sweep"), code=2
    )
    assert document["best"] is None
    assert [trial["state"] for trial in document["trials"]] == ["failed", "failed"]
    assert "/nowhere/a" in document["trials"][0]["explanation"]


def test_mistakes_are_reported_before_anything_is_created(
    tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "sweep"
    for arguments, message in (
        (["task.length=4,x"], "task.length"),
        (["task.length=4,5", "--workers", "0"], "--workers"),
        (["task.length=4,5", "--seeds", "0"], "--seeds"),
        (["task.length=4,5", "--storage", "mysql://a/b"], "--storage"),
    ):
        assert main(["sweep", str(tiny_file), *arguments, "--out", str(out)]) == 2
        assert message in capsys.readouterr().err and not out.exists()
    assert main(["sweep", "worker", "study"]) == 2
    assert main(["sweep", "worker", "study", "--storage", f"sqlite:///{tmp_path}/none.db"]) == 2
    assert "no such file" in capsys.readouterr().err and not (tmp_path / "none.db").exists()
