"""Optimizers, learning-rate schedules, layer-wise rates and freezing."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from glassformer.core.errors import user_error
from glassformer.core.registry import Kind, register

LearningRate = Annotated[float, Field(gt=0, description="the peak rate; the schedule multiplies it")]
Beta = Annotated[float, Field(ge=0, lt=1)]
Decay = Annotated[float, Field(ge=0, description="decay of the matrices; biases and norms are spared")]


class OptimizerConfig(Kind):
    """How gradients change the weights."""

    learning_rate: LearningRate = 1e-3
    weight_decay: Decay = 0.0
    state_floats_per_parameter: ClassVar[int] = 0
    """For the memory estimate: at most so many."""

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
        # PyTorch's fused form does not know weights that are spread over processes.
        is_whole = not any(hasattr(parameter, "full_tensor") for parameter in model.parameters())
        return torch.optim.SGD(
            self.groups(model), self.learning_rate, self.momentum, nesterov=nesterov, fused=is_whole
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


# ---------------------------------------------------------------- layers

BACKBONE = "backbone"
"""All that is not the head: the name that `training.freeze` knows besides those of the model."""

_NUMBERED = re.compile(r"(.+?)\.(\d+)\.")


def is_head(name: str) -> bool:
    """Whether a parameter belongs to the answer and not to the reading; pooling is a part of the answer."""
    return name.split(".")[0] in ("head", "pooling")


def is_in_block(name: str) -> bool:
    """Whether a parameter belongs to one of a stack of blocks, and to neither embeddings nor the head."""
    return not is_head(name) and _NUMBERED.match(name) is not None


def layers_of(model: nn.Module) -> dict[str, int]:
    """The layer of each parameter, as the data go: embeddings 0, then block after block, then the head.

    What stands beside the blocks of a stack, such as its last norm, goes with the uppermost of them.
    """
    numbers: dict[tuple[str, str], int] = {}
    uppermost: dict[str, int] = {}
    layers: dict[str, int] = {}
    names = [name for name, _ in model.named_parameters()]
    for name in names:
        numbered = None if is_head(name) else _NUMBERED.match(name)
        if numbered is not None:
            stack, number = numbered.groups()
            layers[name] = numbers.setdefault((stack, number), len(numbers) + 1)
            uppermost[name.split(".")[0]] = layers[name]
    for name in names:
        beside = len(numbers) + 1 if is_head(name) else uppermost.get(name.split(".")[0], 0)
        layers.setdefault(name, beside)
    return {name: layers[name] for name in names}


def scale_rates(optimizer: torch.optim.Optimizer, model: nn.Module, decay: float) -> None:
    """Part the optimizer's groups by layer; `rate_scale` is each one's share of the learning rate."""
    layers = layers_of(model)
    top = max(layers.values())
    scales = {parameter: decay ** (top - layers[name]) for name, parameter in model.named_parameters()}
    optimizer.param_groups[:] = [
        {**group, "params": [p for p in group["params"] if scales[p] == scale], "rate_scale": scale}
        for group in optimizer.param_groups
        for scale in dict.fromkeys(scales[parameter] for parameter in group["params"])
    ]


class Freezing:
    """What is not trained. It follows from the step alone, so that a resumed run needs no memory of it.

    The optimizer knows all parameters from the beginning; one without a gradient is left as it is,
    weight decay and momentum included.
    """

    def __init__(self, model: nn.Module, names: Sequence[str], steps_between: int | None) -> None:
        """With `steps_between`, the uppermost frozen layer is released after each so many steps."""
        trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        frozen = _matching(list(trainable), names)
        layers = layers_of(model)
        self._parameters = {name: parameter for name, parameter in trainable.items() if name in frozen}
        self._layers = {name: layers[name] for name in self._parameters}
        self._downwards = sorted(set(self._layers.values()), reverse=True)
        self._steps_between = steps_between
        if len(self._parameters) == len(trainable):
            raise user_error(
                "nothing is left to train",
                path="training.freeze",
                value=", ".join(names),
                hint="freeze less: training.freeze=embedding",
            )

    def apply(self, step: int) -> None:
        """Give gradients to what is trained in this step, and to nothing else."""
        frozen = self.frozen(step)
        for name, parameter in self._parameters.items():
            parameter.requires_grad_(name not in frozen)

    def frozen(self, step: int) -> dict[str, int]:
        """The frozen parameters of a step, counted from 1, with the size of each."""
        released = 0 if self._steps_between is None else max(0, step - 1) // self._steps_between
        still = set(self._downwards[released:])
        return {name: p.numel() for name, p in self._parameters.items() if self._layers[name] in still}

    def released(self, step: int) -> list[str]:
        """The blocks and other modules that this step is the first to train."""
        now = self.frozen(step)
        return list(dict.fromkeys(_place(name) for name in self.frozen(step - 1) if name not in now))


def _place(name: str) -> str:
    numbered = _NUMBERED.match(name)
    return name.rpartition(".")[0] if numbered is None else ".".join(numbered.groups())


def _matching(known: Sequence[str], names: Sequence[str]) -> set[str]:
    """The parameters under these names, whole parts of a path: `layers.1` is not `layers.10`."""
    found: set[str] = set()
    for name in names:
        under = [other for other in known if other == name or other.startswith(f"{name}.")]
        under += [other for other in known if name == BACKBONE and not is_head(other)]
        if not under:
            parts = [other.split(".") for other in known]
            places = {".".join(path[:depth]): None for path in parts for depth in range(1, len(path) + 1)}
            raise user_error(
                "no such part of the model",
                path="training.freeze",
                value=name,
                allowed=sorted([BACKBONE, *places], key=lambda place: place.count(".")),
                hint=f"training.freeze={BACKBONE}",
            )
        found.update(under)
    return found


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
        for shape, split_balanced in by_shape.items():
            ahead = []
            for parameter in split_balanced:
                assert parameter.grad is not None
                momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                momentum.lerp_(parameter.grad, 1 - group["momentum"])
                ahead.append(torch.lerp(parameter.grad, momentum, group["momentum"]))
            # Products of many small matrices at once keep the cores busier than one after the other.
            steps = orthogonal(torch.stack(ahead))
            size = group["lr"] * LIKE_ADAM * math.sqrt(max(shape))
            for parameter, step in zip(split_balanced, steps, strict=True):
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
                path="training.optimizer.kind",
                value=self.kind,
                hint="training.optimizer.kind=adamw",
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
