"""HTTP messages: JSON bodies, replies, static files, and errors with path, value and hint."""

from __future__ import annotations

import gzip
import json
import re
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from glassformer.core.config import Node, validate
from glassformer.core.errors import ErrorDetail, UserError, near_match, shorten
from glassformer.storage.files import json_text

MIN_COMPRESSED = 1024
PRECOMPRESSED = ("image/png", "application/zip")
MAX_TEXT = 300
MAX_ALLOWED = 40
BAD_REQUEST = 400


class Refusal(Exception):
    """Exception for a refused request, with the HTTP status and the error detail of the reply."""

    def __init__(self, status: int, detail: ErrorDetail, *, headers: dict[str, str] | None = None) -> None:
        self.status = status
        self.detail = detail
        self.headers = headers or {}
        super().__init__(str(detail))


def refusal(status: int, message: str, *, retry_after: int | None = None, **details: Any) -> Refusal:
    """Return a `Refusal`. `retry_after` is in seconds, and `details` are arguments of `ErrorDetail`."""
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return Refusal(status, ErrorDetail(message, **details), headers=headers)


def error_document(detail: ErrorDetail) -> dict[str, Any]:
    near = near_match(detail.value, detail.allowed)
    return {
        "message": shorten(detail.message, MAX_TEXT),
        "path": detail.path,
        "value": None if detail.value is None else shorten(_shown(detail.value), MAX_TEXT),
        "allowed": detail.allowed[:MAX_ALLOWED],
        "hint": f"did you mean {near!r}?" if near else detail.hint,
    }


def _shown(value: object) -> str:
    return value if isinstance(value, str) else repr(value)


def error_reply(error: Exception) -> Response:
    """Return the JSON reply for a `Refusal`, `UserError` or `ErrorDetail`."""
    status, headers, details = BAD_REQUEST, {}, []
    if isinstance(error, Refusal):
        status, headers, details = error.status, error.headers, [error.detail]
    elif isinstance(error, UserError):
        details = error.details
    elif isinstance(error, ErrorDetail):
        details = [error]
    documents = [error_document(detail) for detail in details]
    document: dict[str, Any] = {"error": documents[0]}
    if len(documents) > 1:
        document["errors"] = documents
    return Response(json_text(document).encode("utf-8", "replace"), status, headers, "application/json")


def json_reply(request: Request, document: Any, status: int = 200) -> Response:
    return bytes_reply(
        request, json_text(document).encode("utf-8", "replace"), "application/json", status=status
    )


def bytes_reply(
    request: Request,
    body: bytes,
    media_type: str,
    *,
    status: int = 200,
    headers: dict[str, str] | None = None,
) -> Response:
    """Return a reply with these bytes, compressed if they are large and the client accepts gzip."""
    headers = {"Vary": "Accept-Encoding", **(headers or {})}
    if len(body) >= MIN_COMPRESSED and media_type not in PRECOMPRESSED and accepts_gzip(request):
        body = gzip.compress(body, compresslevel=4, mtime=0)
        headers["Content-Encoding"] = "gzip"
    return Response(body, status, headers, media_type)


def accepts_gzip(request: Request) -> bool:
    names = [part.split(";")[0].strip() for part in request.headers.get("accept-encoding", "").split(",")]
    return "gzip" in names


BodyType = TypeVar("BodyType", bound=Node)


async def read_body(request: Request, body: type[BodyType]) -> BodyType:
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise refusal(415, "the body must be JSON", hint="set the header Content-Type: application/json")
    try:
        document = json.loads(await request.body(), parse_constant=_no_constant, parse_float=_parse_number)
    except (ValueError, RecursionError) as error:
        raise refusal(
            400, "the body is not valid JSON", value=str(error), hint="send one JSON object"
        ) from None
    if not isinstance(document, dict):
        raise refusal(
            400, "the body is not a JSON object", hint="send one object", allowed=list(body.model_fields)
        )
    return validate(body, document)


def _parse_number(text: str) -> float | int:
    """Return a number with a fraction or an exponent. In JSON, 4.0 and 4 are the same number."""
    number = float(text)
    return int(number) if number.is_integer() else number


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def query_number(request: Request, name: str, default: int | None = None) -> int:
    text = request.query_params.get(name) or request.path_params.get(name)
    if text is None and default is not None:
        return default
    if text is None or not (text.isascii() and text.isdecimal()) or len(text) > 15:
        raise refusal(400, "expected a whole number", path=name, value=text, hint=f"use {name}=0")
    return int(text)


MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
}
NAME = re.compile(r"(?:[a-z0-9][a-z0-9._-]*/)*[a-z0-9][a-z0-9._-]*", re.ASCII)
SHARED = "glassformer.web"
"""Package with the files that all pages share."""


def static_file(package: str, name: str) -> Path:
    """Return the path of a file in the folder `static` of a package, or raise a 404 `Refusal`."""
    for folder in (Path(str(resources.files(each))) / "static" for each in (package, SHARED)):
        path = folder / name
        is_inside = NAME.fullmatch(name) and path.resolve().is_relative_to(folder.resolve())
        if is_inside and path.suffix in MEDIA_TYPES and path.is_file():
            return path
    raise refusal(404, "the page has no such file", path="static", value=name, hint="reload the page")


def file_reply(request: Request, path: Path) -> Response:
    """Return a reply with a file, compressed if it is large; 304 if the client has this version of it."""
    status = path.stat()
    tag = f'"{status.st_mtime_ns:x}-{status.st_size:x}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    if tag in [
        given.strip().removeprefix("W/") for given in request.headers.get("if-none-match", "").split(",")
    ]:
        return Response(status_code=304, headers=headers)
    if accepts_gzip(request) and status.st_size >= MIN_COMPRESSED:
        headers["Content-Encoding"] = "gzip"
        body = _compressed(path, status.st_mtime_ns)
    else:
        body = path.read_bytes()
    return Response(body, 200, headers, MEDIA_TYPES[path.suffix])


@lru_cache(maxsize=64)
def _compressed(path: Path, changed: int) -> bytes:
    return gzip.compress(path.read_bytes(), compresslevel=6, mtime=0)
