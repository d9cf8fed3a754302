"""What a model costs: parameters by module, FLOPs, memory. Nothing is computed and hardly anything allocated.

A forward pass is traced on tensors that have a shape and no content (PyTorch's fake tensors), so that the
numbers hold for every kind, a plug-in's too, and a model that does not fit into memory can still be sized.
It knows nothing of tasks or training: it is handed a way to build the model, a batch, and sizes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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

BACKWARD_PER_FORWARD = 2
"""The convention: each matrix product of the forward pass is followed by two of the same size backwards."""


@dataclass(frozen=True)
class Size:
    """Counted on the built model, and traced for one batch; `why_not` says why a trace is missing."""

    by_module: dict[str, int]
    weight_bytes: int
    trainable_bytes: int
    tokens: int
    forward_flops: int | None
    activation_bytes: int | None
    why_not: str = ""

    @property
    def total(self) -> int:
        return sum(self.by_module.values())

    def flops_per_token(self) -> dict[str, int | None]:
        """Forward, and training: forward plus backward."""
        if self.forward_flops is None:
            return {"forward": None, "training": None}
        forward = round(self.forward_flops / self.tokens)
        return {"forward": forward, "training": (1 + BACKWARD_PER_FORWARD) * forward}

    def memory_bytes(
        self, optimizer_floats: int, is_averaged: bool = False, gradients: int = 1, concurrency: float = 1.0
    ) -> dict[str, int | None]:
        """In training: `optimizer_floats` a parameter, and another copy of the weights if averaged.

        Where a step is done in parts, `concurrency` of it are worked on at a time, and this many `gradients`
        for all parameters are held.
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
    """Build the model without content and send `batch` through it; another `dtype` means mixed precision."""
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
            why_not = f"the model's shapes depend on its data ({type(error).__name__}: {error})"
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


def count_by_module(model: nn.Module) -> dict[str, int]:
    """Parameters by the module that owns them; a shared one counts once, so they add up to the total."""
    counts: Counter[str] = Counter()
    for path, parameter in model.named_parameters():
        counts[path.rpartition(".")[0]] += parameter.numel()
    return dict(counts)


def count_tokens(batch: Batch) -> int:
    """Positions that pass through the model, padding and both sides of an encoder-decoder included."""
    tensors = [tensor for tensor in batch.inputs.values() if tensor is not None]
    return sum(tensor.numel() for tensor in tensors if tensor.dtype != torch.bool)


def trace(model: Model, inputs: dict[str, Tensor | None]) -> tuple[int, int]:
    """FLOPs of the forward pass, and the bytes that autograd keeps of it for the backward pass.

    FLOPs are those of matrix products, two for a multiply-add, attention's scores and mixing included and a
    causal mask not deducted; what is done number by number (norms, softmax, activations) is left out.
    """
    weights = {tensor.untyped_storage()._cdata for tensor in [*model.parameters(), *model.buffers()]}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage.nbytes()
        return tensor

    counter = FlopCounterMode(display=False, custom_mapping=_CPU_ATTENTION)
    with _NoValues(), counter, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        answers = model(**inputs)
    del answers  # only now may storages go: until here each had an address of its own
    return counter.get_total_flops(), sum(kept.values())


class _NoValues(TorchFunctionMode):
    """Answers 0 where a model asks a fake tensor for its value, such as for the last position."""

    ANSWERS: dict[Any, Any] = {  # noqa: RUF012
        Tensor.__int__: 0,
        Tensor.__float__: 0.0,
        Tensor.__bool__: False,
        Tensor.item: 0,
    }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.ANSWERS and isinstance(args[0], FakeTensor):
            return self.ANSWERS[func]
        return func(*args, **(kwargs or {}))


def _attention_flops(
    query: Any, key: Any, value: Any, *rest: Any, out_shape: Any = None, **named: Any
) -> int:
    """PyTorch's counter knows the fused kernels of GPUs and not the one of the CPU. Shapes come in."""
    batch, heads, queries, width = query
    return 2 * batch * heads * queries * key[2] * (width + value[3])


_CPU_ATTENTION = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops}
