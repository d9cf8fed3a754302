"""Access control for every request: connection limits, allowed hosts and origins, token, response headers.

Everything is denied by default. A page of another site can neither read nor act here, because it fails three
checks: the host name (Host, against DNS rebinding), the origin (Origin, Sec-Fetch-Site), and the token.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import re
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import h11
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from glassformer.web import limits
from glassformer.web.messages import Refusal, error_reply, refusal

FULL = (
    "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n"
    f"Retry-After: {limits.RETRY_SECONDS}\r\n\r\n"
).encode()


class Connection(H11Protocol):
    """Uvicorn connection with two more timeouts: for receiving a request's head, and for sending a reply."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > limits.CONNECTIONS:
            transport.write(FULL)
            transport.close()
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop(self._head_timer)
        self._stop(self._write_timer)
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:  # the head of the next request is incomplete
            self._await_head()
        else:
            self._stop(self._head_timer)
            self._head_timer = None

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(limits.HEAD_SECONDS, self.transport.abort)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._await_head()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop(self._write_timer)
        self._write_timer = self.loop.call_later(limits.WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop(self._write_timer)
        self._write_timer = None
        super().resume_writing()

    @staticmethod
    def _stop(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()


# Inline styles are forbidden too: the page ships the stylesheet that plotly would otherwise inject.
POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "font-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}

HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?", re.ASCII)
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Admission:
    """Access rules of a server: its token, the host names that it answers to, and sizes of requests."""

    token: str | None
    """Token that requests must have; None if they need none."""
    host: str = "127.0.0.1"
    """Address that the server listens on."""
    public_url: str | None = None
    """Address of a proxy before the server, such as `https://models.example.org`, in small letters."""
    api: str = "/api/"
    """Prefix of the URL paths that need the token."""
    public: frozenset[str] = frozenset()
    """URL paths below `api` that need no token, because they contain nothing of the user's."""
    self_checked: frozenset[str] = frozenset()
    """URL paths whose handlers check the token, because clients may send it in the body."""
    health: str = "/api/health"
    """URL path of the health check, which needs no token on loopback."""
    hint: str = "open the link that the terminal printed"
    """Hint for a client that is refused."""
    body_bytes: int = limits.BODY_BYTES
    requests: int = limits.REQUESTS
    """Maximum number of concurrent requests."""
    names: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        own = [] if self.is_loopback else [self.host.lower(), socket.gethostname().lower()]
        own += [urlsplit(self.public_url).hostname or ""] if self.public_url else []
        object.__setattr__(self, "names", frozenset([*LOOPBACK_NAMES, *own]))

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)

    def is_own_origin(self, origin: str, host: str) -> bool:
        """Return True if an Origin header names a page of this server, or of the proxy before it."""
        return origin.lower() in (f"http://{host.lower()}", self.public_url)

    def knows(self, host: str) -> bool:
        """Return True if a Host header names this server. Any port is accepted, as with tunnels (ssh -L)."""
        match = HOST.fullmatch(host.lower())
        if match is None or not 0 < int(match["port"] or 80) < 1 << 16:
            return False
        name = match["name"].strip("[]").rstrip(".")
        if name in self.names:
            return True
        # DNS rebinding needs a name; an address cannot be pointed elsewhere.
        return not self.is_loopback and _is_address(name)

    def needs_token(self, path: str) -> bool:
        """Return True if a URL path needs the token: the whole API, except the health check on loopback."""
        is_open = self.token is None or (path == self.health and self.is_loopback)
        return self.is_api(path) and not is_open and path not in self.self_checked

    def is_api(self, path: str) -> bool:
        """Return True if a URL path is part of the API, which pages of other sites must not request."""
        return path.startswith(self.api) and path not in self.public


def is_loopback(host: str) -> bool:
    return host in LOOPBACK_NAMES or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Gate:
    """ASGI middleware that checks every request and adds the security headers to every reply."""

    def __init__(
        self,
        app: ASGIApp,
        admission: Admission,
        reply: Callable[[str, Refusal], Response] = lambda path, refused: error_reply(refused),
    ) -> None:
        """Guard an application. `reply` returns the reply for a refused request to a URL path."""
        self.app = app
        self.admission = admission
        self._reply = reply
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        guarded = _with_headers(scope, send)
        try:
            self._check(scope)
            if self._in_flight >= self.admission.requests and scope["path"] != self.admission.health:
                raise refusal(
                    503,
                    "too many concurrent requests",
                    retry_after=limits.RETRY_SECONDS,
                    hint="repeat the request",
                )
        except Refusal as refused:
            if refused.status == 413 and "expect" not in Headers(scope=scope):
                await _discard(receive)
            await self._reply(scope["path"], refused)(scope, receive, guarded)
            return
        self._in_flight += 1
        try:
            await self.app(scope, _counted(receive, self.admission.body_bytes), guarded)
        finally:
            self._in_flight -= 1

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        length = len(scope.get("raw_path") or b"") + len(scope.get("query_string", b""))
        if length > limits.URL_BYTES:
            raise refusal(
                414, "the URL is too long", value=length, hint=f"use at most {limits.URL_BYTES:,} bytes"
            )
        host = self._check_host(headers)
        self._check_origin(headers, host, scope["path"])
        if self.admission.needs_token(scope["path"]):
            self._check_token(headers.getlist("authorization"))
        _check_length(headers.getlist("content-length"), self.admission.body_bytes)

    def _check_host(self, headers: Headers) -> str:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self.admission.knows(hosts[0]):
            raise refusal(
                421,
                "this is not the server's address",
                path="Host",
                value=", ".join(hosts),
                hint=self.admission.hint,
            )
        return hosts[0]

    def _check_origin(self, headers: Headers, host: str, path: str) -> None:
        origins = headers.getlist("origin")
        # A link on another site may open the page, whose own requests then have our origin.
        site = headers.get("sec-fetch-site", "none") if self.admission.is_api(path) else "none"
        is_own = all(self.admission.is_own_origin(origin, host) for origin in origins)
        if not is_own or len(origins) > 1 or site not in ("same-origin", "none"):
            raise refusal(
                403,
                "the request comes from another site",
                path="Origin",
                value=", ".join(origins) or site,
                hint=self.admission.hint,
            )

    def _check_token(self, given: Iterable[str]) -> None:
        given = list(given)
        scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        is_right = hmac.compare_digest(
            token.strip().encode("utf-8", "surrogateescape"), (self.admission.token or "").encode()
        )
        if not is_right or scheme.lower() != "bearer":
            refused = refusal(401, "the token is missing or wrong", hint=self.admission.hint)
            refused.headers["WWW-Authenticate"] = "Bearer"
            raise refused


def _check_length(lengths: list[str], body_bytes: int) -> None:
    for length in lengths:
        if not length.isdecimal() or int(length) > body_bytes:
            raise _too_large(length, body_bytes)


def _too_large(size: object, body_bytes: int) -> Refusal:
    refused = refusal(413, "the body is too large", value=size, hint=f"send at most {body_bytes:,} bytes")
    refused.headers["Connection"] = "close"  # to avoid reading the rest of the body
    return refused


def _counted(receive: Receive, body_bytes: int) -> Receive:
    """Wrap `receive` with limits for the size and the duration of a body, whatever its Content-Length is."""
    deadline = asyncio.get_running_loop().time() + limits.BODY_SECONDS
    size, is_whole = 0, False

    async def counted() -> Message:
        nonlocal size, is_whole
        if is_whole:  # the next message is the disconnect, which may come at any time
            return await receive()
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError:
            refused = refusal(408, "the body did not arrive in time", hint="send the request again")
            refused.headers["Connection"] = "close"
            raise refused from None
        size += len(message.get("body", b""))
        is_whole = not message.get("more_body", False)
        if size > body_bytes:
            if not is_whole:
                await _discard(receive)
            raise _too_large(size, body_bytes)
        return message

    return counted


async def _discard(receive: Receive) -> None:
    """Read the rest of a body, within limits.

    If a connection is closed while the client still sends, the client gets a reset instead of the reply.
    """
    size = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(limits.DISCARD_SECONDS):
            while size <= limits.DISCARD_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return


def _with_headers(scope: Scope, send: Send) -> Send:
    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            if "cache-control" not in headers:
                headers["Cache-Control"] = "no-store"
        await send(message)

    return guarded
