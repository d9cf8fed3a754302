"""Tables in HTML, Markdown and LaTeX; markup that is always escaped."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
"""Characters that no HTML file may hold."""
WITHOUT_END = frozenset({"img", "wbr"})


class Markup(str):
    """HTML that was made by `tag`."""

    __slots__ = ()


def text(content: object) -> Markup:
    if isinstance(content, Markup):
        return content
    return Markup(html.escape(CONTROLS.sub("\N{REPLACEMENT CHARACTER}", str(content)), quote=True))


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """`tag("td", "a < b", class_="x")`; an attribute that is None is left out, and True needs no value."""
    written = ""
    for key, value in attributes.items():
        key = key.removesuffix("_").replace("_", "-")
        if value is True:
            written += f" {key}"
        elif value is not None and value is not False:
            written += f' {key}="{text(value)}"'
    if name in WITHOUT_END:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def join(children: Iterable[object]) -> Markup:
    return Markup("".join(text(child) for child in children if child is not None))


NOTHING = "–"


@dataclass(frozen=True)
class Quantity:
    """A number as it was read, with its 95 % interval if it has one."""

    value: float
    interval: tuple[float, float] | None = None


Cell = str | int | float | Quantity | Markup | None
"""Markup is for HTML alone: a table that is also written otherwise has none."""


@dataclass(frozen=True)
class Table:
    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = field(default_factory=tuple)
    is_aside: bool = False
    """Whether it holds what few will ask for: folded on a page, and in no other file."""

    def is_numeric(self, column: int) -> bool:
        cells = [row[column] for row in self.rows if row[column] is not None]
        return bool(cells) and all(isinstance(cell, (int, float, Quantity)) for cell in cells)

    def html(self) -> Markup:
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
        # What is wider than a phone scrolls by itself, and the page does not.
        return join([tag("div", table, class_="table", tabindex="0", role="region"), *notes])

    def markdown(self) -> str:
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
        """For `booktabs`."""
        columns = "".join("r" if self.is_numeric(column) else "l" for column in range(len(self.headings)))
        lines = [r"\begin{table}", r"\centering"]
        lines += [rf"\caption{{{escape_latex(self.caption)}}}"] if self.caption else []
        lines += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
        lines += [_latex_row(self.headings), r"\midrule"]
        lines += [_latex_row([plain(cell) for cell in row]) for row in self.rows]
        lines += [r"\bottomrule", r"\end{tabular}"]
        lines += [rf"\par\smallskip{{\footnotesize {escape_latex(note)}}}" for note in self.notes]
        return "\n".join([*lines, r"\end{table}"]) + "\n"


def plain(cell: Cell) -> str:
    if isinstance(cell, Quantity):
        return number(cell.value) + (f" [{span(cell.interval)}]" if cell.interval else "")
    if isinstance(cell, (int, float)):
        return number(cell)
    return NOTHING if cell is None else str(cell)


def number(value: float) -> str:
    """Five digits; what is not quite 0 or 1 is not shown as such."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("−∞" if value < 0 else "∞")
    if abs(value) >= 10_000:
        return f"{value:,.0f}" if abs(value) < 1e15 else f"{value:.3g}"
    shown = f"{value:.5g}"
    return f"{value:.9g}" if shown in ("0", "1", "-1") and float(shown) != value else shown


def span(interval: Sequence[float]) -> str:
    return f"{number(interval[0])} – {number(interval[1])}"


def facts(rows: Sequence[Sequence[Cell]]) -> Markup:
    """Names and values, as many side by side as there is room for; HTML only."""
    pairs = [tag("div", tag("dt", name), tag("dd", _html_cell(value))) for name, value in rows]
    return tag("dl", *pairs, class_="facts")


def _html_cell(cell: Cell) -> Markup | str:
    if isinstance(cell, Quantity):
        if cell.interval is None:
            return _exact(cell.value)
        low, high = cell.interval
        within = tag("span", _exact(low), " – ", _exact(high), class_="interval")
        return join([_exact(cell.value), " ", within])
    if isinstance(cell, (int, float)):
        return _exact(cell)
    if isinstance(cell, str) and not isinstance(cell, Markup):
        return _breakable(cell)
    return NOTHING if cell is None else cell


def _breakable(content: str) -> Markup:
    """A long path may go on in the next line after a dot."""
    pieces = re.split(r"(?<=[._/])(?=[^\W\d])", content)
    return join(
        part for place, piece in enumerate(pieces) for part in ((tag("wbr"), piece) if place else (piece,))
    )


def _exact(value: float) -> Markup:
    """Rounded for people; what was read stands in the attribute."""
    return tag("data", number(value), value=repr(value))


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def escape_markdown(content: str) -> str:
    """Neither markup nor the end of a cell."""
    line = " ".join(content.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]|~$#!])", r"\\\1", line)


LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "[": "{[}",
    "]": "{]}",
    "–": "--",
    "…": r"\ldots{}",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "−": "$-$",
    "∞": r"$\infty$",
    "→": r"$\rightarrow$",
    "±": r"$\pm$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
}
"""A row that begins with `[` would be an option of the line break before it."""


def escape_latex(content: str) -> str:
    return "".join(LATEX.get(character, character) for character in " ".join(content.split()))


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(escape_latex(cell) for cell in cells) + r" \\"
