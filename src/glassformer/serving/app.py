"""Server of trained models: the ASGI application with its routes, and the listening server."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from glassformer import __version__
from glassformer.core.errors import ErrorDetail, UserError
from glassformer.generation import DecodingConfig
from glassformer.inspection.maps import CAPTION, AttentionMaps
from glassformer.serving import limits, translation
from glassformer.serving.batching import Call, Prediction, model_failure
from glassformer.serving.completions import CompletionRequest
from glassformer.serving.limits import Settings
from glassformer.serving.messages import AttentionBody, CompletionBody, InvalidBody, PredictBody, read
from glassformer.serving.metrics import Metrics
from glassformer.serving.openapi import openapi_document
from glassformer.serving.served import ServedRun
from glassformer.storage.files import json_text
from glassformer.web.gate import Admission, Gate
from glassformer.web.limits import CONNECTIONS
from glassformer.web.listening import address, listen, make_uvicorn
from glassformer.web.messages import (
    Refusal,
    bytes_reply,
    error_document,
    file_reply,
    json_reply,
    refusal,
    static_file,
)

Result = TypeVar("Result")
DEFAULT_PORT = 8780
STATIC = frozenset(f"/static/{name}" for name in ("try.js", "try.css", "scale.css", "mark.svg"))
WEIGHT_DIGITS = 6
"""Number of decimals of an attention weight in a reply."""
ERROR_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
"""Error types by HTTP status, as OpenAI names them; others are an invalid request or a server error."""
UNSUPPORTED = "unsupported_by_model"
"""Error code of a request that is valid, but not for this model, such as a text that it cannot read."""


@dataclass
class Service:
    """State that all routes share: the served runs by name, settings, metrics and the token."""

    runs: Mapping[str, ServedRun]
    settings: Settings = field(default_factory=Settings)
    metrics: Metrics = field(default_factory=Metrics)
    token: str | None = None
    cut_off: int = 0
    """Number of requests that the shutdown ended before their reply was complete."""

    def find(self, name: str | None, path: str = "run") -> ServedRun:
        """Return the run of this name; without a name, the only run."""
        if name is None and len(self.runs) == 1:
            return next(iter(self.runs.values()))
        if name is None:
            raise InvalidBody(
                ErrorDetail("several runs are served: name one", path=path, allowed=list(self.runs))
            )
        if name not in self.runs:
            raise refusal(
                404,
                "no run of this name is served",
                path=path,
                value=name,
                allowed=list(self.runs),
                hint="GET /v1/models lists the served runs",
            )
        return self.runs[name]

    def stop(self, seconds: float = 5.0) -> None:
        """End the worker threads. All requests have ended, so at most a batch without a client still runs."""
        for wait in (0.0, seconds):
            for served in self.runs.values():
                served.batcher.stop(wait)

    async def predict(
        self, request: Request, served: ServedRun, inputs: Sequence[Any], decoding: DecodingConfig
    ) -> list[dict[str, Any]]:
        """Return the predictions for the inputs of one request, computed together with those of others."""
        job = Prediction(list(inputs), decoding)
        served.batcher.submit(job)
        found = await wait_for(job.future, request)
        return served.describe(inputs, found)


async def wait_for(future: Future[Result], request: Request) -> Result:
    """Wait for a result of a worker thread. If the client disconnects first, cancel the waiting job."""
    result = asyncio.wrap_future(future)
    disconnect = asyncio.ensure_future(_disconnected(request))
    both: list[asyncio.Future[Any]] = [result, disconnect]
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        disconnect.cancel()
        if not result.done():
            result.cancel()
    if result.cancelled():
        raise refusal(499, "the client has disconnected")
    return result.result()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def index(service: Service, request: Request) -> Response:
    return file_reply(request, static_file(__package__ or "", "index.html"))


async def static(service: Service, request: Request) -> Response:
    return file_reply(request, static_file(__package__ or "", request.path_params["name"]))


async def health(service: Service, request: Request) -> Response:
    return json_reply(request, {"status": "ok", "version": __version__, "runs": len(service.runs)})


async def metrics(service: Service, request: Request) -> Response:
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")


async def openapi(service: Service, request: Request) -> Response:
    return json_reply(request, openapi_document(service.runs, has_token=service.token is not None))


async def models(service: Service, request: Request) -> Response:
    return json_reply(
        request, {"object": "list", "data": [served.info() for served in service.runs.values()]}
    )


async def model(service: Service, request: Request) -> Response:
    return json_reply(request, service.find(request.path_params["model"], "model").info())


async def predict(service: Service, request: Request) -> Response:
    body = await read(request, PredictBody)
    served = service.find(body.run)
    inputs = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    found = await service.predict(request, served, inputs, served.decoding(body.decoding))
    return json_reply(request, {"run": served.name, "predictions": found})


async def completions(service: Service, request: Request) -> Response:
    body = await read(request, CompletionBody)
    served = service.find(body.model, "model")
    if not served.completes:
        raise ErrorDetail(
            "this run is not a text language model",
            path="model",
            value=served.name,
            hint="use POST /v1/predict",
        )
    asked = CompletionRequest(served, body)
    asked.submit()
    if body.stream:
        return CompletionStream(asked)
    reply = asyncio.ensure_future(asked.reply())
    disconnect = asyncio.ensure_future(_disconnected(request))
    both: list[asyncio.Future[Any]] = [reply, disconnect]
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not reply.done():
            raise refusal(499, "the client has disconnected")
        return json_reply(request, reply.result())
    finally:
        disconnect.cancel()
        reply.cancel()
        asked.cancel()


class CompletionStream(StreamingResponse):
    """Completion as server-sent events. The model stops at the end of the reply, also if the client left."""

    def __init__(self, asked: CompletionRequest) -> None:
        super().__init__(_streamed(asked), media_type="text/event-stream")
        self.asked = asked

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.asked.cancel()


async def _streamed(asked: CompletionRequest) -> AsyncIterator[str]:
    """Yield the events of a completion. An error becomes an event, because the status is already sent."""
    try:
        async for event in asked.events():
            yield event
    except Refusal as refused:
        yield f"data: {json_text(error_content(refused.status, refused.detail)).strip()}\n\n"


async def attention(service: Service, request: Request) -> Response:
    body = await read(request, AttentionBody)
    served = service.find(body.run)
    call = Call(lambda: _maps(served, body))
    served.batcher.submit(call)
    return bytes_reply(request, await wait_for(call.future, request), "application/json")


def _maps(served: ServedRun, body: AttentionBody) -> bytes:
    """Return the reply as JSON. A large one takes long to encode, so the event loop must not do it."""
    tokens = len(served.task.read_input(body.input)[0])
    if tokens * tokens > limits.CELLS:
        raise _too_many(tokens * tokens, "use a shorter input")
    try:
        maps = served.run.attention(body.input, layers=body.layers, heads=body.heads, site=body.site)
    except ErrorDetail as detail:
        # An error at the path `model` is not one of the request: the logits are NaN.
        raise model_failure(detail.message) if detail.path == "model" else detail from None
    cells = sum(site.weights.size for site in maps.sites.values())
    if cells > limits.CELLS:
        raise _too_many(cells, "choose one layer and one head, such as layers [0] and heads [0]")
    if not all(np.isfinite(site.weights).all() for site in maps.sites.values()):
        raise model_failure("its attention weights are NaN or infinite")
    return json_text(_maps_document(served.name, maps)).encode()


def _too_many(cells: int, hint: str) -> ErrorDetail:
    message = f"the maps have {cells:,} weights, and a reply holds at most {limits.CELLS:,}"
    return ErrorDetail(message, path="input", hint=hint)


def _maps_document(name: str, maps: AttentionMaps) -> dict[str, Any]:
    shown = ("name", "layers", "heads", "queries", "keys", "outputs")
    return {
        "run": name,
        "input": maps.about.get("input", ""),
        "output": maps.about.get("output"),
        "caption": CAPTION,
        "checks": maps.checks.document(),
        "sites": {
            site: {key: getattr(found, key) for key in shown}
            | {"weights": found.weights.astype(float).round(WEIGHT_DIGITS).tolist()}
            for site, found in maps.sites.items()
        },
    }


Handler = Callable[[Service, Request], Awaitable[Response]]

ROUTES: dict[str, dict[str, Handler]] = {
    "/": {"GET": index},
    "/static/{name:path}": {"GET": static},
    "/health": {"GET": health},
    "/metrics": {"GET": metrics},
    "/openapi.json": {"GET": openapi},
    "/v1/models": {"GET": models},
    "/v1/models/{model:path}": {"GET": model},
    "/v1/predict": {"POST": predict},
    "/v1/completions": {"POST": completions},
    "/v1/attention": {"POST": attention},
    "/translate": {"POST": translation.translate},
    "/languages": {"GET": translation.languages},
    "/detect": {"POST": translation.detect},
}
"""Routes of the application: URL path → HTTP method → handler."""


def admission(
    token: str | None,
    host: str = "127.0.0.1",
    settings: Settings | None = None,
    public_url: str | None = None,
) -> Admission:
    """Return the access rules: everything needs the token, if there is one, except the page to try it."""
    return Admission(
        token,
        host,
        public_url=public_url,
        api="/",
        public=frozenset({"/"}) | STATIC,
        self_checked=translation.PATHS,
        health="/health",
        hint="use the address and the token that the terminal printed",
        body_bytes=(settings or Settings()).body_bytes,
        requests=CONNECTIONS,
    )


def create_app(service: Service, rules: Admission, log: Callable[[str], None] | None = None) -> ASGIApp:
    """Return the application. `log` is called with one line per request."""
    service.token = rules.token
    routes = [Route(path, _endpoint(service, each), methods=list(each)) for path, each in ROUTES.items()]
    kinds = (Refusal, UserError, ErrorDetail, HTTPException, Exception)
    app = Starlette(routes=routes, exception_handlers=dict.fromkeys(kinds, _error_handler))
    app.router.redirect_slashes = False
    return Observer(Gate(app, rules, _refusal_reply), service, log)


def _endpoint(service: Service, handlers: dict[str, Handler]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return await handlers["GET" if request.method == "HEAD" else request.method](service, request)

    return endpoint


async def _error_handler(request: Request, error: Exception) -> Response:
    headers: dict[str, str] = {}
    if isinstance(error, HTTPException):
        status = error.status_code
        message = "method not allowed" if status == 405 else "no such endpoint"
        hint = "GET /openapi.json lists the endpoints"
        if request.url.path.startswith("/v1/chat"):
            hint = "these models have no chat template: use /v1/completions"
        detail = ErrorDetail(message, path=request.url.path, value=request.method, hint=hint)
        headers = dict(error.headers or {})
    elif isinstance(error, Refusal):
        return _refusal_reply(request.url.path, error)
    elif isinstance(error, InvalidBody):
        status, detail = 400, error.details[0]
    elif isinstance(error, (UserError, ErrorDetail)):
        detail = error.details[0] if isinstance(error, UserError) else error
        return _refusal_reply(request.url.path, Refusal(400, detail), UNSUPPORTED)
    else:
        traceback.print_exception(error, file=sys.stderr)
        status, detail = (
            500,
            ErrorDetail("the server failed because of a bug", hint="its terminal shows the error"),
        )
    return _refusal_reply(request.url.path, Refusal(status, detail, headers=headers))


def _refusal_reply(path: str, refused: Refusal, code: str | None = None) -> Response:
    """Return the reply for a refused request to a URL path, in the shape that its clients expect."""
    content = error_content(refused.status, refused.detail, code)
    if path in translation.PATHS:
        content = {"error": _sentence(content["error"]), "detail": content["error"]}
    body = json_text(content).encode("utf-8", "replace")
    return Response(body, refused.status, refused.headers, "application/json")


def _sentence(error: dict[str, Any]) -> str:
    """Return an error as LibreTranslate's clients show it: one sentence."""
    allowed = f"allowed: {', '.join(error['allowed'])}" if error["allowed"] else ""
    return "; ".join(filter(None, (error["message"], allowed, error["hint"])))


def error_content(status: int, detail: ErrorDetail, code: str | None = None) -> dict[str, Any]:
    """Return an error as our own clients read it, with the fields that OpenAI's client looks for."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    more = {"type": ERROR_TYPES.get(status, kind), "code": code, "param": detail.path or None}
    return {"error": error_document(detail) | more}


def _endpoint_name(path: str) -> str:
    """Return the name of an endpoint in metrics. A client must not create names at will."""
    if path in ROUTES:
        return path
    prefixes = {route.partition("{")[0]: route.replace(":path", "") for route in ROUTES if "{" in route}
    return next((name for prefix, name in prefixes.items() if path.startswith(prefix)), "other")


class Observer:
    """ASGI middleware that counts and times every request, and logs one line for each."""

    def __init__(self, app: ASGIApp, service: Service, log: Callable[[str], None] | None) -> None:
        self.app = app
        self.service = service
        self.log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 499

        async def observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, observed)
        except asyncio.CancelledError:  # the shutdown has waited long enough
            self.service.cut_off += 1
            raise
        finally:
            seconds = time.perf_counter() - start
            path = scope["path"]
            endpoint = _endpoint_name(path)
            self.service.metrics.requests.add(endpoint=endpoint, status=str(status))
            self.service.metrics.seconds.observe(seconds, endpoint=endpoint)
            if self.log is not None:
                clock, shown = time.strftime("%H:%M:%S"), ascii(path)[1:-1]
                self.log(f"{clock}  {status}  {1000 * seconds:8.1f} ms  {scope['method']} {shown:.80}")


@dataclass
class Server:
    """HTTP server. It listens from construction on, and `serve` runs until the process gets a signal."""

    service: Service
    rules: Admission
    port: int | None = None
    log: Callable[[str], None] | None = None
    socket: socket.socket = field(init=False)

    def __post_init__(self) -> None:
        self.socket = listen(self.rules.host, self.port, DEFAULT_PORT)
        self.port = self.socket.getsockname()[1]

    @property
    def url(self) -> str:
        return address(self.rules.host, self.port or 0)

    def serve(self) -> None:
        """Serve until SIGTERM or SIGINT; then finish the open requests. SIGTERM is a normal end."""
        before = signal.signal(
            signal.SIGTERM, lambda number, frame: None
        )  # uvicorn raises it again at its end
        gc.collect()
        gc.freeze()  # the models and modules stay, and need not be searched for garbage between requests
        try:
            self.uvicorn().run(sockets=[self.socket])
        finally:
            signal.signal(signal.SIGTERM, before)
            self.service.stop()
            self.socket.close()

    def uvicorn(self) -> uvicorn.Server:
        return make_uvicorn(
            create_app(self.service, self.rules, self.log), self.service.settings.drain_seconds
        )
