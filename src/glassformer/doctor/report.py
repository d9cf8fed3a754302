"""Results of checks: measured value, limit and verdict. Independent of PyTorch, models and machines."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from glassformer.core.errors import shorten

Verdict = Literal["passed", "warning", "skipped", "failed"]
Value = float | int | str | None
Progress = Callable[[int, int], None]
"""Callback: number of checks done, number of checks in all."""


class DoesNotApply(Exception):
    """The check does not apply here, for the given reason. It is reported as skipped, not failed."""


@dataclass(frozen=True)
class Measurement:
    """Result of a check. `limit` bounds `value`; None if the value is informative only."""

    verdict: Verdict
    value: Value
    limit: Value
    detail: str
    is_lower_limit: bool = False


Measure = Callable[[], Measurement]


def at_most(value: float, limit: float, detail: str) -> Measurement:
    """Return a measurement that passes if the value is at most the limit."""
    return Measurement("passed" if value <= limit else "failed", value, limit, detail)


def at_least(value: float, limit: float, detail: str) -> Measurement:
    """Return a measurement that passes if the value is at least the limit."""
    verdict: Verdict = "passed" if value >= limit else "failed"
    return Measurement(verdict, value, limit, detail, is_lower_limit=True)


@dataclass(frozen=True)
class Check:
    """A named measurement and the time it took."""

    name: str
    measurement: Measurement
    seconds: float

    @property
    def passed(self) -> bool:
        return self.measurement.verdict != "failed"

    def document(self) -> dict[str, Any]:
        """Return the check for JSON."""
        found = self.measurement
        return {
            "name": self.name,
            "passed": self.passed,
            "verdict": found.verdict,
            "value": found.value,
            "limit": found.limit,
            "limit_is": "at least" if found.is_lower_limit else "at most",
            "detail": found.detail,
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True)
class Report:
    """All checks of one model, run or machine."""

    source: str
    checks: list[Check]
    note: str = ""

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    def document(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {
            "source": self.source,
            "passed": self.passed,
            "checks": [check.document() for check in self.checks],
            "note": self.note,
        }

    def __getitem__(self, name: str) -> Check:
        return next(check for check in self.checks if check.name == name)


def run_checks(
    measures: Mapping[str, Measure], progress: Progress | None = None, done: list[Check] | None = None
) -> list[Check]:
    """Run every check, also after failures; a check that raises an exception fails."""
    checks = list(done or [])
    total = len(checks) + len(measures)
    for name, measure in measures.items():
        if progress is not None:
            progress(len(checks), total)
        started = time.perf_counter()
        checks.append(Check(name, _measure(measure), time.perf_counter() - started))
    return checks


def _measure(measure: Measure) -> Measurement:
    try:
        return measure()
    except DoesNotApply as reason:
        return Measurement("skipped", None, None, f"does not apply: {reason}")
    except Exception as error:
        # A broken model may raise anything; the other checks help to find the cause.
        return Measurement("failed", None, None, shorten(f"raised {type(error).__name__}: {error}", 200))
