"""Results of a sweep: one row per setting with means and intervals, the best setting, table and plots."""

from __future__ import annotations

import itertools
import math
import statistics
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.core.config import dump_yaml
from glassformer.evaluation.intervals import student_interval
from glassformer.evaluation.metrics import is_better, lower_is_better
from glassformer.plotting.lines import STYLES, Axis, Chart, Line, draw, save
from glassformer.plotting.style import ALARM, INK, fonts
from glassformer.runs.experiment import position_notes
from glassformer.storage.files import atomic_write, finite, json_bytes
from glassformer.sweeps.definition import SweepDefinition, setting_text, short_value
from glassformer.sweeps.queue import (
    Key,
    TrialQueue,
    active_trials,
    attempts,
    is_exhausted,
    trial_key,
    trial_state,
)
from glassformer.sweeps.space import is_number
from glassformer.sweeps.storage import without_password

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from optuna.trial import FrozenTrial

NEAR_BEST = 0.95
"""Share of the best metric that a combination without failed runs needs to be in the best group."""
WORST_FIRST = ("failed", "diverged", "pruned", "running", "waiting")
"""States from worst to best. A combination of option values has the worst state of its runs."""

Row = dict[str, Any]


def write_results(queue: TrialQueue, folder: Path, command: Sequence[str] = ()) -> dict[str, Any]:
    """Write `results.json`, `table.md`, `best.yaml` and plots; return the content of `results.json`.

    `command` is the command line that repeats the sweep. It is stored in `results.json`.
    """
    definition, trials = queue.definition, queue.trials()
    entries = trial_entries(definition, trials)
    rows, states = setting_rows(definition, entries), [entry["state"] for entry in entries]
    best = best_row(definition, rows)
    mark_best_group(definition, rows, best)
    document: dict[str, Any] = {
        "study": queue.name,
        "storage": without_password(queue.database.url),
        "folder": str(folder),
        "command": list(command),
        "metric": definition.metric,
        "varied": dict(definition.texts),
        "sampler": definition.sampler,
        "pruner": definition.pruner,
        "seeds": list(definition.seed_range()),
        "best": None if best is None else {**best, "config": str(folder / "best.yaml")},
        "settings": rows,
        "notes": position_notes(*(definition.config(row["params"]) for row in rows if row["params"])),
        "warnings": list(dict.fromkeys(text for entry in entries for text in entry["warnings"])),
        "trials": entries,
        "counts": {state: states.count(state) for state in ("complete", *WORST_FIRST)},
        "files": ["results.json", "table.md"],
    }
    if best is not None:
        atomic_write(folder / "best.yaml", _best_yaml(definition, best, folder).encode())
        document["files"] += ["best.yaml", *draw_curves(definition, rows, folder)]
        importances, files = write_optuna_plots(queue, folder)
        document["importances"] = importances
        document["files"] += files
    atomic_write(folder / "table.md", markdown(definition, document).encode())
    atomic_write(folder / "results.json", json_bytes(finite(document)))
    return document


def trial_entries(definition: SweepDefinition, trials: Sequence[FrozenTrial]) -> list[dict[str, Any]]:
    """Return one dict per trained combination of option values and seed, with its state and metrics."""
    counted = active_trials(trials)
    for trial in trials:  # exhausted trials count with their last attempt
        key = trial_key(trial)
        if key not in counted and trial_state(trial) == "abandoned":
            counted[key] = attempts(trials, key)[0]
    return [
        _entry(definition, counted[key], attempts(trials, key), key)
        for key in sorted(counted)
        if key[1] in definition.seed_range()
    ]


def _entry(
    definition: SweepDefinition, trial: FrozenTrial, abandoned: Sequence[FrozenTrial], key: Key
) -> dict[str, Any]:
    attributes, state = trial.user_attrs, trial_state(trial)
    explanation = attributes.get("explanation")
    if state == "abandoned":
        state = "failed" if is_exhausted(abandoned) else "waiting"
        explanation = f"its worker died {len(abandoned)} times" if state == "failed" else None
    is_drawn = trial.params.keys() == definition.texts.keys()
    return {
        "trial": key[0],
        "seed": key[1],
        "params": definition.space.point(trial.params) if is_drawn else {},
        "state": state,
        "run": _relative(attributes.get("run")),
        "metrics": attributes.get("metrics", {}),
        "steps": attributes.get("steps"),
        "seconds": attributes.get("seconds"),
        "warnings": attributes.get("warnings", []),
        "attempts": len(abandoned) + (state not in ("waiting",) and trial_state(trial) != "abandoned"),
        "explanation": explanation,
    }


def _relative(path: str | None) -> str | None:
    """Return the path relative to the working directory, or unchanged if it is outside that directory."""
    if path is None or not Path(path).is_relative_to(Path.cwd()):
        return path
    return str(Path(path).relative_to(Path.cwd()))


def setting_rows(definition: SweepDefinition, entries: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return one row per combination of option values, with means and confidence intervals over its seeds."""
    rows: list[Row] = []
    for setting in sorted({entry["trial"] for entry in entries}):
        runs = [entry for entry in entries if entry["trial"] == setting]
        states = {entry["state"] for entry in runs}
        complete = [entry for entry in runs if entry["state"] == "complete"]
        means, intervals = _means([entry["metrics"] for entry in complete])
        is_whole = states == {"complete"} and len(runs) == definition.seeds
        rows.append(
            {
                "trial": setting,
                "params": next((entry["params"] for entry in runs if entry["params"]), {}),
                # A setting with missing seeds is waiting.
                "state": "complete" if is_whole else next((s for s in WORST_FIRST if s in states), "waiting"),
                "seeds": [entry["seed"] for entry in complete],
                "value": means.get("validation", {}).get(definition.metric),
                "interval": intervals.get("validation", {}).get(definition.metric),
                "metrics": means,
                "intervals": intervals,
                "runs": [entry["run"] for entry in runs],
            }
        )
    return rows


def _means(
    measured: Sequence[Mapping[str, Mapping[str, float]]],
) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, list[float] | None]]]:
    """Compute means and confidence intervals by split and metric, for metrics that all runs have."""
    means: dict[str, dict[str, float]] = {}
    intervals: dict[str, dict[str, list[float] | None]] = {}
    for split in measured[0] if measured else ():
        for name in measured[0][split]:
            values = [run.get(split, {}).get(name) for run in measured]
            numbers = [float(value) for value in values if value is not None]
            if len(numbers) == len(values):
                means.setdefault(split, {})[name] = statistics.fmean(numbers)
                intervals.setdefault(split, {})[name] = student_interval(numbers)
    return means, intervals


def best_row(definition: SweepDefinition, rows: Sequence[Row]) -> Row | None:
    """Return the row with the best mean on the validation set, among rows whose runs are all complete."""
    best: Row | None = None
    for row in filter(_is_complete, rows):
        if is_better(definition.metric, row["value"], None if best is None else best["value"]):
            best = row
    return best


def _is_complete(row: Row) -> bool:
    return row["state"] == "complete" and row["value"] is not None


def mark_best_group(definition: SweepDefinition, rows: Sequence[Row], best: Row | None) -> None:
    """Set `is_best_group` in every row: True if no run failed and the metric is close to the best row."""
    for row in rows:
        row["is_best_group"] = (
            best is not None
            and _is_complete(row)
            and _is_near(definition.metric, row["value"], best["value"])
        )


def _is_near(metric: str, value: float, best: float) -> bool:
    return value * NEAR_BEST <= best if lower_is_better(metric) else value >= NEAR_BEST * best


def _best_yaml(definition: SweepDefinition, best: Row, folder: Path) -> str:
    value, seeds, pair = short_value(best["value"]), len(best["seeds"]), best["interval"]
    value += ", 1 seed" if seeds == 1 else f", mean of {seeds} seeds"
    value += "" if pair is None else f", 95 % interval {short_value(pair[0])} … {short_value(pair[1])}"
    config = definition.config(best["params"], definition.first_seed)
    return (
        f"# {setting_text(best['params'])}: the best setting of a sweep\n"
        f"# validation {definition.metric} {value}\n"
        f"# glassformer train {folder / 'best.yaml'}\n{dump_yaml(config.dump())}"
    )


def results_table(document: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the headings and one line per combination of option values, best first and unmeasured last."""
    rows, metric, varied = document["settings"], document["metric"], list(document["varied"])
    has_test = any("test" in row["metrics"] for row in rows)
    head = [path.rpartition(".")[2] for path in varied]
    if len(set(head)) < len(head):
        head = varied
    has_interval = any(row["interval"] is not None for row in rows)
    head += [f"validation {metric}", *(["95 % interval"] if has_interval else [])]
    head += [*(["loss"] if metric != "loss" else [])]
    head += [*([f"test {metric}"] if has_test else []), "runs", "state"]
    sign = 1 if lower_is_better(metric) else -1
    lines = []
    for row in sorted(rows, key=lambda row: (_is_last(row), sign * (row["value"] or 0.0), row["trial"])):
        pair, means = row["interval"], row["metrics"]
        line = [short_value(row["params"].get(path, "")) for path in varied]
        line += [_number(row["value"])]
        line += [f"{pair[0]:.4f} … {pair[1]:.4f}" if pair else ""] if has_interval else []
        line += [_number(means.get("validation", {}).get("loss"))] if metric != "loss" else []
        line += [_number(means.get("test", {}).get(metric))] if has_test else []
        state = (
            "best group" if row["is_best_group"] else "worse" if row["state"] == "complete" else row["state"]
        )
        lines.append([*line, str(len(row["seeds"])), state])
    return head, lines


def table_notes(document: Mapping[str, Any]) -> list[str]:
    """Return notes below the table: what `best group` and `worse` mean, and why some values must be worse."""
    rows, near = document["settings"], f"within {100 * (1 - NEAR_BEST):.0f} % of the best"
    notes = []
    if any(row["is_best_group"] for row in rows):
        notes.append(f"best group: no run failed, and validation {document['metric']} is {near}")
    if any(row["state"] == "complete" and not row["is_best_group"] for row in rows):
        notes.append(f"worse: no run failed, but validation {document['metric']} is not {near}")
    if len(document["seeds"]) == 1:
        notes.append("an interval needs several runs per combination: add --seeds 3")
    return [*notes, *document["notes"]]


def failure_notes(document: Mapping[str, Any]) -> list[str]:
    """Return one line for each run that is not complete, with the reason."""
    return [
        f"{setting_text(entry['params'])}, seed {entry['seed']} {entry['state']}: {entry['explanation']}"
        for entry in document["trials"]
        if entry["explanation"]
    ]


def _is_last(row: Row) -> tuple[bool, bool]:
    return row["value"] is None, row["state"] != "complete"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def markdown(definition: SweepDefinition, document: Mapping[str, Any]) -> str:
    """Return the text of `table.md`, the results table in Markdown."""
    head, lines = results_table(document)
    varied = ", ".join(f"`{path}={text}`" for path, text in definition.texts.items())
    text = [f"# Sweep {document['study']}", "", f"Varied: {varied}. Sampler: {definition.sampler}."]
    text += ["", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    text += [f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines]
    text += ["", *(f"- {note}" for note in (*document["warnings"], *failure_notes(document)))]
    text += ["", f"The best setting is chosen by validation {definition.metric}, never by the test set."]
    text += ["", *(f"- {note}" for note in table_notes(document)), ""]
    counts = ", ".join(f"{count} {state}" for state, count in document["counts"].items() if count)
    return "\n".join([*text, f"Runs: {counts}.", ""])


# ---------------------------------------------------------------- plots

MAX_COLUMNS = 6
SERIES = (0, 2, 3)
"""Index of the plot style of each metric. Index 1 is the green that marks the best group."""
BEST_COLOUR = STYLES[1][0]
OPTUNA_SIZE = (8.0, 4.5)
"""Width and height of Optuna's plots, in inches."""

RowPoint = tuple[float, float, Row]
"""Point in a plot: x position of the varied value, value of the metric, and row of the results."""


def draw_curves(definition: SweepDefinition, rows: Sequence[Row], folder: Path) -> list[str]:
    """Plot each metric against each varied option to `curves.png` and `curves.svg`; return their names.

    One varied number gives a line with confidence intervals. Names, and several varied options, give one
    point per combination.
    """
    rows = [row for row in rows if row["params"]]
    measured = {name for row in rows for name in row["metrics"].get("validation", {})}
    names = [name for name in dict.fromkeys(["loss", "accuracy", definition.metric]) if name in measured]
    paths = list(definition.texts)[:MAX_COLUMNS]
    panels = [(name, path) for name in names for path in paths]
    charts = [_chart(definition, rows, path, name, SERIES[names.index(name)]) for name, path in panels]
    title = f"Ring: best of {len(rows)} settings by validation {definition.metric}"
    caption = "green: best group, within 5 % of the best and no failed run · red cross: diverged or failed"
    if definition.seeds > 1 and len(paths) == 1:
        caption += "\nbars: 95 % intervals of the mean over seeds"
    figure = draw(charts, title, caption, columns=len(paths))
    for axes, (name, path) in zip(figure.axes, panels, strict=True):
        _mark(axes, definition, rows, path, name)
    return save(figure, folder / "curves")


def _chart(definition: SweepDefinition, rows: Sequence[Row], path: str, name: str, series: int) -> Chart:
    points = _points(definition, rows, path, name)
    values, is_alone = definition.space.axes[path], len(definition.texts) == 1
    is_numeric = _is_numeric(rows, path)
    x = Axis(
        path,
        is_log=is_numeric and values.is_log,
        is_whole=not values.is_log and all(isinstance(value, int) for value in values.checked()),
        categories=None if is_numeric else [short_value(value) for value in values.listed() or ()],
    )
    intervals = [row["intervals"]["validation"].get(name) for _, _, row in points] if is_alone else []
    finite = [pair if pair is not None and all(map(math.isfinite, pair)) else None for pair in intervals]
    line = Line(
        "",
        [point[:2] for point in points],
        finite,  # not with several paths: bars of several settings at one value would overlap
        has_bars=True,
        series=series,
        is_connected=is_alone and is_numeric and len(points) > 1,  # names have no order
    )
    return Chart("", [line], x, Axis(f"validation {name}"))


def _is_numeric(rows: Sequence[Row], path: str) -> bool:
    """Return True if all values of a varied option are numbers."""
    return all(is_number(row["params"][path]) for row in rows)


def _position(definition: SweepDefinition, rows: Sequence[Row], path: str, row: Row) -> float:
    """Return the x position of a row: the value if all values are numbers, otherwise the value's index."""
    if _is_numeric(rows, path):
        return float(row["params"][path])
    return float((definition.space.axes[path].listed() or []).index(row["params"][path]))


def _points(definition: SweepDefinition, rows: Sequence[Row], path: str, name: str) -> list[RowPoint]:
    points = [
        (_position(definition, rows, path, row), row["metrics"]["validation"][name], row)
        for row in rows
        if name in row["metrics"].get("validation", {})
    ]
    return sorted(points, key=lambda point: point[0])


def _mark(axes: Axes, definition: SweepDefinition, rows: Sequence[Row], path: str, name: str) -> None:
    """Mark in a plot the best combination of option values, nearly as good ones, and failed runs."""
    points = _points(definition, rows, path, name)
    near = [point for point in points if point[2]["is_best_group"]]
    halo: dict[str, Any] = {"color": BEST_COLOUR, "alpha": 0.3, "markersize": 15, "markeredgewidth": 0}
    axes.plot([point[0] for point in near], [point[1] for point in near], "o", **halo)
    if len(definition.texts) == 1 and _is_numeric(rows, path):
        for left, right in itertools.pairwise(points):  # neighbours of the best group form a region
            if left[2]["is_best_group"] and right[2]["is_best_group"]:
                axes.axvspan(left[0], right[0], color=BEST_COLOUR, alpha=0.12, linewidth=0)
    best = best_row(definition, [row for _, _, row in points])
    ring: dict[str, Any] = {"markersize": 13, "markerfacecolor": "none", "markeredgecolor": INK, "zorder": 4}
    for x, y, row in points:
        if row is best:
            axes.plot(x, y, "o", **ring)
    failed = [row for row in rows if row["state"] in ("diverged", "failed")]
    xs = [_position(definition, rows, path, row) for row in failed]
    at_bottom = axes.get_xaxis_transform()
    axes.plot(xs, [0.04] * len(xs), "x", color=ALARM, markersize=8, transform=at_bottom, zorder=5)
    axes.margins(x=0.08, y=0.14)
    if not lower_is_better(name) and all(0 <= y <= 1 for _, y, _ in points):
        low, high = axes.get_ylim()  # an interval of few seeds may extend far beyond a fraction's range
        axes.set_ylim(max(low, -0.05), min(high, 1.05))


def write_optuna_plots(queue: TrialQueue, folder: Path) -> tuple[dict[str, float], list[str]]:
    """Write Optuna's parallel-coordinate and importance plots if the sweep varies several options.

    Return the importance of each option and the file names. The HTML pages share one copy of plotly's script
    in the folder, so they work offline. PNG and SVG files of the same plots are for reports and print.
    """
    import optuna
    from matplotlib import pyplot, rc_context
    from optuna.trial import TrialState
    from optuna.visualization import matplotlib as static

    study, query = queue.study, queue.database.query
    complete = query(lambda: study.get_trials(deepcopy=False, states=[TrialState.COMPLETE]))
    if len(queue.definition.texts) < 2 or len({trial.value for trial in complete}) < 2:
        return {}, []  # importances need several paths and different values
    metric, interactive = f"validation {queue.definition.metric}", optuna.visualization
    plots = {
        "parallel": (interactive.plot_parallel_coordinate, static.plot_parallel_coordinate),
        "importance": (interactive.plot_param_importances, static.plot_param_importances),
    }
    files = []
    # Optuna's matplotlib plots change the global style, which the context restores.
    with warnings.catch_warnings(), rc_context({"font.family": fonts()}):
        warnings.simplefilter("ignore")
        importances = query(lambda: optuna.importance.get_param_importances(study))
        for name, (draw_page, draw_picture) in plots.items():
            page = query(partial(draw_page, study, target_name=metric))
            page.write_html(folder / f"{name}.html", include_plotlyjs="directory")
            figure = query(partial(draw_picture, study, target_name=metric)).get_figure()
            figure.set_size_inches(OPTUNA_SIZE)
            figure.tight_layout()
            files += [f"{name}.html", *save(figure, folder / name)]
            pyplot.close(figure)
    return {path: float(value) for path, value in importances.items()}, files
