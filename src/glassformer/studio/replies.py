"""Replies: JSON, bytes, and refusals that say what is wrong as the command line does."""

from __future__ import annotations

import gzip
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from glassformer.core.errors import ErrorDetail, UserError, near_match, shorten
from glassformer.storage.files import json_text

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
