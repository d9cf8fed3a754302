"""HTML, SVG and Markdown with escaped text, and numbers formatted for display."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence

CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
"""Control characters and surrogates, which an HTML file must not contain."""
DIRECTION_CONTROLS = re.compile("[\u202a-\u202e\u2066-\u2069]")
"""Characters that reverse the direction of the text after them, so that it reads as another text."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
VOID_ELEMENTS = frozenset({"img", "wbr"})
"""HTML elements without a closing tag."""


class Markup(str):
    """String of HTML that is already escaped, so that `escape` leaves it unchanged."""

    __slots__ = ()


def escape(content: object) -> Markup:
    """Return text escaped for HTML. `Markup` is returned unchanged."""
    if isinstance(content, Markup):
        return content
    return Markup(html.escape(CONTROL_CHARACTERS.sub(REPLACEMENT, str(content)), quote=True))


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """Return an HTML or SVG element, such as `tag("td", "a < b", class_="x")`.

    An attribute that is None or False is omitted. An attribute that is True has no value.
    """
    written = ""
    for key, value in attributes.items():
        key = key.removesuffix("_").replace("_", "-")
        if value is True:
            written += f" {key}"
        elif value is not None and value is not False:
            written += f' {key}="{escape(value)}"'
    if name in VOID_ELEMENTS:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def join(children: Iterable[object]) -> Markup:
    """Return the children escaped and concatenated, without those that are None."""
    return Markup("".join(escape(child) for child in children if child is not None))


def plain_line(content: object) -> str:
    """Return text as one line without control characters and without changes of direction."""
    line = " ".join(str(content).split())
    return DIRECTION_CONTROLS.sub(REPLACEMENT, CONTROL_CHARACTERS.sub(REPLACEMENT, line))


def escape_markdown(content: object) -> str:
    """Return text as one line of Markdown, in which special characters and addresses stay text."""
    line = plain_line(content).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = re.sub(r"([\\`*_{}\[\]|~$#!])", r"\\\1", line)
    return line.replace("://", "&#58;//").replace("www.", "www&#46;").replace("@", "&#64;")


def markdown_row(cells: Sequence[str]) -> str:
    """Return a row of a Markdown table from cells that are escaped."""
    return f"| {' | '.join(cells)} |"


def markdown_code(content: object) -> str:
    """Return text as inline code of Markdown, not for tables. Backticks in it do not end the code."""
    line = plain_line(content)
    fence = "`" * (_longest_run(line) + 1)
    space = " " if not line or "`" in (line[0], line[-1]) else ""
    return f"{fence}{space}{line}{space}{fence}"


def code_block(language: str, text: str) -> str:
    """Return text as a block of code of Markdown. Backticks in it do not end the block."""
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _longest_run(text: str) -> int:
    """Return the largest number of backticks in a row."""
    return max(map(len, re.findall("`+", text)), default=0)


def format_number(value: float | bool) -> str:
    """Return a number as text with five significant digits, or nine if it would round to 0 or 1."""
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


def format_interval(interval: Sequence[float]) -> str:
    """Return an interval as text in the form `low – high`."""
    return f"{format_number(interval[0])} – {format_number(interval[1])}"
