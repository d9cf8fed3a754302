"""Options of a foreign model's config, read with their types checked, and unsupported values refused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from glassformer.core.errors import ErrorDetail

MAX_SIZE = 1_000_000
"""Largest size that an option may state: a width, a number of layers, a vocabulary."""


class Options:
    """Options of a foreign config, such as the content of a `config.json`."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def integer(self, name: str, default: int | None = None, least: int = 1) -> int:
        """Return a whole number from `least` to 1,000,000. If the option is missing or null: `default`."""
        value = self.values.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_SIZE:
            raise _wrong(name, value, f"a whole number from {least} to {MAX_SIZE:,}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Return a finite number of at least 0. If the option is missing or null: `default`."""
        value = self.values.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise _wrong(name, value, "a number of at least 0")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false. If the option is missing or null: `default`."""
        value = self.values.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise _wrong(name, value, "true or false")
        return value

    def require(self, needed: Mapping[str, object]) -> None:
        """Raise an ErrorDetail if an option has another value than `needed`. A missing option is accepted."""
        for name, value in needed.items():
            given = self.values.get(name)
            if given is not None and given != value:
                raise unsupported(name, given, [str(value)])

    def choice(self, name: str, default: str, allowed: Sequence[str]) -> str:
        """Return one of the allowed names. If the option is missing or null: `default`."""
        value = self.values.get(name)
        value = default if value is None else value
        if value not in allowed:
            raise unsupported(name, value, allowed)
        return str(value)


def unsupported(name: str, given: object, allowed: Sequence[str]) -> ErrorDetail:
    """Return the error for a value that the blocks of this package do not support."""
    return ErrorDetail(
        "our blocks do not support this value",
        path=f"config.{name}",
        value=given,
        allowed=allowed,
        hint="convert a model whose config has an allowed value",
    )


def _wrong(name: str, value: object, expected: str) -> ErrorDetail:
    problem = "is missing" if value is None else f"is not {expected}"
    return ErrorDetail(
        f"this option {problem}", path=f"config.{name}", value=value, hint="use a complete config.json"
    )
