"""Glassformer: train Transformers on your own sequences, and see through them.

    import glassformer as gf
    run = gf.train("reversal", {"task.length": 100})
    run.evaluate("test")
    run.attention("3 1 4 1 5")

Names are imported when they are first used, so that `import glassformer` is fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_MODULES = {
    "CausalLM": "glassformer.models.task_types",
    "Experiment": "glassformer.runs.experiment",
    "ExperimentConfig": "glassformer.runs.experiment",
    "MaskedLM": "glassformer.models.task_types",
    "Run": "glassformer.runs.run",
    "Seq2Seq": "glassformer.models.task_types",
    "SequenceClassification": "glassformer.models.task_types",
    "TokenClassification": "glassformer.models.task_types",
    "Transformer": "glassformer.models.transformer",
    "UserError": "glassformer.core.errors",
    "fetch_model": "glassformer.interchange.model_catalogue",
    "from_huggingface": "glassformer.interchange.huggingface",
    "generate": "glassformer.generation",
    "import_model": "glassformer.interchange.imports",
    "load_plugin": "glassformer.core.registry",
    "nn": "glassformer.blocks",
    "presets": "glassformer.runs.experiment",
    "record": "glassformer.inspection.record",
    "register": "glassformer.core.registry",
    "replace": "glassformer.inspection.sites",
    "report": "glassformer.reports.report",
    "resolve": "glassformer.runs.experiment",
    "sites": "glassformer.inspection.sites",
    "sweep": "glassformer.api",
    "train": "glassformer.api",
}
"""Module that defines each public name. The name `nn` is the module itself."""

__all__ = [
    "CausalLM",
    "Experiment",
    "ExperimentConfig",
    "MaskedLM",
    "Run",
    "Seq2Seq",
    "SequenceClassification",
    "TokenClassification",
    "Transformer",
    "UserError",
    "__version__",
    "fetch_model",
    "from_huggingface",
    "generate",
    "import_model",
    "load_plugin",
    "nn",
    "presets",
    "record",
    "register",
    "replace",
    "report",
    "resolve",
    "sites",
    "sweep",
    "train",
]

if TYPE_CHECKING:
    from glassformer import blocks as nn
    from glassformer.api import sweep, train
    from glassformer.core.errors import UserError
    from glassformer.core.registry import load_plugin, register
    from glassformer.generation import generate
    from glassformer.inspection.record import record
    from glassformer.inspection.sites import replace, sites
    from glassformer.interchange.huggingface import from_huggingface
    from glassformer.interchange.imports import import_model
    from glassformer.interchange.model_catalogue import fetch_model
    from glassformer.models.task_types import (
        CausalLM,
        MaskedLM,
        Seq2Seq,
        SequenceClassification,
        TokenClassification,
    )
    from glassformer.models.transformer import Transformer
    from glassformer.reports.report import report
    from glassformer.runs.experiment import Experiment, ExperimentConfig, presets, resolve
    from glassformer.runs.run import Run


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'glassformer' has no attribute {name!r}")
    module = importlib.import_module(_MODULES[name])
    return module if name == "nn" else getattr(module, name)


def __dir__() -> list[str]:
    return __all__
