"""The rows of a JSON array, one at a time, however large the array is.

What a row means is not this module's business, nor where the text comes from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from glassformer.data.text_files import MOST_LINE

SPACE = re.compile(r"[ \t\n\r]*")
DECODER = json.JSONDecoder()
BROKEN = "not valid JSON: "


class NotJson(Exception):
    """What is wrong, and where it stands."""

    def __init__(self, problem: str, line: int, column: int) -> None:
        self.problem, self.line, self.column = problem, line, column
        super().__init__(problem)


class ArrayRows:
    """Objects or lists in an array, each as soon as the whole of it has been read."""

    def __init__(self, pieces: Iterable[str]) -> None:
        """`pieces` joined are the document; no more of them are held than one row needs."""
        self._pieces = iter(pieces)
        self._text, self._position = "", 0
        self._line, self._column = 1, 1
        """Where the text that is held begins."""

    def __iter__(self) -> Iterator[Any]:
        self._take("[")
        sign = "]" if self._next() == "]" else ","
        self._position += sign == "]"
        while sign == ",":
            yield self._row()
            sign = self._take(",]")
        if self._next():
            raise self._wrong(f"{BROKEN}the array has ended, and more follows", self._position)

    def _row(self) -> Any:
        if self._next() not in ("{", "["):
            raise self._wrong("an object {...} or a list [...] belongs here", self._position)
        while True:
            try:
                row, self._position = DECODER.raw_decode(self._text, self._position)
                return row
            except json.JSONDecodeError as error:
                # It may be cut, or broken: that is known when more has been read.
                wrong = self._wrong(BROKEN + error.msg, error.pos)
                is_too_long = len(self._text) - self._position > MOST_LINE
                if is_too_long or not self._read_on():
                    raise wrong from None
            except (RecursionError, ValueError):
                problem = "nested too deeply, or too long a number"
                raise self._wrong(problem, self._position) from None

    def _take(self, signs: str) -> str:
        sign = self._next()
        if not sign or sign not in signs:
            expected = " or ".join(map(repr, signs))
            raise self._wrong(f"{BROKEN}{expected} belongs here", self._position)
        self._position += 1
        return sign

    def _next(self) -> str:
        """The next character that is no space; nothing at the end."""
        while True:
            found = SPACE.match(self._text, self._position)
            self._position = found.end() if found else self._position
            if self._position < len(self._text):
                return self._text[self._position]
            if not self._read_on():
                return ""

    def _read_on(self) -> bool:
        """Doubles what is held, so that a long row is not tried too often. False at the end."""
        self._line, self._column = self._place(self._position)
        held = [self._text[self._position :]]
        least = length = len(held[0])
        for piece in self._pieces:
            held.append(piece)
            length += len(piece)
            if length > 2 * least:
                break
        self._text, self._position = "".join(held), 0
        return length > least

    def _wrong(self, problem: str, position: int) -> NotJson:
        return NotJson(problem, *self._place(position))

    def _place(self, position: int) -> tuple[int, int]:
        line_feeds = self._text.count("\n", 0, position)
        if not line_feeds:
            return self._line, self._column + position
        return self._line + line_feeds, position - self._text.rfind("\n", 0, position)
