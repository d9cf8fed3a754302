"""Trainings that the studio starts and stops, each as a separate process that outlives the studio.

The output of each process goes to a log file beside the runs. The page shows it if a start fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glassformer.core.config import validate
from glassformer.core.errors import UserError, user_error
from glassformer.runs.folder import RunFolder, new_run_path
from glassformer.storage.files import json_text, storage_error
from glassformer.studio import limits
from glassformer.studio.messages import FormBody
from glassformer.studio.runs import EMPTY_ROW, RunsFolder
from glassformer.web.limits import BODY_BYTES
from glassformer.web.messages import refusal

LOGS = ".studio"
LOG_BYTES_SHOWN = 4000
FORM = ".form.json"
"""Ending of the file with the form from which a training was started."""
PROGRAM = "glassformer: "
"""Start of the line with which the command line prints an error."""


class Trainings:
    """Training processes that this studio has started."""

    def __init__(self, folder: RunsFolder, plugins: Sequence[Path]) -> None:
        self.folder = folder
        self.plugins = plugins
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._seen_runs: set[str] = set()
        self._lock = threading.Lock()

    def start(self, name: str, words: Sequence[str], form: Mapping[str, Any] | None = None) -> str:
        """Start `glassformer train WORDS` in a new run folder `name-N`, and return the folder's name.

        `form` is the filled-in form, which is kept so that the user can change it and try again.
        """
        with self._lock:
            running = sum(process.poll() is None for process in self._started.values())
            if running >= limits.CONCURRENT_TRAININGS:
                raise refusal(
                    429,
                    f"{running} trainings that this studio started are still running",
                    retry_after=60,
                    hint="wait until one finishes, or stop one",
                )
            path = new_run_path(self.folder.path, name)
            log = self._log_path(path.name)
            plugins = [word for plugin in self.plugins for word in ("--plugin", str(plugin))]
            # -P: files in the working directory must not shadow imported modules.
            command = [sys.executable, "-P", "-m", "glassformer", "train", *words]
            try:
                log.with_suffix(FORM).write_text(json_text(form or {}), encoding="utf-8")
                with open(log, "wb") as file:
                    process = subprocess.Popen(
                        [*command, "--run", str(path), *plugins],
                        stdin=subprocess.DEVNULL,
                        stdout=file,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
            except OSError as error:
                with contextlib.suppress(OSError):
                    path.rmdir()
                raise storage_error(error, path, 0) from error
            self._started[path.name] = process
            self._seen_runs.discard(path.name)  # the name of a removed run may be used again
            return path.name

    def _log_path(self, name: str) -> Path:
        logs = self.folder.path / LOGS
        try:
            logs.mkdir(exist_ok=True)
        except OSError as error:
            raise storage_error(error, logs, 0) from error
        return logs / f"{name}.log"

    def rows(self, runs: set[str]) -> list[dict[str, Any]]:
        """Return table rows for trainings that are not in `runs`: still starting, or failed at the start."""
        with self._lock:
            self._seen_runs |= runs & self._started.keys()  # a run that was seen and is gone was removed
            states = {
                name: "starting" if process.poll() is None else "failed"
                for name, process in self._started.items()
                if name not in self._seen_runs and process.returncode != 0
            }
        return [
            {"name": name, "status": state, **EMPTY_ROW, **self.outcome(name)}
            for name, state in states.items()
        ]

    def outcome(self, name: str) -> dict[str, Any]:
        """Return the output of a training, the error in it, and the form from which it was started."""
        log = self.log(name)
        return {"log": log, "error": find_error(log), "form": self.form(name)}

    def form(self, name: str) -> dict[str, Any] | None:
        """Return the form from which a training was started, or None if no studio started it."""
        try:
            with open(self.folder.path / LOGS / f"{name}{FORM}", "rb") as file:
                document = json.loads(file.read(BODY_BYTES))
            return validate(FormBody, document).dump()
        except (OSError, ValueError, RecursionError, UserError):
            return None

    def log(self, name: str) -> str:
        """Return the end of the output of a training, or an empty text if no studio started it."""
        try:
            with open(self.folder.path / LOGS / f"{name}.log", "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES_SHOWN))
                return file.read(LOG_BYTES_SHOWN).decode("utf-8", "replace").strip()
        except OSError:
            return ""

    def stop(self, name: str) -> None:
        """Stop a training as Ctrl-C does: it finishes its step, saves a checkpoint and exits."""
        with self._lock:
            process = self._started.get(name)
            if process is not None and process.poll() is None:
                process.terminate()  # our own child: its PID cannot be reused before we wait for it
                return
        run = self.folder.open(name)
        try:
            _terminate(run)
        except ProcessLookupError:
            raise refusal(409, "the run is not training", path=name, hint="reload the table") from None
        except PermissionError:
            raise refusal(
                403, "the training belongs to another user", path=name, hint="ask that user to stop it"
            ) from None


def find_error(log: str) -> str:
    """Return the error at the end of a training's output: the lines that the command line printed for it."""
    lines = log.splitlines()
    for number in range(len(lines) - 1, -1, -1):
        if lines[number].startswith(PROGRAM):
            return "\n".join([lines[number].removeprefix(PROGRAM), *lines[number + 1 :]])
    return lines[-1] if lines else ""


def _terminate(run: RunFolder) -> None:
    """Send SIGTERM to the process that holds the run's lock, but not to another process with a reused PID."""
    status = run.status()
    if status.name not in ("running", "stalled") or status.pid is None or not run.is_locked():
        raise ProcessLookupError
    if status.host not in (None, socket.gethostname()):
        raise user_error(
            "the run is training on another machine", path=run.path.name, hint="stop it on that machine"
        )
    if not hasattr(os, "pidfd_open"):
        if _lock_holder(run) != status.pid:
            raise ProcessLookupError
        os.kill(status.pid, signal.SIGTERM)
        return
    # From here on the descriptor refers to this process, even if its PID is reused.
    process = os.pidfd_open(status.pid)
    try:
        if _lock_holder(run) != status.pid or not _has_open(status.pid, run.path / "lock"):
            raise ProcessLookupError
        signal.pidfd_send_signal(process, signal.SIGTERM)
    finally:
        os.close(process)


def _lock_holder(run: RunFolder) -> int | None:
    try:
        text = (run.path / "lock").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return int(text) if text.isdecimal() else None


def _has_open(pid: int, path: Path) -> bool:
    """Return True if a process has a file open, or if the system has no /proc."""
    folder = f"/proc/{pid}/fd"
    if not os.path.isdir(folder):
        return True
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            if os.path.samefile(f"{folder}/{name}", path):
                return True
    return False
