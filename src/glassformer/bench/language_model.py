"""Benchmark of a character language model: time until our model reaches the loss of a plain torch.nn GPT."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from glassformer.bench.base import Benchmark, Progress, Result, empty_table, run_command
from glassformer.core.registry import register
from glassformer.core.system import machine

if TYPE_CHECKING:
    from rich.table import Table

OURS, THEIRS = "glassformer", "torch_nn"
RECIPE = {
    "training.batch_size": 16,
    "training.optimizer.kind": "muon",
    "training.optimizer.learning_rate": 1e-2,
    "training.schedule.warmup_steps": 20,
    "training.validation_examples": 64,
}
"""Options of the preset `shakespeare` that are changed so that the loss falls fast."""


@register
class LanguageModelBenchmark(Benchmark):
    """Time until our model reaches the loss of a plain torch.nn GPT, start-up included."""

    kind: Literal["language-model"] = "language-model"
    repeats: int = Field(1, ge=1, le=100, description="runs per model, each with another seed")
    steps: int = Field(310, ge=1, description="training steps of our model")
    their_steps: int = Field(
        2000, ge=1, description="training steps of the plain GPT, with 12 sequences each"
    )

    def measure(self, progress: Progress) -> Result:
        import torch

        from glassformer.data.catalogue import locate

        threads = self.threads or torch.get_num_threads()
        text = locate("tinyshakespeare/input.txt")
        commands = {
            THEIRS: lambda seed, folder: [
                *("-m", "glassformer.bench.torch_gpt", str(text)),
                *("--steps", str(self.their_steps), "--threads", str(threads), "--seed", str(seed)),
            ],
            OURS: lambda seed, folder: [
                *("-m", "glassformer", "train", "shakespeare", "--json", "--run", str(folder / str(seed))),
                *(f"{path}={value}" for path, value in RECIPE.items()),
                *(f"training.max_steps={self.steps}", f"training.validate_every={self.steps}"),
                *(f"training.threads={threads}", f"seed={seed}"),
            ],
        }
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        losses: dict[str, list[float]] = {name: [] for name in commands}
        with TemporaryDirectory(prefix="glassformer-bench-") as folder:
            for seed in range(self.repeats):
                for number, (name, command) in enumerate(commands.items(), start=1):
                    words = [sys.executable, *command(seed, Path(folder))]
                    taken, printed = run_command(words, OMP_NUM_THREADS=str(threads))
                    seconds[name].append(taken)
                    losses[name].append(_loss(printed))
                    progress(seed * len(commands) + number, self.repeats * len(commands))
        rows = [
            {
                "form": name,
                "seconds": statistics.median(seconds[name]),
                "seconds_each": seconds[name],
                "loss": statistics.fmean(losses[name]),
                "losses": losses[name],
            }
            for name in commands
        ]
        faster = statistics.median(
            theirs / ours for theirs, ours in zip(seconds[THEIRS], seconds[OURS], strict=True)
        )
        worse = [
            seed
            for seed, (theirs, ours) in enumerate(zip(losses[THEIRS], losses[OURS], strict=True))
            if ours > theirs
        ]
        error = f"our loss is higher for the seeds {worse}: increase --steps" if worse else ""
        return Result(self.kind, machine(), rows, {THEIRS: faster}, error)

    def show(self, result: Result) -> Table:
        table = empty_table(
            "tinyshakespeare, 4 layers of width 128, context 64",
            ["form"],
            ["total seconds", "validation loss", "ours is"],
            caption="from the start of a process to its end, validation included",
        )
        for row in result.rows:
            faster = result.ratios.get(row["form"])
            table.add_row(
                row["form"],
                f"{row['seconds']:,.1f}",
                f"{row['loss']:.4f}",
                f"{faster:.2f} × as fast" if faster else "",
            )
        return table


def _loss(printed: str) -> float:
    document: dict[str, Any] = json.loads(printed)
    return float(document["loss"] if "loss" in document else document["metrics"]["validation"]["loss"])
