"""Data in memory: lists, arrays, tensors and DataFrames as lists of plain Python values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from glassformer.core.errors import user_error
from glassformer.data.columns import SEPARATOR


def plain_list(values: Any, path: str) -> list[Any]:
    """Convert a list, array, tensor, column or DataFrame to a list with one plain value per row.

    The columns of a DataFrame are joined as `task.data.columns` joins those of a file: see `_table_row`.
    """
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise user_error(
            "this is not a list or a column of values", path=path, value=values, hint="pass a list"
        )
    if hasattr(values, "columns"):
        if hasattr(values, "itertuples"):  # pandas
            return [_table_row(row) for row in values.itertuples(index=False, name=None)]
        if hasattr(values, "rows"):  # polars
            return [_table_row(row) for row in values.rows()]
    rows = (plain(value) for value in plain(values))
    return [[plain(item) for item in row] if isinstance(row, (list, tuple)) else row for row in rows]


def plain(value: Any) -> Any:
    """Convert an array, a tensor or a scalar of NumPy, PyTorch, pandas or polars to plain Python values."""
    for method in ("tolist", "to_list"):  # NumPy, PyTorch and pandas; polars
        if hasattr(value, method):
            return getattr(value, method)()
    return value


def is_missing(value: Any) -> bool:
    """Return True for None, NaN, infinity and the missing value of pandas."""
    is_number = isinstance(value, float)
    return value is None or (is_number and not math.isfinite(value)) or type(value).__name__ == "NAType"


def _table_row(row: tuple[Any, ...]) -> Any:
    """Return one text for cells of which any is a text, a list of tokens for others, None if one is missing.

    A single cell is returned as it is.
    """
    cells = [plain(cell) for cell in row]
    if len(cells) == 1:
        return cells[0]
    if any(map(is_missing, cells)):
        return None
    return SEPARATOR.join(map(str, cells)) if any(isinstance(cell, str) for cell in cells) else cells
