"""The published file of two-digit arithmetic: with its duplicates, as published, and without them."""

from __future__ import annotations

from glassformer.studies.recipes import Setting, Study

FILE = "two_digit_op/two_digit_op.json"
"""As the catalogue of public sets has it."""

# A quarter of the preset's examples: more epochs, and a stronger pull towards the simple solution.
FEW_EXAMPLES = {
    "training.batch_size": 64,
    "training.max_epochs": 100,
    "training.schedule.warmup_steps": 100,
    "training.optimizer.weight_decay": 1.0,
    "training.validate_every": 550,
}


QUICK = {"training.max_epochs": 12, "evaluation.decode_during_training": False}


def _setting(name: str, published: float | None, is_leaky: bool) -> Setting:
    overrides = {"task.data.train": FILE, "task.leaky": is_leaky, **FEW_EXAMPLES}
    return Setting(name, published, "arithmetic", overrides, is_quick=True, quick=QUICK)


ARITHMETIC_FILE = Study(
    name="arithmetic-file",
    title="Arithmetic on the published file, with and without its leak",
    metric="exact_match",
    settings=[
        _setting("de-duplicated", None, is_leaky=False),
        _setting("as published, leaky", 1.0, is_leaky=True),
    ],
    about="5,000 rows, of which 4,410 inputs are distinct. Split by rows 80/10/10, as published, test inputs"
    " also stand in training; de-duplicated they do not. Decoded exact match.",
)
