"""Signals, kills and second processes: nothing is lost, and `runs` tells what happened."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glassformer.cli import main
from glassformer.launch import Training
from glassformer.runs import RunFolder
from glassformer.seals import seal_json
from glassformer.training import events, files
from glassformer.training.trainer import Trainer

# Long enough to be caught in the middle.
STEPS = ["training.max_epochs=null", "training.max_steps=120", "training.validate_every=30"]
OPTIONS = {"training.max_epochs": None, "training.max_steps": 120, "training.validate_every": 30}
ENDLESS = [*STEPS[:1], "training.max_steps=1000000", *STEPS[2:]]


def facts(path: Path) -> dict[str, Any]:
    folder = RunFolder(path)
    store = folder.checkpoints()
    newest = store.folder / store.find("latest")
    found: dict[str, Any] = {file.name: files.file_sha256(file) for file in newest.glob("*.safetensors")}
    found["events"] = [
        {key: value for key, value in event.items() if key not in events.CLOCK_FIELDS}
        for event in folder.events
    ]
    return found | {"names": store.names(), "metrics": folder.results().get("metrics")}


@pytest.fixture(scope="module")
def left_alone(tmp_path_factory: pytest.TempPathFactory, tiny_config: Any) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("left-alone") / "run"
    Training(tiny_config(OPTIONS), RunFolder(path)).run()
    return facts(path)


@pytest.mark.parametrize(
    ("number", "code", "fresh"), [(signal.SIGTERM, 143, True), (signal.SIGINT, 130, False)]
)
def test_a_signal_saves_and_the_run_goes_on_to_the_bit(
    number: int,
    code: int,
    fresh: bool,
    start: Any,
    wait_for_step: Any,
    left_alone: dict[str, Any],
    tiny_file: Path,
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    child = start("train", tiny_file, *STEPS, "--run", run, "--json", fresh=fresh)
    wait_for_step(run, 10)
    child.send(number)
    child.wait_for_words(f"{signal.Signals(number).name}: finishing this step and saving")
    child.send(signal.SIGINT)  # a second and a third change nothing
    child.send(signal.SIGTERM)
    assert child.wait() == code, child.errors
    assert "Traceback" not in child.errors
    result = json.loads(child.output)
    assert result["ended"] == "signal" and 10 <= result["steps"] < 120
    assert f"stopped at step {result['steps']} and saved" in child.errors
    assert f"glassformer train {run} --resume" in child.errors
    folder = RunFolder(run)
    assert folder.status().name == "stopped" and folder.status().step == result["steps"]
    assert (
        folder.checkpoints().load(folder.checkpoints().find("latest")).state["training"]["step"]
        == (result["steps"])
    )

    assert main(["train", str(run), "--resume", "--quiet"]) == 0
    assert facts(run) == left_alone


def test_a_second_process_is_refused_with_the_pid_of_the_first(
    start: Any,
    wait_for_step: Any,
    tiny_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = tmp_path / "runs" / "one"
    child = start("train", tiny_file, *ENDLESS, "--run", run, "--quiet")
    wait_for_step(run, 5)
    assert main(["train", str(tiny_file), *ENDLESS, "--run", str(run), "--resume", "--quiet"]) == 2
    errors = capsys.readouterr().err
    assert errors == (
        f"glassformer: {run}: another process is training here (pid {child.pid})\n"
        "  try:     wait for it, stop it, or choose another --run\n"
    )
    assert main(["runs", "remove", str(run)]) == 2
    assert "is being trained" in capsys.readouterr().err
    assert main(["runs", "--runs", str(run.parent), "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["runs"]
    assert listed["status"] == "running" and listed["run"] == str(run)

    # The first one took no harm; killed, it is told from one that still runs.
    step = RunFolder(run).status().step
    wait_for_step(run, step + 20)
    child.send(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert main(["runs", "--runs", str(run.parent), "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["runs"]
    assert listed["status"] == "crashed"
    assert main(["runs", "--runs", str(run.parent)]) == 0
    assert "crashed" in capsys.readouterr().out
    assert main(["runs", "remove", str(run)]) == 0
    assert not run.exists()


def test_a_signal_before_the_first_step(tiny_config: Any, tmp_path: Path) -> None:
    """While data are read or time is measured: one step is made, and saved."""
    training = Training(tiny_config(), RunFolder(tmp_path))
    training.signals.number = signal.SIGINT
    assert training.run()["steps"] == 1
    assert training.signals.exit_code == 130


def test_a_signal_while_the_finished_model_is_measured_does_not_undo_the_end(
    tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finish = Trainer._finish
    monkeypatch.setattr(Trainer, "_finish", lambda self: (finish(self), signal.raise_signal(signal.SIGTERM)))
    run = tmp_path / "run"
    assert main(["train", str(tiny_file), "--run", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ended"] == "max_epochs"
    assert RunFolder(run).status().name == "done"


def test_handlers_are_put_back(tiny_config: Any, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    Training(tiny_config({"training.max_steps": 2}), RunFolder(tmp_path)).run()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def _set_beat(folder: RunFolder, **changes: Any) -> None:
    file = folder.path / "status.json"
    file.write_bytes(seal_json({**json.loads(file.read_text()), **changes}))


def test_status(run_folder: RunFolder, tmp_path: Path) -> None:
    assert run_folder.status().name == "done"
    assert RunFolder(tmp_path / "none").status().name == "new"
    run_folder.beat("running", 7, 24)
    assert run_folder.status().name == "crashed"  # nobody holds the lock
    holder = RunFolder(run_folder.path)
    holder.lock()
    status = run_folder.status()
    assert (status.name, status.step, status.total_steps) == ("running", 7, 24)
    _set_beat(run_folder, time=time.time() - 3600)
    assert run_folder.status().name == "stalled"
    holder.unlock()
    assert run_folder.status().name == "crashed"
    _set_beat(run_folder, time=time.time(), host="another-machine")
    assert run_folder.status().name == "running"  # its lock cannot be seen from here
    run_folder.beat("stopped", 7, 24)
    assert run_folder.status().name == "stopped"


def test_a_lock_goes_with_its_process(start: Callable[..., Any], tiny_file: Path, tmp_path: Path) -> None:
    """A pid left behind in the file stops nobody."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "lock").write_text("1")
    assert main(["train", str(tiny_file), "training.max_steps=2", "--run", str(run), "--quiet"]) == 0
