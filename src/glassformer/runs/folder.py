"""A run's folder: resolved config, record, checkpoints, environment, results. And a folder of such folders.

config.yaml  task.json  environment.json  events.jsonl  results.json  status.json  checkpoints/
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import IO, Any, Protocol

from glassformer import __version__
from glassformer.core.config import Tree, dump_yaml, flatten, read_written_yaml
from glassformer.core.errors import ErrorDetail, UserError, is_out_of_memory, user_error
from glassformer.core.system import read_document
from glassformer.storage.checksums import BrokenSeal, is_sealed_text, open_json, seal_json, seal_text
from glassformer.storage.files import file_sha256, json_bytes, replace_file, storage_error
from glassformer.training.checkpoints import CheckpointStore
from glassformer.training.events import EventLog

KEPT_APART = {"tokenizer", "target_tokenizer"}
"""Parts of a task's state that are files of their own, for other programs to read."""
CONFIG = "config.yaml"
WARNING = "WARNING:"
"""How a note about the data begins that every score on them repeats."""
STALLED_AFTER_SECONDS = 120.0
HEARTBEAT_SECONDS = 1.0


@dataclass(frozen=True)
class Status:
    """`new`, `running`, `stalled` (but alive), `stopped`, `crashed`, `damaged`, `diverged` or `done`."""

    name: str
    step: int
    total_steps: int | None
    pid: int | None
    host: str | None = None
    """Where that process is, or was."""


class TaskMaker(Protocol):
    def restore(self, state: Mapping[str, Any], seed: int = 0) -> Any: ...


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.events = EventLog(path / "events.jsonl")
        self._lock: IO[bytes] | None = None
        self._last_beat = 0.0

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """A folder that holds a run."""
        run = cls(path)
        if not run.exists():
            raise user_error(
                "is a folder without a run" if os.path.isdir(path) else "no such run",
                path=str(path),
                hint="glassformer runs lists the runs there are",
            )
        return run

    def exists(self) -> bool:
        return os.path.isfile(self.path / CONFIG)  # unlike Path.is_file, never an error

    def checkpoints(self, keep: int = 2) -> CheckpointStore:
        return CheckpointStore(self.path / "checkpoints", keep)

    def create(self, config: Tree, task_state: Mapping[str, Any], environment: Mapping[str, Any]) -> None:
        """Write what does not change; the config comes last, since it makes the folder a run."""
        text = dump_yaml(config)
        state = dict(task_state)
        for name in KEPT_APART & state.keys():
            self._write(f"{name}.json", json_bytes(state[name]))
            state[name] = file_sha256(self.path / f"{name}.json")
        self._write("task.json", seal_json(state))
        self._write("environment.json", seal_json(environment))
        self._write(CONFIG, seal_text(text))

    def config(self) -> Tree:
        self._is_sealed()
        return read_written_yaml(self.path / CONFIG)

    def _is_sealed(self) -> bool:
        """Whether its files carry checksums: those of the first versions do not."""
        path = self.path / CONFIG
        try:
            return is_sealed_text(read_document(path))
        except BrokenSeal as broken:
            raise user_error(
                f"cannot be used: {broken}",
                path=str(path),
                hint="restore it from a copy of the run; if you changed it yourself, remove its first line",
            ) from None
        except (OSError, ValueError):
            return False  # whoever reads it next says why

    def task_state(self) -> dict[str, Any]:
        state = self._read_json("task.json")
        for name in KEPT_APART & state.keys():
            state[name] = self._read_apart(f"{name}.json", state[name])
        return state

    def restore_task(self, config: TaskMaker, seed: int = 0) -> Any:
        """The task of this run, with what it learned from its data."""
        state = self.task_state()
        try:
            return config.restore(state, seed)
        except (UserError, ErrorDetail):
            raise
        except Exception as error:  # what a file of another hand says can be wrong in any way
            if is_out_of_memory(error):
                raise
            raise user_error(
                f"does not describe the task of this run: {error or type(error).__name__}",
                path=str(self.path / "task.json"),
                hint="restore it from a copy of the run",
            ) from error

    def _read_apart(self, name: str, sha256: str | None) -> dict[str, Any]:
        """Without a seal in it, since other programs read it too: its checksum is in `task.json`."""
        path = self.path / name
        if sha256 is not None and os.path.isfile(path) and file_sha256(path) != sha256:
            raise _unreadable(path, BrokenSeal())
        return self._read_json(name, may_be_sealed=False)

    def environment(self) -> dict[str, Any]:
        return self._read_json("environment.json")

    def warnings(self, split: str | None = None) -> list[str]:
        """What was wrong enough with the data for each score to say so; or with one split of them."""
        notes = self.environment().get("data_notes", [])
        begin = WARNING if split is None else f"{WARNING} {split}"
        return [note for note in notes if str(note).startswith(begin)] if isinstance(notes, list) else []

    def results(self) -> dict[str, Any]:
        """What the end of training measured; empty while there is no end."""
        return self._read_json("results.json") if (self.path / "results.json").exists() else {}

    def write_results(self, results: Mapping[str, Any]) -> None:
        self._write("results.json", seal_json(results))

    def _write(self, name: str, data: bytes) -> None:
        try:
            replace_file(self.path / name, data)
        except OSError as error:
            raise storage_error(error, self.path / name, len(data)) from error

    def _read_json(self, name: str, *, may_be_sealed: bool = True) -> dict[str, Any]:
        path = self.path / name
        try:
            return open_json(read_document(path), must_be_sealed=may_be_sealed and self._is_sealed())
        except (OSError, ValueError, RecursionError) as error:
            raise _unreadable(path, error) from None

    def lock(self) -> None:
        """One process at a time; the lock goes with the process, however it ends."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = open(self.path / "lock", "ab+", buffering=0)  # noqa: SIM115  held until the run ends
        except OSError as error:
            raise storage_error(error, self.path, 0) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read().decode(errors="replace").strip() or "unknown"
            file.close()
            raise user_error(
                f"another process is training here (pid {holder})",
                path=str(self.path),
                hint="wait for it, stop it, or choose another --run",
            ) from None
        self._lock = file
        try:
            file.truncate(0)
            file.write(str(os.getpid()).encode())
        except OSError as error:
            self.unlock()
            raise storage_error(error, self.path / "lock", 8) from error

    def unlock(self) -> None:
        """What failed before it became a run leaves nothing behind."""
        if self._lock is not None:
            if not self.exists():
                (self.path / "lock").unlink(missing_ok=True)
                self.discard_empty()
            self._lock.close()
            self._lock = None

    def discard_empty(self) -> None:
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def is_locked(self) -> bool:
        """Whether a living process trains here."""
        try:
            with open(self.path / "lock", encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return False
        except FileNotFoundError:
            return False
        except OSError:
            return True

    def beat(self, state: str, step: int, total_steps: int | None) -> None:
        """Say that the run is alive; often called, seldom written."""
        now = time.monotonic()
        if state == "running" and now - self._last_beat < HEARTBEAT_SECONDS:
            return
        self._last_beat = now
        beat = {"state": state, "step": step, "total_steps": total_steps, "pid": os.getpid()}
        data = seal_json({**beat, "host": socket.gethostname(), "time": time.time()})
        temporary = self.path / ".status.saving"
        try:
            temporary.write_bytes(data)
            os.replace(temporary, self.path / "status.json")
        except OSError as error:
            raise storage_error(error, self.path / "status.json", len(data)) from error

    def status(self) -> Status:
        if not (self.path / "status.json").exists():
            return Status("running" if self.is_locked() else "new", 0, None, None)
        beat = self._read_json("status.json")
        name = beat.get("state", "new")
        if not isinstance(name, str) or not all(
            isinstance(beat.get(key, 0), (int, float)) for key in ("step", "time")
        ):
            raise _unreadable(self.path / "status.json", ValueError("it is of another form"))
        if name == "running":
            is_alive = self.is_locked() if beat.get("host") == socket.gethostname() else True
            is_silent = time.time() - beat.get("time", 0) > STALLED_AFTER_SECONDS
            name = ("stalled" if is_silent else "running") if is_alive else "crashed"
        return Status(name, beat.get("step", 0), beat.get("total_steps"), beat.get("pid"), beat.get("host"))

    def _repr_html_(self) -> str:
        """As a notebook shows it: what it is, what it reached, and every option."""
        results, options, status = self.results(), flatten(self.config()), self.status()
        metrics: dict[str, dict[str, float]] = results.get("metrics", {})
        names = list(dict.fromkeys(name for measured in metrics.values() for name in measured))
        rows = [["", *names]]
        for split, measured in metrics.items():
            rows.append([split, *(f"{measured[name]:.4g}" if name in measured else "" for name in names)])
        facts = [f"{key} {options.get(key)}" for key in ("task.kind", "model.kind", "seed")]
        facts += [f"{results['parameters']:,} parameters"] if results else []
        return (
            f"<b>{escape(self.path.name)}</b> · {escape(status.name)} at step {status.step:,}"
            f"<br>{escape(' · '.join(facts))}{_html_table(rows) if metrics else ''}"
            f"<details><summary>options</summary>{_html_table(list(options.items()))}</details>"
        )

    def remove(self) -> None:
        if self.is_locked():
            raise user_error("is being trained", path=str(self.path), hint="stop the training first")
        shutil.rmtree(self.path)


def _unreadable(path: Path, error: Exception) -> UserError:
    return user_error(f"cannot be read: {error}", path=str(path), hint="restore it from a copy of the run")


def _html_table(rows: Sequence[Sequence[Any]]) -> str:
    cells = ("".join(f"<td>{escape(str(value))}</td>" for value in row) for row in rows)
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def list_runs(folder: Path) -> list[RunFolder]:
    """The runs directly in a folder, the newest first."""
    if not os.path.isdir(folder):  # unlike Path.is_dir, never an error
        return []
    runs = [RunFolder(path) for path in folder.iterdir() if (path / CONFIG).is_file()]
    return sorted(runs, key=lambda run: (run.path / CONFIG).stat().st_mtime, reverse=True)


def new_run_path(folder: Path, name: str) -> Path:
    """The first free `name-N`, made at once so that nobody else takes it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        number = 1
        while True:
            path = folder / f"{name}-{number}"
            try:
                path.mkdir()
                return path
            except FileExistsError:
                number += 1
    except OSError as error:
        raise storage_error(error, folder, 0) from error


def differences(old: Tree, new: Tree) -> dict[str, tuple[Any, Any]]:
    """The paths at which two configs differ."""
    left, right = flatten(old), flatten(new)
    return {
        path: (left.get(path), right.get(path))
        for path in sorted({*left, *right})
        if left.get(path) != right.get(path)
    }


def environment(data_checksum: str, threads: int) -> dict[str, Any]:
    """What a result depends on besides its config. No paths, no names of people or machines."""
    import torch

    return {
        "glassformer": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": threads,
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "data_sha256": data_checksum,
        "git": git_state(),
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def git_state() -> dict[str, Any] | None:
    """Commit and cleanliness of the folder one stands in, if it is a checkout."""
    try:
        commit = _git("rev-parse", "HEAD")
        return {"commit": commit, "is_clean": _git("status", "--porcelain", "--untracked-files=no") == ""}
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], capture_output=True, text=True, timeout=5, check=True
    ).stdout.strip()
