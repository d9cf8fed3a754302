"""The studio on a socket: which port, who may reach it, and its end."""

from __future__ import annotations

import errno
import logging
import socket
import threading
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn

from glassformer.core.errors import user_error
from glassformer.studio import limits
from glassformer.studio.app import Studio, create_app, plotly_path
from glassformer.studio.gate import Admission, Connection
from glassformer.studio.runs import RunsFolder

DEFAULT_PORT = 8770
PORTS_TRIED = 20
SHUTDOWN_SECONDS = 2
LOG_LEVEL = logging.ERROR


def listen(host: str, port: int | None) -> socket.socket:
    """A socket that listens; without a port, at the first free one from the usual one on."""
    candidates = [port] if port is not None else [*range(DEFAULT_PORT, DEFAULT_PORT + PORTS_TRIED), 0]
    for candidate in candidates:
        try:
            family, _, _, _, address = socket.getaddrinfo(host, candidate, type=socket.SOCK_STREAM)[0]
            return socket.create_server(address[:2], family=family, backlog=limits.CONNECTIONS)
        except socket.gaierror as error:
            raise user_error(
                f"no such address: {error.strerror}", path="--host", value=host, hint="--host 127.0.0.1"
            ) from None
        except OSError as error:
            if error.errno == errno.EADDRINUSE and candidate != candidates[-1]:
                continue
            raise _cannot_listen(error, host, candidate) from None
    raise AssertionError("the last candidate listens or is refused")


def _cannot_listen(error: OSError, host: str, port: int) -> Exception:
    if error.errno == errno.EADDRINUSE:
        return user_error(
            "another program listens there", path="--port", value=port, hint="--port 0 takes a free one"
        )
    if error.errno == errno.EACCES:
        return user_error("may not listen there", path="--port", value=port, hint="a port from 1024 on")
    return user_error(
        f"cannot listen there: {error.strerror or error}",
        path="--host",
        value=f"{host}:{port}",
        hint="--host 127.0.0.1",
    )


@dataclass
class Server:
    """Listens from the beginning; `serve` answers until a signal ends it."""

    runs: Path
    admission: Admission
    port: int | None = None
    plugins: Sequence[Path] = ()
    socket: socket.socket = field(init=False)
    studio: Studio = field(init=False)

    def __post_init__(self) -> None:
        plotly_path()
        self.studio = Studio(RunsFolder(self.runs), tuple(self.plugins))
        self.socket = listen(self.admission.host, self.port)
        self.port = self.socket.getsockname()[1]

    @property
    def link(self) -> str:
        """With the token behind the #, which no browser sends to anybody."""
        host = self.admission.host
        if host in ("0.0.0.0", "::"):
            host = socket.gethostname()
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{self.port}/#token={self.admission.token}"

    def serve(self, *, opens_browser: bool) -> None:
        if opens_browser:
            # In a thread: some browsers return only when they are closed.
            threading.Thread(target=webbrowser.open, args=(self.link,), daemon=True).start()
        try:
            self.uvicorn().run(sockets=[self.socket])
        finally:
            self.studio.worker.stop()
            self.socket.close()

    def uvicorn(self) -> uvicorn.Server:
        logging.getLogger("uvicorn.error").setLevel(LOG_LEVEL)
        return uvicorn.Server(
            uvicorn.Config(
                create_app(self.studio, self.admission),
                http=Connection,
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=limits.IDLE_SECONDS,
                timeout_graceful_shutdown=SHUTDOWN_SECONDS,
                h11_max_incomplete_event_size=limits.HEAD_BYTES,
            )
        )
