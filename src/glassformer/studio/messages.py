"""Replies: JSON, bytes, and refusals that say what is wrong as the command line does."""

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

WORTH_COMPRESSING = 1024
COMPRESSED = ("image/png", "application/zip")
LONGEST_SHOWN = 300
MOST_ALLOWED_SHOWN = 40
UNPROCESSABLE = 400


class Refusal(Exception):
    """A reply that is no answer: its status, and what would be right."""

    def __init__(self, status: int, problem: ErrorDetail, *, headers: dict[str, str] | None = None) -> None:
        self.status = status
        self.problem = problem
        self.headers = headers or {}
        super().__init__(str(problem))


def refusal(status: int, problem: str, *, retry_after: int | None = None, **details: Any) -> Refusal:
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return Refusal(status, ErrorDetail(problem, **details), headers=headers)


def problem_document(problem: ErrorDetail) -> dict[str, Any]:
    near = near_match(problem.value, problem.allowed)
    return {
        "problem": shorten(problem.message, LONGEST_SHOWN),
        "place": problem.path,
        "value": None if problem.value is None else shorten(_shown(problem.value), LONGEST_SHOWN),
        "allowed": problem.allowed[:MOST_ALLOWED_SHOWN],
        "hint": f"did you mean {near!r}?" if near else problem.hint,
    }


def _shown(value: object) -> str:
    return value if isinstance(value, str) else repr(value)


def error_reply(error: Exception) -> Response:
    """For every error that a person can act on."""
    status, headers, problems = UNPROCESSABLE, {}, []
    if isinstance(error, Refusal):
        status, headers, problems = error.status, error.headers, [error.problem]
    elif isinstance(error, UserError):
        problems = error.details
    elif isinstance(error, ErrorDetail):
        problems = [error]
    documents = [problem_document(problem) for problem in problems]
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
    """Compressed, if that pays and the page takes it."""
    headers = {"Vary": "Accept-Encoding", **(headers or {})}
    if len(body) >= WORTH_COMPRESSING and media_type not in COMPRESSED and accepts_gzip(request):
        body = gzip.compress(body, compresslevel=4, mtime=0)
        headers["Content-Encoding"] = "gzip"
    return Response(body, status, headers, media_type)


def accepts_gzip(request: Request) -> bool:
    names = [part.split(";")[0].strip() for part in request.headers.get("accept-encoding", "").split(",")]
    return "gzip" in names


def _few_branches(decoding: dict[str, Any]) -> dict[str, Any]:
    size = decoding.get("size")
    if isinstance(size, int) and size > limits.BRANCHES:
        raise ErrorDetail(
            f"at most {limits.BRANCHES} branches here", path="size", value=size, hint=f"{limits.BRANCHES}"
        )
    return decoding


Text = Annotated[str, Field(max_length=limits.INPUT_CHARACTERS)]
Name = Annotated[str, Field(min_length=1, max_length=255)]
Number = Annotated[int, Field(ge=0, le=1 << 20)]
Examples = Annotated[int, Field(ge=1, le=limits.EXAMPLES)]
Alternatives = Annotated[int, Field(ge=1, le=limits.ALTERNATIVES)]
Decoding = Annotated[dict[str, str | int | float | None], AfterValidator(_few_branches)]
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
    """A hint: all layers and heads multiplied to one map per site."""


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
    """Of an edge; of a token, where it stands in the input."""
    ablation: Literal["mean", "zero"] = "mean"
    examples: Examples | None = None


class FormBody(Node):
    what: Name
    values: Values = Field(default_factory=dict)


async def body_of(request: Request, body: type[BodyType]) -> BodyType:
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise refusal(415, "a body of JSON belongs here", hint="Content-Type: application/json")
    try:
        document = json.loads(await request.body(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise refusal(400, "not valid JSON", value=str(error), hint="one JSON object") from None
    if not isinstance(document, dict):
        raise refusal(400, "not a JSON object", hint="one JSON object", allowed=list(body.model_fields))
    return validate(body, document)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def number_of(request: Request, name: str, default: int | None = None) -> int:
    text = request.query_params.get(name) or request.path_params.get(name)
    if text is None and default is not None:
        return default
    if text is None or not (text.isascii() and text.isdecimal()) or len(text) > 15:
        raise refusal(400, "a whole number belongs here", path=name, value=text, hint=f"{name}=0")
    return int(text)
