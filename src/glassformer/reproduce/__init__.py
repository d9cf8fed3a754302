"""Published tables, regenerated: one file a table, found here by name."""

from __future__ import annotations

from glassformer.errors import user_error
from glassformer.reproduce.arithmetic_file import ARITHMETIC_FILE
from glassformer.reproduce.arithmetic_preset import ARITHMETIC_PRESET
from glassformer.reproduce.reversal_table import REVERSAL_TABLE
from glassformer.reproduce.study import Table
from glassformer.reproduce.transfer import TRANSFER, TRANSFER_BOOKS, TRANSFER_MOVIES

_TABLES: tuple[Table, ...] = (
    REVERSAL_TABLE,
    ARITHMETIC_PRESET,
    ARITHMETIC_FILE,
    TRANSFER,
    TRANSFER_BOOKS,
    TRANSFER_MOVIES,
)
STUDIES: dict[str, Table] = {table.name: table for table in _TABLES}


def find(name: str) -> Table:
    if name not in STUDIES:
        raise user_error("no such table", place="NAME", value=name, allowed=sorted(STUDIES))
    return STUDIES[name]
