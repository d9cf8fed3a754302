"""Grids of effects as a figure: one panel per kind of site, layers down, positions or heads across."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from glassformer.core.errors import shorten, user_error
from glassformer.plotting.style import BODY, HEADING, INK, MUTED, SMALL, drawable, visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from glassformer.inspection.patching import PatchedSite, PatchResult

MOST_LABELS = 40
"""Maximum number of columns with a label each."""
TITLE = 40
"""Maximum number of characters of each input in the title."""


@dataclass(frozen=True)
class Panel:
    """Cells of one panel, with values from −1 to 1."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    """Labels of the columns; none if there are too many cells per row."""
    cells: np.ndarray
    """Values (rows, columns)."""
    shows_numbers: bool = False
    """True to write each value into its cell."""


def draw_panels(panels: Sequence[Panel], title: str, caption: str) -> Figure:
    """Draw panels below each other with one colour scale: blue is 1, white is 0, red is −1."""
    from matplotlib.figure import Figure

    widest = max(panel.cells.shape[1] for panel in panels)
    heights = [len(panel.rows) for panel in panels]
    width = min(14.0, max(5.0, 2.2 + 0.34 * widest))
    if any(panel.shows_numbers for panel in panels):
        width = min(14.0, max(5.0, 2.6 + 0.55 * widest))
    figure = Figure(
        (width, 1.0 + 0.2 * (1 + title.count("\n")) + sum(0.34 * rows + 0.85 for rows in heights)),
        layout="constrained",
    )
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=[rows + 1.5 for rows in heights])
    for panel, each in zip(panels, axes[:, 0], strict=True):
        image = each.imshow(panel.cells, cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
        each.set_title(panel.title, fontsize=HEADING, color=INK, loc="left")
        each.set_yticks(range(len(panel.rows)), panel.rows, fontsize=SMALL)
        if len(panel.columns) <= MOST_LABELS:
            turn = 0 if max(map(len, panel.columns), default=0) <= 6 else 60
            each.set_xticks(range(len(panel.columns)), panel.columns, fontsize=SMALL, rotation=turn)
        if panel.shows_numbers:
            for (row, column), value in np.ndenumerate(panel.cells):
                colour = "white" if abs(value) > 0.6 else INK
                each.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=SMALL, color=colour)
        each.tick_params(length=0, colors=MUTED)
        each.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=axes[:, 0].tolist(), fraction=0.04, pad=0.02)
    bar.ax.tick_params(labelsize=SMALL)
    bar.outline.set_visible(False)
    figure.suptitle("\n".join(map(drawable, title.split("\n"))), fontsize=BODY, color=INK)
    figure.supxlabel(caption, fontsize=SMALL, color=MUTED)
    return figure


def draw_grid(found: PatchResult, run: str = "") -> Figure:
    """Draw the effects of patching in a run. Blue restores the clean output, red moves away from it."""
    panels = []
    for title, sites in _panels(found):
        labels = found.labels_of(sites[0])
        if sites[0].axis == "position":
            labels = [drawable(visible(label)) for label in labels]
        cells = np.array([site.effects for site in sites])
        panels.append(Panel(title, [_layer(site.name) for site in sites], labels, cells))
    pairs = f", mean of {found.pairs} pairs" if found.pairs > 1 else ""
    lines = [f"Effect of patching ({found.direction}{pairs})", found.contrast, *([run] if run else [])]
    lines += [f"{name.removesuffix('_text')}: {shorten(text, TITLE)}" for name, text in found.texts.items()]
    check = f"everything patched: {found.everything:.3f}, nothing: {found.nothing:.3f}"
    return draw_panels(panels, "\n".join(lines), f"1: the whole difference, 0: none. Check: {check}")


def _panels(found: PatchResult) -> list[tuple[str, list[PatchedSite]]]:
    """Return the sites of one stack and one kind together, such as all layers of `encoder` heads."""

    def key(site: PatchedSite) -> tuple[str, str, int]:
        stack, *_, part = site.name.split(".")
        part = (
            "residual stream" if part in ("embedding", "residual_post", "output") else part.replace("_", " ")
        )
        return stack, part, len(site.effects)

    order = list(dict.fromkeys(map(key, found.sites)))
    ordered = sorted(found.sites, key=lambda site: order.index(key(site)))
    return [(f"{stack}: {part}", list(group)) for (stack, part, _), group in groupby(ordered, key)]


def _layer(name: str) -> str:
    parts = name.split(".")
    return f"layer {parts[1]}" if len(parts) == 3 else parts[-1]


def save_grid(found: PatchResult, path: Path, run: str = "") -> None:
    """Write the figure of patching to a .png or .svg file."""
    save_figure(draw_grid(found, run), path)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure to a .png or .svg file."""
    if path.suffix not in (".png", ".svg"):
        raise user_error("unknown kind of picture", path=str(path), allowed=[".png", ".svg"])
    try:
        figure.savefig(path, dpi=160, facecolor="white")
    except OSError as error:
        hint = "choose a file in an existing folder that you may write to"
        raise user_error(f"cannot be written: {error.strerror}", path=str(path), hint=hint) from None
