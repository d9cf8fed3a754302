"""What a check is: a name, a number, its limit, a verdict. It knows nothing of models or machines."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from glassformer.errors import shorten

Verdict = Literal["passed", "warning", "skipped", "failed"]
Value = float | int | str | None
Progress = Callable[[int, int], None]
"""How many checks of how many are done."""


class DoesNotApply(Exception):
    """There is nothing to check here; the reason is said, and nothing failed."""


@dataclass(frozen=True)
class Measurement:
    """What a check found. `limit` is what `value` was held to; None where the value is a fact, not a test."""

    verdict: Verdict
    value: Value
    limit: Value
    detail: str
    is_lower_limit: bool = False


Measure = Callable[[], Measurement]


def at_most(value: float, limit: float, detail: str) -> Measurement:
    return Measurement("passed" if value <= limit else "failed", value, limit, detail)


def at_least(value: float, limit: float, detail: str) -> Measurement:
    verdict: Verdict = "passed" if value >= limit else "failed"
    return Measurement(verdict, value, limit, detail, is_lower_limit=True)


@dataclass(frozen=True)
class Check:
    name: str
    measurement: Measurement
    seconds: float

    @property
    def passed(self) -> bool:
        return self.measurement.verdict != "failed"

    def document(self) -> dict[str, Any]:
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
    what: str
    checks: list[Check]
    note: str = ""

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    def document(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "passed": self.passed,
            "checks": [check.document() for check in self.checks],
            "note": self.note,
        }

    def __getitem__(self, name: str) -> Check:
        return next(check for check in self.checks if check.name == name)


def run_checks(
    measures: Mapping[str, Measure], progress: Progress | None = None, done: list[Check] | None = None
) -> list[Check]:
    """Every check, whatever becomes of those before it; one that raises has failed."""
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
        # A model under examination may fail in any way; the other checks say more about why.
        return Measurement("failed", None, None, shorten(f"raised {type(error).__name__}: {error}", 200))
