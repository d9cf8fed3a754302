"""A real PostgreSQL server: workers share it, one is killed, the server is restarted, and nothing is lost.

The server does not run as root; where the tests do, another user runs it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from glassformer.cli import main
from glassformer.sweeps.definition import define
from glassformer.sweeps.storage import Database, storage_url
from glassformer.sweeps.study import Board, join, outcome_of

TRIALS = 30
PATIENCE_SECONDS = 300.0


class Server:
    """On a port and in a folder of its own."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.programs, self.folder = programs, folder
        self.user = "nobody" if os.geteuid() == 0 else None
        if self.user is not None:
            shutil.chown(folder, self.user)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"postgresql://sweeper@127.0.0.1:{self.port}/postgres"
        self._run("initdb", "-U", "sweeper", "--auth=trust", "--no-sync", "--no-instructions")

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self.programs / program, "-D", self.folder / "data", *arguments],
            user=self.user,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if program == "initdb" else subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
            timeout=120,
        )
        assert done.returncode == 0, f"{program}: {done.stdout!r}"

    def start(self) -> None:
        options = f"-c port={self.port} -c listen_addresses=127.0.0.1 -c fsync=off -k {self.folder}"
        self._run("pg_ctl", "-w", "-t", "90", "-l", str(self.folder / "log"), "-o", options, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-w", "-m", "immediate", "stop")


def find_programs() -> Path | None:
    found = shutil.which("initdb")
    if found and shutil.which("pg_ctl"):
        return Path(found).parent
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda place: int(place.parent.name))
    return next((place for place in reversed(places) if (place / "initdb").exists()), None)


@pytest.fixture
def server() -> Iterator[Server]:
    programs = find_programs()
    if programs is None:
        reason = "PostgreSQL is not installed: no initdb on the path or in /usr/lib/postgresql/*/bin"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="sweep-"))  # not below tmp_path, where only its owner may look
    server = Server(programs, folder)
    server.start()
    try:
        yield server
    finally:
        with contextlib.suppress(AssertionError):
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)


class Saboteur(threading.Thread):
    """Kills a worker after a few trials, and restarts the server after a few more."""

    def __init__(self, server: Server, runs: Path) -> None:
        super().__init__(daemon=True)
        self.server, self.runs = server, runs
        self.killed: list[int] = []
        self.ended_before_restart = self.ended_after_restart = -1

    def ended(self) -> int:
        return len(list(self.runs.glob("*/results.json")))

    def wait_for(self, count: int) -> None:
        began = time.monotonic()
        while self.ended() < count and time.monotonic() - began < PATIENCE_SECONDS:
            time.sleep(0.02)

    def run(self) -> None:
        self.wait_for(4)
        while not self.killed:
            for lock in self.runs.glob("*/lock"):
                pid = lock.read_text(encoding="utf-8").strip()
                with contextlib.suppress(ProcessLookupError, ValueError):
                    os.kill(int(pid), signal.SIGKILL)
                    self.killed.append(int(pid))
                    break
        self.wait_for(10)
        self.ended_before_restart = self.ended()
        self.server.stop()
        time.sleep(1.0)
        self.server.start()
        self.ended_after_restart = self.ended()


def test_two_workers_one_killed_and_the_server_restarted(
    server: Server, tiny_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "sweep"
    saboteur = Saboteur(server, out / "runs")
    saboteur.start()
    code = main(
        [
            *("sweep", str(tiny_file), "task.length=4..9", "model.num_layers=1,2,3,4,5"),
            *("training.max_steps=3", "evaluation.max_examples=8", "--workers", "2", "--heartbeat", "1"),
            *("--storage", server.url, "--out", str(out), "--json"),
        ]
    )
    saboteur.join(PATIENCE_SECONDS)
    output = capfd.readouterr()
    assert code == 0, output.err
    assert saboteur.killed and "a worker has died" in output.err
    assert saboteur.ended_before_restart >= 10 and saboteur.ended_after_restart < TRIALS

    document = json.loads(output.out)
    assert document["counts"]["complete"] == len(document["trials"]) == TRIALS
    points = Counter(tuple(trial["params"].values()) for trial in document["trials"])
    assert points == {(length, layers): 1 for length in range(4, 10) for layers in range(1, 6)}
    assert len({trial["run"] for trial in document["trials"]}) == TRIALS
    assert len(list(out.glob("runs/*/results.json"))) == len(list((out / "runs").iterdir())) == TRIALS

    board = join(storage_url(server.url, out), document["study"])
    told = Counter(map(outcome_of, board.trials()))
    board.database.close()
    assert told["complete"] == TRIALS and set(told) <= {"complete", "abandoned", "duplicate"}
    assert f"glassformer sweep worker {document['study']} --storage {server.url}" in output.err


def test_the_worker_verb_takes_its_trials_from_the_server(
    server: Server, tiny_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A machine that knows nothing but the server and the study's name."""
    definition = define(str(tiny_file), ["model.num_layers=1,2", "training.max_epochs=1"], heartbeat=1)
    url = storage_url(server.url, tmp_path)
    database = Database(url)
    database.set_heartbeat(1)
    board = Board.create(database, "shared", definition, None)
    command = ["sweep", "worker", "shared", "--storage", server.url, "--out", str(tmp_path), "--json"]
    assert main(command) == 0
    document = json.loads(capfd.readouterr().out)
    trials = board.trials()
    database.close()
    assert document["trials"] == 2 and document["storage"] == server.url
    assert [outcome_of(trial) for trial in trials] == ["complete", "complete"]
    assert {trial.user_attrs["run"] for trial in trials} == {
        str(tmp_path / "runs" / f"trial-000{setting}-seed-0") for setting in (0, 1)
    }
