"""Check results: measured value, limit and verdict. This module does not import PyTorch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from glassformer.core.errors import shorten

if TYPE_CHECKING:
    from glassformer.interchange.export import Destination

Verdict = Literal["passed", "warning", "skipped", "failed"]
Value = float | int | str | None
Progress = Callable[[int, int], None]
"""Callback that receives the number of finished checks and the total number of checks."""


class DoesNotApply(Exception):
    """Raised by a check that does not apply, with the reason. The check is reported as skipped."""


@dataclass(frozen=True)
class Measurement:
    """Result of one check: a measured value and its limit, which is None if the value is only informative."""

    verdict: Verdict
    value: Value
    limit: Value
    detail: str
    is_lower_limit: bool = False


Measure = Callable[[], Measurement]


def at_most(value: float, limit: float, detail: str) -> Measurement:
    """Return a measurement that passes if the value is at most the limit."""
    return Measurement("passed" if value <= limit else "failed", value, limit, detail)


def at_least(value: float, limit: float, detail: str, otherwise: Verdict = "failed") -> Measurement:
    """Return a measurement that passes if the value is at least the limit.

    Its verdict is `otherwise` if the value is lower.
    """
    verdict: Verdict = "passed" if value >= limit else otherwise
    return Measurement(verdict, value, limit, detail, is_lower_limit=True)


@dataclass(frozen=True)
class Check:
    """One finished check: its name, its measurement and its duration."""

    name: str
    measurement: Measurement
    seconds: float

    @property
    def passed(self) -> bool:
        return self.measurement.verdict != "failed"

    def document(self) -> dict[str, Any]:
        """Return the check as a JSON-serialisable dict."""
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
    """Results of all checks of one model, run or machine."""

    source: str
    checks: list[Check]
    note: str = ""
    exports: list[Destination] | None = None
    """Targets that the model can be exported to, and what keeps it from others; None for a machine."""

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    def document(self) -> dict[str, Any]:
        """Return the report as a JSON-serialisable dict."""
        document = {
            "source": self.source,
            "passed": self.passed,
            "checks": [check.document() for check in self.checks],
            "note": self.note,
        }
        exports = self.exports
        return document if exports is None else document | {"exports": [each.document() for each in exports]}

    def __getitem__(self, name: str) -> Check:
        return next(check for check in self.checks if check.name == name)


def run_checks(
    measures: Mapping[str, Measure], progress: Progress | None = None, done: list[Check] | None = None
) -> list[Check]:
    """Run every check; return the results in `done` and the new ones. A check that raises an error fails."""
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
