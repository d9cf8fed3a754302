"""Tiny experiments of each task type, on sequences of unequal length, whose model a test may break."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from glassformer.blocks.heads import IGNORED
from glassformer.data.batching import Batch, Examples, collate_token_classification
from glassformer.doctor.checks import CheckContext
from glassformer.models.base import Model
from glassformer.models.task_types import (
    CausalLM,
    MaskedLM,
    Seq2Seq,
    SequenceClassification,
    TaskType,
    TokenClassification,
)
from glassformer.models.transformer import TransformerConfig
from glassformer.runs.experiment import Experiment, ExperimentConfig
from glassformer.tasks.base import (
    CausalLMTask,
    Seq2SeqTask,
    SequenceClassificationTask,
    Task,
    TokenClassificationTask,
)

VOCABULARY, LENGTH, CLASSES, HIDDEN = 9, 12, 4, 8
BEGIN, END = 7, 8
SMALL = {"num_layers": 2, "num_heads": 2, "hidden_dim": 16, "feed_forward_dim": 16}

Sabotage = Callable[[Model], object]
ContextOf = Callable[..., CheckContext]


def rows(seed: int, shortest: int, longest: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, BEGIN, rng.integers(shortest, longest + 1)) for _ in range(40)]


class HiddenWordsTask(Task):
    """Masked language modelling: every third token is masked."""

    def batch(self, split: str, indices: np.ndarray, epoch: int = 0) -> Batch:
        batch = collate_token_classification(self.splits[split], indices)
        tokens = batch.inputs["tokens"]
        assert tokens is not None
        is_hidden = torch.arange(tokens.shape[1]) % 3 == 1
        inputs = {**batch.inputs, "tokens": tokens.masked_fill(is_hidden, HIDDEN)}
        return replace(batch, inputs=inputs, targets=batch.targets.masked_fill(~is_hidden, IGNORED))


def make_task(name: str) -> Task:
    inputs = rows(0, 4, LENGTH)
    sums = np.array([int(row.sum()) for row in inputs])
    written = [np.array([BEGIN, *row, END]) for row in rows(1, 3, 5)]
    shapes: dict[str, tuple[type[Task], TaskType, Any]] = {
        "per token": (
            TokenClassificationTask,
            TokenClassification(VOCABULARY, LENGTH, CLASSES),
            [row % CLASSES for row in inputs],
        ),
        "per sequence": (
            SequenceClassificationTask,
            SequenceClassification(VOCABULARY, LENGTH, CLASSES),
            sums % CLASSES,
        ),
        "real number": (
            SequenceClassificationTask,
            SequenceClassification(VOCABULARY, LENGTH, 1, is_regression=True),
            sums * 100.0,
        ),
        "next token": (CausalLMTask, CausalLM(VOCABULARY, LENGTH), inputs),
        "masked token": (HiddenWordsTask, MaskedLM(VOCABULARY, LENGTH), inputs),
        "sequence to sequence": (
            Seq2SeqTask,
            Seq2Seq(VOCABULARY, LENGTH, VOCABULARY, 7),
            written,
        ),
    }
    kind, shape, targets = shapes[name]
    examples = Examples(inputs, targets)
    return kind(shape, {"train": examples, "validation": examples})


def make_subject(
    shape: str,
    sabotage: Sabotage | None = None,
    *,
    task: Task | None = None,
    trained: Model | None = None,
    **options: Any,
) -> CheckContext:
    class BrokenConfig(TransformerConfig):
        def build(self, task_type: TaskType) -> Model:
            model = super().build(task_type)
            if sabotage is not None:
                sabotage(model)
            return model

    model = BrokenConfig(**{**SMALL, **options})
    config = ExperimentConfig.model_validate({"task": {"kind": "reversal"}, "model": model})
    return CheckContext(Experiment(config, task or make_task(shape)), trained)


@pytest.fixture
def context_of() -> ContextOf:
    return make_subject
