"""Validation accuracy against epochs, an arm a line with a band over its seeds; a panel a number of labels.

Knows numbers and names, nothing of runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from glassformer.studies import charts

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Panel:
    title: str
    curves: Mapping[str, Sequence[Sequence[float]]]
    """By arm, a list for each seed, with a value for each epoch."""
    control: float | None


def draw(panels: Sequence[Panel], title: str, control_name: str, caption: str) -> Figure:
    return charts.draw([_chart(panel, control_name) for panel in panels], title, caption)


def _chart(panel: Panel, control_name: str) -> charts.Panel:
    return charts.Panel(
        panel.title,
        [charts.Line(name, range(1, max(map(len, runs)) + 1), runs) for name, runs in panel.curves.items()],
        x_label="epoch",
        y_label="validation accuracy",
        is_whole=True,
        is_fraction=True,
        level=None if panel.control is None else (control_name, panel.control),
    )
