"""Records from checked lines: the fields of a table, or the JSON on a line. What is none is noted."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from glassformer.data.checking.findings import Findings, Location, excerpt
from glassformer.data.checking.lines import Block, CheckedLines
from glassformer.data.columns import Column, Wanted
from glassformer.data.delimiters import SIGNS, Delimiter, find_delimiter, is_declaration
from glassformer.data.json_arrays import ArrayRows, NotJson


@dataclass(frozen=True)
class Columns:
    """Which columns are the input and the target; what is left open is found out from the first rows."""

    asked: Mapping[str, Column] = field(default_factory=dict)
    header: bool | None = None
    roles: Mapping[str, str] | None = None
    """What the task asks for, and by which names; none: no task is known, and a target need not be there."""

    def wanted(self, first: Any) -> Wanted:
        """For rows of which this is the first."""
        roles = self.roles
        if roles is None:
            has_target = "target" in self.asked or (not self.asked and _may_have_target(first))
            roles = {"input": "input", "target": "target"} if has_target else {"input": "input"}
        return Wanted({role: self.asked.get(role) for role in roles}, roles, self.header)


def _may_have_target(first: Any) -> bool:
    if isinstance(first, dict):
        return Wanted({"target": None}, {"target": "target"}).is_named_in(list(first))
    return isinstance(first, list) and len(first) > 1


@dataclass(frozen=True)
class Record:
    line: int
    offset: int | None
    """None in a JSON array, whose rows are no lines: their numbers stand for them."""
    value: Any


def _not_skipped(
    file: CheckedLines, findings: Findings, is_skipped: Callable[[str], bool]
) -> Iterator[Record]:
    for block in file.blocks():
        lines = zip(block.offsets, block.texts, strict=True)
        for number, (offset, text) in enumerate(lines, start=block.first_line):
            if is_skipped(text):
                findings.add_one("skipped-line", Location(file.name, number, offset))
            else:
                yield Record(number, offset, text)


def tab_records(file: CheckedLines, findings: Findings) -> Iterator[Record]:
    """Spaces and tabs are columns, if empty ones: such a line is read, not skipped."""
    for record in _not_skipped(file, findings, lambda text: not text):
        yield Record(record.line, record.offset, record.value.split("\t"))


def json_records(file: CheckedLines, findings: Findings) -> Iterator[Record]:
    for record in _not_skipped(file, findings, lambda text: not text.strip()):
        try:
            value = json.loads(record.value)
        except (ValueError, RecursionError) as error:
            shown = excerpt(record.value, getattr(error, "pos", 0))
            place = Location(file.name, record.line, record.offset, shown, not_json(error))
            findings.add_one("bad-row", place)
        else:
            yield Record(record.line, record.offset, value)


def comma_records(
    file: CheckedLines, columns: Columns, findings: Findings, asked: Delimiter | None
) -> tuple[Delimiter, Iterator[Record]]:
    """And what stands between their fields."""
    read: list[Block] = []

    def texts() -> Iterator[str]:
        for block in file.blocks():
            read.append(block)
            yield from block.texts

    delimiter = asked or find_delimiter(
        texts(),
        columns.wanted(["", ""]),
        place=file.name,
        setting="--format " if columns.roles is None else "task.data.format=",
    )
    return delimiter, _delimited(file, chain(read, file.blocks()), SIGNS[delimiter], findings)


def array_records(file: CheckedLines, blocks: Iterable[Block], findings: Findings) -> Iterator[Record]:
    """Up to where it is no JSON array."""
    pieces = (text + "\n" for block in blocks for text in block.texts)
    try:
        for number, value in enumerate(ArrayRows(pieces), start=1):
            yield Record(number, None, value)
    except NotJson as error:
        detail = f"{error.problem} (column {error.column:,})"
        findings.add_one("bad-row", Location(file.name, error.line, None, detail=detail))


def _delimited(
    file: CheckedLines, blocks: Iterable[Block], sign: str, findings: Findings
) -> Iterator[Record]:
    starts: dict[int, int] = {}
    """The byte of each line since the last record: a quoted field may go over several."""
    texts: dict[int, str] = {}
    """How each of them begins."""

    def lines() -> Iterable[str]:
        for block in blocks:
            for index, (offset, text) in enumerate(zip(block.offsets, block.texts, strict=True)):
                starts[block.first_line + index] = offset
                texts[block.first_line + index] = excerpt(text)
                yield text + "\n"

    reader = csv.reader(lines(), delimiter=sign, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader, None)
        except csv.Error as error:
            shown = texts.get(line, "")
            place = Location(file.name, line, starts.get(line, 0), shown, f"not CSV: {error}")
            findings.add_one("bad-row", place)
            continue
        if fields is None:
            return
        if is_declaration(line, fields):
            pass
        elif fields:
            yield Record(line, starts[line], fields)
        else:
            findings.add_one("skipped-line", Location(file.name, line, starts[line]))
        starts.clear()
        texts.clear()


def not_json(error: Exception) -> str:
    return f"not JSON: {getattr(error, 'msg', 'nested too deeply, or too long a number')}"
