"""Errors that a user can act on: path, value, allowed values and a hint."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence


class Problem(ValueError):
    """One thing that is wrong: where, what was given, what would be right."""

    def __init__(
        self,
        problem: str,
        *,
        place: str = "",
        value: object = None,
        allowed: Sequence[str] = (),
        remedy: str = "",
    ) -> None:
        self.problem = problem
        self.place = place
        self.value = value
        self.allowed = list(allowed)
        self.remedy = remedy
        super().__init__(problem)

    def lines(self) -> list[str]:
        problem = shorten(self.problem, 300)
        head = f"{self.place}: {problem}" if self.place else problem
        lines = [head]
        if self.value is not None:
            lines.append(f"  given:   {shorten(repr(self.value))}")
        if self.allowed:
            lines.append(f"  allowed: {listed(self.allowed, 160)}")
        near = near_match(self.value, self.allowed)
        if near:
            lines.append(f"  did you mean {near!r}?")
        elif self.remedy:
            lines.append(f"  try:     {self.remedy}")
        if len(lines) == 1:
            lines.append("  try:     glassformer --help")
        return lines

    def __str__(self) -> str:
        return "\n".join(self.lines())


NO_MEMORY = re.compile("can't allocate memory|out of memory")
"""In PyTorch's errors."""


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and NO_MEMORY.search(str(error)) is not None
    )


class UserError(Exception):
    """What the user gave cannot be used: shown in a few lines, exit code 2, no traceback."""

    def __init__(self, *problems: Problem) -> None:
        self.problems = list(problems)
        super().__init__(str(self))

    def __str__(self) -> str:
        first, *rest = self.problems
        lines = first.lines()
        if rest:
            lines[4:] = []
            others = "; ".join(f"{problem.place}: {problem.problem}" for problem in rest)
            lines.append(f"  also:    {shorten(others, 160)}")
        return "\n".join(lines)


def user_error(
    problem: str, *, place: str = "", value: object = None, allowed: Sequence[str] = (), remedy: str = ""
) -> UserError:
    return UserError(Problem(problem, place=place, value=value, allowed=allowed, remedy=remedy))


def near_match(value: object, allowed: Iterable[str]) -> str | None:
    if not isinstance(value, str):
        return None
    lowered = {name.lower(): name for name in allowed}
    matches = difflib.get_close_matches(value.lower(), lowered, n=1, cutoff=0.6)
    return lowered[matches[0]] if matches else None


def listed(names: Sequence[str], width: int) -> str:
    """With commas, as many of them as there is room for."""
    text = ", ".join(names)
    if len(text) <= width:
        return text
    kept = text[: width - len(", …")].rpartition(",")[0]
    return f"{kept}, …" if kept else shorten(text, width)


def shorten(text: str, width: int = 100) -> str:
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"
