"""What stands between the columns of a CSV file: commas, or semicolons, as many spreadsheets write it.

It is found from the first lines, and nobody guesses: where both could be meant, the user is asked.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Literal

from glassformer.core.errors import user_error
from glassformer.data.columns import Wanted, count

Delimiter = Literal["comma", "semicolon"]
SIGNS: dict[Delimiter, str] = {"comma": ",", "semicolon": ";"}
FORMATS: dict[str, Delimiter | None] = {"csv": None, "csv-comma": "comma", "csv-semicolon": "semicolon"}
"""What each format of this kind says of it; none: it is to be found."""
SAMPLE_LINES = 100
SAMPLE_CHARACTERS = 1 << 20

csv.field_size_limit(1 << 30)  # the default would refuse a long sequence


def find_delimiter(lines: Iterator[str], wanted: Wanted, *, place: str, setting: str) -> Delimiter:
    """From the first of these lines; no more of them are read.

    A first line `sep=;` says it. A header with the names that are looked for tells it. Else it is the sign by
    which all lines have equally many columns, and enough of them: a text with commas or semicolons in it has
    now more of them, now fewer.
    """
    sample = list(_beginning(lines))
    for name, sign in SIGNS.items():
        if sample and sample[0] == f"sep={sign}":
            return name
    is_whole = next(lines, None) is None
    tables = {name: _rows(sample, sign, is_whole) for name, sign in SIGNS.items()}
    named = [name for name, rows in tables.items() if rows and wanted.is_named_in(rows[0])]
    if len(named) == 1:
        return named[0]
    widths = {name: _width(rows) for name, rows in tables.items()}
    is_comma = widths["comma"] >= wanted.least_columns
    is_semicolon = widths["semicolon"] >= max(2, wanted.least_columns)
    if is_comma and is_semicolon:
        told = ", ".join(f"{count(widths[name], 'column')} by {sign!r}" for name, sign in SIGNS.items())
        raise user_error(
            f"commas or semicolons between columns? Its first lines can be read both ways: {told}",
            path=place,
            hint=f"{setting}csv-comma, or {setting}csv-semicolon",
        )
    return "semicolon" if is_semicolon else "comma"


def is_declaration(line: int, fields: Sequence[str]) -> bool:
    """Whether it is the line `sep=;`, by which some programs say what stands between columns."""
    return line == 1 and list(fields) == ["sep=", ""]


def _beginning(lines: Iterator[str]) -> Iterator[str]:
    characters = 0
    for line in islice(lines, SAMPLE_LINES):
        yield line
        characters += len(line)
        if characters > SAMPLE_CHARACTERS:
            return


def _rows(lines: Sequence[str], sign: str, is_whole: bool) -> list[list[str]]:
    """None if this is no CSV. A last row that goes on after these lines is left out."""
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
    """How many columns all rows have; 0 if they differ."""
    widths = {len(row) for row in rows}
    return widths.pop() if len(widths) == 1 else 0
