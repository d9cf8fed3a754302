"""Other processes, and disks that fail."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # as `scripts/prove` finds the programme

from programme.children import PATIENCE, Child, Zygote, start_fresh

Start = Callable[..., Child]


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    zygote.close()


@pytest.fixture
def start(zygote: Zygote, tmp_path: Path) -> Iterator[Start]:
    """Start `glassformer` with these arguments in a process of its own."""
    running: list[Child] = []

    def begin(*arguments: str | Path, fresh: bool = False) -> Child:
        words = [str(argument) for argument in arguments]
        folder = tmp_path / f"child-{len(running)}"
        folder.mkdir()
        running.append(start_fresh(words, folder) if fresh else zygote.start(words, folder))
        return running[-1]

    yield begin
    for child in running:
        child.kill()


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
