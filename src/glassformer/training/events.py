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
"""Event fields with a time or speed, the only ones that differ between two identical runs."""

MAX_LINE_BYTES = 16 << 20
"""Maximum bytes per line. A longer line is read in pieces, which are not valid events."""


class EventLog:
    """Append-only JSONL file with the events of a run. Checkpoints store its size and SHA-256."""

    NO_CHECKSUM: ClassVar[Mapping[str, Any]] = {
        "events_bytes": 0,
        "events_sha256": hashlib.sha256().hexdigest(),
    }
    """Checksum of an empty log."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mirror: Callable[[dict[str, Any]], None] | None = None
        """Function that receives every event after it was written, such as a TensorBoardMirror."""
        self._hashed, self._hash = 0, hashlib.sha256()

    def append(self, kind: str, **fields: Any) -> None:
        """Append one event as one line of JSON."""
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

    def checksum(self) -> Mapping[str, Any]:
        """Return size and SHA-256 of the log as a dict. Only bytes added since the last call are read."""
        self._hashed = self._update(self._hash, self._hashed, self.size())
        return {"events_bytes": self._hashed, "events_sha256": self._hash.hexdigest()}

    def _update(self, digest: Any, start: int, end: int) -> int:
        """Add the log's bytes from `start` to `end` to a digest; return the position that was reached."""
        if start < end and self.path.exists():
            with open(self.path, "rb") as file:
                file.seek(start)
                while start < end and (piece := file.read(min(end - start, 1 << 20))):
                    digest.update(piece)
                    start += len(piece)
        return start

    def restore(self, checksum: Mapping[str, Any], report: Callable[[str], None]) -> None:
        """Truncate the log to the size that a checkpoint recorded, and report damage before that point."""
        self.truncate(checksum["events_bytes"])
        if (damage := self.find_damage(checksum)) is not None:
            report(damage)

    def find_damage(self, checksum: Mapping[str, Any]) -> str | None:
        """Return a message if the log does not match a checkpoint's size and SHA-256, else None."""
        digest, size = hashlib.sha256(), checksum["events_bytes"]
        if self._update(digest, 0, size) == size and digest.hexdigest() == checksum["events_sha256"]:
            return None
        return f"{self.path} was changed after it was written: the curves of this run may be wrong"

    def sync(self) -> None:
        """Flush the log to disk with fsync. Call this before a checkpoint stores the log's checksum."""
        if self.path.exists():
            with open(self.path, "rb") as file:
                os.fsync(file.fileno())

    def truncate(self, size: int) -> None:
        """Truncate the log to `size` bytes. A resumed run writes the removed events again."""
        try:
            if self.size() > size:  # truncating to a larger size would append zeros
                os.truncate(self.path, size)
            self._hashed, self._hash = 0, hashlib.sha256()
        except OSError as error:
            raise storage_error(error, self.path, 0) from error

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield every event as a dict. Skip invalid JSON, such as a line that a crash cut short."""
        for line in read_lines(self.path):
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(event, dict):
                yield event


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a regular file. A line above 16 MiB is split into pieces."""
    if path.is_file():
        with open(path, "rb") as file:
            yield from iter(lambda: file.readline(MAX_LINE_BYTES), b"")


class TensorBoardMirror:
    """Callable that writes the numbers of each event to a TensorBoard folder."""

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
        # Hide events after the checkpoint, which the event log has deleted too.
        self.writer = SummaryWriter(str(folder), purge_step=from_step + 1 if from_step else None)

    def __call__(self, event: Mapping[str, Any]) -> None:
        for name, value in event.items():
            if name not in ("step", "epoch") and isinstance(value, (int, float)):
                self.writer.add_scalar(f"{event['event']}/{name}", value, event.get("step"))
        self.writer.flush()
