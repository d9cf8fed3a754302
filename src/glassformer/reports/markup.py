"""HTML that cannot be written by accident: a string is text and is escaped, unless it was made here."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

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
