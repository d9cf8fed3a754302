"""How much of anything the studio takes at once. What is over a limit is refused, never cut short."""

from __future__ import annotations

URL_BYTES = 8192
BODY_BYTES = 1 << 18
HEAD_BYTES = 1 << 15
"""Of a request line with its headers."""

INPUT_CHARACTERS = 20_000
EXAMPLES = 2048
ALTERNATIVES = 50
BRANCHES = 64
"""Of a beam."""
COMPARED_RUNS = 64

CONNECTIONS = 256
REQUESTS = 64
"""Answered at the same time."""
WAITING_JOBS = 16
"""Of a model, one of which is worked on at a time."""
FILE_THREADS = 4

HEAD_SECONDS = 10.0
BODY_SECONDS = 20.0
IDLE_SECONDS = 15
WRITE_SECONDS = 30.0
RETRY_SECONDS = 2

TABLE_CELLS = 2_000_000
"""A map of 1,400 tokens, as a table with a line a cell."""
MAPS_BYTES = 1 << 30
LOADED_RUNS = 4
CACHED_STATISTICS = 64
EVENTS_BYTES = 64 << 20
"""Of a run's record that one reply reads."""
STEPS = 12_000
"""Of a run's record that one reply has: more than a curve has pixels."""
STARTED_AT_ONCE = 8
"""Trainings that were started here and still run."""
