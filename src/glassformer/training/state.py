"""Everything a run must remember to go on to the bit: what is small as JSON, what is large as tensors."""

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

RECENT = 64
"""How many losses the spike guard looks back on."""


@dataclass
class Window:
    """Sums since the last line of the record."""

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
    step: int = 0
    epoch: int = 0
    steps_in_epoch: int = 0
    tokens: int = 0
    seconds: float = 0.0
    """In steps: what the speed is measured by."""
    elapsed: float = 0.0
    """In everything: steps, validations, saves."""
    best: float | None = None
    best_loss: float | None = None
    """Of two validations with the same headline metric, the one with the lower loss is better."""
    best_step: int | None = None
    validations_without_best: int = 0
    targets_in_a_row: int = 0
    last_metrics: dict[str, float] = field(default_factory=dict)
    last_validation: int = 0
    rollbacks: int = 0
    rate_factor: float = 1.0
    first_loss: float | None = None
    recent_losses: list[float] = field(default_factory=list)
    order: str = ""
    """A hash over the numbers of all examples so far, in their order."""
    window: Window = field(default_factory=Window)
    ended: str = ""
    """Why training is over; empty while it is not."""

    def remember_loss(self, loss: float) -> None:
        if self.first_loss is None:
            self.first_loss = loss
        self.recent_losses = [*self.recent_losses, loss][-RECENT:]

    def usual_loss(self) -> float | None:
        """What a spike is measured against, but at least a fifth of the first loss: guessing is no spike."""
        if self.first_loss is None:
            return None
        return max(statistics.median(self.recent_losses), 0.2 * self.first_loss)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        return cls(**{**values, "window": Window(**values["window"])})


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's memory, by the number of the parameter."""
    return {
        f"{number}.{name}": value
        for number, parameter in enumerate(_parameters(optimizer))
        for name, value in optimizer.state.get(parameter, {}).items()
        if value is not None
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    optimizer.state.clear()
    parameters = _parameters(optimizer)
    for key, value in tensors.items():
        number, name = key.split(".", 1)
        parameter = parameters[int(number)]
        # A copy: what was loaded is a view of the checkpoint's file, which will be removed.
        optimizer.state[parameter][name] = value.to(parameter.device, copy=True)


def _parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def random_tensors() -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_random(tensors: Mapping[str, Tensor]) -> None:
    """What is not there stays as it is: that of a process that was not among those which saved."""
    if "cpu" in tensors:
        torch.set_rng_state(tensors["cpu"])
    if "cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["cuda"])


@contextlib.contextmanager
def refusing_others(place: str) -> Iterator[None]:
    """What cannot be made of a checkpoint that is whole: it is of another run, or of another hand."""
    try:
        yield
    except (RuntimeError, LookupError, TypeError, ValueError, AttributeError) as error:
        if is_out_of_memory(error):
            raise
        raise user_error(
            f"the checkpoint is not one of this run: {error}",
            path=place,
            hint="restore the run's folder from a copy, or train anew",
        ) from error
