"""Sequences whose items are made when they are asked for, so that none of them need be held."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TypeVar, overload

Item = TypeVar("Item", covariant=True)


class Computed(Sequence[Item]):
    """A subclass says how many items there are, and makes one."""

    def item(self, index: int) -> Item:
        """`index` is in range, from 0."""
        raise NotImplementedError

    @overload
    def __getitem__(self, index: int) -> Item: ...

    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...

    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        if isinstance(index, slice):
            return [self.item(place) for place in range(*index.indices(len(self)))]
        place = operator.index(index)
        if not -len(self) <= place < len(self):
            raise IndexError(f"item {place} of {len(self)}")
        return self.item(place % len(self))
