"""What the training loop asks of a model, and how one process alone does it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from glassformer.data.batching import Batch
from glassformer.models.base import Model
from glassformer.models.heads import Score
from glassformer.training.state import optimizer_tensors, restore_optimizer

Learned = tuple[float, int]
"""Of a batch: the summed loss, and how many targets were on top."""
Autocast = Callable[[], contextlib.AbstractContextManager[Any]]


class Undivided:
    """One process, one model."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def parts(self, lengths: np.ndarray) -> int:
        """Into how many a batch of examples of these lengths is cut."""
        return 1

    def learn(
        self, batches: Sequence[Batch], count: int, label_smoothing: float, autocast: Autocast
    ) -> list[Learned]:
        """Adds the gradients of all batches of a step, which together have so many targets."""
        scores = []
        for place, batch in enumerate(batches, start=1):
            with self.accumulating(is_last=place == len(batches)):
                with autocast():
                    score = self.score(batch, label_smoothing)
                self.backward(score.loss / count)
            scores.append((float(score.loss.detach()), int(score.correct)))
        return scores

    def score(self, batch: Batch, label_smoothing: float) -> Score:
        return self.model.score(batch.inputs, batch.targets, label_smoothing)

    def backward(self, loss: Tensor) -> None:
        """Adds to the gradient, which in the end is the sum over all ranks."""
        loss.backward()

    def accumulating(self, *, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        """Around all that is computed for one of the batches of a step: gradients travel with the last."""
        return contextlib.nullcontext()

    def clip(self, limit: float) -> float:
        """The norm of the gradient before it was made to be at most the limit."""
        return float(nn.utils.clip_grad_norm_(self.model.parameters(), limit))

    def leaves(self, is_asked: bool) -> bool:
        """Whether this rank leaves a validation between two of its batches, since somebody asked it to."""
        return is_asked

    def share(self, model: Model) -> Model:
        """Another model, such as one of averaged weights, divided as the first."""
        return model

    def weights(self, model: Model) -> dict[str, Tensor]:
        """Whole, for the rank that writes."""
        return model.state_dict()

    def load(self, model: Model, weights: Mapping[str, Tensor]) -> None:
        model.load_state_dict(dict(weights))

    def optimizer_tensors(self, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        return optimizer_tensors(optimizer)

    def restore_optimizer(self, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
        restore_optimizer(optimizer, tensors)
