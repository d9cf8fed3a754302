"""From a map to pixels. Every picture of a map, on paper or on a page, is made of these.

A weight has the same colour everywhere: one perceptually uniform scale from 0 to 1. Where there are more
cells than pixels, a pixel shows the largest of its cells, so that one bright cell is never averaged away.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

COLOUR_MAP = "magma"
GAP = np.array([255, 255, 255], dtype=np.uint8)
MASKED = np.array([[236, 238, 242], [213, 217, 225]], dtype=np.uint8)
"""The two greys of the stripes where a query may not attend."""

SQUARE_ROOT_STEPS = 255


@cache
def colours() -> np.ndarray:
    """(256, 3): the colours of the weights from 0 to 1."""
    import matplotlib

    table = matplotlib.colormaps[COLOUR_MAP](np.arange(256), bytes=True)
    return np.ascontiguousarray(np.asarray(table)[:, :3])


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


def paint(weights: np.ndarray, allowed: np.ndarray | None, fit: Fit) -> np.ndarray:
    """One map as (height, width, 3) bytes; masked cells are striped."""
    weights, allowed = pool_maximum(weights, allowed, fit.row_factor, fit.column_factor)
    levels = np.rint(weights.clip(0, 1) * 255).astype(np.uint8)
    image = enlarge(colours()[levels], fit)
    if allowed is not None:
        rows, columns = np.indices(image.shape[:2])
        stripe = max(2, min(fit.height, fit.width) // 120)
        stripes = MASKED[(rows + columns) // stripe % 2]
        image = np.where(enlarge(allowed, fit)[..., None], image, stripes)
    return _with_gaps(image, fit)


def enlarge(cells: np.ndarray, fit: Fit) -> np.ndarray:
    return cells.repeat(fit.cell_height, axis=0).repeat(fit.cell_width, axis=1)


def _with_gaps(image: np.ndarray, fit: Fit) -> np.ndarray:
    """A hair of white between cells that are large enough to lose it."""
    if min(fit.cell_height, fit.cell_width) >= 14:
        hair = max(1, min(fit.cell_height, fit.cell_width) // 24)
        for start in range(hair):
            image[fit.cell_height - 1 - start :: fit.cell_height][: fit.rows - 1] = GAP
            image[:, fit.cell_width - 1 - start :: fit.cell_width][:, : fit.columns - 1] = GAP
    return image


def to_bytes(weights: np.ndarray) -> np.ndarray:
    """Weights as 8 bits on a square-root scale: small weights keep more of their digits."""
    return np.rint(np.sqrt(weights.clip(0, 1)) * SQUARE_ROOT_STEPS).astype(np.uint8)


def from_bytes(levels: np.ndarray) -> np.ndarray:
    return np.square(levels.astype(np.float32) / SQUARE_ROOT_STEPS)
