"""Fixtures: child processes, and a small disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reliability.base import Unsupported
from reliability.children import PATIENCE, Child, Zygote
from reliability.storage import SmallDisk
from reliability.storage import small_disk as mount_small_disk

Start = Callable[..., Child]


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    zygote.close()


@pytest.fixture
def start(zygote: Zygote, tmp_path: Path) -> Iterator[Start]:
    """Start `glassformer` with these arguments in a child process."""
    running: list[Child] = []

    def start_child(*arguments: str | Path) -> Child:
        folder = tmp_path / f"child-{len(running)}"
        folder.mkdir()
        running.append(zygote.start([str(argument) for argument in arguments], folder))
        return running[-1]

    yield start_child
    for child in running:
        child.kill()


@pytest.fixture
def wait_for_step() -> Callable[[Path, int], None]:
    """Wait until a run in another process has logged a step."""

    def wait(path: Path, step: int) -> None:
        events, end = path / "events.jsonl", time.monotonic() + PATIENCE
        while not events.exists() or f'"step": {step},' not in events.read_text():
            if time.monotonic() > end:
                pytest.fail(f"{path} did not reach step {step}")
            time.sleep(0.01)

    return wait


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    try:
        with mount_small_disk(tmp_path / "disk") as disk:
            yield disk
    except Unsupported as reason:
        pytest.skip(str(reason))
