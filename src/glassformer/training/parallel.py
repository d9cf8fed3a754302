"""How processes share one training, each way a kind: a copy of the model for each, or a shard of it.

The loop and the checkpoints see the same in all of them: whole batches, whole weights, one gradient.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from glassformer.blocks.layers import DecoderBlock
from glassformer.data.batching import Batch
from glassformer.errors import user_error
from glassformer.models.base import Branching, Generating, Model
from glassformer.models.heads import Score
from glassformer.registry import Kind, register
from glassformer.training.distributed import IdleBatch, Ranks
from glassformer.training.side_by_side import SideBySide, can_learn_in_parts
from glassformer.training.state import optimizer_tensors, restore_optimizer
from glassformer.training.undivided import Undivided

if TYPE_CHECKING:
    from glassformer.training.config import TrainingConfig


class ParallelConfig(Kind):
    """How several processes share the work; one process has nothing to share."""

    def build(self, model: Model, ranks: Ranks, training: TrainingConfig) -> Undivided:
        raise NotImplementedError


def divide(model: Model, ranks: Ranks, training: TrainingConfig) -> Undivided:
    if ranks.count == 1:
        return SideBySide(model) if can_learn_in_parts(model) else Undivided(model)
    device = next(model.parameters()).device
    if device.type not in ("cpu", "cuda"):
        raise user_error(
            "several processes work together on CPUs or on CUDA devices",
            place="training.device",
            value=str(device),
            remedy="training.device=cpu",
        )
    return training.parallel.build(model, ranks, training)


# ---------------------------------------------------------------- a copy for each rank


class _Scoring(nn.Module):
    """PyTorch's wrapper listens to `forward`; training calls `score`."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, inputs: dict[str, Tensor | None], targets: Tensor, label_smoothing: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        score = self.model.score(inputs, targets, label_smoothing)
        return score.loss, score.correct, score.count


class Replicated(Undivided):
    """PyTorch's DistributedDataParallel: gradients travel while the backward pass still goes on."""

    def __init__(self, model: Model, ranks: Ranks) -> None:
        super().__init__(model)
        self.ranks = ranks
        self._trained: list[bool] = []
        self._wrap()

    def _wrap(self) -> None:
        """Again whenever a layer thaws: the wrapper counts on the gradients that it saw at first.

        It looks for unused parameters, so that a kind may have some; and buckets that it therefore never
        lays out anew make a resumed run's sums the same to the bit.
        """
        self._trained = [parameter.requires_grad for parameter in self.model.parameters()]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated")
            self._wrapped = nn.parallel.DistributedDataParallel(
                _Scoring(self.model), broadcast_buffers=False, find_unused_parameters=True
            )

    def score(self, batch: Batch, label_smoothing: float) -> Score:
        if self._trained != [parameter.requires_grad for parameter in self.model.parameters()]:
            self._wrap()
        return _counted(Score(*self._wrapped(batch.inputs, batch.targets, label_smoothing)), batch)

    def backward(self, loss: Tensor) -> None:
        (loss * self.ranks.count).backward()  # the wrapper takes the mean over the ranks

    def accumulating(self, *, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if is_last else self._wrapped.no_sync()


def _counted(score: Score, batch: Batch) -> Score:
    """An idle rank computes, and what it computes weighs nothing."""
    if isinstance(batch, IdleBatch):
        return Score(score.loss * 0, score.correct * 0, score.count * 0)
    return score


@register
class DataParallelConfig(ParallelConfig):
    """Each process has the whole model and a part of each batch."""

    kind: Literal["ddp"] = "ddp"

    def build(self, model: Model, ranks: Ranks, training: TrainingConfig) -> Undivided:
        return Replicated(model, ranks)


# ---------------------------------------------------------------- a shard for each rank


class Sharded(Undivided):
    """PyTorch's FSDP2: each rank keeps a share of every weight, gradient and optimizer state.

    A layer is put together when it is needed and taken apart after it. Whatever asks the model must
    therefore be done by all ranks at once, validation too.
    """

    def __init__(self, model: Model, ranks: Ranks) -> None:
        super().__init__(model)
        self.ranks = ranks
        self.share(model)

    def share(self, model: Model) -> Model:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

        mesh = init_device_mesh(next(model.parameters()).device.type, (self.ranks.count,))
        lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
        for block in (block for modules in lists for block in modules):
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        for module in model.modules():
            if isinstance(module, FSDPModule):  # sums, as everywhere here, and not means
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
        # Buffers that are first made in inference mode, by a validation, could not be used in training.
        for module in (module for module in model.modules() if isinstance(module, FSDPModule)):
            module.unshard()
            module.reshard()
        entries = ["score", "hidden"]
        entries += ["start", "advance"] if isinstance(model, Generating) else []
        entries += ["branch"] if isinstance(model, Branching) else []
        for name in entries:
            register_fsdp_forward_method(model, name)
        for block in (block for modules in lists for block in modules if isinstance(block, DecoderBlock)):
            register_fsdp_forward_method(block, "read_source")
        return model

    def score(self, batch: Batch, label_smoothing: float) -> Score:
        return _counted(super().score(batch, label_smoothing), batch)

    def accumulating(self, *, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        self.model.set_requires_gradient_sync(is_last)  # type: ignore[operator]
        return contextlib.nullcontext()

    def clip(self, limit: float) -> float:
        norm = _whole(nn.utils.get_total_norm(p.grad for p in self.model.parameters() if p.grad is not None))
        if math.isfinite(limit):
            nn.utils.clip_grads_with_norm_(self.model.parameters(), limit, norm)
        return float(norm)

    def leaves(self, is_asked: bool) -> bool:
        """All at the same batch: who stayed would wait for the others' shares."""
        return bool(*self.ranks.largest(is_asked))

    def weights(self, model: Model) -> dict[str, Tensor]:
        return self._gathered(model.state_dict())

    def load(self, model: Model, weights: Mapping[str, Tensor]) -> None:
        for name, tensor in model.state_dict().items():
            _fill(tensor, weights[name])

    def optimizer_tensors(self, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        return self._gathered(optimizer_tensors(optimizer))

    def _gathered(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One after the other, kept in the writer's main memory: together they may fit on no device."""
        gathered = {}
        for name, tensor in tensors.items():
            whole = _whole(tensor)
            gathered[name] = whole.cpu() if self.ranks.is_writer else whole.new_empty(0)
        return gathered

    def restore_optimizer(self, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
        restore_optimizer(optimizer, tensors)
        for parameter, state in optimizer.state.items():
            for name, value in state.items():
                if value.shape == parameter.shape and value.dim():
                    state[name] = torch.zeros_like(parameter)
                    _fill(state[name], value)


def _whole(tensor: Tensor) -> Tensor:
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def _fill(tensor: Tensor, whole: Tensor) -> None:
    """Each rank takes its own part of what all of them have whole."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    whole = whole.to(tensor.device)
    if isinstance(tensor, DTensor):
        whole = distribute_tensor(whole, tensor.device_mesh, tensor.placements, src_data_rank=None)
    tensor.copy_(whole)


@register
class FullyShardedConfig(ParallelConfig):
    """Weights, gradients and optimizer state are shared out too: for a model that outgrows a device."""

    kind: Literal["fsdp"] = "fsdp"

    def build(self, model: Model, ranks: Ranks, training: TrainingConfig) -> Undivided:
        refused = {
            "training.freeze": bool(training.freeze),
            "training.average_last": training.average_last is not None,
        }
        for place, is_used in refused.items():
            if is_used:
                raise user_error(
                    "does not go together with sharded weights",
                    place=place,
                    remedy=f"training.parallel.kind=ddp, or without {place.removeprefix('training.')}",
                )
        return Sharded(model, ranks)
