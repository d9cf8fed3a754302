"""Base class of the benchmarks, with alternating timing, results, and the file that records them.

Results are recorded per benchmark and processor, because ratios on one processor say little about another.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
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
    from rich.table import Table

    from glassformer.runs.run import Run


Progress = Callable[[int, int], None]
"""Callback for a progress bar: number of samples taken so far, and total number of samples."""

SAMPLE_SECONDS = 0.005
"""Minimum duration of a sample in seconds. A shorter call is repeated, because clocks are imprecise."""


@dataclass(frozen=True)
class Result:
    """Result of one benchmark run: table rows, speed ratios, and the machine that measured them."""

    name: str
    machine: Machine
    rows: list[dict[str, Any]]
    ratios: dict[str, float]
    error: str = ""
    """One line that describes why the benchmark failed, such as wrong outputs; empty if it passed."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Further facts about the measurement by name, such as the number of sentences."""

    def document(self) -> dict[str, Any]:
        return asdict(self)


class Benchmark(Kind):
    """Base class for benchmarks. The fields of a subclass are its command-line options."""

    repeats: int = Field(5, ge=1, le=10_000, description="timed samples per implementation")
    threads: int | None = Field(None, ge=1, le=1024, description="CPU threads (default: as PyTorch chooses)")

    def run(self, progress: Progress) -> Result:
        with threads_set_to(self.threads):
            return self.measure(progress)

    def measure(self, progress: Progress) -> Result:
        raise NotImplementedError

    def show(self, result: Result) -> Table:
        """Return a table of the results for the terminal."""
        raise NotImplementedError


@dataclass(frozen=True)
class Sizes:
    """Sizes of an encoder-decoder whose output layer is tied to the one embedding that both sides share."""

    layers: int
    heads: int
    width: int
    feed_forward: int
    vocabulary: int
    max_length: int
    dropout: float = 0.1


@dataclass(frozen=True)
class Timing:
    """Time per call in seconds: median and quartiles over the samples."""

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
    """Return the timings of the calls by name. The calls take turns, so that a slow phase affects all."""
    calls = {name: _calls_per_sample(form) for name, form in forms.items()}
    samples: dict[str, list[float]] = {name: [] for name in forms}
    for repeat in range(repeats):
        for number, (name, form) in enumerate(forms.items(), start=1):
            samples[name].append(seconds_per_call(form, calls[name]))
            progress(repeat * len(forms) + number, repeats * len(forms))
    return {name: _summarise(taken, calls[name]) for name, taken in samples.items()}


def _calls_per_sample(form: Callable[[], object]) -> int:
    """Return how many calls fill one sample. The calls made here also serve as warm-up."""
    seconds = seconds_per_call(form)
    if seconds < 20 * SAMPLE_SECONDS:
        seconds = seconds_per_call(form)
    return max(1, round(SAMPLE_SECONDS / max(seconds, 1e-9)))


def seconds_per_call(form: Callable[[], object], calls: int = 1) -> float:
    """Return the mean duration of a call in seconds."""
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


def run_command(command: Sequence[str], **environment: str) -> tuple[float, str]:
    """Run a command, with these environment variables set, and return its seconds and standard output."""
    variables = {**os.environ, **environment}
    started = time.perf_counter()
    printed = subprocess.run(command, check=True, capture_output=True, text=True, env=variables).stdout
    return time.perf_counter() - started, printed


def empty_table(title: str, texts: Sequence[str], numbers: Sequence[str], caption: str = "") -> Table:
    """Return a table without rows: columns for texts on the left, right-aligned columns for numbers."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", caption=caption or None, caption_justify="left")
    for heading in texts:
        table.add_column(heading, overflow="fold")
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def trained_run(name: str, source: str, training_steps: int, folder: str) -> Run:
    """Return the run that `source` names, or a model of this preset or config, trained once and reused."""
    from glassformer.runs.experiment import presets, resolve
    from glassformer.runs.folder import RunFolder
    from glassformer.runs.run import Run
    from glassformer.runs.session import TrainingSession
    from glassformer.training.progress import LineReporter

    if source not in presets() and RunFolder(Path(source)).results():
        return Run(source, device="cpu")
    changes = {
        "training.max_steps": training_steps,
        "training.max_epochs": None,
        "training.validate_every": training_steps,
        "evaluation.max_examples": 8,
    }
    config = resolve(source, changes)
    own = RunFolder(Path(folder) / f"bench-{name}-{config.fingerprint()[:8]}")
    if not own.results():
        TrainingSession(config, own, LineReporter()).run()
    return Run(own.path, device="cpu")


DEFAULT = Path("docs") / "results" / "speed.json"
"""File of recorded results that `--record` and `--check` use if they are given without FILE."""
RATIO_TOLERANCE = 0.8
"""A new ratio below this fraction of the recorded ratio counts as a regression."""


def record(path: Path, result: Result, command: str) -> Path:
    """Store the result in a JSON file, rewrite the Markdown page beside it, and return the page's path."""
    stored = read(path) if path.exists() else {}
    date = datetime.now(UTC).date().isoformat()
    document = {"command": command, "date": date, **result.document()}
    stored.setdefault(result.name, {})[result.machine.cpu] = document
    atomic_write(path, (json.dumps(stored, indent=1, ensure_ascii=False) + "\n").encode())
    page = path.with_suffix(".md")
    atomic_write(page, _page(stored).encode())
    return page


def read(path: Path) -> dict[str, Any]:
    """Read a file of recorded results: benchmark name → processor → result."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise user_error(
            f"the recorded results cannot be read: {error}",
            path=str(path),
            hint="create the file with: glassformer bench NAME --record FILE",
        ) from None
    if not isinstance(stored, dict) or not all(isinstance(by_cpu, dict) for by_cpu in stored.values()):
        raise user_error(
            "this is not a file of benchmark results", path=str(path), hint="name a file that --record wrote"
        )
    return stored


def regressions(path: Path, result: Result) -> list[str]:
    """Return one line per speed ratio that is more than a fifth below the one recorded on this processor."""
    stored = read(path).get(result.name, {}).get(result.machine.cpu)
    if stored is None:
        raise user_error(
            "the file has no result of this benchmark on this processor",
            path=str(path),
            value=f"{result.name}, {result.machine.cpu}",
            hint=f"record one with: glassformer bench {result.name} --record {path}",
        )
    return [
        f"{name} {now:.2f}, recorded {before:.2f}"
        for name, before in stored["ratios"].items()
        if (now := result.ratios.get(name, 0.0)) < RATIO_TOLERANCE * before
    ]


def _page(stored: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    parts = [
        "# Speed",
        "Each table is written by its command. Ratios compare implementations that took turns in one run.",
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
    every = dict.fromkeys(name for row in rows for name in row)
    names = [name for name in every if not any(isinstance(row.get(name), list) for row in rows)]
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
