"""Work of a model: one job at a time in a thread of its own, a short queue before it, and what it loaded.

Trainings go first: the thread is nice to them and takes half of the cores.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from glassformer.runs import RunFolder
from glassformer.studio import limits
from glassformer.studio.replies import refusal
from glassformer.trained import Run

NICENESS = 10

Result = TypeVar("Result")
Job = tuple[Callable[[], Any], Future[Any]]


class Worker:
    def __init__(self, waiting: int = limits.WAITING_JOBS) -> None:
        self._jobs: queue.Queue[Job | None] = queue.Queue(maxsize=waiting)
        self._thread: threading.Thread | None = None

    async def run(self, work: Callable[[], Result]) -> Result:
        """In its turn; a caller who leaves while it waits costs nothing."""
        self._start()
        future: Future[Result] = Future()
        try:
            self._jobs.put_nowait((work, future))
        except queue.Full:
            raise refusal(
                503,
                "the model is busy",
                retry_after=limits.RETRY_SECONDS,
                remedy="ask again when the other answers are there",
            ) from None
        return await asyncio.wrap_future(future)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="model", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """What waits is dropped; what is being worked on ends with the process."""
        with contextlib.suppress(queue.Empty):
            while True:
                job = self._jobs.get_nowait()
                if job is not None:
                    job[1].cancel()
        with contextlib.suppress(queue.Full):
            self._jobs.put_nowait(None)

    def _work(self) -> None:
        import torch

        with contextlib.suppress(AttributeError, OSError):  # only Linux knows the niceness of a thread
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        torch.set_num_threads(max(1, min(torch.get_num_threads(), (os.cpu_count() or 2) // 2)))
        while (job := self._jobs.get()) is not None:
            work, future = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except BaseException as error:  # told to the one who asked
                future.set_exception(error)
            del job, work, future  # or they would keep a run alive until the next job


class LoadedRuns:
    """The last few runs that were asked, by run and checkpoint. Used by the worker only."""

    def __init__(self, most: int = limits.LOADED_RUNS) -> None:
        self._most = most
        self._loaded: OrderedDict[tuple[Any, ...], Run] = OrderedDict()

    def get(self, folder: RunFolder, checkpoint: str | None) -> Run:
        name = folder.checkpoints().find(checkpoint or "best")
        config = os.stat(folder.path / "config.yaml")
        # A checkpoint of this name may be another one after the run was made anew.
        weights = os.stat(folder.path / "checkpoints" / name)
        key = (str(folder.path), name, config.st_mtime_ns, weights.st_mtime_ns)
        if key not in self._loaded:
            self._loaded[key] = Run(folder.path, name, task=self._task_of(folder, config.st_mtime_ns))
        self._loaded.move_to_end(key)
        while len(self._loaded) > self._most:
            self._loaded.popitem(last=False)
        return self._loaded[key]

    def _task_of(self, folder: RunFolder, config_time: int) -> Any:
        """The data are read once for all checkpoints of a run."""
        for (path, _, time, _), run in self._loaded.items():
            if path == str(folder.path) and time == config_time:
                return run.task
        return None
