"""Columns of a table: detects the header, the column of each role, and the delimiter."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from glassformer.core.errors import UserError, shorten, user_error

Column = str | int

USUAL_NAMES = {
    "input": ("input", "text", "sentence", "review", "source", "inp_expression"),
    "target": ("target", "label", "class", "sentiment", "out_expression"),
}
"""Column names to try for each role, if none is requested and the task's own name is absent."""

SAMPLE_ROWS = 20
"""Number of rows below the first that decide whether the first looks like a header."""


@dataclass(frozen=True)
class TableLayout:
    """Header, columns and delimiter of a table, or the names of a JSON object."""

    first: Sequence[str]
    """Fields of the first line; empty for JSON objects."""
    has_header: bool
    positions: Mapping[str, Column]
    """Index of each role's column, or its name in a JSON object."""
    is_as_requested: bool
    """True if every column has the name or the number that was requested."""
    hint: str = ""
    delimiter: str = ""
    """Delimiter of a CSV file: comma or semicolon."""

    def describe(self) -> str:
        delimiter = "with semicolons between columns, " if self.delimiter == "semicolon" else ""
        return delimiter + self._describe_columns()

    def _describe_columns(self) -> str:
        if not self.first:
            return "with " + ", ".join(f"{role} = {name!r}" for role, name in self.positions.items())
        indices = ((role, int(index)) for role, index in self.positions.items())
        if self.has_header:
            columns = ", ".join(f"{role} = {self.first[index]!r}" for role, index in indices)
            return f"with a header line: {columns}"
        columns = ", ".join(f"{role} = column {index}" for role, index in indices)
        begins = shorten(" | ".join(self.first), 60)
        hint = f"; {self.hint}" if self.hint else ""
        return f"without a header line: {columns}; it begins with {begins!r}{hint}"


@dataclass(frozen=True)
class ColumnSpec:
    """Columns that a task needs: requested by name or number, or found by their usual names."""

    requested: Mapping[str, Column | None]
    default_names: Mapping[str, str]
    header: bool | None = None

    def name_in(self, role: str, present: Iterable[str]) -> str | None:
        """Return the column for a role that was not requested: the task's default name, or a usual name."""
        plain: dict[str, str] = {}
        for name in present:
            plain.setdefault(name.strip().casefold(), name)
        candidates = (self.default_names[role].casefold(), *USUAL_NAMES.get(role, ()))
        return next((plain[name] for name in candidates if name in plain), None)

    def names(self, row: object) -> dict[str, Column]:
        """Return the column of each role in JSON rows, detected from `row`, the first of them."""
        present = row if isinstance(row, dict) else ()
        return {
            role: (self.name_in(role, present) or self.default_names[role]) if column is None else column
            for role, column in self.requested.items()
        }

    def object_layout(self, row: object) -> TableLayout:
        """Return the layout of JSON rows, detected from `row`, the first of them."""
        names = self.names(row)
        guessed = (role for role, column in self.requested.items() if column is None)
        is_as_requested = all(names[role] == self.default_names[role] for role in guessed)
        return TableLayout((), has_header=False, positions=names, is_as_requested=is_as_requested)

    def has_header(self, first: Sequence[str]) -> bool:
        """Return True if the first line is a header.

        A header must name every role, because a single match may be a word of the first example.
        """
        if self.header is not None:
            return self.header
        if any(column is not None for column in self.requested.values()):
            return any(isinstance(column, str) for column in self.requested.values())
        return self.is_named_in(first)

    def is_named_in(self, first: Sequence[str]) -> bool:
        """Return True if a line contains the column name of each role that is not requested by number."""
        named = {role: column for role, column in self.requested.items() if not isinstance(column, int)}
        return bool(named) and all(
            self.name_in(role, first) is not None if column is None else column in first
            for role, column in named.items()
        )

    @property
    def min_columns(self) -> int:
        numbers = [column + 1 for column in self.requested.values() if isinstance(column, int)]
        return max(len(self.requested), *numbers, 1)

    def layout(self, first: Sequence[str], path: str, others: Iterable[Sequence[str]] = ()) -> TableLayout:
        """Return the layout of a table whose first line is `first`. `others` help to detect a header."""
        has_header = self.has_header(first)
        found = {
            role: self.name_in(role, first) if column is None and has_header else column
            for role, column in self.requested.items()
        }
        positions = {
            role: self._position(role, column, first, has_header, path)
            for role, column in found.items()
            if column is not None
        }
        for number, role in enumerate(self.requested):
            if role not in positions:
                # The column with the role's own number, or else the first free one.
                order = [number, *range(len(first))]
                free = next((index for index in order if index not in positions.values()), len(first))
                positions[role] = self._position(role, free, first, has_header, path)
        is_as_requested = has_header and all(
            column is not None or found[role] == self.default_names[role]
            for role, column in self.requested.items()
        )
        in_order = {role: positions[role] for role in self.requested}
        hint = "" if has_header else self._hint(first, list(islice(others, SAMPLE_ROWS)))
        return TableLayout(first, has_header, in_order, is_as_requested, hint)

    def _position(self, role: str, column: Column, first: Sequence[str], has_header: bool, path: str) -> int:
        if isinstance(column, str):
            if not has_header:
                message = f"the column {column!r} is requested by name, but header is false"
                raise user_error(message, path=path, hint="use numbers from 0, or task.data.header=true")
            if column not in first:
                raise missing_column(column, first, path)
            return list(first).index(column)
        if not 0 <= column < len(first):
            message = f"no column {column}: the first line has {count(len(first), 'column')}, numbered from 0"
            hint = f"task.data.columns={{{role}: {len(first) - 1}}}, or another task.data.format"
            raise user_error(message, path=path, hint=hint)
        return column

    def _hint(self, first: Sequence[str], others: Sequence[Sequence[str]]) -> str:
        """Return advice for a first line that looks like a header but is read as an example, or ""."""
        has_name = any(self.name_in(role, first) is not None for role in self.requested)
        if self.header is not None or not (has_name or _is_word_above_numbers(first, others)):
            return ""
        if any(column is not None for column in self.requested.values()):
            return "if that is a header: task.data.header=true"
        names = ", ".join(f"{role}: NAME" for role in self.requested)
        return f"if that is a header, name its columns: task.data.columns={{{names}}}"


def _is_word_above_numbers(first: Sequence[str], others: Sequence[Sequence[str]]) -> bool:
    """Return True if some column has a word in `first` and a number, with point or comma, in all others."""
    whole = [row for row in others if len(row) == len(first)]
    return len(whole) > 1 and any(
        not is_number(word) and all(is_number(other.replace(",", ".")) for other in below)
        for word, *below in zip(first, *whole, strict=True)
    )


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def missing_column(name: str, present: Sequence[str], path: str) -> UserError:
    hint = "task.data.columns={input: NAME, target: NAME}"
    return user_error(f"no column {name!r}", path=path, value=name, allowed=present, hint=hint)


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


Delimiter = Literal["comma", "semicolon"]
DELIMITERS: dict[Delimiter, str] = {"comma": ",", "semicolon": ";"}
DELIMITER_LINES = 100
"""Number of lines at the beginning of a file from which the delimiter is detected."""
DELIMITER_CHARACTERS = 1 << 20

csv.field_size_limit(1 << 30)  # the default rejects long sequences


def find_delimiter(lines: Iterator[str], columns: ColumnSpec, *, path: str, option: str) -> Delimiter:
    """Return the delimiter of a CSV file, detected from its first lines; raise UserError if it is ambiguous.

    A first line `sep=;` declares the delimiter. A header with the expected names decides it. Otherwise it is
    the delimiter with which all lines have the same number of columns, and enough of them, because the number
    of commas or semicolons inside a text varies. The error advises the user to set `option`.
    """
    sample = list(_beginning(lines))
    for name, sign in DELIMITERS.items():
        if sample and sample[0] == f"sep={sign}":
            return name
    is_whole = next(lines, None) is None
    tables = {name: _rows(sample, sign, is_whole) for name, sign in DELIMITERS.items()}
    named = [name for name, rows in tables.items() if rows and columns.is_named_in(rows[0])]
    if len(named) == 1:
        return named[0]
    widths = {name: _width(rows) for name, rows in tables.items()}
    is_comma = widths["comma"] >= columns.min_columns
    is_semicolon = widths["semicolon"] >= max(2, columns.min_columns)
    if is_comma and is_semicolon:
        both = ", ".join(f"{count(widths[name], 'column')} by {sign!r}" for name, sign in DELIMITERS.items())
        message = f"the delimiter is ambiguous: the first lines can be read both ways, {both}"
        raise user_error(message, path=path, hint=f"use {option}csv-comma or {option}csv-semicolon")
    return "semicolon" if is_semicolon else "comma"


def is_declaration(line: int, fields: Sequence[str]) -> bool:
    """Return True for the line `sep=;`, with which some programs declare the delimiter."""
    return line == 1 and list(fields) == ["sep=", ""]


def _beginning(lines: Iterator[str]) -> Iterator[str]:
    characters = 0
    for line in islice(lines, DELIMITER_LINES):
        yield line
        characters += len(line)
        if characters > DELIMITER_CHARACTERS:
            return


def _rows(lines: Sequence[str], sign: str, is_whole: bool) -> list[list[str]]:
    """Parse sample lines as CSV; return [] if they are invalid. An incomplete last row is left out."""
    reader = csv.reader((line + "\n" for line in lines), delimiter=sign, strict=True)
    rows = []
    try:
        for fields in reader:
            if fields:
                rows.append(fields)
    except csv.Error:
        if is_whole or reader.line_num < len(lines):
            return []
    return rows


def _width(rows: Sequence[Sequence[str]]) -> int:
    """Return the number of columns that all rows have; 0 if they differ."""
    widths = {len(row) for row in rows}
    return widths.pop() if len(widths) == 1 else 0
