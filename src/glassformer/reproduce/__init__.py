"""Published tables, regenerated: one file a table, found here by name."""

from __future__ import annotations

from glassformer.errors import user_error
from glassformer.reproduce.arithmetic_file import ARITHMETIC_FILE
from glassformer.reproduce.arithmetic_preset import ARITHMETIC_PRESET
from glassformer.reproduce.arithmetic_rates import ARITHMETIC_RATES
from glassformer.reproduce.attention_forms import ATTENTION_FORMS
from glassformer.reproduce.parameter_counts import PARAMETER_COUNTS
from glassformer.reproduce.positions import POSITIONS
from glassformer.reproduce.reversal_table import REVERSAL_TABLE
from glassformer.reproduce.study import Table
from glassformer.reproduce.transfer import TRANSFER, TRANSFER_BOOKS, TRANSFER_MOVIES
from glassformer.reproduce.translation_sets import TRANSLATION_SETS

_TABLES: tuple[Table, ...] = (
    REVERSAL_TABLE,
    ARITHMETIC_PRESET,
    ARITHMETIC_FILE,
    ARITHMETIC_RATES,
    TRANSFER,
    TRANSFER_BOOKS,
    TRANSFER_MOVIES,
    PARAMETER_COUNTS,
    ATTENTION_FORMS,
    POSITIONS,
    TRANSLATION_SETS,
)
STUDIES: dict[str, Table] = {table.name: table for table in _TABLES}


def find(name: str) -> Table:
    if name not in STUDIES:
        raise user_error("no such table", place="NAME", value=name, allowed=sorted(STUDIES))
    return STUDIES[name]
