"""State of the training loop: counters and metrics, recent losses, random state, and results of a step."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from glassformer.training.strategies import BatchLoss

RECENT_LOSSES = 64
"""Number of recent step losses whose 90th percentile the divergence guard compares a new loss with."""


@dataclass
class Window:
    """Loss, counts and seconds summed over the steps since the last `step` event in the event log."""

    loss: float = 0.0
    correct: int = 0
    count: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def add(self, loss: float, correct: int, count: int) -> None:
        self.loss += loss
        self.correct += correct
        self.count += count


@dataclass
class TrainingState:
    """Counters and metrics of a run, saved as JSON in each checkpoint."""

    step: int = 0
    epoch: int = 0
    steps_in_epoch: int = 0
    tokens: int = 0
    seconds: float = 0.0
    """Seconds spent in training steps alone, from which tokens per second are computed."""
    elapsed: float = 0.0
    """Seconds spent in steps, validations and saves. `training.max_minutes` limits this time."""
    best: float | None = None
    best_loss: float | None = None
    """Loss of the best validation. It breaks the tie if two validations have the same primary metric."""
    best_step: int | None = None
    validations_without_best: int = 0
    consecutive_targets: int = 0
    """Number of consecutive validations that reached `training.stopping.target`."""
    last_metrics: dict[str, float] = field(default_factory=dict)
    last_validation: int = 0
    rollbacks: int = 0
    lr_factor: float = 1.0
    """Learning-rate factor: 1 at first, halved at each roll-back to a checkpoint after a divergence."""
    first_loss: float | None = None
    recent_losses: list[float] = field(default_factory=list)
    order: str = ""
    """Running SHA-256 of the indices of all training examples so far, in the order they were used."""
    window: Window = field(default_factory=Window)
    ended: str = ""
    """Reason why training ended, such as `max_steps`. Empty until training has ended."""

    def record_loss(self, loss: float) -> None:
        if self.first_loss is None:
            self.first_loss = loss
        self.recent_losses = [*self.recent_losses, loss][-RECENT_LOSSES:]

    def typical_loss(self) -> float | None:
        """Return the 90th percentile of the recent losses, or a fifth of the first loss if that is higher.

        The percentile follows the noise of the losses: small batches and high dropout have hard batches whose
        loss is many times the median. Without the lower limit, one bad batch of a well-trained model would
        count as a loss spike. Before step 1, return None.
        """
        if self.first_loss is None:
            return None
        index = math.ceil(0.9 * len(self.recent_losses)) - 1
        return max(sorted(self.recent_losses)[index], 0.2 * self.first_loss)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        return cls(**{**values, "window": Window(**values["window"])})


def random_tensors() -> dict[str, Tensor]:
    """Return the states of PyTorch's CPU and CUDA random-number generators, by device name."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_random(tensors: Mapping[str, Tensor]) -> None:
    """Restore the states of PyTorch's random-number generators. A state that is missing stays unchanged."""
    if "cpu" in tensors:
        torch.set_rng_state(tensors["cpu"])
    if "cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["cuda"])


@dataclass(frozen=True)
class StepOutcome:
    """Results of a step that may still be on the device: losses and gradient norm. The rest is known."""

    step: int
    losses: list[BatchLoss]
    norm: Tensor
    count: int
    indices: list[np.ndarray]

    def read(self) -> tuple[float, int, float]:
        """Return the summed loss, the number of correct targets and the norm, after waiting for them."""
        losses = sum(float(loss) for loss, _ in self.losses)
        return losses, sum(int(correct) for _, correct in self.losses), float(self.norm)
