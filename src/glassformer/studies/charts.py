"""Lines with bands over seeds, a panel beside a panel, as PNG and SVG.

Knows numbers and names, nothing of runs.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from glassformer.plotting.style import BODY, FAINT, HEADING, INK, MUTED, TITLE, fonts
from glassformer.storage.files import replace_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Okabe and Ito's colours, which the colour-blind tell apart; dashes and markers serve who prints in grey.
STYLES = (
    ("#D55E00", "-", "o"),
    ("#009E73", "--", "s"),
    ("#0072B2", "-", "^"),
    ("#CC79A7", "--", "D"),
    ("#E69F00", "-", "v"),
    ("#56B4E9", "--", "P"),
    ("#000000", "-", "X"),
    ("#7F7F7F", ":", "*"),
    ("#8C564B", "-.", "<"),
    ("#6A3D9A", ":", ">"),
)
LEVEL_STYLE = ("#000000", ":")
PANEL_WIDTH, PANEL_HEIGHT, FRAME_HEIGHT = 3.7, 2.5, 1.6
"""Inches."""
LEGEND_COLUMNS = 4
LEGEND_LINE = 0.2
"""Inches a line of the legend."""
MOST_MARKERS = 12
FILE_DPI = 160


@dataclass(frozen=True)
class Line:
    name: str
    xs: Sequence[float]
    runs: Sequence[Sequence[float]]
    """A list for each seed, with a value for each x; a shorter one ended early."""


@dataclass(frozen=True)
class Panel:
    title: str
    lines: Sequence[Line]
    x_label: str
    y_label: str
    is_log: bool = False
    """The horizontal axis."""
    is_log_height: bool = False
    """The vertical axis."""
    is_whole: bool = False
    """Only whole numbers stand on it."""
    is_fraction: bool = False
    """The vertical axis shows per cent."""
    level: tuple[str, float] | None = None
    """A horizontal line with its name."""
    limit: tuple[str, float] | None = None
    """A vertical line with its name."""


def draw(panels: Sequence[Panel], title: str, caption: str, columns: int | None = None) -> Figure:
    """Panels of a row share the vertical axis if they show the same."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    columns = columns or len(panels)
    rows = -(-len(panels) // columns)
    legend_lines = -(-len(_names(panels)) // LEGEND_COLUMNS)
    width = max(2.3, columns) * PANEL_WIDTH
    height = rows * PANEL_HEIGHT + FRAME_HEIGHT + legend_lines * LEGEND_LINE
    shared: Any = "row" if len({panel.y_label for panel in panels[:columns]}) == 1 else False
    with rc_context({"font.family": fonts(), "font.size": BODY, "text.parse_math": False}):
        figure = Figure((width, height), dpi=FILE_DPI, facecolor="white")
        grid = figure.subplots(rows, columns, sharey=shared, squeeze=False)
        for place in grid.flat[len(panels) :]:
            place.set_axis_off()
        names = _names(panels)
        for number, (axes, panel) in enumerate(zip(grid.flat, panels, strict=False)):
            _draw_panel(axes, panel, names)
            if not shared or number % columns == 0:
                axes.set_ylabel(panel.y_label)
        _add_legend(figure, grid, height)
        figure.suptitle(title, x=0.5, y=1 - 0.12 / height, fontsize=TITLE, color=INK)
        figure.text(0.5, 0.12 / height, caption, ha="center", fontsize=BODY, color=MUTED)
        figure.subplots_adjust(
            left=0.75 / width,
            right=1 - 0.2 / width,
            top=1 - (0.75 + legend_lines * LEGEND_LINE) / height,
            bottom=0.8 / height,
            wspace=0.08 if shared else 0.24,
            hspace=0.5,
        )
    return figure


def _names(panels: Sequence[Panel]) -> list[str]:
    """Of all lines: one that is missing in a panel keeps its colour in the others."""
    return list(dict.fromkeys(line.name for panel in panels for line in panel.lines))


def _add_legend(figure: Figure, grid: np.ndarray, height: float) -> None:
    handles: dict[str, Any] = {}
    for axes in grid.flat:
        of_panel, labels = axes.get_legend_handles_labels()
        handles |= {label: handle for label, handle in zip(labels, of_panel, strict=True)}
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="upper center",
        bbox_to_anchor=(0.5, 1 - 0.35 / height),
        ncols=LEGEND_COLUMNS,
        frameon=False,
    )


def _draw_panel(axes: Axes, panel: Panel, names: Sequence[str]) -> None:
    from matplotlib.ticker import MaxNLocator

    for line in panel.lines:
        _draw_line(axes, line, STYLES[names.index(line.name) % len(STYLES)])
    if panel.level is not None:
        colour, dashes = LEVEL_STYLE
        axes.axhline(panel.level[1], color=colour, linestyle=dashes, linewidth=1.6, label=panel.level[0])
    if panel.limit is not None:
        axes.axvline(panel.limit[1], color=MUTED, linestyle="--", linewidth=1.0, label=panel.limit[0])
    axes.set_title(panel.title, fontsize=HEADING, color=INK)
    axes.set_xlabel(panel.x_label)
    if panel.is_log:
        axes.set_xscale("log")
        if panel.is_whole:
            whole = sorted({round(x) for line in panel.lines for x in line.xs})
            axes.set_xticks(whole, [f"{x:,}" for x in whole], minor=False)
            axes.minorticks_off()
    elif panel.is_whole:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    if panel.is_log_height:
        axes.set_yscale("log")
    if panel.is_fraction:
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}".replace("%", " %"))
    axes.grid(axis="y", color=FAINT, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_line(axes: Axes, line: Line, style: tuple[str, str, str]) -> None:
    colour, dashes, marker = style
    count = min(len(run) for run in line.runs)  # a mean is over all seeds or none
    values = np.array([run[:count] for run in line.runs])
    xs = np.array(line.xs[:count])
    axes.fill_between(xs, values.min(0), values.max(0), color=colour, alpha=0.18, linewidth=0)
    axes.plot(
        xs,
        values.mean(0),
        color=colour,
        linestyle=dashes,
        linewidth=1.8,
        marker=marker,
        markersize=4.5,
        markevery=max(1, -(-count // MOST_MARKERS)),
        label=line.name,
    )


def write(figure: Figure, stem: Path) -> list[str]:
    """As PNG and SVG, the same bytes for the same numbers; the files' names."""
    from matplotlib import rc_context

    names = []
    # A PNG tells what wrote it, an SVG when: neither belongs in a result.
    for ending, metadata in ((".png", {"Software": None}), (".svg", {"Date": None})):
        buffer = io.BytesIO()
        with rc_context({"svg.hashsalt": "glassformer"}):
            figure.savefig(buffer, format=ending[1:], metadata=metadata)
        replace_file(stem.with_suffix(ending), buffer.getvalue())
        names.append(stem.with_suffix(ending).name)
    return names
