"""Request bodies of the studio."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from glassformer.core.config import Node
from glassformer.core.errors import ErrorDetail
from glassformer.inspection.maps import Site
from glassformer.studio import limits


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


class PatchBody(InputBody):
    corrupted: Text | None = None
    """Input that the activations are copied into; None for `input` with one token changed."""
    sites: Annotated[list[Name], Field(min_length=1, max_length=64)] | None = None
    noising: bool = False


class AttributeBody(InputBody):
    method: Literal["integrated-gradients", "gradient-input", "occlusion", "logits"] = "integrated-gradients"
    output: Number | None = None
    rather_than: Name | None = None
    matrix: bool = False
    """True to attribute every generated token of an encoder-decoder to every input token."""


class ProbeBody(Node):
    label: Name
    checkpoint: Name | None = None
    examples: Annotated[int, Field(ge=10, le=limits.EXAMPLES)] = 200


class FormBody(Node):
    source: Name
    values: Values = Field(default_factory=dict)
