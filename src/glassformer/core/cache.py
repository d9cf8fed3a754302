"""Thread-safe LRU cache."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class LRUCache(Generic[Key, Value]):
    """Thread-safe LRU cache of limited size. The newest value is kept even if it exceeds the limit."""

    def __init__(self, max_size: int, size: Callable[[Value], int] = lambda value: 1) -> None:
        """Limit the sum of `size(value)` over all values to `max_size`. By default each value has size 1."""
        self._max_size = max_size
        self._size = size
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Key) -> Value | None:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def add(self, key: Key, value: Value) -> None:
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > 1 and sum(map(self._size, self._values.values())) > self._max_size:
                self._values.popitem(last=False)

    def remove(self, key: Key) -> None:
        with self._lock:
            self._values.pop(key, None)

    def items(self) -> list[tuple[Key, Value]]:
        """Return all (key, value) pairs, the least recently used first."""
        with self._lock:
            return list(self._values.items())
