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
    "Experiment": "glassformer.experiment",
    "ExperimentConfig": "glassformer.experiment",
    "Run": "glassformer.trained",
    "UserError": "glassformer.errors",
    "from_huggingface": "glassformer.models.huggingface",
    "generate": "glassformer.generation",
    "load_plugin": "glassformer.registry",
    "presets": "glassformer.experiment",
    "register": "glassformer.registry",
    "report": "glassformer.reports.report",
    "resolve": "glassformer.experiment",
    "train": "glassformer.launch",
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
    from glassformer.errors import UserError
    from glassformer.experiment import Experiment, ExperimentConfig, presets, resolve
    from glassformer.generation import generate
    from glassformer.launch import train
    from glassformer.models.huggingface import from_huggingface
    from glassformer.registry import load_plugin, register
    from glassformer.reports.report import report
    from glassformer.trained import Run


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'glassformer' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
