"""Option `--processes`: real processes under the elastic launcher, some of which are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glassformer.cli import main
from glassformer.runs.folder import RunFolder
from glassformer.training.checkpoints import CheckpointStore

SECONDS = 240.0
LONG = ["training.max_epochs=null", "training.max_steps=100000", "training.save_every=5", "model.dropout=0.0"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found by /proc")


class Launched:
    """Command in a child process, and its ranks."""

    def __init__(self, *words: str | Path, folder: Path) -> None:
        self.errors_file = folder / "errors"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "glassformer", "train", *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=open(self.errors_file, "w"),  # noqa: SIM115  the child's
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def rank(self, number: int) -> int:
        """Wait for a rank and return its process ID."""

        def find() -> int | None:
            pid = self.process.pid
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            wanted = f"RANK={number}".encode()
            found = (c for c in children if wanted in Path(f"/proc/{c}/environ").read_bytes().split(b"\0"))
            return next(map(int, found), None)

        return self.until(find)

    def until(self, find: Callable[[], Any]) -> Any:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            if self.process.poll() is not None:
                pytest.fail(f"it has ended:\n{self.errors}")
            try:
                if found := find():
                    return found
            except (OSError, ValueError):  # not started yet, or just ended
                pass
            time.sleep(0.01)
        pytest.fail(f"waited in vain:\n{self.errors}")

    def until_step(self, run: Path, step: int) -> None:
        self.until(lambda: _last_step(run) >= step)

    def wait(self) -> tuple[int, dict[str, Any]]:
        output, _ = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, json.loads(output)

    @property
    def errors(self) -> str:
        return self.errors_file.read_text()


def _last_step(run: Path) -> int:
    lines = (run / "events.jsonl").read_text().splitlines()
    return max((json.loads(line).get("step", 0) for line in lines), default=0)


@pytest.fixture
def launched(tmp_path: Path) -> Any:
    started: list[Launched] = []

    def start(*words: str | Path) -> Launched:
        started.append(Launched(*words, folder=tmp_path))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.terminate()
            one.process.wait(SECONDS)


def test_a_killed_rank_is_replaced_once_and_then_named(
    launched: Any, tiny_file: Path, tmp_path: Path
) -> None:
    """Allow one restart: after the first loss the run resumes, after the second it ends."""
    run = tmp_path / "run"
    child = launched(tiny_file, *LONG, "--run", run, "--processes", "2", "--max-restarts", "1", "--json")
    child.until_step(run, 12)
    assert listening(child.process.pid, child.rank(0), child.rank(1)) <= {"127.0.0.1"}
    os.kill(child.rank(1), signal.SIGKILL)
    child.until(lambda: "resuming from step " in child.errors)
    reached = _last_step(run)
    child.until_step(run, reached + 10)
    killed, started = child.rank(1), time.monotonic()
    os.kill(killed, signal.SIGKILL)
    code, document = child.wait()
    assert time.monotonic() - started < 60
    assert code == 1
    (error,) = document["errors"]
    expected = f"rank 1 (process {killed}) was killed by SIGKILL; the other ranks were stopped"
    assert error["message"] == expected
    assert error["hint"] == f"glassformer train {run} --resume  # from the last checkpoint"
    assert "restart 1" in child.errors and "Traceback" not in child.errors
    assert f"rank 1 of 2 is gone (process {killed} on " in child.errors
    steps = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    numbers = [event["step"] for event in steps if event["event"] == "step"]
    assert numbers == list(range(1, len(numbers) + 1))
    assert not RunFolder(run).is_locked()


def test_a_signal_to_the_launcher_saves_and_one_process_resumes(
    launched: Any, tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    child = launched(tiny_file, *LONG, "--run", run, "--processes", "2", "--json")
    child.until_step(run, 7)
    child.process.send_signal(signal.SIGTERM)
    code, document = child.wait()
    assert code == 143 and document["ended"] == "signal" and document["processes"] == 2
    store = CheckpointStore(run / "checkpoints")
    assert store.states()[-1].startswith(f"step-{document['steps']:08d}")
    assert RunFolder(run).status().name == "stopped"
    steps = document["steps"] + 3
    assert main(["train", str(run), "--resume", f"training.max_steps={steps}", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["steps"] == steps
    assert "checkpoint from 2 processes, resuming with 1" in printed.err


def test_the_resume_command_has_the_number_of_processes(
    launched: Any, tiny_file: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    child = launched(tiny_file, *LONG, "--run", run, "--processes", "2")
    child.until_step(run, 3)
    child.process.send_signal(signal.SIGTERM)
    printed, _ = child.process.communicate(timeout=SECONDS)
    assert "--resume --processes 2" in printed.replace("\n", " ")


@pytest.mark.parametrize("words", [["--processes", "0"], ["--processes", "2", "--max-restarts", "-1"]])
def test_impossible_numbers(words: list[str], tiny_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(tiny_file), *words]) == 2
    assert f"{words[-2]}: the value must be at least" in capsys.readouterr().err


def test_processes_within_processes(
    tiny_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    assert main(["train", str(tiny_file), "--processes", "2"]) == 2
    assert "already started several processes" in capsys.readouterr().err


def listening(*pids: int) -> set[str]:
    """Return the addresses on which processes accept connections."""
    links = {
        os.readlink(path) for pid in pids for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()
    }
    addresses = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in links:
                addresses.add(_address(fields[1].split(":")[0]))
    return addresses


def _address(hexadecimal: str) -> str:
    """Decode an address of /proc/net, whose 32-bit words have the machine's byte order."""
    words = [bytes.fromhex(hexadecimal[i : i + 8])[::-1] for i in range(0, len(hexadecimal), 8)]
    return ".".join(map(str, words[-1]))
