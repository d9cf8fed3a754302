"""Work of a model: one job at a time in a thread of its own, a short queue before it, and what it loaded.

Trainings go first: the thread takes at most half of the cores, and no accelerator, whose memory is theirs.
What nobody waits for any more ends before the model's next layer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.requests import Request

from glassformer.runs.folder import CONFIG, RunFolder
from glassformer.runs.run import Run
from glassformer.studio import limits
from glassformer.studio.replies import refusal
from glassformer.tasks.base import Task

Result = TypeVar("Result")


class Unwanted(BaseException):
    """Raised in the midst of a job whose client has left; no handler of errors takes it for one."""


@dataclass(frozen=True)
class Job:
    work: Callable[[], Any]
    future: Future[Any] = field(default_factory=Future)
    is_unwanted: threading.Event = field(default_factory=threading.Event)


class Worker:
    def __init__(self, waiting: int = limits.WAITING_JOBS) -> None:
        self._jobs: queue.Queue[Job | None] = queue.Queue(maxsize=waiting)
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[], Result]) -> asyncio.Future[Result]:
        """In its turn; what is cancelled while it waits costs nothing."""
        return asyncio.wrap_future(self._enqueue(work).future)

    def _enqueue(self, work: Callable[[], Any]) -> Job:
        self._start()
        job = Job(work)
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            raise refusal(
                503,
                "the model is busy",
                retry_after=limits.RETRY_SECONDS,
                hint="ask again when the other answers are there",
            ) from None
        return job

    async def run(self, work: Callable[[], Result], request: Request) -> Result:
        """The same for one who waits for it, and may leave: then it ends early, even if it has begun."""
        job = self._enqueue(work)
        answer: asyncio.Future[Result] = asyncio.wrap_future(job.future)
        leaving = asyncio.ensure_future(_has_left(request))
        both: list[asyncio.Future[Any]] = [answer, leaving]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            if not answer.done():
                job.is_unwanted.set()
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
                job.future.cancel()
        self._jobs.put(None)

    def _work(self) -> None:
        import torch

        # Not by niceness: who holds the interpreter while it waits for a core makes everybody wait.
        torch.set_num_threads(max(1, min(torch.get_num_threads(), (os.cpu_count() or 2) // 2)))
        while (job := self._jobs.get()) is not None:
            if not job.future.set_running_or_notify_cancel():
                continue
            try:
                with _ending_when(job.is_unwanted):
                    job.future.set_result(job.work())
            except BaseException as error:  # told to the one who asked
                job.future.set_exception(error)
            del job  # or it would keep a run alive until the next one


@contextlib.contextmanager
def _ending_when(is_unwanted: threading.Event) -> Iterator[None]:
    """Within it, in this thread, no part of a model is called any more once it is unwanted.

    So all that asks a model can be ended, and none of it has to know of that.
    """
    from torch.nn.modules.module import register_module_forward_pre_hook

    thread = threading.get_ident()

    def look(module: Any, arguments: Any) -> None:
        if is_unwanted.is_set() and threading.get_ident() == thread:
            raise Unwanted

    hook = register_module_forward_pre_hook(look)
    try:
        yield
    finally:
        hook.remove()


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
