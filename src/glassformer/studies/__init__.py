"""Published tables, regenerated: one file a table, found here by name."""

from __future__ import annotations

from glassformer.core.errors import user_error
from glassformer.studies.arithmetic_file import ARITHMETIC_FILE
from glassformer.studies.arithmetic_preset import ARITHMETIC_PRESET
from glassformer.studies.arithmetic_rates import ARITHMETIC_RATES
from glassformer.studies.attention_forms import ATTENTION_FORMS
from glassformer.studies.parameter_counts import PARAMETER_COUNTS
from glassformer.studies.positions import POSITIONS
from glassformer.studies.reversal_table import REVERSAL_TABLE
from glassformer.studies.study import Table
from glassformer.studies.transfer import TRANSFER, TRANSFER_BOOKS, TRANSFER_MOVIES
from glassformer.studies.translation_sets import TRANSLATION_SETS

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
        raise user_error("no such table", path="NAME", value=name, allowed=sorted(STUDIES))
    return STUDIES[name]
