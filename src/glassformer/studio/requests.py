"""What a page may send: bodies and queries, checked like a config, with the same errors."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, NoReturn, TypeVar

from pydantic import AfterValidator, Field
from starlette.requests import Request

from glassformer.core.config import Node, validate
from glassformer.core.errors import ErrorDetail
from glassformer.inspection.maps import Site
from glassformer.studio import limits
from glassformer.studio.replies import refusal


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
    branch: Number | None = None
    layers: list[Number] | None = None
    heads: list[Number] | None = None
    rows: Annotated[list[Number], Field(min_length=2, max_length=2)] | None = None
    rollout: bool = False
    """A hint: all layers and heads multiplied to one map a place."""


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
    place: Site = "encoder"
    layer: Number = 0
    head: Number = 0
    query: Number = 0
    key: Number = 0
    """Of an edge; of a token, where it stands in the input."""
    how: Literal["mean", "zero"] = "mean"
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
        raise refusal(400, "a whole number belongs here", place=name, value=text, hint=f"{name}=0")
    return int(text)
