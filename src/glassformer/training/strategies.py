"""How one step runs: on one process, in threaded micro-batches, or with DDP or FSDP."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from glassformer.blocks.attention import MultiHeadAttention
from glassformer.blocks.dropout import Dropout, drawing_from
from glassformer.blocks.heads import LossOutput
from glassformer.blocks.layers import DecoderBlock
from glassformer.core.errors import user_error
from glassformer.core.registry import Kind, register
from glassformer.core.threads import ThreadPool
from glassformer.data.batching import Batch
from glassformer.generation.cpu import is_local
from glassformer.models.base import Model, SupportsBeams, SupportsGeneration
from glassformer.training.distributed import IdleBatch, ProcessGroup
from glassformer.training.state import optimizer_tensors, restore_optimizer

if TYPE_CHECKING:
    from glassformer.training.config import TrainingConfig


Learned = tuple[float, int]
"""Of a batch: the summed loss, and how many targets were on top."""
Autocast = Callable[[], contextlib.AbstractContextManager[Any]]


class SingleProcessStrategy:
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
                    loss_output = self.compute_loss(batch, label_smoothing)
                self.backward(loss_output.loss / count)
            scores.append((float(loss_output.loss.detach()), int(loss_output.correct)))
        return scores

    def compute_loss(self, batch: Batch, label_smoothing: float) -> LossOutput:
        return self.model.compute_loss(batch.inputs, batch.targets, label_smoothing)

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


Item = TypeVar("Item")
Prediction = TypeVar("Prediction")

WORTH_PARTING = 1e10
"""Floating-point operations of a step, forward and back; one of fewer is over before parting it pays."""
WORK_OF_A_PART, TOKENS_OF_A_PART = 2e10, 512
"""At least, of more parts than two: so Python, and sums of gradients of a large model, hardly count."""


def number_of_parts(parameters: int, lengths: np.ndarray) -> int:
    """Of a batch of examples of these lengths: a power of two, so that as many threads are done at once."""
    tokens = int(lengths.sum())
    if _work(parameters, tokens) < WORTH_PARTING or tokens < 2 * TOKENS_OF_A_PART or len(lengths) < 2:
        return 1
    most = min(_work(parameters, tokens) / WORK_OF_A_PART, tokens / TOKENS_OF_A_PART, len(lengths))
    return 2 ** max(1, int(math.log2(most)))


def gradients_held(parts: int, threads: int) -> int:
    """How many of a whole model there are at a time: their sum, and those of parts that are not in it yet."""
    return 1 if parts == 1 else 1 + min(parts, _ahead(min(parts, threads)))


def share_at_once(parts: int, threads: int) -> float:
    """Of a batch, what is being worked on at a time."""
    return min(parts, threads) / parts


def _work(parameters: int, tokens: int) -> float:
    return 6.0 * parameters * tokens


def _ahead(workers: int) -> int:
    """Parts that may be begun before the first of them is added: one that is done early need not wait."""
    return workers + 1 if workers > 1 else 1


class ThreadedStrategy(SingleProcessStrategy):
    """One process, one model, and the parts of a step at once."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self._parameters = sum(parameter.numel() for parameter in model.parameters())
        self._crew: ThreadPool | None = None

    def parts(self, lengths: np.ndarray) -> int:
        return number_of_parts(self._parameters, lengths)

    def learn(
        self, batches: Sequence[Batch], count: int, label_smoothing: float, autocast: Autocast
    ) -> list[Learned]:
        if len(batches) == 1 or not self._is_much(batches):
            return super().learn(batches, count, label_smoothing, autocast)
        seeds = torch.randint(2**62, (len(batches),)).tolist()
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]

        def learn(part: tuple[Batch, int]) -> tuple[Learned, tuple[Tensor | None, ...]]:
            batch, seed = part
            with drawing_from(torch.Generator().manual_seed(seed)):
                with autocast():
                    loss_output = self.compute_loss(batch, label_smoothing)
                gradients = torch.autograd.grad(loss_output.loss / count, trained, allow_unused=True)
            return (float(loss_output.loss.detach()), int(loss_output.correct)), gradients

        scores = []
        for learned, gradients in self._each(learn, list(zip(batches, seeds, strict=True))):
            scores.append(learned)
            _add(trained, gradients)
        return scores

    def _is_much(self, batches: Sequence[Batch]) -> bool:
        """Of parts always; batches that were planned apart may be too small for threads of their own."""
        places = sum(max(x.numel() for x in batch.inputs.values() if x is not None) for batch in batches)
        return _work(self._parameters, places) >= len(batches) * WORTH_PARTING / 4

    def _each(self, learn: Callable[[Item], Prediction], parts: Sequence[Item]) -> Iterator[Prediction]:
        workers = min(len(parts), torch.get_num_threads())
        if workers == 1:
            return map(learn, parts)
        if self._crew is None or self._crew.workers != workers:
            self._crew = ThreadPool(workers, "training")
        return self._crew.each(learn, parts, _ahead(workers))


def _add(parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor | None]) -> None:
    """In the order of the parts, whichever is done first: sums are rounded alike in each run."""
    pairs = [(p, g.contiguous()) for p, g in zip(parameters, gradients, strict=True) if g is not None]
    for parameter, gradient in pairs:
        if parameter.grad is None:
            parameter.grad = gradient
    more = [(p.grad, g) for p, g in pairs if p.grad is not g]
    if more:
        torch._foreach_add_([cast(Tensor, total) for total, _ in more], [gradient for _, gradient in more])


def can_learn_in_parts(model: Model) -> bool:
    """On a CPU, and if nothing but our dropout draws random numbers: one generator serves no two threads."""
    return all(map(is_local, model.parameters())) and not any(map(_may_draw, model.modules()))


def _may_draw(module: nn.Module) -> bool:
    if isinstance(module, MultiHeadAttention):
        return module.dropout > 0
    package = type(module).__module__
    is_dropout = isinstance(module, nn.modules.dropout._DropoutNd) and not isinstance(module, Dropout)
    return is_dropout or not package.startswith(("glassformer.", "torch.nn."))


class ParallelConfig(Kind):
    """How several processes share the work; one process has nothing to share."""

    def build(
        self, model: Model, process_group: ProcessGroup, training: TrainingConfig
    ) -> SingleProcessStrategy:
        raise NotImplementedError


def make_strategy(
    model: Model, process_group: ProcessGroup, training: TrainingConfig
) -> SingleProcessStrategy:
    if process_group.count == 1:
        return ThreadedStrategy(model) if can_learn_in_parts(model) else SingleProcessStrategy(model)
    device = next(model.parameters()).device
    if device.type not in ("cpu", "cuda"):
        raise user_error(
            "several processes work together on CPUs or on CUDA devices",
            path="training.device",
            value=str(device),
            hint="training.device=cpu",
        )
    return training.parallel.build(model, process_group, training)


# ---------------------------------------------------------------- a copy for each rank


class _Scoring(nn.Module):
    """PyTorch's wrapper listens to `forward`; training calls `compute_loss`."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, inputs: dict[str, Tensor | None], targets: Tensor, label_smoothing: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        loss_output = self.model.compute_loss(inputs, targets, label_smoothing)
        return loss_output.loss, loss_output.correct, loss_output.count


class Replicated(SingleProcessStrategy):
    """PyTorch's DistributedDataParallel: gradients travel while the backward pass still goes on."""

    def __init__(self, model: Model, process_group: ProcessGroup) -> None:
        super().__init__(model)
        self.process_group = process_group
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

    def compute_loss(self, batch: Batch, label_smoothing: float) -> LossOutput:
        if self._trained != [parameter.requires_grad for parameter in self.model.parameters()]:
            self._wrap()
        return _counted(LossOutput(*self._wrapped(batch.inputs, batch.targets, label_smoothing)), batch)

    def backward(self, loss: Tensor) -> None:
        (loss * self.process_group.count).backward()  # the wrapper takes the mean over the ranks

    def accumulating(self, *, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if is_last else self._wrapped.no_sync()


def _counted(loss_output: LossOutput, batch: Batch) -> LossOutput:
    """An idle rank computes, and what it computes weighs nothing."""
    if isinstance(batch, IdleBatch):
        return LossOutput(loss_output.loss * 0, loss_output.correct * 0, loss_output.count * 0)
    return loss_output


@register
class DataParallelConfig(ParallelConfig):
    """Each process has the whole model and a part of each batch."""

    kind: Literal["ddp"] = "ddp"

    def build(
        self, model: Model, process_group: ProcessGroup, training: TrainingConfig
    ) -> SingleProcessStrategy:
        return Replicated(model, process_group)


# ---------------------------------------------------------------- a shard for each rank


class Sharded(SingleProcessStrategy):
    """PyTorch's FSDP2: each rank keeps a share of every weight, gradient and optimizer state.

    A layer is put together when it is needed and taken apart after it. Whatever asks the model must
    therefore be done by all ranks at once, validation too.
    """

    def __init__(self, model: Model, process_group: ProcessGroup) -> None:
        super().__init__(model)
        self.process_group = process_group
        self.share(model)

    def share(self, model: Model) -> Model:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

        mesh = init_device_mesh(next(model.parameters()).device.type, (self.process_group.count,))
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
        entries = ["compute_loss", "hidden"]
        entries += ["start", "advance"] if isinstance(model, SupportsGeneration) else []
        entries += ["branch"] if isinstance(model, SupportsBeams) else []
        for name in entries:
            register_fsdp_forward_method(model, name)
        for block in (block for modules in lists for block in modules if isinstance(block, DecoderBlock)):
            register_fsdp_forward_method(block, "read_source")
        return model

    def compute_loss(self, batch: Batch, label_smoothing: float) -> LossOutput:
        return _counted(super().compute_loss(batch, label_smoothing), batch)

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
        return bool(*self.process_group.largest(is_asked))

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
            gathered[name] = whole.cpu() if self.process_group.is_rank_zero else whole.new_empty(0)
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

    def build(
        self, model: Model, process_group: ProcessGroup, training: TrainingConfig
    ) -> SingleProcessStrategy:
        refused = {
            "training.freeze": bool(training.freeze),
            "training.average_last": training.average_last is not None,
        }
        for place, is_used in refused.items():
            if is_used:
                raise user_error(
                    "does not go together with sharded weights",
                    path=place,
                    hint=f"training.parallel.kind=ddp, or without {place.removeprefix('training.')}",
                )
        return Sharded(model, process_group)
