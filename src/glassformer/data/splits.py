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
from glassformer.data.roles import is_number

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
    keys: Sequence[Hashable],
    fractions: Mapping[str, float],
    data_seed: int,
    path: str,
    classes: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Split rows at random. Return the row numbers of each split in `fractions`, and of the rest as `train`.

    Equal arguments give the same result. Rows with equal keys stay together, so that no example is in two
    splits. With `classes`, the class number of each row, each split has its share of every class. `path`
    names the data in error messages.
    """
    groups: dict[Hashable, int] = {}
    group_of_row = np.array([groups.setdefault(key, len(groups)) for key in keys], dtype=np.int64)
    if classes is not None:
        classes = classes[np.unique(group_of_row, return_index=True)[1]]
    part_of_row = _assign_parts(len(groups), fractions, data_seed, path, classes)[group_of_row]
    return {split: np.flatnonzero(part_of_row == n) for n, split in enumerate([*fractions, "train"])}


def split_off_rows(
    keys: RowKeys,
    fractions: Mapping[str, float],
    data_seed: int,
    path: str,
    classes: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Split rows as `split_off` does, for data larger than memory. Return one boolean mask per split."""
    is_first = first_rows(keys)
    part_of_row = np.empty(len(keys), dtype=np.int8)
    part_of_row[is_first] = _assign_parts(
        int(np.count_nonzero(is_first)),
        fractions,
        data_seed,
        path,
        None if classes is None else classes[is_first],
    )
    if not is_first.all():
        copy_from_first(part_of_row, keys)
    return {split: part_of_row == number for number, split in enumerate([*fractions, "train"])}


def _assign_parts(
    total: int,
    fractions: Mapping[str, float],
    data_seed: int,
    path: str,
    classes: np.ndarray | None = None,
) -> np.ndarray:
    """Draw a split for each of `total` groups of equal rows. Return the number of each group's split.

    Splits are numbered in the order of `fractions`; the next number is that of train. `classes` has the class
    of each group.
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
    if classes is not None:
        sizes = np.diff(ends).tolist()
        part_of_group[:] = len(sizes)
        for number, size in enumerate(sizes):
            chosen = _draw_from_classes(order, classes, size)
            part_of_group[chosen] = number
            order = order[part_of_group[order] == len(sizes)]
        return part_of_group
    for number, part in enumerate(np.split(order, ends[1:])):
        part_of_group[part] = number
    return part_of_group


def _draw_from_classes(order: np.ndarray, classes: np.ndarray, size: int) -> np.ndarray:
    """Return `size` of the groups in `order`, with the share of each class rounded up or down.

    The only group of a class is not drawn, so that train has every class. If other groups are too few, any
    group is drawn.
    """
    is_shared = np.bincount(classes[order])[classes[order]] > 1
    drawable = order[is_shared] if np.count_nonzero(is_shared) >= size else order
    by_class = drawable[np.argsort(classes[drawable], kind="stable")]
    return by_class[((np.arange(size) + 0.5) * len(by_class) / size).astype(np.int64)]


def uneven_split(rows: int, total: int, fraction: float) -> str:
    """Return the reason why a split is far from its fraction of the rows; empty if it is near."""
    asked = total * fraction
    if abs(rows - asked) <= max(2, 0.2 * asked):
        return ""
    return f" (asked for {fraction:g}; equal inputs stay in one split, and many inputs are equal)"


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


def number_classes(labels: Iterable[Hashable], count: int) -> np.ndarray:
    """Return the class number of each of `count` labels. Classes are numbered in order of appearance."""
    numbers: dict[Hashable, int] = {}
    return np.fromiter((numbers.setdefault(label, len(numbers)) for label in labels), np.int32, count)


def describe_split_off(split: str, rows: int, distinct: int, total: int, noun: str = "examples") -> str:
    """Return a note on a split that was split off. `distinct` is its number of different inputs."""
    different = f", {distinct:,} different inputs" if distinct < rows else ""
    return f"{split}: {rows:,} of {total:,} training {noun}, split off{different}"


# ---------------------------------------------------------------- labels that train does not have

MIN_LABEL_EXAMPLES = 5
"""Number of examples of a label below which a split has a warning."""


def rare_labels(split: str, counts: Mapping[str, int]) -> list[str]:
    """Return a warning about labels with few examples in a split, which has `counts` of each label."""
    rare = [label for label, number in counts.items() if number < MIN_LABEL_EXAMPLES]
    rare.sort(key=lambda label: counts[label])
    if not rare:
        return []
    shown = shorten(", ".join(f"{label!r}: {counts[label]}" for label in rare), 80)
    return [
        f"WARNING: {split}: {len(rare):,} of {count(len(counts), 'label')} have fewer than"
        f" {MIN_LABEL_EXAMPLES} examples, so that metrics are uncertain for them: {shown}"
    ]


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
            hint = unknown_labels_hint(self.distinct, known, is_split_off=is_split_off)
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


def unknown_labels_hint(labels: Sequence[str], known: Iterable[str], *, is_split_off: bool = False) -> str:
    """Return advice for labels that train does not have."""
    known = list(known)
    for label in labels:
        same = same_number(label, known)
        if same is not None:
            return f"{label!r} is {same!r} written differently: write all labels as in train"
    if all(map(is_number, [*labels, *known])):
        return "if they are numbers to predict instead of classes: task.target=number"
    if is_split_off:
        return "add examples, so that each label has several; or name a validation file"
    return "check that the columns mean the same as in train, or add these labels to train"


def same_number(label: str, known: Iterable[str]) -> str | None:
    """Return the label in `known` that is the same number written differently, such as 1 for 1.0, or None."""
    if not is_number(label):
        return None
    return next((other for other in known if is_number(other) and float(other) == float(label)), None)


def _listed(labels: Iterable[str]) -> str:
    return shorten(", ".join(map(repr, labels)), 80)
