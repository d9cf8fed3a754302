"""Which texts of large files are equal: told by eight bytes a text, on disk, and a part of them in memory.

What is found out is a byte a text, however long the texts are.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from tempfile import SpooledTemporaryFile

import numpy as np

KEYS_AT_A_TIME = 1 << 16
KEYS_IN_MEMORY = 1 << 18
KEY_BYTES = 8


class RowKeys:
    """A number for each text, in the order of the texts: of equal ones the same.

    Of a billion different texts, a few dozen may share theirs.
    """

    def __init__(self, texts: Iterable[str], folder: Path) -> None:
        """`folder` is for a file without a name, which is gone with the process."""
        # In memory at first: most files are small.
        self._file = SpooledTemporaryFile(max_size=KEYS_IN_MEMORY * KEY_BYTES, dir=str(folder))  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        keys, size = map(_key, texts), 0
        while block := b"".join(islice(keys, KEYS_AT_A_TIME)):
            self._file.write(block)
            size += len(block)
        self._count = size // KEY_BYTES

    def __len__(self) -> int:
        return self._count

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """All keys, some at a time, each time with the number of the first row."""
        for start in range(0, len(self), KEYS_AT_A_TIME):
            self._file.seek(start * KEY_BYTES)
            yield start, np.frombuffer(self._file.read(KEYS_AT_A_TIME * KEY_BYTES), dtype=np.uint64)

    @property
    def parts(self) -> int:
        """How many parts the keys fall into so that the different ones of a part fit into memory."""
        return -(-len(self) // KEYS_IN_MEMORY)

    def of_part(self, part: int, parts: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Numbers and keys of the rows in one part, some at a time; equal keys are in the same part."""
        for start, keys in self.blocks():
            inside = np.flatnonzero(keys % np.uint64(parts) == part)
            yield start + inside, keys[inside]

    def different_of_part(self, part: int, parts: int) -> tuple[np.ndarray, np.ndarray]:
        """The different keys of a part, sorted, and the first row of each."""
        keys, rows, pending = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64), 0
        waiting = []
        for some_rows, some_keys in self.of_part(part, parts):
            waiting.append((some_keys, some_rows))
            pending += len(some_rows)
            if pending > KEYS_IN_MEMORY:  # far more rows than keys: many are equal
                keys, rows = _first_of_each([(keys, rows), *waiting])
                waiting, pending = [], 0
        return _first_of_each([(keys, rows), *waiting])


def _key(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES).digest()


def _first_of_each(found: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Sorted by key; the earliest of equal ones is that which stands first in what was found."""
    keys, first = np.unique(np.concatenate([keys for keys, _ in found]), return_index=True)
    return keys, np.concatenate([rows for _, rows in found])[first]


def first_rows(keys: RowKeys) -> np.ndarray:
    """For each row, whether no row before it has the same key."""
    is_first = np.zeros(len(keys), dtype=bool)
    for part in range(keys.parts):
        _, rows = keys.different_of_part(part, keys.parts)
        is_first[rows] = True
    return is_first


def spread_from_first(values: np.ndarray, keys: RowKeys) -> None:
    """Give each row the value of the first row that has the same key."""
    for part in range(keys.parts):
        different, first = keys.different_of_part(part, keys.parts)
        for rows, some_keys in keys.of_part(part, keys.parts):
            values[rows] = values[first[np.searchsorted(different, some_keys)]]


def stand_in(few: RowKeys, many: RowKeys, is_meant: np.ndarray | None = None) -> np.ndarray:
    """For each row of `few`, whether its key is among those of `many`; of these only `is_meant`, if given."""
    stands = np.zeros(len(few), dtype=bool)
    for part in range(few.parts):
        sought, _ = few.different_of_part(part, few.parts)
        is_found = np.zeros(len(sought), dtype=bool)
        for rows, keys in many.of_part(part, few.parts) if len(sought) else ():
            meant = keys if is_meant is None else keys[is_meant[rows]]
            nearest = np.searchsorted(sought, meant).clip(max=len(sought) - 1)
            is_found[nearest[sought[nearest] == meant]] = True
        for rows, keys in few.of_part(part, few.parts):
            stands[rows] = is_found[np.searchsorted(sought, keys)]
    return stands
