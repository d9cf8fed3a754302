"""Examples from checked lines: aligned files, tables, JSON, classes. A row that cannot be read is noted.

Whatever the format, an example here is an input and, mostly, a target. What is wrong with them as examples is
the business of `faults`.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from glassformer.data.checking.findings import Findings, Place, excerpt
from glassformer.data.checking.lines import BLOCK_LINES, CheckedLines
from glassformer.errors import user_error

INPUT_NAMES = ("input", "source", "text", "sentence", "review", "inp_expression")
TARGET_NAMES = ("target", "label", "class", "out_expression")
SAMPLE_ROWS = 1000

Column = str | int


@dataclass(frozen=True)
class Columns:
    """Which columns are the input and the target; what is left open is found out from the first rows."""

    asked: Mapping[str, Column] = field(default_factory=dict)
    header: bool | None = None


@dataclass(frozen=True)
class Batch:
    """Some examples in columns: the input first, then the target."""

    columns: list[list[str]]
    files: list[CheckedLines]
    """The file of each column."""
    lines: Sequence[int]
    offsets: list[Sequence[int]] | None
    """Of each column; none where rows are not lines."""

    def __len__(self) -> int:
        return len(self.lines)

    def place(self, row: int, column: int = 0, detail: str = "", shown: int | None = None) -> Place:
        """The excerpt is of the column `shown`, or else of the place's own."""
        byte = None if self.offsets is None else self.offsets[column][row]
        text = self.columns[column if shown is None else shown][row]
        return Place(self.files[column].name, self.lines[row], byte, excerpt(text), detail)


@dataclass(frozen=True)
class Record:
    line: int
    offset: int
    value: Any


def read_aligned(files: list[CheckedLines], findings: Findings) -> Iterator[Batch]:
    """A file a column, line by line."""
    while len(first := files[0].read()):
        blocks = [first, *(file.read(len(first)) for file in files[1:])]
        number = min(map(len, blocks))
        if number:
            yield Batch(
                [block.texts[:number] for block in blocks],
                files,
                range(first.first_line, first.first_line + number),
                [block.offsets for block in blocks],
            )
        if number < len(first):
            break
    for file in files:
        file.drain()
    most = max(files, key=lambda file: file.summary.lines)
    for file in files:
        if file.summary.lines < most.summary.lines:
            detail = f"{file.summary.lines:,} lines, but {most.summary.lines:,} in {most.name}"
            place = Place(file.name, file.summary.lines + 1, file.summary.bytes, detail=detail)
            findings.add_one("unequal-lines", place)


def read_class(file: CheckedLines, label: str, is_one_example: bool) -> Iterator[Batch]:
    """The examples of one class: a line each, or the whole file."""
    if is_one_example:
        text = "\n".join(text for block in file.blocks() for text in block.texts)
        file.drain(may_be_empty=True)
        yield Batch([[text], [label]], [file, file], [1], [[0], [0]])
        return
    for block in file.blocks():
        lines = range(block.first_line, block.first_line + len(block))
        yield Batch([block.texts, [label] * len(block)], [file, file], lines, [block.offsets] * 2)
    file.drain()


def read_table(file: CheckedLines, format: str, columns: Columns, findings: Findings) -> Iterator[Batch]:
    """`tsv`, `csv` and `jsonl`."""
    records = _RECORDS[format](file, findings)
    sample = list(islice(records, SAMPLE_ROWS))
    if sample:
        pick, width, has_header = _picker(sample, columns, file.name)
        rows = chain(sample[1:] if has_header else sample, records)
        while chunk := list(islice(rows, BLOCK_LINES)):
            yield _batch(chunk, pick, width, file, findings)
    file.drain()


def read_json_lists(file: CheckedLines, columns: Columns, findings: Findings) -> Iterator[Batch]:
    """One object of parallel lists. A row has no line of its own: its number stands for it."""
    text = "\n".join(text for block in file.blocks() for text in block.texts)
    file.drain()
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        line, shown = getattr(error, "lineno", 1), excerpt(text, getattr(error, "pos", 0))
        findings.add_one("bad-row", Place(file.name, line, None, shown, _not_json(error)))
        return
    if not isinstance(tree, dict):
        detail = "an object of parallel lists belongs here"
        findings.add_one("bad-row", Place(file.name, 1, None, detail=detail))
        return
    names = _named(list(tree), columns, file.name)
    lists = [tree[name] for name in names]
    if any(not isinstance(column, list) or len(column) != len(lists[0]) for column in lists):
        detail = f"{' and '.join(map(repr, names))} are not lists of one length"
        findings.add_one("bad-row", Place(file.name, 1, None, detail=detail))
        return
    texts = [[_as_text(value) for value in column] for column in lists]
    for start in range(0, len(texts[0]), BLOCK_LINES):
        part = [column[start : start + BLOCK_LINES] for column in texts]
        lines = range(start + 1, start + 1 + len(part[0]))
        yield Batch(part, [file] * len(part), lines, None)


def looks_like_labels(values: Sequence[str]) -> bool:
    """Few, short, and again and again; or numbers. Some may be missing."""
    distinct = set(values) - {""}
    if all(map(is_number, distinct)):
        return True
    is_short = all(len(value) <= 40 and len(value.split()) <= 3 for value in distinct)
    return is_short and len(distinct) <= max(2, len(values) // 3)


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _batch(
    chunk: list[Record], pick: Callable[[Any], list[str]], width: int, file: CheckedLines, findings: Findings
) -> Batch:
    picked: list[list[str]] = []
    kept: list[Record] = []
    for record in chunk:
        try:
            picked.append(pick(record.value))
            kept.append(record)
        except _Unreadable as error:
            shown = excerpt(_as_text(record.value))
            findings.add_one("bad-row", Place(file.name, record.line, record.offset, shown, str(error)))
    columns = [list(column) for column in zip(*picked, strict=True)] or [[] for _ in range(width)]
    offsets = [record.offset for record in kept]
    return Batch(columns, [file] * width, [record.line for record in kept], [offsets] * width)


class _Unreadable(Exception):
    """A row from which the columns cannot be taken."""


def _picker(
    sample: list[Record], columns: Columns, name: str
) -> tuple[Callable[[Any], list[str]], int, bool]:
    """What takes input and target from a row, how many these are, and whether the first row is a header."""
    first = sample[0].value
    if isinstance(first, dict):
        names = _named(list(first), columns, name)
        return lambda row: _from_object(row, names), len(names), False
    if not isinstance(first, list):
        return lambda row: [_as_text(row)], 1, False
    has_header = _has_header(first, columns)
    rows = [record.value for record in (sample[1:] if has_header else sample)]
    positions = _positions(first, rows, columns, has_header, name)
    return lambda row: _from_list(row, positions, len(first)), len(positions), has_header


def _from_object(row: Any, names: list[str]) -> list[str]:
    if not isinstance(row, dict):
        raise _Unreadable("an object {...} belongs here")
    missing = [name for name in names if name not in row]
    if missing:
        raise _Unreadable(f"no {missing[0]!r}")
    nothing = [name for name in names if row[name] is None]
    if nothing:
        raise _Unreadable(f"null in {nothing[0]!r}")
    return [_as_text(row[name]) for name in names]


def _from_list(row: Any, positions: list[int], width: int) -> list[str]:
    if not isinstance(row, list):
        raise _Unreadable("a list [...] belongs here")
    if len(row) != width:
        raise _Unreadable(f"{len(row)} column{'' if len(row) == 1 else 's'}, not {width}")
    return [_as_text(row[position]) for position in positions]


def _not_json(error: Exception) -> str:
    return f"not JSON: {getattr(error, 'msg', 'nested too deeply, or too long a number')}"


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return " ".join(map(_as_text, value))
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return "" if value is None else str(value)


def _named(present: list[str], columns: Columns, place: str) -> list[str]:
    """The names of input and target among those that are there."""
    found = []
    for role, usual in (("input", INPUT_NAMES), ("target", TARGET_NAMES)):
        asked = columns.asked.get(role)
        if asked is not None and asked not in present:
            raise user_error(f"no column {asked!r}", place=place, value=asked, allowed=present)
        name = asked if asked is not None else next((name for name in usual if name in present), None)
        if name is not None:
            found.append(str(name))
        elif role == "input":
            raise user_error(
                "which column is the input?",
                place=place,
                allowed=present,
                remedy="--columns '{input: NAME, target: NAME}'",
            )
    return found


def _has_header(first: list[Any], columns: Columns) -> bool:
    if columns.header is not None:
        return columns.header
    if columns.asked:
        return any(isinstance(column, str) for column in columns.asked.values())
    return any(name in first for name in INPUT_NAMES)


def _positions(
    first: list[Any], rows: list[list[Any]], columns: Columns, has_header: bool, place: str
) -> list[int]:
    asked = columns.asked
    if has_header and (not asked or any(isinstance(column, str) for column in asked.values())):
        return [first.index(name) for name in _named(first, columns, place)]
    for column in asked.values():
        if not isinstance(column, int) or not 0 <= column < len(first):
            raise user_error(
                f"no column {column}: the first line has {len(first)}, numbered from 0",
                place=place,
                remedy="--columns '{input: 0, target: 1}'",
            )
    if asked:
        return [int(asked[role]) for role in ("input", "target") if role in asked]
    if len(first) < 2:
        return [0]
    whole = [row for row in rows if isinstance(row, list) and len(row) == len(first)]
    left, right = (looks_like_labels([_as_text(row[column]) for row in whole]) for column in (0, 1))
    return [1, 0] if left and not right else [0, 1]


def _not_skipped(
    file: CheckedLines, findings: Findings, is_skipped: Callable[[str], bool]
) -> Iterator[Record]:
    for block in file.blocks():
        lines = zip(block.offsets, block.texts, strict=True)
        for number, (offset, text) in enumerate(lines, start=block.first_line):
            if is_skipped(text):
                findings.add_one("skipped-line", Place(file.name, number, offset))
            else:
                yield Record(number, offset, text)


def _tab_records(file: CheckedLines, findings: Findings) -> Iterator[Record]:
    """Spaces and tabs are columns, if empty ones: such a line is read, not skipped."""
    for record in _not_skipped(file, findings, lambda text: not text):
        yield Record(record.line, record.offset, record.value.split("\t"))


def _json_records(file: CheckedLines, findings: Findings) -> Iterator[Record]:
    for record in _not_skipped(file, findings, lambda text: not text.strip()):
        try:
            value = json.loads(record.value)
        except (ValueError, RecursionError) as error:
            shown = excerpt(record.value, getattr(error, "pos", 0))
            place = Place(file.name, record.line, record.offset, shown, _not_json(error))
            findings.add_one("bad-row", place)
        else:
            yield Record(record.line, record.offset, value)


def _comma_records(file: CheckedLines, findings: Findings) -> Iterator[Record]:
    csv.field_size_limit(1 << 30)  # the default would refuse a long text
    starts: dict[int, int] = {}
    """The byte of each line since the last record: a quoted field may go over several."""
    texts: dict[int, str] = {}
    """How each of them begins."""

    def lines() -> Iterable[str]:
        for block in file.blocks():
            for index, (offset, text) in enumerate(zip(block.offsets, block.texts, strict=True)):
                starts[block.first_line + index] = offset
                texts[block.first_line + index] = excerpt(text)
                yield text + "\n"

    reader = csv.reader(lines(), strict=True)
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader, None)
        except csv.Error as error:
            shown = texts.get(line, "")
            place = Place(file.name, line, starts.get(line, 0), shown, f"not CSV: {error}")
            findings.add_one("bad-row", place)
            continue
        if fields is None:
            return
        if fields:
            yield Record(line, starts[line], fields)
        else:
            findings.add_one("skipped-line", Place(file.name, line, starts[line]))
        starts.clear()
        texts.clear()


_RECORDS: dict[str, Callable[[CheckedLines, Findings], Iterator[Record]]] = {
    "tsv": _tab_records,
    "csv": _comma_records,
    "jsonl": _json_records,
}
