"""A run's record, read as it grows: what came after a byte, whole lines only.

A resumed run cuts its record back to its checkpoint and writes on. A reader who had read further begins
again: the record is shorter than what was read, or what stands before the byte is not what stood there.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from glassformer.studio import limits

MARK_BYTES = 512
TAIL_BYTES = 1 << 14
STEP = b'{"event": "step"'
"""As `EventLog` writes it; a step that is written otherwise is never left out."""
LOSS = re.compile(rb'"loss": (-?[0-9.]+(?:e[-+]?[0-9]+)?|NaN|-?Infinity)')


def read_after(
    path: Path,
    after: int,
    mark: str | None,
    *,
    most_steps: int = limits.STEPS,
    most_bytes: int = limits.EVENTS_BYTES,
) -> dict[str, Any]:
    """The events from byte `after` on; `mark` is what the reply that ended there had."""
    try:
        with open(path, "rb") as file:
            if after > 0 and not _continues(file, after, mark):
                return _reply([], 0, None, is_cut=True, is_more=True)
            file.seek(after)
            data = file.read(most_bytes)
            end = after + data.rfind(b"\n") + 1  # the last line may be half written
            is_more = len(data) == most_bytes and end > after
            lines = _thinned(data[: end - after].splitlines(), most_steps)
            return _reply(_events(lines), end, _mark(file, end), is_more=is_more)
    except FileNotFoundError:
        return _reply([], 0, None, is_cut=after > 0)


def _reply(
    events: list[dict[str, Any]],
    end: int,
    mark: str | None,
    *,
    is_cut: bool = False,
    is_more: bool = False,
) -> dict[str, Any]:
    return {"events": events, "next": end, "mark": mark, "restart": is_cut, "more": is_more}


def _thinned(lines: list[bytes], most_steps: int) -> list[bytes]:
    """Of a long record a part of the steps, from which no spike is missing; all else stays.

    Of each stretch of steps there are the first one, and those with the smallest and the largest loss.
    """
    steps = [number for number, line in enumerate(lines) if line.startswith(STEP)]
    if len(steps) <= most_steps:
        return lines
    dropped = set(steps[:-1])
    stretch = -(-3 * len(steps) // most_steps)
    for start in range(0, len(steps), stretch):
        here = steps[start : start + stretch]
        losses = [_loss(lines[number]) for number in here]
        dropped -= {here[0], here[losses.index(min(losses))], here[losses.index(max(losses))]}
    return [line for number, line in enumerate(lines) if number not in dropped]


def _loss(line: bytes) -> float:
    """What is no number is the largest of all."""
    match = LOSS.search(line)
    loss = float(match[1]) if match else math.nan
    return math.inf if math.isnan(loss) else loss


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


def _events(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    found = []
    for line in lines:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            found.append(event)
    return found


def last_event(path: str | Path, kind: str) -> dict[str, Any] | None:
    """The last of a kind near the end of the record."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - TAIL_BYTES))
            data = file.read(TAIL_BYTES)
    except OSError:
        return None
    for line in reversed(data[: data.rfind(b"\n") + 1].splitlines()):
        for event in _events([line]):
            if event.get("event") == kind:
                return event
    return None
