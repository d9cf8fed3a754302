"""From a map to pixels. Every picture of a map, on paper or on a page, is made of these.

A weight has the same colour everywhere: one perceptually uniform scale from 0 to 1. Where there are more
cells than pixels, a pixel shows the largest of its cells, so that one bright cell is never averaged away.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

SCALE = ("#fbfbfc", "#fde3c8", "#fbae8b", "#ea6479", "#ab3285", "#5b1a72", "#1c0a35")
"""From weight 0 to weight 1, ever darker; `colours` makes equal steps between them look equal."""
LINE = np.array([228, 231, 237], dtype=np.uint8)
MASKED = np.array([[240, 242, 245], [190, 196, 207]], dtype=np.uint8)
"""Ground and stripes where a query may not attend."""

LINED_CELL = 14
"""Pixels: cells of this size or more have a hairline between them."""
BYTE_STEPS = 254

# Oklab (Ottosson 2020), where equal distances look about equally far: linear RGB → cones → lightness, a, b.
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
    """Bytes (…, 3) as Oklab."""
    values = rgb / 255
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    return np.cbrt(linear @ _CONES.T) @ _LAB.T


def _from_oklab(lab: np.ndarray) -> np.ndarray:
    linear = ((lab @ np.linalg.inv(_LAB).T) ** 3 @ np.linalg.inv(_CONES).T).clip(0, 1)
    values = np.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.rint(values * 255).astype(np.uint8)


@cache
def colours() -> np.ndarray:
    """(256, 3) bytes: the colours of the weights from 0 to 1, in steps that look alike."""
    corners = to_oklab(
        np.array([[int(name[place : place + 2], 16) for place in (1, 3, 5)] for name in SCALE])
    )
    way = np.concatenate([[0], np.linalg.norm(np.diff(corners, axis=0), axis=1).cumsum()])
    steps = np.linspace(0, way[-1], 256)
    return _from_oklab(np.stack([np.interp(steps, way, corners[:, axis]) for axis in range(3)], axis=1))


@dataclass(frozen=True)
class Fit:
    """How many pixels a cell takes, or how many cells a pixel."""

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
    """The largest panel within `limit` pixels a side whose cells are whole pixels and, if may be, square."""
    row_factor, column_factor = -(-queries // limit), -(-keys // limit)
    pooled = Fit(queries, keys, row_factor, column_factor)
    cell_height = min(limit // pooled.rows, largest_cell)
    cell_width = min(limit // pooled.columns, largest_cell)
    side = min(cell_height, cell_width)
    # A map of few rows and many keys would be a line: it gets up to a quarter of the limit.
    least = limit // 4
    cell_height = min(cell_height, max(side, -(-least // pooled.rows)))
    cell_width = min(cell_width, max(side, -(-least // pooled.columns)))
    return Fit(queries, keys, row_factor, column_factor, cell_height, cell_width)


def pool_maximum(
    weights: np.ndarray, allowed: np.ndarray | None, row_factor: int, column_factor: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """The largest weight of each block; a block is masked if all of it is."""
    row_starts = np.arange(0, weights.shape[0], row_factor)
    column_starts = np.arange(0, weights.shape[1], column_factor)

    def pool(reduce: np.ufunc, array: np.ndarray) -> np.ndarray:
        rows = reduce.reduceat(array, row_starts, axis=0) if row_factor > 1 else array
        return reduce.reduceat(rows, column_starts, axis=1) if column_factor > 1 else rows

    return pool(np.maximum, weights), None if allowed is None else pool(np.logical_or, allowed)


def paint(weights: np.ndarray, allowed: np.ndarray | None, fit: Fit, stripe: int = 3) -> np.ndarray:
    """One map as (height, width, 3) bytes; masked cells are hatched with lines of `stripe` pixels."""
    weights, allowed = pool_maximum(weights, allowed, fit.row_factor, fit.column_factor)
    levels = np.rint(weights.clip(0, 1) * 255).astype(np.uint8)
    image = _enlarge(colours()[levels], fit)
    if allowed is not None:
        rows, columns = np.indices(image.shape[:2])
        hatching = MASKED[((rows + columns) % (4 * stripe) < stripe).astype(int)]
        image = np.where(_enlarge(allowed, fit)[..., None], image, hatching)
    if min(fit.cell_height, fit.cell_width) >= LINED_CELL:
        image[fit.cell_height - 1 : -1 : fit.cell_height] = LINE
        image[:, fit.cell_width - 1 : -1 : fit.cell_width] = LINE
    return image


def _enlarge(cells: np.ndarray, fit: Fit) -> np.ndarray:
    return cells.repeat(fit.cell_height, axis=0).repeat(fit.cell_width, axis=1)


def to_bytes(weights: np.ndarray, allowed: np.ndarray | None) -> np.ndarray:
    """A byte a cell, for pages: 0 is masked, and 1 to 255 are the square root of the weight, from 0 to 1.

    Small weights keep more of their digits so, and the larger byte is the larger weight: the maximum of bytes
    is the byte of the maximum.
    """
    levels = np.rint(np.sqrt(weights.clip(0, 1)) * BYTE_STEPS).astype(np.uint8) + np.uint8(1)
    return levels if allowed is None else np.where(allowed, levels, np.uint8(0))


def from_bytes(levels: np.ndarray) -> np.ndarray:
    """The weights again, at most 1 / BYTE_STEPS away; masked cells are 0."""
    return np.square((levels.clip(1) - 1).astype(np.float32) / BYTE_STEPS)
