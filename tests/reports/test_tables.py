"""Tables in HTML, Markdown and LaTeX: numbers are unchanged and text is escaped."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.plotting.markup import Markup, escape, escape_markdown, format_number, tag
from glassformer.reports.tables import Quantity, Table, escape_latex

from .conftest import Page

EVIL = r"100 % of $x_1 & #2 {a}~b^c\d <e> | [f] `g` *h*"


def unescaped(latex: str) -> str:
    """Text that LaTeX would print, for the commands that `escape_latex` uses."""
    names = {"textbackslash": "\\", "textasciitilde": "~", "textasciicircum": "^", "textless": "<"}
    names |= {"textgreater": ">", "textbar": "|", "textquotedbl": '"'}
    latex = latex.replace("{[}", "[").replace("{]}", "]")
    return re.sub(r"\\(?:([a-z]+)\{\}|(.))", lambda found: names[found[1]] if found[1] else found[2], latex)


def test_latex_has_no_special_character_left() -> None:
    escaped = escape_latex(EVIL)
    assert unescaped(escaped) == EVIL
    assert not re.search(r"(?<!\\)[%$&#_~^]|[<>|]", escaped)


@given(st.text(alphabet=st.sampled_from(list('\\{}$&#%_~^<>|[]"ab \n`*!')), max_size=30))
def test_latex_prints_the_original_text(content: str) -> None:
    assert unescaped(escape_latex(content)) == " ".join(content.split())


@given(st.text(max_size=40))
def test_html_shows_the_original_text(content: str) -> None:
    page = Page(tag("p", content, title=content))
    page.close()
    shown = "".join("\ufffd" if (ord(c) < 32 and c not in "\t\n") or c == "\x7f" else c for c in content)
    assert page.text == shown and page.all("p")[0]["title"] == shown
    assert [name for name, _ in page.elements] == ["p"]


def test_markup_is_not_escaped_twice() -> None:
    assert tag("b", tag("i", "<")) == "<b><i>&lt;</i></b>" and isinstance(escape("x"), Markup)


def test_a_cell_of_markdown_does_not_end_early() -> None:
    table = Table("a | b", ["x|y", "n"], [["p | <q>\nr", 1]])
    *_, line = [line for line in table.markdown().splitlines() if line]
    assert re.split(r"(?<!\\)\|", line)[1:-1] == [r" p \| &lt;q&gt; r ", " 1 "]
    assert "<" not in escape_markdown(EVIL) and "`" not in escape_markdown(EVIL).replace(r"\`", "")


def test_a_quantity_in_three_formats() -> None:
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
    assert format_number(value) == shown
