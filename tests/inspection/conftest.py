"""Small experiments and attention maps for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from glassformer.core.config import validate
from glassformer.inspection.maps import AttentionMaps, Checks, SiteMaps
from glassformer.runs.experiment import Experiment, ExperimentConfig

BuildExperiment = Callable[..., Experiment]

SMALL_MODEL = {"num_layers": 2, "num_heads": 2, "hidden_dim": 16, "feed_forward_dim": 16, "dropout": 0.3}
FEW = {"train_examples": 8, "validation_examples": 2, "test_examples": 2}


@pytest.fixture
def reversal() -> Experiment:
    return experiment({"kind": "reversal", "length": 9, "categories": 5, **FEW})


@pytest.fixture
def arithmetic() -> Experiment:
    return experiment({"kind": "arithmetic", "max_examples": 50}, decoder_layers=3)


def experiment(task: dict[str, Any], **model: Any) -> Experiment:
    tree = {"task": task, "model": {"kind": "transformer", **SMALL_MODEL, **model}}
    return Experiment(validate(ExperimentConfig, tree))


def make_maps(weights: np.ndarray, allowed: np.ndarray | None = None, **about: str) -> AttentionMaps:
    """Make the maps of one site from weights with two or four axes."""
    four = weights.reshape((1,) * (4 - weights.ndim) + weights.shape).astype(np.float32)
    mask = None if allowed is None else allowed.reshape((1,) * (4 - allowed.ndim) + allowed.shape)
    layers, heads, queries, keys = four.shape
    site = SiteMaps(
        name="self-attention",
        weights=four,
        allowed=mask,
        layers=list(range(layers)),
        heads=list(range(heads)),
        queries=[f"q{number}" for number in range(queries)],
        keys=[f"k{number}" for number in range(keys)],
        query_axis="query token",
        key_axis="key token",
    )
    return AttentionMaps({"encoder": site}, Checks(1e-7, 1e-6, 1.0), dict(about))
