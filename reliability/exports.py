"""Interrupted exports: SIGKILL, a full disk, a read-only disk, a folder without permission."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from glassformer.core.config import dump_yaml
from glassformer.interchange.export import VERIFICATION
from glassformer.storage.files import file_sha256
from glassformer.storage.folders import UNFINISHED
from reliability.base import TINY, Outcome, Tries, Workspace, fault, is_fresh
from reliability.children import Child
from reliability.storage import SmallDisk, failed_cleanly, small_disk

MODEL = "model.bin"
"""File with the weights, which are the same in each export of a run."""


def trained(workspace: Workspace) -> Path:
    """Train a small encoder-decoder once per workspace; return its run."""
    run = workspace.folder / "arithmetic"
    if not run.exists():
        source = workspace.folder / "arithmetic.yaml"
        training = {**TINY["training"], "max_epochs": None, "max_steps": 2}
        source.write_text(dump_yaml({**TINY, "task": {"kind": "arithmetic"}, "training": training}))
        workspace.train(run, source=source)
    return run


def start_export(workspace: Workspace, out: Path, **order: Any) -> Child:
    command = ["export", trained(workspace), "--to", "ctranslate2", "--out", out, "--json"]
    return workspace.start(*command, **order)


def complete(out: Path, weights: str) -> Outcome:
    """Check that an exported folder is whole."""
    try:
        verified = json.loads((out / VERIFICATION).read_text())
        names = {path.name for path in out.iterdir()}
    except (OSError, ValueError) as error:
        return f"{out} is written half: {error}"
    missing = {MODEL, "README.md", "attention.png", "options.json", "tokenizer.json"} - names
    if missing or not verified["passed"]:
        return f"{out} is written half: {sorted(missing)} are missing"
    return None if file_sha256(out / MODEL) == weights else f"{out} has other weights"


def absent_or_complete(out: Path, weights: str) -> Outcome:
    return complete(out, weights) if out.exists() else None


def again(workspace: Workspace, out: Path, weights: str) -> Outcome:
    """Export once more: it must succeed, and leave nothing beside the folder."""
    if out.exists():
        return None
    child = start_export(workspace, out)
    if child.wait() != 0:
        return f"the next export failed: {child.errors[-600:]}"
    left = [path.name for path in out.parent.iterdir() if UNFINISHED in path.name]
    return complete(out, weights) or (f"left: {left}" if left else None)


Interrupt = Callable[[Workspace, int, Path, str, int, float], Outcome]


def killed_at_an_operation(
    workspace: Workspace, number: int, out: Path, weights: str, operations: int, seconds: float
) -> Outcome:
    """Kill the export before one of its file operations."""
    order = {"below": str(out.parent), "die_at": workspace.rng.randrange(1, operations + 1)}
    code = start_export(workspace, out, is_fresh=is_fresh(number), operations=order).wait()
    if code != -signal.SIGKILL:
        return f"no kill at operation {order['die_at']} of {operations}: exit {code}"
    return absent_or_complete(out, weights) or again(workspace, out, weights)


def killed_at_a_moment(
    workspace: Workspace, number: int, out: Path, weights: str, operations: int, seconds: float
) -> Outcome:
    """Kill the export at a random moment, most often while the engine verifies the folder."""
    child = start_export(workspace, out)
    child.poll(workspace.rng.uniform(0.05, 0.95) * seconds)
    child.kill()
    return absent_or_complete(out, weights) or again(workspace, out, weights)


def full_disk(
    workspace: Workspace, number: int, out: Path, weights: str, operations: int, seconds: float
) -> Outcome:
    with small_disk(workspace.new("disk")) as disk:
        disk.fill(leaving=4096 * workspace.rng.randrange(12))
        return _refused(workspace, disk, weights, "No space left on device", disk.empty)


def read_only_disk(
    workspace: Workspace, number: int, out: Path, weights: str, operations: int, seconds: float
) -> Outcome:
    with small_disk(workspace.new("disk")) as disk:
        disk.remount("ro")
        return _refused(workspace, disk, weights, "Read-only file system", lambda: disk.remount("rw"))


def _refused(
    workspace: Workspace, disk: SmallDisk, weights: str, reason: str, repair: Callable[[], None]
) -> Outcome:
    """Export to a broken disk, then again to the repaired one."""
    out = disk.path / "out"
    outcome = failed_cleanly(start_export(workspace, out), out, reason)
    left = [path.name for path in disk.path.iterdir() if path.name != "filler"]
    repair()
    return outcome or (f"left: {left}" if left else None) or again(workspace, out, weights)


def no_permission(
    workspace: Workspace, number: int, out: Path, weights: str, operations: int, seconds: float
) -> Outcome:
    out.parent.chmod(0o555)
    outcome = failed_cleanly(start_export(workspace, out, without_privileges=True), out, "Permission denied")
    out.parent.chmod(0o755)
    return outcome or again(workspace, out, weights)


INTERRUPTS: tuple[Interrupt, ...] = (
    killed_at_an_operation,
    killed_at_a_moment,
    full_disk,
    killed_at_an_operation,
    read_only_disk,
    killed_at_an_operation,
    killed_at_a_moment,
    no_permission,
)


@fault(
    "interrupted exports",
    "SIGKILL before any file operation of an export or while it verifies; a full or read-only disk",
    "the folder is whole or absent; one error with path and bytes; the next export works and cleans up",
    quick=24,
    full=200,
    part=24,
)
def interrupted_exports(workspace: Workspace, numbers: range) -> Tries:
    parent = workspace.made("reference")
    start = time.monotonic()
    child = start_export(workspace, parent / "out", operations={"below": str(parent)})
    if child.wait() != 0:
        raise RuntimeError(child.errors)
    seconds = time.monotonic() - start
    operations = len((child.folder / "operations").read_text().splitlines())
    weights = file_sha256(parent / "out" / MODEL)
    workspace.notes.append(f"an export has {operations} file operations")
    for number in numbers:
        interrupt = INTERRUPTS[number % len(INTERRUPTS)]
        out = workspace.made("export") / "out"
        outcome = interrupt(workspace, number, out, weights, operations, seconds)
        yield f"{interrupt.__name__}: {outcome}" if outcome else None
