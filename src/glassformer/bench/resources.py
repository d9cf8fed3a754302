"""Benchmarks of memory against sequence length, and of the start-up time of commands."""

from __future__ import annotations

import json
import statistics
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


ONE_STEP = """
import json, sys
from pathlib import Path
import torch
from glassformer.models.task_types import CausalLM
from glassformer.models.transformer import TransformerConfig

def memory(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))

length, layers, width, heads, steps = map(int, sys.argv[1:])
config = TransformerConfig(
    num_layers=layers,
    hidden_dim=width,
    num_heads=heads,
    feed_forward_dim=4 * width,
    position={"kind": "rotary"},
)
model = config.build(CausalLM(256, length))
optimizer = torch.optim.AdamW(model.parameters())
tokens = torch.randint(0, 256, (1, length + 1))
Path("/proc/self/clear_refs").write_text("5")  # reset the peak
before = memory("VmRSS")
for _ in range(steps):
    output = model.compute_loss({"tokens": tokens[:, :-1]}, tokens[:, 1:])
    optimizer.zero_grad()
    (output.loss / length).backward()
    optimizer.step()
print(json.dumps({"bytes": memory("VmHWM") - before}))
"""
MAX_GROWTH = 2.5
"""Maximum growth factor of memory when the length doubles. Linear growth is 2, quadratic growth is 4."""


@register
class MemoryBenchmark(Benchmark):
    """Peak memory of a training step at lengths up to 8,192 tokens. It must grow linearly with the length."""

    kind: Literal["memory"] = "memory"
    repeats: int = Field(1, ge=1, le=100, description="training steps per length")
    longest: int = Field(8192, ge=1024, description="length of the longest sequence in tokens")
    layers: int = Field(2, ge=1, description="number of layers")
    width: int = Field(64, ge=1, description="hidden dimension")
    heads: int = Field(4, ge=1, description="attention heads per layer")

    def measure(self, progress: Progress) -> Result:
        if not sys.platform.startswith("linux"):
            raise user_error(
                "memory can be measured only on Linux",
                path="NAME",
                value=self.kind,
                hint="run this benchmark on a Linux machine",
            )
        lengths = [self.longest >> halvings for halvings in (3, 2, 1, 0)]
        rows: list[dict[str, Any]] = []
        for number, length in enumerate(lengths, start=1):
            sizes = [length, self.layers, self.width, self.heads, self.repeats]
            command = [sys.executable, "-c", ONE_STEP, *map(str, sizes)]
            _, printed = run_command(command)
            used = int(json.loads(printed)["bytes"])
            weights = 4 * self.layers * self.heads * length**2
            rows.append({"length": length, "bytes": used, "bytes_of_all_weights": weights})
            progress(number, len(lengths))
        growth = rows[-1]["bytes"] / rows[-2]["bytes"]
        ratios = {
            "linear": 2 / growth,
            "all_weights": rows[-1]["bytes_of_all_weights"] / rows[-1]["bytes"],
        }
        is_square = growth > MAX_GROWTH
        error = f"memory grew by a factor of {growth:.1f} when the length doubled" if is_square else ""
        return Result(self.kind, machine(), rows, ratios, error)

    def show(self, result: Result) -> Table:
        table = empty_table(
            f"training {self.layers} layers of width {self.width}, {self.heads} heads, one sequence",
            [],
            ["length", "MiB used", "MiB of all attention weights"],
            caption="peak above the memory before the first step; the attention weights are never stored",
        )
        for row in result.rows:
            table.add_row(
                f"{row['length']:,}",
                f"{row['bytes'] / 2**20:,.0f}",
                f"{row['bytes_of_all_weights'] / 2**20:,.0f}",
            )
        return table


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
WITHOUT_GC = "import gc; gc.disable(); import torch; gc.freeze()"
"""Imports PyTorch with garbage collection off, as our commands do. It is the fairest baseline for them."""
LIMITS = {"help": 0.3, "predict": 3.0, "predict_beyond_torch": 0.5, "run_beside_training": 1.0}
"""Maximum duration in seconds by measurement. The benchmark fails if one is exceeded."""


@register
class StartupBenchmark(Benchmark):
    """Start-up time of commands, and the time that a small run takes in addition to its training."""

    kind: Literal["startup"] = "startup"

    def measure(self, progress: Progress) -> Result:
        with TemporaryDirectory(prefix="glassformer-bench-") as folder:
            run = Path(folder) / "run"
            ours = [sys.executable, "-m", "glassformer"]
            _seconds([*ours, "train", "reversal", *RUN_OPTIONS, "--run", str(run), "--json"])
            commands = {
                "python": [sys.executable, "-c", ""],
                "import_torch": [sys.executable, "-c", "import torch"],
                "import_torch_calmly": [sys.executable, "-c", WITHOUT_GC],
                "help": [*ours, "--help"],
                "predict": [*ours, "predict", str(run), "1 2 3 4 5 6 7 8", "--json"],
            }
            samples: dict[str, list[float]] = {name: [] for name in commands}
            for repeat in range(self.repeats):
                for number, (name, command) in enumerate(commands.items(), start=1):
                    samples[name].append(_seconds(command))
                    progress(repeat * len(commands) + number, self.repeats * len(commands))
            trial = [sys.executable, "-c", IN_ONE_PROCESS, folder, *RUN_OPTIONS]
            _, printed = run_command(trial)
        # The minimum: a disturbance can only make a start slower.
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
        error = f"slower than the limit: {', '.join(slow)}" if slow else ""
        return Result(self.kind, machine(), rows, ratios, error)

    def show(self, result: Result) -> Table:
        table = empty_table("minimum seconds from start to result", ["form"], ["seconds", "limit"])
        for row in result.rows:
            limit = "" if row["limit"] is None else f"{row['limit']:.1f}"
            table.add_row(row["form"].replace("_", " "), f"{row['seconds']:.2f}", limit)
        return table


def _seconds(command: list[str]) -> float:
    # Bytecode is allowed: an installed package has it, and so has a checkout after its setup.
    return run_command(command, PYTHONDONTWRITEBYTECODE="")[0]
