"""Rows of token ids, read one at a time from memory or from memory-mapped files.

`RaggedRows` returns each row as it was stored. `Windows` splits the rows, joined or one by one, into windows
of equal length.
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
ROWS_PER_BLOCK = 1 << 16


class LazySequence(Sequence[Item]):
    """Sequence whose items are computed on access; a subclass defines `__len__` and `item`."""

    def item(self, index: int) -> Item:
        """Compute the item at `index`, which is in range and not negative."""
        raise NotImplementedError

    @overload
    def __getitem__(self, index: int) -> Item: ...

    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...

    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        if isinstance(index, slice):
            return [self.item(position) for position in range(*index.indices(len(self)))]
        position = operator.index(index)
        if not -len(self) <= position < len(self):
            raise IndexError(f"item {position} of {len(self)}")
        return self.item(position % len(self))


class TokenRows(LazySequence[np.ndarray]):
    """Sequence of rows of token ids. Each access returns a new int64 array."""

    def lengths(self) -> np.ndarray:
        """Return the length of every row, as an int32 or int64 array, without reading the rows."""
        raise NotImplementedError

    def checksum(self) -> str:
        """Return a checksum of the rows, independent of where they are stored."""
        raise NotImplementedError


class MappedFiles:
    """Read-only arrays over memory-mapped files, whose pages are released at intervals.

    Without these releases, the whole corpus could come to count as memory of this process.
    """

    RELEASE_BYTES = 16 << 20
    READ_AHEAD_BYTES = 64 << 10
    """Number of bytes that the operating system may load in addition to each read."""

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
        """Count the bytes that were read, and release the mapped pages after every `RELEASE_BYTES`."""
        self._touched += size + self.READ_AHEAD_BYTES
        if self._touched > self.RELEASE_BYTES:
            self.release()

    def release(self) -> None:
        self._touched = 0
        for mapped in self._maps if hasattr(mmap, "MADV_DONTNEED") else ():
            mapped.madvise(mmap.MADV_DONTNEED)


class RaggedRows(TokenRows):
    """Rows of different lengths, stored one after another in a few long arrays, with their offsets."""

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
        self._stored_checksum = checksum
        self._files = files or MappedFiles()

    @classmethod
    def of(cls, rows: Iterable[np.ndarray]) -> RaggedRows:
        """Build a `RaggedRows` that holds these rows in memory."""
        arrays = [as_tokens(row) for row in rows]
        flat = np.concatenate(arrays) if arrays else np.empty(0, dtype=np.uint32)
        return cls([flat], np.cumsum([0, *(len(row) for row in arrays)], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def token_count(self) -> int:
        return int(self._starts[-1])

    def item(self, index: int) -> np.ndarray:
        start, stop = self.offsets[index : index + 2].tolist()
        self._files.touched(2 * self.offsets.itemsize)
        return self.tokens(start, stop)

    def tokens(self, start: int, stop: int) -> np.ndarray:
        """Return the tokens from `start` up to `stop` of the concatenated rows."""
        found = np.empty(stop - start, dtype=np.int64)
        shard = bisect_left(self._starts, start + 1) - 1
        position = start
        while position < stop:
            begin, end = self._starts[shard], min(self._starts[shard + 1], stop)
            found[position - start : end - start] = self._shards[shard][position - begin : end - begin]
            position, shard = end, shard + 1
        self._files.touched(found.nbytes)
        return found

    def lengths(self) -> np.ndarray:
        lengths = np.empty(len(self), dtype=np.int32)
        for start in range(0, len(self), ROWS_PER_BLOCK):
            some = np.diff(self.offsets[start : start + ROWS_PER_BLOCK + 1])
            if some.max() > np.iinfo(lengths.dtype).max:
                lengths = lengths.astype(np.int64)
            lengths[start : start + len(some)] = some
            self._files.touched(some.nbytes)
        self._files.release()
        return lengths

    def checksum(self) -> str:
        return self._stored_checksum or self._checksum

    @cached_property
    def _checksum(self) -> str:
        tokens = hashlib.sha256()
        for shard in self._shards:
            tokens.update(shard.astype("<u4").tobytes())
        return checksum_of(tokens.digest(), hashlib.sha256(self.offsets.astype("<i8").tobytes()).digest())


def as_tokens(row: np.ndarray) -> np.ndarray:
    """Convert a row to uint32; raise ValueError if a value is not a token id."""
    row = np.asarray(row)
    if row.ndim != 1 or (row.size and row.dtype.kind not in "iu"):
        raise ValueError(f"a row is a vector of integers, not {row.dtype} of shape {row.shape}")
    if row.size and (row.min() < 0 or row.max() > LARGEST_TOKEN):
        raise ValueError(f"a token id is from 0 to {LARGEST_TOKEN}, not {row.min()} or {row.max()}")
    return row.astype(np.uint32)


def checksum_of(tokens_digest: bytes, offsets_digest: bytes) -> str:
    """Return one SHA-256 from the digests of all tokens (uint32) and all offsets (int64), little-endian."""
    return hashlib.sha256(tokens_digest + offsets_digest).hexdigest()


class Windows(TokenRows):
    """Rows split into windows of `length + 1` tokens; the last token of a window is the first of the next.

    A causal language model therefore predicts every token but the first exactly once. The last window is
    shorter. A separator, if given, follows each row. With `within_documents` no window crosses from one row
    into the next, and the first token of each row is not predicted; a row of one token has no window.

    With a `stride` below `length`, windows overlap: `seen_before` is the number of predictions that a window
    shares with the one before it.
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
            raise ValueError(f"the stride of windows is 1 to {length} tokens, not {stride}")
        self.rows = rows
        self.length = length
        self.stride = length if stride is None else stride
        self.separator = separator
        self.within_documents = within_documents
        self._between = 0 if separator is None else 1
        self._total = rows.token_count + len(rows) * self._between
        sizes = self._document_sizes()
        self._first_windows = np.zeros(len(sizes) + 1, dtype=np.int64)
        for start in range(0, len(sizes), ROWS_PER_BLOCK):
            predicted = sizes[start : start + ROWS_PER_BLOCK] - 1
            beyond_first = np.maximum(0, predicted - length)
            windows = (predicted > 0) - (-beyond_first // self.stride)
            self._first_windows[start + 1 : start + 1 + len(windows)] = windows
        np.cumsum(self._first_windows, out=self._first_windows)

    def __len__(self) -> int:
        return int(self._first_windows[-1])

    def item(self, index: int) -> np.ndarray:
        return self._joined(*self.span(index))

    def span(self, index: int) -> tuple[int, int]:
        """Return the start and end position of a window in the concatenated rows."""
        document = self._document(index)
        begin, end = self._bounds(document)
        start = begin + (index - int(self._first_windows[document])) * self.stride
        return start, min(start + self.length + 1, end)

    def seen_before(self, index: int) -> int:
        """Return the number of predictions at the start of a window that the previous window also makes."""
        is_first = index == int(self._first_windows[self._document(index)])
        return 0 if is_first else self.length - self.stride

    def outside(self, index: int) -> np.ndarray:
        """Return all tokens outside a window: those of its row if `within_documents`, else of all rows."""
        begin, end = self._bounds(self._document(index))
        start, stop = self.span(index)
        return np.concatenate([self._joined(begin, start), self._joined(stop, end)])

    def _document(self, index: int) -> int:
        return int(np.searchsorted(self._first_windows, index, side="right")) - 1

    def lengths(self) -> np.ndarray:
        lengths = np.full(len(self), self.length + 1, dtype=np.int32)
        sizes = self._document_sizes()
        for start in range(0, len(sizes), ROWS_PER_BLOCK):
            borders = self._first_windows[start : start + ROWS_PER_BLOCK + 1]
            windows = np.diff(borders)
            last_lengths = sizes[start : start + ROWS_PER_BLOCK] - (windows - 1) * self.stride
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
        return np.array([self._total])

    def _bounds(self, document: int) -> tuple[int, int]:
        """Return the start and end position of a document in the concatenated rows."""
        if not self.within_documents:
            return 0, self._total
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

    def _separators_before(self, position: int) -> int:
        offsets = self.rows.offsets
        return bisect_left(range(len(self.rows)), position, key=lambda row: int(offsets[row + 1]) + row)
