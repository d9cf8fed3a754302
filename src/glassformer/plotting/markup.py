"""HTML and SVG elements with escaped text, and numbers formatted for display."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence

CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
"""Control characters and surrogates, which an HTML file must not contain."""
VOID_ELEMENTS = frozenset({"img", "wbr"})
"""HTML elements without a closing tag."""


class Markup(str):
    """String of HTML that is already escaped, so that `escape` leaves it unchanged."""

    __slots__ = ()


def escape(content: object) -> Markup:
    """Return text escaped for HTML. `Markup` is returned unchanged."""
    if isinstance(content, Markup):
        return content
    return Markup(html.escape(CONTROL_CHARACTERS.sub("\N{REPLACEMENT CHARACTER}", str(content)), quote=True))


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
