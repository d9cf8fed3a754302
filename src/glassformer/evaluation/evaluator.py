"""The one way a model is measured: a teacher-forced pass, then whatever the task decodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from glassformer.config import Node
from glassformer.data.batching import IGNORED, Batch, plan_batches
from glassformer.evaluation.metrics import macro_f1, perplexity
from glassformer.generation import DecodingConfig, GreedyConfig
from glassformer.models.base import Model
from glassformer.models.shapes import MaskedToken, NextToken, PerSequence, PerToken, Shape


class EvaluationConfig(Node):
    """How models are measured, during training and after it."""

    batch_tokens: int = Field(20_000, ge=1, description="tokens a batch, padding included")
    decoding: DecodingConfig = GreedyConfig()
    max_examples: int | None = Field(None, ge=1, description="measure on the first so many; none: on all")
    decode_during_training: bool = Field(True, description="decode at each validation, where a task decodes")


class SplitOfExamples(Protocol):
    def __len__(self) -> int: ...
    def lengths(self) -> np.ndarray: ...


class Evaluable(Protocol):
    """What the evaluator needs of a task."""

    @property
    def splits(self) -> Mapping[str, SplitOfExamples]: ...
    def batch(self, split: str, indices: np.ndarray, epoch: int = 0) -> Batch: ...
    def decode_metrics(
        self, model: Model, split: str, batches: list[np.ndarray], decoding: DecodingConfig
    ) -> dict[str, float]: ...


Progress = Callable[[int, int], None]


def evaluation_batches(task: Evaluable, split: str, config: EvaluationConfig) -> list[np.ndarray]:
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
    """Metrics by name over a split, in eval mode; the model is left in the mode it was in."""
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            batches = evaluation_batches(task, split, config)
            tally = _Tally(model)
            device = next(model.parameters()).device
            for number, indices in enumerate(batches):
                tally.add(task.batch(split, indices).to(device))
                if progress is not None:
                    progress(number + 1, len(batches))
            metrics = tally.metrics()
            if decodes:
                metrics |= task.decode_metrics(model, split, batches, config.decoding)
            return metrics
    finally:
        model.train(was_training)


class _Tally:
    """Sums over batches of any size."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.loss = 0.0
        self.correct = 0
        self.count = 0
        self.exact = 0
        self.rows = 0
        self.absolute_error = 0.0
        self.predicted: list[Tensor] = []
        self.actual: list[Tensor] = []

    def add(self, batch: Batch) -> None:
        answers = self.model(**batch.inputs)
        score = self.model.head.score(answers, batch.targets)
        self.loss += float(score.loss)
        self.correct += int(score.correct)
        self.count += int(score.count)
        self.rows += len(batch.targets)
        if batch.targets.is_floating_point():
            self.absolute_error += float((answers.squeeze(-1) - batch.targets).abs().sum())
            return
        predicted = answers.argmax(-1)
        if batch.targets.ndim == 1:
            self.predicted.append(predicted)
            self.actual.append(batch.targets)
        else:
            self.exact += int(((predicted == batch.targets) | (batch.targets == IGNORED)).all(-1).sum())

    def metrics(self) -> dict[str, float]:
        count = max(self.count, 1)
        loss = self.loss / count
        return {"loss": loss} | _METRICS_OF_SHAPE.get(type(self.model.shape), _token_metrics)(self, loss)


def _token_metrics(tally: _Tally, loss: float) -> dict[str, float]:
    return {"accuracy": tally.correct / max(tally.count, 1)}


def _per_token(tally: _Tally, loss: float) -> dict[str, float]:
    return _token_metrics(tally, loss) | {"exact_match": tally.exact / max(tally.rows, 1)}


def _per_sequence(tally: _Tally, loss: float) -> dict[str, float]:
    if not tally.predicted:
        return {"mean_absolute_error": tally.absolute_error / max(tally.rows, 1)}
    f1 = macro_f1(torch.cat(tally.predicted).cpu().numpy(), torch.cat(tally.actual).cpu().numpy())
    return _token_metrics(tally, loss) | {"macro_f1": f1}


def _language(tally: _Tally, loss: float) -> dict[str, float]:
    return _token_metrics(tally, loss) | {"perplexity": perplexity(loss)}


_METRICS_OF_SHAPE: dict[type[Shape], Callable[[_Tally, float], dict[str, float]]] = {
    PerToken: _per_token,
    PerSequence: _per_sequence,
    NextToken: _language,
    MaskedToken: _language,
}
