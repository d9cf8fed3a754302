"""The evaluation path of training, `evaluate`, reports and the studio."""

from __future__ import annotations

import torch
from pydantic import Field

from glassformer.core.config import Node
from glassformer.data.batching import BatchPlan, plan_batches
from glassformer.evaluation.intervals import PROTOCOL
from glassformer.evaluation.metrics import Evaluable, Measured, Progress, Tally
from glassformer.evaluation.text_scores import measure_generated
from glassformer.generation import DecodingConfig, GreedyConfig
from glassformer.models.base import Model


class EvaluationConfig(Node):
    """How models are measured, during training and after it."""

    batch_tokens: int = Field(20_000, ge=1, description="tokens a batch, padding included")
    decoding: DecodingConfig = GreedyConfig()
    max_examples: int | None = Field(None, ge=1, description="measure on the first so many; none: on all")
    decode_during_training: bool = Field(True, description="decode at each validation, where a task decodes")
    training_decoding: DecodingConfig = Field(
        GreedyConfig(), description="how those validations decode: what takes least time, unless said"
    )

    def during_training(self) -> EvaluationConfig:
        return self.model_copy(update={"decoding": self.training_decoding})


def evaluation_batches(task: Evaluable, split: str, config: EvaluationConfig) -> BatchPlan:
    """Examples of like length together; no example is left out."""
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
    """Metrics by name over a split, without intervals: quick enough for every validation."""
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
    """Over a split, in eval mode; the model is left in the mode it was in.

    With `is_thorough`, intervals, details and all the scorers; the metrics that both ways have are equal.
    """
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            batches = evaluation_batches(task, split, config)
            tally = Tally(model, is_thorough=is_thorough)
            device = next(model.parameters()).device
            for number, indices in enumerate(batches, start=1):
                tally.add(task.batch(split, indices).to(device))
                if progress is not None:
                    progress("measuring", number, len(batches))
            measured = tally.measured(task, split)
            if decodes and task.generates_outputs:
                decoded = task.decode(model, split, batches, config.decoding, progress)
                measured = measured.and_then(
                    measure_generated(task, split, decoded, is_thorough=is_thorough, progress=progress)
                )
            if is_thorough:
                measured.protocol["intervals"] = PROTOCOL
            return measured
    finally:
        model.train(was_training)
