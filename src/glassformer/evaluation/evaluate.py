"""Evaluation of a model on a split, for training, `glassformer evaluate`, reports and the studio."""

from __future__ import annotations

from typing import Literal, Self

import torch
from pydantic import Field, model_validator

from glassformer.core.config import Node
from glassformer.core.errors import ErrorDetail
from glassformer.data.batching import BatchPlan, plan_batches
from glassformer.evaluation.intervals import PROTOCOL
from glassformer.evaluation.metrics import Evaluable, Measured, Progress, Tally
from glassformer.generation import DecodingConfig, GreedyConfig
from glassformer.generation.predict import EngineConfig, OwnEngineConfig, with_engine, with_weights
from glassformer.models.base import Model, evaluating


class EvaluationConfig(Node):
    """Evaluation options, during training and after it."""

    batch_tokens: int = Field(20_000, ge=1, description="maximum tokens per batch, padding included")
    decoding: DecodingConfig = Field(GreedyConfig(), description="decoding strategy")
    engine: EngineConfig = Field(
        OwnEngineConfig(), description="engine that decodes in evaluation and prediction, not in training"
    )
    weights: Literal["fp32", "int8"] = Field(
        "fp32",
        description="number type of the matrices in evaluation and prediction, not in training; int8 is"
        " faster on a CPU and changes outputs slightly",
    )
    max_examples: int | None = Field(None, ge=1, description="evaluate on the first N examples; none: on all")
    decode_during_training: bool = Field(
        True, description="decode at each validation, if the task generates outputs"
    )
    training_decoding: DecodingConfig = Field(
        GreedyConfig(), description="decoding strategy for validations during training; greedy is fastest"
    )

    @model_validator(mode="after")
    def _check_decoding(self) -> Self:
        self.engine.check_decoding(self.decoding)
        if self.weights != "fp32" and not isinstance(self.engine, OwnEngineConfig):
            raise ErrorDetail(
                "another engine decodes with its own copy of the weights",
                path="weights",
                value=self.weights,
                hint="evaluation.weights=fp32, or evaluation.engine=glassformer",
            )
        return self

    def during_training(self) -> EvaluationConfig:
        """Return the options for validations during training."""
        return self.model_copy(
            update={"decoding": self.training_decoding, "engine": OwnEngineConfig(), "weights": "fp32"}
        )


def evaluation_batches(task: Evaluable, split: str, config: EvaluationConfig) -> BatchPlan:
    """Return batches of the indices of all examples, grouped by similar length."""
    lengths = task.splits[split].lengths()[: config.max_examples]
    return plan_batches(
        lengths, seed=0, split=split, epoch=0, batch_tokens=config.batch_tokens, shuffle=False
    )


def evaluate(
    model: Model,
    task: Evaluable,
    split: str,
    config: EvaluationConfig,
    *,
    decodes: bool = True,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Return the metrics of a split by name, without confidence intervals, which take longer."""
    return measure(model, task, split, config, decodes=decodes, is_thorough=False, progress=progress).metrics


def measure(
    model: Model,
    task: Evaluable,
    split: str,
    config: EvaluationConfig,
    *,
    decodes: bool = True,
    is_thorough: bool = True,
    progress: Progress | None = None,
) -> Measured:
    """Evaluate a model on a split. If `is_thorough`, add confidence intervals, details and text scores.

    `is_thorough` does not change the value of any metric. Afterwards the model has the same mode as before.
    """
    model = with_weights(model, config.weights)
    with evaluating(model), torch.inference_mode():
        batches = evaluation_batches(task, split, config)
        tally = Tally(model, is_thorough=is_thorough)
        device = next(model.parameters()).device
        for number, indices in enumerate(batches, start=1):
            tally.add(task.batch(split, indices).to(device))
            if progress is not None:
                progress("measuring batches", number, len(batches))
        measured = tally.measured(task, split)
        if decodes and task.generates_outputs:
            from glassformer.evaluation.text_scores import measure_generated  # most tasks need not load it

            engine = config.engine.build(model)
            decoded = task.decode(with_engine(model, engine), split, batches, config.decoding, progress)
            if engine is not None:
                measured.protocol["engine"] = engine.name
            measured = measured.merge(
                measure_generated(task, split, decoded, is_thorough=is_thorough, progress=progress)
            )
        measured.protocol["weights"] = config.weights
        if is_thorough:
            measured.protocol["intervals"] = PROTOCOL
        return measured
