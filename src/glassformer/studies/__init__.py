"""Studies of published tables, by name; `glassformer reproduce NAME` runs one."""

from __future__ import annotations

from glassformer.core.errors import user_error
from glassformer.studies.arithmetic import (
    ARITHMETIC_FILE,
    ARITHMETIC_HONEST,
    ARITHMETIC_LEAK,
    ARITHMETIC_PRESET,
    ARITHMETIC_RATES,
)
from glassformer.studies.attention_forms import ATTENTION_FORMS
from glassformer.studies.inside_arithmetic import INSIDE_ARITHMETIC
from glassformer.studies.inside_language_model import INSIDE_LANGUAGE_MODEL
from glassformer.studies.inside_reversal import INSIDE_REVERSAL
from glassformer.studies.parameter_counts import PARAMETER_COUNTS
from glassformer.studies.positions import POSITIONS
from glassformer.studies.reversal import REVERSAL_TABLE
from glassformer.studies.study import Study
from glassformer.studies.text_defaults import TEXT_DEFAULTS
from glassformer.studies.transfer import TRANSFER_STUDIES
from glassformer.studies.translation_sets import TRANSLATION_SETS

_STUDIES: tuple[Study, ...] = (
    REVERSAL_TABLE,
    ARITHMETIC_PRESET,
    ARITHMETIC_FILE,
    ARITHMETIC_RATES,
    ARITHMETIC_LEAK,
    ARITHMETIC_HONEST,
    *TRANSFER_STUDIES,
    PARAMETER_COUNTS,
    ATTENTION_FORMS,
    POSITIONS,
    TRANSLATION_SETS,
    TEXT_DEFAULTS,
    INSIDE_ARITHMETIC,
    INSIDE_REVERSAL,
    INSIDE_LANGUAGE_MODEL,
)
STUDIES: dict[str, Study] = {study.name: study for study in _STUDIES}


def find(name: str) -> Study:
    """Return the study with this name; raise a user error that lists all studies if there is none."""
    if name not in STUDIES:
        raise user_error("no study has this name", path="NAME", value=name, allowed=sorted(STUDIES))
    return STUDIES[name]
