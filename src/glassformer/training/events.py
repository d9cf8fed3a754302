"""Event log of a run: one JSON object per line, optionally mirrored to TensorBoard."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from glassformer.core.errors import user_error
from glassformer.storage.files import ESCAPED, storage_error

CLOCK_FIELDS = frozenset({"elapsed", "seconds", "tokens_per_second", "time"})
"""Fields that a clock writes: the only ones that differ between two equal runs."""


MOST_LINE_BYTES = 16 << 20


class EventLog:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.mirror: Callable[[dict[str, Any]], None] | None = None
        """DataReport every event too, after it is written."""
        self._hashed, self._hash = 0, hashlib.sha256()

    def append(self, kind: str, **fields: Any) -> None:
        event = {"event": kind, **fields}
        line = json.dumps(event, ensure_ascii=False) + "\n"
        try:
            with open(self.path, "ab") as file:
                file.write(line.encode(errors=ESCAPED))
        except OSError as error:
            raise storage_error(error, self.path, len(line)) from error
        if self.mirror is not None:
            self.mirror(event)

    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    NO_SEAL: ClassVar[Mapping[str, Any]] = {"events_bytes": 0, "events_sha256": None}

    def seal(self) -> Mapping[str, Any]:
        """Bytes and SHA-256 of the record as it is now: its beginning must stay the same."""
        if self.size() > self._hashed:
            with open(self.path, "rb") as file:
                file.seek(self._hashed)
                while piece := file.read(1 << 20):
                    self._hash.update(piece)
                    self._hashed += len(piece)
        return {"events_bytes": self._hashed, "events_sha256": self._hash.hexdigest()}

    def cut_back(self, seal: Mapping[str, Any], tell: Callable[[str], None]) -> None:
        """To what a checkpoint knows; what is wrong with that is told."""
        self.truncate(seal["events_bytes"])
        damage = self.damage(seal)
        if damage is not None:
            tell(damage)

    def damage(self, seal: Mapping[str, Any]) -> str | None:
        """What is wrong with what was sealed; a checkpoint of the first versions cannot tell."""
        digest, left, sha256 = hashlib.sha256(), seal["events_bytes"], seal.get("events_sha256")
        if self.path.exists():
            with open(self.path, "rb") as file:
                while left and (piece := file.read(min(left, 1 << 20))):
                    digest.update(piece)
                    left -= len(piece)
        if not left and sha256 in (None, digest.hexdigest()):
            return None
        return f"{self.path} is not what was written: the curves of this run may be wrong"

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
            self._hashed, self._hash = 0, hashlib.sha256()
        except OSError as error:
            raise storage_error(error, self.path, 0) from error

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Every whole line; a line that a crash cut short is passed over."""
        for line in lines_of(self.path):
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(event, dict):
                yield event


def lines_of(path: Path) -> Iterator[bytes]:
    """Of a file that is one; a line longer than any of ours comes in pieces, which are no events."""
    if path.is_file():
        with open(path, "rb") as file:
            yield from iter(lambda: file.readline(MOST_LINE_BYTES), b"")


class TensorBoardMirror:
    def __init__(self, folder: Path, from_step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise user_error(
                "TensorBoard is not installed",
                path="training.tensorboard",
                value=True,
                hint="pip install 'glassformer[tensorboard]'",
            ) from None
        # What a crash left beyond the checkpoint is hidden, as the record forgets it too.
        self.writer = SummaryWriter(str(folder), purge_step=from_step + 1 if from_step else None)

    def __call__(self, event: Mapping[str, Any]) -> None:
        for name, value in event.items():
            if name not in ("step", "epoch") and isinstance(value, (int, float)):
                self.writer.add_scalar(f"{event['event']}/{name}", value, event.get("step"))
        self.writer.flush()
