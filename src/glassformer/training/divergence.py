"""A loss that a model must not learn from: how it is told, and what is said then."""

from __future__ import annotations

import math

from glassformer.errors import UserError, user_error


class Diverged(Exception):
    """The loss is no number, or jumped; the update was not made."""

    def __init__(self, step: int, reason: str, indices: list[int]) -> None:
        self.step, self.reason, self.indices = step, reason, indices
        super().__init__(f"step {step}: {reason}")

    def advice(self, rate: float) -> UserError:
        shown = ", ".join(map(str, self.indices[:8])) + (" …" if len(self.indices) > 8 else "")
        return user_error(
            f"training diverged at step {self.step}: {self.reason} (examples {shown})",
            place="training.optimizer.learning_rate",
            value=rate,
            remedy=f"learning_rate={rate / 3:.1g}, more schedule.warmup_steps, model.norm_placement=pre,"
            " or divergence.action=roll-back; the last good checkpoint is kept",
        )


def what_is_wrong(loss: float, norm: float, usual: float | None, spike_factor: float | None) -> str | None:
    """None if the model may learn from a batch with this loss and this norm of the gradient."""
    if not math.isfinite(loss):
        return f"the loss is {loss}"
    if not math.isfinite(norm):
        return f"the gradient's norm is {norm}"
    if usual is not None and spike_factor is not None and loss > spike_factor * usual:
        return f"the loss jumped from about {usual:.4g} to {loss:.4g}"
    return None
