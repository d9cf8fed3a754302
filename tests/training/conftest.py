"""Trainers on tiny tasks, on examples of unequal length among others."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from glassformer.data.batching import Examples, generator
from glassformer.models.task_types import PerToken
from glassformer.runs.experiment import Experiment, ExperimentConfig
from glassformer.tasks.base import PerTokenTask
from glassformer.training.context import Surroundings
from glassformer.training.trainer import Trainer

MakeTrainer = Callable[..., Trainer]


@pytest.fixture(autouse=True)
def _quick_and_exact(one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread, since bits are compared; and no waiting for a disk, since no power fails here."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class RaggedTask(PerTokenTask):
    """Copying rows of 1 to 9 tokens."""

    def __init__(self, train_examples: int = 40) -> None:
        sizes = {"train": train_examples, "validation": 17}
        super().__init__(PerToken(5, 9, classes=5), {split: _rows(split, n) for split, n in sizes.items()})


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
        task: PerTokenTask | None = None,
        surroundings: Surroundings | None = None,
    ) -> Trainer:
        return Experiment(tiny_config(overrides), task).build_trainer(surroundings)

    return make
