"""Services of a training run: checkpoint store, event log, reporter, stop signals, process group, probe."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Protocol, Self

from glassformer.models.base import Model
from glassformer.training.checkpoints import CheckpointStore
from glassformer.training.distributed import ProcessGroup
from glassformer.training.events import EventLog
from glassformer.training.progress import Reporter
from glassformer.training.state import TrainingState


class Probe(Protocol):
    """Periodic measurement during training; it changes neither the model nor any random state."""

    @property
    def keeps_snapshots(self) -> bool:
        """True if a snapshot of the weights is kept for each measurement."""
        ...

    def is_due(self, step: int) -> bool:
        """Return True if this step is measured."""
        ...

    def measure(self, model: Model) -> Mapping[str, Any]:
        """Return the fields of a `head_probe` event."""
        ...


class Interrupted(Exception):
    """A stop was requested during work that a resumed run repeats, such as a validation."""


class StopSignals:
    """Context: catch SIGINT and SIGTERM and remember the first; later ones are ignored."""

    def __init__(self, report: Callable[[str], None] = lambda text: None) -> None:
        self.number: int | None = None
        self.report = report
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self.number is None:
            self.number = number
            with contextlib.suppress(RuntimeError):  # reentrant call: the signal interrupted a print
                self.report(f"{signal.Signals(number).name}: finishing this step and saving")

    def is_set(self) -> bool:
        return self.number is not None

    @property
    def exit_code(self) -> int:
        """128 + signal number, or 0 without a signal."""
        return 0 if self.number is None else 128 + self.number


@dataclass
class TrainingContext:
    """Services that a Trainer uses; each is optional."""

    store: CheckpointStore | None = None
    events: EventLog | None = None
    reporter: Reporter = field(default_factory=Reporter)
    heartbeat: Callable[[TrainingState], None] = lambda state: None
    stop_requested: Callable[[], bool] = lambda: False
    probe: Probe | None = None
    """Called before the first step, whenever it is due, and after the last step."""
    process_group: ProcessGroup = field(default_factory=ProcessGroup)
    """Processes that train together; only rank 0 has an event log and a reporter that prints."""
