"""Delimiter of a CSV file: commas, semicolons, tabs or pipes, detected from the first lines of the file."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Literal

from glassformer.core.errors import user_error
from glassformer.data.columns import ColumnSpec, count

Delimiter = Literal["comma", "semicolon", "tab", "pipe"]
DELIMITERS: dict[Delimiter, str] = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
FORMATS: dict[Delimiter, str] = {"comma": "csv-comma", "semicolon": "csv-semicolon", "tab": "tsv"}
"""Format that requests a delimiter. Pipes have none, because commas or semicolons are preferred to them."""
DELIMITER_LINES = 100
"""Number of lines at the beginning of a file from which the delimiter is detected."""
DELIMITER_CHARACTERS = 1 << 20

csv.field_size_limit(1 << 30)  # the default rejects long sequences


def find_delimiter(lines: Iterator[str], columns: ColumnSpec, *, path: str, option: str) -> Delimiter:
    """Return the delimiter of a CSV file, detected from its first lines; raise UserError if it is ambiguous.

    A first line `sep=;` declares the delimiter. A header with the expected names decides it. Otherwise it is
    the delimiter that splits all lines into the same number of columns, at least as many as the task needs.
    Commas or semicolons inside texts would vary in number. Pipes delimit columns only if nothing else does.
    The error advises the user to set `option`.
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
    least = columns.min_columns
    fitting = [
        name for name, width in widths.items() if width >= (least if name == "comma" else max(2, least))
    ]
    if fitting == ["comma", "tab"] and widths["comma"] == 1:
        return "tab"
    if len(fitting) > 1:
        fitting = [name for name in fitting if name != "pipe"]
    if len(fitting) > 1:
        both = ", ".join(f"{count(widths[name], 'column')} by {DELIMITERS[name]!r}" for name in fitting)
        message = f"the delimiter is ambiguous: the first lines can be read both ways, {both}"
        options = " or ".join(option + FORMATS[name] for name in fitting)
        raise user_error(message, path=path, hint=f"use {options}")
    return fitting[0] if fitting else "comma"


def are_fields_quoted(lines: Iterator[str]) -> bool:
    """Return True if quotes enclose the fields of a TSV file, by its first lines.

    They do if the lines are a table when read as CSV with tabs, and either half of them have a field that
    begins with a quote, or they are not a table when quotes are ordinary characters.
    """
    sample = list(_beginning(lines))
    rows = _rows(sample, DELIMITERS["tab"], next(lines, None) is None)
    plain = [line.split("\t") for line in sample if line]
    quoted = sum(any(field.startswith('"') for field in fields) for fields in plain)
    return _width(rows) > 1 and quoted > 0 and (2 * quoted >= len(plain) or not _width(plain))


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
