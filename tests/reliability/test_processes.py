"""Concurrent processes, locks, signals at odd moments, and the status that `runs` shows."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glassformer.cli import main
from glassformer.runs.folder import RunFolder
from glassformer.runs.session import TrainingSession
from glassformer.training.trainer import Trainer

ENDLESS = ["training.max_epochs=null", "training.max_steps=1000000", "training.validate_every=30"]


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
        f"glassformer: {run}: another process is training in this folder (pid {child.pid})\n"
        "  try:     wait for it, stop it, or choose another --run\n"
    )
    assert main(["runs", "remove", str(run)]) == 2
    assert "is being trained" in capsys.readouterr().err
    assert main(["runs", "--runs", str(run.parent), "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["runs"]
    assert listed["status"] == "running" and listed["run"] == str(run)

    # The first one is not disturbed; once killed, it is distinguished from one that still runs.
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
    """A signal while data are read or time is measured: one step is made and saved."""
    training = TrainingSession(tiny_config(), RunFolder(tmp_path))
    training.signals.number = signal.SIGINT
    assert training.run()["steps"] == 1
    assert training.signals.exit_code == 130


def test_a_signal_while_the_finished_model_is_measured_does_not_undo_the_end(
    tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A signal ends the final evaluation; the resumed run only evaluates."""
    finish, run = Trainer._finish, tmp_path / "run"
    command = ["train", str(tiny_file), "--run", str(run), "--json"]
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_finish", lambda self: (finish(self), signal.raise_signal(signal.SIGTERM)))
        assert main(command) == 143
    assert json.loads(capsys.readouterr().out)["ended"] == "signal"
    assert (RunFolder(run).status().name, RunFolder(run).results()) == ("stopped", {})
    monkeypatch.setattr(Trainer, "step", None)
    assert main([*command, "--resume"]) == 0
    assert json.loads(capsys.readouterr().out)["ended"] == "max_epochs"
    assert RunFolder(run).status().name == "done"


def test_handlers_are_put_back(tiny_config: Any, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    TrainingSession(tiny_config({"training.max_steps": 2}), RunFolder(tmp_path)).run()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def _set_status(folder: RunFolder, **changes: Any) -> None:
    file = folder.path / "status.json"
    folder.write_status({**json.loads(file.read_text()), **changes})


def test_status(run_folder: RunFolder, tmp_path: Path) -> None:
    assert run_folder.status().name == "done"
    assert RunFolder(tmp_path / "none").status().name == "new"
    run_folder.heartbeat("running", 7, 24)
    assert run_folder.status().name == "crashed"  # no process holds the lock
    holder = RunFolder(run_folder.path)
    holder.lock()
    status = run_folder.status()
    assert (status.name, status.step, status.total_steps) == ("running", 7, 24)
    _set_status(run_folder, time=time.time() - 3600)
    assert run_folder.status().name == "stalled"
    holder.unlock()
    assert run_folder.status().name == "crashed"
    _set_status(run_folder, time=time.time(), host="another-machine")
    assert run_folder.status().name == "running"  # a lock on another machine is not visible
    run_folder.heartbeat("stopped", 7, 24)
    assert run_folder.status().name == "stopped"


def test_a_lock_goes_with_its_process(start: Callable[..., Any], tiny_file: Path, tmp_path: Path) -> None:
    """A stale pid in the lock file does not block a new process."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "lock").write_text("1")
    assert main(["train", str(tiny_file), "training.max_steps=2", "--run", str(run), "--quiet"]) == 0
