"""Optimizers and learning-rate schedules, each a kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from glassformer.registry import Kind, register

LearningRate = Annotated[float, Field(gt=0, description="the peak rate; the schedule multiplies it")]
Beta = Annotated[float, Field(ge=0, lt=1)]
Decay = Annotated[float, Field(ge=0, description="decay of the matrices; biases and norms are spared")]


class OptimizerConfig(Kind):
    """How gradients change the weights."""

    learning_rate: LearningRate = 1e-3
    weight_decay: Decay = 0.0
    state_floats_per_parameter: ClassVar[int] = 0
    """For the memory estimate."""

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        raise NotImplementedError

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Matrices with weight decay, vectors without."""
        parameters = [p for p in model.parameters() if p.requires_grad]
        return [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": self.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]


@register
class AdamWConfig(OptimizerConfig):
    kind: Literal["adamw"] = "adamw"
    beta1: Beta = 0.9
    beta2: Beta = 0.99
    epsilon: float = Field(1e-8, gt=0)
    state_floats_per_parameter: ClassVar[int] = 2

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        betas = (self.beta1, self.beta2)
        return torch.optim.AdamW(self.groups(model), self.learning_rate, betas, eps=self.epsilon, fused=True)


@register
class AdamConfig(OptimizerConfig):
    """Adam, with the decay (if any) in the gradient."""

    kind: Literal["adam"] = "adam"
    beta1: Beta = 0.9
    beta2: Beta = 0.999
    epsilon: float = Field(1e-8, gt=0)
    state_floats_per_parameter: ClassVar[int] = 2

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        betas = (self.beta1, self.beta2)
        return torch.optim.Adam(self.groups(model), self.learning_rate, betas, eps=self.epsilon, fused=True)


@register
class SGDConfig(OptimizerConfig):
    kind: Literal["sgd"] = "sgd"
    momentum: Beta = 0.9
    nesterov: bool = False
    state_floats_per_parameter: ClassVar[int] = 1

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        nesterov = self.nesterov and self.momentum > 0
        return torch.optim.SGD(
            self.groups(model), self.learning_rate, self.momentum, nesterov=nesterov, fused=True
        )


class Lion(torch.optim.Optimizer):
    """The sign of an interpolated momentum (Chen et al. 2023): one state a parameter instead of two."""

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, beta1: float, beta2: float) -> None:
        super().__init__(groups, {"lr": lr, "beta1": beta1, "beta2": beta2})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                momentum: Tensor = state["momentum"]
                direction = momentum.lerp(parameter.grad, 1 - group["beta1"]).sign_()
                parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(direction, alpha=group["lr"])
                momentum.lerp_(parameter.grad, 1 - group["beta2"])


@register
class LionConfig(OptimizerConfig):
    kind: Literal["lion"] = "lion"
    beta1: Beta = 0.9
    beta2: Beta = 0.99
    state_floats_per_parameter: ClassVar[int] = 1

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        return Lion(self.groups(model), self.learning_rate, self.beta1, self.beta2)


Steps = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]


class ScheduleConfig(Kind):
    """What the learning rate is multiplied by, from the first step to the last."""

    warmup_steps: Steps = Field(0, description="the rate rises in a line over these steps")
    needs_end: ClassVar[bool] = True
    """Whether it must know how many steps there will be."""

    def factor(self, step: int, total_steps: int) -> float:
        """For step 1, 2, …, total_steps."""
        if step <= self.warmup_steps:
            return step / self.warmup_steps
        return self.after_warmup(step - self.warmup_steps, max(1, total_steps - self.warmup_steps))

    def after_warmup(self, step: int, total_steps: int) -> float:
        raise NotImplementedError


@register
class ConstantConfig(ScheduleConfig):
    kind: Literal["constant"] = "constant"
    needs_end: ClassVar[bool] = False

    def after_warmup(self, step: int, total_steps: int) -> float:
        return 1.0


@register
class WarmupCosineConfig(ScheduleConfig):
    kind: Literal["warmup-cosine"] = "warmup-cosine"
    final_ratio: Fraction = Field(0.0, description="where the cosine ends")

    def after_warmup(self, step: int, total_steps: int) -> float:
        progress = min(1.0, step / total_steps)
        return self.final_ratio + (1 - self.final_ratio) * (1 + math.cos(math.pi * progress)) / 2


@register
class InverseSquareRootConfig(ScheduleConfig):
    """Falls with the root of the step, from the end of the warm-up (Vaswani et al. 2017)."""

    kind: Literal["inverse-square-root"] = "inverse-square-root"
    needs_end: ClassVar[bool] = False

    def after_warmup(self, step: int, total_steps: int) -> float:
        start = max(1, self.warmup_steps)
        return math.sqrt(start / (start + step))


@register
class LinearConfig(ScheduleConfig):
    kind: Literal["linear"] = "linear"
    final_ratio: Fraction = 0.0

    def after_warmup(self, step: int, total_steps: int) -> float:
        return 1 - (1 - self.final_ratio) * min(1.0, step / total_steps)


@register
class WarmupStableDecayConfig(ScheduleConfig):
    """Level for most of the run, then a line down."""

    kind: Literal["warmup-stable-decay"] = "warmup-stable-decay"
    decay_fraction: Fraction = Field(0.2, description="the share of the steps that decays")
    final_ratio: Fraction = 0.0

    def after_warmup(self, step: int, total_steps: int) -> float:
        decay_steps = max(1, round(total_steps * self.decay_fraction))
        left = min(1.0, max(0, total_steps - step) / decay_steps)
        return self.final_ratio + (1 - self.final_ratio) * left
