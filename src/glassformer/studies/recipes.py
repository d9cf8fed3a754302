"""A table of settings × recipes × seeds, each an ordinary run: the published recipe and ours, side by side.

A study that was interrupted goes on: finished runs are kept, unfinished ones are resumed. Every run's name
holds a checksum of its options, so that nothing measured with other options can slip into the table.
"""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassformer.core.config import flatten, format_value, unflatten
from glassformer.core.errors import user_error
from glassformer.evaluation.intervals import student_interval
from glassformer.runs.experiment import resolve
from glassformer.studies.jobs import Job, Results, key_of, run_path
from glassformer.studies.study import Effort, test_value, written_by

OURS, THEIRS = "ours", "theirs"
Overrides = Mapping[str, Any]
Row = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """A row of the table: what was published for it, and how we run it."""

    name: str
    published: float | None
    what: str
    overrides: Overrides
    theirs: Overrides | None = None
    """The published recipe, as further overrides; None where it is not run."""
    is_quick: bool = False
    quick: Overrides | None = None
    """Further overrides of the small version."""
    is_full: bool = True
    """Whether the full version has it: what is large there may have a small stand-in in the quick one."""


@dataclass(frozen=True)
class Cell:
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
    theirs_seeds: int | None = None
    """Of the published recipe, where it takes long; none: as many as of ours."""

    def measure(self, effort: Effort) -> dict[str, Any]:
        cells = self.cells(effort)
        if effort.trains:
            self.train(cells, effort)
        finished = [cell for cell in cells if cell.job.results()]
        rows = self._rows(finished, effort)
        if not rows:
            raise user_error(
                "no run of this table is finished", path=str(effort.folder), hint="leave --finished out"
            )
        return {
            "about": self.about,
            "rows": rows,
            "missing": [cell.job.name for cell in cells if cell not in finished],
            "commands": {
                **effort.kept.get("commands", {}),
                **_commands(sorted(cells, key=self._place(effort)), effort.folder),
            },
            **self.more(finished, rows, effort),
        }

    def train(self, cells: Sequence[Cell], effort: Effort) -> None:
        jobs = [cell.job for cell in cells]
        effort.run(jobs, describe=lambda results: f"{self.metric} {self.value(results):.5f}")

    @property
    def measured(self) -> str:
        """What the numbers of the table are, for people."""
        return f"test {self.metric}"

    def value(self, results: Results) -> float:
        """What a run is measured by."""
        return test_value(results, self.metric)

    def more(self, cells: Sequence[Cell], rows: list[Row], effort: Effort) -> dict[str, Any]:
        """Whatever else `results.json` should hold, pictures under `plot`; `rows` may be added to."""
        return {}

    def sections(self, document: Mapping[str, Any]) -> list[str]:
        """What `table.md` says after its table, line by line."""
        return []

    def places(self, setting: Setting, effort: Effort) -> Overrides:
        """Options that say where things are: they do not make a run another one."""
        return {}

    def chosen(self, effort: Effort) -> list[Setting]:
        return [
            setting for setting in self.settings if (setting.is_quick if effort.is_quick else setting.is_full)
        ]

    def cells(self, effort: Effort) -> list[Cell]:
        """All that are to be measured: not those that were measured earlier and are kept."""
        kept = _kept(effort)
        cells = []
        for setting in self.chosen(effort):
            recipes: dict[str, Overrides] = {OURS: {}}
            if setting.theirs is not None and effort.with_theirs:
                recipes[THEIRS] = setting.theirs
            for recipe, changes in recipes.items():
                if kept.get(setting.name, {}).get(recipe) is None:
                    seeds = range(self._seeds(recipe, effort))
                    cells += [self._cell(setting, recipe, changes, seed, effort) for seed in seeds]
        # The longest first, so that the last of several workers does not wait alone.
        sign = -1 if effort.workers > 1 else 1
        return sorted(cells, key=lambda cell: sign * cell.job.config.dump()["task"].get("length", 0))

    def _place(self, effort: Effort) -> Callable[[Cell], int]:
        """Where a cell stands in the table, whenever it is run."""
        names = [setting.name for setting in self.chosen(effort)]
        return lambda cell: names.index(cell.setting.name)

    def _seeds(self, recipe: str, effort: Effort) -> int:
        return min(effort.seeds, self.theirs_seeds or effort.seeds) if recipe == THEIRS else effort.seeds

    def _cell(self, setting: Setting, recipe: str, changes: Overrides, seed: int, effort: Effort) -> Cell:
        quick = (setting.quick or {}) if effort.is_quick else {}
        config = resolve(setting.what, setting.overrides)
        # One after another: a later layer may replace as a whole what an earlier one set in part.
        for layer in (changes, quick, {"seed": seed}):
            config = config.with_overrides(unflatten(layer))
        slug = setting.name.replace(",", "").replace(" ", "-")
        key = key_of(config)
        config = config.with_overrides(unflatten(self.places(setting, effort)))
        path = run_path(effort.folder / "runs", f"{slug}-{recipe}-{seed}", config, key)
        return Cell(setting, recipe, seed, Job(f"{setting.name}, {recipe}, seed {seed}", config, path))

    def _rows(self, cells: Sequence[Cell], effort: Effort) -> list[Row]:
        kept, rows = _kept(effort), []
        for setting in self.chosen(effort):
            row: Row = {**kept.get(setting.name, {}), "setting": setting.name, "published": setting.published}
            row.pop("kept", None)  # from a measurement before that one
            for recipe in (THEIRS, OURS):
                runs = [cell for cell in cells if (cell.setting, cell.recipe) == (setting, recipe)]
                measured = self._measured(runs)
                if not runs and setting.name in kept:
                    measured = {name: kept[setting.name].get(_key(recipe, name)) for name in measured}
                    if measured[""] is not None:
                        row.setdefault("kept", []).append(recipe)
                row |= {_key(recipe, name): value for name, value in measured.items()}
            if row[OURS] is not None or row[THEIRS] is not None:
                rows.append(row)
        return rows

    def _measured(self, runs: Sequence[Cell]) -> dict[str, Any]:
        results = [cell.job.results() for cell in runs]
        values = [self.value(result) for result in results]
        return {
            "": statistics.fmean(values) if values else None,
            "interval": student_interval(values),
            "lowest": min(values, default=None),
            "values": values,
            "seeds": [cell.seed for cell in runs],
            "steps": [result["steps"] for result in results],
            "seconds": [result["seconds"] for result in results],
            "config": runs[0].job.config.fingerprint() if runs else None,
        }

    def markdown(self, document: Mapping[str, Any]) -> str:
        lines = [f"# {self.title}", "", document["about"], "", written_by(document), ""]
        if document["missing"]:
            count = len(document["missing"])
            lines += [f"**Not finished:** {count} runs are missing, among them {document['missing'][0]}.", ""]
        lines += self.table(document)
        lines += ["", *_explained(document, self.measured), "", *self.sections(document)]
        return "\n".join(lines)

    def table(self, document: Mapping[str, Any]) -> list[str]:
        lines = ["| setting | published | their recipe | ours, mean | lowest seed | steps | seconds |"]
        lines += ["|---|---|---|---|---|---|---|"]
        for row in document["rows"]:
            cells = [row["setting"], number(row["published"])]
            cells += [with_interval(row[THEIRS], row.get("theirs_interval"))]
            cells += [with_interval(row[OURS], row.get("interval")), number(row.get("lowest"))]
            cells += [both(row, "steps", "d"), both(row, "seconds", ".0f")]
            lines.append(f"| {' | '.join(cells)} |")
        return lines


def _kept(effort: Effort) -> dict[str, Row]:
    """Of an earlier measurement, its rows by setting."""
    return {row["setting"]: row for row in effort.kept.get("rows", [])}


def _key(recipe: str, name: str) -> str:
    """In a row: `ours`, `interval`, `seeds`; `theirs`, `theirs_interval`, `theirs_seeds`."""
    if not name:
        return recipe
    return name if recipe == OURS else f"{recipe}_{name}"


def _commands(cells: Sequence[Cell], folder: Path) -> dict[str, list[str]]:
    """For each recipe, how its first run would be typed in the study's folder."""
    here = f"{folder.resolve()}/"
    commands: dict[str, list[str]] = {}
    for cell in cells:
        if cell.recipe in commands or cell.seed:
            continue
        preset = flatten(resolve(cell.setting.what).dump())
        words = [
            f"{path}={format_value(value)}".replace(here, "")
            for path, value in flatten(cell.job.config.dump()).items()
            if preset.get(path) != value and not (path not in preset and value == {})
        ]
        commands[cell.recipe] = ["glassformer", "train", cell.setting.what, *words]
    return commands


def _explained(document: Mapping[str, Any], measured: str) -> list[str]:
    rows = document["rows"]
    workers, threads = document["workers"], document["threads_per_worker"]
    total = sum(
        value for row in rows for key in ("seconds", "theirs_seconds") for value in row.get(key) or ()
    )
    has_theirs = any(row.get("theirs_seeds") for row in rows)
    most = max((len(row.get("seeds") or ()) for row in rows), default=0)
    lines = [
        f"Metric: {measured}."
        + (" Brackets: 95 % intervals of the mean over seeds, by Student's t." if most > 1 else "")
        + f" Steps and seconds: of each seed{', their recipe / ours' if has_theirs else ''}."
        f" Training time of all runs together: {total / 60:.1f} minutes,"
        f" with {workers} worker{'s' if workers > 1 else ''} of {threads} thread{'s' if threads > 1 else ''}."
    ]
    kept: dict[str, list[str]] = {}
    for row in rows:
        if row.get("kept"):
            kept.setdefault(" and ".join(row["kept"]), []).append(row["setting"])
    for recipes, settings in kept.items():
        lines += [f"Kept from an earlier measurement, not run again: {recipes} of {'; '.join(settings)}."]
    for recipe, words in document["commands"].items():
        lines += [f"The first run by {'our' if recipe == OURS else 'their'} recipe: `{shlex.join(words)}`"]
    return "\n\n".join(lines).split("\n")


def both(row: Row, name: str, form: str) -> str:
    """Of each seed: by their recipe / by ours."""
    parts = [
        "+".join(format(value, form) for value in row.get(key) or ()) for key in (f"theirs_{name}", name)
    ]
    return " / ".join(part for part in parts if part)


def with_interval(value: float | None, pair: Sequence[float] | None) -> str:
    return number(value) if pair is None else f"{number(value)} ({pair[0]:.4f} … {pair[1]:.4f})"


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.5f}"
