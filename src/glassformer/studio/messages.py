"""HTTP messages of the studio: request bodies, replies, and errors with path, value and hint."""

from __future__ import annotations

import gzip
import json
from typing import Annotated, Any, Literal, NoReturn, TypeVar

from pydantic import AfterValidator, Field
from starlette.requests import Request
from starlette.responses import Response

from glassformer.core.config import Node, validate
from glassformer.core.errors import ErrorDetail, UserError, near_match, shorten
from glassformer.inspection.maps import Site
from glassformer.storage.files import json_text
from glassformer.studio import limits

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


def _limit_beams(decoding: dict[str, Any]) -> dict[str, Any]:
    size = decoding.get("size")
    if isinstance(size, int) and size > limits.BEAMS:
        raise ErrorDetail(
            f"the studio allows at most {limits.BEAMS} beams",
            path="size",
            value=size,
            hint=f"use {limits.BEAMS}",
        )
    return decoding


Text = Annotated[str, Field(max_length=limits.INPUT_CHARACTERS)]
Name = Annotated[str, Field(min_length=1, max_length=255)]
Number = Annotated[int, Field(ge=0, le=1 << 20)]
Examples = Annotated[int, Field(ge=1, le=limits.EXAMPLES)]
Alternatives = Annotated[int, Field(ge=1, le=limits.ALTERNATIVES)]
Decoding = Annotated[dict[str, str | int | float | None], AfterValidator(_limit_beams)]
Values = Annotated[dict[str, Any], Field(max_length=1000)]

BodyType = TypeVar("BodyType", bound=Node)


class InputBody(Node):
    input: Text | None = None
    checkpoint: Name | None = None


class AttentionBody(InputBody):
    untrained: bool = False
    decoding: Decoding | None = None
    node: Number | None = None
    layers: list[Number] | None = None
    heads: list[Number] | None = None
    rows: Annotated[list[Number], Field(min_length=2, max_length=2)] | None = None
    rollout: bool = False
    """True to multiply all layers into one map per attention site (attention rollout, a hint)."""


class LensBody(InputBody):
    alternatives: Alternatives = 5


class TraceBody(LensBody):
    decoding: Decoding | None = None


class HeadsBody(Node):
    checkpoint: Name | None = None
    examples: Examples = 64


class InterveneBody(InputBody):
    kind: Literal["head", "edge", "token"]
    site: Site = "encoder"
    layer: Number = 0
    head: Number = 0
    query: Number = 0
    key: Number = 0
    """Key position of an attention edge, or index of a token in the input."""
    ablation: Literal["mean", "zero"] = "mean"
    examples: Examples | None = None


class FormBody(Node):
    source: Name
    values: Values = Field(default_factory=dict)


async def read_body(request: Request, body: type[BodyType]) -> BodyType:
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise refusal(415, "the body must be JSON", hint="set the header Content-Type: application/json")
    try:
        document = json.loads(await request.body(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise refusal(
            400, "the body is not valid JSON", value=str(error), hint="send one JSON object"
        ) from None
    if not isinstance(document, dict):
        raise refusal(
            400, "the body is not a JSON object", hint="send one object", allowed=list(body.model_fields)
        )
    return validate(body, document)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def query_number(request: Request, name: str, default: int | None = None) -> int:
    text = request.query_params.get(name) or request.path_params.get(name)
    if text is None and default is not None:
        return default
    if text is None or not (text.isascii() and text.isdecimal()) or len(text) > 15:
        raise refusal(400, "expected a whole number", path=name, value=text, hint=f"use {name}=0")
    return int(text)
