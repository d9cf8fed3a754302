"""State that makes resume exact: counters as JSON; optimizer and random-number states as tensors."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn

from glassformer.core.errors import is_out_of_memory, user_error

RECENT_LOSSES = 64
"""Number of losses that the divergence guard takes the median of."""


@dataclass
class Window:
    """Sums since the last `step` event."""

    loss: float = 0.0
    correct: int = 0
    count: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def add(self, loss: float, correct: int, count: int, tokens: int, seconds: float) -> None:
        self.loss += loss
        self.correct += correct
        self.count += count
        self.tokens += tokens
        self.seconds += seconds


@dataclass
class TrainingState:
    """Counters and metrics of a run, saved as JSON in each checkpoint."""

    step: int = 0
    epoch: int = 0
    steps_in_epoch: int = 0
    tokens: int = 0
    seconds: float = 0.0
    """Time spent in training steps; the speed is measured by it."""
    elapsed: float = 0.0
    """Time spent in steps, validations and saves; `training.max_minutes` limits it."""
    best: float | None = None
    best_loss: float | None = None
    """Loss of the best validation; it breaks ties of the primary metric."""
    best_step: int | None = None
    validations_without_best: int = 0
    consecutive_targets: int = 0
    """Validations in a row that reached `training.stopping.target`."""
    last_metrics: dict[str, float] = field(default_factory=dict)
    last_validation: int = 0
    rollbacks: int = 0
    lr_factor: float = 1.0
    """Halved by each roll-back."""
    first_loss: float | None = None
    recent_losses: list[float] = field(default_factory=list)
    order: str = ""
    """Running SHA-256 over the indices of all examples so far, in order."""
    window: Window = field(default_factory=Window)
    ended: str = ""
    """Reason why training ended; empty while it runs."""

    def record_loss(self, loss: float) -> None:
        if self.first_loss is None:
            self.first_loss = loss
        self.recent_losses = [*self.recent_losses, loss][-RECENT_LOSSES:]

    def typical_loss(self) -> float | None:
        """Median of the recent losses, at least a fifth of the first loss.

        The floor keeps the loss of a random guess from counting as a spike of a well-trained model.
        """
        if self.first_loss is None:
            return None
        return max(statistics.median(self.recent_losses), 0.2 * self.first_loss)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        return cls(**{**values, "window": Window(**values["window"])})


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's state tensors as `{parameter index}.{state name}`."""
    return {
        f"{number}.{name}": value
        for number, parameter in enumerate(_parameters(optimizer))
        for name, value in optimizer.state.get(parameter, {}).items()
        if value is not None
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Load what `optimizer_tensors` returned."""
    optimizer.state.clear()
    parameters = _parameters(optimizer)
    for key, value in tensors.items():
        number, name = key.split(".", 1)
        parameter = parameters[int(number)]
        # Copy: loaded tensors are views of the checkpoint file, which will be deleted.
        optimizer.state[parameter][name] = value.to(parameter.device, copy=True)


def _parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def random_tensors() -> dict[str, Tensor]:
    """Return the states of PyTorch's random-number generators."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_random(tensors: Mapping[str, Tensor]) -> None:
    """Restore generator states; one that was not saved, as for an additional rank, is left unchanged."""
    if "cpu" in tensors:
        torch.set_rng_state(tensors["cpu"])
    if "cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["cuda"])


@contextlib.contextmanager
def reject_foreign_checkpoint(path: str) -> Iterator[None]:
    """Context: report an intact checkpoint that does not match this run's model as a user error."""
    try:
        yield
    except (RuntimeError, LookupError, TypeError, ValueError, AttributeError) as error:
        if is_out_of_memory(error):
            raise
        raise user_error(
            f"the checkpoint does not belong to this run: {error}",
            path=path,
            hint="restore the run folder from a backup, or train again",
        ) from error
