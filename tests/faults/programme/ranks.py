"""Two processes that train together, one of which is killed."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path

from programme.base import NotHere, Outcome, Place, Tries, fault
from programme.children import Child
from programme.kills import differences

OPTIONS = ["training.max_epochs=null", "training.max_steps=80", "training.save_every=5"]
RANKS = 2
SECONDS = 60.0
START_SECONDS = 900.0
"""Three processes that import PyTorch, on a busy machine."""


@fault(
    "a rank killed",
    "SIGKILL to one of two processes that train together: by `--processes`, or as ranks of another launcher",
    "the other ends within 60 s and names it; the same command goes on to the bit of the uninterrupted run",
    quick=2,
    full=20,
    part=2,
)
def a_rank(place: Place, numbers: range) -> Tries:
    if sys.platform != "linux":
        raise NotHere("processes are found by /proc")
    alone = place.new("alone")
    for child in start_ranks(place, alone):
        if child.wait(START_SECONDS):
            raise RuntimeError(child.errors)
    for number in numbers:
        run, step = place.new("run"), place.dice.randrange(6, 50)
        # The first of two tries by the launcher of the command line, the other as `torchrun` starts ranks.
        outcome = kill_by_launcher(place, run, step) if number % 2 == 0 else kill_one(place, run, step)
        if outcome is None:
            codes = [child.wait(START_SECONDS) for child in start_ranks(place, run)]
            outcome = None if codes == [0] * RANKS else f"exit {codes}"
        yield outcome or differences(alone, run)


def command(place: Place, run: Path) -> list[str]:
    return ["train", str(place.tiny_file), *OPTIONS, "--run", str(run), "--resume", "--quiet"]


def start_ranks(place: Place, run: Path) -> list[Child]:
    """Forks that are told to be ranks of one group."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    group = {"WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS)}
    group |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        place.start(*command(place, run), environment={**group, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(RANKS)
    ]


def kill_one(place: Place, run: Path, step: int) -> Outcome:
    """Either of them; the store that they met at is the first one's, and goes with it."""
    ranks = start_ranks(place, run)
    rank = place.dice.randrange(RANKS)
    ranks[0].wait_for_step(run, step, START_SECONDS)
    ranks[rank].send(signal.SIGKILL)
    return named_in_time(place, ranks[1 - rank], rank)


def kill_by_launcher(place: Place, run: Path, step: int) -> Outcome:
    child = place.start(*command(place, run), "--processes", str(RANKS), is_fresh=True)
    child.wait_for_step(run, step, START_SECONDS)
    rank = place.dice.randrange(RANKS)
    os.kill(rank_of(child.pid, rank), signal.SIGKILL)
    return named_in_time(place, child, rank)


def named_in_time(place: Place, child: Child, rank: int) -> Outcome:
    began = time.monotonic()
    code = child.poll(SECONDS)
    if code is None:
        child.kill()
        return f"the other did not end within {SECONDS:g} s; it said: {child.errors[-300:]}"
    if time.monotonic() - began > SECONDS:
        place.notes.append(f"of {SECONDS:g} s, those do not count in which others had the processor")
    if code == 0 or f"rank {rank}" not in child.errors or "Traceback" in child.errors:
        return f"exit {code}: {child.errors[-400:]}"
    return None


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
