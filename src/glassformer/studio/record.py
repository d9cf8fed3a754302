"""A run's record, read as it grows: what came after a byte, whole lines only.

A resumed run cuts its record back to its checkpoint and writes on. A reader who had read further begins
again: the record is shorter than what was read, or what stands before the byte is not what stood there.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import IO, Any

from glassformer.studio import limits

MARK_BYTES = 512
TAIL_BYTES = 1 << 14


def read_after(path: Path, after: int, mark: str | None, most: int = limits.EVENTS_BYTES) -> dict[str, Any]:
    """The events from byte `after` on; `mark` is what the reply that ended there had."""
    try:
        with open(path, "rb") as file:
            is_cut = after > 0 and not _continues(file, after, mark)
            if is_cut:
                return {"events": [], "next": 0, "mark": None, "restart": True, "more": True}
            file.seek(after)
            data = file.read(most)
            end = after + data.rfind(b"\n") + 1  # the last line may be half written
            is_more = len(data) == most
            return {
                "events": _events(data[: end - after]),
                "next": end,
                "mark": _mark(file, end),
                "restart": False,
                "more": is_more and end > after,
            }
    except FileNotFoundError:
        return {"events": [], "next": 0, "mark": None, "restart": after > 0, "more": False}


def _continues(file: IO[bytes], after: int, mark: str | None) -> bool:
    if os.fstat(file.fileno()).st_size < after:
        return False
    file.seek(after - 1)
    return file.read(1) == b"\n" and mark in (None, _mark(file, after))


def _mark(file: IO[bytes], end: int) -> str | None:
    """Tells what stands before a byte: equal runs write equal lines but for their clocks."""
    if end == 0:
        return None
    start = max(0, end - MARK_BYTES)
    file.seek(start)
    return hashlib.sha256(file.read(end - start)).hexdigest()[:16]


def _events(data: bytes) -> list[dict[str, Any]]:
    found = []
    for line in data.splitlines():
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            found.append(event)
    return found


def last_event(path: Path, kind: str) -> dict[str, Any] | None:
    """The last of a kind near the end of the record."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - TAIL_BYTES))
            data = file.read(TAIL_BYTES)
    except OSError:
        return None
    for event in reversed(_events(data[: data.rfind(b"\n") + 1])):
        if event.get("event") == kind:
            return event
    return None
