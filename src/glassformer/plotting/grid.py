"""Grids of effects as a figure: one panel per kind of site, layers down, positions or heads across."""

from __future__ import annotations

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
"""Maximum number of columns with a token label each."""
TITLE = 40
"""Maximum number of characters of each input in the title."""


def draw_grid(found: PatchResult, run: str = "") -> Figure:
    """Draw the effects of patching in a run. Blue restores the clean output, red moves away from it."""
    from matplotlib.figure import Figure

    panels = _panels(found)
    heights = [len(sites) for _, sites in panels]
    widest = max(len(site.effects) for site in found.sites)
    width = min(14.0, max(5.0, 2.2 + 0.34 * widest))
    figure = Figure((width, 1.8 + sum(0.34 * rows + 0.85 for rows in heights)), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=[rows + 1.5 for rows in heights])
    for (title, sites), each in zip(panels, axes[:, 0], strict=True):
        cells = np.array([site.effects for site in sites])
        image = each.imshow(cells, cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
        each.set_title(title, fontsize=HEADING, color=INK, loc="left")
        each.set_yticks(range(len(sites)), [_layer(site.name) for site in sites], fontsize=SMALL)
        labels = found.labels_of(sites[0])
        if sites[0].axis == "position":
            labels = [drawable(visible(label)) for label in labels]
        if len(labels) <= MOST_LABELS:
            turn = 0 if max(map(len, labels), default=0) <= 6 else 60
            each.set_xticks(range(len(labels)), labels, fontsize=SMALL, rotation=turn)
        each.tick_params(length=0, colors=MUTED)
        each.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=axes[:, 0].tolist(), fraction=0.04, pad=0.02)
    bar.ax.tick_params(labelsize=SMALL)
    bar.outline.set_visible(False)
    pairs = f", mean of {found.pairs} pairs" if found.pairs > 1 else ""
    lines = [f"Effect of patching ({found.direction}{pairs})", found.contrast, *([run] if run else [])]
    lines += [f"{name.removesuffix('_text')}: {shorten(text, TITLE)}" for name, text in found.texts.items()]
    figure.suptitle("\n".join(map(drawable, lines)), fontsize=BODY, color=INK)
    check = f"everything patched: {found.everything:.3f}, nothing: {found.nothing:.3f}"
    figure.supxlabel(f"1: the whole difference, 0: none. Check: {check}", fontsize=SMALL, color=MUTED)
    return figure


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
    """Write the figure to a .png or .svg file."""
    if path.suffix not in (".png", ".svg"):
        raise user_error("unknown kind of picture", path=str(path), allowed=[".png", ".svg"])
    try:
        draw_grid(found, run).savefig(path, dpi=160, facecolor="white")
    except OSError as error:
        hint = "choose a file in an existing folder that you may write to"
        raise user_error(f"cannot be written: {error.strerror}", path=str(path), hint=hint) from None
