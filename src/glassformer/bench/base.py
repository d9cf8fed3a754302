"""Base of the benchmarks: options, timing, results, and the file of recorded results.

Results are recorded by benchmark and processor: ratios on one processor say little about another.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from glassformer.core.errors import user_error
from glassformer.core.registry import Kind
from glassformer.core.system import Machine, threads_set_to
from glassformer.storage.files import atomic_write

if TYPE_CHECKING:
    from rich.console import RenderableType


Progress = Callable[[int, int], None]
"""Called with the number of samples taken and the total."""

SAMPLE_SECONDS = 0.005
"""Seconds per sample: a shorter call is repeated, so that the resolution of the clock does not matter."""


@dataclass(frozen=True)
class Result:
    """Rows, ratios and machine of one benchmark run."""

    name: str
    machine: Machine
    rows: list[dict[str, Any]]
    ratios: dict[str, float]
    error: str = ""
    """Failure in one line; a benchmark with wrong results has failed."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Further facts about the measurement, besides the machine."""

    def document(self) -> dict[str, Any]:
        return asdict(self)


class Benchmark(Kind):
    """Comparison of speeds. Its fields are its options on the command line."""

    repeats: int = Field(5, ge=1, le=10_000, description="samples per form")
    threads: int | None = Field(None, ge=1, le=1024, description="CPU threads; none: PyTorch's default")

    def run(self, progress: Progress) -> Result:
        with threads_set_to(self.threads):
            return self.measure(progress)

    def measure(self, progress: Progress) -> Result:
        raise NotImplementedError

    def show(self, result: Result) -> RenderableType:
        """Return the rows as a table for the terminal."""
        raise NotImplementedError


@dataclass(frozen=True)
class Sizes:
    """Sizes of an encoder-decoder with one vocabulary and an output tied to its embedding."""

    layers: int
    heads: int
    width: int
    feed_forward: int
    vocabulary: int
    max_length: int
    dropout: float = 0.1


def is_importable(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


@dataclass(frozen=True)
class Timing:
    """Seconds per call: median and quartiles over the samples."""

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
    """Time the forms in turns, so that a disturbance of the machine affects all of them."""
    calls = {name: _calls_per_sample(form) for name, form in forms.items()}
    samples: dict[str, list[float]] = {name: [] for name in forms}
    for repeat in range(repeats):
        for number, (name, form) in enumerate(forms.items(), start=1):
            samples[name].append(_seconds(form, calls[name]))
            progress(repeat * len(forms) + number, repeats * len(forms))
    return {name: _summarise(taken, calls[name]) for name, taken in samples.items()}


def _calls_per_sample(form: Callable[[], object]) -> int:
    """Measure the calls per sample. These calls are also the warm-up, which matters for short calls only."""
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


DEFAULT = Path("docs") / "results" / "speed.json"
RATIO_TOLERANCE = 0.8
"""Fraction of a recorded ratio below which a new one counts as a regression."""


def record(path: Path, result: Result, command: str) -> Path:
    """Store the result under its name and processor, write the page again, and return the page's path."""
    stored = read(path) if path.exists() else {}
    date = datetime.now(UTC).date().isoformat()
    document = {"command": command, "date": date, **result.document()}
    stored.setdefault(result.name, {})[result.machine.cpu] = document
    atomic_write(path, (json.dumps(stored, indent=1, ensure_ascii=False) + "\n").encode())
    page = path.with_suffix(".md")
    atomic_write(page, _page(stored).encode())
    return page


def read(path: Path) -> dict[str, Any]:
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise user_error(
            f"cannot be read: {error}", path=str(path), hint="glassformer bench NAME --record FILE"
        ) from None
    if not isinstance(stored, dict) or not all(isinstance(by_cpu, dict) for by_cpu in stored.values()):
        raise user_error("is not a file of benchmark results", path=str(path))
    return stored


def regressions(path: Path, result: Result) -> list[str]:
    """Describe the ratios that are more than a fifth below those recorded on this processor."""
    stored = read(path).get(result.name, {}).get(result.machine.cpu)
    if stored is None:
        raise user_error(
            "has no result of this benchmark for this processor",
            path=str(path),
            value=f"{result.name}, {result.machine.cpu}",
            hint=f"glassformer bench {result.name} --record {path}",
        )
    return [
        f"{name} {now:.2f}, recorded {before:.2f}"
        for name, before in stored["ratios"].items()
        if (now := result.ratios.get(name, 0.0)) < RATIO_TOLERANCE * before
    ]


def _page(stored: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    parts = [
        "# Speed",
        "Each table is written by its command. Ratios compare forms timed in turns in one run.",
    ]
    for name, cpu, result in [(name, cpu, by_cpu[cpu]) for name, by_cpu in stored.items() for cpu in by_cpu]:
        machine = result["machine"]
        parts += [
            f"## {name}, {cpu}",
            f"`{result['command']}`, {result['date']}: {machine['cores']} cores,"
            f" {machine['threads']} threads; torch {machine['torch']}, Python {machine['python']}.",
            _table(result["rows"]),
            "Ratios: " + ", ".join(f"{key} {value:.2f}" for key, value in result["ratios"].items()) + ".",
        ]
        if result["notes"]:
            notes = [f"{key.replace('_', ' ')} {_cell(value)}" for key, value in result["notes"].items()]
            parts.append(f"Notes: {', '.join(notes)}.")
        if result.get("error"):
            parts.append(f"**Not reached**: {result['error']}.")
    return "\n\n".join(parts) + "\n"


def _table(rows: list[dict[str, Any]]) -> str:
    names = [name for name in rows[0] if not any(isinstance(row.get(name), list) for row in rows)]
    lines = [
        "| " + " | ".join(name.replace("_", " ") for name in names) + " |",
        "|" + "---|" * len(names),
    ]
    lines += ["| " + " | ".join(_cell(row.get(name)) for name in names) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
