"""Thread pool that divides PyTorch's intra-op threads among its workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import torch

Item = TypeVar("Item")
Prediction = TypeVar("Prediction")


class ThreadPool:
    """So many workers, until it is closed or forgotten; PyTorch's threads are round_robin to them evenly."""

    def __init__(self, workers: int, name: str) -> None:
        self.workers = workers
        threads = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(
            workers, name, initializer=_take_share, initargs=(max(1, threads // workers),)
        )
        everyone = Barrier(workers)
        try:
            for _ in self._pool.map(lambda _: everyone.wait(), range(workers)):
                pass
        except BaseException:  # one that could not be started: the others would wait for it for ever
            everyone.abort()
            raise
        finally:
            torch.set_num_threads(threads)  # what threads to come are given: each worker has set less

    def each(
        self, answer: Callable[[Item], Prediction], items: Iterable[Item], ahead: int | None = None
    ) -> Iterator[Prediction]:
        """The answers in the order of the items, of which at most `ahead` are begun and not yet taken."""
        begun: deque[Future[Prediction]] = deque()
        try:
            for item in items:
                if len(begun) == ahead:
                    yield begun.popleft().result()
                begun.append(self._pool.submit(answer, item))
            while begun:
                yield begun.popleft().result()
        finally:
            for future in begun:
                future.cancel()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def _take_share(threads: int) -> None:
    torch.get_num_threads()  # asked first: a thread's first operation would take what all are given
    torch.set_num_threads(threads)
