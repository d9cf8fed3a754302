"""Strategies that run one training step: single process, threaded micro-batches, DDP and FSDP."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from glassformer.blocks.attention import MultiHeadAttention
from glassformer.blocks.dropout import Dropout, drawing_from
from glassformer.blocks.heads import LossOutput
from glassformer.blocks.layers import DecoderBlock, EncoderBlock
from glassformer.core.errors import user_error
from glassformer.core.registry import Kind, register
from glassformer.core.system import ThreadPool, threads_set_to
from glassformer.data.batching import Batch
from glassformer.generation.cpu import is_local
from glassformer.models.base import Model
from glassformer.training.distributed import ProcessGroup
from glassformer.training.mixed_precision import BF16Products, make_precision

if TYPE_CHECKING:
    from glassformer.training.config import TrainingConfig

BatchLoss = tuple[Tensor, Tensor]
"""Sum of the losses of a micro-batch, and number of its targets that were predicted correctly.

They stay on the device, because reading them would make the host wait.
"""


class IdleBatch(Batch):
    """Dummy batch for a rank without examples, so that the rank joins all collectives. It has zero weight."""

    def target_count(self) -> int:
        return 0

    def token_count(self) -> int:
        return 0


class CompiledBlocks:
    """Context in which the blocks of a model run compiled by `torch.compile`.

    Outside of it, validation and inspection run the plain blocks.
    """

    def __init__(self, model: Model) -> None:
        compiler = os.environ.get("CXX", "g++")
        if next(model.parameters()).device.type == "cpu" and shutil.which(compiler) is None:
            raise user_error(
                f"torch.compile needs the C++ compiler {compiler} on a CPU, which is not installed",
                path="training.compile",
                value=True,
                hint="install it, or set training.compile=false",
            )
        blocks = [module for module in model.modules() if isinstance(module, (EncoderBlock, DecoderBlock))]
        # Lengths differ from batch to batch: one compilation serves all of them.
        self.calls = {block: torch.compile(block._call_impl, dynamic=True) for block in blocks}

    def __enter__(self) -> None:
        for block, call in self.calls.items():
            block._compiled_call_impl = call

    def __exit__(self, *exception: object) -> None:
        for block in self.calls:
            block._compiled_call_impl = None


class SingleProcessStrategy:
    """Strategy that runs micro-batches one after another in one process; base class of all strategies."""

    def __init__(self, model: Model, process_group: ProcessGroup, training: TrainingConfig) -> None:
        self.model = model
        self.process_group = process_group
        self.training = training
        self.precision = make_precision(model, training)
        self.compiled = CompiledBlocks(model) if training.compile else None
        if self.compiled is not None and isinstance(self.precision, BF16Products):
            raise user_error(
                "compiled blocks cannot use products in bf16 on a CPU",
                path="training.compile",
                value=True,
                hint="training.precision=fp32, or training.compile=false",
            )

    def count_micro_batches(self, lengths: np.ndarray) -> int:
        """Return the number of micro-batches to split a batch of examples with these lengths into."""
        return 1

    def forward_backward(self, batches: Sequence[Batch], count: int) -> list[BatchLoss]:
        """Run the forward and backward pass of each micro-batch, and return the loss of each.

        Gradients add up over the micro-batches. Losses are divided by `count`, the number of targets in
        the whole step, before the backward pass.
        """
        with self.precision.step(), self.compiled or contextlib.nullcontext():
            return self._forward_backward(batches, count)

    def _forward_backward(self, batches: Sequence[Batch], count: int) -> list[BatchLoss]:
        losses = []
        for number, batch in enumerate(batches, start=1):
            with self.accumulating(is_last=number == len(batches)):
                with self.precision.forward():
                    loss_output = self.compute_loss(batch)
                loss, correct = loss_output.loss, loss_output.correct
                if isinstance(batch, IdleBatch):  # a rank without examples has zero weight
                    loss, correct = loss * 0, correct * 0
                self.backward(loss / count)
            losses.append((loss.detach(), correct))
        return losses

    def compute_loss(self, batch: Batch) -> LossOutput:
        return self.model.compute_loss(batch.inputs, batch.targets, self.training.label_smoothing)

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of this loss. After the last micro-batch, `.grad` is the sum over all ranks."""
        self.precision.scale(loss).backward()

    def accumulating(self, *, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        """Return a context for one micro-batch. Ranks synchronise gradients only if `is_last` is True."""
        return contextlib.nullcontext()

    def clip(self, limit: float) -> Tensor:
        """Clip the gradient to the norm `limit` and return the norm before clipping."""
        return nn.utils.clip_grad_norm_(self.model.parameters(), limit)

    def should_interrupt(self, is_requested: bool) -> bool:
        """Return True if this rank must end the current validation early.

        `is_requested` is True if this rank received a stop request.
        """
        return is_requested

    def shard(self, model: Model) -> Model:
        """Shard a second model, such as the one with averaged weights, like the trained model; return it."""
        return model

    def weights(self, model: Model) -> dict[str, Tensor]:
        """Return the full, unsharded weights by name. Ranks other than 0 may get empty tensors."""
        return model.state_dict()

    def load(self, model: Model, weights: Mapping[str, Tensor]) -> None:
        """Load full, unsharded weights into the model."""
        model.load_state_dict(dict(weights))

    def optimizer_tensors(self, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        """Return the unsharded optimizer state by `{parameter index}.{state name}`, at least on rank 0."""
        return {
            f"{number}.{name}": value
            for number, parameter in enumerate(_parameters(optimizer))
            for name, value in optimizer.state.get(parameter, {}).items()
            if value is not None
        }

    def restore_optimizer(self, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
        """Load an unsharded optimizer state with the keys of `optimizer_tensors`."""
        optimizer.state.clear()
        parameters = _parameters(optimizer)
        for key, value in tensors.items():
            number, name = key.split(".", 1)
            parameter = parameters[int(number)]
            # Copy: loaded tensors are views of the checkpoint file, which will be deleted.
            optimizer.state[parameter][name] = value.to(parameter.device, copy=True)


def _parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


# ---------------------------------------------------------------- threads

MIN_FLOPS_TO_SPLIT = 1e10
"""Minimum FLOPs (forward and backward) for splitting a step, because a smaller step would get slower."""
FLOPS_PER_MICRO_BATCH, TOKENS_PER_MICRO_BATCH = 2e10, 512
"""Minimum FLOPs and tokens of each micro-batch if a batch is split into more than two.

The limits keep the overhead of Python and of summing the gradients small.
"""


def count_micro_batches(parameters: int, lengths: np.ndarray) -> int:
    """Return into how many micro-batches to split a batch: a power of two, at most one per example."""
    tokens = int(lengths.sum())
    flops = _step_flops(parameters, tokens)
    if flops < MIN_FLOPS_TO_SPLIT or tokens < 2 * TOKENS_PER_MICRO_BATCH or len(lengths) < 2:
        return 1
    most = min(flops / FLOPS_PER_MICRO_BATCH, tokens / TOKENS_PER_MICRO_BATCH, len(lengths))
    return 2 ** max(1, int(math.log2(most)))


def count_gradient_copies(micro_batches: int, threads: int) -> int:
    """Return the peak number of gradient copies: the sum, and one per unfinished micro-batch."""
    return 1 if micro_batches == 1 else 1 + min(micro_batches, _in_flight(min(micro_batches, threads)))


def concurrent_fraction(micro_batches: int, threads: int) -> float:
    """Return the fraction of a batch that is processed at a time, which determines activation memory."""
    return min(micro_batches, threads) / micro_batches


def _step_flops(parameters: int, tokens: int) -> float:
    return 6.0 * parameters * tokens


def _in_flight(workers: int) -> int:
    """Return the limit of unfinished micro-batches: workers + 1, so that a fast worker need not wait."""
    return workers + 1 if workers > 1 else 1


Item = TypeVar("Item")
Result = TypeVar("Result")


class ThreadedStrategy(SingleProcessStrategy):
    """Strategy that runs the micro-batches of a step on several threads of one process, with one model.

    Each micro-batch has its own random generator and its own gradients. The gradients are added in the order
    of the micro-batches, so that the result does not depend on the timing of threads.
    """

    def __init__(self, model: Model, process_group: ProcessGroup, training: TrainingConfig) -> None:
        super().__init__(model, process_group, training)
        self._parameters = sum(parameter.numel() for parameter in model.parameters())
        self._pool: ThreadPool | None = None

    def count_micro_batches(self, lengths: np.ndarray) -> int:
        return count_micro_batches(self._parameters, lengths)

    def _forward_backward(self, batches: Sequence[Batch], count: int) -> list[BatchLoss]:
        if len(batches) == 1 or not self._is_worth_threads(batches):
            return super()._forward_backward(batches, count)
        seeds = torch.randint(2**62, (len(batches),)).tolist()
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]

        def run(item: tuple[Batch, int]) -> tuple[BatchLoss, tuple[Tensor | None, ...]]:
            batch, seed = item
            with drawing_from(torch.Generator().manual_seed(seed)):
                with self.precision.forward():
                    loss_output = self.compute_loss(batch)
                loss = self.precision.scale(loss_output.loss / count)
                gradients = torch.autograd.grad(loss, trained, allow_unused=True)
            return (loss_output.loss.detach(), loss_output.correct), gradients

        losses = []
        for loss, gradients in self._map(run, list(zip(batches, seeds, strict=True))):
            losses.append(loss)
            with threads_set_to(1):  # OpenMP's threads would wait for the next sum in a busy loop
                _add_gradients(trained, gradients)
        return losses

    def _is_worth_threads(self, batches: Sequence[Batch]) -> bool:
        """Return True if the batches of a step are large enough for threads to be faster than a loop."""
        positions = sum(max(x.numel() for x in batch.inputs.values() if x is not None) for batch in batches)
        return _step_flops(self._parameters, positions) >= len(batches) * MIN_FLOPS_TO_SPLIT / 4

    def _map(self, run: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        workers = min(len(items), torch.get_num_threads())
        if workers == 1:
            return map(run, items)
        if self._pool is None or self._pool.workers != workers:
            self._pool = ThreadPool(workers, "training")
        return self._pool.each(run, items, _in_flight(workers))


def _add_gradients(parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor | None]) -> None:
    """Add gradients to `parameter.grad`. Call it in micro-batch order, so that sums are bit-identical."""
    pairs = [(p, g.contiguous()) for p, g in zip(parameters, gradients, strict=True) if g is not None]
    for parameter, gradient in pairs:
        if parameter.grad is None:
            parameter.grad = gradient
    more = [(p.grad, g) for p, g in pairs if p.grad is not g]
    if more:
        torch._foreach_add_([cast(Tensor, total) for total, _ in more], [gradient for _, gradient in more])


def supports_threads(model: Model) -> bool:
    """Return True if the model is on the CPU and draws random numbers in our Dropout modules only."""
    return all(map(is_local, model.parameters())) and not any(map(_may_use_random_numbers, model.modules()))


def _may_use_random_numbers(module: nn.Module) -> bool:
    if isinstance(module, MultiHeadAttention):
        return module.dropout > 0
    package = type(module).__module__
    is_dropout = isinstance(module, nn.modules.dropout._DropoutNd) and not isinstance(module, Dropout)
    return is_dropout or not package.startswith(("glassformer.", "torch.nn."))


class ParallelConfig(Kind):
    """Config of the strategy for training with several processes. A single process ignores it."""

    def build(self, model: Model, group: ProcessGroup, training: TrainingConfig) -> SingleProcessStrategy:
        raise NotImplementedError


def make_strategy(
    model: Model, process_group: ProcessGroup, training: TrainingConfig
) -> SingleProcessStrategy:
    """Build the strategy: threaded or sequential for one process, else the one of `training.parallel`."""
    if process_group.world_size == 1:
        # Compiled dropout draws from the generator of the process, which threads would share.
        is_threaded = supports_threads(model) and not training.compile
        strategy = ThreadedStrategy if is_threaded else SingleProcessStrategy
        return strategy(model, process_group, training)
    device = next(model.parameters()).device
    if device.type not in ("cpu", "cuda"):
        raise user_error(
            "this device cannot be used by several processes, only CPUs and CUDA devices can",
            path="training.device",
            value=str(device),
            hint="training.device=cpu",
        )
    return training.parallel.build(model, process_group, training)


# ---------------------------------------------------------------- DDP


class _LossModule(nn.Module):
    """Module whose `forward` returns the loss, because DistributedDataParallel wraps only `forward`."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, inputs: dict[str, Tensor | None], targets: Tensor, label_smoothing: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        loss_output = self.model.compute_loss(inputs, targets, label_smoothing)
        return loss_output.loss, loss_output.correct, loss_output.count


class DDPStrategy(SingleProcessStrategy):
    """Strategy with PyTorch's DistributedDataParallel, which sums gradients during the backward pass."""

    def __init__(self, model: Model, process_group: ProcessGroup, training: TrainingConfig) -> None:
        super().__init__(model, process_group, training)
        self._wrap()

    def _wrap(self) -> None:
        """Wrap the model in DistributedDataParallel, again whenever the set of trained parameters changes.

        `find_unused_parameters` allows models with unused parameters. It also keeps DistributedDataParallel
        from rebuilding its gradient buckets, so that the gradient sums of a resumed run are bit-identical.
        """
        self._trained = [parameter.requires_grad for parameter in self.model.parameters()]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated")
            self._wrapped = nn.parallel.DistributedDataParallel(
                _LossModule(self.model), broadcast_buffers=False, find_unused_parameters=True
            )

    def compute_loss(self, batch: Batch) -> LossOutput:
        if self._trained != [parameter.requires_grad for parameter in self.model.parameters()]:
            self._wrap()
        return LossOutput(*self._wrapped(batch.inputs, batch.targets, self.training.label_smoothing))

    def backward(self, loss: Tensor) -> None:
        self.precision.scale(
            loss * self.process_group.world_size
        ).backward()  # the wrapper averages over the ranks

    def accumulating(self, *, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if is_last else self._wrapped.no_sync()


@register
class DDPConfig(ParallelConfig):
    """DistributedDataParallel: each process holds the whole model and takes a share of each batch.

    Use it as the default, while the model fits into the memory of each device.
    """

    kind: Literal["ddp"] = "ddp"

    def build(self, model: Model, group: ProcessGroup, training: TrainingConfig) -> SingleProcessStrategy:
        return DDPStrategy(model, group, training)


# ---------------------------------------------------------------- FSDP


class FSDPStrategy(SingleProcessStrategy):
    """Strategy with PyTorch's FSDP2: each rank holds a shard of every weight, gradient and optimizer state.

    The weights of a layer are gathered before use and released after it. All ranks must therefore call the
    model at the same time, also during validation.
    """

    def __init__(self, model: Model, process_group: ProcessGroup, training: TrainingConfig) -> None:
        super().__init__(model, process_group, training)
        self.shard(model)

    def shard(self, model: Model) -> Model:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

        mesh = init_device_mesh(next(model.parameters()).device.type, (self.process_group.world_size,))
        lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
        blocks = [block for modules in lists for block in modules]
        for block in blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        for module in (module for module in model.modules() if isinstance(module, FSDPModule)):
            # Sum gradients over ranks, as the other strategies do.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            # Buffers first created by a validation, in inference mode, could not be used in training.
            module.unshard()
            module.reshard()
        for name in ("compute_loss", "hidden", "start", "advance", "advance_beams"):
            if hasattr(model, name):
                register_fsdp_forward_method(model, name)
        for block in (block for block in blocks if isinstance(block, DecoderBlock)):
            register_fsdp_forward_method(block, "project_memory")
        return model

    def accumulating(self, *, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        self.model.set_requires_gradient_sync(is_last)  # type: ignore[operator]
        return contextlib.nullcontext()

    def clip(self, limit: float) -> Tensor:
        gradients = (p.grad for p in self.model.parameters() if p.grad is not None)
        norm = _full_tensor(nn.utils.get_total_norm(gradients))
        if math.isfinite(limit):
            nn.utils.clip_grads_with_norm_(self.model.parameters(), limit, norm)
        return norm

    def should_interrupt(self, is_requested: bool) -> bool:
        """Return True on all ranks if one requests a stop, because a rank cannot go on without the others."""
        return bool(*self.process_group.max(is_requested))

    def weights(self, model: Model) -> dict[str, Tensor]:
        return self._gathered(model.state_dict())

    def load(self, model: Model, weights: Mapping[str, Tensor]) -> None:
        for name, tensor in model.state_dict().items():
            _fill(tensor, weights[name])

    def optimizer_tensors(self, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        return self._gathered(super().optimizer_tensors(optimizer))

    def _gathered(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return unsharded CPU tensors on rank 0, empty ones on other ranks. Gathers one at a time."""
        gathered = {}
        for name, tensor in tensors.items():
            whole = _full_tensor(tensor)
            gathered[name] = whole.cpu() if self.process_group.is_rank_zero else whole.new_empty(0)
        return gathered

    def restore_optimizer(self, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
        super().restore_optimizer(optimizer, tensors)
        for parameter, state in optimizer.state.items():
            for name, value in state.items():
                if value.shape == parameter.shape and value.dim():
                    state[name] = torch.zeros_like(parameter)
                    _fill(state[name], value)


def _full_tensor(tensor: Tensor) -> Tensor:
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def _fill(tensor: Tensor, whole: Tensor) -> None:
    """Copy a full tensor into a tensor that may be sharded. All ranks must hold the full tensor."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    whole = whole.to(tensor.device)
    if isinstance(tensor, DTensor):
        whole = distribute_tensor(whole, tensor.device_mesh, tensor.placements, src_data_rank=None)
    tensor.copy_(whole)


@register
class FSDPConfig(ParallelConfig):
    """Fully sharded data parallelism: weights, gradients and optimizer state are divided among the
    processes.

    Use it for models larger than the memory of one device.
    """

    kind: Literal["fsdp"] = "fsdp"

    def build(self, model: Model, group: ProcessGroup, training: TrainingConfig) -> SingleProcessStrategy:
        unsupported = {"freeze": training.freeze, "average_last": training.average_last}
        unsupported["precision"] = training.precision == "fp16"  # needs another gradient scaler
        for option, is_set in unsupported.items():
            if is_set:
                raise user_error(
                    "this option is not supported with sharded weights",
                    path=f"training.{option}",
                    hint=f"set training.parallel.kind=ddp, or remove training.{option}",
                )
        return FSDPStrategy(model, group, training)
