"""Line charts: both back ends draw the numbers that they are given."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from glassformer.plotting.lines import (
    HEIGHT,
    WIDTH,
    Axis,
    Chart,
    Line,
    Scale,
    draw,
    legend,
    mean_line,
    save,
    svg,
    thin,
)

STEPS, LOSS = Axis("step"), Axis("loss", is_log=True)


def test_an_svg_chart_draws_finite_positive_values() -> None:
    points = [(1.0, 10.0), (2.0, 0.1), (3.0, math.nan), (4.0, 0.0), (5.0, -1.0), (6.0, math.inf), (7.0, 1e-5)]
    page = svg(Chart("loss", [Line("<a>", points)], STEPS, LOSS))
    dots = [(float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', page)]
    assert len(dots) == 3 and all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in dots)
    assert sorted(dots) == dots and [y for _, y in dots] == sorted(y for _, y in dots)
    assert "&lt;a&gt;, step 7: 1e-05" in page and "<a>" not in page
    assert "no data yet" in svg(Chart("loss", [Line("a", [(1.0, math.nan)])], STEPS, LOSS))


def test_lines_of_one_series_share_a_style_and_failures_get_a_cross() -> None:
    lines = [
        Line("one", [(0, 1), (1, 2)], series=9),
        Line("two", [(0, 2), (1, 1)], series=9, has_failed=True),
    ]
    page = svg(Chart("accuracy", lines, STEPS, Axis("accuracy")))
    assert page.count("line series-1 dash-1") == 2 and page.count('class="cross"') == 1
    assert "two ended here" in page and legend(["<b>"] * 10).count("&lt;b&gt;") == 10


@given(
    st.floats(-1e6, 1e6, allow_nan=False),
    st.floats(1e-6, 1e6, allow_nan=False),
)
@example(879609.9999999999, 1e-06)
def test_ticks_lie_on_the_axis(low: float, width: float) -> None:
    scale = Scale(low, low + width, False, 0.0, 100.0)
    if low + width > low:
        ticks = scale.ticks()
        assert 1 <= len(ticks) <= 12 and all(-1e-3 <= scale.position(tick) <= 100.001 for tick in ticks)


@given(st.floats(1e-9, 1e6), st.floats(1.21, 1e12))
def test_logarithmic_ticks_lie_on_the_axis(low: float, ratio: float) -> None:
    scale = Scale(low, low * ratio, True, 0.0, 100.0)
    ticks = scale.ticks()
    assert 2 <= len(ticks) <= 14 and all(-0.01 <= scale.position(tick) <= 100.01 for tick in ticks)


def test_a_long_log_is_thinned_to_means() -> None:
    points = [(float(step), float(step % 2)) for step in range(3000)]
    thinned, size = thin(points)
    assert size == 10 and len(thinned) == 300 and all(y == 0.5 for _, y in thinned)
    assert thin(points[:50]) == (points[:50], 1)


def test_a_mean_is_over_all_runs_or_none() -> None:
    line = mean_line("a", [1, 2, 3], [[0.5, 0.6, 0.9], [0.7, 0.8]])
    assert line.points == [(1, pytest.approx(0.6)), (2, pytest.approx(0.7))]
    assert line.intervals == [(0.5, 0.7), (0.6, 0.8)]


def test_a_figure_shares_axes_styles_and_one_legend(tmp_path: Path) -> None:
    x, y = Axis("epoch", is_whole=True), Axis("accuracy", is_percent=True)
    first = Chart("few", [mean_line("a", [1, 2], [[0.5, 0.6], [0.7, 0.8]])], x, y, level=("baseline", 0.65))
    second = Chart("many", [Line("b", [(1, 0.4)]), Line("a", [(1, 0.9)])], x, y, limit=("end", 1.5))
    figure = draw([first, second, first, second], "Title", "caption", columns=2)
    colours = [{line.get_label(): line.get_color() for line in axes.get_lines()} for axes in figure.axes]
    assert colours[0]["a"] == colours[1]["a"] != colours[1]["b"]
    assert list(figure.axes[0].get_lines()[0].get_ydata()) == pytest.approx([0.6, 0.7])
    assert [axes.get_xlabel() for axes in figure.axes] == ["", "", "epoch", "epoch"]
    assert [axes.get_ylabel() for axes in figure.axes] == ["accuracy", "", "accuracy", ""]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert sorted(labels) == ["a", "b", "baseline", "end"]
    assert save(figure, tmp_path / "one") == ["one.png", "one.svg"]
    save(draw([first, second, first, second], "Title", "caption", columns=2), tmp_path / "two")
    for extension in ("png", "svg"):
        contents = {(tmp_path / f"{name}.{extension}").read_bytes() for name in ("one", "two")}
        assert len(contents) == 1


def test_bars_and_categories() -> None:
    line = Line("", [(0, 0.5), (1, 0.7)], [(0.4, 0.6), None], has_bars=True, is_connected=False)
    figure = draw(
        [Chart("", [line], Axis("kind", categories=["rotary", "alibi"]), Axis("accuracy"))], "T", ""
    )
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["rotary", "alibi"]
    assert len(axes.containers) == 1 and not figure.legends
