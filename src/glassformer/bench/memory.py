"""Memory of a training step at growing lengths: it must grow with the length, not with its square."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from glassformer.bench.base import Benchmark, Progress, Result
from glassformer.core.errors import user_error
from glassformer.core.registry import register
from glassformer.core.system import machine

if TYPE_CHECKING:
    from rich.console import RenderableType

ONE_STEP = """
import json, sys
from pathlib import Path
import torch
from glassformer.models.task_types import CausalLM
from glassformer.models.transformer import TransformerConfig

def held(what):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(what))

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
Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
before = held("VmRSS")
for _ in range(steps):
    score = model.score({"tokens": tokens[:, :-1]}, tokens[:, 1:])
    optimizer.zero_grad()
    (score.loss / length).backward()
    optimizer.step()
print(json.dumps({"bytes": held("VmHWM") - before}))
"""
LARGEST_GROWTH = 2.5
"""Twice the length needs twice the memory; four times would be the square."""


@register
class MemoryBenchmark(Benchmark):
    """Memory of training at lengths up to 8,192, beside one matrix of attention weights."""

    kind: Literal["memory"] = "memory"
    repeats: int = Field(1, ge=1, le=100, description="steps of training at each length")
    longest: int = Field(8192, ge=1024, description="tokens of the longest sequence")
    layers: int = Field(2, ge=1, description="blocks")
    width: int = Field(64, ge=1, description="numbers in a vector")
    heads: int = Field(4, ge=1, description="heads of a block")

    def measure(self, progress: Progress) -> Result:
        if not sys.platform.startswith("linux"):
            raise user_error("memory can be measured on Linux alone", path="NAME", value=self.kind)
        lengths = [self.longest >> places for places in (3, 2, 1, 0)]
        rows: list[dict[str, Any]] = []
        for number, length in enumerate(lengths, start=1):
            sizes = [length, self.layers, self.width, self.heads, self.repeats]
            command = [sys.executable, "-c", ONE_STEP, *map(str, sizes)]
            printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            held = int(json.loads(printed)["bytes"])
            weights = 4 * self.layers * self.heads * length**2
            rows.append({"length": length, "bytes": held, "bytes_of_all_weights": weights})
            progress(number, len(lengths))
        growth = rows[-1]["bytes"] / rows[-2]["bytes"]
        ratios = {
            "linear": 2 / growth,
            "all_weights": rows[-1]["bytes_of_all_weights"] / rows[-1]["bytes"],
        }
        is_square = growth > LARGEST_GROWTH
        complaint = f"memory grew {growth:.1f} × when the length doubled" if is_square else ""
        return Result(self.kind, machine(), rows, ratios, complaint)

    def show(self, result: Result) -> RenderableType:
        from rich.table import Table

        table = Table(
            title=f"training {self.layers} layers of width {self.width}, {self.heads} heads, one sequence",
            title_justify="left",
        )
        for heading in ("length", "MiB held", "MiB of the weights of all heads"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in result.rows:
            table.add_row(
                f"{row['length']:,}",
                f"{row['bytes'] / 2**20:,.0f}",
                f"{row['bytes_of_all_weights'] / 2**20:,.0f}",
            )
        table.caption = "more than before the first step, at its peak; the weights are never held"
        table.caption_justify = "left"
        return table
