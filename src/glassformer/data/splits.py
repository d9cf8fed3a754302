"""Splitting examples into training, validation and test, with equal examples kept in one split.

`RowKeys` finds equal texts in files larger than memory: it stores a 64-bit hash per text on disk and compares
the hashes in partitions.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import SpooledTemporaryFile

import numpy as np

from glassformer.core.errors import shorten, user_error
from glassformer.data.batching import generator, shuffled
from glassformer.data.columns import count
from glassformer.data.formats import MORE_DATA, Record, RunningText, Stream

KEYS_PER_BLOCK = 1 << 16
KEYS_IN_MEMORY = 1 << 18
KEY_BYTES = 8


class RowKeys:
    """One 64-bit hash per text, in the order of the texts.

    Among a billion different texts, a few dozen may share a hash.
    """

    def __init__(self, texts: Iterable[str], folder: Path) -> None:
        """Hash all texts. If there are many, the hashes are in an unnamed temporary file in `folder`."""
        # In memory at first: most files are small.
        self._file = SpooledTemporaryFile(max_size=KEYS_IN_MEMORY * KEY_BYTES, dir=str(folder))  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        keys, size = map(_key, texts), 0
        while block := b"".join(islice(keys, KEYS_PER_BLOCK)):
            self._file.write(block)
            size += len(block)
        self._count = size // KEY_BYTES

    def __len__(self) -> int:
        return self._count

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield all keys in blocks, each block with the row number of its first key."""
        for start in range(0, len(self), KEYS_PER_BLOCK):
            self._file.seek(start * KEY_BYTES)
            yield start, np.frombuffer(self._file.read(KEYS_PER_BLOCK * KEY_BYTES), dtype=np.uint64)

    @property
    def partitions(self) -> int:
        """Number of partitions such that the distinct keys of one partition fit into memory."""
        return -(-len(self) // KEYS_IN_MEMORY)

    def in_partition(self, index: int, partitions: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the row numbers and keys of one partition in blocks. Equal keys are in the same partition."""
        for start, keys in self.blocks():
            inside = np.flatnonzero(keys % np.uint64(partitions) == index)
            yield start + inside, keys[inside]

    def distinct_in_partition(self, index: int, partitions: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the distinct keys of a partition, sorted, and the first row of each."""
        keys, rows, pending = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64), 0
        waiting = []
        for some_rows, some_keys in self.in_partition(index, partitions):
            waiting.append((some_keys, some_rows))
            pending += len(some_rows)
            if pending > KEYS_IN_MEMORY:  # far more rows than keys: many are equal
                keys, rows = _first_of_each([(keys, rows), *waiting])
                waiting, pending = [], 0
        return _first_of_each([(keys, rows), *waiting])


def _key(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES).digest()


def _first_of_each(found: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Join pairs of keys and rows. Return the distinct keys, sorted, and the first row of each key."""
    keys, first = np.unique(np.concatenate([keys for keys, _ in found]), return_index=True)
    return keys, np.concatenate([rows for _, rows in found])[first]


def first_rows(keys: RowKeys) -> np.ndarray:
    """Return a boolean mask of the rows whose key has not occurred in an earlier row."""
    is_first = np.zeros(len(keys), dtype=bool)
    for index in range(keys.partitions):
        _, rows = keys.distinct_in_partition(index, keys.partitions)
        is_first[rows] = True
    return is_first


def copy_from_first(values: np.ndarray, keys: RowKeys) -> None:
    """Set the value of each row, in place, to the value of the first row with the same key."""
    for index in range(keys.partitions):
        distinct, first = keys.distinct_in_partition(index, keys.partitions)
        for rows, some_keys in keys.in_partition(index, keys.partitions):
            values[rows] = values[first[np.searchsorted(distinct, some_keys)]]


def is_contained(few: RowKeys, many: RowKeys, is_included: np.ndarray | None = None) -> np.ndarray:
    """Return a mask of the rows of `few` whose key occurs in `many`.

    `is_included`, a mask of the rows of `many`, limits the search to these rows.
    """
    is_in = np.zeros(len(few), dtype=bool)
    for index in range(few.partitions):
        wanted, _ = few.distinct_in_partition(index, few.partitions)
        is_found = np.zeros(len(wanted), dtype=bool)
        for rows, keys in many.in_partition(index, few.partitions) if len(wanted) else ():
            included = keys if is_included is None else keys[is_included[rows]]
            nearest = np.searchsorted(wanted, included).clip(max=len(wanted) - 1)
            is_found[nearest[wanted[nearest] == included]] = True
        for rows, keys in few.in_partition(index, few.partitions):
            is_in[rows] = is_found[np.searchsorted(wanted, keys)]
    return is_in


def split_off(
    keys: Sequence[Hashable], fractions: Mapping[str, float], data_seed: int, path: str
) -> dict[str, np.ndarray]:
    """Split rows at random. Return the row numbers of each split in `fractions`, and of the rest as `train`.

    Equal arguments give the same result. Rows with equal keys stay together, so that no example is in two
    splits. `path` names the data in error messages.
    """
    groups: dict[Hashable, int] = {}
    group_of_row = np.array([groups.setdefault(key, len(groups)) for key in keys], dtype=np.int64)
    part_of_row = _assign_parts(len(groups), fractions, data_seed, path)[group_of_row]
    return {split: np.flatnonzero(part_of_row == n) for n, split in enumerate([*fractions, "train"])}


def split_off_rows(
    keys: RowKeys, fractions: Mapping[str, float], data_seed: int, path: str
) -> dict[str, np.ndarray]:
    """Split rows as `split_off` does, for data larger than memory. Return one boolean mask per split."""
    is_first = first_rows(keys)
    part_of_row = np.empty(len(keys), dtype=np.int8)
    part_of_row[is_first] = _assign_parts(int(np.count_nonzero(is_first)), fractions, data_seed, path)
    if not is_first.all():
        copy_from_first(part_of_row, keys)
    return {split: part_of_row == number for number, split in enumerate([*fractions, "train"])}


def _assign_parts(total: int, fractions: Mapping[str, float], data_seed: int, path: str) -> np.ndarray:
    """Draw a split for each of `total` groups of equal rows. Return the number of each group's split.

    Splits are numbered in the order of `fractions`; the next number is that of train.
    """
    if total <= len(fractions):
        message = f"{count(total, 'different example')} cannot be split {len(fractions) + 1} ways"
        raise user_error(message, path=path, hint=MORE_DATA)
    order = shuffled(total, generator(data_seed, "split off"))
    ends = [0]
    for fraction in fractions.values():
        most = total - (len(fractions) + 1 - len(ends))  # leaves at least one for each later part
        ends.append(min(ends[-1] + max(1, round(total * fraction)), most))
    part_of_group = np.empty(total, dtype=np.int8)
    for number, part in enumerate(np.split(order, ends[1:])):
        part_of_group[part] = number
    return part_of_group


def is_split_off(key: str, fraction: float, data_seed: int) -> bool:
    """Return True for about this fraction of all keys, decided by a hash of the seed and the key.

    Equal keys stay together, and a stream can be split before it has been read completely.
    """
    digest = hashlib.sha256(f"{data_seed}\n{key}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8]) < fraction * 2**64


def split_stream(stream: Stream, key: str, fraction: float, data_seed: int) -> dict[str, Stream]:
    """Split a stream into `train` and `validation` by a hash of the values in column `key`.

    The end of a running text is its validation part, so that both parts are continuous texts.
    """
    if isinstance(stream, RunningText):
        train, validation = stream.split_at(1 - fraction)
        return {"train": train, "validation": validation}

    def is_validation(record: Record) -> bool:
        return is_split_off(str(record.values[key]), fraction, data_seed)

    return {
        "train": stream.where(lambda record: not is_validation(record)),
        "validation": stream.where(is_validation),
    }


def check_split(stream: Stream, fractions: Mapping[str, float], hash_seed: int | None) -> None:
    """Check that a stream has enough examples to split off these fractions; report an error if it has not.

    `hash_seed` is the seed of `split_stream`, or None if the task uses `split_off`.
    """
    if stream.is_running and len(list(islice(stream.records(), 2))) == 2:
        return  # two blocks of text are enough
    if stream.is_running or hash_seed is not None:
        for part in split_stream(stream, "input", fractions["validation"], hash_seed or 0).values():
            next(iter(part), None)
        return
    distinct: set[str] = set()
    for record in stream:
        distinct.add(str(record.values["input"]))
        if len(distinct) > len(fractions):
            return
    _assign_parts(len(distinct), fractions, 0, stream.name)


# ---------------------------------------------------------------- labels that train does not have

MAX_UNKNOWN_ROWS = 3
MAX_UNKNOWN_FRACTION = 0.01
"""Rows with unknown labels are left out up to either limit. More are probably another column or data set."""


def are_too_many(rows: int, total: int) -> bool:
    """Return True if `rows` rows with unknown labels are too many to leave out of `total` rows."""
    return rows > MAX_UNKNOWN_ROWS and rows > MAX_UNKNOWN_FRACTION * total


@dataclass(frozen=True)
class UnknownRows:
    """Rows of one split whose labels do not occur in the training split."""

    split: str
    labels: Mapping[int, Sequence[str]]
    """Unknown labels by row number from 0. Each row has at least one."""
    total: int
    """Number of rows of the split."""
    locate: Callable[[Sequence[int]], Sequence[str]]
    """Function that returns the file and line of each row."""

    @property
    def distinct(self) -> list[str]:
        return list(dict.fromkeys(label for labels in self.labels.values() for label in labels))

    def leave_out(self, known: Sequence[str], *, is_split_off: bool) -> str:
        """Return a warning that these rows are left out; raise UserError if they are too many.

        If the split was split off from train, they are too many only if no other row remains.
        """
        rows, total = len(self.labels), self.total
        locations = self.locate(list(self.labels)[:MAX_UNKNOWN_ROWS])
        if rows == total or (are_too_many(rows, total) and not is_split_off):
            message = (
                f"{rows:,} of {total:,} rows have labels that train does not have: {_listed(self.distinct)}; "
                f"train has {_listed(known)}"
            )
            hint = "check that the columns mean the same as in train, or add these labels to train"
            if is_split_off:
                hint = "add examples, so that each label has several; or name a validation file"
            raise user_error(message, path=locations[0], hint=hint)
        more = "; …" if rows > len(locations) else ""
        return (
            f"WARNING: {self.split}: left out, because train does not have their labels: "
            f"{rows:,} of {total:,} rows, {_listed(self.distinct)} ({'; '.join(locations)}{more})"
        )

    def reject_new(self, left_out: Iterable[str], known: Sequence[str]) -> None:
        """Raise UserError for a label not in `left_out`: its file has changed since the task was built."""
        left_out = set(left_out)
        for row, labels in self.labels.items():
            for label in labels:
                if label not in left_out or self.split == "train":
                    path = self.locate([row])[0]
                    raise user_error("unknown label", path=path, value=label, allowed=known)


def _listed(labels: Iterable[str]) -> str:
    return shorten(", ".join(map(repr, labels)), 80)
