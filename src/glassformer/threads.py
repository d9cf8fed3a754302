"""Threads side by side, each with its share of PyTorch's: two in one small operation share it badly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Crew:
    """So many workers, until it is closed; PyTorch's threads are dealt to them evenly."""

    def __init__(self, workers: int, name: str) -> None:
        self.workers = workers
        self._threads = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(
            workers, name, initializer=torch.set_num_threads, initargs=(max(1, self._threads // workers),)
        )

    def each(self, answer: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[Answer]:
        """The answers in the order of the items, while later ones are being worked on."""
        try:
            yield from self._pool.map(answer, items)
        finally:
            torch.set_num_threads(self._threads)  # what threads to come are given: workers have set less

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        torch.set_num_threads(self._threads)
