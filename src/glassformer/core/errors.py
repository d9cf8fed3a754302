"""Errors that a user can act on: path, value, allowed values and a hint.

Any other exception is a bug in the package and keeps its traceback.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass


class UserError(Exception):
    """Error caused by the user's input. The CLI prints it without a traceback and exits with code 2."""

    def __init__(self, *details: ErrorDetail) -> None:
        self._details = list(details)
        super().__init__(str(self))

    @property
    def details(self) -> list[ErrorDetail]:
        """Mistakes in the user's input, the first of which is shown in full."""
        return self._details

    def __str__(self) -> str:
        first, *rest = self.details
        lines = first.lines()
        if rest:
            lines[4:] = []
            others = "; ".join(f"{detail.path}: {detail.message}" for detail in rest)
            lines.append(f"  also:    {shorten(others, 160)}")
        return "\n".join(lines)


@dataclass(eq=False, repr=False)
class ErrorDetail(UserError, ValueError):
    """One mistake in the user's input: config path or file, value given, allowed values, and a hint.

    It is a `UserError` itself, so that callers of the library catch one class. It is a `ValueError` too,
    because pydantic requires one of a validator.
    """

    message: str
    _: KW_ONLY
    path: str = ""
    value: object = None
    allowed: Sequence[str] = ()
    hint: str = ""

    @property
    def details(self) -> list[ErrorDetail]:
        """List of this mistake alone."""
        return [self]

    def lines(self) -> list[str]:
        """Return the text of the error as two to four lines."""
        message = shorten(self.message, 300)
        lines = [f"{self.path}: {message}" if self.path else message]
        if self.value is not None:
            lines.append(f"  given:   {shorten(repr(self.value))}")
        if self.allowed:
            lines.append(f"  allowed: {join_names(self.allowed, 160, self.value)}")
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


def user_error(
    message: str, *, path: str = "", value: object = None, allowed: Sequence[str] = (), hint: str = ""
) -> UserError:
    """Return a `UserError` with one `ErrorDetail`."""
    return UserError(ErrorDetail(message, path=path, value=value, allowed=allowed, hint=hint))


OUT_OF_MEMORY = re.compile("can't allocate memory|out of memory")
"""Pattern that matches PyTorch's error messages for a failed allocation."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if the error means that Python or PyTorch could not allocate memory."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(str(error)) is not None
    )


SHORTEST_PREFIX = 2
"""Minimum number of characters with which a name must begin to be suggested."""


def near_match(value: object, allowed: Iterable[str]) -> str | None:
    """Return the allowed name that starts with `value`, or else the most similar; None if none is similar."""
    if not isinstance(value, str):
        return None
    lowered = {name.lower(): name for name in allowed}
    if value.lower() in lowered:
        return lowered[value.lower()]
    longer = [name for name in lowered if name.startswith(value.lower())]
    if len(value) >= SHORTEST_PREFIX and longer:
        return lowered[min(longer, key=len)]
    matches = difflib.get_close_matches(value.lower(), lowered, n=1, cutoff=0.6)
    return lowered[matches[0]] if matches else None


def join_names(names: Sequence[str], width: int, value: object = None) -> str:
    """Join names with commas, in at most `width` characters.

    If they do not fit, put the names most similar to `value` first, drop the last ones, and add `…`.
    """
    text = ", ".join(names)
    if len(text) <= width:
        return text
    if isinstance(value, str):
        text = ", ".join(sorted(names, key=lambda name: -_similarity(value.lower(), name.lower())))
    shown = text[: width - len(", …")].rpartition(",")[0]
    return f"{shown}, …" if shown else shorten(text, width)


def _similarity(value: str, name: str) -> float:
    """Return the similarity of a name to `value`: 0 to 1, or 2 if the name starts with `value`."""
    is_prefix = len(value) >= SHORTEST_PREFIX and name.startswith(value)
    return 2.0 if is_prefix else difflib.SequenceMatcher(None, name, value).ratio()


def shorten(text: str, width: int = 100) -> str:
    """Return the text with white space collapsed, cut to `width` characters."""
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"
