"""The record of a run: append-only JSON lines. What a checkpoint has not seen is cut off on resume."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from glassformer.training.files import storage_error

CLOCK_FIELDS = frozenset({"seconds", "tokens_per_second", "time"})
"""Fields that a clock writes: the only ones that differ between two equal runs."""


class EventLog:
    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, kind: str, **fields: Any) -> None:
        line = json.dumps({"event": kind, **fields}, ensure_ascii=False) + "\n"
        try:
            with open(self.path, "ab") as file:
                file.write(line.encode())
        except OSError as error:
            raise storage_error(error, self.path, len(line)) from error

    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def sync(self) -> None:
        """Before a checkpoint refers to it, the record is on the disk."""
        if self.path.exists():
            with open(self.path, "rb") as file:
                os.fsync(file.fileno())

    def truncate(self, size: int) -> None:
        """Forget what came after a checkpoint: it will happen again."""
        if self.path.exists():
            os.truncate(self.path, size)

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
