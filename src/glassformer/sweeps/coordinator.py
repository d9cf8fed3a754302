"""Coordinator of a sweep: start workers on this machine, replace the dead, write the results."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from glassformer.core.errors import user_error
from glassformer.core.system import threads_per_worker
from glassformer.storage.files import atomic_write, json_bytes, storage_error
from glassformer.sweeps.definition import Definition
from glassformer.sweeps.queue import Board, living, outcome_of
from glassformer.sweeps.results import write_results
from glassformer.sweeps.storage import Interrupted, connect, shown
from glassformer.sweeps.worker import worker_name
from glassformer.training.context import StopSignals

SAVING_SECONDS = 120.0
"""How long a worker that is asked to end may take to finish its step and to save."""


PRELOADED = ("glassformer.sweeps.worker", "optuna.storages", "torch._dynamo")
"""What a worker would import by itself: the last two with its first question and its first step."""


def warm_up() -> None:
    forkserver.set_forkserver_preload(list(PRELOADED))
    forkserver.ensure_running()


@dataclass
class WorkerPool:
    url: str
    study: str
    runs: Path
    count: int
    threads: int
    plugins: Sequence[Path]
    deaths: int = 0
    processes: dict[str, ForkServerProcess] = field(default_factory=dict)

    def add(self, names: Sequence[str]) -> None:
        warm_up()
        context = multiprocessing.get_context("forkserver")
        for name in names:
            arguments = (self.url, self.study, self.runs, name, self.threads, list(self.plugins))
            self.processes[name] = context.Process(target=_serve, args=arguments)
            self.processes[name].start()

    def wait(self, seconds: float) -> list[str]:
        """Those that have died meanwhile; who has ended by itself is gone too."""
        wait([process.sentinel for process in self.processes.values()], timeout=seconds)
        ended = {name: process for name, process in self.processes.items() if not process.is_alive()}
        for name in ended:
            del self.processes[name]
        return [name for name, process in ended.items() if process.exitcode]

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.join(SAVING_SECONDS)
            process.kill()  # paused, or stuck: its trial is missed and tried again
            process.join()
        self.processes.clear()


def _serve(url: str, study: str, runs: Path, name: str, threads: int, plugins: Sequence[Path]) -> None:
    import sys

    from glassformer.sweeps.worker import serve

    sys.exit(serve(url, study, runs, name=name, threads=threads, plugins=plugins)[1])


MARK = "sweep.json"
WATCH_SECONDS = 2.0
SILENT_SECONDS = 60.0
"""Workers tell each end of a trial; so often, somebody tells how many there are."""
MOST_DEATHS = 5
"""Of each worker; after that something is wrong that another process will not mend."""

Say = Callable[[str], None]


def conduct(
    definition: Definition,
    study: str,
    url: str,
    folder: Path,
    *,
    workers: int = 1,
    minutes: float | None = None,
    plugins: Sequence[Path] = (),
    command: Sequence[str] = (),
    say: Say = lambda text: None,
) -> tuple[dict[str, Any], int]:
    """Run what is missing, write the results; them, and the exit code."""
    if workers < 1:
        raise user_error("at least one", path="--workers", value=workers, hint="--workers 2")
    began = time.monotonic()
    _mark(folder, study, url, definition)
    with StopSignals(lambda text: say("stopping: runs finish their step and save")) as signals:
        database = connect(url, say, signals.is_set)
        database.set_heartbeat(definition.heartbeat)
        deadline = None if minutes is None else time.time() + 60 * minutes
        board = Board.create(database, study, definition, deadline)
        crew = WorkerPool(url, study, folder / "runs", workers, threads_per_worker(workers), plugins)
        try:
            trials = board.settle()
            if not board.is_over(trials):
                crew.add([worker_name() for _ in range(workers)])
                _watch(board, crew, signals, say)
        except Interrupted:
            pass
        finally:
            crew.stop()
        document = write_results(board, folder, command)
        database.close()
    document |= {"workers": workers, "threads_per_worker": crew.threads}
    document["seconds"] = round(time.monotonic() - began, 2)
    return document, signals.exit_code


def _watch(board: Board, crew: WorkerPool, signals: StopSignals, say: Say) -> None:
    import matplotlib.figure  # noqa: F401  now, while workers train, and not when their results are drawn

    told = time.monotonic()
    while crew.processes and not signals.is_set():
        dead = crew.wait(WATCH_SECONDS)
        trials = board.settle()
        for name in dead:
            crew.deaths += 1
            say("a worker has died; another one goes on with its trial")
            board.abandon_all_of(name)
        if crew.deaths > MOST_DEATHS * crew.count:
            raise user_error(
                f"workers have died {crew.deaths} times",
                path=str(crew.runs.parent),
                hint="see what is said above; fewer --workers need less memory",
            )
        if board.is_over(trials):
            return  # who is still there waits, or is paused over a trial that another one has ended
        if not signals.is_set():
            crew.add([worker_name() for _ in dead])
        if time.monotonic() - told > SILENT_SECONDS:
            told = time.monotonic()
            states = [outcome_of(trial) for trial in living(trials).values()]
            ended = sum(state not in ("waiting", "running") for state in states)
            say(f"{ended} of {len(states)} trials have ended")


def _mark(folder: Path, study: str, url: str, definition: Definition) -> None:
    """A folder holds one sweep; the same command finds it again."""
    path = folder / MARK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = json.loads(path.read_bytes()).get("study") if path.exists() else study
        if held != study:
            raise user_error(f"holds another sweep ({held})", path=str(folder), hint="another --out, or none")
        atomic_write(
            path, json_bytes({"study": study, "storage": shown(url), "definition": definition.to_json()})
        )
    except OSError as error:
        raise storage_error(error, folder, 0) from error
