"""Errors that a user can act on: path, value, allowed values and a hint.

Any other exception is a fault of the package and keeps its traceback.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass


@dataclass(eq=False, repr=False)
class ErrorDetail(ValueError):
    """One mistake in the input: its path, the value given, and a hint how to correct it."""

    message: str
    _: KW_ONLY
    path: str = ""
    value: object = None
    allowed: Sequence[str] = ()
    hint: str = ""

    def lines(self) -> list[str]:
        """Format the detail in two to four lines."""
        message = shorten(self.message, 300)
        lines = [f"{self.path}: {message}" if self.path else message]
        if self.value is not None:
            lines.append(f"  given:   {shorten(repr(self.value))}")
        if self.allowed:
            lines.append(f"  allowed: {join_names(self.allowed, 160)}")
        near = near_match(self.value, self.allowed)
        if near:
            lines.append(f"  did you mean {near!r}?")
        elif self.hint:
            lines.append(f"  try:     {self.hint}")
        if len(lines) == 1:
            lines.append("  try:     glassformer --help")
        return lines

    def __str__(self) -> str:
        return "\n".join(self.lines())


class UserError(Exception):
    """Input that cannot be used. The CLI prints it without a traceback and exits with code 2."""

    def __init__(self, *details: ErrorDetail) -> None:
        self.details = list(details)
        super().__init__(str(self))

    def __str__(self) -> str:
        first, *rest = self.details
        lines = first.lines()
        if rest:
            lines[4:] = []
            others = "; ".join(f"{detail.path}: {detail.message}" for detail in rest)
            lines.append(f"  also:    {shorten(others, 160)}")
        return "\n".join(lines)


def user_error(
    message: str, *, path: str = "", value: object = None, allowed: Sequence[str] = (), hint: str = ""
) -> UserError:
    """Make a `UserError` with one detail."""
    return UserError(ErrorDetail(message, path=path, value=value, allowed=allowed, hint=hint))


OUT_OF_MEMORY = re.compile("can't allocate memory|out of memory")
"""Pattern of PyTorch's messages when an allocation fails."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an error is a failed allocation, of Python or of PyTorch."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(str(error)) is not None
    )


def near_match(value: object, allowed: Iterable[str]) -> str | None:
    """Return the allowed name that is most similar to `value`, or None if none is similar."""
    if not isinstance(value, str):
        return None
    lowered = {name.lower(): name for name in allowed}
    matches = difflib.get_close_matches(value.lower(), lowered, n=1, cutoff=0.6)
    return lowered[matches[0]] if matches else None


def join_names(names: Sequence[str], width: int) -> str:
    """Join names with commas, and cut the list between names to fit `width` characters."""
    text = ", ".join(names)
    if len(text) <= width:
        return text
    shown = text[: width - len(", …")].rpartition(",")[0]
    return f"{shown}, …" if shown else shorten(text, width)


def shorten(text: str, width: int = 100) -> str:
    """Collapse white space and cut the text to `width` characters."""
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"
