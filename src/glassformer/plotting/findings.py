"""Files of probes and word alignments: rows as CSV or JSON, accuracy and link grids as PNG or SVG."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from glassformer.core.errors import user_error
from glassformer.plotting.style import BODY, HEADING, INK, MUTED, SMALL, drawable, visible
from glassformer.storage.files import atomic_write, finite

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from glassformer.inspection.alignment import AlignedPair
    from glassformer.inspection.probes import ProbeResult

SUFFIXES = (".csv", ".json", ".png", ".svg")


def check_suffix(path: Path) -> None:
    """Raise UserError if the name of a file to write has an unknown ending."""
    if path.suffix not in SUFFIXES:
        raise user_error("unknown kind of file", path=str(path), allowed=list(SUFFIXES))


def save_findings(
    path: Path, document: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], draw: Callable[[], Figure]
) -> None:
    """Write the document (.json), its rows (.csv) or a figure (.png, .svg), by the ending of the path."""
    check_suffix(path)
    if path.suffix == ".json":
        data = (json.dumps(finite(dict(document)), ensure_ascii=False, indent=1) + "\n").encode()
    elif path.suffix == ".csv":
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
        data = text.getvalue().encode()
    else:
        figure, image = draw(), io.BytesIO()
        metadata = {"Software": None} if path.suffix == ".png" else {"Date": None}
        figure.savefig(image, format=path.suffix[1:], dpi=160, facecolor="white", metadata=metadata)
        data = image.getvalue()
    try:
        atomic_write(path, data)
    except OSError as error:
        hint = "choose a file in an existing folder that you may write to"
        raise user_error(f"cannot be written: {error.strerror}", path=str(path), hint=hint) from None


def _cell(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return " ".join(map(str, value))
    return "" if value is None else value


def draw_probes(found: ProbeResult) -> Figure:
    """Draw accuracies and selectivities: one row per site, one column per position, `all` first."""
    from matplotlib.figure import Figure

    sites = list(dict.fromkeys(row.site for row in found.rows))
    columns: list[int | None] = sorted(
        {row.position for row in found.rows}, key=lambda position: -1 if position is None else position
    )
    panels = (
        ("accuracy", lambda row: row.accuracy),
        ("minus untrained", lambda row: row.accuracy - row.untrained),
        ("selectivity: minus control task", lambda row: row.selectivity),
    )
    width = min(16.0, max(9.0, 3 * (1.4 + 0.42 * len(columns))))
    figure = Figure((width, 1.5 + 0.36 * len(sites)), layout="constrained")
    for axes, (title, value) in zip(figure.subplots(1, 3, sharey=True), panels, strict=True):
        cells = np.full((len(sites), len(columns)), np.nan)
        for row in found.rows:
            number = value(row)
            cells[sites.index(row.site), columns.index(row.position)] = np.nan if number is None else number
        lowest = 0.0 if title == "accuracy" else -1.0
        _heat(axes, cells, "Blues" if lowest == 0 else "RdBu", lowest)
        axes.set_title(title, fontsize=HEADING, color=INK, loc="left")
        names = ["all" if position is None else str(position) for position in columns]
        axes.set_xticks(range(len(columns)), names, fontsize=SMALL)
        axes.set_yticks(range(len(sites)), sites, fontsize=SMALL)
        axes.set_xlabel("position", fontsize=SMALL, color=MUTED)
    majority = next(row.majority for row in found.rows)
    figure.suptitle(drawable(f"Linear probes for {found.label}"), fontsize=BODY, color=INK)
    figure.supxlabel(
        f"{found.examples} examples of {found.split}; the most frequent label alone has {majority:.2f}",
        fontsize=SMALL,
        color=MUTED,
    )
    return figure


def _heat(axes: Axes, cells: np.ndarray, colours: str, lowest: float) -> None:
    """Draw a grid of numbers between `lowest` and 1, each with its value if there is room."""
    axes.imshow(cells, cmap=colours, vmin=lowest, vmax=1, aspect="auto")
    if cells.shape[1] <= 16:
        for (row, column), number in np.ndenumerate(cells):
            if not np.isnan(number):
                ink = "white" if abs(number) > 0.6 else INK
                axes.text(column, row, f"{number:.2f}", ha="center", va="center", fontsize=6.5, color=ink)
    axes.tick_params(length=0, colors=MUTED)
    axes.spines[:].set_visible(False)


def draw_alignment(pair: AlignedPair, title: str) -> Figure:
    """Draw the links of one pair: source words down, target words across, gold links outlined."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    rows, columns = len(pair.source), len(pair.target)
    figure = Figure((max(4.0, 1.8 + 0.4 * columns), max(2.6, 1.6 + 0.32 * rows)), layout="constrained")
    axes = figure.subplots()
    axes.imshow(pair.weights, cmap="Blues", vmin=0, vmax=max(float(pair.weights.max()), 1e-9), aspect="auto")
    for row, column in pair.links:
        axes.plot(column, row, marker="o", color="#b42318", markersize=5)
    for links, dashes in ((pair.possible or set(), ":"), (pair.sure or set(), "-")):
        for row, column in links:
            box = Rectangle(
                (column - 0.46, row - 0.46), 0.92, 0.92, fill=False, edgecolor=INK, linestyle=dashes
            )
            axes.add_patch(box)
    source, target = ([drawable(visible(word)) for word in side] for side in (pair.source, pair.target))
    axes.set_yticks(range(rows), source, fontsize=SMALL)
    axes.set_xticks(range(columns), target, fontsize=SMALL, rotation=60)
    axes.tick_params(length=0, colors=MUTED)
    axes.spines[:].set_visible(False)
    axes.set_title(drawable(title), fontsize=HEADING, color=INK, loc="left")
    gold = "; solid box: sure gold link, dotted: possible" if pair.sure is not None else ""
    axes.set_xlabel(f"colour: share of attention; dot: link{gold}", fontsize=SMALL, color=MUTED)
    return figure
