"""Parameters by module, FLOPs and memory of a model, without computing anything.

A forward pass is traced on PyTorch's fake tensors, which have a shape and no data. Therefore any model can be
measured, including those of plug-ins and those that do not fit into memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from glassformer.data.batching import Batch
from glassformer.models.base import Model
from glassformer.tasks.base import Task
from glassformer.training.config import TrainingConfig
from glassformer.training.precision import choose_device
from glassformer.training.strategies import concurrent_fraction, count_gradient_copies, count_micro_batches

BACKWARD_PER_FORWARD = 2
"""FLOPs of the backward pass per FLOP of the forward pass, as each matrix product has two gradients."""


@dataclass(frozen=True)
class Size:
    """Size of a model: parameters by module, and FLOPs and activation memory for one batch."""

    by_module: dict[str, int]
    weight_bytes: int
    trainable_bytes: int
    tokens: int
    forward_flops: int | None
    activation_bytes: int | None
    why_not: str = ""
    """Reason why FLOPs and activation memory are None; empty if they were traced."""

    @property
    def total(self) -> int:
        return sum(self.by_module.values())

    def flops_per_token(self) -> dict[str, int | None]:
        """Return the FLOPs per token: `forward`, and `training` for forward and backward pass."""
        if self.forward_flops is None:
            return {"forward": None, "training": None}
        forward = round(self.forward_flops / self.tokens)
        return {"forward": forward, "training": (1 + BACKWARD_PER_FORWARD) * forward}

    def memory_bytes(
        self, optimizer_floats: int, is_averaged: bool = False, gradients: int = 1, concurrency: float = 1.0
    ) -> dict[str, int | None]:
        """Return the bytes that training needs: weights, gradients, optimizer, average, activations, total.

        `optimizer_floats` is the optimizer state per parameter. `is_averaged` adds a copy of the weights. If
        micro-batches run on threads, a fraction `concurrency` of the batch is processed at a time, and
        there are `gradients` copies of all gradients.
        """
        memory = {
            "weights": self.weight_bytes,
            "gradients": gradients * self.trainable_bytes,
            "optimizer": optimizer_floats * self.trainable_bytes,
            "average": self.weight_bytes if is_averaged else 0,
        }
        if self.activation_bytes is None:
            return {**memory, "activations": None, "total": None}
        activations = round(concurrency * self.activation_bytes)
        return {**memory, "activations": activations, "total": sum(memory.values()) + activations}


def measure(
    build: Callable[[], Model],
    batch: Batch,
    *,
    dtype: torch.dtype = torch.float32,
) -> Size:
    """Return the size of the model from `build`, traced on fake tensors with autocast to `dtype`."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    inputs: dict[str, Tensor | None] = {
        name: None if x is None else mode.from_tensor(x) for name, x in batch.inputs.items()
    }
    with mode:
        model = build()
        forward_flops, activation_bytes, why_not = None, None, ""
        try:
            with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
                forward_flops, activation_bytes = trace(model, inputs)
        except (
            DataDependentOutputException,
            DynamicOutputShapeException,
            UnsupportedOperatorException,
        ) as error:
            why_not = f"the model's tensor shapes depend on its data ({type(error).__name__}: {error})"
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return Size(
        by_module=count_by_module(model),
        weight_bytes=sum(parameter.nbytes for parameter in model.parameters()),
        trainable_bytes=sum(parameter.nbytes for parameter in trainable),
        tokens=count_tokens(batch),
        forward_flops=forward_flops,
        activation_bytes=activation_bytes,
        why_not=why_not,
    )


def longest_batch(task: Task, training: TrainingConfig) -> Batch:
    """Return the batch that needs the most memory: the longest training examples that fill one batch."""
    lengths = task.splits["train"].lengths()
    count = training.batch_size
    if training.batch_tokens is not None:
        count = max(1, training.batch_tokens // int(lengths.max()))
    return task.batch("train", np.argsort(lengths, kind="stable")[-count:])


def training_memory(size: Size, task: Task, training: TrainingConfig, batch: Batch) -> dict[str, int | None]:
    """Return the bytes of memory to train on this batch, by purpose such as `weights` or `activations`."""
    gradients, concurrency = 1, 1.0
    if choose_device(training.device).type == "cpu":
        micro_batches = count_micro_batches(size.total, task.splits["train"].lengths()[batch.indices])
        threads = training.threads or torch.get_num_threads()
        gradients = count_gradient_copies(micro_batches, threads)
        concurrency = concurrent_fraction(micro_batches, threads)
    return size.memory_bytes(
        training.optimizer.state_floats_per_parameter,
        is_averaged=training.ema_decay is not None,
        gradients=gradients,
        concurrency=concurrency,
    )


def count_by_module(model: nn.Module) -> dict[str, int]:
    """Return the number of parameters of each module. A shared parameter counts once, in its first module."""
    counts: Counter[str] = Counter()
    for path, parameter in model.named_parameters():
        counts[path.rpartition(".")[0]] += parameter.numel()
    return dict(counts)


def count_tokens(batch: Batch) -> int:
    """Return the number of input positions of a batch: encoder and decoder inputs, padding included."""
    return sum(x.numel() for x in batch.inputs.values() if x is not None and x.dtype != torch.bool)


def trace(model: Model, inputs: dict[str, Tensor | None]) -> tuple[int, int]:
    """Return the FLOPs of the forward pass, and the bytes that autograd saves for the backward pass.

    Only matrix products count, with two FLOPs per multiply-add. Both products of attention are included, and
    a causal mask does not reduce them. Elementwise operations (norms, softmax, activations) do not count.
    """
    weights = {tensor.untyped_storage()._cdata for tensor in [*model.parameters(), *model.buffers()]}
    saved: dict[int, int] = {}

    def save(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            saved[storage._cdata] = storage.nbytes()
        return tensor

    counter = FlopCounterMode(display=False, custom_mapping=_CPU_ATTENTION)
    with _ZeroValues(), counter, torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        outputs = model(**inputs)
    del outputs  # held until here, so that no two storages have the same address
    return counter.get_total_flops(), sum(saved.values())


class _ZeroValues(TorchFunctionMode):
    """Mode in which reading the value of a fake tensor, such as `tensor.item()`, returns 0."""

    VALUES: dict[Any, Any] = {  # noqa: RUF012
        Tensor.__int__: 0,
        Tensor.__float__: 0.0,
        Tensor.__bool__: False,
        Tensor.item: 0,
    }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.VALUES and isinstance(args[0], FakeTensor):
            return self.VALUES[func]
        return func(*args, **(kwargs or {}))


def _attention_flops(
    query: Any, key: Any, value: Any, *rest: Any, out_shape: Any = None, **named: Any
) -> int:
    """Return the FLOPs of the CPU's fused attention from the shapes of query, key and value."""
    batch, heads, queries, width = query
    return 2 * batch * heads * queries * key[2] * (width + value[3])


_CPU_ATTENTION = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops}
