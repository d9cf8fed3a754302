"""Base of the studies inside trained models: runs, snapshots, numbers per run and their means over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassformer.core.errors import user_error
from glassformer.evaluation.intervals import student_interval
from glassformer.inspection.circuits import HeadSet
from glassformer.models.base import Model
from glassformer.plotting.lines import Axis, Chart, Line, draw, mean_line, save
from glassformer.runs.run import Run
from glassformer.studies.recipes import RecipeStudy, run_commands
from glassformer.studies.study import (
    Job,
    Row,
    StudyContext,
    heading,
    plural,
    table_head,
    table_row,
)

REACHED = 0.9
"""Share of correct outputs from which on something counts as learnt."""


@dataclass(frozen=True, kw_only=True)
class InsideStudy(RecipeStudy):
    """Study that trains models and looks inside each: one table row per number, with an interval over seeds.

    Subclasses return the numbers of one run, draw the pictures and write the sections.
    """

    def inspect(self, run: Run, job: Job, context: StudyContext) -> dict[str, Any]:
        """Return `numbers` (name to value, or None if undefined) and details of one trained model."""
        raise NotImplementedError

    def pictures(self, found: Sequence[Mapping[str, Any]], folder: Path) -> list[str]:
        """Draw the pictures into the folder and return the names of their files."""
        raise NotImplementedError

    def measure(self, context: StudyContext) -> dict[str, Any]:
        """Train the unfinished runs, look inside all runs, and return the content of `results.json`."""
        context.reject_partial_options(may_be_unfinished=True)
        runs = self.runs(context)
        if context.trains:
            self.train(runs, context)
        finished = [run for run in runs if run.job.results()]
        if not finished:
            message = "no run of this table is finished"
            raise user_error(message, path=str(context.folder), hint="omit --finished")
        found = []
        for run in finished:
            context.log(f"looking inside {run.job.name}")
            inside = self.inspect(Run(run.job.path), run.job, context)
            found.append({"setting": run.setting.name, "seed": run.seed, **inside})
        found += self.more(context)
        return {
            "rows": rows_of(found),
            "missing": [run.job.name for run in runs if run not in finished],
            "commands": run_commands(runs, context.folder),
            "inside": found,
            "plot": self.pictures(found, context.folder),
        }

    def more(self, context: StudyContext) -> list[dict[str, Any]]:
        """Return what was found inside models that this study does not train."""
        return []

    def table(self, document: Mapping[str, Any]) -> list[str]:
        """Return the lines of the Markdown table."""
        lines = table_head("number", "mean", "95 % interval", "each seed")
        for row in document["rows"]:
            interval = row["interval"]
            between = "" if interval is None else " … ".join(map(_shown, interval))
            each = " ".join(map(_shown, row["values"])) if len(row["values"]) > 1 else ""
            lines.append(table_row([row["setting"], _shown(row["ours"]), between, each]))
        return lines

    def markdown(self, document: Mapping[str, Any]) -> str:
        """Return the text of `table.md` for the content of `results.json`."""
        lines = heading(document)
        if document["missing"]:
            lines += [f"**Not finished:** {plural(len(document['missing']), 'run')}.", ""]
        seeds = len({each["seed"] for each in document["inside"]})
        about = f"Means over {plural(seeds, 'seed')}"
        if seeds > 1:
            about += ", with 95 % intervals of the mean (Student's t)"
        lines += [*self.table(document), "", f"{about}.", ""]
        return "\n".join([*lines, *self.sections(document)])


def _shown(value: float) -> str:
    """Return a number with three digits, without an exponent for values that are zero but for rounding."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{round(value, 4) + 0.0:.3g}"


def rows_of(found: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return one row per setting and number: its mean over the seeds, with the interval and all values."""
    rows: list[Row] = []
    for setting in dict.fromkeys(each["setting"] for each in found):
        own = [each for each in found if each["setting"] == setting]
        for name in own[0]["numbers"]:
            known = [each for each in own if each["numbers"].get(name) is not None]
            values = [float(each["numbers"][name]) for each in known]
            if values:
                rows.append(
                    {
                        "setting": f"{setting}: {name}",
                        "published": None,
                        "theirs": None,
                        "ours": statistics.fmean(values),
                        "interval": own[0].get("intervals", {}).get(name) or student_interval(values),
                        "lowest": min(values),
                        "values": values,
                        "seeds": [each["seed"] for each in known],
                    }
                )
    return rows


def snapshots(run: Run) -> Iterator[tuple[int, Model]]:
    """Yield the step and the model of each checkpoint that training kept, from the first to the last."""
    for name in run.folder.checkpoints().names():
        yield int(name.split("-")[1]), Run(run.path, name, task=run.task).model


def first_step(steps: Sequence[int], values: Sequence[float], level: float = REACHED) -> int | None:
    """Return the first step with a value of at least `level`, or None."""
    return next((step for step, value in zip(steps, values, strict=True) if value >= level), None)


def head_set_numbers(found: HeadSet) -> dict[str, float]:
    """Return the numbers of a smallest set of heads for the table."""
    return {
        "exact match": found.whole,
        "heads": len(found.removed),
        "heads that suffice": len(found.heads),
        "exact match with these heads alone": found.exact_match,
        "exact match with as many random heads": found.random,
        "exact match without any head": found.curve[-1],
    }


def draw_removal(found: Sequence[Mapping[str, Any]], title: str, file: Path) -> list[str]:
    """Draw exact match against the number of heads that remain, one line per setting."""
    charts = []
    for setting in dict.fromkeys(each["setting"] for each in found):
        curves = [each["smallest"]["curve"] for each in found if each["setting"] == setting]
        xs = list(range(len(curves[0]) - 1, -1, -1))
        x = Axis("heads that remain; all others are replaced by their mean", is_whole=True)
        y = Axis("exact match", is_percent=True)
        charts.append(Chart(setting, [mean_line("mean over seeds", xs, curves)], x, y))
    return save(draw(charts, title, "Band: from the lowest seed to the highest."), file)


def draw_steps(
    found: Sequence[Mapping[str, Any]], names: Sequence[str], title: str, y: str, file: Path
) -> list[str]:
    """Draw the curves of `names` against the training step, one panel per setting, means over seeds."""
    charts = []
    for setting in dict.fromkeys(each["setting"] for each in found):
        own = [each for each in found if each["setting"] == setting]
        shortest = min((each["steps"] for each in own), key=len)
        lines: list[Line] = [
            mean_line(name, shortest, [each["curves"][name] for each in own])
            for name in names
            if name in own[0]["curves"]
        ]
        charts.append(Chart(setting, lines, Axis("training step"), Axis(y)))
    return save(
        draw(charts, title, "Lines: means over seeds; bands from the lowest seed to the highest."), file
    )
