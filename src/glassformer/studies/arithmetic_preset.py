"""The arithmetic preset: every expression that was not in training, answered by decoding."""

from __future__ import annotations

from glassformer.studies.recipes import Setting, Study

ARITHMETIC_PRESET = Study(
    name="arithmetic",
    title="Arithmetic: all expressions that training has not seen",
    metric="exact_match",
    settings=[
        Setting(
            name="−49…49, 60 % in training",
            published=None,
            what="arithmetic",
            overrides={},
            is_quick=True,
            quick={"training.max_epochs": 8, "evaluation.decode_during_training": False},
        )
    ],
    about="Sums and differences of −49 … 49, 60 % of the 19,602 expressions in"
    " training; the test set is the rest.",
)
