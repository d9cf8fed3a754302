"""Trainings as real processes that the studio starts, stops and sees die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from glassformer.runs.folder import RunFolder
from glassformer.studio import limits, trainings
from glassformer.studio.app import Studio
from glassformer.studio.runs import RunsFolder
from glassformer.studio.trainings import Trainings, find_error
from glassformer.web.messages import Refusal

ENDLESS = {
    "task.length": 6,
    "task.train_examples": 64,
    "training.max_steps": 10_000_000,
    "training.stopping.target": None,
    "training.log_every": 1,
    "training.validate_every": 1_000_000,
    "training.batch_tokens": 60,
    "training.threads": 1,
}
PATIENCE_SECONDS = 120


def until(check: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if found := check():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")


@pytest.fixture
def started(client: TestClient, studio: Studio) -> Iterator[str]:
    reply = client.post("/api/runs", json={"source": "reversal", "values": ENDLESS})
    assert reply.status_code == 201, reply.text
    name = reply.json()["run"]
    yield name
    process = studio.trainings._started[name]
    process.kill()
    process.wait()


def row(client: TestClient, name: str) -> dict[str, Any]:
    (found,) = [row for row in client.get("/api/runs").json()["runs"] if row["name"] == name]
    return dict(found)


def test_a_run_from_start_to_stop(client: TestClient, studio: Studio, started: str) -> None:
    assert row(client, started)["status"] in ("starting", "running")
    until(lambda: row(client, started)["status"] == "running")
    reply = until(lambda: (found := client.get(f"/api/runs/{started}/events").json())["events"] and found)
    # New events appear after the last byte, with later steps.
    later = until(
        lambda: (
            (
                found := client.get(
                    f"/api/runs/{started}/events?after={reply['next']}&mark={reply['mark']}"
                ).json()
            )["events"]
            and found
        )
    )
    assert later["events"][0]["step"] == reply["events"][-1]["step"] + 1 and not later["restart"]
    assert client.get("/api/runs").json()["runs"][0]["last"]["loss"] > 0

    process = studio.trainings._started[started]
    assert os.getsid(process.pid) == process.pid  # a signal to the studio does not reach it
    assert client.post(f"/api/runs/{started}/stop", json={}).status_code == 202
    assert process.wait(PATIENCE_SECONDS) == 143
    assert row(client, started)["status"] == "stopped"
    assert client.get(f"/api/runs/{started}").json()["checkpoints"]  # it saved before it stopped
    assert client.post(f"/api/runs/{started}/stop").status_code == 409


def test_a_killed_run_shows_as_crashed(client: TestClient, studio: Studio, started: str) -> None:
    until(lambda: row(client, started)["status"] == "running" and row(client, started)["step"] > 0)
    studio.trainings._started[started].kill()
    studio.trainings._started[started].wait()
    assert row(client, started)["status"] == "crashed"
    assert client.get(f"/api/runs/{started}/events").json()["status"] == "crashed"


def test_a_failed_start_shows_its_error(client: TestClient, studio: Studio) -> None:
    values = {"task.kind": "translation", "task.data.train": "no-such-file.tsv"}
    reply = client.post("/api/runs", json={"source": "reversal", "values": values})
    assert reply.status_code == 201
    name = reply.json()["run"]
    studio.trainings._started[name].wait(PATIENCE_SECONDS)
    failed = row(client, name)
    assert failed["status"] == "failed" and "no-such-file.tsv" in failed["error"]
    assert "Traceback" not in failed["error"] and "try:" in failed["error"]
    assert failed["error"] in failed["log"]
    assert failed["form"] == {"source": "reversal", "values": values}  # to change and try again
    assert not (studio.folder.path / name).exists()  # no incomplete folder is left


def test_the_error_of_a_training_is_found_in_its_output() -> None:
    error = "task.data.train: no such file\n  given:   'x'\n  try:     another path"
    assert find_error(f"reading\nglassformer: {error}") == error
    assert find_error("Traceback (most recent call last):\n  …\nKeyError: 'x'") == "KeyError: 'x'"
    assert find_error("") == ""


def test_a_run_that_was_removed_leaves_the_table(client: TestClient, studio: Studio, started: str) -> None:
    until(lambda: row(client, started)["status"] == "running")
    process = studio.trainings._started[started]
    process.terminate()
    process.wait(PATIENCE_SECONDS)
    assert row(client, started)["status"] == "stopped"
    RunFolder(studio.folder.path / started).remove()
    assert started not in [row["name"] for row in client.get("/api/runs").json()["runs"]]


HOLDER = """
import sys, time
from pathlib import Path
from glassformer.runs.folder import RunFolder
run = RunFolder(Path(sys.argv[1]))
run.lock()
run.heartbeat("running", 5, 10)
print("locked", flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(runs: Path) -> Iterator[subprocess.Popen[str]]:
    """Process, not started by the studio, that holds the lock of `tiny`."""
    command = [sys.executable, "-c", HOLDER, str(runs / "tiny")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def test_only_the_process_that_holds_the_lock_is_stopped(
    client: TestClient, runs: Path, holder: subprocess.Popen[str]
) -> None:
    """Never signal another process that reuses the PID, whatever the files contain."""
    run = RunFolder(runs / "tiny")
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        status, lock = (runs / "tiny" / "status.json").read_text(), (runs / "tiny" / "lock").read_text()
        other = str(bystander.pid)
        heartbeat = json.loads(status) | {"pid": bystander.pid}
        run.write_status(heartbeat)
        assert run.status().pid == bystander.pid
        assert client.post("/api/runs/tiny/stop").status_code == 409
        (runs / "tiny" / "lock").write_text(other)  # as between a new holder's lock and its first status
        assert client.post("/api/runs/tiny/stop").status_code == 409
        assert bystander.poll() is None and holder.poll() is None
        (runs / "tiny" / "lock").write_text(lock)
        (runs / "tiny" / "status.json").write_text(status)
        assert client.post("/api/runs/tiny/stop").status_code == 202
        assert holder.wait(PATIENCE_SECONDS) == -signal.SIGTERM
        assert bystander.poll() is None
    finally:  # a failed test must not wait for it
        bystander.kill()
        bystander.wait()


def test_a_run_of_another_machine_cannot_be_stopped_here(
    client: TestClient, runs: Path, holder: subprocess.Popen[str]
) -> None:
    status = runs / "tiny" / "status.json"
    RunFolder(runs / "tiny").write_status(json.loads(status.read_text()) | {"host": "elsewhere"})
    reply = client.post("/api/runs/tiny/stop")
    assert reply.status_code == 400 and "machine" in reply.json()["error"]["message"]
    assert holder.poll() is None


def test_a_finished_run_cannot_be_stopped(client: TestClient) -> None:
    assert client.post("/api/runs/tiny/stop").status_code == 409
    assert client.post("/api/runs/nothing/stop").status_code == 404


def test_not_too_many_are_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[list[str]] = []

    class Fake:
        def __init__(self, command: list[str], **options: Any) -> None:
            assert options["start_new_session"] and options["stdin"] == subprocess.DEVNULL
            made.append(command)

        def poll(self) -> None:
            return None

    monkeypatch.setattr(trainings.subprocess, "Popen", Fake)
    started = Trainings(RunsFolder(tmp_path), [Path("/plug in.py")])
    for _ in range(limits.CONCURRENT_TRAININGS):
        started.start("reversal", ["reversal", "seed=1"])
    with pytest.raises(Refusal) as refused:
        started.start("reversal", ["reversal"])
    assert refused.value.status == 429 and refused.value.headers["Retry-After"]
    assert made[0][1:6] == ["-P", "-m", "glassformer", "train", "reversal"]
    assert made[0][-2:] == ["--plugin", "/plug in.py"]
    assert len({command[command.index("--run") + 1] for command in made}) == limits.CONCURRENT_TRAININGS
