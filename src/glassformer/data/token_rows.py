"""Rows of token numbers that are fetched one at a time, from memory or from mapped files.

`RaggedRows` has each row as it was stored; `Windows` cuts the rows, joined or one by one, into pieces of
equal length. Where the numbers come from and what they mean is not this module's business.
"""

from __future__ import annotations

import hashlib
import mmap
import operator
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TypeVar, overload

import numpy as np

Item = TypeVar("Item", covariant=True)


LARGEST_TOKEN = 2**32 - 1
ROWS_AT_A_TIME = 1 << 16


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


class TokenRows(Computed[np.ndarray]):
    """What a batch needs to know of rows without reading them all."""

    def row(self, index: int) -> np.ndarray:
        """A copy of row `index`, which is in range, as int64."""
        raise NotImplementedError

    def lengths(self) -> np.ndarray:
        """Of every row, without reading any: 4 bytes a row, unless one is immensely long."""
        raise NotImplementedError

    def checksum(self) -> str:
        """The same for the same rows, wherever they are kept."""
        raise NotImplementedError

    def item(self, index: int) -> np.ndarray:
        return self.row(index)


class MappedFiles:
    """Read-only arrays over files, whose pages are given back now and then.

    Without that, all that was ever read would count as this process's memory, up to the whole corpus.
    """

    RELEASED_AFTER = 16 << 20
    READ_AROUND = 64 << 10
    """What the system may map, unasked, around what is read."""

    def __init__(self) -> None:
        self._maps: list[mmap.mmap] = []
        self._touched = 0

    def array(self, path: Path, dtype: str) -> np.ndarray:
        with open(path, "rb") as file:
            if not path.stat().st_size:
                return np.empty(0, dtype=dtype)
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._maps.append(mapped)
        return np.frombuffer(mapped, dtype=dtype)

    def touched(self, size: int) -> None:
        self._touched += size + self.READ_AROUND
        if self._touched > self.RELEASED_AFTER:
            self.release()

    def release(self) -> None:
        self._touched = 0
        for mapped in self._maps if hasattr(mmap, "MADV_DONTNEED") else ():
            mapped.madvise(mmap.MADV_DONTNEED)


class RaggedRows(TokenRows):
    """Rows that stand one after another in a few long arrays; row i is what lies between two offsets."""

    def __init__(
        self,
        shards: Sequence[np.ndarray],
        offsets: np.ndarray,
        *,
        checksum: str | None = None,
        files: MappedFiles | None = None,
    ) -> None:
        self.offsets = offsets
        self._shards = list(shards)
        self._starts = np.cumsum([0, *(len(shard) for shard in shards)]).tolist()
        self._checksum = checksum
        self._files = files

    @classmethod
    def of(cls, rows: Iterable[np.ndarray]) -> RaggedRows:
        """Rows that are in memory."""
        kept = [as_tokens(row) for row in rows]
        flat = np.concatenate(kept) if kept else np.empty(0, dtype=np.uint32)
        return cls([flat], np.cumsum([0, *(len(row) for row in kept)], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def token_count(self) -> int:
        return int(self._starts[-1])

    def row(self, index: int) -> np.ndarray:
        start, stop = self.offsets[index : index + 2].tolist()
        if self._files is not None:
            self._files.touched(2 * self.offsets.itemsize)
        return self.tokens(start, stop)

    def tokens(self, start: int, stop: int) -> np.ndarray:
        """Of all rows joined, those from `start` to before `stop`."""
        found = np.empty(stop - start, dtype=np.int64)
        shard = bisect_left(self._starts, start + 1) - 1
        place = start
        while place < stop:
            begin, end = self._starts[shard], min(self._starts[shard + 1], stop)
            found[place - start : end - start] = self._shards[shard][place - begin : end - begin]
            place, shard = end, shard + 1
        if self._files is not None:
            self._files.touched(found.nbytes)
        return found

    def lengths(self) -> np.ndarray:
        lengths = np.empty(len(self), dtype=np.int32)
        for start in range(0, len(self), ROWS_AT_A_TIME):
            some = np.diff(self.offsets[start : start + ROWS_AT_A_TIME + 1])
            if some.max() > np.iinfo(lengths.dtype).max:
                lengths = lengths.astype(np.int64)
            lengths[start : start + len(some)] = some
            if self._files is not None:
                self._files.touched(some.nbytes)
        if self._files is not None:
            self._files.release()
        return lengths

    def checksum(self) -> str:
        return self._checksum or self._computed_checksum

    @cached_property
    def _computed_checksum(self) -> str:
        tokens = hashlib.sha256()
        for shard in self._shards:
            tokens.update(shard.astype("<u4").tobytes())
        return checksum_of(tokens.digest(), hashlib.sha256(self.offsets.astype("<i8").tobytes()).digest())


def as_tokens(row: np.ndarray) -> np.ndarray:
    """A row as unsigned numbers of 32 bits; what is no token number is refused."""
    row = np.asarray(row)
    if row.ndim != 1 or (row.size and row.dtype.kind not in "iu"):
        raise ValueError(f"whole numbers in one line belong here, not {row.dtype} of shape {row.shape}")
    if row.size and (row.min() < 0 or row.max() > LARGEST_TOKEN):
        raise ValueError(f"a token number is from 0 to {LARGEST_TOKEN}, not {row.min()} or {row.max()}")
    return row.astype(np.uint32)


def checksum_of(tokens_digest: bytes, offsets_digest: bytes) -> str:
    """Of rows: from the SHA-256 of all tokens in 32 bits and that of all offsets in 64, little-endian."""
    return hashlib.sha256(tokens_digest + offsets_digest).hexdigest()


class Windows(TokenRows):
    """Rows cut into windows of `length + 1` tokens; a window's last token is the next one's first.

    So, where each token is predicted from those before it in its window, every token but the first is
    predicted exactly once. The last window is shorter. Each row is followed by the separator, if there is
    one. With `within_documents` no window crosses from a row into the next, and the first token of each
    row is not predicted; a row of one token has no window.

    With a `stride` below `length`, windows go on by fewer tokens, and so begin with some that were in the
    one before: `seen_before` says how many of its predictions a window has in common with it.
    """

    def __init__(
        self,
        rows: RaggedRows,
        length: int,
        *,
        stride: int | None = None,
        separator: int | None = None,
        within_documents: bool = False,
    ) -> None:
        if length < 1:
            raise ValueError(f"a window predicts at least one token, not {length}")
        if stride is not None and not 1 <= stride <= length:
            raise ValueError(f"a window goes on by 1 to {length} tokens, not {stride}")
        self.rows = rows
        self.length = length
        self.stride = length if stride is None else stride
        self.separator = separator
        self.within_documents = within_documents
        self._between = 0 if separator is None else 1
        sizes = self._document_sizes()
        self._first_windows = np.zeros(len(sizes) + 1, dtype=np.int64)
        for start in range(0, len(sizes), ROWS_AT_A_TIME):
            predicted = sizes[start : start + ROWS_AT_A_TIME] - 1
            beyond_first = np.maximum(0, predicted - length)
            windows = (predicted > 0) - (-beyond_first // self.stride)
            self._first_windows[start + 1 : start + 1 + len(windows)] = windows
        np.cumsum(self._first_windows, out=self._first_windows)

    def __len__(self) -> int:
        return int(self._first_windows[-1])

    def row(self, index: int) -> np.ndarray:
        return self._joined(*self._span(index))

    def _span(self, index: int) -> tuple[int, int]:
        """Where a window begins and ends among all that is joined."""
        document = self._document(index)
        begin, end = self._bounds(document)
        start = begin + (index - int(self._first_windows[document])) * self.stride
        return start, min(start + self.length + 1, end)

    def seen_before(self, index: int) -> int:
        """How many of the first predictions of a window the one before it makes too."""
        is_first = index == int(self._first_windows[self._document(index)])
        return 0 if is_first else self.length - self.stride

    def outside(self, index: int) -> np.ndarray:
        """The tokens of a window's document, or of all that is joined, before and after the window."""
        begin, end = self._bounds(self._document(index))
        start, stop = self._span(index)
        return np.concatenate([self._joined(begin, start), self._joined(stop, end)])

    def _document(self, index: int) -> int:
        return int(np.searchsorted(self._first_windows, index, side="right")) - 1

    def lengths(self) -> np.ndarray:
        lengths = np.full(len(self), self.length + 1, dtype=np.int32)
        sizes = self._document_sizes()
        for start in range(0, len(sizes), ROWS_AT_A_TIME):
            borders = self._first_windows[start : start + ROWS_AT_A_TIME + 1]
            windows = np.diff(borders)
            last_lengths = sizes[start : start + ROWS_AT_A_TIME] - (windows - 1) * self.stride
            has_any = windows > 0
            lengths[borders[1:][has_any] - 1] = last_lengths[has_any]
        return lengths

    def checksum(self) -> str:
        options: tuple[int | None, ...] = (self.length, self.separator, self.within_documents)
        if self.stride != self.length:
            options = (*options, self.stride)
        return hashlib.sha256(f"{self.rows.checksum()} {options}".encode()).hexdigest()

    def _document_sizes(self) -> np.ndarray:
        if self.within_documents:
            return self.rows.lengths() + self._between
        return np.array([self.rows.token_count + len(self.rows) * self._between])

    def _bounds(self, document: int) -> tuple[int, int]:
        """Where a document begins and ends among all that is joined."""
        if not self.within_documents:
            return 0, self.rows.token_count + len(self.rows) * self._between
        begin, end = self.rows.offsets[document : document + 2].tolist()
        return begin + document * self._between, end + (document + 1) * self._between

    def _joined(self, start: int, stop: int) -> np.ndarray:
        if self.separator is None:
            return self.rows.tokens(start, stop)
        first, last = self._separators_before(start), self._separators_before(stop)
        found = np.full(stop - start, self.separator, dtype=np.int64)
        is_token = np.ones(stop - start, dtype=bool)
        is_token[self.rows.offsets[first + 1 : last + 1] + np.arange(first, last) - start] = False
        found[is_token] = self.rows.tokens(start - first, stop - last)
        return found

    def _separators_before(self, place: int) -> int:
        offsets = self.rows.offsets
        return bisect_left(range(len(self.rows)), place, key=lambda row: int(offsets[row + 1]) + row)
