"""Glassformer: train Transformers on your own sequences, and see through them.

    import glassformer as gf
    run = gf.train("reversal", {"task.length": 100})
    run.evaluate("test")
    run.attention("3 1 4 1 5")

Names are imported when they are first used, so that `import glassformer` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "Experiment": "glassformer.runs.experiment",
    "ExperimentConfig": "glassformer.runs.experiment",
    "Run": "glassformer.runs.run",
    "UserError": "glassformer.core.errors",
    "from_huggingface": "glassformer.interchange.huggingface",
    "generate": "glassformer.generation",
    "load_plugin": "glassformer.core.registry",
    "presets": "glassformer.runs.experiment",
    "register": "glassformer.core.registry",
    "report": "glassformer.reports.report",
    "resolve": "glassformer.runs.experiment",
    "train": "glassformer.runs.session",
}

__all__ = [
    "Experiment",
    "ExperimentConfig",
    "Run",
    "UserError",
    "__version__",
    "from_huggingface",
    "generate",
    "load_plugin",
    "presets",
    "register",
    "report",
    "resolve",
    "train",
]

if TYPE_CHECKING:
    from glassformer.core.errors import UserError
    from glassformer.core.registry import load_plugin, register
    from glassformer.generation import generate
    from glassformer.interchange.huggingface import from_huggingface
    from glassformer.reports.report import report
    from glassformer.runs.experiment import Experiment, ExperimentConfig, presets, resolve
    from glassformer.runs.run import Run
    from glassformer.runs.session import train


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'glassformer' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
