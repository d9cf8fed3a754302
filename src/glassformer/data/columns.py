"""Which columns of a table are asked for, whether its first line names them, and how that is told.

One rule for training and for `data check`: what the check says of a file is what training makes of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from glassformer.core.errors import UserError, shorten, user_error

Column = str | int

USUAL_NAMES = {
    "input": ("input", "text", "sentence", "review", "source", "inp_expression"),
    "target": ("target", "label", "class", "sentiment", "out_expression"),
}
"""Of the columns of each role, if none is asked for and the task's own name is not there."""

HINT_LINES = 20


@dataclass(frozen=True)
class Reading:
    """How a table is read, as its first line decides it."""

    first: Sequence[str]
    has_header: bool
    positions: Mapping[str, int]
    is_as_asked: bool
    """Whether every column has the name or the number that it was asked for by."""
    hint: str = ""
    delimiter: str = ""
    """Of a CSV file."""

    def told(self) -> str:
        return ("with semicolons between columns, " if self.delimiter == "semicolon" else "") + self._told()

    def _told(self) -> str:
        if self.has_header:
            taken = ", ".join(f"{role} = {self.first[place]!r}" for role, place in self.positions.items())
            return f"with a header line: {taken}"
        taken = ", ".join(f"{role} = column {place}" for role, place in self.positions.items())
        begins = shorten(" | ".join(self.first), 60)
        hint = f"; {self.hint}" if self.hint else ""
        return f"without a header line: {taken}; it begins with {begins!r}{hint}"


@dataclass(frozen=True)
class Wanted:
    """Which columns are asked for."""

    asked: Mapping[str, Column | None]
    default_names: Mapping[str, str]
    header: bool | None = None

    def name_in(self, role: str, present: Iterable[str]) -> str | None:
        """Which of these names the role has if nobody says it: the task's own, or else a usual one."""
        plain: dict[str, str] = {}
        for name in present:
            plain.setdefault(name.strip().casefold(), name)
        candidates = (self.default_names[role].casefold(), *USUAL_NAMES.get(role, ()))
        return next((plain[name] for name in candidates if name in plain), None)

    def names(self, row: object) -> dict[str, Column]:
        """For rows whose values may have names of their own, of which this is the first."""
        present = row if isinstance(row, dict) else ()
        return {
            role: (self.name_in(role, present) or self.default_names[role]) if column is None else column
            for role, column in self.asked.items()
        }

    def has_header(self, first: Sequence[str]) -> bool:
        """Not if a name of one role alone is there: it may well be a word of the first example."""
        if self.header is not None:
            return self.header
        if any(column is not None for column in self.asked.values()):
            return any(isinstance(column, str) for column in self.asked.values())
        return self.is_named_in(first)

    def is_named_in(self, first: Sequence[str]) -> bool:
        """Whether a line has the name of each role that is not asked for by number."""
        named = {role: column for role, column in self.asked.items() if not isinstance(column, int)}
        return bool(named) and all(
            self.name_in(role, first) is not None if column is None else column in first
            for role, column in named.items()
        )

    @property
    def least_columns(self) -> int:
        numbers = [column + 1 for column in self.asked.values() if isinstance(column, int)]
        return max(len(self.asked), *numbers, 1)

    def reading(self, first: Sequence[str], place: str, others: Iterable[Sequence[str]] = ()) -> Reading:
        """For the fields of a table whose first line is `first`; of `others` the first few give a hint."""
        has_header = self.has_header(first)
        found = {
            role: self.name_in(role, first) if column is None and has_header else column
            for role, column in self.asked.items()
        }
        positions = {
            role: self._position(role, column, first, has_header, place)
            for role, column in found.items()
            if column is not None
        }
        for number, role in enumerate(self.asked):
            if role not in positions:
                # Its own place, or the first that nobody asked for.
                order = [number, *range(len(first))]
                free = next((place for place in order if place not in positions.values()), len(first))
                positions[role] = self._position(role, free, first, has_header, place)
        is_as_asked = has_header and all(
            column is not None or found[role] == self.default_names[role]
            for role, column in self.asked.items()
        )
        in_order = {role: positions[role] for role in self.asked}
        hint = "" if has_header else self._hint(first, list(islice(others, HINT_LINES)))
        return Reading(first, has_header, in_order, is_as_asked, hint)

    def _position(self, role: str, column: Column, first: Sequence[str], has_header: bool, place: str) -> int:
        if isinstance(column, str):
            if not has_header:
                raise user_error(
                    f"the column {column!r} is asked for by name, but header is false",
                    path=place,
                    hint="numbers from 0, or task.data.header=true",
                )
            if column not in first:
                raise missing_column(column, first, place)
            return list(first).index(column)
        if not 0 <= column < len(first):
            raise user_error(
                f"no column {column}: the first line has {count(len(first), 'column')}, numbered from 0",
                path=place,
                hint=f"task.data.columns={{{role}: {len(first) - 1}}}, or another task.data.format",
            )
        return column

    def _hint(self, first: Sequence[str], others: Sequence[Sequence[str]]) -> str:
        """A line that is an example to us, while whoever wrote it may have meant a header."""
        has_name = any(self.name_in(role, first) is not None for role in self.asked)
        if self.header is not None or not (has_name or _stands_above_numbers(first, others)):
            return ""
        if any(column is not None for column in self.asked.values()):
            return "if that is a header: task.data.header=true"
        names = ", ".join(f"{role}: NAME" for role in self.asked)
        return f"if that is a header, name its columns: task.data.columns={{{names}}}"


def _stands_above_numbers(first: Sequence[str], others: Sequence[Sequence[str]]) -> bool:
    """Whether it has a word where all others have a number, be it with a comma."""
    whole = [row for row in others if len(row) == len(first)]
    return len(whole) > 1 and any(
        not is_number(word) and all(is_number(other.replace(",", ".")) for other in below)
        for word, *below in zip(first, *whole, strict=True)
    )


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def missing_column(name: str, present: Sequence[str], place: str) -> UserError:
    hint = "task.data.columns={input: NAME, target: NAME}"
    return user_error(f"no column {name!r}", path=place, value=name, allowed=present, hint=hint)


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
