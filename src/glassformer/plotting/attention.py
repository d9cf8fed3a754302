"""Attention maps as PNG and SVG: one row per layer, one column per head, colours for weights from 0 to 1."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cache
from typing import IO, TYPE_CHECKING

import numpy as np

from glassformer.inspection.maps import CAPTION, AttentionMaps, SiteMaps
from glassformer.plotting.style import (
    ALARM,
    BODY,
    HEADING,
    INK,
    LINE,
    MUTED,
    SMALL,
    TITLE,
    Sheet,
    drawable,
    shorten_to,
    text_width,
    tick_positions,
    visible,
    wrap_to,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


SCALE = ("#fbfbfc", "#fde3c8", "#fbae8b", "#ea6479", "#ab3285", "#5b1a72", "#1c0a35")
"""Colours from weight 0 (light) to weight 1 (dark); `colours` interpolates in perceptually equal steps."""
DARK_SCALE = ("#211f2a", "#4a2160", "#93296f", "#d94f6c", "#f6986c", "#fddcb5", "#fffaf0")
"""Colours from weight 0 (dark) to weight 1 (light), for pages in dark mode."""
GRID_LINE = np.array([228, 231, 237], dtype=np.uint8)
MASKED = np.array([[240, 242, 245], [190, 196, 207]], dtype=np.uint8)
"""RGB colours of the background and the stripes of masked cells."""
DARK_MASKED = np.array([[24, 23, 30], [62, 60, 74]], dtype=np.uint8)

LINED_CELL = 14
"""Smallest cell size, in pixels, at which hairlines separate the cells."""
BYTE_STEPS = 254
"""Number of steps between weight 0 and weight 1 if a weight is stored as one byte."""

# Oklab (Ottosson 2020), a perceptually uniform colour space: linear RGB → cones → lightness, a, b.
_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def to_oklab(rgb: np.ndarray) -> np.ndarray:
    """Return sRGB bytes (…, 3) as coordinates in the Oklab colour space."""
    values = rgb / 255
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    return np.cbrt(linear @ _CONES.T) @ _LAB.T


def _from_oklab(lab: np.ndarray) -> np.ndarray:
    linear = ((lab @ np.linalg.inv(_LAB).T) ** 3 @ np.linalg.inv(_CONES).T).clip(0, 1)
    values = np.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.rint(values * 255).astype(np.uint8)


@cache
def colours(scale: tuple[str, ...] = SCALE) -> np.ndarray:
    """Return 256 colours for weights from 0 to 1 as RGB bytes (256, 3), in perceptually equal steps."""
    corners = to_oklab(np.array([list(bytes.fromhex(name[1:])) for name in scale]))
    length = np.concatenate([[0], np.linalg.norm(np.diff(corners, axis=0), axis=1).cumsum()])
    steps = np.linspace(0, length[-1], 256)
    return _from_oklab(np.stack([np.interp(steps, length, corners[:, axis]) for axis in range(3)], axis=1))


@dataclass(frozen=True)
class Fit:
    """Size of one map in an image: pixels per cell, or cells per pixel if the map is large."""

    queries: int
    keys: int
    row_factor: int = 1
    column_factor: int = 1
    cell_height: int = 1
    cell_width: int = 1

    @property
    def rows(self) -> int:
        return -(-self.queries // self.row_factor)

    @property
    def columns(self) -> int:
        return -(-self.keys // self.column_factor)

    @property
    def height(self) -> int:
        return self.rows * self.cell_height

    @property
    def width(self) -> int:
        return self.columns * self.cell_width

    @property
    def is_pooled(self) -> bool:
        return self.row_factor > 1 or self.column_factor > 1


def fit(queries: int, keys: int, limit: int, largest_cell: int) -> Fit:
    """Return the largest size within `limit` pixels per side. Cells are whole pixels, square if possible."""
    row_factor, column_factor = -(-queries // limit), -(-keys // limit)
    pooled = Fit(queries, keys, row_factor, column_factor)
    cell_height = min(limit // pooled.rows, largest_cell)
    cell_width = min(limit // pooled.columns, largest_cell)
    side = min(cell_height, cell_width)
    # A map with few rows and many keys would become a line: stretch it to a quarter of the limit.
    least = limit // 4
    cell_height = min(cell_height, max(side, -(-least // pooled.rows)))
    cell_width = min(cell_width, max(side, -(-least // pooled.columns)))
    return Fit(queries, keys, row_factor, column_factor, cell_height, cell_width)


def pool_maximum(
    weights: np.ndarray, allowed: np.ndarray | None, row_factor: int, column_factor: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the largest weight of each block of cells. A block is masked if all its cells are masked."""
    row_starts = np.arange(0, weights.shape[0], row_factor)
    column_starts = np.arange(0, weights.shape[1], column_factor)

    def pool(reduce: np.ufunc, array: np.ndarray) -> np.ndarray:
        rows = reduce.reduceat(array, row_starts, axis=0) if row_factor > 1 else array
        return reduce.reduceat(rows, column_starts, axis=1) if column_factor > 1 else rows

    return pool(np.maximum, weights), None if allowed is None else pool(np.logical_or, allowed)


def paint(weights: np.ndarray, allowed: np.ndarray | None, fit: Fit, stripe: int = 3) -> np.ndarray:
    """Return one map as RGB bytes (height, width, 3). Masked cells have stripes of `stripe` pixels."""
    weights, allowed = pool_maximum(weights, allowed, fit.row_factor, fit.column_factor)
    levels = np.rint(weights.clip(0, 1) * 255).astype(np.uint8)
    image = _enlarge(colours()[levels], fit)
    if allowed is not None:
        rows, columns = np.indices(image.shape[:2])
        hatching = MASKED[((rows + columns) % (4 * stripe) < stripe).astype(int)]
        image = np.where(_enlarge(allowed, fit)[..., None], image, hatching)
    if min(fit.cell_height, fit.cell_width) >= LINED_CELL:
        image[fit.cell_height - 1 : -1 : fit.cell_height] = GRID_LINE
        image[:, fit.cell_width - 1 : -1 : fit.cell_width] = GRID_LINE
    return image


def _enlarge(cells: np.ndarray, fit: Fit) -> np.ndarray:
    return cells.repeat(fit.cell_height, axis=0).repeat(fit.cell_width, axis=1)


def to_bytes(weights: np.ndarray, allowed: np.ndarray | None) -> np.ndarray:
    """Return a map as one byte per cell: 0 is masked, 1 to 255 encode the square root of the weight.

    The square root gives small weights more precision. Larger weights have larger bytes, so the maximum of
    several weights can be computed on their bytes.
    """
    levels = np.rint(np.sqrt(weights.clip(0, 1)) * BYTE_STEPS).astype(np.uint8) + np.uint8(1)
    return levels if allowed is None else np.where(allowed, levels, np.uint8(0))


def from_bytes(levels: np.ndarray) -> np.ndarray:
    """Return the weights of a map encoded by `to_bytes`, within 1 / BYTE_STEPS. Masked cells are 0."""
    return np.square((levels.clip(1) - 1).astype(np.float32) / BYTE_STEPS)


FILE_DPI, SCREEN_DPI = 200, 120
LARGEST_SIDE = 30_000
"""Maximum side of an image in pixels, because common viewers do not open larger images."""

# Lengths in points.
MARGIN = 26.0
PAGE_WIDTH, WIDEST_PAGE = 800.0, 1300.0
LARGEST_PANEL, SMALLEST_PANEL = 380.0, 52.0
LARGEST_CELL = 27.0
READABLE_CELL = 7.0
PANEL_GAP = 9.0
SECTION_GAP = 30.0
SCALE_WIDTH, SCALE_HEIGHT = 96.0, 160.0
"""Size of the colour bar with its labels."""
LEAST_CONTENT = 330.0
"""Smallest width of the content, so that the text under a small map does not take many lines."""


class Section:
    """Grid of the maps of one site (encoder, decoder or cross), with headings. Lengths are in points."""

    def __init__(self, maps: SiteMaps, limit: float, dpi: int) -> None:
        self.maps = maps
        self.scale = dpi / 72
        layers, heads, queries, keys = maps.weights.shape
        self.fit: Fit = fit(queries, keys, int(limit * self.scale), int(LARGEST_CELL * self.scale))
        self.panel_width, self.panel_height = self.fit.width / self.scale, self.fit.height / self.scale
        self.row_labels = self._labels(
            maps.queries, maps.first_query, self.fit.cell_height, self.fit.row_factor, 22
        )
        self.column_labels = self._labels(maps.keys, 0, self.fit.cell_width, self.fit.column_factor, 30)
        self.lines = self._lines()
        self.left = 16 + 6 + max(label.width for label in self.row_labels)
        longest = self.fit.cell_width / self.scale - 2
        self.is_upright = any(not each.is_position and each.width > longest for each in self.column_labels)
        self.bottom = 6 + max(each.width if self.is_upright else each.size for each in self.column_labels)
        self.top = HEADING * LINE + len(self.lines) * SMALL * LINE + 8 + BODY * LINE
        grid = heads * self.panel_width + (heads - 1) * PANEL_GAP
        widths = [text_width(line, SMALL) for line in self.lines]
        self.width = max(self.left + grid, *widths, text_width(self.heading, HEADING, "bold"))
        self.height = self.top + layers * self.panel_height + (layers - 1) * PANEL_GAP + self.bottom

    @property
    def heading(self) -> str:
        return self.maps.name[0].upper() + self.maps.name[1:]

    def _lines(self) -> list[str]:
        """Return the text lines under the heading: axis names, largest weight, pooling."""
        maps = self.maps
        rows, keys = maps.weights.shape[2:]
        chosen = f" ({maps.first_query} to {maps.first_query + rows - 1})" if maps.is_part else ""
        lines = [f"row: {maps.query_axis}{chosen}  ·  column: {maps.key_axis}"]
        largest = f"largest weight {maps.largest:.3g}"
        if not maps.has_masked:
            largest += f"  ·  uniform weight {1 / keys:.2g}"
        if self.fit.is_pooled:
            block = f"{self.fit.row_factor} × {self.fit.column_factor}"
            largest += f"  ·  each pixel shows the maximum of {block} weights"
        return [*lines, largest]

    def _labels(
        self, tokens: list[str], first: int, cell_pixels: int, factor: int, apart: float
    ) -> list[Label]:
        """Return one label per token, or labels at round positions that are at least `apart` points apart."""
        cell = cell_pixels / self.scale / factor
        if cell >= READABLE_CELL:
            size = min(8.5, max(5.5, 0.72 * cell))
            return [
                Label((index + 0.5) * cell, drawable(visible(token)), size)
                for index, token in enumerate(tokens)
            ]
        positions = tick_positions(first, len(tokens), apart / cell)
        return [Label((position - first + 0.5) * cell, str(position), SMALL, True) for position in positions]

    def draw(self, sheet: Sheet, x: float, y: float) -> None:
        """Draw the section with its top left corner at (x, y)."""
        maps = self.maps
        sheet.text(x, y + HEADING, self.heading, HEADING, weight="bold")
        for number, line in enumerate(self.lines):
            sheet.text(x, y + HEADING * LINE + (number * LINE + 1) * SMALL, line, SMALL, MUTED)
        for row in range(len(maps.layers)):
            top = y + self.top + row * (self.panel_height + PANEL_GAP)
            middle = top + self.panel_height / 2
            sheet.text(x + 9, middle, maps.layer_name(row), BODY, MUTED, "center", rotation=90)
            for column in range(len(maps.heads)):
                left = x + self.left + column * (self.panel_width + PANEL_GAP)
                pixels = paint(maps.weights[row, column], maps.allowed_at(row, column), self.fit)
                sheet.image(left, top, pixels)
                if row == 0:
                    middle = left + self.panel_width / 2
                    sheet.text(middle, top - 6, maps.head_name(column), BODY, MUTED, "center")
                if row == len(maps.layers) - 1:
                    self._draw_columns(sheet, left, top + self.panel_height)
                if column == 0:
                    self._draw_rows(sheet, left, top)

    def _draw_rows(self, sheet: Sheet, left: float, top: float) -> None:
        for label in self.row_labels:
            y = top + label.offset
            if label.is_position:
                sheet.line((left - 3, left - 0.5), (y, y))
            sheet.text(left - 5, y, label.text, label.size, INK, "right", "center_baseline")

    def _draw_columns(self, sheet: Sheet, left: float, bottom: float) -> None:
        for label in self.column_labels:
            x = left + label.offset
            if label.is_position:
                sheet.line((x, x), (bottom + 0.5, bottom + 3))
            if self.is_upright:
                sheet.text(x, bottom + 5, label.text, label.size, INK, "right", "center_baseline", 90)
            else:
                sheet.text(x, bottom + 4.5 + label.size, label.text, label.size, INK, "center")


@dataclass(frozen=True)
class Label:
    """One tick label: a token, or a position number with a tick mark."""

    offset: float
    text: str
    size: float
    is_position: bool = False

    @property
    def width(self) -> float:
        return text_width(self.text, self.size)


def draw(maps: AttentionMaps, dpi: int = FILE_DPI) -> Figure:
    """Draw all maps (encoder, decoder, cross) as one figure, with fewer pixels if it would be too large."""
    limit = _panel_limit(maps)
    sections = [Section(site, limit, dpi) for site in maps.sites.values()]
    placed, width, height = _flow(sections)
    height = max(height, sections[0].top + SCALE_HEIGHT)  # a small map is lower than the colour bar
    content = max(width + SCALE_WIDTH, LEAST_CONTENT)
    head = TITLE * LINE + (BODY + 1) * LINE + 14
    footer = _footer(maps, content)
    foot = 18 + SMALL * LINE * len(footer)
    page_width, page_height = content + 2 * MARGIN, head + height + foot + 2 * MARGIN
    finest = LARGEST_SIDE * 72 / max(page_width, page_height)
    if dpi > finest:
        return draw(maps, int(finest))
    sheet = Sheet(page_width, page_height, dpi)
    title = maps.title or "attention"
    sheet.text(MARGIN, MARGIN + TITLE, shorten_to(title, content, TITLE, "bold"), TITLE, weight="bold")
    y = MARGIN + TITLE * LINE + BODY + 1
    sheet.text(MARGIN, y, _subtitle(maps, content), BODY + 1, MUTED)
    for section, x, y in placed:
        section.draw(sheet, MARGIN + x, MARGIN + head + y)
    has_masked = any(site.has_masked for site in maps.sites.values())
    largest = max(site.largest for site in maps.sites.values())
    _draw_scale(sheet, MARGIN + width + 34, MARGIN + head + sections[0].top, largest, has_masked)
    for number, (line, colour) in enumerate(footer):
        y = MARGIN + head + height + 18 + SMALL + number * SMALL * LINE
        sheet.text(MARGIN, y, line, SMALL, colour)
    return sheet.figure


def _footer(maps: AttentionMaps, width: float) -> list[tuple[str, str]]:
    """Return the lines under the maps, none wider than `width` points, each with its colour."""
    warning = [] if maps.warning is None else [(f"Warning: {maps.warning}", ALARM)]
    checks = [(line, MUTED if passed else ALARM) for passed, line in maps.checks.lines()]
    texts = [*warning, (CAPTION, INK), *checks]
    return [(line, colour) for text, colour in texts for line in wrap_to(text, width, SMALL)]


def _panel_limit(maps: AttentionMaps) -> float:
    """Return the maximum side of a map in points. The page may be wider if that makes tokens readable."""
    columns = max(site.weights.shape[1] for site in maps.sites.values())
    longest = max(max(site.weights.shape[2:]) for site in maps.sites.values())
    usual, widest = (
        (width - 60 - (columns - 1) * PANEL_GAP) / columns for width in (PAGE_WIDTH, WIDEST_PAGE)
    )
    readable = (READABLE_CELL + 0.5) * longest  # cells are rounded down to whole pixels
    return min(LARGEST_PANEL, max(SMALLEST_PANEL, usual, readable if readable <= widest else 0))


def _subtitle(maps: AttentionMaps, width: float) -> str:
    """Return input and output as one line of text, shortened if it is wider than `width` points."""
    parts = [maps.about[key] for key in ("input", "output") if maps.about.get(key)]
    arrow = "   →   "
    shares = [text_width(shorten_to(part, width, BODY + 1), BODY + 1) for part in parts]
    room = width - text_width(arrow, BODY + 1)
    if sum(shares) > room:
        shares = [max(room / 2, room - (sum(shares) - share)) for share in shares]
    return arrow.join(
        shorten_to(part, share + 0.5, BODY + 1) for part, share in zip(parts, shares, strict=True)
    )


def _flow(sections: list[Section]) -> tuple[list[tuple[Section, float, float]], float, float]:
    """Arrange sections in rows within the page width; return (section, x, y) for each, width and height."""
    placed: list[tuple[Section, float, float]] = []
    x = y = row_height = width = 0.0
    for section in sections:
        if x > 0 and x + section.width > PAGE_WIDTH:
            x, y, row_height = 0.0, y + row_height + SECTION_GAP, 0.0
        placed.append((section, x, y))
        width = max(width, x + section.width)
        row_height = max(row_height, section.height)
        x += section.width + SECTION_GAP
    return placed, width, y + row_height


def _draw_scale(sheet: Sheet, x: float, y: float, largest: float, has_masked: bool) -> None:
    """Draw the colour bar from 0 to 1 with a mark at the largest weight, and a sample of a masked cell."""
    height, width = 120.0, 9.0
    rows = round(height * sheet.scale)
    ramp = colours()[np.linspace(255, 0, rows).round().astype(int)]
    sheet.image(x, y, np.repeat(ramp[:, None], round(width * sheet.scale), axis=1))
    for tick in (0, 0.25, 0.5, 0.75, 1):
        sheet.text(x + width + 5, y + (1 - tick) * height, f"{tick:g}", SMALL, INK, "left", "center_baseline")
    mark = y + (1 - min(largest, 1.0)) * height
    sheet.polygon([(x - 1, mark), (x - 6, mark - 3), (x - 6, mark + 3)], INK)
    sheet.text(x + 4, y - 9, "weight", SMALL, MUTED, "center")
    below = y + height + 16
    sheet.text(x - 6, below, "▸ largest", SMALL, MUTED)
    if has_masked:
        side = round(width * sheet.scale)
        swatch = paint(np.zeros((1, 1)), np.zeros((1, 1), dtype=bool), Fit(1, 1, 1, 1, side, side))
        sheet.image(x - 6, below + 8, swatch)
        sheet.text(x - 6 + width + 4, below + 8 + width - 1.5, "masked", SMALL, MUTED)


def png(maps: AttentionMaps, dpi: int = SCREEN_DPI) -> bytes:
    """Return the maps as the bytes of a PNG file, by default at screen resolution."""
    file = io.BytesIO()
    write_png(maps, file, dpi)
    return file.getvalue()


def write_png(maps: AttentionMaps, file: IO[bytes], dpi: int = FILE_DPI) -> None:
    """Write the maps as PNG, with a description in the metadata of the file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(draw(maps, dpi)).print_png(file, metadata={"Description": _description(maps)})


def write_svg(maps: AttentionMaps, file: IO[bytes]) -> None:
    """Write the maps as SVG. The same maps give bit-identical files."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "glassformer"}):  # reproducible element names
        canvas = FigureCanvasSVG(draw(maps))
        canvas.print_svg(text, metadata={"Description": _description(maps), "Date": None})
    file.write(text.getvalue().encode())


def _description(maps: AttentionMaps) -> str:
    """Return origin, checks and caption of the maps as one line of text."""
    about = [f"{key}: {value}" for key, value in maps.about.items()]
    return "; ".join([*about, *(line for _, line in maps.checks.lines()), CAPTION])
