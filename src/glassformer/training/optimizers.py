"""Optimizers, learning-rate schedules, layer-wise learning rates and freezing."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from glassformer.core.errors import user_error
from glassformer.core.registry import Kind, register

LearningRate = Annotated[
    float, Field(gt=0, description="peak learning rate, multiplied by the schedule's factor")
]
Beta = Annotated[
    float, Field(ge=0, lt=1, description="decay of a moving average of the gradients or their squares")
]
Decay = Annotated[
    float, Field(ge=0, description="weight decay of matrices; biases and norms are not decayed")
]


class OptimizerConfig(Kind):
    """Base class of optimizer configs. Weight decay applies to matrices only."""

    learning_rate: LearningRate = 1e-3
    weight_decay: Decay = 0.0
    state_floats_per_parameter: ClassVar[int] = 0
    """Maximum number of floats of optimizer state per parameter, for the memory estimate."""

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """Build the PyTorch optimizer for the model's trainable parameters."""
        raise NotImplementedError

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Return two parameter groups for the optimizer: matrices with weight decay, vectors without."""
        parameters = [p for p in model.parameters() if p.requires_grad]
        return [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": self.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]


@register
class AdamWConfig(OptimizerConfig):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019). It divides the step of each weight by
    the recent size of that weight's gradient.

    Use it as the default, with a learning rate between 1e-4 and 3e-3.
    """

    kind: Literal["adamw"] = "adamw"
    beta1: Beta = 0.9
    beta2: Beta = 0.99
    epsilon: float = Field(1e-8, gt=0, description="small number added to the denominator of a step")
    state_floats_per_parameter: ClassVar[int] = 2
    optimizer: ClassVar[type[torch.optim.Adam]] = torch.optim.AdamW

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        betas = (self.beta1, self.beta2)
        return self.optimizer(self.groups(model), self.learning_rate, betas, eps=self.epsilon, fused=True)


@register
class AdamConfig(AdamWConfig):
    """Adam (Kingma and Ba 2015). Weight decay is added to the gradient, as L2 regularisation.

    Use it to reproduce older papers; adamw is usually as good or better.
    """

    kind: Literal["adam"] = "adam"  # type: ignore[assignment]
    beta2: Beta = 0.999
    optimizer: ClassVar[type[torch.optim.Adam]] = torch.optim.Adam


@register
class SGDConfig(OptimizerConfig):
    """Stochastic gradient descent with momentum: steps along a moving average of the gradients.

    Use it as a baseline: Transformers learn slowly with it, and need a learning rate of 0.01 to 1.
    """

    kind: Literal["sgd"] = "sgd"
    momentum: Beta = 0.9
    nesterov: bool = Field(False, description="look one step ahead along the momentum (Nesterov 1983)")
    state_floats_per_parameter: ClassVar[int] = 1

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        nesterov = self.nesterov and self.momentum > 0
        # The fused implementation does not support sharded weights.
        is_sharded = any(hasattr(parameter, "full_tensor") for parameter in model.parameters())
        return torch.optim.SGD(
            self.groups(model), self.learning_rate, self.momentum, nesterov=nesterov, fused=not is_sharded
        )


class Lion(torch.optim.Optimizer):
    """Lion optimizer (Chen et al. 2023): the sign of an interpolated momentum is the update direction."""

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
    """Lion (Chen et al. 2023): each weight moves by the learning rate, in the direction of the sign of its
    momentum.

    Use it to save memory (one number per weight instead of two), with a learning rate 3 to 10 times
    smaller than for adamw.
    """

    kind: Literal["lion"] = "lion"
    beta1: Beta = 0.9
    beta2: Beta = 0.99
    state_floats_per_parameter: ClassVar[int] = 1

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        return Lion(self.groups(model), self.learning_rate, self.beta1, self.beta2)


Steps = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
FinalRatio = Annotated[
    float, Field(ge=0, le=1, description="learning rate at the last step, as a fraction of the peak")
]


class ScheduleConfig(Kind):
    """Base class of learning-rate schedules: a linear warm-up, then the curve of the subclass."""

    warmup_steps: Steps = Field(
        0, description="steps over which the learning rate rises linearly to its peak"
    )
    needs_end: ClassVar[bool] = True
    """True if the schedule depends on the total number of steps."""

    def factor(self, step: int, total_steps: int) -> float:
        """Return the learning-rate factor for a step, counted from 1 to `total_steps`."""
        if step <= self.warmup_steps:
            return step / self.warmup_steps
        return self.after_warmup(step - self.warmup_steps, max(1, total_steps - self.warmup_steps))

    def after_warmup(self, step: int, total_steps: int) -> float:
        """Return the learning-rate factor. Both step counts start at the end of the warm-up."""
        raise NotImplementedError


@register
class ConstantConfig(ScheduleConfig):
    """Constant learning rate after the warm-up.

    Use it for short experiments and if the end of training is not known.
    """

    kind: Literal["constant"] = "constant"
    needs_end: ClassVar[bool] = False

    def after_warmup(self, step: int, total_steps: int) -> float:
        return 1.0


@register
class WarmupCosineConfig(ScheduleConfig):
    """Cosine-shaped decay from the peak learning rate down to `final_ratio` of it, after the warm-up.

    Use it as the default: the slow end removes the last errors.
    """

    kind: Literal["warmup-cosine"] = "warmup-cosine"
    final_ratio: FinalRatio = 0.0

    def after_warmup(self, step: int, total_steps: int) -> float:
        progress = min(1.0, step / total_steps)
        return self.final_ratio + (1 - self.final_ratio) * (1 + math.cos(math.pi * progress)) / 2


@register
class InverseSquareRootConfig(ScheduleConfig):
    """Decay with the inverse square root of the step after the warm-up (Vaswani et al. 2017).

    Use it if the number of steps is not known in advance, as in the original Transformer.
    """

    kind: Literal["inverse-square-root"] = "inverse-square-root"
    needs_end: ClassVar[bool] = False

    def after_warmup(self, step: int, total_steps: int) -> float:
        start = max(1, self.warmup_steps)
        return math.sqrt(start / (start + step))


@register
class LinearConfig(ScheduleConfig):
    """Linear decay from the peak learning rate down to `final_ratio` of it, after the warm-up.

    Use it as an alternative to the cosine, common for fine-tuning; results hardly differ.
    """

    kind: Literal["linear"] = "linear"
    final_ratio: FinalRatio = 0.0

    def after_warmup(self, step: int, total_steps: int) -> float:
        return 1 - (1 - self.final_ratio) * min(1.0, step / total_steps)


@register
class WarmupStableDecayConfig(ScheduleConfig):
    """Constant learning rate after the warm-up, then a linear decay over the last steps.

    Use it if you may continue a training later: the learning rate before the decay does not depend on
    the total number of steps.
    """

    kind: Literal["warmup-stable-decay"] = "warmup-stable-decay"
    decay_fraction: Fraction = Field(
        0.2, description="fraction of the steps after the warm-up in which the learning rate decays"
    )
    final_ratio: FinalRatio = 0.0

    def after_warmup(self, step: int, total_steps: int) -> float:
        decay_steps = max(1, round(total_steps * self.decay_fraction))
        left = min(1.0, max(0, total_steps - step) / decay_steps)
        return self.final_ratio + (1 - self.final_ratio) * left


# ---------------------------------------------------------------- layers

BACKBONE = "backbone"
"""Value of `training.freeze` that means all modules except the output head."""

_NUMBERED = re.compile(r"(.+?)\.(\d+)\.")


def is_head(name: str) -> bool:
    """Return True if this parameter name belongs to the output head or to pooling."""
    return name.split(".")[0] in ("head", "pooling")


def is_in_block(name: str) -> bool:
    """Return True if this parameter name belongs to a block, not to the embedding or the output head."""
    return not is_head(name) and _NUMBERED.match(name) is not None


def layers_of(model: nn.Module) -> dict[str, int]:
    """Return the layer number of each parameter: 0 for embeddings, then one per block, then the head.

    Parameters of an encoder or decoder outside its blocks, such as the final norm, count as its last block.
    """
    numbers: dict[str, int] = {}
    uppermost: dict[str, int] = {}
    layers: dict[str, int] = {}
    names = [name for name, _ in model.named_parameters()]
    for name in filter(is_in_block, names):
        layers[name] = numbers.setdefault(_module_of(name), len(numbers) + 1)
        uppermost[name.split(".")[0]] = layers[name]
    for name in names:
        beside = len(numbers) + 1 if is_head(name) else uppermost.get(name.split(".")[0], 0)
        layers.setdefault(name, beside)
    return {name: layers[name] for name in names}


def scale_learning_rates(optimizer: torch.optim.Optimizer, model: nn.Module, decay: float) -> None:
    """Split the parameter groups by layer and set `lr_scale`, the learning-rate factor of the layer."""
    layers = layers_of(model)
    top = max(layers.values())
    scales = {parameter: decay ** (top - layers[name]) for name, parameter in model.named_parameters()}
    optimizer.param_groups[:] = [
        {**group, "params": [p for p in group["params"] if scales[p] == scale], "lr_scale": scale}
        for group in optimizer.param_groups
        for scale in dict.fromkeys(scales[parameter] for parameter in group["params"])
    ]


class Freezing:
    """Frozen parameters at each step. They depend on the step alone, so that resume needs no extra state.

    The optimizer holds all parameters from the start. It skips parameters without a gradient, so that weight
    decay and momentum do not change them either.
    """

    def __init__(self, model: nn.Module, names: Sequence[str], steps_between: int | None) -> None:
        """Freeze these modules. Unfreeze the uppermost frozen layer every `steps_between` steps, if given."""
        trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        frozen, layers = _matching(list(trainable), names), layers_of(model)
        self._parameters = {name: parameter for name, parameter in trainable.items() if name in frozen}
        self._layers = {name: layers[name] for name in self._parameters}
        self._downwards = sorted(set(self._layers.values()), reverse=True)
        self._steps_between = steps_between
        if len(self._parameters) == len(trainable):
            raise user_error(
                "every parameter is frozen",
                path="training.freeze",
                value=", ".join(names),
                hint="freeze fewer modules, for example training.freeze=embedding",
            )

    def apply(self, step: int) -> None:
        """Set `requires_grad` of each parameter as this step needs it: False if frozen, else True."""
        frozen = self.frozen(step)
        for name, parameter in self._parameters.items():
            parameter.requires_grad_(name not in frozen)

    def frozen(self, step: int) -> dict[str, int]:
        """Return the names and sizes of the parameters that are frozen in a step; steps count from 1."""
        released = 0 if self._steps_between is None else max(0, step - 1) // self._steps_between
        still = set(self._downwards[released:])
        return {name: p.numel() for name, p in self._parameters.items() if self._layers[name] in still}

    def released(self, step: int) -> list[str]:
        """Return the names of the modules that become trainable at this step."""
        now = self.frozen(step)
        return list(dict.fromkeys(_module_of(name) for name in self.frozen(step - 1) if name not in now))


def _module_of(name: str) -> str:
    """Return the name of the block that contains this parameter, such as `encoder.layers.3`.

    For a parameter outside the blocks, return the name of its module, such as `embedding.norm`.
    """
    numbered = _NUMBERED.match(name)
    return name.rpartition(".")[0] if numbered is None else ".".join(numbered.groups())


def _matching(known: Sequence[str], names: Sequence[str]) -> set[str]:
    """Return the parameter names under these module names; raise a UserError for an unknown module."""
    found: set[str] = set()
    for name in names:
        under = [other for other in known if other == name or other.startswith(f"{name}.")]
        under += [other for other in known if name == BACKBONE and not is_head(other)]
        if not under:
            parts = [other.split(".") for other in known]
            modules = {".".join(path[:depth]): None for path in parts for depth in range(1, len(path) + 1)}
            raise user_error(
                "no such module in the model",
                path="training.freeze",
                value=name,
                allowed=sorted([BACKBONE, *modules], key=lambda module: module.count(".")),
                hint=f"training.freeze={BACKBONE}",
            )
        found.update(under)
    return found


# ---------------------------------------------------------------- Muon

NEWTON_SCHULZ_STEPS = 5
FIRST, THIRD, FIFTH = 3.4445, -4.7750, 2.0315
"""Newton-Schulz coefficients of x, x³ and x⁵, which move singular values between 0 and 1 close to 1."""
ADAM_RMS = 0.2
"""RMS of a typical Adam update. Muon updates get the same RMS to share a learning rate (Liu et al. 2025)."""


def orthogonal(matrices_BNM: Tensor) -> Tensor:
    """Return nearly orthogonal matrices by Newton-Schulz: singular values near 1, same singular vectors."""
    is_tall = matrices_BNM.shape[-2] > matrices_BNM.shape[-1]
    x = matrices_BNM.mT if is_tall else matrices_BNM
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        square = x @ x.mT
        polynomial = torch.baddbmm(square, square, square, beta=THIRD, alpha=FIFTH)
        x = torch.baddbmm(x, polynomial, x, beta=FIRST)
    return x.mT if is_tall else x


class Muon(torch.optim.Optimizer):
    """Muon optimizer (Jordan et al. 2024) for the matrices in blocks, and Adam for all other parameters.

    `torch.optim.Muon` takes only matrices, one at a time. This class batches matrices of equal shape.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, **constants: float) -> None:
        super().__init__(groups, {"lr": lr, **constants})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            for parameter in parameters:
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
            if group["is_orthogonal"]:
                self._update_matrices(parameters, group)
            else:
                for parameter in parameters:
                    self._update_by_adam(parameter, group)

    def _update_matrices(self, parameters: Sequence[Tensor], group: dict[str, Any]) -> None:
        by_shape: dict[torch.Size, list[Tensor]] = {}
        for parameter in parameters:
            by_shape.setdefault(parameter.shape, []).append(parameter)
        for shape, same_shape in by_shape.items():
            directions = []
            for parameter in same_shape:
                assert parameter.grad is not None
                momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                momentum.lerp_(parameter.grad, 1 - group["momentum"])
                directions.append(torch.lerp(parameter.grad, momentum, group["momentum"]))
            # A batched product of small matrices keeps the cores busier than one product after another.
            updates = orthogonal(torch.stack(directions))
            size = group["lr"] * ADAM_RMS * math.sqrt(max(shape))
            for parameter, update in zip(same_shape, updates, strict=True):
                parameter.sub_(update, alpha=size)

    def _update_by_adam(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["steps"] = torch.zeros(())
            state["mean"] = torch.zeros_like(parameter)
            state["mean_square"] = torch.zeros_like(parameter)
        state["steps"] = state["steps"].cpu()  # a checkpoint is restored to the device of the parameter
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
    """Muon (Jordan et al. 2024) for the matrices of the blocks, whose updates are made orthogonal; Adam
    for the rest.

    Use it to reach a given loss in fewer steps, with a learning rate of about 1e-2; each step costs
    somewhat more.
    """

    kind: Literal["muon"] = "muon"
    momentum: Beta = 0.95
    beta1: Beta = 0.9
    beta2: Beta = 0.99
    epsilon: float = Field(1e-8, gt=0, description="small number added to the denominator of a step")
    state_floats_per_parameter: ClassVar[int] = 2

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        if any(hasattr(parameter, "full_tensor") for parameter in model.parameters()):
            raise user_error(
                "Muon cannot be used with FSDP, because it needs whole matrices and FSDP shards them",
                path="training.optimizer.kind",
                value=self.kind,
                hint="set training.optimizer.kind=adamw or training.parallel.kind=ddp",
            )
        matrices = {p for name, p in model.named_parameters() if p.ndim == 2 and is_in_block(name)}
        groups = []
        for group, is_orthogonal in product(self.groups(model), (True, False)):
            parameters = [p for p in group["params"] if (p in matrices) == is_orthogonal]
            if parameters:
                groups.append({**group, "params": parameters, "is_orthogonal": is_orthogonal})
        constants = {name: getattr(self, name) for name in ("momentum", "beta1", "beta2", "epsilon")}
        return Muon(groups, self.learning_rate, **constants)
