"""How soon a command answers: help, a prediction, and what a small run takes beside its training."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal

from glassformer.bench.base import Benchmark, Progress, Result
from glassformer.core.registry import register
from glassformer.core.system import machine

if TYPE_CHECKING:
    from rich.console import RenderableType

RUN_OPTIONS = (
    "task.length=8",
    "task.train_examples=512",
    "training.max_steps=20",
    "training.schedule.warmup_steps=1",
)
IN_ONE_PROCESS = """
import json, sys, time
from pathlib import Path
from glassformer.runs.session import train

seconds = []
for number in range(3):
    started = time.perf_counter()
    run = train("reversal", sys.argv[2:], run=Path(sys.argv[1]) / f"trial-{number}")
    results = run.folder.results()
    seconds.append(time.perf_counter() - started - results["seconds"])
print(json.dumps({"seconds": min(seconds[1:])}))
"""
CALMLY = "import gc; gc.disable(); import torch; gc.freeze()"
"""The quickest way to PyTorch, which our commands take: to be measured by the other would flatter them."""
LIMITS = {"help": 0.3, "predict": 3.0, "predict_beyond_torch": 0.5, "run_beside_training": 1.0}
"""Seconds that a person, or a sweep, should wait at most."""


@register
class StartupBenchmark(Benchmark):
    """Seconds until a command answers, and what a small run takes beside its training."""

    kind: Literal["startup"] = "startup"

    def measure(self, progress: Progress) -> Result:
        with TemporaryDirectory(prefix="glassformer-bench-") as folder:
            run = Path(folder) / "run"
            ours = [sys.executable, "-m", "glassformer"]
            _seconds([*ours, "train", "reversal", *RUN_OPTIONS, "--run", str(run), "--json"])
            commands = {
                "python": [sys.executable, "-c", ""],
                "import_torch": [sys.executable, "-c", "import torch"],
                "import_torch_calmly": [sys.executable, "-c", CALMLY],
                "help": [*ours, "--help"],
                "predict": [*ours, "predict", str(run), "1 2 3 4 5 6 7 8", "--json"],
            }
            samples: dict[str, list[float]] = {name: [] for name in commands}
            for repeat in range(self.repeats):
                for number, (name, command) in enumerate(commands.items(), start=1):
                    samples[name].append(_seconds(command))
                    progress(repeat * len(commands) + number, self.repeats * len(commands))
            trial = [sys.executable, "-c", IN_ONE_PROCESS, folder, *RUN_OPTIONS]
            printed = subprocess.run(trial, check=True, capture_output=True, text=True).stdout
        # The quickest: what disturbs a start only ever makes it longer.
        found = {name: min(taken) for name, taken in samples.items()}
        torch = min(found["import_torch"], found["import_torch_calmly"])
        found["predict_beyond_torch"] = found["predict"] - torch
        found["run_beside_training"] = float(json.loads(printed)["seconds"])
        rows = [
            {
                "form": name,
                "seconds": seconds,
                "limit": LIMITS.get(name),
                "median": statistics.median(samples[name]) if name in samples else None,
            }
            for name, seconds in found.items()
        ]
        slow = [name for name, limit in LIMITS.items() if found[name] > limit]
        ratios = {name: limit / found[name] for name, limit in LIMITS.items()}
        complaint = f"slower than they should be: {', '.join(slow)}" if slow else ""
        return Result(self.kind, machine(), rows, ratios, complaint)

    def show(self, result: Result) -> RenderableType:
        from rich.table import Table

        table = Table(title="seconds from nothing to an answer, the quickest", title_justify="left")
        table.add_column("what")
        for heading in ("seconds", "at most"):
            table.add_column(heading, justify="right")
        for row in result.rows:
            limit = "" if row["limit"] is None else f"{row['limit']:.1f}"
            table.add_row(row["form"].replace("_", " "), f"{row['seconds']:.2f}", limit)
        return table


def _seconds(command: list[str]) -> float:
    # An installed package has its bytecode, and so has a checkout after its setup.
    surroundings = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=surroundings)
    return time.perf_counter() - started
