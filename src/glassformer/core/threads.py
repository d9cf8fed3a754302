"""Thread pool that divides PyTorch's intra-op threads among its workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


class ThreadPool:
    """Pool of worker threads that share PyTorch's intra-op threads evenly, so that they do not compete."""

    def __init__(self, workers: int, name: str) -> None:
        self.workers = workers
        threads = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(
            workers, name, initializer=_take_share, initargs=(max(1, threads // workers),)
        )
        started = Barrier(workers)  # all must have started before the number of threads is restored
        try:
            for _ in self._pool.map(lambda _: started.wait(), range(workers)):
                pass
        except BaseException:  # a worker failed to start, and the others would wait for it for ever
            started.abort()
            raise
        finally:
            torch.set_num_threads(threads)  # each worker has lowered the default for new threads

    def each(
        self, function: Callable[[Item], Result], items: Iterable[Item], ahead: int | None = None
    ) -> Iterator[Result]:
        """Yield `function(item)` in the order of the items, with at most `ahead` results pending."""
        pending: deque[Future[Result]] = deque()
        try:
            for item in items:
                if len(pending) == ahead:
                    yield pending.popleft().result()
                pending.append(self._pool.submit(function, item))
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()

    def close(self) -> None:
        """Cancel what has not started, and wait for the workers."""
        self._pool.shutdown(cancel_futures=True)


def _take_share(threads: int) -> None:
    torch.get_num_threads()  # a thread's first call initialises its number, and would undo the next line
    torch.set_num_threads(threads)
