"""Shared style of all figures: fonts, colours, text widths, token labels."""

from __future__ import annotations

import unicodedata
from bisect import bisect_left
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


VISIBLE = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍", "": "∅"}
"""Visible symbols for white space and for an empty token."""


def visible(token: str, most: int = 14) -> str:
    """Return a token with symbols for white space and control characters, cut to `most` characters."""
    if token in VISIBLE:
        return VISIBLE[token]
    shown = "".join(_visible_character(character) for character in token)
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def _visible_character(character: str) -> str:
    if character in VISIBLE:
        return VISIBLE[character]
    return f"U+{ord(character):04X}" if unicodedata.category(character) in ("Cc", "Cf", "Cs") else character


def tick_positions(first: int, length: int, fewest_apart: float) -> list[int]:
    """Return multiples of a round step of at least `fewest_apart` cells, from `first` on.

    The only tick is `first` if no multiple is among the `length` cells.
    """
    steps = (factor * 10**power for power in count() for factor in (1, 2, 5))
    step = next(step for step in steps if step >= fewest_apart)
    return [position for position in range(first, first + length) if position % step == 0] or [first]


INK, MUTED, FAINT, ALARM = "#1d2129", "#667085", "#c4c9d2", "#b42318"
TITLE, HEADING, BODY, SMALL = 14.0, 10.5, 8.5, 7.5
"""Font sizes in points."""
LINE = 1.45
"""Line height as a multiple of the font size."""


class Sheet:
    """White matplotlib figure of a fixed size. Coordinates are in points, and `y` grows downwards."""

    def __init__(self, width: float, height: float, dpi: int) -> None:
        from matplotlib.figure import Figure

        self.dpi = dpi
        self.scale = dpi / 72
        self.size = round(width * self.scale), round(height * self.scale)
        self.figure: Figure = Figure((self.size[0] / self.dpi, self.size[1] / self.dpi), dpi=self.dpi)
        self.figure.set_facecolor("white")
        self.axes: Axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set_axis_off()
        self.axes.set_xlim(0, self.size[0])
        self.axes.set_ylim(self.size[1], 0)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float = BODY,
        colour: str = INK,
        align: str = "left",
        baseline: str = "baseline",
        rotation: float = 0,
        weight: str = "normal",
    ) -> None:
        from matplotlib.font_manager import FontProperties

        self.axes.text(
            x * self.scale,
            y * self.scale,
            text,
            color=colour,
            fontproperties=FontProperties(family=fonts(), size=size, weight=weight),
            ha=align,
            va=baseline,
            rotation=rotation,
            rotation_mode="anchor",
            parse_math=False,  # a token may hold dollar signs
        )

    def image(self, x: float, y: float, pixels: np.ndarray) -> None:
        """Draw an image without resampling, aligned to whole pixels, with a hairline border."""
        left, top = round(x * self.scale), round(y * self.scale)
        height, width = pixels.shape[:2]
        _, page_height = self.size
        self.figure.figimage(pixels, left, page_height - top - height, origin="upper")
        right, bottom = left + width, top + height
        self._line((left, right, right, left, left), (top, top, bottom, bottom, top))

    def line(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        self._line([x * self.scale for x in xs], [y * self.scale for y in ys])

    def _line(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        from matplotlib.lines import Line2D

        self.axes.add_line(Line2D(xs, ys, color=FAINT, linewidth=0.6, solid_joinstyle="miter"))

    def polygon(self, points: Sequence[tuple[float, float]], colour: str) -> None:
        from matplotlib.patches import Polygon

        self.axes.add_patch(Polygon(np.array(points) * self.scale, closed=True, color=colour, linewidth=0))


# DejaVu Sans comes with matplotlib. The others cover further scripts, if they are installed.
FONTS = (
    "DejaVu Sans",
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans CJK KR", "WenQuanYi Micro Hei", "WenQuanYi Zen Hei"),
    *("PingFang SC", "Hiragino Sans", "Apple SD Gothic Neo", "Microsoft YaHei", "Malgun Gothic"),
    *("Nirmala UI", "Noto Sans Devanagari", "Noto Sans Thai", "Noto Sans Symbols 2", "Segoe UI Symbol"),
)


@cache
def fonts() -> list[str]:
    """Return the fonts in `FONTS` that are installed, in order of preference."""
    from matplotlib.font_manager import get_font_names

    installed = set(get_font_names())
    return [name for name in FONTS if name in installed]


@cache
def _glyphs() -> frozenset[int]:
    """Return the Unicode code points that the installed fonts can draw."""
    from matplotlib.font_manager import findfont, get_font

    return frozenset(code for name in fonts() for code in get_font(findfont(name)).get_charmap())


def drawable(text: str) -> str:
    """Return the text with each character that no installed font can draw replaced by its code, as U+4E2D."""
    return "".join(
        character if ord(character) in _glyphs() else f"U+{ord(character):04X}" for character in text
    )


@lru_cache(maxsize=10_000)
def text_width(text: str, size: float, weight: str = "normal") -> float:
    """Return the width of a text in points, for a font size in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextToPath

    properties = FontProperties(family=fonts(), size=size, weight=weight)
    return float(TextToPath().get_text_width_height_descent(text, properties, ismath=False)[0])


def shorten_to(text: str, width: float, size: float, weight: str = "normal") -> str:
    """Return the text, shortened with an ellipsis if it is wider than `width` points."""
    most = int(width)  # characters: none is narrower than one point
    words = drawable(" ".join(visible(word, most) for word in text[: 2 * most].split()))
    if len(text) <= 2 * most and len(words) <= most and text_width(words, size, weight) <= width:
        return words

    def is_too_wide(end: int) -> bool:
        return text_width(words[:end] + "…", size, weight) > width

    fitting = bisect_left(range(1, most), True, key=is_too_wide)
    return words[:fitting].rstrip() + "…"


def wrap_to(text: str, width: float, size: float) -> list[str]:
    """Return the text as lines of at most `width` points each; a word that is wider is shortened."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {drawable(word)}" if lines else ""
        if longer and text_width(longer, size) <= width:
            lines[-1] = longer
        else:
            lines.append(shorten_to(word, width, size))
    return lines
