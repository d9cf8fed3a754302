"""Faults of storage (full, read-only, broken) during saving, logging and caching; system calls of a save."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassformer.runs.folder import RunFolder
from glassformer.storage.files import file_sha256
from reliability.base import Outcome, Tries, Unsupported, Workspace, fault, is_fresh
from reliability.children import Child

INTACT = "the previous checkpoint is intact; one error with the path, the bytes needed and free; exit 2"
LARGER = ["model.hidden_dim=64"]
"""Options of a larger model, whose checkpoint (0.3 MB) needs much more space than an event."""
MOMENTS = ("saving", "logging", "building shards")


@dataclass
class SmallDisk:
    """Mounted tmpfs of 4 MB."""

    path: Path

    def fill(self, leaving: int) -> None:
        """Fill the disk until `leaving` bytes are free."""
        size = shutil.disk_usage(self.path).free - leaving
        (self.path / "filler").write_bytes(bytes(max(size, 0)))

    def empty(self) -> None:
        (self.path / "filler").unlink(missing_ok=True)

    def remount(self, option: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{option}", str(self.path)], check=True)


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[SmallDisk]:
    """Context: mount a disk of 4 MB."""
    if os.geteuid() != 0 or sys.platform != "linux":
        raise Unsupported("only root on Linux can mount a small disk")
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "glassformer-test", str(path)]
    mounted = subprocess.run(mount, capture_output=True, text=True)
    if mounted.returncode:
        raise Unsupported(f"cannot mount a small disk: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        gc.collect()
        if subprocess.run(["umount", str(path)], capture_output=True).returncode:
            subprocess.run(["umount", "--lazy", str(path)], check=True)
            raise RuntimeError("a file of the run is still open")


def start_run(workspace: Workspace, run: Path) -> str:
    """Train a third of a run; return the SHA-256 of its weights."""
    workspace.train(run, *LARGER, "training.max_epochs=1")
    return newest_weights(run)


def newest_weights(run: Path) -> str:
    """Return the SHA-256 of the newest weights that load."""
    store = RunFolder(run).checkpoints()
    newest = store.load_newest()
    if newest is None:
        raise FileNotFoundError(f"{run} has no checkpoint left")
    return file_sha256(store.folder / newest[0] / "model.safetensors")


def resume(workspace: Workspace, run: Path, **order: Any) -> Child:
    return workspace.start(
        "train", workspace.tiny_file, *LARGER, "--run", run, "--resume", "--quiet", **order
    )


def cache_tokens(workspace: Workspace, run: Path, cache: Path, **order: Any) -> Child:
    environment = {"GLASSFORMER_CACHE": str(cache)}
    return workspace.start(
        "train", workspace.text_file, "--run", run, "--quiet", environment=environment, **order
    )


def failed_cleanly(child: Child, below: Path, *reasons: str) -> Outcome:
    """Check that a command ends with exit code 2 and one error with path, reason and bytes."""
    code, errors = child.wait(), child.errors.strip()
    if code != 2 or "Traceback" in errors or not 2 <= len(errors.splitlines()) <= 5:
        return f"exit {code}: {errors[-600:]}"
    if not errors.startswith(f"glassformer: {below}") or not any(reason in errors for reason in reasons):
        return f"no path or no reason: {errors}"
    # The size of a token cache is not known before it is written.
    expected = r"cannot be stored" if "tokens" in errors else r"\([\d,]+ bytes needed, [\d,]+ bytes free\)"
    if not re.search(expected, errors):
        return f"no bytes: {errors}"
    return None


def intact(run: Path, weights: str) -> Outcome:
    return None if newest_weights(run) == weights else f"{run} has another checkpoint than before"


@fault(
    "full disk", "a disk that becomes full while saving, logging, building shards", INTACT, quick=3, full=30
)
def full_disk(workspace: Workspace, numbers: range) -> Tries:
    reason = "No space left on device"
    for number in numbers:
        with small_disk(workspace.new("disk")) as disk:
            run, moment = disk.path / "run", MOMENTS[number % 3]
            if moment == "building shards":
                disk.fill(leaving=4096 * workspace.rng.randrange(3))
                yield failed_cleanly(
                    cache_tokens(workspace, workspace.new("run"), disk.path / "cache"), disk.path, reason
                )
                continue
            weights = start_run(workspace, run)
            disk.fill(leaving=0 if moment == "logging" else 40_000 + workspace.rng.randrange(160_000))
            outcome = failed_cleanly(
                resume(workspace, run, is_fresh=is_fresh(number)), run, reason
            ) or intact(run, weights)
            if outcome is None:
                disk.empty()
                outcome = (
                    None
                    if resume(workspace, run).wait() == 0
                    else "it did not resume when there was space again"
                )
            yield outcome


@contextlib.contextmanager
def read_only_from_now(path: Path) -> Iterator[None]:
    """Context: make a path read-only while other processes have files open in it."""
    for options in (["--bind", str(path)], ["-o", "remount,ro,bind"]):
        subprocess.run(["mount", *options, str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)


@fault(
    "read-only disk",
    "a disk that becomes read-only while saving, logging, building shards",
    INTACT,
    quick=3,
    full=30,
)
def read_only(workspace: Workspace, numbers: range) -> Tries:
    reason = "Read-only file system"
    for number in numbers:
        with small_disk(workspace.new("disk")) as disk:
            run, moment = disk.path / "run", MOMENTS[number % 3]
            if moment == "building shards":
                disk.remount("ro")
                yield failed_cleanly(
                    cache_tokens(workspace, workspace.new("run"), disk.path / "cache"), disk.path, reason
                )
                continue
            weights = start_run(workspace, run)
            step = workspace.rng.randrange(9, 16)
            child = resume(workspace, run, is_fresh=is_fresh(number), pause_at_step=step)
            child.wait_until(lambda child=child: (child.folder / "paused").exists(), "it is paused")
            with read_only_from_now(run / ("checkpoints" if moment == "saving" else "events.jsonl")):
                (child.folder / "paused").unlink()
                outcome = failed_cleanly(child, run, reason)
            yield outcome or intact(run, weights)


@fault(
    "no permission",
    "a folder without write permission: of the run, its checkpoints, the token cache",
    INTACT,
    quick=3,
    full=30,
)
def no_permission(workspace: Workspace, numbers: range) -> Tries:
    for number in numbers:
        run, moment = workspace.new("run"), MOMENTS[number % 3]
        if moment == "building shards":
            cache = workspace.new("cache")
            cache.mkdir(mode=0o555)
            child = cache_tokens(workspace, run, cache, without_privileges=True)
            yield failed_cleanly(child, cache, "Permission denied")
            continue
        weights = start_run(workspace, run)
        closed = run / "checkpoints" if moment == "saving" else run / "events.jsonl"
        closed.chmod(0o555 if closed.is_dir() else 0o444)
        outcome = failed_cleanly(
            resume(workspace, run, is_fresh=is_fresh(number), without_privileges=True),
            run,
            "Permission denied",
        )
        closed.chmod(0o755)
        yield outcome or intact(run, weights)


def strace(child: Child, *arguments: str) -> subprocess.Popen[str]:
    """Attach strace to a stopped child, and let the child continue."""
    if shutil.which("strace") is None:
        child.kill()
        raise Unsupported("strace is not installed")

    def state() -> str:
        return Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0]

    child.wait_until(lambda: state() in "Tt", "it waits")
    log = open(child.folder / "strace", "w+")  # noqa: SIM115  open as long as the process
    command = ["strace", "-f", "-y", "-p", str(child.pid), *arguments]
    tracer = subprocess.Popen(command, stdout=log, stderr=log, text=True)
    end = time.monotonic() + 30
    while "attached" not in (child.folder / "strace").read_text():
        if tracer.poll() is not None or time.monotonic() > end:
            tracer.kill()
            child.kill()
            raise Unsupported(f"strace cannot attach: {(child.folder / 'strace').read_text().strip()[:200]}")
        time.sleep(0.01)
    child.send(signal.SIGCONT)
    return tracer


def inject_failure(child: Child, path: Path | None, calls: str, when: str, error: str = "EIO") -> None:
    only = [] if path is None else ["-P", str(path)]
    strace(child, *only, "-e", f"trace={calls}", "-e", f"inject={calls}:error={error}:when={when}")


@fault(
    "I/O error",
    "a write or fsync that fails with an I/O error, injected by strace",
    INTACT,
    quick=3,
    full=30,
)
def io_error(workspace: Workspace, numbers: range) -> Tries:
    reason = "Input/output error"
    files = ("model.safetensors", "optimizer.safetensors", "state.json", "manifest.json")
    for number in numbers:
        run, moment = workspace.new("run"), MOMENTS[number % 3]
        if moment == "building shards":
            cache = workspace.new("cache")
            child = cache_tokens(workspace, run, cache, waits=True)
            inject_failure(child, None, "fsync", str(1 + workspace.rng.randrange(3)))
            yield failed_cleanly(child, cache, reason)
            continue
        weights = start_run(workspace, run)
        child = resume(workspace, run, is_fresh=is_fresh(number), waits=True)
        if moment == "saving":
            file = run / "checkpoints" / ".saving-step-00000016" / workspace.rng.choice(files)
            inject_failure(child, file, workspace.rng.choice(["write", "fsync"]), "1")
        else:
            inject_failure(child, run / "events.jsonl", "write", str(1 + workspace.rng.randrange(6)))
        yield failed_cleanly(child, run, reason) or intact(run, weights)


@fault(
    "order of system calls",
    "the system calls of a save, as strace sees them",
    "each file is written, then fsynced; the folder is fsynced, renamed, its parent fsynced; then `latest`",
    quick=1,
    full=1,
)
def system_calls(workspace: Workspace, numbers: range) -> Tries:
    run = workspace.new("run")
    weights = start_run(workspace, run)
    child = resume(workspace, run, waits=True)
    tracer = strace(child, "-e", "trace=write,fsync,rename,renameat,renameat2")
    child.wait()
    tracer.wait(30)
    yield check_order((child.folder / "strace").read_text(), run) or (
        None if newest_weights(run) != weights else "nothing was saved"
    )


CALL = re.compile(r"(\w+)\((.*)\)\s+= (\S+)")


def check_order(trace: str, run: Path, name: str = "step-00000016") -> Outcome:
    """Check the order of the system calls that wrote a checkpoint."""
    temporary, final = f"{run}/checkpoints/.saving-{name}", f"{run}/checkpoints/{name}"
    calls: list[str] = []
    for line in trace.splitlines():
        match = CALL.search(line)
        if match is None or match[3] == "-1":
            continue
        call, arguments = match[1], match[2]
        file = re.search(r"<([^>]*)>", arguments)
        path = file[1] if file and call in ("write", "fsync") else ""
        if call in ("write", "fsync") and path.startswith(temporary):
            calls.append(f"{call} {path.removeprefix(temporary).lstrip('/') or 'the folder'}")
        elif call.startswith("rename") and f'"{temporary}"' in arguments and f'"{final}"' in arguments:
            calls.append("rename")
        elif call == "fsync" and path == f"{run}/checkpoints":
            calls.append("fsync the parent")
        elif call.startswith("rename") and f'"{run}/checkpoints/latest"' in arguments:
            calls.append("point")
    if "rename" not in calls or "point" not in calls:
        return f"no rename or no pointer: {calls}"
    end = calls.index("rename")
    before = calls[:end]
    for file in sorted({word.split(" ", 1)[1] for word in before if word.startswith("write")}):
        writes = [number for number, word in enumerate(before) if word == f"write {file}"]
        if f"fsync {file}" not in before[writes[-1] :]:
            return f"{file} is not fsynced after its last write"
    files = {word for word in before if word.startswith("write ")}
    if len(files) < 4 or "write manifest.json" not in files:
        return f"not all files are written before the rename: {sorted(files)}"
    if not before or "fsync the folder" not in before:
        return "the folder is not fsynced before the rename"
    after = calls[end + 1 :]
    if after[:1] != ["fsync the parent"] or "point" not in after:
        return f"wrong calls after the rename: {after[:3]}"
    return None
