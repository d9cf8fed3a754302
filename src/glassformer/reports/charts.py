"""Curves as SVG in the page: drawn here, coloured by the style sheet.

Knows numbers and names, nothing of runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from glassformer.reports.tables import Markup, number, tag

WIDTH, HEIGHT = 420.0, 270.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 10.0, 10.0, 38.0
COLOURS, DASHES = 8, 3
MOST_POINTS = 300
MOST_DOTS = 40
"""Of one line: beyond them, dots would hide it."""
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    style: int
    """Lines of one style belong together: one colour, one dash, one entry in the legend."""
    points: Sequence[Point]
    is_faint: bool = False
    name: str = ""
    has_failed: bool = False
    """A cross marks where it ended."""


@dataclass(frozen=True)
class Scale:
    low: float
    high: float
    is_log: bool
    start: float
    """Where the low end is drawn, and where the high one."""
    end: float

    def place(self, value: float) -> float:
        low, high, at = (map_log(x) if self.is_log else x for x in (self.low, self.high, value))
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        return _log_ticks(self.low, self.high) if self.is_log else _ticks(self.low, self.high)


def map_log(value: float) -> float:
    return math.log10(max(value, 1e-300))


def line_chart(
    lines: Sequence[Line], title: str, x_label: str, y_label: str, *, is_log: bool = False
) -> Markup:
    """Only finite values are drawn, on a logarithmic axis only positive ones."""
    drawn = [Line(**{**vars(line), "points": drawable(line.points, is_log)}) for line in lines]
    points = [point for line in drawn for point in line.points]
    if not points:
        return tag("p", f"{title}: nothing to draw yet.", class_="note")
    x = Scale(0.0, max(1.0, *(point[0] for point in points)), False, LEFT, WIDTH - RIGHT)
    y = Scale(*_range([point[1] for point in points], is_log), is_log, HEIGHT - BOTTOM, TOP)
    parts = [*_axes(x, y, x_label), *(part for line in drawn for part in _draw(line, x, y))]
    chart = tag(
        "svg",
        tag("title", f"{title}, against {x_label}"),
        *parts,
        viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
        role="img",
        class_="chart",
    )
    caption = tag("figcaption", tag("b", title), f" · {y_label}")
    return tag("figure", caption, chart)


def drawable(points: Sequence[Point], is_log: bool) -> list[Point]:
    return [(x, y) for x, y in points if math.isfinite(y) and (y > 0 or not is_log)]


def thin(points: Sequence[Point]) -> tuple[list[Point], int]:
    """Means of neighbours, where there are more points than can be seen; and of how many each is one."""
    each = -(-len(points) // MOST_POINTS)
    if each <= 1:
        return list(points), 1
    blocks = [points[start : start + each] for start in range(0, len(points), each)]
    means = [(block[-1][0], math.fsum(y for _, y in block) / len(block)) for block in blocks]
    return means, each


def swatch(style: int) -> Markup:
    """A line of this style, for a legend."""
    line = tag("line", x1="1", x2="27", y1="5", y2="5", class_=style_of(style))
    return tag("svg", line, viewBox="0 0 28 10", class_="swatch", aria_hidden="true")


def style_of(style: int) -> str:
    return f"line series-{style % COLOURS} dash-{style // COLOURS % DASHES}"


def _draw(line: Line, x: Scale, y: Scale) -> list[Markup]:
    if not line.points:
        return []
    places = [(x.place(at), y.place(value)) for at, value in line.points]
    path = "M" + "L".join(f"{across:.1f} {down:.1f}" for across, down in places)
    faint = " is-faint" if line.is_faint else ""
    drawn = [tag("path", tag("title", line.name), d=path, class_=style_of(line.style) + faint)]
    if not line.is_faint and len(places) <= MOST_DOTS:
        for (across, down), (at, value) in zip(places, line.points, strict=True):
            told = tag("title", f"{line.name}, step {at:,.0f}: {number(value)}")
            dot = f"dot series-{line.style % COLOURS}"
            drawn.append(tag("circle", told, cx=f"{across:.1f}", cy=f"{down:.1f}", r="2.4", class_=dot))
    if line.has_failed:
        across, down = places[-1]
        cross = f"M{across - 4:.1f} {down - 4:.1f}l8 8m0 -8l-8 8"
        drawn.append(tag("path", tag("title", f"{line.name} ended here"), d=cross, class_="cross"))
    return drawn


def _axes(x: Scale, y: Scale, x_label: str) -> list[Markup]:
    parts = []
    for value in y.ticks():
        down = f"{y.place(value):.1f}"
        parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=down, y2=down, class_="grid"))
        label = _power(value) if y.is_log else f"{value:g}"
        parts.append(tag("text", label, x=LEFT - 6, y=down, dy="0.35em", text_anchor="end"))
    for value in x.ticks():
        across = f"{x.place(value):.1f}"
        parts.append(
            tag("line", x1=across, x2=across, y1=HEIGHT - BOTTOM, y2=HEIGHT - BOTTOM + 4, class_="axis")
        )
        parts.append(tag("text", f"{value:,.0f}", x=across, y=HEIGHT - BOTTOM + 16, text_anchor="middle"))
    base = HEIGHT - BOTTOM
    parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=base, y2=base, class_="axis"))
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(tag("text", x_label, x=middle, y=HEIGHT - 5, text_anchor="middle", class_="name"))
    return parts


def _range(values: Sequence[float], is_log: bool) -> tuple[float, float]:
    """With some air; shares that spread widely are seen on their whole range."""
    low, high = min(values), max(values)
    if is_log:
        air = max((high / low) ** 0.06, 1.1)
        return low / air, high * air
    if low >= 0 and high <= 1 and (high - low > 0.25 or high == low):
        return 0.0, 1.0
    air = 0.06 * (high - low) or max(abs(high), 1.0) * 0.05
    return max(0.0, low - air) if low >= 0 else low - air, high + air


def _ticks(low: float, high: float) -> list[float]:
    """Four to eight round numbers."""
    rough = (high - low) / 5
    scale = 10 ** math.floor(math.log10(rough))
    step = next(factor * scale for factor in (1, 2, 2.5, 5, 10) if factor * scale >= rough * 0.99)
    first = math.ceil(low / step - 1e-9)
    ticks = [round(count * step, 12) for count in range(first, math.floor(high / step + 1e-9) + 1)]
    slack = 1e-6 * (high - low)  # a narrow axis far from zero: the last one may be rounded beyond its end
    return [tick for tick in ticks if low - slack <= tick <= high + slack]


def _log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten; where there are few of them, also what lies between."""
    first, last = math.floor(map_log(low)), math.ceil(map_log(high))
    powers = range(first, last + 1)
    if len(powers) > 3:
        every = max(1, round(len(powers) / 7))
        found = [10.0**power for power in powers if power % every == 0]
    else:
        found = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    within = [tick for tick in found if low <= tick <= high]
    return within if len(within) > 1 else _ticks(low, high)


def _power(value: float) -> str:
    power = round(math.log10(value)) if value > 0 else 0
    if value > 0 and math.isclose(value, 10.0**power) and not -4 < power < 5:
        return "10" + str(power).translate(SUPERSCRIPTS)
    return f"{value:g}"
