"""Attention in four forms, from two loops to the fused kernel: largest error and time by length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glassformer.bench.attention import MAX_DIFFERENCE, AttentionBenchmark
from glassformer.plotting.lines import Axis, Chart, Line, draw, save
from glassformer.studies.study import (
    Row,
    Study,
    StudyContext,
    heading,
    load_definition,
    plural,
    table_head,
    table_row,
)


@dataclass(frozen=True, kw_only=True)
class AttentionForms(Study):
    """Study of the time and the numerical error of each implementation of attention."""

    lengths: Sequence[int]
    quick_lengths: Sequence[int]

    def measure(self, context: StudyContext) -> dict[str, Any]:
        """Run the attention benchmark for each mask and length; return the rows, plots and errors."""
        context.reject_partial_options()
        rows: list[Row] = []
        errors, machine = [], None
        for is_causal in (False, True):
            for length in self.quick_lengths if context.is_quick else self.lengths:
                benchmark = AttentionBenchmark(length=length, causal=is_causal, threads=context.threads)
                result = benchmark.run(lambda done, total: None)
                rows += [_row(row, length, is_causal) for row in result.rows]
                errors += [f"length {length}: {result.error}"] if result.error else []
                machine = result.machine.document()
                context.log(f"length {length}{', causal' if is_causal else ''}: {len(result.rows)} forms")
        return {
            "rows": rows,
            "machine": machine,
            "plot": self._plot(rows, context),
            "error": "; ".join(errors),
        }

    def _plot(self, rows: Sequence[Row], context: StudyContext) -> list[str]:
        charts = []
        for is_causal, title in ((False, "every key"), (True, "causal")):
            shown = [row for row in rows if row["is_causal"] == is_causal]
            lines = [
                Line(form, [(row["length"], row["ours"]) for row in shown if row["form"] == form])
                for form in dict.fromkeys(row["form"] for row in shown)
            ]
            x, y = Axis("length", is_log=True, is_whole=True), Axis("seconds per call", is_log=True)
            charts.append(Chart(title, lines, x, y))
        caption = "Medians; 4 sequences of 4 heads of width 32."
        return save(draw(charts, self.title, caption), context.folder / "times")

    def markdown(self, document: Mapping[str, Any]) -> str:
        """Return the text of `table.md` for the content of `results.json`."""
        heads = ("length", "mask", "form", "milliseconds", "quartiles", "speed-up", "largest error")
        lines = [*heading(document), *table_head(*heads)]
        for row in document["rows"]:
            low, high = (f"{1e3 * value:.3f}" for value in row["quartiles"])
            cells = [row["length"], "causal" if row["is_causal"] else "none", row["form"]]
            cells += [f"{1e3 * row['ours']:.3f}", f"{low} … {high}", f"{row['speed_up']:,.1f} ×"]
            lines.append(table_row([*cells, f"{row['largest_error']:.1e}"]))
        machine, threads = document["machine"], document["threads_per_worker"]
        lines += ["", "![Seconds per call against length](times.png)", ""]
        lines += [
            f"Error: the largest difference from the same attention in fp64; up to {MAX_DIFFERENCE:g} is"
            " rounding. Speed-up: relative to the loop for one sequence, at the same length.",
            "",
            f"Machine: {machine['cpu']}, {plural(threads, 'thread')}, torch {machine['torch']}.",
            "",
        ]
        return "\n".join(lines)


def _row(row: Mapping[str, Any], length: int, is_causal: bool) -> Row:
    return {
        "setting": f"{row['form']}, length {length}{', causal' if is_causal else ''}",
        "published": None,
        "theirs": None,
        "ours": row["seconds"],
        "interval": None,
        "quartiles": row["seconds_quartiles"],
        "seeds": [],
        "form": row["form"],
        "length": length,
        "is_causal": is_causal,
        "speed_up": row["speed_up"],
        "largest_error": row["largest_difference"],
        "samples": row["samples"],
    }


ATTENTION_FORMS = AttentionForms(**load_definition("attention_forms"))
