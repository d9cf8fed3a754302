"""Distributed training of two processes, one of which is killed."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path

from reliability.base import Outcome, Tries, Unsupported, Workspace, fault
from reliability.children import Child
from reliability.kills import differences, has_step

STEPS = 80
ALMOST_OVER = STEPS - 10
OPTIONS = ["training.max_epochs=null", f"training.max_steps={STEPS}", "training.save_every=5"]
RANKS = 2
SECONDS = 60.0
START_SECONDS = 900.0
"""Timeout for three processes that import PyTorch on a busy machine."""


@fault(
    "a rank killed",
    "SIGKILL to one of two processes that train together: by `--processes`, or as ranks of another launcher",
    "the other ends within 60 s and names it; resumed by the same command, the run equals the uninterrupted"
    " run to the bit",
    quick=2,
    full=20,
    part=2,
)
def a_rank(workspace: Workspace, numbers: range) -> Tries:
    if sys.platform != "linux":
        raise Unsupported("needs /proc")
    alone = workspace.new("alone")
    for child in start_ranks(workspace, alone):
        if child.wait(START_SECONDS):
            raise RuntimeError(child.errors)
    for number in numbers:
        # Alternate between our launcher and ranks as `torchrun` starts them.
        start = start_launcher if number % 2 == 0 else start_ranks
        run, rank = workspace.new("run"), workspace.rng.randrange(RANKS)
        while (other := kill(workspace, start(workspace, run), run, rank)) is None:
            run = workspace.new("run")
        outcome = reported_in_time(workspace, other, rank)
        if outcome is None:
            codes = [child.wait(START_SECONDS) for child in start_ranks(workspace, run)]
            outcome = None if codes == [0] * RANKS else f"exit {codes}"
        yield outcome or differences(alone, run)


def command(workspace: Workspace, run: Path) -> list[str]:
    return ["train", str(workspace.tiny_file), *OPTIONS, "--run", str(run), "--resume", "--quiet"]


def start_ranks(workspace: Workspace, run: Path) -> list[Child]:
    """Fork the ranks of one process group."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    group = {"WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS)}
    group |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        workspace.start(
            *command(workspace, run), environment={**group, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank in range(RANKS)
    ]


def start_launcher(workspace: Workspace, run: Path) -> list[Child]:
    return [workspace.start(*command(workspace, run), "--processes", str(RANKS), is_fresh=True)]


def kill(workspace: Workspace, children: list[Child], run: Path, rank: int) -> Child | None:
    """Kill a rank at a random step; return the process that must report it, or None if the run was too far.

    The rank is stopped first, so that it still has steps to do when it is killed. Killing rank 0 also kills
    the store of the process group.
    """
    children[0].wait_for_step(run, workspace.rng.randrange(6, 50), START_SECONDS)
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


def reported_in_time(workspace: Workspace, child: Child, rank: int) -> Outcome:
    start = time.monotonic()
    code = child.poll(SECONDS)
    if code is None:
        child.kill()
        return f"the other did not end within {SECONDS:g} s; stderr: {child.errors[-300:]}"
    if time.monotonic() - start > SECONDS:
        workspace.notes.append(f"of the {SECONDS:g} s, waiting for a processor does not count")
    if code == 0 or f"rank {rank}" not in child.errors or "Traceback" in child.errors:
        return f"exit {code}: {child.errors[-400:]}"
    return None


def rank_of(launcher: int, rank: int) -> int:
    """Find the child of the launcher that has this rank."""
    for entry in Path("/proc").iterdir():
        try:
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            if parent == str(launcher) and f"\0RANK={rank}\0" in (entry / "environ").read_text():
                return int(entry.name)
        except (OSError, ValueError, IndexError):
            continue
    raise LookupError(f"no rank {rank} below {launcher}")
