"""The published file of two-digit arithmetic: with its duplicates, as published, and without them."""

from __future__ import annotations

import os
from pathlib import Path

from glassformer.reproduce.study import Setting, Study

FILE = Path("two_digit_op") / "two_digit_op.json"


def _path() -> str:
    return str(Path(os.environ.get("GLASSFORMER_DATA", ".")) / FILE)


# A quarter of the preset's examples: more epochs, and a stronger pull towards the simple solution.
FEW_EXAMPLES = {
    "training.batch_size": 64,
    "training.max_epochs": 100,
    "training.schedule.warmup_steps": 100,
    "training.optimizer.weight_decay": 1.0,
    "training.validate_every": 550,
}


def _overrides(is_leaky: bool) -> dict[str, object]:
    return {"task.data.train": _path(), "task.leaky": is_leaky, **FEW_EXAMPLES}


ARITHMETIC_FILE = Study(
    name="arithmetic-file",
    title="Arithmetic on the published file, with and without its leak",
    metric="exact_match",
    settings=[
        Setting("de-duplicated", None, "arithmetic", _overrides(is_leaky=False)),
        Setting("as published, leaky", 1.0, "arithmetic", _overrides(is_leaky=True)),
    ],
    about="5,000 rows, of which 4,410 inputs are distinct. Split by rows 80/10/10, as published, test inputs"
    " also stand in training; de-duplicated they do not. Decoded exact match.",
)
