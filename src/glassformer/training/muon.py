"""Muon: matrices move by their momentum made orthogonal, the rest as Adam moves it.

All directions of a matrix are learned at one pace, so that a loss is reached in fewer steps (Jordan 2024).
The products are in the precision of the weights: in half of it some processors cannot multiply at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from glassformer.errors import user_error
from glassformer.registry import register
from glassformer.training.optimization import Beta, OptimizerConfig, is_in_block

ROUNDS = 5
FIRST, THIRD, FIFTH = 3.4445, -4.7750, 2.0315
"""Coefficients of a polynomial that draws singular values of 0 to 1 near 1, fast rather than exactly."""
LIKE_ADAM = 0.2
"""The root mean square of a step of Adam: one learning rate serves both (Liu et al. 2025)."""


def orthogonal(matrices_BNM: Tensor) -> Tensor:
    """Near the matrices of the same singular vectors whose singular values are all 1."""
    is_tall = matrices_BNM.shape[-2] > matrices_BNM.shape[-1]
    found = matrices_BNM.mT if is_tall else matrices_BNM
    found = found / (found.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(ROUNDS):
        square = found @ found.mT
        cubic = torch.baddbmm(square, square, square, beta=THIRD, alpha=FIFTH)
        found = torch.baddbmm(found, cubic, found, beta=FIRST)
    return found.mT if is_tall else found


class Muon(torch.optim.Optimizer):
    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, **constants: float) -> None:
        super().__init__(groups, {"lr": lr, **constants})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            moving = [parameter for parameter in group["params"] if parameter.grad is not None]
            for parameter in moving:
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
            if group["is_orthogonal"]:
                self._move_matrices(moving, group)
            else:
                for parameter in moving:
                    self._move_like_adam(parameter, group)

    def _move_matrices(self, parameters: Sequence[Tensor], group: dict[str, Any]) -> None:
        by_shape: dict[torch.Size, list[Tensor]] = {}
        for parameter in parameters:
            by_shape.setdefault(parameter.shape, []).append(parameter)
        for shape, alike in by_shape.items():
            ahead = []
            for parameter in alike:
                assert parameter.grad is not None
                momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                momentum.lerp_(parameter.grad, 1 - group["momentum"])
                ahead.append(torch.lerp(parameter.grad, momentum, group["momentum"]))
            # Products of many small matrices at once keep the cores busier than one after the other.
            steps = orthogonal(torch.stack(ahead))
            size = group["lr"] * LIKE_ADAM * math.sqrt(max(shape))
            for parameter, step in zip(alike, steps, strict=True):
                parameter.sub_(step, alpha=size)

    def _move_like_adam(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["steps"] = torch.zeros(())
            state["mean"] = torch.zeros_like(parameter)
            state["mean_square"] = torch.zeros_like(parameter)
        state["steps"] += 1
        steps = int(state["steps"])
        gradient = parameter.grad
        assert gradient is not None
        mean: Tensor = state["mean"].lerp_(gradient, 1 - group["beta1"])
        square: Tensor = (
            state["mean_square"].mul_(group["beta2"]).addcmul_(gradient, gradient, value=1 - group["beta2"])
        )
        scale = (square / (1 - group["beta2"] ** steps)).sqrt_().add_(group["epsilon"])
        parameter.addcdiv_(mean, scale, value=-group["lr"] / (1 - group["beta1"] ** steps))


@register
class MuonConfig(OptimizerConfig):
    """Matrices of the blocks by their momentum made orthogonal, the rest by Adam; one rate for both."""

    kind: Literal["muon"] = "muon"
    momentum: Beta = 0.95
    beta1: Beta = 0.9
    beta2: Beta = 0.99
    epsilon: float = Field(1e-8, gt=0)
    state_floats_per_parameter: ClassVar[int] = 2

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        if any(hasattr(parameter, "full_tensor") for parameter in model.parameters()):
            raise user_error(
                "it needs whole matrices, and here they are spread over processes",
                place="training.optimizer.kind",
                value=self.kind,
                remedy="training.optimizer.kind=adamw",
            )
        in_blocks = {id(parameter) for name, parameter in model.named_parameters() if is_in_block(name)}
        groups = []
        for group in self.groups(model):
            matrices = [p for p in group["params"] if p.ndim == 2 and id(p) in in_blocks]
            others = [p for p in group["params"] if p.ndim != 2 or id(p) not in in_blocks]
            groups += [
                {**group, "params": matrices, "is_orthogonal": True},
                {**group, "params": others, "is_orthogonal": False},
            ]
        constants = {name: getattr(self, name) for name in ("momentum", "beta1", "beta2", "epsilon")}
        return Muon([group for group in groups if group["params"]], self.learning_rate, **constants)
