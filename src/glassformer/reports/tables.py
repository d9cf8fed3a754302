"""Tables of a report in HTML, Markdown and LaTeX."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources

from glassformer.plotting.markup import Markup, format_interval, format_number, join, tag

EMPTY = "–"


@dataclass(frozen=True)
class Quantity:
    """A number, and its 95 % interval if there is one."""

    value: float
    interval: tuple[float, float] | None = None


Cell = str | int | float | Quantity | Markup | None
"""Content of a cell; `Markup` only in tables that are written as HTML alone."""


@dataclass(frozen=True)
class Table:
    """A table with a caption, headings, rows and notes below it."""

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = field(default_factory=tuple)
    is_aside: bool = False
    """Details: collapsed on the page, and left out of other files."""

    def is_numeric(self, column: int) -> bool:
        """True if all cells of a column are numbers."""
        cells = [row[column] for row in self.rows if row[column] is not None]
        return bool(cells) and all(isinstance(cell, (int, float, Quantity)) for cell in cells)

    def html(self) -> Markup:
        """Table as HTML, with unrounded numbers in `<data>` elements."""
        numeric = [self.is_numeric(column) for column in range(len(self.headings))]
        head = [
            tag("th", heading, scope="col", class_="number" if is_number else None)
            for heading, is_number in zip(self.headings, numeric, strict=True)
        ]
        body = []
        for first, *rest in self.rows:
            cells = [
                tag("td", _html_cell(cell), class_="number" if is_number else None)
                for cell, is_number in zip(rest, numeric[1:], strict=True)
            ]
            body.append(tag("tr", tag("th", _html_cell(first), scope="row"), *cells))
        table = tag(
            "table",
            tag("caption", self.caption) if self.caption else None,
            tag("thead", tag("tr", *head)),
            tag("tbody", *body),
        )
        notes = [tag("p", note, class_="note") for note in self.notes]
        # A table wider than the screen scrolls by itself; the page does not.
        return join([tag("div", table, class_="table", tabindex="0", role="region"), *notes])

    def markdown(self) -> str:
        """Table as Markdown."""
        numeric = [self.is_numeric(column) for column in range(len(self.headings))]
        lines = [f"**{escape_markdown(self.caption)}**", ""] if self.caption else []
        lines.append(_markdown_row([escape_markdown(heading) for heading in self.headings]))
        lines.append(_markdown_row(["---:" if is_number else "---" for is_number in numeric]))
        for row in self.rows:
            lines.append(_markdown_row([escape_markdown(plain(cell)) for cell in row]))
        for note in self.notes:
            lines += ["", escape_markdown(note)]
        return "\n".join(lines) + "\n"

    def latex(self) -> str:
        """Table as LaTeX for the package `booktabs`."""
        columns = "".join("r" if self.is_numeric(column) else "l" for column in range(len(self.headings)))
        lines = [r"\begin{table}", r"\centering"]
        lines += [rf"\caption{{{escape_latex(self.caption)}}}"] if self.caption else []
        lines += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
        lines += [_latex_row(self.headings), r"\midrule"]
        lines += [_latex_row([plain(cell) for cell in row]) for row in self.rows]
        lines += [r"\bottomrule", r"\end{tabular}"]
        lines += [rf"\par\smallskip{{\footnotesize {escape_latex(note)}}}" for note in self.notes]
        return "\n".join([*lines, r"\end{table}"]) + "\n"


def package_file(name: str) -> str:
    """Text of a file of this package."""
    return (resources.files("glassformer.reports") / name).read_text(encoding="utf-8")


def plain(cell: Cell) -> str:
    """Cell as plain text."""
    if isinstance(cell, Quantity):
        return format_number(cell.value) + (f" [{format_interval(cell.interval)}]" if cell.interval else "")
    if isinstance(cell, (int, float)):
        return format_number(cell)
    return EMPTY if cell is None else str(cell)


def facts(rows: Sequence[Sequence[Cell]]) -> Markup:
    """List of names and values in as many columns as fit."""
    pairs = [tag("div", tag("dt", name), tag("dd", _html_cell(value))) for name, value in rows]
    return tag("dl", *pairs, class_="facts")


def _html_cell(cell: Cell) -> Markup | str:
    if isinstance(cell, Quantity):
        if cell.interval is None:
            return exact(cell.value)
        low, high = cell.interval
        within = tag("span", exact(low), " – ", exact(high), class_="interval")
        return join([exact(cell.value), " ", within])
    if isinstance(cell, (int, float)):
        return exact(cell)
    if isinstance(cell, str) and not isinstance(cell, Markup):
        return _breakable(cell)
    return EMPTY if cell is None else cell


def _breakable(content: str) -> Markup:
    """Allow line breaks after the dots and slashes of a long path."""
    pieces = re.split(r"(?<=[._/])(?=[^\W\d])", content)
    return join(
        part for index, piece in enumerate(pieces) for part in ((tag("wbr"), piece) if index else (piece,))
    )


def exact(value: float) -> Markup:
    """Rounded number, with the unrounded one in an attribute."""
    return tag("data", format_number(value), value=repr(value))


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def escape_markdown(content: str) -> str:
    """Escape text for a Markdown table cell."""
    line = " ".join(content.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]|~$#!])", r"\\\1", line)


LATEX: dict[str, str] = json.loads(package_file("latex.json"))
"""Replacements of special characters; a `[` at the start of a row would be an option of `\\\\`."""


def escape_latex(content: str) -> str:
    """Escape text for LaTeX."""
    return "".join(LATEX.get(character, character) for character in " ".join(content.split()))


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(escape_latex(cell) for cell in cells) + r" \\"
