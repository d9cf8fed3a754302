"""What the routes share while the studio runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response

from glassformer.studio import limits
from glassformer.studio.commands import Commands
from glassformer.studio.folder import RunsFolder
from glassformer.studio.kept import Kept
from glassformer.studio.map_store import MapStore
from glassformer.studio.replies import json_reply
from glassformer.studio.trainings import Trainings
from glassformer.studio.work import LoadedRuns, Worker

Result = TypeVar("Result")


@dataclass
class Studio:
    folder: RunsFolder
    plugins: Sequence[Path] = ()
    """Files with kinds of the user's own, which trainings started here load too, and shown commands name."""
    worker: Worker = field(default_factory=Worker)
    trainings: Trainings = field(init=False)
    commands: Commands = field(init=False)
    loaded: LoadedRuns = field(default_factory=LoadedRuns)
    maps: MapStore = field(default_factory=MapStore)
    introductions: Kept[Any] = field(default_factory=lambda: Kept(limits.STATISTICS_KEPT))
    heads: Kept[Any] = field(default_factory=lambda: Kept(limits.STATISTICS_KEPT))
    _files: anyio.CapacityLimiter | None = None

    def __post_init__(self) -> None:
        self.trainings = Trainings(self.folder, self.plugins)
        self.commands = Commands(self.plugins)

    async def reply(
        self, request: Request, work: Callable[..., Any], *arguments: Any, status: int = 200
    ) -> Response:
        """What `work` gives, as JSON, all of it made in a thread."""
        return await self.read(lambda: json_reply(request, work(*arguments), status))

    async def ask_model(self, request: Request, work: Callable[..., Any], *arguments: Any) -> Response:
        """The same, by the worker."""
        return await self.worker.run(lambda: json_reply(request, work(*arguments)), request)

    async def read(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Files and pictures: in a thread, so that nobody waits for a disk but who asked."""
        if self._files is None:
            self._files = anyio.CapacityLimiter(limits.FILE_THREADS)
        return await anyio.to_thread.run_sync(partial(work, *arguments), limiter=self._files)
