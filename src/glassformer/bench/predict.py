"""Benchmark of `predict`: lines per second in batches, one line at a time, and with weights in int8."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from glassformer.bench.base import (
    Benchmark,
    Progress,
    Result,
    empty_table,
    time_alternately,
    trained_run,
)
from glassformer.core.errors import UserError, user_error
from glassformer.core.registry import register
from glassformer.core.system import machine

if TYPE_CHECKING:
    from rich.table import Table

    from glassformer.runs.run import Run

BATCHED, ALONE, INT8 = "batched", "one at a time", "batched_int8"
GROUP_LINES = 2048
"""Number of lines passed at once, as the command does."""
LINES_ALONE = 100
"""Maximum number of lines that are predicted one at a time."""
LATENCY_LIMIT = 0.020
"""Limit of the time of one line in seconds, once the model is loaded."""


@register
class PredictBenchmark(Benchmark):
    """Prediction of many lines: in batches, one at a time, and with weights in int8."""

    kind: Literal["predict"] = "predict"
    source: str = Field("arithmetic", description="model that predicts: a preset, a config file or a run")
    training_steps: int = Field(
        300, ge=1, description="training steps of the model, which is trained once and reused"
    )
    folder: str = Field("runs", description="folder for the trained model")
    lines: int = Field(10_000, ge=1, description="number of lines to predict")

    def measure(self, progress: Progress) -> Result:
        run = trained_run("predict", self.source, self.training_steps, self.folder)
        lines = self._lines(run)
        outputs: dict[str, list[Any]] = {}
        alone = lines[:LINES_ALONE]
        forms: dict[str, Callable[[], None]] = {
            BATCHED: lambda: _predict(outputs, BATCHED, run, lines, GROUP_LINES),
            ALONE: lambda: _predict(outputs, ALONE, run, alone, 1),
        }
        twin = _in_int8(run)
        if twin is not None:
            forms[INT8] = lambda: _predict(outputs, INT8, twin, lines, GROUP_LINES)
        timings = time_alternately(forms, self.repeats, progress)
        rows = []
        for name, timing in timings.items():
            count = len(outputs[name])
            same = sum(mine == other for mine, other in zip(outputs[name], outputs[BATCHED], strict=False))
            rows.append(
                {
                    "form": name,
                    **timing.as_row(),
                    "lines": count,
                    "lines_per_second": count / timing.median,
                    "milliseconds_per_line": 1000 * timing.median / count,
                    "same_outputs": same / count,
                }
            )
        speed = {row["form"]: row["lines_per_second"] for row in rows}
        ratios = {
            "lines_per_second": speed[BATCHED],
            "batched": speed[BATCHED] / speed[ALONE],
            "latency_limit": LATENCY_LIMIT * speed[ALONE],
        }
        if INT8 in speed:
            ratios["int8"] = speed[INT8] / speed[BATCHED]
        different = sum(mine != other for mine, other in zip(outputs[ALONE], outputs[BATCHED], strict=False))
        error = f"{different:,} of {len(alone):,} outputs depend on the other lines" if different else ""
        return Result(self.kind, machine(), rows, ratios, error, {"run": str(run.path)})

    def _lines(self, run: Run) -> list[str]:
        """Return inputs of the data, repeated until there are enough."""
        from glassformer.runs.ending import example_inputs

        inputs = example_inputs(run.task, self.lines)
        if not inputs:
            hint = "--source arithmetic"
            raise user_error("the run has no example", path="--source", value=self.source, hint=hint)
        return list(islice(cycle(inputs), self.lines))

    def show(self, result: Result) -> Table:
        table = empty_table(
            f"predicting lines with a model of {self.source}",
            ["lines"],
            ["lines/s", "ms per line", "same"],
        )
        for row in result.rows:
            table.add_row(
                row["form"],
                f"{row['lines_per_second']:,.0f}",
                f"{row['milliseconds_per_line']:.3f}",
                f"{row['same_outputs']:.1%}",
            )
        return table


def _predict(outputs: dict[str, list[Any]], name: str, run: Run, lines: Sequence[str], at_once: int) -> None:
    """Predict lines in groups, as the command does, and store their outputs."""
    outputs[name] = [
        prediction["output"]
        for start in range(0, len(lines), at_once)
        for prediction in run.predict(lines[start : start + at_once])
    ]


def _in_int8(run: Run) -> Run | None:
    """Return the run with weights in int8, or None if no matrix is large enough or the kernels do not run."""
    from glassformer.generation.int8 import has_large_matrices
    from glassformer.runs.run import Run

    if not has_large_matrices(run.model):
        return None
    try:
        twin = Run(run.path, task=run.task, device="cpu", weights="int8")
        twin.predict(["0"])  # quantises the weights; the input need not be valid
    except UserError:
        return None
    return twin
