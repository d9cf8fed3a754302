"""JSON readers: one object or list per line, an array of objects or lists, or parallel lists."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import replace
from itertools import islice
from typing import Any

from glassformer.core.errors import UserError, user_error
from glassformer.data.columns import (
    SAMPLE_ROWS,
    Column,
    ColumnSpec,
    LayoutMismatch,
    TableLayout,
    count,
    describe_row,
    join_columns,
    missing_column,
)
from glassformer.data.formats import Record, Stream
from glassformer.data.text_files import MAX_LINE_CHARACTERS, TextFile

SPACE = re.compile(r"[ \t\n\r]*")
DECODER = json.JSONDecoder()
INVALID = "not valid JSON: "
TOO_DEEP = "nested too deeply, or a number with too many digits"


class JsonLines(Stream):
    """Stream of examples from a file with one JSON object or list per line."""

    def __init__(self, source: TextFile, columns: ColumnSpec) -> None:
        super().__init__([source])
        self.columns = columns
        self._layout: TableLayout | None = None
        self._absent: dict[Column, str] = {}
        """Number of the first rows that do not have a column, as a part of a message."""

    def rows(self) -> Iterator[tuple[int, Any]]:
        for number, line in enumerate(self.sources[0].lines(), start=1):
            if not line.strip():
                self.report("skipped-line", number)
                continue
            try:
                row = _parse_json(line)
            except InvalidJson as error:
                self.report("bad-row", number, error.at(self.location(number), "check the line"), line)
            else:
                yield number, row

    def records(self) -> Iterator[Record]:
        layout = self.layout()
        if layout is None:
            return
        for number, row in self.rows():
            path = self.location(number)
            try:
                values = {
                    role: join_columns([pick(row, column, path) for column in columns], layout.separator)
                    for role, columns in layout.columns.items()
                }
            except UserError as error:
                self._explain(error, row, layout)
                self.report("bad-row", number, error, json.dumps(row, ensure_ascii=False), row)
            else:
                yield Record(values, number, row)

    def _explain(self, error: UserError, row: Any, layout: TableLayout) -> None:
        """Add to the error of a row without a column how many of the first rows do not have the column."""
        used = [column for columns in layout.columns.values() for column in columns]
        absent = next((column for column in used if isinstance(row, dict) and column not in row), None)
        if absent is None:
            return
        if absent not in self._absent:
            again = copy(self)  # its issues have been reported
            again.sources = [
                replace(source, on_finding=lambda _: None, on_read=None) for source in self.sources
            ]
            rows = [row for row in again.sample() if isinstance(row, dict)]
            number = sum(absent not in row for row in rows)
            self._absent[absent] = f"; {number:,} of the first {len(rows):,} rows have none" * (number > 1)
        error.details[0].message += self._absent[absent]

    def first_row(self) -> Any:
        """Return the first row; an object with the names of all objects among the first rows."""
        first: Any = None
        for number, row in enumerate(self.sample()):
            if number == 0:
                first = dict(row) if isinstance(row, dict) else row
            if not isinstance(first, dict):
                break
            first |= {name: None for name in row if name not in first} if isinstance(row, dict) else {}
        return first

    def sample(self) -> Iterator[Any]:
        """Yield the first rows, whose contents show which columns are texts or labels."""
        return islice((row for _, row in self.rows()), SAMPLE_ROWS)

    def layout(self) -> TableLayout | None:
        """Return the names or numbers of the columns; None if the file is empty or does not fit."""
        if self._layout is None:
            row = self.first_row()
            if row is None:
                return None
            try:
                self._layout = self.columns.object_layout(row, self.location(1), self.sample())
            except LayoutMismatch as error:
                self.report("other-layout", 1, error, json.dumps(row, ensure_ascii=False))
                return None
            if self._layout.candidates:
                self.report("several-columns", 1, shown=", ".join(self._layout.names))
        return self._layout


class JsonDocument(JsonLines):
    """Stream of examples from a JSON array of objects or lists, or from one object of parallel lists.

    An array is read row by row. Parallel lists are held in memory as a whole.
    """

    unit = "row"
    has_long_lines = True

    def rows(self) -> Iterator[tuple[int, Any]]:
        try:
            yield from enumerate(ArrayRows(self.sources[0].blocks()), start=1)
        except InvalidJson as error:
            self._report_invalid(error)

    def records(self) -> Iterator[Record]:
        return super().records() if self._is_array() else self._list_records()

    def first_row(self) -> Any:
        return super().first_row() if self._is_array() else self._lists()

    def sample(self) -> Iterator[Any]:
        if self._is_array():
            return super().sample()
        lists = {name: cells for name, cells in (self._lists() or {}).items() if isinstance(cells, list)}
        length = min(map(len, lists.values()), default=0)
        rows = ({name: cells[index] for name, cells in lists.items()} for index in range(length))
        return islice(rows, SAMPLE_ROWS)

    def _is_array(self) -> bool:
        begins = (block.lstrip() for block in self.sources[0].blocks())
        return next(filter(None, begins), "").startswith("[")

    def _report_invalid(self, error: InvalidJson) -> None:
        hint = 'write [{"input": …, "target": …}, …]; or set task.data.format=jsonl for one object per line'
        self._report_line(error.line, error.at(f"{self.name}, line {error.line}", hint))

    def _report_line(self, line: int, error: UserError) -> None:
        self.sources[0].report("bad-row", line, error, unit="line of JSON")

    def _list_records(self) -> Iterator[Record]:
        tree, layout = self._lists(), self.layout()
        if tree is None or layout is None:
            return
        try:
            lists = self._columns_of(tree, layout)
        except UserError as error:
            self._report_line(1, error)
            return
        length = min(map(len, lists.values()))
        whole = {
            name: cells for name, cells in tree.items() if isinstance(cells, list) and len(cells) == length
        }
        for index in range(length):
            values = {
                role: join_columns([lists[column][index] for column in columns], layout.separator)
                for role, columns in layout.columns.items()
            }
            yield Record(values, index + 1, {name: cells[index] for name, cells in whole.items()})

    def _columns_of(self, tree: dict[str, Any], layout: TableLayout) -> dict[Column, list[Any]]:
        """Return the values of each column that is used as input or target."""
        used = dict.fromkeys(column for columns in layout.columns.values() for column in columns)
        lists = {column: pick(tree, column, self.name) for column in used}
        for column, values in lists.items():
            if not isinstance(values, list):
                hint = "write parallel lists; or set task.data.format=jsonl for one object per line"
                raise user_error(f"{column!r} is not a list", path=self.name, hint=hint)
        if len(set(map(len, lists.values()))) > 1:
            each = ", ".join(f"{column} {len(values):,}" for column, values in lists.items())
            raise user_error(f"the lists differ in length: {each}", path=self.name, hint="make them equal")
        return lists

    def _lists(self) -> dict[str, Any] | None:
        text = "".join(self.sources[0].blocks())
        if not text.strip():
            return None  # reported as an empty file
        try:
            tree = _parse_json(text)
            if not isinstance(tree, dict):
                expected = "an array of objects, or an object of parallel lists, is expected"
                raise InvalidJson(expected, 1, 1)
        except InvalidJson as error:
            self._report_invalid(error)
            return None
        inner = next((name for name, value in tree.items() if _is_list_of_objects(value)), None)
        if inner is not None:
            message, hint = f"the list of examples is under {inner!r}", f"jq '.{inner}' FILE > NEW.json"
            self._report_line(1, user_error(message, path=self.name, hint=f"write the list alone: {hint}"))
            return None
        return tree


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value[:10])


def pick(row: Any, column: Column, path: str) -> Any:
    """Return one column of a JSON row, by name from an object or by number from a list."""
    if isinstance(row, dict) and isinstance(column, str):
        if column not in row:
            raise missing_column(column, list(row), path)
        return row[column]
    if isinstance(row, list) and isinstance(column, int):
        if not 0 <= column < len(row):
            message = f"no column {column}: the list has {count(len(row), 'value')}, numbered from 0"
            raise user_error(message, path=path, hint="write the same number on each line")
        return row[column]
    hint = "use column names for objects {...}, and numbers for lists [...]"
    raise user_error(
        f"the row is {describe_row(row)}, but the column {column!r} is requested", path=path, hint=hint
    )


class InvalidJson(Exception):
    """Syntax error in JSON text, with its line and column."""

    def __init__(self, message: str, line: int, column: int) -> None:
        self.message, self.line, self.column = message, line, column
        super().__init__(message)

    def at(self, path: str, hint: str) -> UserError:
        return user_error(f"{self.message} (column {self.column:,})", path=path, hint=hint)


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        lines = "; one value per line is the format jsonl" if error.msg == "Extra data" else ""
        raise InvalidJson(f"{INVALID}{error.msg}{lines}", error.lineno, error.colno) from None
    except (RecursionError, ValueError):
        raise InvalidJson(TOO_DEEP, 1, 1) from None


class ArrayRows:
    """Iterator over the rows of a JSON array. It yields each object or list once it is read completely."""

    def __init__(self, pieces: Iterable[str]) -> None:
        """Read JSON text from an iterable of pieces, of which only the current row is held in memory."""
        self._pieces = iter(pieces)
        self._text, self._position = "", 0
        self._line, self._column = 1, 1
        """Line and column at which the held text begins."""

    def __iter__(self) -> Iterator[Any]:
        self._take("[")
        sign = "]" if self._next() == "]" else ","
        self._position += sign == "]"
        while sign == ",":
            yield self._row()
            sign = self._take(",]")
        if self._next():
            raise self._error(f"{INVALID}text after the end of the array", self._position)

    def _row(self) -> Any:
        if self._next() not in ("{", "["):
            raise self._error("an object {...} or a list [...] is expected", self._position)
        while True:
            try:
                row, self._position = DECODER.raw_decode(self._text, self._position)
                return row
            except json.JSONDecodeError as error:
                # The row is incomplete or invalid: reading more decides it.
                invalid = self._error(INVALID + error.msg, error.pos)
                is_too_long = len(self._text) - self._position > MAX_LINE_CHARACTERS
                if is_too_long or not self._read_more():
                    raise invalid from None
            except (RecursionError, ValueError):
                raise self._error(TOO_DEEP, self._position) from None

    def _take(self, signs: str) -> str:
        sign = self._next()
        if not sign or sign not in signs:
            expected = " or ".join(map(repr, signs))
            raise self._error(f"{INVALID}{expected} is expected", self._position)
        self._position += 1
        return sign

    def _next(self) -> str:
        """Return the next character that is not white space, or an empty string at the end."""
        while True:
            found = SPACE.match(self._text, self._position)
            self._position = found.end() if found else self._position
            if self._position < len(self._text):
                return self._text[self._position]
            if not self._read_more():
                return ""

    def _read_more(self) -> bool:
        """Read pieces until the held text has doubled; return False at the end of the input.

        Doubling limits how often a long, incomplete row is parsed again.
        """
        self._line, self._column = self._line_and_column(self._position)
        held = [self._text[self._position :]]
        least = length = len(held[0])
        for piece in self._pieces:
            held.append(piece)
            length += len(piece)
            if length > 2 * least:
                break
        self._text, self._position = "".join(held), 0
        return length > least

    def _error(self, message: str, position: int) -> InvalidJson:
        return InvalidJson(message, *self._line_and_column(position))

    def _line_and_column(self, position: int) -> tuple[int, int]:
        line_feeds = self._text.count("\n", 0, position)
        if not line_feeds:
            return self._line, self._column + position
        return self._line + line_feeds, position - self._text.rfind("\n", 0, position)
