"""Limits of HTTP requests: a request above a limit is refused and never truncated."""

from __future__ import annotations

URL_BYTES = 8192
BODY_BYTES = 1 << 18
HEAD_BYTES = 1 << 15
"""Maximum size of a request line with its headers, in bytes."""

CONNECTIONS = 256
REQUESTS = 64
"""Maximum number of concurrent requests."""

HEAD_SECONDS = 10.0
BODY_SECONDS = 20.0
IDLE_SECONDS = 15
WRITE_SECONDS = 30.0
DISCARD_BYTES = 1 << 25
DISCARD_SECONDS = 3.0
"""Limits of a body that is read only to be thrown away, so that the client gets the reply that refuses it."""
RETRY_SECONDS = 2
