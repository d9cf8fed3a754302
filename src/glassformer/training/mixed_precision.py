"""Mixed precision: number types of a training step, with weights, optimizer state and loss in float32."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from glassformer.models.base import Model
from glassformer.training.bf16 import Products

if TYPE_CHECKING:
    from glassformer.training.config import TrainingConfig

MIN_SCALE = 1.0
"""Smallest scale of a float16 loss. Gradients that overflow even with it are a divergence."""

Context = contextlib.AbstractContextManager[Any]


class FullPrecision:
    """Precision fp32, which changes nothing; base class of the other precisions."""

    def step(self) -> Context:
        """Return a context for all micro-batches of a step, in which the weights do not change."""
        return contextlib.nullcontext()

    def forward(self) -> Context:
        """Return a context for the forward pass of one micro-batch, in the thread that computes it."""
        return contextlib.nullcontext()

    def scale(self, loss: Tensor) -> Tensor:
        """Return the loss for the backward pass."""
        return loss

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Undo the scaling of the loss in the gradients, after all backward passes of a step."""

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """Run the optimizer."""
        optimizer.step()

    @property
    def may_overflow(self) -> bool:
        """True if gradients that are not finite are expected and only skip a step."""
        return False

    def state(self) -> dict[str, float]:
        """Return what an exact resume needs, for the checkpoint."""
        return {}

    def restore(self, state: Mapping[str, float]) -> None:
        """Restore what `state` returned."""


class Autocast(FullPrecision):
    """PyTorch's autocast: most operations of a forward pass in 16 bits. It is fast on GPUs."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype

    def forward(self) -> Context:
        return torch.autocast(self.device.type, self.dtype)


class ScaledAutocast(Autocast):
    """Autocast to float16, whose gradients are scaled because many would be too small for its exponents.

    The scale halves after an overflow, which skips the step, and doubles after many steps without one.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device, torch.float16)
        self.scaler = torch.amp.GradScaler(device.type)
        self.scaler.scale(torch.zeros((), device=device))  # creates its tensors now, not in several threads

    def scale(self, loss: Tensor) -> Tensor:
        return self.scaler.scale(loss)

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        self.scaler.unscale_(optimizer)

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        self.scaler.step(optimizer)
        self.scaler.update()

    @property
    def may_overflow(self) -> bool:
        return self.scaler.get_scale() > MIN_SCALE

    def state(self) -> dict[str, float]:
        state = self.scaler.state_dict()
        return {"scale": state["scale"], "growth_tracker": state["_growth_tracker"]}

    def restore(self, state: Mapping[str, float]) -> None:
        if state:  # empty if the run began in another precision
            saved = {"scale": state["scale"], "_growth_tracker": int(state["growth_tracker"])}
            self.scaler.load_state_dict({**self.scaler.state_dict(), **saved})


class BF16Products(FullPrecision):
    """Matrix products in bfloat16, all else in float32. It is faster than autocast on a CPU."""

    def __init__(self, model: Model) -> None:
        self.products = Products(model)

    def step(self) -> Context:
        return self.products.installed()


def make_precision(model: Model, training: TrainingConfig) -> FullPrecision:
    """Return the precision of `training.precision` for the device of the model."""
    device = next(model.parameters()).device
    if training.precision == "fp32":
        return FullPrecision()
    if training.precision == "fp16":
        return ScaledAutocast(device)
    return BF16Products(model) if device.type == "cpu" else Autocast(device, torch.bfloat16)
