"""Benchmark of a sweep: time of the same trials with one worker and with two."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from glassformer.bench.base import Benchmark, Progress, Result, empty_table, run_command
from glassformer.core.errors import user_error
from glassformer.core.registry import register
from glassformer.core.system import machine

if TYPE_CHECKING:
    from rich.table import Table

TRIAL = (
    "training.optimizer.learning_rate=1e-3,2e-3,4e-3",
    "task.length=12",
    "task.train_examples=4000",
    "task.test_examples=1000",
    "training.batch_tokens=600",
    "training.schedule.warmup_steps=10",
    "training.stopping.target=null",
)
MAX_SHARE = 0.6
"""Maximum time of two workers as a fraction of one worker's time. Start and end of a sweep are sequential."""
MIN_CORES = 2


@register
class SweepBenchmark(Benchmark):
    """Time of a sweep over small models with one worker and with two."""

    kind: Literal["sweep"] = "sweep"
    threads: int | None = Field(None, ge=1, le=1024, description="threads per worker (default: 1)")
    repeats: int = Field(1, ge=1, le=100, description="sweeps per number of workers")
    seeds: int = Field(4, ge=1, le=100, description="runs per learning rate; the sweep has three")
    steps: int = Field(600, ge=1, description="training steps per run")

    def measure(self, progress: Progress) -> Result:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if cores < MIN_CORES:
            raise user_error(
                "two workers need two cores, and this machine has one",
                path="NAME",
                value=self.kind,
                hint="run this benchmark on a machine with more cores",
            )
        rows: list[dict[str, Any]] = []
        with TemporaryDirectory(prefix="glassformer-bench-") as folder:
            for repeat in range(self.repeats):
                for workers in (1, 2):
                    rows.append(self._sweep(workers, Path(folder) / f"{repeat}-{workers}"))
                    progress(len(rows), 2 * self.repeats)
        quickest = {
            workers: min((row for row in rows if row["workers"] == workers), key=lambda row: row["seconds"])
            for workers in (1, 2)
        }
        share = quickest[2]["seconds"] / quickest[1]["seconds"]
        error = f"two workers take {share:.2f} of the time of one" if share > MAX_SHARE else ""
        ratios = {"two_workers": quickest[1]["seconds"] / quickest[2]["seconds"]}
        return Result(self.kind, machine(), list(quickest.values()), ratios, error, {"share": share})

    def _sweep(self, workers: int, folder: Path) -> dict[str, Any]:
        command = [sys.executable, "-m", "glassformer", "sweep", "reversal", *TRIAL]
        command += [f"training.max_steps={self.steps}", "--seeds", str(self.seeds)]
        command += ["--workers", str(workers), "--out", str(folder), "--json"]
        # One thread per worker, so that the second worker is the only difference.
        seconds, printed = run_command(command, OMP_NUM_THREADS=str(self.threads or 1))
        document = json.loads(printed)
        training = [trial["seconds"] for trial in document["trials"]]
        return {
            "workers": workers,
            "threads_of_each": document["threads_per_worker"],
            "trials": len(training),
            "seconds": seconds,
            "seconds_of_training": sum(training),
        }

    def show(self, result: Result) -> Table:
        table = empty_table(
            "the same sweep, from its command to its table",
            [],
            ["workers", "threads per worker", "trials", "seconds", "total seconds of training"],
            caption=f"two workers take {result.notes['share']:.2f} of the time of one",
        )
        for row in result.rows:
            seconds = (f"{row[name]:.1f}" for name in ("seconds", "seconds_of_training"))
            table.add_row(*(str(row[name]) for name in ("workers", "threads_of_each", "trials")), *seconds)
        return table
