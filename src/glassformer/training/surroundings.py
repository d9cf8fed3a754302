"""What a run has around it: where it saves and records, whom it tells, who may stop it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from glassformer.training.checkpoints import CheckpointStore
from glassformer.training.distributed import Ranks
from glassformer.training.events import EventLog
from glassformer.training.progress import Reporter
from glassformer.training.state import TrainingState
from glassformer.training.watch import Watch


@dataclass
class Surroundings:
    """What a run has around it; every part may be left out."""

    store: CheckpointStore | None = None
    events: EventLog | None = None
    reporter: Reporter = field(default_factory=Reporter)
    heartbeat: Callable[[TrainingState], None] = lambda state: None
    stop_requested: Callable[[], bool] = lambda: False
    watch: Watch | None = None
    """Asked before the first step, whenever it is due, and after the last."""
    ranks: Ranks = field(default_factory=Ranks)
    """The processes that train together; of several, only one has events and somebody to report to."""
