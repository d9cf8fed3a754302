"""One connection to the studio: nobody may hold it without asking, or without reading the answer."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from glassformer.studio import limits

FULL = (
    "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n"
    f"Retry-After: {limits.RETRY_SECONDS}\r\n\r\n"
).encode()


class Connection(H11Protocol):
    """Uvicorn's, with the time limits that it lacks: for a request's head, and for an answer to be read."""

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
        if self.conn.their_state is h11.IDLE:  # of the next request only a part is here
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
