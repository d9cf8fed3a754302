"""A study: settings × recipes × seeds, each an ordinary run, and one table with intervals.

A study that was interrupted goes on: finished runs are kept, unfinished ones are resumed.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from glassformer.errors import user_error
from glassformer.experiment import resolve
from glassformer.reproduce.jobs import Job, Results, Say, run_all, threads_for
from glassformer.training.files import json_bytes, replace_file

# Two-sided 95 % quantiles of Student's t, by degrees of freedom.
T_95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


@dataclass(frozen=True)
class Effort:
    """Where a study works, and how much of it is done."""

    folder: Path
    is_quick: bool
    seeds: int
    workers: int
    threads: int
    with_theirs: bool
    say: Say


class Table(Protocol):
    """What can be reproduced."""

    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def metric(self) -> str: ...

    @property
    def seeds(self) -> int: ...

    def measure(self, effort: Effort) -> dict[str, Any]:
        """Run what is missing; `rows`, and whatever else `results.json` should hold."""
        ...

    def markdown(self, document: Mapping[str, Any]) -> str:
        """What `table.md` shows of `results.json`."""
        ...


def reproduce(
    table: Table,
    folder: Path,
    *,
    is_quick: bool = False,
    seeds: int | None = None,
    workers: int = 1,
    with_theirs: bool = True,
    say: Say = lambda text: None,
) -> dict[str, Any]:
    """Run what is missing, then write `table.md` and `results.json` into the folder and return the latter."""
    if seeds is not None and seeds < 1:
        raise user_error("at least one run a setting", place="--seeds", value=seeds, remedy="--seeds 3")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise user_error(
            f"cannot be made: {error.strerror}", place=str(folder), remedy="another --out"
        ) from None
    seeds = seeds or (1 if is_quick else table.seeds)
    threads = threads_for(workers)
    try:
        measured = table.measure(Effort(folder, is_quick, seeds, workers, threads, with_theirs, say))
    except BaseException:
        with contextlib.suppress(OSError):  # what failed before its first run leaves nothing behind
            folder.rmdir()
        raise
    document = {
        "name": table.name,
        "title": table.title,
        "metric": table.metric,
        "is_quick": is_quick,
        "with_theirs": with_theirs,
        "workers": workers,
        "threads_per_worker": threads,
        **measured,
    }
    replace_file(folder / "results.json", json_bytes(document))
    replace_file(folder / "table.md", table.markdown(document).encode())
    return document


@dataclass(frozen=True)
class Setting:
    """A row of the table: what was published for it, and how we run it."""

    name: str
    published: float | None
    what: str
    overrides: Mapping[str, Any]
    theirs: Mapping[str, Any] | None = None
    """The published recipe, as further overrides; None where it is not run."""
    is_quick: bool = False
    quick: Mapping[str, Any] | None = None
    """Further overrides of the small version."""


@dataclass(frozen=True)
class _Cell:
    setting: Setting
    recipe: str
    seed: int
    job: Job


@dataclass(frozen=True)
class Study:
    name: str
    title: str
    metric: str
    settings: Sequence[Setting]
    about: str
    seeds: int = 3

    def measure(self, effort: Effort) -> dict[str, Any]:
        cells = self._cells(effort)
        run_all(
            [cell.job for cell in cells],
            workers=effort.workers,
            threads=effort.threads,
            describe=lambda results: f"{self.metric} {test_value(results, self.metric):.5f}",
            say=effort.say,
        )
        return {"rows": self._rows(cells)}

    def _cells(self, effort: Effort) -> list[_Cell]:
        cells = []
        for setting in self.settings:
            if effort.is_quick and not setting.is_quick:
                continue
            recipes: dict[str, Mapping[str, Any]] = {"ours": {}}
            if setting.theirs is not None and effort.with_theirs:
                recipes["theirs"] = setting.theirs
            for recipe, changes in recipes.items():
                quick = (setting.quick or {}) if effort.is_quick else {}
                for seed in range(effort.seeds):
                    config = resolve(setting.what, {**setting.overrides, **changes, **quick, "seed": seed})
                    path = effort.folder / "runs" / f"{setting.name.replace(' ', '-')}-{recipe}-{seed}"
                    job = Job(f"{setting.name}, {recipe}, seed {seed}", config, path)
                    cells.append(_Cell(setting, recipe, seed, job))
        # The longest first, so that the last worker does not wait alone.
        return sorted(cells, key=lambda cell: -cell.job.config.dump()["task"].get("length", 0))

    def _rows(self, cells: Sequence[_Cell]) -> list[dict[str, Any]]:
        rows = []
        run = {cell.setting.name for cell in cells}
        for setting in (setting.name for setting in self.settings if setting.name in run):
            row: dict[str, Any] = {"setting": setting, "theirs": None, "ours": None, "interval": None}
            for recipe in ("theirs", "ours"):
                runs = [cell for cell in cells if (cell.setting.name, cell.recipe) == (setting, recipe)]
                if not runs:
                    continue
                results = [cell.job.results() for cell in runs]
                values = [test_value(result, self.metric) for result in results]
                row["published"] = runs[0].setting.published
                row[recipe] = statistics.fmean(values)
                if recipe == "ours":
                    row["interval"] = interval(values)
                    row["lowest"] = min(values)
                    row["seeds"] = [cell.seed for cell in runs]
                    row["steps"] = [result["steps"] for result in results]
                    row["seconds"] = [result["seconds"] for result in results]
                    row["config"] = runs[0].job.config.fingerprint()
            rows.append(row)
        return rows

    def markdown(self, document: Mapping[str, Any]) -> str:
        lines = [f"# {self.title}", "", self.about, "", written_by(document), ""]
        lines += [
            "| setting | published | their recipe | ours, mean | 95 % interval"
            " | lowest seed | steps | seconds |"
        ]
        lines += ["|---|---|---|---|---|---|---|---|"]
        for row in document["rows"]:
            low_high = (
                "" if row["interval"] is None else f"{row['interval'][0]:.5f} … {row['interval'][1]:.5f}"
            )
            steps = "/".join(str(step) for step in row.get("steps", []))
            seconds = "/".join(f"{value:.0f}" for value in row.get("seconds", []))
            cells = [row["setting"], _number(row["published"]), _number(row["theirs"]), _number(row["ours"])]
            cells += [low_high, _number(row.get("lowest")), steps, seconds]
            lines.append(f"| {' | '.join(cells)} |")
        workers, threads = document["workers"], document["threads_per_worker"]
        total = sum(value for row in document["rows"] for value in row.get("seconds", []))
        lines += [
            "",
            f"Metric: test {self.metric}. Training time of our runs together: {total / 60:.1f} minutes,"
            f" with {workers} workers of {threads} thread{'s' if threads > 1 else ''}.",
            "",
        ]
        return "\n".join(lines)


def test_value(results: Results, metric: str) -> float:
    return float(results["metrics"]["test"][metric])


def interval(values: Sequence[float]) -> list[float] | None:
    """The 95 % interval of the mean by Student's t; None for fewer than two values."""
    if len(values) < 2:
        return None
    half = _quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.fmean(values)
    return [mean - half, mean + half]


def _quantile(freedom: int) -> float:
    """Beyond the table by the series of Cornish and Fisher, right to three digits there."""
    z = 1.959964
    series = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return T_95.get(freedom, series)


def written_by(document: Mapping[str, Any]) -> str:
    quick = " --quick" if document["is_quick"] else ""
    return f"Written by `glassformer reproduce {document['name']}{quick}`."


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.5f}"
