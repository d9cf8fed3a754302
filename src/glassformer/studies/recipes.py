"""Studies that train settings × recipes × seeds: the published recipe and ours, side by side."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassformer.core.config import flatten, format_value, unflatten
from glassformer.core.errors import user_error
from glassformer.core.registry import load_plugin
from glassformer.evaluation.intervals import student_interval
from glassformer.runs.experiment import resolve
from glassformer.studies.study import (
    Job,
    Overrides,
    Results,
    Row,
    Study,
    StudyContext,
    config_key,
    heading,
    metric_on_test,
    plural,
    run_path,
    table_head,
    table_row,
)

OURS, THEIRS = "ours", "theirs"


@dataclass(frozen=True)
class Setting:
    """Setting of one row in the table: its published value, and the preset and overrides to train."""

    name: str
    published: float | None
    source: str
    """Name of the preset to which the overrides are applied."""
    overrides: Overrides
    theirs: Overrides | None = None
    """Further overrides for the published recipe; None if that recipe is not trained."""
    is_quick: bool = False
    """True if the quick version of the study includes this row."""
    quick: Overrides | None = None
    """Further overrides for the quick version of the study."""
    is_full: bool = True
    """True if the full version of the study includes this row. Some small rows are quick-only."""
    plugins: Sequence[Path] = ()


@dataclass(frozen=True)
class RecipeRun:
    """Training run of one row, with one recipe (ours or the published one) and one seed."""

    setting: Setting
    recipe: str
    seed: int
    job: Job


@dataclass(frozen=True, kw_only=True)
class RecipeStudy(Study):
    """Study with one table row per setting. Subclasses add measurements, pictures and sections."""

    settings: Sequence[Setting]
    theirs_seeds: int | None = None
    """Maximum number of seeds for the published recipe; None uses as many seeds as our recipe."""

    def measure(self, context: StudyContext) -> dict[str, Any]:
        """Train the unfinished runs; return the table rows and further content of `results.json`."""
        runs = self.runs(context)
        if context.trains:
            self.train(runs, context)
        finished = [run for run in runs if run.job.results()]
        rows = self._rows(finished, context)
        if not rows:
            message = "no run of this table is finished"
            raise user_error(message, path=str(context.folder), hint="omit --finished")
        return {
            "rows": rows,
            "missing": [run.job.name for run in runs if run not in finished],
            "commands": {
                **context.earlier.get("commands", {}),
                **run_commands(sorted(runs, key=self._row_index(context)), context.folder),
            },
            **self.extra_results(finished, rows, context),
        }

    def train(self, runs: Sequence[RecipeRun], context: StudyContext) -> None:
        """Train the runs that are not finished."""
        jobs = [run.job for run in runs]
        context.run(jobs, describe=lambda results: f"{self.metric} {self.value(results):.5f}")

    @property
    def metric_label(self) -> str:
        """Description of the metric in `table.md`."""
        return f"test {self.metric}"

    def value(self, results: Results) -> float:
        """Return the metric of one run that the table shows."""
        return metric_on_test(results, self.metric)

    def extra_results(
        self, runs: Sequence[RecipeRun], rows: list[Row], context: StudyContext
    ) -> dict[str, Any]:
        """Return further content of `results.json`, with plot files under `plot`; may add keys to `rows`."""
        return {}

    def sections(self, document: Mapping[str, Any]) -> list[str]:
        """Return the lines of `table.md` below the table."""
        return []

    def path_overrides(self, setting: Setting, context: StudyContext) -> Overrides:
        """Return config overrides that set file paths. They do not change the hash in a run's name."""
        return {}

    def selected(self, context: StudyContext) -> list[Setting]:
        """Return the settings of the full or quick study; each setting is one row of the table."""
        is_quick = context.is_quick
        return [setting for setting in self.settings if (setting.is_quick if is_quick else setting.is_full)]

    def runs(self, context: StudyContext) -> list[RecipeRun]:
        """Return all runs of the study, except those whose results are reused from an earlier measurement."""
        earlier = _earlier_rows(context)
        runs = []
        for setting in self.selected(context):
            recipes: dict[str, Overrides] = {OURS: {}}
            if setting.theirs is not None and context.with_theirs:
                recipes[THEIRS] = setting.theirs
            for recipe, changes in recipes.items():
                if earlier.get(setting.name, {}).get(recipe) is None:
                    seeds = range(self._seed_count(recipe, context))
                    runs += [self._run(setting, recipe, changes, seed, context) for seed in seeds]
        # Longest first, so that no worker starts a long run while the others are already idle.
        sign = -1 if context.workers > 1 else 1
        return sorted(runs, key=lambda run: sign * run.job.config.dump()["task"].get("length", 0))

    def _row_index(self, context: StudyContext) -> Callable[[RecipeRun], int]:
        names = [setting.name for setting in self.selected(context)]
        return lambda run: names.index(run.setting.name)

    def _seed_count(self, recipe: str, context: StudyContext) -> int:
        return min(context.seeds, self.theirs_seeds or context.seeds) if recipe == THEIRS else context.seeds

    def _run(
        self, setting: Setting, recipe: str, changes: Overrides, seed: int, context: StudyContext
    ) -> RecipeRun:
        for plugin in setting.plugins:
            load_plugin(plugin)
        quick = (setting.quick or {}) if context.is_quick else {}
        config = resolve(setting.source, setting.overrides)
        # One layer after another: a later one may replace a whole section that an earlier one changed.
        for layer in (changes, quick, {"seed": seed}):
            config = config.with_overrides(unflatten(layer))
        slug = setting.name.replace(",", "").replace(" ", "-")
        key = config_key(config)
        config = config.with_overrides(unflatten(self.path_overrides(setting, context)))
        path = run_path(context.folder / "runs", f"{slug}-{recipe}-{seed}", config, key)
        job = Job(f"{setting.name}, {recipe}, seed {seed}", config, path, setting.plugins)
        return RecipeRun(setting, recipe, seed, job)

    def _rows(self, runs: Sequence[RecipeRun], context: StudyContext) -> list[Row]:
        earlier, rows = _earlier_rows(context), []
        for setting in self.selected(context):
            row: Row = {
                **earlier.get(setting.name, {}),
                "setting": setting.name,
                "published": setting.published,
            }
            row.pop("kept", None)  # refers to an even earlier measurement
            for recipe in (THEIRS, OURS):
                own = [run for run in runs if (run.setting, run.recipe) == (setting, recipe)]
                measured = self._summary(own)
                if not own and setting.name in earlier:
                    measured = {name: earlier[setting.name].get(_row_key(recipe, name)) for name in measured}
                    if measured[""] is not None:
                        row.setdefault("kept", []).append(recipe)
                row |= {_row_key(recipe, name): value for name, value in measured.items()}
            if row[OURS] is not None or row[THEIRS] is not None:
                rows.append(row)
        return rows

    def _summary(self, runs: Sequence[RecipeRun]) -> dict[str, Any]:
        results = [run.job.results() for run in runs]
        values = [self.value(result) for result in results]
        return {
            "": statistics.fmean(values) if values else None,
            "interval": student_interval(values),
            "lowest": min(values, default=None),
            "values": values,
            "seeds": [run.seed for run in runs],
            "steps": [result["steps"] for result in results],
            "seconds": [result["seconds"] for result in results],
            "config": runs[0].job.config.fingerprint() if runs else None,
        }

    def markdown(self, document: Mapping[str, Any]) -> str:
        """Return the text of `table.md` for the content of `results.json`."""
        lines = heading(document)
        if document["missing"]:
            count = len(document["missing"])
            lines += [f"**Not finished:** {count} runs are missing, among them {document['missing'][0]}.", ""]
        lines += self.table(document)
        lines += ["", *_explanation(document, self.metric_label), "", *self.sections(document)]
        return "\n".join(lines)

    def table(self, document: Mapping[str, Any]) -> list[str]:
        """Return the lines of the Markdown table."""
        lines = table_head(
            "setting", "published", "their recipe", "ours, mean", "lowest seed", "steps", "seconds"
        )
        for row in document["rows"]:
            theirs = with_interval(row[THEIRS], row.get("theirs_interval"))
            cells = [row["setting"], number(row["published"]), theirs]
            cells += [with_interval(row[OURS], row.get("interval")), number(row.get("lowest"))]
            lines.append(table_row([*cells, *costs(row)]))
        return lines


def _earlier_rows(context: StudyContext) -> dict[str, Row]:
    """Return the rows of an earlier measurement, by the name of their setting."""
    return {row["setting"]: row for row in context.earlier.get("rows", [])}


def _row_key(recipe: str, name: str) -> str:
    """Return the key of a value in a table row: `seeds` for our recipe, `theirs_seeds` for the published one.

    Without a name, the key is the name of the recipe.
    """
    if not name:
        return recipe
    return name if recipe == OURS else f"{recipe}_{name}"


def run_commands(runs: Sequence[RecipeRun], folder: Path) -> dict[str, list[str]]:
    """Return the command of each recipe's first run, with paths relative to the study's folder."""
    prefix = f"{folder.resolve()}/"
    commands: dict[str, list[str]] = {}
    for run in runs:
        if run.recipe in commands or run.seed:
            continue
        preset = flatten(resolve(run.setting.source).dump())
        words = [
            f"{path}={format_value(value)}".replace(prefix, "")
            for path, value in flatten(run.job.config.dump()).items()
            if preset.get(path) != value and not (path not in preset and value == {})
        ]
        plugins = [word for plugin in run.job.plugins for word in ("--plugin", plugin.name)]
        commands[run.recipe] = ["glassformer", "train", run.setting.source, *words, *plugins]
    return commands


def _explanation(document: Mapping[str, Any], metric_label: str) -> list[str]:
    rows = document["rows"]
    seconds = [row.get(key) or () for row in rows for key in ("seconds", "theirs_seconds")]
    total = sum(value for values in seconds for value in values)
    has_theirs = any(row.get("theirs_seeds") for row in rows)
    seeds = max((len(row.get("seeds") or ()) for row in rows), default=0)
    workers, threads = document["workers"], document["threads_per_worker"]
    lines = [
        f"Metric: {metric_label}."
        + (" Brackets: 95 % intervals of the mean over seeds (Student's t)." if seeds > 1 else "")
        + f" Steps and seconds: one value per seed{', their recipe / ours' if has_theirs else ''}."
        f" Total training time: {total / 60:.1f} minutes,"
        f" with {plural(workers, 'worker')} of {plural(threads, 'thread')}."
    ]
    kept: dict[str, list[str]] = {}
    for row in rows:
        if row.get("kept"):
            kept.setdefault(" and ".join(row["kept"]), []).append(row["setting"])
    for recipes, settings in kept.items():
        lines += [f"Reused from an earlier measurement: {recipes} of {'; '.join(settings)}."]
    for recipe, words in document["commands"].items():
        lines += [f"First run with {'our' if recipe == OURS else 'their'} recipe: `{shlex.join(words)}`"]
    return "\n\n".join(lines).split("\n")


def costs(row: Row) -> list[str]:
    """Return two table cells: steps and seconds of each seed, for the published recipe and for ours."""
    cells = []
    for name, form in (("steps", "d"), ("seconds", ".0f")):
        values = [row.get(key) or () for key in (f"theirs_{name}", name)]
        cells.append(
            " / ".join("+".join(format(value, form) for value in seeds) for seeds in values if seeds)
        )
    return cells


def with_interval(value: float | None, pair: Sequence[float] | None) -> str:
    """Return the value as text, followed by its confidence interval in brackets if there is one."""
    return number(value) if pair is None else f"{number(value)} ({pair[0]:.4f} … {pair[1]:.4f})"


def number(value: float | None) -> str:
    """Return the value as text with five decimals, or an empty text for None."""
    return "" if value is None else f"{value:.5f}"
