"""Fast dropout for CPUs: one 64-bit random number decides about four elements."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

_STEPS = 1 << 16
"""Number of steps of the dropout probability, which is rounded to a multiple of 1/65,536."""

_generator: ContextVar[torch.Generator | None] = ContextVar("generator", default=None)


@contextmanager
def drawing_from(generator: torch.Generator) -> Iterator[None]:
    """Make dropout in this thread draw from `generator`, not the global one, inside a `with` block."""
    token = _generator.set(generator)
    try:
        yield
    finally:
        _generator.reset(token)


class Dropout(nn.Dropout):
    """Drop-in replacement for `nn.Dropout` that is about seven times as fast on a CPU.

    y = gf.nn.Dropout(0.1)(x)
    """

    def forward(self, x: Tensor) -> Tensor:
        """Zero each element with probability `p` in training mode, and scale the others by 1 / (1 − p)."""
        dropped = round(self.p * _STEPS)
        if not self.training or not dropped:
            return x
        if dropped == _STEPS or x.device.type != "cpu" or torch.compiler.is_compiling():
            return super().forward(x)
        draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64)
        draws.random_(-(2**63), None, generator=_generator.get())
        quarters = draws.view(torch.int16)[: x.numel()].view(x.shape)
        # In-place and without a bool tensor: PyTorch converts 16-bit integers five times as fast.
        is_kept = quarters.ge_(dropped - _STEPS // 2).to(x.dtype)
        scale = _STEPS / (_STEPS - dropped)
        if x.dtype.itemsize >= 4:
            return x * is_kept.mul_(scale)
        return x * is_kept * scale  # the scale itself would be rounded in 16 bits
