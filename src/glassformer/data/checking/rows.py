"""Examples from checked lines: aligned files, tables, JSON, classes. A row that cannot be read is noted.

Whatever the format, an example here is an input and, mostly, a target. What is wrong with them as examples is
the business of `faults`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

from glassformer.core.errors import user_error
from glassformer.data.checking.findings import Findings, Location, excerpt
from glassformer.data.checking.lines import BLOCK_LINES, Block, CheckedLines
from glassformer.data.checking.records import (
    Columns,
    Record,
    array_records,
    comma_records,
    json_records,
    not_json,
    tab_records,
)
from glassformer.data.columns import is_number
from glassformer.data.delimiters import FORMATS
from glassformer.data.json_rows import pick

SAMPLE_ROWS = 1000


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

    def place(self, row: int, column: int = 0, detail: str = "", shown: int | None = None) -> Location:
        """The excerpt is of the column `shown`, or else of the place's own."""
        byte = None if self.offsets is None else self.offsets[column][row]
        text = self.columns[column if shown is None else shown][row]
        return Location(self.files[column].name, self.lines[row], byte, excerpt(text), detail)


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
            place = Location(file.name, file.summary.lines + 1, file.summary.bytes, detail=detail)
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
    delimiter = ""
    if format in FORMATS:
        delimiter, records = comma_records(file, columns, findings, FORMATS[format])
    else:
        records = {"tsv": tab_records, "jsonl": json_records}[format](file, findings)
    yield from _read_records(records, columns, file, findings, delimiter, has_names=format != "jsonl")


def _read_records(
    records: Iterator[Record],
    columns: Columns,
    file: CheckedLines,
    findings: Findings,
    delimiter: str = "",
    *,
    has_names: bool = False,
) -> Iterator[Batch]:
    sample = list(islice(records, SAMPLE_ROWS))
    if sample:
        take, width, has_header = _picker(sample, columns, file, findings, delimiter, has_names=has_names)
        rows = chain(sample[1:] if has_header else sample, records)
        while chunk := list(islice(rows, BLOCK_LINES)):
            yield _batch(chunk, take, width, file, findings)
    file.drain()


def read_json(file: CheckedLines, columns: Columns, findings: Findings) -> Iterator[Batch]:
    """An array of rows, or one object of parallel lists. The number of a row stands for its line."""
    read = []
    for block in file.blocks():
        read.append(block)
        if any(text.strip() for text in block.texts):
            break
    blocks = chain(read, file.blocks())
    begins = next((text.strip() for block in read for text in block.texts if text.strip()), "")
    if begins.startswith("["):
        return _read_records(array_records(file, blocks, findings), columns, file, findings)
    return _read_json_lists(file, blocks, columns, findings)


def _read_json_lists(
    file: CheckedLines, blocks: Iterable[Block], columns: Columns, findings: Findings
) -> Iterator[Batch]:
    text = "\n".join(text for block in blocks for text in block.texts)
    file.drain()
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        line, shown = getattr(error, "lineno", 1), excerpt(text, getattr(error, "pos", 0))
        detail = not_json(error)
        if getattr(error, "msg", "") == "Extra data":
            detail = "a second value: one a line is the format jsonl"
        findings.add_one("bad-row", Location(file.name, line, None, shown, detail))
        return
    if not isinstance(tree, dict):
        detail = "an array of objects, or an object of parallel lists, belongs here"
        findings.add_one("bad-row", Location(file.name, 1, None, detail=detail))
        return
    names = _named(tree, columns, file, file.name)
    lists = [tree[name] for name in names]
    if any(not isinstance(column, list) or len(column) != len(lists[0]) for column in lists):
        detail = f"{' and '.join(map(repr, names))} are not lists of one length"
        findings.add_one("bad-row", Location(file.name, 1, None, detail=detail))
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


def _batch(
    chunk: list[Record], take: Callable[[Any], list[str]], width: int, file: CheckedLines, findings: Findings
) -> Batch:
    picked: list[list[str]] = []
    kept: list[Record] = []
    for record in chunk:
        try:
            picked.append(take(record.value))
            kept.append(record)
        except _Unreadable as error:
            shown = excerpt(_as_text(record.value))
            findings.add_one("bad-row", Location(file.name, record.line, record.offset, shown, str(error)))
    columns = [list(column) for column in zip(*picked, strict=True)] or [[] for _ in range(width)]
    offsets = [record.offset for record in kept if record.offset is not None]
    lines = [record.line for record in kept]
    return Batch(columns, [file] * width, lines, [offsets] * width if len(offsets) == len(kept) else None)


class _Unreadable(Exception):
    """A row from which the columns cannot be taken."""


def _picker(
    sample: list[Record],
    columns: Columns,
    file: CheckedLines,
    findings: Findings,
    delimiter: str,
    *,
    has_names: bool,
) -> tuple[Callable[[Any], list[str]], int, bool]:
    """What takes input and target from a row, how many these are, and whether the first row is a header.

    `has_names`: whether the first row may be one.
    """
    first, unit = sample[0].value, "row" if sample[0].offset is None else "line"
    place = f"{file.name}, {unit} {sample[0].line}"
    if isinstance(first, dict):
        names = _named(first, columns, file, place)
        return lambda row: _from_object(row, names), len(names), False
    if not isinstance(first, list):
        return lambda row: [_as_text(row)], 1, False
    wanted = columns.wanted(first)
    if not has_names:
        for column in columns.asked.values():
            pick(first, column, place)
        wanted = replace(wanted, header=False)
    rows = (
        [_as_text(value) for value in record.value] for record in sample if isinstance(record.value, list)
    )
    reading = replace(wanted.reading(next(rows), place, rows), delimiter=delimiter)
    if reading.hint:
        shown = excerpt(" | ".join(reading.first))
        findings.add_one("maybe-header", Location(file.name, sample[0].line, sample[0].offset, shown))
    positions = list(reading.positions.values())
    file.summary.read_as = reading.told()
    is_open = columns.roles is None and not columns.asked and not reading.has_header
    if is_open and len(positions) == 2 and _is_label_first([record.value for record in sample], len(first)):
        positions.reverse()
        told = replace(reading, positions={"input": 1, "target": 0}).told()
        file.summary.read_as = f"{told}; to train on it: task.data.columns={{input: 1, target: 0}}"
    return lambda row: _from_list(row, positions, len(first)), len(positions), reading.has_header


def _is_label_first(rows: list[Any], width: int) -> bool:
    whole = [row for row in rows if isinstance(row, list) and len(row) == width]
    left, right = (looks_like_labels([_as_text(row[column]) for row in whole]) for column in (0, 1))
    return left and not right


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


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return " ".join(map(_as_text, value))
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return "" if value is None else str(value)


def _named(first: dict[str, Any], columns: Columns, file: CheckedLines, place: str) -> list[str]:
    """The names of input and target in an object."""
    wanted = columns.wanted(first)
    if columns.roles is None and "input" not in columns.asked and not wanted.name_in("input", first):
        raise user_error(
            "which column is the input?",
            path=place,
            allowed=list(first),
            hint="--columns '{input: NAME, target: NAME}'",
        )
    names = wanted.names(first)
    for name in names.values():
        pick(first, name, place)
    file.summary.read_as = "with " + ", ".join(f"{role} = {name!r}" for role, name in names.items())
    return [str(name) for name in names.values()]
