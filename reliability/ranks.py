"""Two processes that train together, one of which is killed."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path

from reliability.base import NotHere, Outcome, Place, Tries, fault
from reliability.children import Child
from reliability.kills import differences, has_step

STEPS = 80
ALMOST_OVER = STEPS - 10
OPTIONS = ["training.max_epochs=null", f"training.max_steps={STEPS}", "training.save_every=5"]
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
        # The first of two tries by the launcher of the command line, the other as `torchrun` starts ranks.
        start = start_launcher if number % 2 == 0 else start_ranks
        run, rank = place.new("run"), place.dice.randrange(RANKS)
        while (other := kill(place, start(place, run), run, rank)) is None:
            run = place.new("run")
        outcome = named_in_time(place, other, rank)
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


def start_launcher(place: Place, run: Path) -> list[Child]:
    return [place.start(*command(place, run), "--processes", str(RANKS), is_fresh=True)]


def kill(place: Place, children: list[Child], run: Path, rank: int) -> Child | None:
    """Either rank, somewhere in the run; the store that they met at is the first one's, and goes with it.
    Gives the process that has to tell of it, and none if the run was almost over before it was seen to have
    come so far: the rank is held still, so that it has steps to do when it is killed."""
    children[0].wait_for_step(run, place.dice.randrange(6, 50), START_SECONDS)
    is_launcher = len(children) == 1
    try:
        pid = rank_of(children[0].pid, rank) if is_launcher else children[rank].pid
        os.kill(pid, signal.SIGSTOP)
        is_over = has_step(run, ALMOST_OVER)
        os.kill(pid, signal.SIGCONT if is_over else signal.SIGKILL)
    except (LookupError, ProcessLookupError):
        is_over = True
    if is_over:
        for child in children:
            child.wait(START_SECONDS)
        return None
    return children[0 if is_launcher else 1 - rank]


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
