"""Coordinator of a sweep: start workers on this machine, replace dead ones, write the results."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing import forkserver
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from glassformer.core.errors import user_error
from glassformer.core.system import threads_per_worker
from glassformer.storage.files import atomic_write, json_bytes, storage_error
from glassformer.sweeps.definition import SweepDefinition
from glassformer.sweeps.queue import TrialQueue, active_trials, trial_state
from glassformer.sweeps.results import write_results
from glassformer.sweeps.storage import Database, SweepInterrupted, without_password
from glassformer.sweeps.worker import worker_name
from glassformer.training.trainer import StopSignals

SAVING_SECONDS = 120.0
"""Maximum time in seconds for a stopped worker to finish its step and save, before it is killed."""
PRELOADED = ("glassformer.sweeps.worker", "optuna.storages", "torch._dynamo")
"""Modules that Python's fork server imports once, so that workers start quickly."""
MANIFEST = "sweep.json"
WATCH_SECONDS = 2.0
STATUS_SECONDS = 60.0
"""Interval between two progress lines, in seconds."""
MAX_DEATHS = 5
"""Maximum number of processes that may die per worker before the sweep fails."""

MISSING_GUARD_EXIT = 78
"""Exit code of a worker process that reached `gf.sweep` while it imported the user's script."""

Log = Callable[[str], None]


def leave_unguarded_import() -> None:
    """End this process if it is a worker that imports a script which calls `gf.sweep` without a guard.

    A new worker imports the main script. If the script is not guarded, it starts the sweep again, in which
    Python refuses to start processes. The exit code lets the first process report the cause.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(MISSING_GUARD_EXIT)


def start_forkserver() -> None:
    """Start Python's fork server. It imports PyTorch while this process imports its other modules."""
    forkserver.set_forkserver_preload(list(PRELOADED))
    forkserver.ensure_running()


@dataclass
class WorkerPool:
    """Pool of the sweep's worker processes on this machine."""

    url: str
    study: str
    runs: Path
    count: int
    threads: int
    plugins: Sequence[Path]
    deaths: int = 0
    processes: dict[str, ForkServerProcess] = field(default_factory=dict)

    def add(self, names: Sequence[str]) -> None:
        """Start one worker process for each name."""
        start_forkserver()
        context = multiprocessing.get_context("forkserver")
        for name in names:
            arguments = (self.url, self.study, self.runs, name, self.threads, list(self.plugins))
            self.processes[name] = context.Process(target=_run_worker, args=arguments)
            self.processes[name].start()

    def wait(self, seconds: float) -> list[str]:
        """Wait up to `seconds` for a worker to end; return the names of workers that ended with an error."""
        wait([process.sentinel for process in self.processes.values()], timeout=seconds)
        ended = {name: process for name, process in self.processes.items() if not process.is_alive()}
        for name in ended:
            del self.processes[name]
        if any(process.exitcode == MISSING_GUARD_EXIT for process in ended.values()):
            raise user_error(
                "the script calls gf.sweep when it is imported, and every worker imports the script",
                path=sys.argv[0],
                hint="call gf.sweep under if __name__ == '__main__':",
            )
        return [name for name, process in ended.items() if process.exitcode]

    def stop(self) -> None:
        """Ask all workers to save and stop, and kill the workers that do not stop in time."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.join(SAVING_SECONDS)
            process.kill()  # suspended or stuck; another worker will repeat its trial
            process.join()
        self.processes.clear()


def _run_worker(url: str, study: str, runs: Path, name: str, threads: int, plugins: Sequence[Path]) -> None:
    import sys

    from glassformer.sweeps.worker import run_worker

    sys.exit(run_worker(url, study, runs, name=name, threads=threads, plugins=plugins)[1])


def run_sweep(
    definition: SweepDefinition,
    study: str,
    url: str,
    folder: Path,
    *,
    workers: int = 1,
    minutes: float | None = None,
    plugins: Sequence[Path] = (),
    command: Sequence[str] = (),
    log: Log = lambda text: None,
) -> tuple[dict[str, Any], int]:
    """Run the trials that are not complete and write the results; return the results and the exit code."""
    if workers < 1:
        raise user_error("must be at least 1", path="--workers", value=workers, hint="--workers 2")
    began = time.monotonic()
    _write_manifest(folder, study, url, definition)
    with StopSignals(lambda text: log("stopping: runs finish their step and save")) as signals:
        database = Database(url, log, signals.is_set)
        database.set_heartbeat(definition.heartbeat)
        deadline = None if minutes is None else time.time() + 60 * minutes
        queue = TrialQueue.create(database, study, definition, deadline)
        pool = WorkerPool(url, study, folder / "runs", workers, threads_per_worker(workers), plugins)
        try:
            trials = queue.reconcile()
            if not queue.is_finished(trials):
                pool.add([worker_name() for _ in range(workers)])
                _watch(queue, pool, signals, log)
        except SweepInterrupted:
            pass
        finally:
            pool.stop()
        document = write_results(queue, folder, command)
        database.close()
    document |= {"workers": workers, "threads_per_worker": pool.threads}
    document["seconds"] = round(time.monotonic() - began, 2)
    return document, signals.exit_code


def _watch(queue: TrialQueue, pool: WorkerPool, signals: StopSignals, log: Log) -> None:
    """Replace dead workers and report progress until the sweep is finished."""
    import matplotlib.figure  # noqa: F401  imported while workers train, not after them

    last_logged = time.monotonic()
    while pool.processes and not signals.is_set():
        dead = pool.wait(WATCH_SECONDS)
        trials = queue.reconcile()
        for name in dead:
            pool.deaths += 1
            log("a worker has died; another one continues its trial")
            queue.abandon_worker(name)
        if pool.deaths > MAX_DEATHS * pool.count:
            raise user_error(
                f"workers died {pool.deaths} times",
                path=str(pool.runs.parent),
                hint="read the messages above; reduce --workers if memory ran out",
            )
        if queue.is_finished(trials):
            return  # remaining workers are idle, or suspended in a trial that another worker has ended
        if not signals.is_set():
            pool.add([worker_name() for _ in dead])
        if time.monotonic() - last_logged > STATUS_SECONDS:
            last_logged = time.monotonic()
            states = [trial_state(trial) for trial in active_trials(trials).values()]
            ended = sum(state not in ("waiting", "running") for state in states)
            log(f"{ended} of {len(states)} trials have ended")


def _write_manifest(folder: Path, study: str, url: str, definition: SweepDefinition) -> None:
    """Write `sweep.json` into the folder; raise a user error if the folder contains another sweep."""
    path = folder / MANIFEST
    manifest = {"study": study, "storage": without_password(url), "definition": asdict(definition)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found = json.loads(path.read_bytes()).get("study") if path.exists() else study
        if found != study:
            message = f"contains another sweep ({found})"
            raise user_error(
                message, path=str(folder), hint="choose another folder with --out, or leave out --out"
            )
        atomic_write(path, json_bytes(manifest))
    except OSError as error:
        raise storage_error(error, folder, 0) from error
