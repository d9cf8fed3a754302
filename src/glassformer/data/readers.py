"""A user's own files as columns of values, each with the line it came from.

Formats: tables (`tsv`, `csv`), one JSON object or list a line (`jsonl`), one JSON object of parallel lists
(`json`), and plain text, one example a line (`text`), of which several aligned files make the columns.
Any of them may be gzipped. Only a line feed, or carriage return and line feed, ends a line.
What the values mean is the task's business.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from glassformer.config import Node
from glassformer.data.batching import generator
from glassformer.errors import UserError, near_match, shorten, user_error

Source = str | list[str]
Column = str | int
Format = Literal["tsv", "csv", "jsonl", "json", "text"]

ENDINGS: dict[str, Format] = {
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
}


class DataConfig(Node):
    """Where a user's own examples are."""

    train: Source = Field(description="a file, or a list of line-aligned files, such as [source, target]")
    validation: Source | None = Field(None, description="none: split off from train, the same each time")
    test: Source | None = Field(None, description="none: no test result is reported")
    format: Format | None = Field(None, description="none: by the ending of the file's name")
    columns: dict[str, Column] = Field(
        {}, description="such as {input: text, target: label}; names, or numbers from 0"
    )
    header: bool | None = Field(
        None, description="whether a table's first line names its columns; none: if names are asked for"
    )
    validation_fraction: float = Field(
        0.1, gt=0, lt=1, description="how much of train is split off where no validation set is given"
    )

    def source(self, split: str) -> Source | None:
        return {"train": self.train, "validation": self.validation, "test": self.test}[split]

    def read(self, split: str, roles: Mapping[str, str]) -> Rows | None:
        """The columns of a split, by role; `roles` names the column that a role has unless configured."""
        source = self.source(split)
        if source is None:
            return None
        place = f"task.data.{split}"
        unknown = [role for role in self.columns if role not in roles]
        if unknown:
            raise user_error(
                "no such column is used", place="task.data.columns", value=unknown[0], allowed=list(roles)
            )
        if isinstance(source, list):
            return _read_aligned([Path(path) for path in source], list(roles), place)
        path = Path(source)
        wanted = _Wanted({role: self.columns.get(role) for role in roles}, dict(roles), self.header)
        rows = _READERS[self.format or _format_of(path, place)](path, wanted, place)
        if not len(rows):
            raise user_error("the file holds no example", place=f"{place}: {path}", remedy="one a line")
        return rows


@dataclass(frozen=True)
class Rows:
    """Equally many values for each role, and where they stand."""

    name: str
    values: dict[str, list[Any]]
    numbers: Sequence[int]
    """The line (or, in a JSON list, the row) of each, counted from 1."""
    unit: str = "line"
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.numbers)

    def place(self, index: int) -> str:
        return f"{self.name}, {self.unit} {self.numbers[index]}"

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
    groups: dict[Hashable, list[int]] = {}
    for index, key in enumerate(keys):
        groups.setdefault(key, []).append(index)
    members = list(groups.values())
    if len(members) <= len(fractions):
        raise user_error(
            f"{_count(len(members), 'different example')} cannot be split {len(fractions) + 1} ways",
            place=place,
            remedy="more data, or a file for each split",
        )
    order = generator(data_seed, "split off").permutation(len(members))
    ends = [0]
    for fraction in fractions.values():
        most = len(members) - (len(fractions) + 1 - len(ends))  # each later part is left at least one
        ends.append(min(ends[-1] + max(1, round(len(members) * fraction)), most))
    parts = np.split(order, ends[1:])
    return {
        split: np.sort(np.concatenate([members[group] for group in part]).astype(np.int64))
        for split, part in zip([*fractions, "train"], parts, strict=True)
    }


@dataclass(frozen=True)
class _Wanted:
    """Which columns are asked for."""

    asked: dict[str, Column | None]
    default_names: dict[str, str]
    header: bool | None

    def names(self) -> dict[str, Column]:
        """For rows whose values have names of their own."""
        return {
            role: self.default_names[role] if column is None else column
            for role, column in self.asked.items()
        }

    def has_header(self, first: Sequence[str]) -> bool:
        if self.header is not None:
            return self.header
        if any(column is not None for column in self.asked.values()):
            return any(isinstance(column, str) for column in self.asked.values())
        return set(self.default_names.values()) <= set(first)

    def positions(self, first: Sequence[str], place: str) -> dict[str, int]:
        """For the fields of a table, whose first line is `first`."""
        has_header = self.has_header(first)
        positions = {}
        for number, (role, column) in enumerate(self.asked.items()):
            if column is None:
                name = self.default_names[role]
                column = name if has_header and name in first else number
            if isinstance(column, str):
                if not has_header:
                    raise user_error(
                        f"the column {column!r} is asked for by name, but header is false",
                        place=place,
                        remedy="numbers from 0, or task.data.header=true",
                    )
                column = _position(column, first, place)
            if not 0 <= column < len(first):
                raise user_error(
                    f"no column {column}: the first line has {_count(len(first), 'column')}, numbered from 0",
                    place=place,
                    remedy=f"task.data.columns={{{role}: {len(first) - 1}}}, or another task.data.format",
                )
            positions[role] = column
        return positions


def _position(name: str, header: Sequence[str], place: str) -> int:
    if name not in header:
        raise _missing_column(name, header, place)
    return header.index(name)


def _missing_column(name: str, present: Sequence[str], place: str) -> UserError:
    remedy = "task.data.columns={input: NAME, target: NAME}"
    return user_error(f"no column {name!r}", place=place, value=name, allowed=present, remedy=remedy)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _format_of(path: Path, place: str) -> Format:
    ending = Path(path.name.removesuffix(".gz")).suffix.lower()
    if ending not in ENDINGS:
        raise user_error(
            f"the ending of {path.name!r} names no format",
            place=place,
            remedy="task.data.format=tsv, csv, jsonl, json or text",
        )
    return ENDINGS[ending]


def read_text(path: Path, place: str) -> str:
    """A UTF-8 file, gunzipped if its name ends in .gz, without a byte order mark."""
    where = f"{place}: {path}"
    if path.is_dir():
        raise user_error("is a folder, not a file", place=where, remedy="name the file in it")
    try:
        data = path.read_bytes()
        if path.name.endswith(".gz"):
            data = gzip.decompress(data)
    except FileNotFoundError:
        siblings = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        near = near_match(path.name, siblings)
        remedy = f"{path.parent / near}" if near else "check the path"
        raise user_error("no such file", place=where, remedy=remedy) from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise user_error("not a whole gzip file", place=where, remedy="gzip -t FILE checks it") from None
    except OSError as error:
        raise user_error(
            f"cannot be read: {error.strerror}", place=where, remedy="check its permissions"
        ) from None
    try:
        text = data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise user_error(
            f"not UTF-8 at line {line}, byte {error.start} of the file (0x{data[error.start]:02x})",
            place=where,
            remedy="iconv -f latin1 -t utf-8 FILE, or whichever encoding it has",
        ) from None
    if not text.strip():
        raise user_error("the file is empty", place=where, remedy="one example a line")
    return text


def split_lines(text: str) -> list[str]:
    """Not `str.splitlines`, which also splits at U+2028, U+0085 and others and so misaligns files."""
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def _read_aligned(paths: list[Path], roles: list[str], place: str) -> Rows:
    """A file a role, line by line."""
    if len(paths) != len(roles):
        raise user_error(
            f"{_count(len(paths), 'file')} given where {len(roles)} are needed: {', '.join(roles)}",
            place=place,
            remedy=f"{place}=[{', '.join(roles)}]",
        )
    columns = [split_lines(read_text(path, place)) for path in paths]
    for path, column in zip(paths, columns, strict=True):
        if len(column) != len(columns[0]):
            raise user_error(
                f"{_count(len(column), 'line')}, but {paths[0]} has {len(columns[0])}",
                place=f"{place}: {path}",
                remedy="line-aligned files have equally many lines",
            )
    name = " + ".join(str(path) for path in paths)
    return Rows(name, dict(zip(roles, columns, strict=True)), range(1, len(columns[0]) + 1))


def _read_lines(path: Path, wanted: _Wanted, place: str) -> Rows:
    return _read_aligned([path], list(wanted.asked), place)


def _tsv_fields(text: str, where: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(split_lines(text), start=1):
        if line:
            yield number, line.split("\t")


def _csv_fields(text: str, where: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(1 << 30)  # the default would refuse a long sequence
    # The reader itself joins the lines of a quoted field.
    reader = csv.reader((line + "\n" for line in split_lines(text)), strict=True)
    number = 1
    try:
        for fields in reader:
            if fields:
                yield number, fields
            number = reader.line_num + 1
    except csv.Error as error:
        raise user_error(
            f"not valid CSV: {error}", place=f"{where}, line {number}", remedy='quote "fields, like this"'
        ) from None


def _table_reader(
    fields_of: Callable[[str, str], Iterator[tuple[int, list[str]]]],
) -> Callable[[Path, _Wanted, str], Rows]:
    def read(path: Path, wanted: _Wanted, place: str) -> Rows:
        lines = fields_of(read_text(path, place), str(path))
        first_number, first = next(lines)
        positions = wanted.positions(first, f"{path}, line {first_number}")
        has_header = wanted.has_header(first)
        values: dict[str, list[Any]] = {role: [] for role in positions}
        numbers = []

        def add(number: int, fields: list[str]) -> None:
            if len(fields) != len(first):
                raise user_error(
                    f"{_count(len(fields), 'column')}, but the first line has {len(first)}",
                    place=f"{path}, line {number}",
                    remedy="equally many on each line",
                )
            numbers.append(number)
            for role, position in positions.items():
                values[role].append(fields[position])

        if not has_header:
            add(first_number, first)
        for number, fields in lines:
            add(number, fields)
        notes = () if has_header else (_tell_headerless(path, positions, first),)
        return Rows(str(path), values, numbers, notes=notes)

    return read


def _tell_headerless(path: Path, positions: Mapping[str, int], first: Sequence[str]) -> str:
    taken = ", ".join(f"{role} = column {position}" for role, position in positions.items())
    return (
        f"{path} was read without a header line: {taken}; it begins with {shorten(' | '.join(first), 60)!r}"
    )


def _read_json_lines(path: Path, wanted: _Wanted, place: str) -> Rows:
    columns = wanted.names()
    values: dict[str, list[Any]] = {role: [] for role in columns}
    numbers = []
    for number, line in enumerate(split_lines(read_text(path, place)), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        row = _parse_json(line, where)
        numbers.append(number)
        for role, column in columns.items():
            values[role].append(_pick(row, column, where))
    return Rows(str(path), values, numbers)


def _pick(row: Any, column: Column, where: str) -> Any:
    if isinstance(row, dict) and isinstance(column, str):
        if column not in row:
            raise _missing_column(column, list(row), where)
        return row[column]
    if isinstance(row, list) and isinstance(column, int):
        if not 0 <= column < len(row):
            raise user_error(
                f"no column {column}: the list has {_count(len(row), 'value')}, numbered from 0",
                place=where,
                remedy="equally many on each line",
            )
        return row[column]
    given = "an object" if isinstance(row, dict) else "a list" if isinstance(row, list) else "one value"
    raise user_error(
        f"{given} stands here, and the column {column!r} is asked for",
        place=where,
        remedy="names for objects {...}, numbers for lists [...]",
    )


def _read_json_lists(path: Path, wanted: _Wanted, place: str) -> Rows:
    tree = _parse_json(read_text(path, place), str(path))
    if not isinstance(tree, dict):
        raise user_error(
            "an object of parallel lists belongs here",
            place=str(path),
            remedy='{"input": [...], "target": [...]}; or task.data.format=jsonl for one object a line',
        )
    values = {role: _pick(tree, column, str(path)) for role, column in wanted.names().items()}
    lengths = {}
    for role, column in wanted.names().items():
        if not isinstance(values[role], list):
            raise user_error(f"{column!r} is not a list", place=str(path), remedy="two parallel lists")
        lengths[column] = len(values[role])
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{column} {length:,}" for column, length in lengths.items())
        raise user_error(f"the lists differ in length: {told}", place=str(path), remedy="two parallel lists")
    return Rows(str(path), values, range(1, next(iter(lengths.values())) + 1), unit="row")


def _parse_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        at = f"{where}, line {error.lineno}" if "\n" in text else where
        raise user_error(
            f"not valid JSON: {error.msg} (column {error.colno})", place=at, remedy="check it there"
        ) from None
    except (RecursionError, ValueError):
        raise user_error(
            "nested too deeply, or too long a number", place=where, remedy="simplify it"
        ) from None


_READERS: dict[str, Callable[[Path, _Wanted, str], Rows]] = {
    "tsv": _table_reader(_tsv_fields),
    "csv": _table_reader(_csv_fields),
    "jsonl": _read_json_lines,
    "json": _read_json_lists,
    "text": _read_lines,
}
