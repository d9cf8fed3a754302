"""Benchmark of growth: time and memory against length, width, layers, vocabulary, examples and processes.

Each size is measured in a child process. A power law is fitted to the largest sizes, and its exponent must
not exceed the one of theory.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from glassformer.bench.base import Benchmark, Progress, Result, empty_table, run_command
from glassformer.core.registry import register
from glassformer.core.system import machine, usable_cores

if TYPE_CHECKING:
    from rich.table import Table

STEPS = """
import json, sys, time
from pathlib import Path
import torch
from glassformer.models.task_types import CausalLM
from glassformer.models.transformer import TransformerConfig

torch.set_num_threads(1)
options = json.loads(sys.argv[1])
batch, length, vocabulary = (options.pop(name) for name in ("batch", "length", "vocabulary"))
width = options["hidden_dim"]
config = TransformerConfig(feed_forward_dim=4 * width, position={"kind": "rotary"}, **options)
model = config.build(CausalLM(vocabulary, length))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
tokens = torch.randint(0, vocabulary, (batch, length + 1))

def step():
    optimizer.zero_grad()
    (model.compute_loss({"tokens": tokens[:, :-1]}, tokens[:, 1:]).loss / tokens.numel()).backward()
    optimizer.step()

def memory(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))

measures_memory = sys.platform.startswith("linux")
if measures_memory:
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before = memory("VmRSS") - weights
seconds = []
for _ in range(4):
    started = time.process_time()
    step()
    seconds.append(time.process_time() - started)
used = {"bytes": memory("VmHWM") - before} if measures_memory else {}
print(json.dumps({"seconds": min(seconds[1:]), **used}))
"""
"""Measures training steps: CPU seconds of one thread, which hardly depend on other work on the machine."""

OPEN = """
import json, sys, time
from glassformer.core.system import peak_memory
from glassformer.runs.experiment import Experiment, resolve

config = resolve("language-model", json.loads(sys.argv[1]))
started = time.perf_counter()
experiment = Experiment(config)
experiment.task.splits
seconds = {"opening": time.perf_counter() - started}
started = time.perf_counter()
next(experiment.build_trainer().step_batches())
seconds["first_batch"] = time.perf_counter() - started
print(json.dumps({**seconds, "bytes": peak_memory()}))
"""
TOKENIZERS = """
import json, sys, time
from itertools import islice
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file(sys.argv[1])
started = time.perf_counter()
with open(sys.argv[2], encoding="utf-8") as lines:
    while block := list(islice(lines, 1000)):
        tokenizer.encode_batch_fast(block, add_special_tokens=False)
print(json.dumps(time.perf_counter() - started))
"""
"""Reads and tokenises a file with Hugging Face `tokenizers` and nothing else."""


@dataclass(frozen=True)
class Axis:
    """Size that grows while all others stay the same."""

    sizes: Sequence[int]
    quick: Sequence[int]
    limits: Mapping[str, float]
    """Exponent of theory for each measured quantity. Growth with a larger exponent is a failure."""
    options: Mapping[str, int]
    """Options of the model and of its batch, without the one that grows."""
    option: str = ""
    """Name of the option that grows."""


MODEL = {"num_layers": 2, "num_heads": 4, "hidden_dim": 64, "vocabulary": 256, "batch": 1, "length": 256}
AXES = {
    "length": Axis(
        (256, 512, 1024, 2048, 4096, 8192), (128, 256, 512), {"seconds": 2, "bytes": 1}, {}, "length"
    ),
    "width": Axis(
        (64, 128, 256, 512, 1024), (32, 64), {"seconds": 2, "bytes": 2}, {"batch": 4}, "hidden_dim"
    ),
    "layers": Axis(
        (2, 4, 8, 16), (1, 2), {"seconds": 1, "bytes": 1}, {"hidden_dim": 128, "batch": 4}, "num_layers"
    ),
    "vocabulary": Axis(
        (1000, 4000, 16_000, 64_000),
        (1000, 2000),
        {"seconds": 1, "bytes": 1},
        {"hidden_dim": 128, "batch": 4},
        "vocabulary",
    ),
}
EXAMPLES = Axis(
    (10_000, 100_000, 1_000_000, 10_000_000),
    (1000, 2000),
    {"tokenising": 1, "opening": 1, "first_batch": 1, "bytes": 1},
    {},
)
FITTED = 3
"""Number of the largest sizes that an exponent is fitted to, because constant costs dominate small ones."""
TOLERANCE = 0.15
"""Difference between exponents that is within the error of the fit."""
PAIRS_OF_PROCESSES = ["task.train_examples=2000", "training.max_steps=20", "training.batch_size=32"]


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the exponent of the power law that fits the values of the largest sizes best."""
    import numpy as np

    logs = np.log(np.array([sizes[-FITTED:], values[-FITTED:]], dtype=float))
    return float(np.polyfit(logs[0], logs[1], 1)[0])


@register
class GrowthBenchmark(Benchmark):
    """Time and memory of training against length, width, layers, vocabulary, examples and processes."""

    kind: Literal["growth"] = "growth"
    repeats: int = Field(1, ge=1, le=100, description="measurements per size, of which the fastest counts")
    quick: bool = Field(False, description="small sizes only, to try the benchmark; nothing can fail")
    largest: int = Field(10_000_000, ge=1000, description="largest number of lines of text")
    plot: str | None = Field(None, description="file name of the plot without its ending")

    def measure(self, progress: Progress) -> Result:
        measured = {name: self._sizes(axis) for name, axis in AXES.items()}
        examples = [size for size in self._sizes(EXAMPLES) if size <= self.largest]
        processes = [1, 2] if self.quick or usable_cores() == 1 else _powers(usable_cores())
        total = sum(map(len, measured.values())) + 2 * len(examples) + 1 + len(processes)
        rows: list[dict[str, Any]] = []
        for row in self._rows(measured, examples, processes):
            rows.append(row)
            progress(len(rows) + sum(row["axis"] == "examples" for row in rows), total)
        ratios = _exponents(rows)
        limits = {f"{name}_{key}": limit for name, axis in _all_axes() for key, limit in axis.limits.items()}
        too_fast = [
            f"{name} grows with exponent {ratios[name]:.2f} instead of {limit:g}"
            for name, limit in limits.items()
            if not self.quick and ratios.get(name, 0.0) > limit + TOLERANCE
        ]
        tokenizers = next(row for row in rows if row["axis"] == "tokenizers alone")
        same = next(r for r in rows if r["axis"] == "examples" and r["size"] == tokenizers["size"])
        ratios["tokenizers"] = tokenizers["tokenising"] / same["tokenising"]
        result = Result(self.kind, machine(), rows, ratios, "; ".join(too_fast))
        if self.plot is not None:
            _draw(rows, ratios, Path(self.plot))
        return result

    def _sizes(self, axis: Axis) -> Sequence[int]:
        return axis.quick if self.quick else axis.sizes

    def _rows(
        self, measured: Mapping[str, Sequence[int]], examples: Sequence[int], processes: Sequence[int]
    ) -> Iterator[dict[str, Any]]:
        for name, sizes in measured.items():
            axis = AXES[name]
            for size in sizes:
                options = {**MODEL, **axis.options, axis.option: size}
                yield {"axis": name, "size": size, **self._fastest([STEPS, json.dumps(options)])}
        with TemporaryDirectory(prefix="glassformer-bench-") as folder:
            yield from self._example_rows(Path(folder), examples)
            for count in processes:
                run = str(Path(folder) / f"run-{count}")
                command = ["train", "counting-language-model", *PAIRS_OF_PROCESSES]
                command += ["training.threads=1", "--processes", str(count), "--run", run, "--json"]
                _, printed = run_command([sys.executable, "-m", "glassformer", *command])
                speed = json.loads(printed)["tokens_per_second"]
                yield {"axis": "processes", "size": count, "tokens_per_second": speed}

    def _example_rows(self, folder: Path, examples: Sequence[int]) -> Iterator[dict[str, Any]]:
        from glassformer.data.tokenizers import BPEConfig

        tokenizer = folder / "tokenizer.json"
        trained = BPEConfig(vocabulary_size=2000).train(lambda: _lines(2000))
        tokenizer.write_text(json.dumps(trained.json_tree()), encoding="utf-8")
        for count in examples:
            path = folder / f"lines-{count}.txt"
            with open(path, "w", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in _lines(count))
            options = {
                "task.data.train": str(path),
                "task.data.format": "text",
                "task.tokenizer": {"kind": "file", "path": str(tokenizer)},
            }
            cache = {"GLASSFORMER_CACHE": str(folder / "cache")}
            command = [sys.executable, "-c", OPEN, json.dumps(options)]
            first = json.loads(run_command(command, **cache)[1])
            again = json.loads(run_command(command, **cache)[1])
            yield {
                "axis": "examples",
                "size": count,
                "tokenising": first["opening"],
                "opening": again["opening"],
                "first_batch": again["first_batch"],
                "bytes": first["bytes"],
            }
            if count == examples[-2 if len(examples) > 2 else -1]:
                alone = self._fastest([TOKENIZERS, str(tokenizer), str(path)])
                yield {"axis": "tokenizers alone", "size": count, "tokenising": alone}
            path.unlink()

    def _fastest(self, script: Sequence[str]) -> Any:
        """Return what a script printed in its fastest run."""
        found = [json.loads(run_command([sys.executable, "-c", *script])[1]) for _ in range(self.repeats)]
        return min(found, key=lambda one: one["seconds"] if isinstance(one, dict) else one)

    def show(self, result: Result) -> Table:
        table = empty_table(
            "growth: time and memory by size",
            ["axis", "measured"],
            ["size"],
            caption="\n".join(
                f"{name.replace('_', ' ')}: {value:.2f}" for name, value in result.ratios.items()
            ),
        )
        for row in result.rows:
            values = [_shown(key, value) for key, value in row.items() if key not in ("axis", "size")]
            table.add_row(row["axis"], ", ".join(values), f"{row['size']:,}")
        return table


def _all_axes() -> list[tuple[str, Axis]]:
    return [*AXES.items(), ("examples", EXAMPLES)]


def _powers(cores: int) -> list[int]:
    return [2**power for power in range(int(math.log2(cores)) + 1)]


def _lines(count: int) -> Iterator[str]:
    """Yield lines of a few words, of which each differs from the others."""
    words = ["growth", "of", "time", "and", "memory", "is", "measured", "with", "lines", "such", "as", "this"]
    for number in range(count):
        yield f"{words[number % 12]} {words[number // 12 % 12]} {words[number // 144 % 12]} {number}"


def _exponents(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the fitted exponent of each quantity, by axis and quantity."""
    found = {}
    for axis in dict.fromkeys(row["axis"] for row in rows):
        of_axis = [row for row in rows if row["axis"] == axis]
        for key in [key for key in of_axis[0] if key not in ("axis", "size")] if len(of_axis) > 1 else []:
            sizes, values = [row["size"] for row in of_axis], [row[key] for row in of_axis]
            found[f"{axis}_{key}"] = exponent(sizes, values)
    return found


def _shown(key: str, value: float) -> str:
    name = key.replace("_", " ")
    if key == "bytes":
        return f"{value / 2**20:,.0f} MiB"
    if key == "tokens_per_second":
        return f"{value:,.0f} {name}"
    return f"{value:.3g} s" if key == "seconds" else f"{name} {value:.3g} s"


def _draw(rows: Sequence[Mapping[str, Any]], ratios: Mapping[str, float], stem: Path) -> None:
    """Draw seconds and memory against each size, with the fitted exponents in the legend."""
    from glassformer.plotting.lines import Axis as PlotAxis
    from glassformer.plotting.lines import Chart, Line, draw, save

    charts = []
    for unit, scale in (("seconds", 1), ("MiB", 2**20)):
        for axis, kind in _all_axes():
            of_axis = [row for row in rows if row["axis"] == axis]
            keys = [key for key in kind.limits if (key == "bytes") == (unit == "MiB") and key in of_axis[0]]
            lines = [
                Line(
                    f"{axis}: {key.replace('_', ' ')} ~ size^{ratios[f'{axis}_{key}']:.2f}",
                    [(row["size"], row[key] / scale) for row in of_axis],
                )
                for key in keys
            ]
            if lines:
                charts.append(Chart(axis, lines, PlotAxis(axis, is_log=True), PlotAxis(unit, is_log=True)))
    figure = draw(charts, "Growth of time and memory", "Both axes are logarithmic.", len(_all_axes()))
    for axes, chart in zip(figure.axes, charts, strict=False):
        sizes = [x for x, _ in chart.lines[0].points][:: 2 if len(chart.lines[0].points) > 4 else 1]
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.xaxis.set_minor_formatter("")
        axes.yaxis.set_minor_formatter("")
    stem.parent.mkdir(parents=True, exist_ok=True)
    save(figure, stem)
