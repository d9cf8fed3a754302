"""The record of a run: append-only JSON lines. What a checkpoint has not seen is cut off on resume."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from glassformer.training.files import storage_error

CLOCK_FIELDS = frozenset({"elapsed", "seconds", "tokens_per_second", "time"})
"""Fields that a clock writes: the only ones that differ between two equal runs."""


class EventLog:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.mirror: Callable[[dict[str, Any]], None] | None = None
        """Told every event too, after it is written."""

    def append(self, kind: str, **fields: Any) -> None:
        event = {"event": kind, **fields}
        line = json.dumps(event, ensure_ascii=False) + "\n"
        try:
            with open(self.path, "ab") as file:
                file.write(line.encode())
        except OSError as error:
            raise storage_error(error, self.path, len(line)) from error
        if self.mirror is not None:
            self.mirror(event)

    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def sync(self) -> None:
        """Before a checkpoint refers to it, the record is on the disk."""
        if self.path.exists():
            with open(self.path, "rb") as file:
                os.fsync(file.fileno())

    def truncate(self, size: int) -> None:
        """Forget what came after a checkpoint: it will happen again."""
        try:
            if self.size() > size:  # a longer size would fill up with zeros
                os.truncate(self.path, size)
        except OSError as error:
            raise storage_error(error, self.path, 0) from error

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Every whole line; a line that a crash cut short is passed over."""
        if not self.path.exists():
            return
        with open(self.path, "rb") as file:
            for line in file:
                try:
                    event = json.loads(line)
                except ValueError:
                    continue
                if isinstance(event, dict):
                    yield event
