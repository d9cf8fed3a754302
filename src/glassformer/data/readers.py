"""A user's own files: where they are, which format they have, and what becomes of a split.

Formats: tables (`tsv`; `csv`, and `csv-comma` or `csv-semicolon` where it cannot be told from the file), one
JSON object or list a line (`jsonl`), a JSON array of them or one object of parallel lists (`json`), plain
text, one example a line (`text`), of which several aligned files make the columns, one text as a whole
(`running-text`), and a folder with a file or a folder a class (`folder`).
Any file may be gzipped. What the values mean is the task's business.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from glassformer.core.config import Node
from glassformer.core.errors import UserError, user_error
from glassformer.data.batching import generator, shuffled
from glassformer.data.columns import Column, Wanted, count
from glassformer.data.folders import ClassFolder
from glassformer.data.json_rows import JsonDocument, JsonLines
from glassformer.data.row_keys import RowKeys, first_rows, spread_from_first
from glassformer.data.streams import (
    AlignedLines,
    Record,
    RunningText,
    Stream,
)
from glassformer.data.tables import CommaTable, TabTable
from glassformer.data.text_files import TextFile, refuse_unknown_encoding

Source = str | list[str]
Format = Literal[
    "tsv", "csv", "csv-comma", "csv-semicolon", "jsonl", "json", "text", "running-text", "folder"
]

ENDINGS: dict[str, Format] = {
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
}


class DataConfig(Node):
    """Where a user's own examples are."""

    train: Source = Field(
        description="a file, a list of line-aligned files, such as [source, target], or a folder of classes"
    )
    validation: Source | None = Field(None, description="none: split off from train, the same each time")
    test: Source | None = Field(None, description="none: no test result is reported")
    format: Format | None = Field(None, description="none: by the ending of the file's name")
    columns: dict[str, Column] = Field(
        {}, description="such as {input: text, target: label}; names, or numbers from 0"
    )
    header: bool | None = Field(
        None,
        description="whether a table's first line names its columns; none: if it has names that are known",
    )
    classes: dict[str, str] = Field(
        {}, description="such as {bad: a.neg, good: a.pos}, in a folder; none: each file or folder is a class"
    )
    encoding: str = Field("utf-8", description="of the text in all files")
    validation_fraction: float = Field(
        0.1, gt=0, lt=1, description="how much of train is split off where no validation set is given"
    )

    test_fraction: float | None = Field(
        None, gt=0, lt=1, description="how much of train is split off as a test set; none: nothing"
    )

    def source(self, split: str) -> Source | None:
        return {"train": self.train, "validation": self.validation, "test": self.test}[split]

    def stream(self, split: str, roles: Mapping[str, str]) -> Stream | None:
        """The examples of a split, one at a time; `roles` names the column that a role has by default."""
        source = self.source(split)
        if source is None:
            return None
        setting = f"task.data.{split}"
        unknown = [role for role in self.columns if role not in roles]
        if unknown:
            raise user_error(
                "no such column is used", path="task.data.columns", value=unknown[0], allowed=list(roles)
            )
        refuse_unknown_encoding(self.encoding, "task.data.encoding")
        if isinstance(source, list):
            self._refuse_classes(setting)
            return AlignedLines([self._file(path, setting) for path in source], list(roles), setting)
        file = self._file(source, setting)
        wanted = Wanted({role: self.columns.get(role) for role in roles}, dict(roles), self.header)
        found = self._format_of(file, wanted)
        if found != "folder":
            self._refuse_classes(file.where)
        return _STREAMS[found](file, wanted, self.classes)

    def _refuse_classes(self, where: str) -> None:
        if self.classes:
            raise user_error("is no folder, and task.data.classes names what is in one", path=where)

    def _file(self, path: str, setting: str) -> TextFile:
        from glassformer.data.catalogue import locate

        return TextFile(locate(path), setting, self.encoding)

    def _format_of(self, file: TextFile, wanted: Wanted) -> Format:
        """A file that only texts are asked of may have any ending."""
        if self.format is not None:
            return self.format
        if file.path.is_dir():
            return "folder"
        ending = Path(file.path.name.removesuffix(".gz")).suffix.lower()
        if ending in ENDINGS:
            return ENDINGS[ending]
        if len(wanted.asked) == 1:
            return "text"
        raise user_error(
            f"the ending of {file.path.name!r} names no format",
            path=file.setting,
            hint=f"task.data.format=tsv, csv, jsonl or json; aligned files are {file.setting}"
            f"=[{', '.join(wanted.asked)}]",
        )

    def read(self, split: str, roles: Mapping[str, str]) -> Rows | None:
        """All examples of a split, as a column for each role."""
        stream = self.stream(split, roles)
        return None if stream is None else Rows.collect(stream, list(roles))


_STREAMS: dict[Format, Callable[[TextFile, Wanted, Mapping[str, str]], Stream]] = {
    "tsv": lambda file, wanted, classes: TabTable(file, wanted),
    "csv": lambda file, wanted, classes: CommaTable(file, wanted),
    "csv-comma": lambda file, wanted, classes: CommaTable(file, wanted, "comma"),
    "csv-semicolon": lambda file, wanted, classes: CommaTable(file, wanted, "semicolon"),
    "jsonl": lambda file, wanted, classes: JsonLines(file, wanted),
    "json": lambda file, wanted, classes: JsonDocument(file, wanted),
    "text": lambda file, wanted, classes: AlignedLines([file], list(wanted.asked), file.setting),
    "running-text": lambda file, wanted, classes: RunningText(file, list(wanted.asked)),
    "folder": lambda file, wanted, classes: ClassFolder(file, list(wanted.asked), classes),
}


@dataclass(frozen=True)
class Rows:
    """Equally many values for each role, and where they stand."""

    stream: Stream
    values: dict[str, list[Any]]
    numbers: Sequence[int]
    """What `Record.number` says of each."""
    notes: tuple[str, ...]

    @classmethod
    def collect(cls, stream: Stream, roles: Sequence[str]) -> Rows:
        values: dict[str, list[Any]] = {role: [] for role in roles}
        numbers = []
        for record in stream:
            numbers.append(record.number)
            for role, value in record.values.items():
                values[role].append(value)
        return cls(stream, values, numbers, stream.notes)

    @property
    def name(self) -> str:
        return self.stream.name

    def __len__(self) -> int:
        return len(self.numbers)

    def place(self, index: int) -> str:
        return self.stream.place(self.numbers[index])

    def take(self, indices: Iterable[int]) -> Rows:
        kept = list(indices)
        values = {role: [column[index] for index in kept] for role, column in self.values.items()}
        return replace(self, values=values, numbers=[self.numbers[index] for index in kept])


def split_off(
    keys: Sequence[Hashable], fractions: Mapping[str, float], data_seed: int, place: str
) -> dict[str, np.ndarray]:
    """Row numbers of a part for each fraction, and of the rest as `train`; the same for the same arguments.

    Rows with equal keys stay together, so that no example crosses from one split into another.
    """
    groups: dict[Hashable, int] = {}
    group_of_row = np.array([groups.setdefault(key, len(groups)) for key in keys], dtype=np.int64)
    part_of_row = _parts(len(groups), fractions, data_seed, place)[group_of_row]
    return {split: np.flatnonzero(part_of_row == n) for n, split in enumerate([*fractions, "train"])}


def split_off_rows(
    keys: RowKeys, fractions: Mapping[str, float], data_seed: int, place: str
) -> dict[str, np.ndarray]:
    """The parts that `split_off` makes, of however many rows: for each row whether it belongs to the part."""
    is_first = first_rows(keys)
    part_of_row = np.empty(len(keys), dtype=np.int8)
    part_of_row[is_first] = _parts(int(np.count_nonzero(is_first)), fractions, data_seed, place)
    if not is_first.all():
        spread_from_first(part_of_row, keys)
    return {split: part_of_row == number for number, split in enumerate([*fractions, "train"])}


def _parts(total: int, fractions: Mapping[str, float], data_seed: int, place: str) -> np.ndarray:
    """For each group of equal rows, in the order of their first, the number of its part."""
    if total <= len(fractions):
        raise user_error(
            f"{count(total, 'different example')} cannot be split {len(fractions) + 1} ways",
            path=place,
            hint="more data, or a file for each split",
        )
    order = shuffled(total, generator(data_seed, "split off"))
    ends = [0]
    for fraction in fractions.values():
        most = total - (len(fractions) + 1 - len(ends))  # each later part is left at least one
        ends.append(min(ends[-1] + max(1, round(total * fraction)), most))
    part_of_group = np.empty(total, dtype=np.int8)
    for number, part in enumerate(np.split(order, ends[1:])):
        part_of_group[part] = number
    return part_of_group


def is_split_off(key: str, fraction: float, data_seed: int) -> bool:
    """Whether an example belongs to the part of so large a fraction: a matter of its key alone.

    So equal keys stay together, and a stream can be split without having been seen as a whole.
    """
    digest = hashlib.sha256(f"{data_seed}\n{key}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8]) < fraction * 2**64


class Chosen(Stream):
    """Those records of a stream that belong to one part of it."""

    def __init__(self, whole: Stream, belongs: Callable[[Record], bool]) -> None:
        super().__init__(whole.sources)
        self.whole = whole
        self.belongs = belongs

    @property
    def name(self) -> str:
        return self.whole.name

    @property
    def read_as(self) -> str:
        return self.whole.read_as

    @property
    def notes(self) -> tuple[str, ...]:
        return self.whole.notes

    @property
    def files(self) -> list[Path]:
        return self.whole.files

    def place(self, number: int) -> str:
        return self.whole.place(number)

    def records(self) -> Iterator[Record]:
        return filter(self.belongs, self.whole)

    def nothing(self) -> UserError:
        hint = "more data, or a file for each split"
        return user_error("too few different examples to split", path=self.name, hint=hint)


def split_stream(stream: Stream, key: str, fraction: float, data_seed: int) -> dict[str, Stream]:
    """`train` and `validation`, so large a fraction of the whole: by the value of the role `key`.

    The end of a running text is its validation part: what is left of it stays one text.
    """
    if isinstance(stream, RunningText):
        train, validation = stream.split_at(1 - fraction)
        return {"train": train, "validation": validation}

    def is_validation(record: Record) -> bool:
        return is_split_off(str(record.values[key]), fraction, data_seed)

    return {
        "train": Chosen(stream, lambda record: not is_validation(record)),
        "validation": Chosen(stream, is_validation),
    }
