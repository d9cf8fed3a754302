"""HTTP messages of the studio: request bodies, replies, and errors with the details of the command line."""

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
    """Request that is refused: an HTTP status and the error."""

    def __init__(self, status: int, detail: ErrorDetail, *, headers: dict[str, str] | None = None) -> None:
        self.status = status
        self.detail = detail
        self.headers = headers or {}
        super().__init__(str(detail))


def refusal(status: int, message: str, *, retry_after: int | None = None, **details: Any) -> Refusal:
    """Make a `Refusal`; `details` are those of `ErrorDetail`, `retry_after` is in seconds."""
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
    """Reply to a `Refusal`, `UserError` or `ErrorDetail` with its details as JSON."""
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
    """Reply with bytes, compressed if they are large enough and the client accepts gzip."""
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
            f"at most {limits.BEAMS} beams in the studio", path="size", value=size, hint=f"{limits.BEAMS}"
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


class AttentionBody(Node):
    input: Text | None = None
    checkpoint: Name | None = None
    untrained: bool = False
    decoding: Decoding | None = None
    node: Number | None = None
    layers: list[Number] | None = None
    heads: list[Number] | None = None
    rows: Annotated[list[Number], Field(min_length=2, max_length=2)] | None = None
    rollout: bool = False
    """Multiply all layers and heads into one map per site (a hint)."""


class LensBody(Node):
    input: Text | None = None
    checkpoint: Name | None = None
    alternatives: Alternatives = 5


class TraceBody(Node):
    input: Text | None = None
    checkpoint: Name | None = None
    decoding: Decoding | None = None
    alternatives: Alternatives = 5


class HeadsBody(Node):
    checkpoint: Name | None = None
    examples: Examples = 64


class InterveneBody(Node):
    kind: Literal["head", "edge", "token"]
    input: Text | None = None
    checkpoint: Name | None = None
    site: Site = "encoder"
    layer: Number = 0
    head: Number = 0
    query: Number = 0
    key: Number = 0
    """Key of an edge, or index of a token in the input."""
    ablation: Literal["mean", "zero"] = "mean"
    examples: Examples | None = None


class FormBody(Node):
    source: Name
    values: Values = Field(default_factory=dict)


async def read_body(request: Request, body: type[BodyType]) -> BodyType:
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise refusal(415, "the body must be JSON", hint="Content-Type: application/json")
    try:
        document = json.loads(await request.body(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise refusal(400, "not valid JSON", value=str(error), hint="one JSON object") from None
    if not isinstance(document, dict):
        raise refusal(400, "not a JSON object", hint="one JSON object", allowed=list(body.model_fields))
    return validate(body, document)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def query_number(request: Request, name: str, default: int | None = None) -> int:
    text = request.query_params.get(name) or request.path_params.get(name)
    if text is None and default is not None:
        return default
    if text is None or not (text.isascii() and text.isdecimal()) or len(text) > 15:
        raise refusal(400, "must be a whole number", path=name, value=text, hint=f"{name}=0")
    return int(text)
