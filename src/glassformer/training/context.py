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


class Watch(Protocol):
    """Looks, and leaves the model and every random number as they were."""

    @property
    def keeps_weights(self) -> bool:
        """Whether the weights of each look are kept."""
        ...

    def is_due(self, step: int) -> bool: ...

    def look(self, model: Model) -> Mapping[str, Any]:
        """What goes into the record."""
        ...


class Interrupted(Exception):
    """Of something long that can be done anew, since somebody asked to stop."""


class StopSignals:
    """While entered, remembers the first signal. More of them change nothing."""

    def __init__(self, say: Callable[[str], None] = lambda text: None) -> None:
        self.number: int | None = None
        self.say = say
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
            with contextlib.suppress(RuntimeError):  # it came in the middle of another line
                self.say(f"{signal.Signals(number).name}: finishing this step and saving")

    def is_set(self) -> bool:
        return self.number is not None

    @property
    def exit_code(self) -> int:
        return 0 if self.number is None else 128 + self.number


@dataclass
class TrainingContext:
    """What a run has around it; every part may be left out."""

    store: CheckpointStore | None = None
    events: EventLog | None = None
    reporter: Reporter = field(default_factory=Reporter)
    heartbeat: Callable[[TrainingState], None] = lambda state: None
    stop_requested: Callable[[], bool] = lambda: False
    watch: Watch | None = None
    """Asked before the first step, whenever it is due, and after the last."""
    process_group: ProcessGroup = field(default_factory=ProcessGroup)
    """The processes that train together; of several, only one has events and somebody to report to."""
