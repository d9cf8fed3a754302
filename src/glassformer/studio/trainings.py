"""Trainings that the studio starts and stops: processes of their own that outlive it.

What such a process says goes to a file beside the runs, so that a start that fails can say why.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glassformer.core.errors import user_error
from glassformer.runs.folder import RunFolder, new_run_path
from glassformer.storage.files import storage_error
from glassformer.studio import limits
from glassformer.studio.messages import refusal
from glassformer.studio.runs import NOTHING_KNOWN, RunsFolder

LOGS = ".studio"
LOG_BYTES_SHOWN = 4000


class Trainings:
    def __init__(self, folder: RunsFolder, plugins: Sequence[Path]) -> None:
        self.folder = folder
        self.plugins = plugins
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._became_runs: set[str] = set()
        self._lock = threading.Lock()

    def start(self, name: str, words: Sequence[str]) -> str:
        """`glassformer train WORDS`, in a new run of about this name."""
        with self._lock:
            if sum(process.poll() is None for process in self._started.values()) >= limits.STARTED_AT_ONCE:
                raise refusal(
                    429,
                    f"{limits.STARTED_AT_ONCE} trainings that were started here are still running",
                    retry_after=60,
                    hint="wait for one, or stop one",
                )
            path = new_run_path(self.folder.path, name)
            log = self._log(path.name)
            plugins = [word for plugin in self.plugins for word in ("--plugin", str(plugin))]
            # -P: what lies in the folder where the studio was started is not imported by accident.
            command = [sys.executable, "-P", "-m", "glassformer", "train", *words]
            try:
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
            self._became_runs.discard(path.name)  # the name of a run that was removed is free again
            return path.name

    def _log(self, name: str) -> Path:
        logs = self.folder.path / LOGS
        try:
            logs.mkdir(exist_ok=True)
        except OSError as error:
            raise storage_error(error, logs, 0) from error
        return logs / f"{name}.log"

    def rows(self, there: set[str]) -> list[dict[str, Any]]:
        """Those that are not runs yet, or that ended before they became one; `there` are the runs."""
        with self._lock:
            self._became_runs |= there & self._started.keys()  # one that is gone by now was removed
            states = {
                name: "starting" if process.poll() is None else "failed"
                for name, process in self._started.items()
                if name not in self._became_runs and process.returncode != 0
            }
        return [
            {"name": name, "status": state, **NOTHING_KNOWN, "problem": self.said(name)}
            for name, state in states.items()
        ]

    def said(self, name: str) -> str:
        """The end of what a training that was started by a studio has said: the error, if it failed."""
        try:
            with open(self.folder.path / LOGS / f"{name}.log", "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES_SHOWN))
                return file.read(LOG_BYTES_SHOWN).decode("utf-8", "replace").strip()
        except OSError:
            return ""

    def stop(self, name: str) -> None:
        """As Ctrl-C would: it finishes its step, saves and ends."""
        with self._lock:
            process = self._started.get(name)
            if process is not None and process.poll() is None:
                process.terminate()  # our own child: while it is not waited for, its number is its own
                return
        run = self.folder.open(name)
        try:
            _terminate(run)
        except ProcessLookupError:
            raise refusal(409, "is not being trained", path=name, hint="reload the table") from None
        except PermissionError:
            raise refusal(
                403, "another user's process trains it", path=name, hint="ask that user to stop it"
            ) from None


def _terminate(run: RunFolder) -> None:
    """SIGTERM to the process that holds the run's lock, and to no other that has its number by now."""
    status = run.status()
    if status.name not in ("running", "stalled") or status.pid is None or not run.is_locked():
        raise ProcessLookupError
    if status.host not in (None, socket.gethostname()):
        raise user_error(
            "it is trained on another machine", path=run.path.name, hint="stop it where it was started"
        )
    if not hasattr(os, "pidfd_open"):
        if _lock_holder(run) != status.pid:
            raise ProcessLookupError
        os.kill(status.pid, signal.SIGTERM)
        return
    # From here on the descriptor means this process, even if its number is given to another.
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
    """Whether a process has a file open, as far as the system tells."""
    folder = f"/proc/{pid}/fd"
    if not os.path.isdir(folder):
        return True
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            if os.path.samefile(f"{folder}/{name}", path):
                return True
    return False
