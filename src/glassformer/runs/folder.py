"""Run folder: resolved config, task, environment, event log, results, status and checkpoints.

config.yaml  config.json  task.json  tokenizer.json  environment.json  results.json   covered by SHA256SUMS
events.jsonl    the growing event log; each checkpoint records its length and SHA-256
status.json     the heartbeat, with a CRC-32 of its own
checkpoints/    each with a manifest of its files
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import shutil
import socket
import subprocess
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from glassformer import __version__
from glassformer.core.config import Node, Tree, dump_yaml, flatten
from glassformer.core.errors import ErrorDetail, UserError, is_out_of_memory, near_match, user_error
from glassformer.core.system import cpu_name, read_regular_file
from glassformer.storage.files import (
    ChecksummedFolder,
    ChecksumMismatch,
    atomic_write,
    json_bytes,
    storage_error,
    unreadable,
)
from glassformer.training.checkpoints import CheckpointStore
from glassformer.training.events import EventLog

if TYPE_CHECKING:
    from glassformer.tasks.base import Task, TaskConfig

TOKENIZERS = {"tokenizer", "target_tokenizer"}
"""Entries of a task's state that are stored in separate files, so that other programs can read them."""
CONFIG = "config.yaml"
"""File name of the config for people. A folder with this file is a run, so it is written last."""
CONFIG_JSON = "config.json"
"""File name of the same config for programs, because JSON parses about 100 times faster than YAML."""
WARNING = "WARNING:"
"""Prefix of notes about the data, such as leaks, that are shown with every score."""
NO_DIFFERENCE: tuple[tuple[Any, Any], ...] = (({}, None), (None, {}))
"""Pairs of values that are the same: an empty dict has no entries that the other config could miss."""
REPLACED_BY = {"training.batch_size": "training.batch_tokens"}
"""Options that have no effect while another one is set, and the name of that one."""
STALLED_AFTER_SECONDS = 120.0
HEARTBEAT_SECONDS = 1.0


@dataclass(frozen=True)
class Status:
    """State and progress of a run, as read from `status.json`."""

    name: str
    """`new`, `running`, `stalled` (no heartbeat), `stopped`, `crashed`, `damaged`, `diverged` or `done`."""
    step: int
    total_steps: int | None
    pid: int | None
    host: str | None = None
    """Host name of the machine on which process `pid` trains."""


DATA = "data"
"""Folder for the data files that a run itself contains."""

ENDED_EARLY = {"stopped": "was stopped", "crashed": "crashed", "diverged": "diverged"}
"""States of a run whose training did not reach its end, each as a predicate."""


class RunFolder:
    """Folder of one training run: its files, its lock and its status."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = ChecksummedFolder(path)
        self.events = EventLog(path / "events.jsonl")
        self._lock: IO[bytes] | None = None
        self._last_heartbeat = 0.0

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Return the folder of an existing run. Raise UserError if there is no run at `path`."""
        run = cls(path)
        if not run.exists():
            near = _near_run(run.path)
            raise user_error(
                "this folder does not contain a run" if os.path.isdir(path) else "no such run",
                path=str(path),
                hint=f"did you mean {near}?" if near else "list the existing runs with glassformer runs",
            )
        return run

    def exists(self) -> bool:
        """Return True if the folder contains a run."""
        return os.path.isfile(self.path / CONFIG)  # unlike Path.is_file, never an error

    def checkpoints(self, keep: int = 2) -> CheckpointStore:
        """Return the checkpoint store of the run. It keeps the newest `keep` checkpoints and the best one."""
        return CheckpointStore(self.path / "checkpoints", keep)

    def create(self, config: Node, task_state: Mapping[str, Any], environment: Mapping[str, Any]) -> None:
        """Write config, task state and environment, which do not change during training."""
        tree = config.dump()
        yaml = dump_yaml(tree).encode()
        tokenizers = {name: f"{name}.json" for name in sorted(TOKENIZERS & task_state.keys())}
        documents = {
            **{file: task_state[name] for name, file in tokenizers.items()},
            "task.json": {**task_state, **tokenizers},
            "environment.json": environment,
            CONFIG_JSON: tree,
        }
        files = {name: json_bytes(document) for name, document in documents.items()}
        self._files.write({**files, CONFIG: yaml})

    def config(self) -> Tree:
        """Return the config as a dict. Raise UserError if `config.yaml` was edited after the run began."""
        try:
            self._files.read(CONFIG)
        except (OSError, ValueError) as error:
            raise user_error(
                f"the file cannot be used: {error}",
                path=str(self.path / CONFIG),
                hint=f"restore it from a copy of the run, or use glassformer train {self.path} PATH=VALUE",
            ) from None
        return self._read_json(CONFIG_JSON)

    def task_state(self) -> dict[str, Any]:
        """Return the saved state of the task, including its tokenizers, as a dict."""
        state = self._read_json("task.json")
        for name in TOKENIZERS & state.keys():
            state[name] = self._read_json(f"{name}.json")
        return state

    def restore_task(self, config: TaskConfig, seed: int = 0) -> Task:
        """Build the task from its saved state, so that its tokenizers are not trained again."""
        state = self.task_state()
        try:
            return self._with_own_data(config).restore(state, seed)
        except Exception as error:  # a file edited by hand can be wrong in any way
            if isinstance(error, (UserError, ErrorDetail)) or is_out_of_memory(error):
                raise
            raise user_error(
                f"the file does not describe the task of this run: {error or type(error).__name__}",
                path=str(self.path / "task.json"),
                hint="restore it from a copy of the run",
            ) from error

    def _with_own_data(self, config: TaskConfig) -> TaskConfig:
        """Return the config with the paths of data files in this folder, if the folder was moved.

        A run on data in memory and an imported run contain their data. Their paths in the config are those
        from the working folder in which the run was made.
        """
        data = getattr(config, "data", None)
        moved = {}
        for split in ("train", "validation", "test"):
            path = getattr(data, split, None)
            if isinstance(path, str) and os.path.basename(os.path.dirname(path)) == DATA:
                own = self.path / DATA / os.path.basename(path)
                if not os.path.exists(path) and os.path.isfile(own):
                    moved[split] = str(own)
        if data is None or not moved:
            return config
        return config.model_copy(update={"data": data.model_copy(update=moved)})

    def environment(self) -> dict[str, Any]:
        """Return versions, machine, data checksum and notes about the data, as saved when training began."""
        return self._read_json("environment.json")

    def warnings(self, split: str | None = None) -> list[str]:
        """Return the warnings about the data, such as leaks, for one split or (None) for all splits."""
        notes = self.environment().get("data_notes", [])
        begin = WARNING if split is None else f"{WARNING} {split}"
        return [note for note in notes if str(note).startswith(begin)] if isinstance(notes, list) else []

    def training_warnings(self, split: str | None = None) -> list[str]:
        """Return the warnings about the trained model, such as a comparison with baselines.

        They are about one split or (None) any split. The warnings about the data are not among them.
        """
        warnings, about_data = self.results().get("warnings", []), self.warnings()
        begin = WARNING if split is None else f"{WARNING} {split} "
        own = [text for text in warnings if text not in about_data] if isinstance(warnings, list) else []
        return [text for text in own if str(text).startswith(begin)]

    def results(self) -> dict[str, Any]:
        """Return the results of the finished training as a dict, or {} if training has not finished."""
        return self._read_json("results.json") if (self.path / "results.json").exists() else {}

    def write_results(self, results: Mapping[str, Any]) -> None:
        """Write the results of the finished training to `results.json`."""
        self._files.write({"results.json": json_bytes(results)})

    def _read_json(self, name: str) -> dict[str, Any]:
        try:
            document = json.loads(self._files.read(name))
            if not isinstance(document, dict):
                raise ValueError("it is not a JSON object")
            return document
        except (OSError, ValueError, RecursionError) as error:
            raise unreadable(self.path / name, error) from None

    def lock(self) -> None:
        """Lock the folder for this process. The operating system releases the lock when the process ends."""
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
                f"another process is training in this folder (pid {holder})",
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
        """Release the lock. Delete the folder if no run was created in it."""
        if self._lock is not None:
            if not self.exists():
                (self.path / "lock").unlink(missing_ok=True)
                self.discard_empty()
            self._lock.close()
            self._lock = None

    def discard_empty(self) -> None:
        """Delete the folder if it is empty."""
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def is_locked(self) -> bool:
        """Return True if a process is training in this folder."""
        try:
            with open(self.path / "lock", encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return False
        except FileNotFoundError:
            return False
        except OSError:
            return True

    def heartbeat(self, state: str, step: int, total_steps: int | None) -> None:
        """Write `status.json` with the current time. While `running`, write at most once per second."""
        now = time.monotonic()
        if state == "running" and now - self._last_heartbeat < HEARTBEAT_SECONDS:
            return
        self._last_heartbeat = now
        status = {"state": state, "step": step, "total_steps": total_steps, "pid": os.getpid()}
        self.write_status({**status, "host": socket.gethostname(), "time": time.time()})

    def write_status(self, status: Mapping[str, Any]) -> None:
        """Write `status.json` without fsync, because the status need not survive a power failure."""
        data = _status_bytes(status)
        try:
            atomic_write(self.path / "status.json", data, durable=False)
        except OSError as error:
            raise storage_error(error, self.path / "status.json", len(data)) from error

    def _read_status(self) -> dict[str, Any]:
        path = self.path / "status.json"
        try:
            data = read_regular_file(path)
            status = json.loads(data)
            if not isinstance(status, dict) or data != _status_bytes(status):
                raise ChecksumMismatch("the content is not what was written: its CRC-32 differs")
            numbers = all(isinstance(status.get(key, 0), (int, float)) for key in ("step", "time"))
            if not numbers or not isinstance(status.get("state", "new"), str):
                raise ValueError("a field has the wrong type")
            return status
        except (OSError, ValueError, RecursionError) as error:
            raise unreadable(path, error) from None

    def status(self) -> Status:
        """Return the status of the run. A `running` run whose process has ended is reported as `crashed`."""
        if not (self.path / "status.json").exists():
            return Status("running" if self.is_locked() else "new", 0, None, None)
        status = self._read_status()
        name = status.get("state", "new")
        if name == "running":
            is_alive = self.is_locked() if status.get("host") == socket.gethostname() else True
            is_silent = time.time() - status.get("time", 0) > STALLED_AFTER_SECONDS
            name = ("stalled" if is_silent else "running") if is_alive else "crashed"
        progress = status.get("step", 0), status.get("total_steps")
        return Status(name, *progress, status.get("pid"), status.get("host"))

    def unfinished(self) -> str | None:
        """Return a sentence if the training was stopped before its end, or None."""
        status = self.status()
        if status.name not in ENDED_EARLY:
            return None
        of = f" of {status.total_steps:,}" if status.total_steps else ""
        return f"the training of this model {ENDED_EARLY[status.name]} at step {status.step:,}{of}"

    def _repr_html_(self) -> str:
        """Return status, metrics and options as HTML for a notebook."""
        results, status = self.results(), self.status()
        options = options_in_force(flatten(self.config()))
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
        """Delete the run. Raise UserError if a process is training in it."""
        if self.is_locked():
            raise user_error("this run is being trained", path=str(self.path), hint="stop the training first")
        shutil.rmtree(self.path)


def _status_bytes(status: Mapping[str, Any]) -> bytes:
    """Return a status as JSON bytes with a CRC-32 of its fields, so that damage can be detected."""
    fields = {name: value for name, value in status.items() if name != "crc32"}
    return json_bytes(fields | {"crc32": zlib.crc32(json_bytes(fields))})


def _html_table(rows: Sequence[Sequence[Any]]) -> str:
    cells = ("".join(f"<td>{escape(str(value))}</td>" for value in row) for row in rows)
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def list_runs(folder: Path) -> list[RunFolder]:
    """Return the runs that are direct subfolders of `folder`, the newest first."""
    if not os.path.isdir(folder):  # unlike Path.is_dir, never an error
        return []
    runs = [RunFolder(path) for path in folder.iterdir() if (path / CONFIG).is_file()]
    return sorted(runs, key=lambda run: (run.path / CONFIG).stat().st_mtime, reverse=True)


def list_run_groups(folder: Path) -> dict[Path, list[RunFolder]]:
    """Return the runs of each sweep or study that is a direct subfolder of `folder`, by its path."""
    if not os.path.isdir(folder):
        return {}
    groups = {path: list_runs(path / "runs") for path in sorted(folder.iterdir()) if path.is_dir()}
    return {path: runs for path, runs in groups.items() if runs}


def _near_run(path: Path) -> Path | None:
    """Return the run with a similar name in the same folder or in `runs`, for an error; None if none is."""
    for folder in dict.fromkeys((path.parent, Path("runs"))):
        names = [run.path.name for run in list_runs(folder)]
        near = near_match(path.name, names)
        if near is not None:
            return folder / near
    return None


def new_run_path(folder: Path, name: str) -> Path:
    """Create and return the first free folder `name-1`, `name-2`, …, so that its name is reserved."""
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
    """Return the options that differ between two configs: dotted path to (old value, new value).

    They are in the order of the config. An empty dict equals an option that is missing.
    """
    left, right = flatten(old), flatten(new)
    pairs = {path: (left.get(path), right.get(path)) for path in {**left, **right}}
    return {path: pair for path, pair in pairs.items() if pair[0] != pair[1] and pair not in NO_DIFFERENCE}


def options_in_force(options: Tree) -> Tree:
    """Return the options of a flattened config without those that another option replaces."""
    return {path: value for path, value in options.items() if options.get(REPLACED_BY.get(path, "")) is None}


def environment(data_checksum: str, threads: int) -> dict[str, Any]:
    """Return versions, hardware, data checksum and git state, without paths, user names or host names."""
    import torch

    return {
        "glassformer": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "processor": cpu_name(),
        "cores": os.cpu_count(),
        "threads": threads,
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "data_sha256": data_checksum,
        "git": git_state(),
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def git_state() -> dict[str, Any] | None:
    """Return `commit` and `is_clean` (no modified files) of the git checkout, or None outside of one."""
    try:
        commit = _git("rev-parse", "HEAD")
        return {"commit": commit, "is_clean": _git("status", "--porcelain", "--untracked-files=no") == ""}
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], capture_output=True, text=True, timeout=5, check=True
    ).stdout.strip()
