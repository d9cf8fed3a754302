"""Validation accuracy against epochs, an arm a line with a band over its seeds; a panel a number of labels.

Knows numbers and names, nothing of runs.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from glassformer.inspection.sheet import BODY, FAINT, HEADING, INK, MUTED, TITLE, fonts
from glassformer.training.files import replace_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which the colour-blind tell apart; the dashes serve who prints in grey.
STYLES = (("#D55E00", "-", "o"), ("#009E73", "--", "s"), ("#0072B2", "-", "^"))
CONTROL_STYLE = ("#000000", ":")
PANEL_WIDTH, HEIGHT = 3.7, 4.1
"""Inches."""
MOST_MARKERS = 12
FILE_DPI = 160


@dataclass(frozen=True)
class Panel:
    title: str
    curves: Mapping[str, Sequence[Sequence[float]]]
    """By arm, a list for each seed, with a value for each epoch."""
    control: float | None


def draw(panels: Sequence[Panel], title: str, control_name: str, caption: str) -> Figure:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"font.family": fonts(), "font.size": BODY, "text.parse_math": False}):
        figure = Figure((max(2.3, len(panels)) * PANEL_WIDTH, HEIGHT), dpi=FILE_DPI, facecolor="white")
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for place, panel in zip(axes, panels, strict=True):
            _draw_panel(place, panel, control_name)
        axes[0].set_ylabel("validation accuracy")
        axes[0].yaxis.set_major_formatter(lambda value, _: f"{value:.0%}".replace("%", " %"))
        handles, labels = axes[0].get_legend_handles_labels()
        figure.suptitle(title, x=0.5, y=0.975, fontsize=TITLE, color=INK)
        figure.legend(
            handles, labels, loc="upper center", bbox_to_anchor=(0.5, 0.925), ncols=4, frameon=False
        )
        figure.text(0.5, 0.025, caption, ha="center", fontsize=BODY, color=MUTED)
        inch = 1 / figure.get_figwidth()
        figure.subplots_adjust(left=0.75 * inch, right=1 - 0.2 * inch, top=0.77, bottom=0.19, wspace=0.08)
    return figure


def _draw_panel(axes: Axes, panel: Panel, control_name: str) -> None:
    from matplotlib.ticker import MaxNLocator

    for (name, runs), (colour, line, marker) in zip(panel.curves.items(), STYLES, strict=False):
        epochs = min(len(run) for run in runs)  # a run may stop early: a mean is over all seeds or none
        values = np.array([run[:epochs] for run in runs])
        numbers = np.arange(1, epochs + 1)
        axes.fill_between(numbers, values.min(0), values.max(0), color=colour, alpha=0.18, linewidth=0)
        axes.plot(
            numbers,
            values.mean(0),
            color=colour,
            linestyle=line,
            linewidth=1.8,
            marker=marker,
            markersize=4.5,
            markevery=max(1, -(-epochs // MOST_MARKERS)),
            label=name,
        )
    if panel.control is not None:
        colour, line = CONTROL_STYLE
        axes.axhline(panel.control, color=colour, linestyle=line, linewidth=1.6, label=control_name)
    axes.set_title(panel.title, fontsize=HEADING, color=INK)
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    axes.grid(axis="y", color=FAINT, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


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
