"""Attention in four forms, from two loops to the fused kernel: the largest error, and the time, by length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glassformer.bench.attention import LARGEST_ALLOWED, AttentionBenchmark
from glassformer.studies import charts
from glassformer.studies.study import Effort, written_by


@dataclass(frozen=True)
class AttentionForms:
    lengths: Sequence[int]
    quick_lengths: Sequence[int]
    about: str
    name: str = "attention-forms"
    title: str = "Attention in four forms: error and time"
    metric: str = "seconds"
    seeds: int = 1
    """The same random numbers each time; the time is sampled instead."""

    def measure(self, effort: Effort) -> dict[str, Any]:
        effort.refuse_parts()
        rows: list[dict[str, Any]] = []
        complaints, machine = [], None
        for is_causal in (False, True):
            for length in self.quick_lengths if effort.is_quick else self.lengths:
                benchmark = AttentionBenchmark(length=length, causal=is_causal, threads=effort.threads)
                result = benchmark.run(lambda done, total: None)
                rows += [_row(row, length, is_causal) for row in result.rows]
                complaints += [f"length {length}: {result.complaint}"] if result.complaint else []
                machine = result.machine.document()
                effort.say(f"length {length}{', causal' if is_causal else ''}: {len(result.rows)} forms")
        return {
            "about": self.about,
            "rows": rows,
            "machine": machine,
            "plot": self._plot(rows, effort),
            "complaint": "; ".join(complaints),
        }

    def _plot(self, rows: Sequence[Mapping[str, Any]], effort: Effort) -> list[str]:
        panels = []
        for is_causal, title in ((False, "every key"), (True, "causal")):
            shown = [row for row in rows if row["is_causal"] == is_causal]
            lines = []
            for form in dict.fromkeys(row["form"] for row in shown):
                own = [row for row in shown if row["form"] == form]
                times = [row["ours"] for row in own]
                lines.append(charts.Line(form, [row["length"] for row in own], [times]))
            panels.append(
                charts.Panel(
                    title,
                    lines,
                    "length",
                    "seconds a call",
                    is_log=True,
                    is_log_height=True,
                    is_whole=True,
                )
            )
        caption = "Medians; 4 sequences of 4 heads of width 32."
        return charts.write(charts.draw(panels, self.title, caption), effort.folder / "times")

    def markdown(self, document: Mapping[str, Any]) -> str:
        lines = [f"# {document['title']}", "", document["about"], "", written_by(document), ""]
        lines += ["| length | mask | form | milliseconds | quartiles | speed-up | largest error |"]
        lines += ["|---|---|---|---|---|---|---|"]
        for row in document["rows"]:
            low, high = (f"{1e3 * value:.3f}" for value in row["quartiles"])
            cells = [f"{row['length']}", "causal" if row["is_causal"] else "none", row["form"]]
            cells += [f"{1e3 * row['ours']:.3f}", f"{low} … {high}", f"{row['speed_up']:,.1f} ×"]
            cells += [f"{row['largest_error']:.1e}"]
            lines.append(f"| {' | '.join(cells)} |")
        machine, threads = document["machine"], document["threads_per_worker"]
        lines += ["", "![Seconds a call against the length](times.png)", ""]
        lines += [
            f"Error: the largest difference from the same attention in fp64; up to {LARGEST_ALLOWED:g} is"
            " rounding. Speed-up: over the loop for one sequence, at the same length.",
            "",
            f"Machine: {machine['cpu']}, {threads} thread{'s' if threads > 1 else ''},"
            f" torch {machine['torch']}.",
            "",
        ]
        return "\n".join(lines)


def _row(row: Mapping[str, Any], length: int, is_causal: bool) -> dict[str, Any]:
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


ATTENTION_FORMS = AttentionForms(
    lengths=(8, 16, 32),
    quick_lengths=(8, 16),
    about="Scaled dot-product attention of 4 sequences of 4 heads of width 32: two loops for one sequence,"
    " two loops over a batch, no loop, and the fused kernel that training uses. No published table has these"
    " numbers: what is reproduced is that the forms are the same.",
)
