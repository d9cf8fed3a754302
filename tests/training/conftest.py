"""Fixtures: trainers on tiny tasks, one of them with examples of unequal length."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from glassformer.data.batching import Examples, generator
from glassformer.models.task_types import TokenClassification
from glassformer.runs.experiment import Experiment, ExperimentConfig
from glassformer.tasks.base import TokenClassificationTask
from glassformer.training.precision import bf16_speed
from glassformer.training.trainer import Trainer, TrainingContext

MakeTrainer = Callable[..., Trainer]


@pytest.fixture(autouse=True)
def _quick_and_exact(one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use one thread, since bits are compared, and skip fsync to save time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class RaggedTask(TokenClassificationTask):
    """Task: copy rows of 1 to 9 tokens."""

    def __init__(self, train_examples: int = 40) -> None:
        sizes = {"train": train_examples, "validation": 17}
        super().__init__(
            TokenClassification(5, 9, classes=5), {split: _rows(split, n) for split, n in sizes.items()}
        )


def _rows(split: str, count: int) -> Examples:
    rng = generator(0, "ragged", split)
    rows = [rng.integers(0, 5, int(length)) for length in rng.integers(1, 10, count)]
    return Examples(rows, [row.copy() for row in rows])


@pytest.fixture
def ragged_task() -> RaggedTask:
    return RaggedTask()


@pytest.fixture
def make_trainer(tiny_config: Callable[..., ExperimentConfig]) -> MakeTrainer:
    def make(
        overrides: Mapping[str, Any] | None = None,
        task: TokenClassificationTask | None = None,
        context: TrainingContext | None = None,
    ) -> Trainer:
        return Experiment(tiny_config(overrides), task).build_trainer(context)

    return make


@pytest.fixture(scope="session")
def bf16_runs(own_cache: None) -> None:
    """Skip the test if bf16 would stop this process with an illegal instruction."""
    failure = bf16_speed().failure
    if failure:
        pytest.skip(f"bf16 does not run here: {failure}")
