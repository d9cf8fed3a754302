"""The pictures of a sweep: loss and metric against each value that was varied, and Optuna's own plots."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.evaluation.metrics import falls, is_better
from glassformer.plotting.lines import FILE_DPI, STYLES
from glassformer.plotting.lines import save as write
from glassformer.plotting.style import ALARM, BODY, FAINT, HEADING, INK, MUTED, TITLE, fonts
from glassformer.sweeps.definition import Definition, short
from glassformer.sweeps.queue import Board
from glassformer.sweeps.space import is_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL_WIDTH, PANEL_HEIGHT, FRAME_HEIGHT = 4.6, 2.3, 1.5
"""Inches."""
LINES = (STYLES[0], STYLES[2], ("#CC79A7", "-", "s"))
STABLE_COLOUR = STYLES[1][0]
MOST_COLUMNS = 6
PICTURE_SIZE = (8.0, 4.5)
"""Inches, of Optuna's plots."""

Row = Mapping[str, Any]


def draw_curves(definition: Definition, rows: Sequence[Row], folder: Path) -> list[str]:
    """`curves.png` and `curves.svg`; the files' names."""
    return write(curves(definition, rows), folder / "curves")


def curves(definition: Definition, rows: Sequence[Row]) -> Figure:
    """A column a varied path, a row a metric. One path: a line with intervals; several: a point a setting."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    drawn = [row for row in rows if row["params"]]
    names = _metrics(definition, drawn)
    paths = list(definition.texts)[:MOST_COLUMNS]
    size = (max(1.4, len(paths)) * PANEL_WIDTH, len(names) * PANEL_HEIGHT + FRAME_HEIGHT)
    with rc_context({"font.family": fonts(), "font.size": BODY, "text.parse_math": False}):
        figure = Figure(size, dpi=FILE_DPI, facecolor="white")
        grid = figure.subplots(len(names), len(paths), sharex="col", sharey="row", squeeze=False)
        for line, name in enumerate(names):
            for column, path in enumerate(paths):
                _draw_panel(grid[line][column], definition, drawn, path, name, LINES[line % len(LINES)])
            grid[line][0].set_ylabel(f"validation {name}")
        for column, path in enumerate(paths):
            grid[-1][column].set_xlabel(path, fontsize=HEADING, color=INK)
        best = f"Best of {len(drawn)} settings by validation {definition.metric}"
        figure.suptitle(f"{best}: the ring", x=0.5, y=1 - 0.25 / size[1], fontsize=TITLE, color=INK)
        caption = "green: stable, within 5 % of the best and no run lost · red cross: diverged or failed"
        if definition.seeds > 1 and len(paths) == 1:
            caption += "\nbars: 95 % intervals of the mean over seeds"
        figure.text(0.5, 0.12 / size[1], caption, ha="center", fontsize=BODY, color=MUTED)
        figure.subplots_adjust(
            left=0.8 / size[0],
            right=1 - 0.2 / size[0],
            top=1 - 0.65 / size[1],
            bottom=0.95 / size[1],
            wspace=0.08,
            hspace=0.12,
        )
    return figure


def _metrics(definition: Definition, rows: Sequence[Row]) -> list[str]:
    """Loss and accuracy, and the metric that decides, as far as they were measured."""
    measured = {name for row in rows for name in row["metrics"].get("validation", {})}
    return [name for name in dict.fromkeys(["loss", "accuracy", definition.metric]) if name in measured]


def _draw_panel(
    axes: Axes,
    definition: Definition,
    rows: Sequence[Row],
    path: str,
    name: str,
    style: tuple[str, str, str],
) -> None:
    colour, line, marker = style
    places, ticks = _places(definition, rows, path)
    found = [
        (place, row["metrics"]["validation"][name], row)
        for place, row in zip(places, rows, strict=True)
        if name in row["metrics"].get("validation", {})
    ]
    found.sort(key=lambda point: point[0])
    is_line = len(definition.texts) == 1 and len(found) > 1
    stable = [point for point in found if point[2]["is_stable"]]
    halo: dict[str, Any] = {"color": STABLE_COLOUR, "alpha": 0.3, "markersize": 15, "markeredgewidth": 0}
    axes.plot([point[0] for point in stable], [point[1] for point in stable], "o", **halo)
    if is_line:
        _mark_region(axes, found)
    axes.plot(
        [point[0] for point in found],
        [point[1] for point in found],
        color=colour,
        linestyle=line if is_line else "",
        marker=marker,
        markersize=5,
        linewidth=1.6,
        zorder=3,
    )
    if len(definition.texts) == 1:  # bars of several settings at one place would hide each other
        _draw_intervals(axes, found, name, colour)
    best = _best(definition, found)
    if best is not None:
        axes.plot(best[0], best[1], "o", markersize=13, markerfacecolor="none", markeredgecolor=INK, zorder=4)
    lost = [place for place, row in zip(places, rows, strict=True) if row["state"] in ("diverged", "failed")]
    at_the_foot = axes.get_xaxis_transform()
    axes.plot(lost, [0.04] * len(lost), "x", color=ALARM, markersize=8, transform=at_the_foot, zorder=5)
    _scale(axes, definition, path, ticks)
    if not falls(name) and all(0 <= point[1] <= 1 for point in found):
        # Of few seeds, an interval reaches far beyond what a fraction can be.
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, -0.05), min(high, 1.05))


def _draw_intervals(axes: Axes, found: Sequence[tuple[float, float, Row]], name: str, colour: str) -> None:
    for place, value, row in found:
        pair = row["intervals"]["validation"].get(name)
        if pair is not None and all(map(math.isfinite, pair)):
            low, high = value - pair[0], pair[1] - value
            axes.errorbar([place], [value], yerr=[[low], [high]], color=colour, capsize=3, linewidth=1)


def _best(definition: Definition, found: Sequence[tuple[float, float, Row]]) -> tuple[float, float] | None:
    best: tuple[float, float, Row] | None = None
    for point in found:
        value = point[2]["value"]
        if point[2]["state"] == "complete" and is_better(
            definition.metric, value, None if best is None else best[2]["value"]
        ):
            best = point
    return None if best is None else best[:2]


def _mark_region(axes: Axes, found: Sequence[tuple[float, float, Row]]) -> None:
    """Stable neighbours make a region."""
    begin = end = None
    for place, is_stable in [*((point[0], point[2]["is_stable"]) for point in found), (math.inf, False)]:
        if is_stable:
            begin, end = place if begin is None else begin, place
        elif begin is not None and end is not None:
            if end > begin:
                axes.axvspan(begin, end, color=STABLE_COLOUR, alpha=0.12, linewidth=0)
            begin = end = None


def _places(definition: Definition, rows: Sequence[Row], path: str) -> tuple[list[float], list[str] | None]:
    """Where values stand: numbers as numbers, anything else side by side with its name."""
    values = [row["params"][path] for row in rows]
    if all(map(is_number, values)):
        return [float(value) for value in values], None
    listed = definition.space.axes[path].join_names() or []
    return [float(listed.index(value)) for value in values], [short(value) for value in listed]


def _scale(axes: Axes, definition: Definition, path: str, ticks: list[str] | None) -> None:
    from matplotlib.ticker import MaxNLocator

    if ticks is not None:
        axes.set_xticks(range(len(ticks)), ticks)
    elif definition.space.axes[path].is_log:
        axes.set_xscale("log")
    elif all(isinstance(value, int) for value in definition.space.axes[path].checked()):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.08, y=0.14)
    axes.grid(axis="y", color=FAINT, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def write_explorations(board: Board, folder: Path) -> tuple[dict[str, float], list[str]]:
    """Parallel coordinates and importances, if several values vary; the importances, and the files' names.

    The pages share one copy of plotly's script in the folder, so that they work without a network.
    """
    import optuna
    from optuna.trial import TrialState

    if len(board.definition.texts) < 2:
        return {}, []
    study = board.study
    complete = board.database.ask(lambda: study.get_trials(deepcopy=False, states=[TrialState.COMPLETE]))
    if len({trial.value for trial in complete}) < 2:
        return {}, []  # where all are alike, nothing is important
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importances = board.database.ask(lambda: optuna.importance.get_param_importances(study))
        metric = f"validation {board.definition.metric}"
        parallel = optuna.visualization.plot_parallel_coordinate(study, target_name=metric)
        important = optuna.visualization.plot_param_importances(study, target_name=metric)
    files = []
    for name, figure in (("parallel.html", parallel), ("importance.html", important)):
        figure.write_html(folder / name, include_plotlyjs="directory")
        files.append(name)
    files += _write_pictures(board, metric, folder)
    return {path: float(value) for path, value in importances.items()}, files


def _write_pictures(board: Board, metric: str, folder: Path) -> list[str]:
    """The same two without a script, for reports and paper, by Optuna's own drawing."""
    from matplotlib import pyplot, rc_context
    from optuna.visualization import matplotlib

    study, names = board.study, []
    plots = {
        "parallel": matplotlib.plot_parallel_coordinate,
        "importance": matplotlib.plot_param_importances,
    }
    for name, plot in plots.items():
        with warnings.catch_warnings(), rc_context({"font.family": fonts()}):  # it sets a style for all
            warnings.simplefilter("ignore")
            axes = board.database.ask(partial(plot, study, target_name=metric))
            figure = axes.get_figure()
            figure.set_size_inches(PICTURE_SIZE)
            figure.tight_layout()
            names += write(figure, folder / name)
            pyplot.close(figure)
    return names
