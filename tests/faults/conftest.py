"""Other processes, and disks that fail."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PATIENCE = 120.0


@dataclass
class Child:
    """A `glassformer` command that runs in its own process and folder."""

    pid: int
    folder: Path
    wait_for_exit: Callable[[float], int | None]

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait_for_words(self, words: str) -> None:
        end = time.monotonic() + PATIENCE
        while words not in self.errors:
            if time.monotonic() > end:
                pytest.fail(f"it did not say {words!r}, but:\n{self.errors}")
            time.sleep(0.002)

    def wait(self) -> int:
        code = self.wait_for_exit(PATIENCE)
        if code is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait_for_exit(PATIENCE)
            pytest.fail(f"no end within {PATIENCE:g} s; it said:\n{self.errors}")
        return code

    @property
    def output(self) -> str:
        return (self.folder / "out").read_text()

    @property
    def errors(self) -> str:
        return (self.folder / "err").read_text()


Start = Callable[..., Child]


@pytest.fixture(scope="session")
def zygote() -> Iterator[Callable[[dict[str, Any]], Any]]:
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("zygote.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdin is not None and process.stdout is not None
    requests, answers = process.stdin, process.stdout

    def ask(order: dict[str, Any]) -> Any:
        print(json.dumps(order), file=requests, flush=True)
        return json.loads(answers.readline())

    yield ask
    process.kill()
    process.communicate()


@pytest.fixture
def start(zygote: Callable[[dict[str, Any]], Any], tmp_path: Path) -> Iterator[Start]:
    """Start `glassformer` with these arguments in a process of its own."""
    running: dict[int, Child] = {}

    def begin(*arguments: str | Path, fresh: bool = False) -> Child:
        words = [str(argument) for argument in arguments]
        folder = tmp_path / f"child-{len(running)}"
        folder.mkdir()
        if fresh:
            child = _popen(words, folder)
        else:
            pid = zygote({"arguments": words, "folder": str(folder)})
            child = Child(pid, folder, lambda seconds: zygote({"wait": pid, "seconds": seconds}))
        ended: list[int | None] = []
        wait_for_exit = child.wait_for_exit

        def once(seconds: float) -> int | None:
            if not ended or ended[0] is None:
                ended[:] = [wait_for_exit(seconds)]
            return ended[0]

        child.wait_for_exit = once
        running[len(running)] = child
        return child

    yield begin
    for child in running.values():
        if child.wait_for_exit(0.01) is None:
            os.kill(child.pid, signal.SIGKILL)
            child.wait_for_exit(PATIENCE)


def _popen(words: list[str], folder: Path) -> Child:
    with open(folder / "out", "wb") as out, open(folder / "err", "wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "glassformer", *words],
            cwd=folder,
            stdout=out,
            stderr=err,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def wait_for_exit(seconds: float) -> int | None:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    return Child(process.pid, folder, wait_for_exit)


@pytest.fixture
def wait_for_step() -> Callable[[Path, int], None]:
    """Until a run in another process has logged this step."""

    def wait(path: Path, step: int) -> None:
        record, end = path / "events.jsonl", time.monotonic() + PATIENCE
        while not record.exists() or f'"step": {step},' not in record.read_text():
            if time.monotonic() > end:
                pytest.fail(f"{path} did not reach step {step}")
            time.sleep(0.01)

    return wait


@dataclass
class SmallDisk:
    path: Path

    def fill(self, leaving: int) -> None:
        """Write until only so many bytes are free."""
        size = shutil.disk_usage(self.path).free - leaving
        (self.path / "filler").write_bytes(bytes(size))

    def empty(self) -> None:
        (self.path / "filler").unlink()

    def remount(self, option: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{option}", str(self.path)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A disk of 4 MB that is really full when it is full."""
    if os.geteuid() != 0 or sys.platform != "linux":
        pytest.skip("only root on Linux can mount a small disk")
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "glassformer-test", str(path)]
    mounted = subprocess.run(mount, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    yield SmallDisk(path)
    gc.collect()
    if subprocess.run(["umount", str(path)], capture_output=True).returncode:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
        pytest.fail("something still holds a file of the run open")
