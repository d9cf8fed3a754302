"""Limits of the studio. A request above a limit is refused, never truncated."""

from __future__ import annotations

URL_BYTES = 8192
BODY_BYTES = 1 << 18
HEAD_BYTES = 1 << 15
"""Bytes of a request line with its headers."""

INPUT_CHARACTERS = 20_000
EXAMPLES = 2048
ALTERNATIVES = 50
BEAMS = 64
"""Size of a beam search."""
COMPARED_RUNS = 64

CONNECTIONS = 256
REQUESTS = 64
"""Concurrent requests."""
QUEUED_JOBS = 16
"""Jobs that wait for a model; one runs at a time."""
FILE_THREADS = 4

HEAD_SECONDS = 10.0
BODY_SECONDS = 20.0
IDLE_SECONDS = 15
WRITE_SECONDS = 30.0
RETRY_SECONDS = 2

TABLE_CELLS = 2_000_000
"""Lines of an exported table, one per cell: enough for one map of 1,400 tokens."""
MAPS_BYTES = 1 << 30
LOADED_RUNS = 4
CACHED_STATISTICS = 64
EVENTS_BYTES = 64 << 20
"""Bytes of an event log that one reply reads."""
STEPS = 12_000
"""Step events in one reply: more than a curve has pixels."""
CONCURRENT_TRAININGS = 8
"""Running trainings that this studio started."""
