"""Fast decoding on CPUs: prepacked weights, the faster BLAS library, an attention kernel for few queries."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Lock
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.blocks import reference
from glassformer.blocks.attention import DROP_IN_KERNELS, MultiHeadAttention, fused_kernel
from glassformer.blocks.dropout import Dropout
from glassformer.blocks.embedding import InputNet
from glassformer.blocks.feed_forward import FeedForward, SwiGLU
from glassformer.blocks.heads import Head, pad_to_alignment
from glassformer.blocks.layers import Residual
from glassformer.blocks.masks import Mask
from glassformer.models.base import GenerativeModel, Model

_numpy_users = 0
"""Number of open `numpy_matmul` blocks, in all threads."""
_numpy_lock = Lock()
_one_blas_thread = ExitStack()


@cache
def numpy_is_faster() -> bool:
    """Return True on AMD processors, where NumPy's OpenBLAS is faster than PyTorch's MKL.

    The choice depends on the processor, not on a timing, so that all runs on a machine give equal numbers.
    """
    if not torch.backends.mkl.is_available():
        return False
    with suppress(OSError):
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text(errors="replace")
    return "AuthenticAMD" in platform.processor()


@contextmanager
def numpy_matmul() -> Iterator[None]:
    """Use NumPy for matrix products inside a `with` block, if it is faster than PyTorch on this machine.

    Blocks of several threads may overlap. The setting lasts until the last of them ends.
    """
    if not numpy_is_faster():
        yield
        return
    _count_numpy_users(1)
    try:
        yield
    finally:
        _count_numpy_users(-1)


def _count_numpy_users(change: int) -> None:
    """Count one block more or less. The first and the last one set the number of BLAS threads."""
    global _numpy_users
    from threadpoolctl import ThreadpoolController

    with _numpy_lock:
        if _numpy_users == 0:
            # Only BLAS is selected. The end of a limit restores every library it selected, and would set
            # another thread's number of OpenMP threads to that of the thread that ends it.
            _one_blas_thread.enter_context(ThreadpoolController().select(user_api="blas").limit(limits=1))
        _numpy_users += change
        if _numpy_users == 0:
            _one_blas_thread.close()


def use_numpy(x: Tensor) -> bool:
    """Return True if NumPy should multiply this tensor. With several PyTorch threads, PyTorch is faster."""
    return (
        _numpy_users > 0
        and torch.get_num_threads() == 1
        and x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.float64)
        and not x.requires_grad
    )


def matmul(rows: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute rows (…, N, I) @ matrix (…, I, O) + bias (O)."""
    if use_numpy(rows):
        product = torch.from_numpy(np.matmul(rows.numpy(), matrix.numpy()))
        return product if bias is None else product.add_(bias)
    return torch.matmul(rows, matrix) if bias is None else torch.addmm(bias, rows, matrix)


Function = Callable[..., Tensor]


def prepack_linear(weight_OI: Tensor, bias_O: Tensor | None) -> Callable[[Tensor], Tensor]:
    """Return a function that computes `F.linear` with this weight and bias, faster on a CPU for few rows.

    The matrix is stored transposed. If there are more outputs than inputs, the bias becomes one more row of
    the matrix and each input gets a 1 at its end, because PyTorch copies the bias into every output row
    before it multiplies.
    """
    outputs, inputs = weight_OI.shape
    matrix_IO = weight_OI.detach().t()
    bias_O = None if bias_O is None else bias_O.detach()
    is_wide = bias_O is not None and outputs > inputs
    if bias_O is not None and is_wide:
        matrix_IO, bias_O = torch.cat([matrix_IO, bias_O[None]]), None
    matrix_IO = matrix_IO.contiguous()

    def product(x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        if is_wide:
            rows = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
        return matmul(rows, matrix_IO, bias_O).view(*x.shape[:-1], outputs)

    return product


PLAIN_MODULES: set[type[nn.Module]] = {FeedForward, SwiGLU, Residual}
"""Module types whose `forward` is all that a call does: without hooks, and equal in training."""


def _function(part: nn.Module) -> Function | None:
    """Return a plain function that replaces a submodule in evaluation mode, or None to keep the module."""
    if type(part) is nn.Linear and is_local(part.weight):
        return prepack_linear(part.weight.data, None if part.bias is None else part.bias.data)
    if isinstance(part, nn.LayerNorm):
        shape, epsilon = list(part.normalized_shape), part.eps
        return lambda x: torch.layer_norm(x, shape, part.weight, part.bias, epsilon, False)
    if type(part) in (nn.Identity, Dropout):
        return lambda x: x
    return part.forward if type(part) in PLAIN_MODULES else None


def is_local(weight: Tensor) -> bool:
    """Return True if the tensor is on a CPU and not sharded over processes (not a DTensor)."""
    return type(weight.data) is Tensor and weight.device.type == "cpu"


UNPACKED = (nn.ModuleList, nn.Sequential, InputNet)
"""Module types whose children stay modules, because the parent iterates over them or reads their weights."""

_prepacked: WeakSet[nn.Module] = WeakSet()
"""Models inside a `prepack` block."""


@contextmanager
def prepack(model: nn.Module) -> Iterator[None]:
    """Speed up decoding inside a `with` block: prepack weights, and replace submodules by plain functions.

    The weights must not change inside the block. Plain functions help because calling an `nn.Module` takes a
    few microseconds, a large part of a decoding step. A block inside another block of the same model has no
    effect.
    """
    if model in _prepacked:
        yield
        return
    from glassformer.generation.greedy_head import greedy_head  # imports this module

    shadows = [
        (parent, name, function)
        for parent in model.modules()
        for name, part in parent.named_children()
        if not isinstance(parent, UNPACKED) and (function := _function(part)) is not None
    ]
    attentions = [
        module
        for module in model.modules()
        if isinstance(module, MultiHeadAttention) and module.kernel is fused_kernel
    ]
    try:
        _prepacked.add(model)
        for parent, name, function in shadows:
            parent.__dict__[name] = function  # found before the module of that name
        for attention in attentions:
            attention.kernel = decode_kernel
        if isinstance(model, GenerativeModel):
            model.prepacked_head = prepack_head(model)
            model.greedy_head = greedy_head(model)
        yield
    finally:
        for parent, name, _ in shadows:
            parent.__dict__.pop(name, None)
        for attention in attentions:
            attention.kernel = fused_kernel
        if isinstance(model, GenerativeModel):
            vars(model).pop("prepacked_head", None)
            vars(model).pop("greedy_head", None)
        _prepacked.discard(model)


def prepack_head(model: Model) -> Callable[[Tensor], Tensor]:
    """Return the function from hidden vectors to logits, prepacked unless the head overrides `forward`."""
    head, tied_VD = model.head, model.tied_weight()
    if type(head).forward is not Head.forward or head.linear is not F.linear:
        return lambda hidden: head(hidden, tied_VD)
    weight = head.output_weight(tied_VD)
    outputs, product = len(weight), prepack_linear(*pad_to_alignment(weight, head.bias))
    return lambda hidden: product(head.body(hidden))[..., :outputs]


FEW_QUERIES = 8
"""Maximum number of queries per row for NumPy attention. PyTorch's kernel is faster for more queries."""


SHORT = 16
"""Number of keys from which PyTorch's softmax is fast. For 9 keys it takes 8 times as long as for 16."""


def decode_kernel(
    q_BHLK: Tensor, k_BHMK: Tensor, v_BHMK: Tensor, mask: Mask, bias: Tensor | None, dropout: float
) -> Tensor:
    """Compute attention with NumPy for few queries if NumPy is faster, else with the fused kernel."""
    if q_BHLK.shape[2] > FEW_QUERIES or bias is not None or not use_numpy(q_BHLK):
        return fused_kernel(q_BHLK, k_BHMK, v_BHMK, mask, bias, dropout)
    queries, keys = q_BHLK.shape[2], k_BHMK.shape[2]
    if mask.is_causal and mask.allowed is None and queries == keys:
        return fused_kernel(q_BHLK, k_BHMK, v_BHMK, mask, bias, dropout)
    scores_BHLM = matmul(q_BHLK, k_BHMK.transpose(-2, -1)) / math.sqrt(q_BHLK.shape[-1])
    weights = short_weights if keys < SHORT else reference.weights
    weights_BHLM = weights(scores_BHLM, mask.dense(queries, keys, q_BHLK.device))
    return matmul(weights_BHLM, v_BHMK)


def short_weights(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute `reference.weights` by plain operations, which are faster for few keys."""
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = (scores - scores.amax(-1, keepdim=True)).exp_()
    weights.div_(weights.sum(-1, keepdim=True))
    return weights if mask is None else weights.masked_fill_(~mask, 0.0)


DROP_IN_KERNELS.add(decode_kernel)
