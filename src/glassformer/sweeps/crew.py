"""The workers of this machine: processes that are copies of one which has imported everything.

Nothing heavy is imported here, so that that one can begin to import while its maker does the same.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path

SAVING_SECONDS = 120.0
"""How long a worker that is asked to end may take to finish its step and to save."""


PRELOADED = ("glassformer.sweeps.worker", "optuna.storages", "torch._dynamo")
"""What a worker would import by itself: the last two with its first question and its first step."""


def warm_up() -> None:
    forkserver.set_forkserver_preload(list(PRELOADED))
    forkserver.ensure_running()


@dataclass
class Crew:
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
