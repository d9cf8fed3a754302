"""Tables of a report in HTML, Markdown and LaTeX."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources

from glassformer.plotting.markup import (
    Markup,
    escape_markdown,
    format_interval,
    format_number,
    join,
    markdown_row,
    tag,
)

EMPTY = "–"


@dataclass(frozen=True)
class Quantity:
    """Number with its 95 % confidence interval, if the interval is known."""

    value: float
    interval: tuple[float, float] | None = None


Cell = str | int | float | Quantity | Markup | None
"""Content of a table cell. `Markup` (HTML) is only for tables that are not exported to other formats."""


@dataclass(frozen=True)
class Table:
    """Table with a caption, headings, rows and notes below the rows."""

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = field(default_factory=tuple)
    is_aside: bool = False
    """True for a table of details, which is collapsed in HTML and left out of Markdown and LaTeX."""

    def is_numeric(self, column: int) -> bool:
        """Return True if all cells of a column that have a value are numbers."""
        cells = [row[column] for row in self.rows if row[column] is not None]
        return bool(cells) and all(isinstance(cell, (int, float, Quantity)) for cell in cells)

    def html(self) -> Markup:
        """Return the table as HTML, with the unrounded numbers in `<data>` elements."""
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
        """Return the table as Markdown text."""
        numeric = [self.is_numeric(column) for column in range(len(self.headings))]
        lines = [f"**{escape_markdown(self.caption)}**", ""] if self.caption else []
        lines.append(markdown_row([escape_markdown(heading) for heading in self.headings]))
        lines.append(markdown_row(["---:" if is_number else "---" for is_number in numeric]))
        for row in self.rows:
            lines.append(markdown_row([escape_markdown(plain(cell)) for cell in row]))
        for note in self.notes:
            lines += ["", escape_markdown(note)]
        return "\n".join(lines) + "\n"

    def latex(self) -> str:
        """Return the table as LaTeX text, which needs the package `booktabs`."""
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
    """Return the text of a file that ships with this package, such as `report.css`."""
    return (resources.files("glassformer.reports") / name).read_text(encoding="utf-8")


def plain(cell: Cell) -> str:
    """Return a cell as plain text, with rounded numbers."""
    if isinstance(cell, Quantity):
        return format_number(cell.value) + (f" [{format_interval(cell.interval)}]" if cell.interval else "")
    if isinstance(cell, (int, float)):
        return format_number(cell)
    return EMPTY if cell is None else str(cell)


def facts(rows: Sequence[Sequence[Cell]]) -> Markup:
    """Build an HTML list of names and values, in as many columns as fit the page."""
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
    """Return text as HTML that may break after the dots, underscores and slashes of a long path."""
    pieces = re.split(r"(?<=[._/])(?=[^\W\d])", content)
    return join(
        part for index, piece in enumerate(pieces) for part in ((tag("wbr"), piece) if index else (piece,))
    )


def exact(value: float) -> Markup:
    """Return a rounded number as HTML, with the unrounded number in the attribute `value`."""
    return tag("data", format_number(value), value=repr(value))


LATEX: dict[str, str] = json.loads(package_file("latex.json"))
"""Replacements of special characters. `[` is replaced because LaTeX reads `\\\\[` as an option."""


def escape_latex(content: str) -> str:
    """Return text with its special characters escaped for LaTeX."""
    return "".join(LATEX.get(character, character) for character in " ".join(content.split()))


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(escape_latex(cell) for cell in cells) + r" \\"
