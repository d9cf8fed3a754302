"""Work of a model: one job at a time in a thread of its own, a short queue before it, and what it loaded.

Trainings go first: the thread takes at most half of the cores, and no accelerator, whose memory is theirs.
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

from starlette.requests import Request

from glassformer.runs import CONFIG, RunFolder
from glassformer.studio import limits
from glassformer.studio.replies import refusal
from glassformer.tasks.base import Task
from glassformer.trained import Run

Result = TypeVar("Result")
Job = tuple[Callable[[], Any], Future[Any]]


class Worker:
    def __init__(self, waiting: int = limits.WAITING_JOBS) -> None:
        self._jobs: queue.Queue[Job | None] = queue.Queue(maxsize=waiting)
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[], Result]) -> asyncio.Future[Result]:
        """In its turn; what is cancelled while it waits costs nothing."""
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
        return asyncio.wrap_future(future)

    async def run(self, work: Callable[[], Result], request: Request) -> Result:
        """The same for one who waits for it, and may leave."""
        answer = self.submit(work)
        leaving = asyncio.ensure_future(_has_left(request))
        both: list[asyncio.Future[Any]] = [answer, leaving]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            if not answer.done():
                answer.cancel()
        if answer.cancelled():
            raise refusal(499, "nobody waits for the answer any more")
        return answer.result()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="model", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """What waits is dropped; what is being worked on ends with the process."""
        with contextlib.suppress(queue.Empty):
            while (job := self._jobs.get_nowait()) is not None:
                job[1].cancel()
        self._jobs.put(None)

    def _work(self) -> None:
        import torch

        # Not by niceness: who holds the interpreter while it waits for a core makes everybody wait.
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


async def _has_left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class LoadedRuns:
    """The last few runs that were asked, by run and checkpoint. Used by the worker only."""

    def __init__(self, most: int = limits.LOADED_RUNS) -> None:
        self._most = most
        self._loaded: OrderedDict[tuple[str, str, int, int], Run] = OrderedDict()

    def key(self, folder: RunFolder, checkpoint: str | None) -> tuple[str, str, int, int]:
        """A checkpoint of this name may be another one after the run was made anew."""
        name = folder.checkpoints().find(checkpoint or "best")
        config = os.stat(folder.path / CONFIG)
        weights = os.stat(folder.path / "checkpoints" / name)
        return str(folder.path), name, config.st_mtime_ns, weights.st_mtime_ns

    def get(self, folder: RunFolder, checkpoint: str | None) -> Run:
        key = self.key(folder, checkpoint)
        if key not in self._loaded:
            self._loaded[key] = Run(folder.path, key[1], self._task_of(key), device="cpu")
        self._loaded.move_to_end(key)
        while len(self._loaded) > self._most:
            self._loaded.popitem(last=False)
        return self._loaded[key]

    def _task_of(self, key: tuple[str, str, int, int]) -> Task | None:
        """The data are read once for all checkpoints of a run."""
        for (path, _, config, _), run in self._loaded.items():
            if (path, config) == (key[0], key[2]):
                return run.task
        return None
