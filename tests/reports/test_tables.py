"""Tables in three languages, and curves: the numbers are those that came in, and text stays text."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from glassformer.reports.charts import HEIGHT, WIDTH, Line, Scale, line_chart, thin
from glassformer.reports.tables import (
    Markup,
    Quantity,
    Table,
    escape_latex,
    escape_markdown,
    number,
    tag,
    text,
)

from .conftest import Page

EVIL = r"100 % of $x_1 & #2 {a}~b^c\d <e> | [f] `g` *h*"


def unescaped(latex: str) -> str:
    """What LaTeX would set, for the commands that `escape_latex` uses."""
    names = {"textbackslash": "\\", "textasciitilde": "~", "textasciicircum": "^", "textless": "<"}
    names |= {"textgreater": ">", "textbar": "|", "textquotedbl": '"'}
    latex = latex.replace("{[}", "[").replace("{]}", "]")
    return re.sub(r"\\(?:([a-z]+)\{\}|(.))", lambda found: names[found[1]] if found[1] else found[2], latex)


def test_latex_has_no_special_character_left() -> None:
    escaped = escape_latex(EVIL)
    assert unescaped(escaped) == EVIL
    assert not re.search(r"(?<!\\)[%$&#_~^]|[<>|]", escaped)


@given(st.text(alphabet=st.sampled_from(list('\\{}$&#%_~^<>|[]"ab \n`*!')), max_size=30))
def test_latex_says_what_was_said(content: str) -> None:
    assert unescaped(escape_latex(content)) == " ".join(content.split())


@given(st.text(max_size=40))
def test_html_says_what_was_said(content: str) -> None:
    page = Page(tag("p", content, title=content))
    page.close()
    shown = "".join("\ufffd" if (ord(c) < 32 and c not in "\t\n") or c == "\x7f" else c for c in content)
    assert page.text == shown and page.all("p")[0]["title"] == shown
    assert [name for name, _ in page.elements] == ["p"]


def test_markup_is_not_escaped_twice() -> None:
    assert tag("b", tag("i", "<")) == "<b><i>&lt;</i></b>" and isinstance(text("x"), Markup)


def test_a_cell_of_markdown_does_not_end_early() -> None:
    table = Table("a | b", ["x|y", "n"], [["p | <q>\nr", 1]])
    *_, line = [line for line in table.markdown().splitlines() if line]
    assert re.split(r"(?<!\\)\|", line)[1:-1] == [r" p \| &lt;q&gt; r ", " 1 "]
    assert "<" not in escape_markdown(EVIL) and "`" not in escape_markdown(EVIL).replace(r"\`", "")


def test_a_quantity_in_three_languages() -> None:
    table = Table("", ["metric", "test"], [["loss", Quantity(0.123456789, (0.1, 0.2))], ["none", None]])
    page = Page(table.html())
    page.close()
    assert page.numbers == [0.123456789, 0.1, 0.2]
    assert r"0.12346 \[0.1 – 0.2\]" in table.markdown() and "0.12346 {[}0.1 -- 0.2{]} \\\\" in table.latex()
    assert table.is_numeric(1) and not table.is_numeric(0)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.19166666, "0.19167"),
        (1.0, "1"),
        (0.9999996, "0.9999996"),
        (1e-9, "1e-09"),
        (0, "0"),
        (1234567, "1,234,567"),
        (123456.7, "123,457"),
        (math.nan, "NaN"),
        (-math.inf, "−∞"),
        (True, "yes"),
    ],
)
def test_numbers(value: float, shown: str) -> None:
    assert number(value) == shown


def test_a_chart_draws_what_can_be_drawn() -> None:
    points = [(1.0, 10.0), (2.0, 0.1), (3.0, math.nan), (4.0, 0.0), (5.0, -1.0), (6.0, math.inf), (7.0, 1e-5)]
    page = Page(line_chart([Line(0, points, name="<a>")], "loss", "step", "y", is_log=True))
    page.close()
    dots = [(float(dot["cx"] or "nan"), float(dot["cy"] or "nan")) for dot in page.all("circle")]
    assert len(dots) == 3 and all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in dots)
    assert sorted(dots) == dots and [y for _, y in dots] == sorted(y for _, y in dots)
    assert "<a>, step 7: 1e-05" in page.text
    assert "nothing to draw" in line_chart([Line(0, [(1.0, math.nan)])], "loss", "step", "y")


@given(
    st.floats(-1e6, 1e6, allow_nan=False),
    st.floats(1e-6, 1e6, allow_nan=False),
)
@example(879609.9999999999, 1e-06)
def test_ticks_lie_on_the_axis(low: float, width: float) -> None:
    scale = Scale(low, low + width, False, 0.0, 100.0)
    if low + width > low:
        ticks = scale.ticks()
        assert 1 <= len(ticks) <= 12 and all(-1e-3 <= scale.place(tick) <= 100.001 for tick in ticks)


def test_a_long_record_is_thinned_to_means() -> None:
    points = [(float(step), float(step % 2)) for step in range(3000)]
    thinned, each = thin(points)
    assert each == 10 and len(thinned) == 300 and all(y == 0.5 for _, y in thinned)
    assert thin(points[:50]) == (points[:50], 1)
