"""Limits of the studio: a request above a limit is refused and never truncated."""

from __future__ import annotations

INPUT_CHARACTERS = 20_000
EXAMPLES = 2048
ALTERNATIVES = 50
BEAMS = 64
"""Maximum number of beams in a beam search."""
COMPARED_RUNS = 64

QUEUED_JOBS = 16
"""Maximum number of jobs that wait for the model worker, which runs one job at a time."""
FILE_THREADS = 4

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
