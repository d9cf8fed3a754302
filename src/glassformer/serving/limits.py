"""Limits of `serve`: a request above a limit is refused and never truncated."""

from __future__ import annotations

from dataclasses import dataclass

BODY_BYTES = 1 << 20
INPUTS = 256
"""Maximum number of inputs, prompts or texts of one request."""
INPUT_CHARACTERS = 20_000
BEAMS = 64
ALTERNATIVES = 10
"""Maximum number of alternative translations of one text."""
NEW_TOKENS = 4096
CHOICES = 16
"""Maximum number of completions of one prompt (`n`)."""
STOPS = 8
STOP_CHARACTERS = 200
CELLS = 1_000_000
"""Maximum number of attention weights in one reply."""


@dataclass(frozen=True)
class Settings:
    """Settings of the server that a user can change on the command line."""

    max_batch: int = 32
    """Maximum number of inputs, or of sequences that are generated, in one batch."""
    max_wait_ms: float = 5.0
    """Time that a batch waits for the clients of the batch before it."""
    queue: int = 512
    """Maximum number of inputs that wait for one model."""
    body_bytes: int = BODY_BYTES
    threads: int = 1
    """Number of PyTorch threads per model."""
    drain_seconds: int = 30
    """Time for open requests to finish at shutdown."""
