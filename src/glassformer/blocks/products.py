"""Products of matrices in writing, where nothing is learned: by the library that is faster on this processor.

PyTorch multiplies by MKL on x86. On AMD's processors the OpenBLAS that NumPy brings is faster, up to a half
as fast again where an answer is wide, as the logits of a vocabulary are (docs/log.md).
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

_is_numpy_ready = False


@cache
def numpy_is_faster() -> bool:
    """By the processor alone and not by a race: on one machine a product is always rounded alike."""
    if not torch.backends.mkl.is_available():
        return False
    with suppress(OSError):
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text(errors="replace")
    return "AuthenticAMD" in platform.processor()


@contextmanager
def fast_products() -> Iterator[None]:
    """Within it, threads that PyTorch gives one core each may multiply by NumPy, in that one thread."""
    global _is_numpy_ready
    if _is_numpy_ready or not numpy_is_faster():
        yield
        return
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, user_api="blas"):
        _is_numpy_ready = True
        try:
            yield
        finally:
            _is_numpy_ready = False


def by_numpy(x: Tensor) -> bool:
    """Whether NumPy is to multiply this: it would be slower where PyTorch has several threads for it."""
    return (
        _is_numpy_ready
        and torch.get_num_threads() == 1
        and x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.float64)
        and not x.requires_grad
    )


def multiply(rows: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    """rows (…, N, I) @ matrix (…, I, O) + bias (O)."""
    if by_numpy(rows):
        answers = torch.from_numpy(np.matmul(rows.numpy(), matrix.numpy()))
        return answers if bias is None else answers.add_(bias)
    return torch.matmul(rows, matrix) if bias is None else torch.addmm(bias, rows, matrix)
