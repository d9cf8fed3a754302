"""Limits of the studio: a request above a limit is refused and never truncated."""

from __future__ import annotations

URL_BYTES = 8192
BODY_BYTES = 1 << 18
HEAD_BYTES = 1 << 15
"""Maximum size of a request line with its headers, in bytes."""

INPUT_CHARACTERS = 20_000
EXAMPLES = 2048
ALTERNATIVES = 50
BEAMS = 64
"""Maximum number of beams in a beam search."""
COMPARED_RUNS = 64

CONNECTIONS = 256
REQUESTS = 64
"""Maximum number of concurrent requests."""
QUEUED_JOBS = 16
"""Maximum number of jobs that wait for the model worker, which runs one job at a time."""
FILE_THREADS = 4

HEAD_SECONDS = 10.0
BODY_SECONDS = 20.0
IDLE_SECONDS = 15
WRITE_SECONDS = 30.0
RETRY_SECONDS = 2

TABLE_CELLS = 2_000_000
"""Maximum number of lines in an exported CSV table. A line is a cell, and a map of 1,400 tokens fits."""
MAPS_BYTES = 1 << 30
LOADED_RUNS = 4
CACHED_STATISTICS = 64
EVENTS_BYTES = 64 << 20
"""Maximum number of bytes of an event log that one reply reads."""
STEPS = 12_000
"""Maximum number of step events in one reply. A curve has fewer pixels."""
PREVIEW_BYTES = 16 << 20
"""Maximum number of bytes that the preview reads of one data file."""
PREVIEW_SECONDS = 3.0
PREVIEW_ROWS = 5
PREVIEW_CHARACTERS = 200
"""Maximum number of characters that the preview shows of one value."""
PREVIEW_COLUMNS = 30
PREVIEW_CLASSES = 20
CONCURRENT_TRAININGS = 8
"""Maximum number of training runs that the studio keeps running at the same time."""
COLOURS = 8
"""Number of line colours of runs in a chart. Each is used solid first, and dashed if there are more runs."""
