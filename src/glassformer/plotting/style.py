"""Style of all figures: fonts, colours, text measurement, token labels."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


VISIBLE = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍", "": "∅"}


def visible(token: str, most: int = 14) -> str:
    """Return a token with visible symbols for spaces and control characters, of at most `most` characters."""
    if token in VISIBLE:
        return VISIBLE[token]
    shown = "".join(_visible_character(character) for character in token)
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def _visible_character(character: str) -> str:
    if character in VISIBLE:
        return VISIBLE[character]
    return f"U+{ord(character):04X}" if unicodedata.category(character) in ("Cc", "Cf", "Cs") else character


def tick_positions(first: int, count: int, fewest_apart: float) -> list[int]:
    """Return round positions at least `fewest_apart` cells apart; the first position if there is none."""
    step, scale = 1, 1
    while step < fewest_apart:
        for factor in (1, 2, 5):
            step = factor * scale
            if step >= fewest_apart:
                break
        scale *= 10
    return [position for position in range(first, first + count) if position % step == 0] or [first]


INK, MUTED, FAINT, ALARM = "#1d2129", "#667085", "#c4c9d2", "#b42318"
TITLE, HEADING, BODY, SMALL = 14.0, 10.5, 8.5, 7.5
"""Font sizes in points."""
LINE = 1.45
"""Line height as a multiple of the font size."""


class Sheet:
    """White sheet of a fixed size in points; `y` grows downwards."""

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
        """Draw an image without resampling, at whole pixels, with a hairline around it."""
        left, top = round(x * self.scale), round(y * self.scale)
        height, width = pixels.shape[:2]
        _, page_height = self.size
        self.figure.figimage(pixels, left, page_height - top - height, origin="upper")
        frame = [(left, left + width, left + width, left, left), (top, top, top + height, top + height, top)]
        self._line(frame[0], frame[1], FAINT, 0.6)

    def line(self, xs: Sequence[float], ys: Sequence[float], colour: str = FAINT, width: float = 0.6) -> None:
        self._line([x * self.scale for x in xs], [y * self.scale for y in ys], colour, width)

    def _line(self, xs: Sequence[float], ys: Sequence[float], colour: str, width: float) -> None:
        from matplotlib.lines import Line2D

        self.axes.add_line(Line2D(xs, ys, color=colour, linewidth=width, solid_joinstyle="miter"))

    def polygon(self, points: Sequence[tuple[float, float]], colour: str) -> None:
        from matplotlib.patches import Polygon

        self.axes.add_patch(Polygon(np.array(points) * self.scale, closed=True, color=colour, linewidth=0))


# DejaVu Sans comes with matplotlib. The others cover further scripts, if they are installed.
FONTS = (
    "DejaVu Sans",
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans CJK KR", "WenQuanYi Micro Hei", "WenQuanYi Zen Hei"),
    *(
        "PingFang SC",
        "Hiragino Sans",
        "Apple SD Gothic Neo",
        "Microsoft YaHei",
        "Malgun Gothic",
        "Nirmala UI",
    ),
    *("Noto Sans Devanagari", "Noto Sans Thai", "Noto Sans Symbols 2", "Segoe UI Symbol"),
)


@cache
def fonts() -> list[str]:
    """Return the installed fonts of `FONTS`, in order."""
    from matplotlib.font_manager import get_font_names

    installed = set(get_font_names())
    return [name for name in FONTS if name in installed]


@cache
def _glyphs() -> frozenset[int]:
    """Return the code points that the installed fonts can draw."""
    from matplotlib.font_manager import findfont, get_font

    return frozenset(code for name in fonts() for code in get_font(findfont(name)).get_charmap())


def drawable(text: str) -> str:
    """Replace each character that no installed font has by its code point, such as U+4E2D."""
    return "".join(
        character if ord(character) in _glyphs() else f"U+{ord(character):04X}" for character in text
    )


@lru_cache(maxsize=10_000)
def text_width(text: str, size: float, weight: str = "normal") -> float:
    """Return the width of a text in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextToPath

    properties = FontProperties(family=fonts(), size=size, weight=weight)
    return float(TextToPath().get_text_width_height_descent(text, properties, ismath=False)[0])


def shorten_to(text: str, width: float, size: float, weight: str = "normal") -> str:
    """Return a text, or its beginning with an ellipsis if it is wider than `width` points."""
    most = int(width)  # characters: none is narrower than one point
    words = drawable(" ".join(visible(word, most) for word in text[: 2 * most].split()))
    if len(text) <= 2 * most and len(words) <= most and text_width(words, size, weight) <= width:
        return words
    fitting, too_long = 0, most
    while too_long - fitting > 1:
        middle = (fitting + too_long) // 2
        if text_width(words[:middle] + "…", size, weight) <= width:
            fitting = middle
        else:
            too_long = middle
    return words[:fitting].rstrip() + "…"
