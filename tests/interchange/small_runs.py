"""Small runs with random weights, for tests of exports: a run folder in a fraction of a second."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from glassformer.core.config import unflatten, validate
from glassformer.runs.experiment import ExperimentConfig
from glassformer.runs.folder import RunFolder
from glassformer.runs.run import Run
from glassformer.runs.session import TrainingSession
from glassformer.tasks.base import Task

TRAINING = {
    "training.batch_size": 8,
    "training.max_steps": 2,
    "training.max_epochs": None,
    "training.threads": 1,
    "training.device": "cpu",
    "training.validation_examples": 8,
    "evaluation.max_examples": 8,
}
MODEL = {
    "model.num_layers": 2,
    "model.num_heads": 4,
    "model.hidden_dim": 32,
    "model.feed_forward_dim": 48,
}
LANGUAGE = {"task.kind": "language-model", "task.examples": 1300, "task.max_length": 24}
LLAMA = {
    **LANGUAGE,
    "model.position.kind": "rotary",
    "model.norm.kind": "rms",
    "model.feed_forward.kind": "swiglu",
    "model.bias": False,
    "model.output_bias": False,
}


def small_config(options: Mapping[str, Any]) -> ExperimentConfig:
    tree = unflatten({**MODEL, **options})
    return validate(ExperimentConfig, ExperimentConfig.fill_kinds(tree))


def small_run(path: Path, options: Mapping[str, Any]) -> Run:
    """Train a small model for two steps with these options."""
    TrainingSession(small_config({**TRAINING, **options}), RunFolder(path)).run()
    return Run(path, device="cpu")


def random_run(options: Mapping[str, Any], task: Task | None = None) -> Run:
    """Return a run without a folder: a model with random weights, for comparisons of outputs alone.

    Every weight is random, also those of norms and biases. Pass `task` to share it between models.
    """
    config = small_config(options)
    run = Run.__new__(Run)
    run.config, run.path = config, Path("random")
    run.task = task or config.task.build(0)
    torch.manual_seed(0)
    run.model = config.model.build(run.task.task_type).eval()
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return run
