"""Published tables, regenerated: one file a table, found here by name."""

from __future__ import annotations

from glassformer.errors import user_error
from glassformer.reproduce.arithmetic_file import ARITHMETIC_FILE
from glassformer.reproduce.arithmetic_preset import ARITHMETIC_PRESET
from glassformer.reproduce.reversal_table import REVERSAL_TABLE
from glassformer.reproduce.study import Study

STUDIES: dict[str, Study] = {
    study.name: study for study in (REVERSAL_TABLE, ARITHMETIC_PRESET, ARITHMETIC_FILE)
}


def find(name: str) -> Study:
    if name not in STUDIES:
        raise user_error("no such table", place="NAME", value=name, allowed=sorted(STUDIES))
    return STUDIES[name]
