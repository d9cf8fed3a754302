"""Web server on the loopback interface that serves bytes by path, for the tests of downloads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Server:
    """HTTP server of bytes by path. The first responses to a path may be cut short."""

    address: str = ""
    contents: dict[str, bytes] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    """Content types by path."""
    cuts: dict[str, list[int]] = field(default_factory=dict)
    """Number of bytes that the next responses to a path send before the connection closes."""
    ranges: bool = True
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    logins: list[str] = field(default_factory=list)
    """Values of the header `Authorization`, as far as it was sent."""


@contextmanager
def serving() -> Iterator[Server]:
    """Context: a running server."""
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.partition("?")[0].lstrip("/")
            asked = self.headers.get("Range")
            state.asked.append((name, asked))
            state.logins += [self.headers["Authorization"]] if "Authorization" in self.headers else []
            if name not in state.contents:
                self.send_error(404)
                return
            body, start = state.contents[name], 0
            if asked and state.ranges:
                start = int(asked.removeprefix("bytes=").removesuffix("-"))
                if start >= len(body):
                    self.send_error(416)
                    return
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body) - start))
            if name in state.types:
                self.send_header("Content-Type", state.types[name])
            self.end_headers()
            cuts = state.cuts.get(name)
            self.wfile.write(body[start : start + cuts.pop(0)] if cuts else body[start:])

        def log_message(self, format: str, *arguments: object) -> None: ...

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.address = f"http://127.0.0.1:{running.server_port}"
    thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        running.shutdown()
        running.server_close()
