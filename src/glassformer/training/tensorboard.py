"""The record of a run, mirrored as TensorBoard events for those who like to look there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glassformer.errors import user_error


class TensorBoardMirror:
    def __init__(self, folder: Path, from_step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise user_error(
                "TensorBoard is not installed",
                place="training.tensorboard",
                value=True,
                remedy="pip install 'glassformer[tensorboard]'",
            ) from None
        # What a crash left beyond the checkpoint is hidden, as the record forgets it too.
        self.writer = SummaryWriter(str(folder), purge_step=from_step + 1 if from_step else None)

    def __call__(self, event: Mapping[str, Any]) -> None:
        for name, value in event.items():
            if name not in ("step", "epoch") and isinstance(value, (int, float)):
                self.writer.add_scalar(f"{event['event']}/{name}", value, event.get("step"))
        self.writer.flush()
