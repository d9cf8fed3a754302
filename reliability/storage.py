"""Disks that are full, closed or broken, while a run saves, logs or keeps its tokens; how a save writes."""

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
from reliability.base import NotHere, Outcome, Place, Tries, fault, is_fresh
from reliability.children import Child

INTACT = "the previous checkpoint is intact; one error with the path, the bytes needed and free; exit 2"
LARGER = ["model.hidden_dim=64"]
"""So that a checkpoint needs much more than a line of the record: about 0.3 MB."""
MOMENTS = ("saving", "logging", "building shards")


@dataclass
class SmallDisk:
    path: Path

    def fill(self, leaving: int) -> None:
        """Write until only so many bytes are free."""
        size = shutil.disk_usage(self.path).free - leaving
        (self.path / "filler").write_bytes(bytes(max(size, 0)))

    def empty(self) -> None:
        (self.path / "filler").unlink(missing_ok=True)

    def remount(self, option: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{option}", str(self.path)], check=True)


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[SmallDisk]:
    """A disk of 4 MB that is really full when it is full."""
    if os.geteuid() != 0 or sys.platform != "linux":
        raise NotHere("only root on Linux can mount a small disk")
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "glassformer-test", str(path)]
    mounted = subprocess.run(mount, capture_output=True, text=True)
    if mounted.returncode:
        raise NotHere(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        gc.collect()
        if subprocess.run(["umount", str(path)], capture_output=True).returncode:
            subprocess.run(["umount", "--lazy", str(path)], check=True)
            raise RuntimeError("something still holds a file of the run open")


def begun(place: Place, run: Path) -> str:
    """A run that is a third done; the SHA-256 of its weights."""
    place.train(run, *LARGER, "training.max_epochs=1")
    return newest_weights(run)


def newest_weights(run: Path) -> str:
    store = RunFolder(run).checkpoints()
    newest = store.load_newest()
    if newest is None:
        raise FileNotFoundError(f"{run} has no checkpoint any more")
    return file_sha256(store.folder / newest[0] / "model.safetensors")


def go_on(place: Place, run: Path, **order: Any) -> Child:
    return place.start("train", place.tiny_file, *LARGER, "--run", run, "--resume", "--quiet", **order)


def keep_tokens(place: Place, run: Path, cache: Path, **order: Any) -> Child:
    environment = {"GLASSFORMER_CACHE": str(cache)}
    return place.start("train", place.text_file, "--run", run, "--quiet", environment=environment, **order)


def refused(child: Child, below: Path, *reasons: str) -> Outcome:
    code, said = child.wait(), child.errors.strip()
    if code != 2 or "Traceback" in said or not 2 <= len(said.splitlines()) <= 5:
        return f"exit {code}: {said[-600:]}"
    if not said.startswith(f"glassformer: {below}") or not any(reason in said for reason in reasons):
        return f"no path or no reason: {said}"
    # How many bytes tokens need is known when they are made.
    told = r"cannot be kept" if "tokens" in said else r"\([\d,]+ bytes needed, [\d,]+ bytes free\)"
    if not re.search(told, said):
        return f"no bytes: {said}"
    return None


def intact(run: Path, weights: str) -> Outcome:
    return None if newest_weights(run) == weights else f"{run} has another checkpoint than before"


@fault(
    "full disk", "a disk that becomes full while saving, logging, building shards", INTACT, quick=3, full=30
)
def full_disk(place: Place, numbers: range) -> Tries:
    reason = "No space left on device"
    for number in numbers:
        with small_disk(place.new("disk")) as disk:
            run, moment = disk.path / "run", MOMENTS[number % 3]
            if moment == "building shards":
                disk.fill(leaving=4096 * place.dice.randrange(3))
                yield refused(keep_tokens(place, place.new("run"), disk.path / "cache"), disk.path, reason)
                continue
            weights = begun(place, run)
            disk.fill(leaving=0 if moment == "logging" else 40_000 + place.dice.randrange(160_000))
            outcome = refused(go_on(place, run, is_fresh=is_fresh(number)), run, reason) or intact(
                run, weights
            )
            if outcome is None:
                disk.empty()
                outcome = (
                    None if go_on(place, run).wait() == 0 else "it did not go on when there was room again"
                )
            yield outcome


@contextlib.contextmanager
def read_only_from_now(path: Path) -> Iterator[None]:
    """A part of a disk that other processes hold files open on."""
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
def read_only(place: Place, numbers: range) -> Tries:
    reason = "Read-only file system"
    for number in numbers:
        with small_disk(place.new("disk")) as disk:
            run, moment = disk.path / "run", MOMENTS[number % 3]
            if moment == "building shards":
                disk.remount("ro")
                yield refused(keep_tokens(place, place.new("run"), disk.path / "cache"), disk.path, reason)
                continue
            weights = begun(place, run)
            step = place.dice.randrange(9, 16)
            child = go_on(place, run, is_fresh=is_fresh(number), pause_at_step=step)
            child.wait_until(lambda child=child: (child.folder / "paused").exists(), "it is paused")
            with read_only_from_now(run / ("checkpoints" if moment == "saving" else "events.jsonl")):
                (child.folder / "paused").unlink()
                outcome = refused(child, run, reason)
            yield outcome or intact(run, weights)


@fault(
    "no permission",
    "a folder that may not be written: of the run, its checkpoints, the tokens",
    INTACT,
    quick=3,
    full=30,
)
def no_permission(place: Place, numbers: range) -> Tries:
    for number in numbers:
        run, moment = place.new("run"), MOMENTS[number % 3]
        if moment == "building shards":
            cache = place.new("cache")
            cache.mkdir(mode=0o555)
            child = keep_tokens(place, run, cache, without_privileges=True)
            yield refused(child, cache, "Permission denied")
            continue
        weights = begun(place, run)
        closed = run / "checkpoints" if moment == "saving" else run / "events.jsonl"
        closed.chmod(0o555 if closed.is_dir() else 0o444)
        outcome = refused(
            go_on(place, run, is_fresh=is_fresh(number), without_privileges=True), run, "Permission denied"
        )
        closed.chmod(0o755)
        yield outcome or intact(run, weights)


def strace(child: Child, *arguments: str) -> subprocess.Popen[str]:
    """Attached to a child that waits for it, which then goes on."""
    if shutil.which("strace") is None:
        child.kill()
        raise NotHere("strace is not installed")

    def state() -> str:
        return Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0]

    child.wait_until(lambda: state() in "Tt", "it waits")
    said = open(child.folder / "strace", "w+")  # noqa: SIM115  as long as the process
    command = ["strace", "-f", "-y", "-p", str(child.pid), *arguments]
    tracer = subprocess.Popen(command, stdout=said, stderr=said, text=True)
    end = time.monotonic() + 30
    while "attached" not in (child.folder / "strace").read_text():
        if tracer.poll() is not None or time.monotonic() > end:
            tracer.kill()
            child.kill()
            raise NotHere(f"strace cannot attach: {(child.folder / 'strace').read_text().strip()[:200]}")
        time.sleep(0.01)
    child.send(signal.SIGCONT)
    return tracer


def failing(child: Child, path: Path | None, calls: str, when: str, error: str = "EIO") -> None:
    only = [] if path is None else ["-P", str(path)]
    strace(child, *only, "-e", f"trace={calls}", "-e", f"inject={calls}:error={error}:when={when}")


@fault(
    "I/O error",
    "a write or fsync that fails with an I/O error, by the kernel's word",
    INTACT,
    quick=3,
    full=30,
)
def io_error(place: Place, numbers: range) -> Tries:
    reason = "Input/output error"
    files = ("model.safetensors", "optimizer.safetensors", "state.json", "manifest.json")
    for number in numbers:
        run, moment = place.new("run"), MOMENTS[number % 3]
        if moment == "building shards":
            cache = place.new("cache")
            child = keep_tokens(place, run, cache, waits=True)
            failing(child, None, "fsync", str(1 + place.dice.randrange(3)))
            yield refused(child, cache, reason)
            continue
        weights = begun(place, run)
        child = go_on(place, run, is_fresh=is_fresh(number), waits=True)
        if moment == "saving":
            file = run / "checkpoints" / ".saving-step-00000016" / place.dice.choice(files)
            failing(child, file, place.dice.choice(["write", "fsync"]), "1")
        else:
            failing(child, run / "events.jsonl", "write", str(1 + place.dice.randrange(6)))
        yield refused(child, run, reason) or intact(run, weights)


@fault(
    "order of system calls",
    "the system calls of a save, as strace sees them",
    "each file is written, then fsynced; the folder is fsynced, renamed, its parent fsynced; then `latest`",
    quick=1,
    full=1,
)
def system_calls(place: Place, numbers: range) -> Tries:
    run = place.new("run")
    weights = begun(place, run)
    child = go_on(place, run, waits=True)
    tracer = strace(child, "-e", "trace=write,fsync,rename,renameat,renameat2")
    child.wait()
    tracer.wait(30)
    yield check_order((child.folder / "strace").read_text(), run) or (
        None if newest_weights(run) != weights else "nothing was saved"
    )


CALL = re.compile(r"(\w+)\((.*)\)\s+= (\S+)")


def check_order(trace: str, run: Path, name: str = "step-00000016") -> Outcome:
    """What happened to a checkpoint's files, as words in their order."""
    temporary, final = f"{run}/checkpoints/.saving-{name}", f"{run}/checkpoints/{name}"
    happened: list[str] = []
    for line in trace.splitlines():
        match = CALL.search(line)
        if match is None or match[3] == "-1":
            continue
        call, arguments = match[1], match[2]
        file = re.search(r"<([^>]*)>", arguments)
        path = file[1] if file and call in ("write", "fsync") else ""
        if call in ("write", "fsync") and path.startswith(temporary):
            happened.append(f"{call} {path.removeprefix(temporary).lstrip('/') or 'the folder'}")
        elif call.startswith("rename") and f'"{temporary}"' in arguments and f'"{final}"' in arguments:
            happened.append("rename")
        elif call == "fsync" and path == f"{run}/checkpoints":
            happened.append("fsync the parent")
        elif call.startswith("rename") and f'"{run}/checkpoints/latest"' in arguments:
            happened.append("point")
    if "rename" not in happened or "point" not in happened:
        return f"no rename or no pointer: {happened}"
    end = happened.index("rename")
    before = happened[:end]
    for file in sorted({word.split(" ", 1)[1] for word in before if word.startswith("write")}):
        writes = [number for number, word in enumerate(before) if word == f"write {file}"]
        if f"fsync {file}" not in before[writes[-1] :]:
            return f"{file} is not fsynced after its last write"
    files = {word for word in before if word.startswith("write ")}
    if len(files) < 4 or "write manifest.json" not in files:
        return f"not all files are written before the rename: {sorted(files)}"
    if not before or "fsync the folder" not in before:
        return "the folder is not fsynced before the rename"
    after = happened[end + 1 :]
    if after[:1] != ["fsync the parent"] or "point" not in after:
        return f"after the rename comes {after[:3]}"
    return None
