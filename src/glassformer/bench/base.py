"""What a benchmark is: options, timed rows, ratios. It knows nothing of the command line."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import Field

from glassformer.core.registry import Kind
from glassformer.core.system import Machine, threads_set_to

if TYPE_CHECKING:
    from rich.console import RenderableType

Progress = Callable[[int, int], None]
"""How many samples of how many are taken."""

SAMPLE_SECONDS = 0.005
"""A call that is shorter is timed many times over, so that the clock's grain does not show."""


@dataclass(frozen=True)
class Result:
    name: str
    machine: Machine
    rows: list[dict[str, Any]]
    ratios: dict[str, float]
    complaint: str = ""
    """What was found wrong, in one line; a benchmark of wrong results has failed."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What was measured on, besides the machine."""

    def document(self) -> dict[str, Any]:
        return asdict(self)


class Benchmark(Kind):
    """A comparison of speeds. Its fields are its options on the command line."""

    repeats: int = Field(5, ge=1, le=10_000, description="samples of each form")
    threads: int | None = Field(None, ge=1, le=1024, description="CPU threads; none: what PyTorch chooses")

    def run(self, progress: Progress) -> Result:
        with threads_set_to(self.threads):
            return self.measure(progress)

    def measure(self, progress: Progress) -> Result:
        raise NotImplementedError

    def show(self, result: Result) -> RenderableType:
        """The rows as a person reads them."""
        raise NotImplementedError


@dataclass(frozen=True)
class Timing:
    """Seconds a call: the median over the samples, and between which values half of them lie."""

    median: float
    lower_quartile: float
    upper_quartile: float
    samples: int
    calls_per_sample: int

    def as_row(self) -> dict[str, Any]:
        return {
            "seconds": self.median,
            "seconds_quartiles": [self.lower_quartile, self.upper_quartile],
            "samples": self.samples,
            "calls_per_sample": self.calls_per_sample,
        }


def time_alternately(
    forms: Mapping[str, Callable[[], object]], repeats: int, progress: Progress
) -> dict[str, Timing]:
    """Each form once, then each once more: what disturbs the machine for a while disturbs all of them."""
    calls = {name: _calls_per_sample(form) for name, form in forms.items()}
    samples: dict[str, list[float]] = {name: [] for name in forms}
    for repeat in range(repeats):
        for number, (name, form) in enumerate(forms.items(), start=1):
            samples[name].append(_seconds(form, calls[name]))
            progress(repeat * len(forms) + number, repeats * len(forms))
    return {name: _summarise(taken, calls[name]) for name, taken in samples.items()}


def _calls_per_sample(form: Callable[[], object]) -> int:
    """Also the warm-up: first calls allocate and choose kernels, which only short ones feel."""
    seconds = _seconds(form, 1)
    if seconds < 20 * SAMPLE_SECONDS:
        seconds = _seconds(form, 1)
    return max(1, round(SAMPLE_SECONDS / max(seconds, 1e-9)))


def _seconds(form: Callable[[], object], calls: int) -> float:
    started = time.perf_counter()
    for _ in range(calls):
        form()
    return (time.perf_counter() - started) / calls


def _summarise(samples: list[float], calls: int) -> Timing:
    median = statistics.median(samples)
    lower, _, upper = (
        statistics.quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else [median] * 3
    )
    return Timing(median, lower, upper, len(samples), calls)
