"""A worker of a sweep: takes a trial, trains it, tells what came of it, takes the next one.

It imports PyTorch once for all of its trials. Any number of workers may join or leave at any time.
"""

from __future__ import annotations

import multiprocessing
import socket
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from glassformer.registry import load_plugin
from glassformer.sweeps.definition import setting_text
from glassformer.sweeps.storage import Interrupted
from glassformer.sweeps.study import Board, Lost, join
from glassformer.sweeps.trial import TrialRun
from glassformer.training.signals import StopSignals

IDLE_SECONDS = 0.5

Say = Callable[[str], None]


class Worker:
    def __init__(
        self, board: Board, name: str, runs: Path, signals: StopSignals, say: Say, threads: int
    ) -> None:
        self.board, self.name, self.runs = board, name, runs
        self.signals, self.say, self.threads = signals, say, threads
        self.finished = 0

    def work(self) -> None:
        """Until nothing is left to begin and nothing runs that could come back."""
        while not self.is_unwanted():
            try:
                trials = self.board.settle()
                claim = self.board.claim(self.name, trials)
                if claim is not None:
                    self._train(TrialRun(self.board, claim, self.runs))
                elif self.board.is_over(trials):
                    return
                else:
                    time.sleep(IDLE_SECONDS)
            except Lost:
                self.say("a trial was given to another worker; what came of it here does not count")
            except Interrupted:
                return

    def _train(self, run: TrialRun) -> None:
        torch.set_num_threads(self.threads)
        try:
            text = run.run(self.is_unwanted)
        finally:
            self.signals.number = self.signals.number or run.signal
        self.finished += not run.was_stopped
        setting, seed = run.claim.key
        values = setting_text(self.board.definition.space.point(run.claim.trial.params))
        self.say(f"trial {setting} seed {seed} ({values}): {text}")

    def is_unwanted(self) -> bool:
        parent = multiprocessing.parent_process()
        return self.signals.is_set() or (parent is not None and not parent.is_alive())


def worker_name() -> str:
    return f"{socket.gethostname()}-{uuid.uuid4().hex[:12]}"


def serve(
    url: str,
    study: str,
    runs: Path,
    *,
    name: str,
    threads: int,
    plugins: Sequence[Path] = (),
    say: Say = lambda text: print(text, file=sys.stderr, flush=True),
    on_joined: Callable[[], None] = lambda: None,
) -> tuple[Worker, int]:
    """Work on a study until it is over; the worker and its exit code."""
    for path in plugins:
        load_plugin(path)
    with StopSignals() as signals:
        board = join(url, study, say=say, is_stopped=signals.is_set)
        on_joined()
        worker = Worker(board, name, runs, signals, say, threads)
        worker.work()
        board.database.close()
        return worker, signals.exit_code
