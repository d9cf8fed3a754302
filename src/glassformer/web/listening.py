"""Listening socket of a server, its address as a link, and the settings of uvicorn."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket

import uvicorn
from starlette.types import ASGIApp

from glassformer.core.errors import user_error
from glassformer.web import limits
from glassformer.web.gate import Connection

PORTS_TRIED = 20
LOG_LEVEL = logging.ERROR


def listen(host: str, port: int | None, first: int) -> socket.socket:
    """Return a listening socket on this port, or on the first free port from `first` on."""
    candidates = [port] if port is not None else [*range(first, first + PORTS_TRIED), 0]
    for candidate in candidates:
        try:
            family, _, _, _, address = socket.getaddrinfo(host, candidate, type=socket.SOCK_STREAM)[0]
            found = socket.create_server(address[:2], family=family, backlog=limits.CONNECTIONS)
            # Accepted connections inherit it. Else each reply on a kept connection waits 40 ms for an ACK.
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return found
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
            raise _cannot_listen(error, host, candidate, first) from None
    raise AssertionError("the last candidate listens or is refused")


def _cannot_listen(error: OSError, host: str, port: int, first: int) -> Exception:
    if error.errno == errno.EADDRINUSE:
        return user_error(
            "another program uses this port",
            path="--port",
            value=port,
            hint="use --port 0, which picks a free port",
        )
    if error.errno == errno.EACCES:
        return user_error(
            "no permission to listen on this port", path="--port", value=port, hint=f"--port {first}"
        )
    return user_error(
        f"cannot listen on this address: {error.strerror or error}",
        path="--host",
        value=f"{host}:{port}",
        hint="--host 127.0.0.1",
    )


def address(host: str, port: int) -> str:
    """Return the URL of a server. The address of all interfaces is replaced by the machine's name."""
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def _is_error(record: logging.LogRecord) -> bool:
    """Return False for what a shutdown logs about the requests that it cancels."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, asyncio.CancelledError) and "graceful shutdown" not in record.getMessage()


def make_uvicorn(app: ASGIApp, shutdown_seconds: int) -> uvicorn.Server:
    """Return a server for an application. At shutdown it waits this long for open requests."""
    log = logging.getLogger("uvicorn.error")
    log.setLevel(LOG_LEVEL)
    log.addFilter(_is_error)
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=limits.IDLE_SECONDS,
            timeout_graceful_shutdown=shutdown_seconds,
            h11_max_incomplete_event_size=limits.HEAD_BYTES,
        )
    )
