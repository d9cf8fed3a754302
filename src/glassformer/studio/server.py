"""HTTP server of the studio: listening socket, link for the browser, and shutdown."""

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
    """Return a listening socket on this port, or on the first free port from `DEFAULT_PORT` on."""
    candidates = [port] if port is not None else [*range(DEFAULT_PORT, DEFAULT_PORT + PORTS_TRIED), 0]
    for candidate in candidates:
        try:
            family, _, _, _, address = socket.getaddrinfo(host, candidate, type=socket.SOCK_STREAM)[0]
            return socket.create_server(address[:2], family=family, backlog=limits.CONNECTIONS)
        except socket.gaierror as error:
            raise user_error(
                f"the address cannot be resolved: {error.strerror}",
                path="--host",
                value=host,
                hint="--host 127.0.0.1",
            ) from None
        except OSError as error:
            if error.errno == errno.EADDRINUSE and candidate != candidates[-1]:
                continue
            raise _cannot_listen(error, host, candidate) from None
    raise AssertionError("the last candidate listens or is refused")


def _cannot_listen(error: OSError, host: str, port: int) -> Exception:
    if error.errno == errno.EADDRINUSE:
        return user_error(
            "another program uses this port",
            path="--port",
            value=port,
            hint="use --port 0, which picks a free port",
        )
    if error.errno == errno.EACCES:
        return user_error(
            "no permission to listen on this port", path="--port", value=port, hint="--port 8770"
        )
    return user_error(
        f"cannot listen on this address: {error.strerror or error}",
        path="--host",
        value=f"{host}:{port}",
        hint="--host 127.0.0.1",
    )


@dataclass
class Server:
    """HTTP server. It listens from construction on, and `serve` runs until the process gets a signal."""

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
        """Link for the browser. The token is in the fragment, which browsers never send to a server."""
        host = self.admission.host
        if host in ("0.0.0.0", "::"):
            host = socket.gethostname()
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{self.port}/#token={self.admission.token}"

    def serve(self, *, opens_browser: bool) -> None:
        if opens_browser:
            # In a thread, because some browsers block until they are closed.
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
