"""Line charts, drawn as inline SVG for an HTML page or by matplotlib as PNG and SVG files."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from glassformer.plotting.markup import Markup, format_number, tag
from glassformer.plotting.style import BODY, FAINT, HEADING, INK, MUTED, TITLE, fonts
from glassformer.storage.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Point = tuple[float, float]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Axis:
    """One axis of a chart."""

    label: str
    is_log: bool = False
    is_whole: bool = False
    """True if ticks are placed at integers only."""
    is_percent: bool = False
    categories: Sequence[str] | None = None
    """Names of the values 0, 1, 2, …; None for a numeric axis."""


@dataclass(frozen=True)
class Line:
    """One series of points in a chart."""

    label: str
    points: Sequence[Point]
    intervals: Sequence[Interval | None] = ()
    """Interval (low, high) at each point, drawn as a band around the line."""
    has_bars: bool = False
    """True to draw the intervals as error bars instead of a band, in matplotlib figures."""
    series: int | None = None
    """Index of the colour, dash and marker. None uses the index of the label among all labels."""
    is_connected: bool = True
    is_faint: bool = False
    has_failed: bool = False
    """True to mark the last point with a cross, because the run failed there."""


@dataclass(frozen=True)
class Chart:
    """Chart of several lines over one pair of axes."""

    title: str
    lines: Sequence[Line]
    x: Axis
    y: Axis
    level: tuple[str, float] | None = None
    """Label and y value of a horizontal reference line."""
    limit: tuple[str, float] | None = None
    """Label and x value of a vertical reference line."""


def mean_line(label: str, xs: Sequence[float], runs: Sequence[Sequence[float]]) -> Line:
    """Return the mean over several runs as a line, with a band from the lowest run to the highest.

    The line ends where the shortest run ends, so that each mean includes all runs.
    """
    columns = list(zip(*(run[: min(map(len, runs))] for run in runs), strict=True))
    points = [(x, math.fsum(values) / len(values)) for x, values in zip(xs, columns, strict=False)]
    return Line(label, points, [(min(values), max(values)) for values in columns])


MAX_POINTS = 300
"""Maximum number of points per line; `thin` averages longer lines."""


def thin(points: Sequence[Point]) -> tuple[list[Point], int]:
    """Average groups of neighbouring points to at most 300 points; return the points and the group size."""
    size = -(-len(points) // MAX_POINTS)
    if size <= 1:
        return list(points), 1
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(group[-1][0], math.fsum(y for _, y in group) / len(group)) for group in groups], size


def _labels(charts: Sequence[Chart]) -> list[str]:
    """Return the distinct labels of all charts in order, so that a label has one style in every chart."""
    return list(dict.fromkeys(line.label for chart in charts for line in chart.lines))


def _series(line: Line, labels: Sequence[str]) -> int:
    return labels.index(line.label) if line.series is None else line.series


# ---------------------------------------------------------------- inline SVG

WIDTH, HEIGHT = 420.0, 270.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 10.0, 10.0, 38.0
"""Margins of the SVG drawing, in SVG units."""
COLOURS, DASHES = 8, 3
"""Number of colours and number of dash styles in the style sheet of the HTML page."""
MAX_DOTS = 40
"""Maximum number of points for which a line has a dot at each point. More dots would hide the line."""
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Scale:
    """Mapping from data values to coordinates in the SVG drawing, linear or logarithmic."""

    low: float
    high: float
    is_log: bool
    start: float
    """Coordinate of `low`."""
    end: float

    def fraction(self, value: float) -> float:
        """Return the position of a value on the axis, from 0 at `low` to 1 at `high`."""
        low, high, at = (
            math.log10(max(x, 1e-300)) if self.is_log else x for x in (self.low, self.high, value)
        )
        return (at - low) / (high - low)

    def position(self, value: float) -> float:
        """Return the coordinate of a value in the SVG drawing."""
        return self.start + self.fraction(value) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return round values between `low` and `high` as ticks; at least two on a logarithmic scale."""
        from matplotlib.ticker import LogLocator, MaxNLocator

        locators: list[Any] = [MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10], min_n_ticks=1)]
        if self.is_log:
            factors = (1.0,) if self.high / self.low > 1e3 else (1.0, 2.0, 5.0)
            locators.insert(0, LogLocator(subs=factors, numticks=8))
        for locator in locators:
            values = map(float, locator.tick_values(self.low, self.high))
            # Rounding may put a tick of a narrow range just outside.
            inside = [tick for tick in values if -1e-6 <= self.fraction(tick) <= 1 + 1e-6]
            if len(inside) > 1:
                break
        return inside


def svg(chart: Chart) -> Markup:
    """Return a chart as an HTML `<figure>` with inline SVG; the page's style sheet sets the colours.

    The x axis is linear and starts at 0. Intervals and reference lines are not drawn. NaN and infinite values
    are left out, as are values of zero or less on a logarithmic axis.
    """
    lines = []
    for line in chart.lines:
        points = [(x, y) for x, y in line.points if math.isfinite(y) and (y > 0 or not chart.y.is_log)]
        lines += [replace(line, points=points)] if points else []
    if not lines:
        return tag("p", f"{chart.title}: no data yet.", class_="note")
    x = Scale(0.0, max(1.0, *(x for line in lines for x, _ in line.points)), False, LEFT, WIDTH - RIGHT)
    low, high = _range([y for line in lines for _, y in line.points], chart.y.is_log)
    y = Scale(low, high, chart.y.is_log, HEIGHT - BOTTOM, TOP)
    labels = _labels([chart])
    parts = _svg_axes(x, y, chart.x.label)
    for line in lines:
        parts += _svg_line(line, _series(line, labels), x, y, chart.x.label)
    title = tag("title", f"{chart.title}, against {chart.x.label}")
    picture = tag("svg", title, *parts, viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}", role="img", class_="chart")
    return tag("figure", tag("figcaption", tag("b", chart.title), f" · {chart.y.label}"), picture)


def legend(labels: Sequence[str]) -> Markup:
    """Return an HTML list of the labels, each with a sample of its line style."""
    entries = []
    for series, label in enumerate(labels):
        line = tag("line", x1="1", x2="27", y1="5", y2="5", class_=_css_classes(series))
        swatch = tag("svg", line, viewBox="0 0 28 10", class_="swatch", aria_hidden="true")
        entries.append(tag("li", swatch, label))
    return tag("ul", *entries, class_="legend")


def _css_classes(series: int) -> str:
    return f"line series-{series % COLOURS} dash-{series // COLOURS % DASHES}"


def _svg_line(line: Line, series: int, x: Scale, y: Scale, x_label: str) -> list[Markup]:
    places = [(x.position(at), y.position(value)) for at, value in line.points]
    path = "M" + "L".join(f"{across:.1f} {down:.1f}" for across, down in places)
    classes = _css_classes(series) + (" is-faint" if line.is_faint else "")
    drawn = [tag("path", tag("title", line.label), d=path, class_=classes)]
    if not line.is_faint and len(places) <= MAX_DOTS:
        dot = f"dot series-{series % COLOURS}"
        for (across, down), (at, value) in zip(places, line.points, strict=True):
            title = tag("title", f"{line.label}, {x_label} {at:,.0f}: {format_number(value)}")
            drawn.append(tag("circle", title, cx=f"{across:.1f}", cy=f"{down:.1f}", r="2.4", class_=dot))
    if line.has_failed:
        across, down = places[-1]
        cross = f"M{across - 4:.1f} {down - 4:.1f}l8 8m0 -8l-8 8"
        drawn.append(tag("path", tag("title", f"{line.label} ended here"), d=cross, class_="cross"))
    return drawn


def _svg_axes(x: Scale, y: Scale, x_label: str) -> list[Markup]:
    base, end = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = [tag("line", x1=LEFT, x2=end, y1=base, y2=base, class_="axis")]
    for value in y.ticks():
        down = f"{y.position(value):.1f}"
        label = _power(value) if y.is_log else f"{value:g}"
        parts.append(tag("line", x1=LEFT, x2=end, y1=down, y2=down, class_="grid"))
        parts.append(tag("text", label, x=LEFT - 6, y=down, dy="0.35em", text_anchor="end"))
    for value in x.ticks():
        across = f"{x.position(value):.1f}"
        parts.append(tag("line", x1=across, x2=across, y1=base, y2=base + 4, class_="axis"))
        parts.append(tag("text", f"{value:,.0f}", x=across, y=base + 16, text_anchor="middle"))
    middle = (LEFT + end) / 2
    return [*parts, tag("text", x_label, x=middle, y=HEIGHT - 5, text_anchor="middle", class_="name")]


def _range(values: Sequence[float], is_log: bool) -> tuple[float, float]:
    """Return (low, high) of the y axis with a margin; widely spread fractions get the range from 0 to 1."""
    low, high = min(values), max(values)
    if is_log:
        margin = max((high / low) ** 0.06, 1.1)
        return low / margin, high * margin
    if low >= 0 and high <= 1 and (high - low > 0.25 or high == low):
        return 0.0, 1.0
    margin = 0.06 * (high - low) or max(abs(high), 1.0) * 0.05
    return max(0.0, low - margin) if low >= 0 else low - margin, high + margin


def _power(value: float) -> str:
    """Return the label of a logarithmic tick, such as `10⁻⁵` for a very small or very large power of ten."""
    power = round(math.log10(value)) if value > 0 else 0
    if value > 0 and math.isclose(value, 10.0**power) and not -4 < power < 5:
        return "10" + str(power).translate(SUPERSCRIPTS)
    return f"{value:g}"


# ---------------------------------------------------------------- files by matplotlib

# Colours of Okabe and Ito, safe for colour-blind readers; dashes and markers serve prints in grey.
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
PANEL_WIDTH, PANEL_HEIGHT, FRAME_HEIGHT = 3.7, 2.5, 1.6
"""Width and height of one panel, and height of title and caption together, in inches."""
LEGEND_COLUMNS = 4
LEGEND_LINE = 0.2
"""Height of one line of the legend in inches."""
MAX_MARKERS = 12
"""Approximate maximum number of markers per line; the points between them have none."""
FILE_DPI = 160


def draw(charts: Sequence[Chart], title: str, caption: str, columns: int | None = None) -> Figure:
    """Draw charts as panels of one matplotlib figure, with `columns` panels per row.

    The panels of a row share the y axis if its label is the same, and those of a column share the x axis.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    columns = columns or len(charts)
    rows = -(-len(charts) // columns)
    labels = _labels(charts)
    references = {pair[0] for chart in charts for pair in (chart.level, chart.limit) if pair is not None}
    legend_lines = -(-len({*labels, *references} - {""}) // LEGEND_COLUMNS)
    width = max(2.3, columns) * PANEL_WIDTH
    height = rows * PANEL_HEIGHT + FRAME_HEIGHT + legend_lines * LEGEND_LINE
    has_same_y = len({chart.y.label for chart in charts[:columns]}) == 1
    has_same_x = rows > 1 and len({chart.x.label for chart in charts[::columns]}) == 1
    sharing: dict[str, Any] = {
        "sharey": "row" if has_same_y else False,
        "sharex": "col" if has_same_x else False,
    }
    with rc_context({"font.family": fonts(), "font.size": BODY, "text.parse_math": False}):
        figure = Figure((width, height), dpi=FILE_DPI, facecolor="white")
        grid = figure.subplots(rows, columns, squeeze=False, **sharing)
        for axes in grid.flat[len(charts) :]:
            axes.set_axis_off()
        for index, (axes, chart) in enumerate(zip(grid.flat, charts, strict=False)):
            _draw_chart(axes, chart, labels)
            if not has_same_y or index % columns == 0:
                axes.set_ylabel(chart.y.label)
            if not has_same_x or index + columns >= len(charts):
                axes.set_xlabel(chart.x.label)
        if legend_lines:
            _draw_legend(figure, height)
        has_titles = any(chart.title for chart in charts)
        top = (0.75 if has_titles else 0.55) + legend_lines * LEGEND_LINE
        figure.suptitle(title, x=0.5, y=1 - 0.12 / height, fontsize=TITLE, color=INK)
        figure.text(0.5, 0.12 / height, caption, ha="center", fontsize=BODY, color=MUTED)
        figure.subplots_adjust(
            left=0.75 / width,
            right=1 - 0.2 / width,
            top=1 - top / height,
            bottom=(0.8 + LEGEND_LINE * caption.count("\n")) / height,
            wspace=0.08 if has_same_y else 0.24,
            hspace=0.5 if not has_same_x else 0.3 if has_titles else 0.12,
        )
    return figure


def _draw_legend(figure: Figure, height: float) -> None:
    """Draw one legend above all panels; `height` is the height of the figure in inches."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        found, labels = axes.get_legend_handles_labels()
        handles |= dict(zip(labels, found, strict=True))
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="upper center",
        bbox_to_anchor=(0.5, 1 - 0.35 / height),
        ncols=LEGEND_COLUMNS,
        frameon=False,
    )


def _draw_chart(axes: Axes, chart: Chart, labels: Sequence[str]) -> None:
    for line in chart.lines:
        _draw_line(axes, line, STYLES[_series(line, labels) % len(STYLES)])
    if chart.level is not None:
        axes.axhline(chart.level[1], color="#000000", linestyle=":", linewidth=1.6, label=chart.level[0])
    if chart.limit is not None:
        axes.axvline(chart.limit[1], color=MUTED, linestyle="--", linewidth=1.0, label=chart.limit[0])
    axes.set_title(chart.title, fontsize=HEADING, color=INK)
    _scale_x(axes, chart)
    if chart.y.is_log:
        axes.set_yscale("log")
    if chart.y.is_percent:
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}".replace("%", " %"))
    axes.grid(axis="y", color=FAINT, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _scale_x(axes: Axes, chart: Chart) -> None:
    """Set scale and ticks of the x axis: categories, logarithmic, or integers."""
    from matplotlib.ticker import MaxNLocator

    if chart.x.categories is not None:
        axes.set_xticks(range(len(chart.x.categories)), chart.x.categories)
    elif chart.x.is_log:
        axes.set_xscale("log")
        if chart.x.is_whole:
            whole = sorted({round(x) for line in chart.lines for x, _ in line.points})
            axes.set_xticks(whole, [f"{x:,}" for x in whole], minor=False)
            axes.minorticks_off()
    elif chart.x.is_whole:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))


def _draw_line(axes: Axes, line: Line, style: tuple[str, str, str]) -> None:
    colour, dashes, marker = style
    found = [(*point, *pair) for point, pair in zip(line.points, line.intervals, strict=False) if pair]
    if found:
        x, y, low, high = np.array(found, dtype=float).T
        if line.has_bars:
            errors = [y - low, high - y]
            axes.errorbar(x, y, yerr=errors, fmt="none", color=colour, capsize=3, linewidth=1)
        else:
            axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
    axes.plot(
        [x for x, _ in line.points],
        [y for _, y in line.points],
        color=colour,
        linestyle=dashes if line.is_connected else "",
        linewidth=1.8,
        marker=marker,
        markersize=4.5,
        markevery=max(1, -(-len(line.points) // MAX_MARKERS)) if line.is_connected else 1,
        label=line.label or None,
        zorder=3,
    )


def save(figure: Figure, stem: Path) -> list[str]:
    """Write a figure as PNG and SVG and return the file names. Equal figures give bit-identical files."""
    from matplotlib import rc_context

    names = []
    # Without the writing program and the date, which do not belong in a result.
    for extension, metadata in ((".png", {"Software": None}), (".svg", {"Date": None})):
        buffer = io.BytesIO()
        with rc_context({"svg.hashsalt": "glassformer"}):
            figure.savefig(buffer, format=extension[1:], metadata=metadata)
        atomic_write(stem.with_suffix(extension), buffer.getvalue())
        names.append(stem.with_suffix(extension).name)
    return names
