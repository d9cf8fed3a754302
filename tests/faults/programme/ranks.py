"""Two processes that train together, one of which is killed."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from programme.base import NotHere, Outcome, Place, Tries, fault
from programme.children import Child, start_fresh
from programme.kills import differences

OPTIONS = ["training.max_epochs=null", "training.max_steps=300", "training.save_every=5"]
SECONDS = 60.0
START_SECONDS = 900.0
"""Three processes that import PyTorch, on a busy machine."""


@fault(
    "a rank killed",
    "SIGKILL to one of two processes that train together",
    "the other ends within 60 s and names it; the same command goes on to the bit of the uninterrupted run",
    quick=2,
    full=20,
    in_tests=0,
)
def a_rank(place: Place, count: int) -> Tries:
    if sys.platform != "linux":
        raise NotHere("processes are found by /proc")
    alone = place.new("alone")
    child = start(place, alone)
    if child.wait(START_SECONDS):
        raise RuntimeError(child.errors)
    for number in range(count):
        run = place.new("run")
        child = start(place, run)
        child.wait_for_step(run, place.dice.randrange(6, 60), START_SECONDS)
        outcome = kill(child, number % 2)
        if outcome is None:
            child = start(place, run)
            outcome = None if child.wait(START_SECONDS) == 0 else child.errors[-400:]
        yield outcome or differences(alone, run)


def start(place: Place, run: Path) -> Child:
    folder = place.new("together")
    folder.mkdir()
    words = ["train", str(place.tiny_file), *OPTIONS, "--run", str(run), "--resume", "--quiet"]
    return start_fresh([*words, "--processes", "2"], folder)


def rank_of(launcher: int, rank: int) -> int:
    """The process that is told to be this rank."""
    for entry in Path("/proc").iterdir():
        try:
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            if parent == str(launcher) and f"\0RANK={rank}\0" in (entry / "environ").read_text():
                return int(entry.name)
        except (OSError, ValueError, IndexError):
            continue
    raise LookupError(f"no rank {rank} below {launcher}")


def kill(child: Child, rank: int) -> Outcome:
    os.kill(rank_of(child.pid, rank), signal.SIGKILL)
    began = time.monotonic()
    code = child.wait(2 * SECONDS)
    seconds = time.monotonic() - began
    if seconds > SECONDS:
        return f"the other ended after {seconds:.0f} s"
    if code == 0 or f"rank {rank}" not in child.errors or "Traceback" in child.errors:
        return f"exit {code}: {child.errors[-400:]}"
    return None
