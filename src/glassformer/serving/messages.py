"""Bodies of requests and replies of `serve`; the OpenAPI document is generated from these classes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError
from starlette.requests import Request

from glassformer.core.config import Node
from glassformer.core.errors import ErrorDetail, UserError
from glassformer.generation import DecodingConfig
from glassformer.inspection.maps import Site
from glassformer.serving import limits
from glassformer.web.messages import read_body

Text = Annotated[str, Field(max_length=limits.INPUT_CHARACTERS)]
Name = Annotated[str, Field(min_length=1, max_length=255)]
Index = Annotated[int, Field(ge=0, le=10_000)]
Stop = Annotated[str, Field(min_length=1, max_length=limits.STOP_CHARACTERS)]


def _only(default: float | None) -> BeforeValidator:
    """Return a check for an option of OpenAI that has no effect here, so that no client relies on it."""

    def check(value: Any) -> Any:
        if value is not None and (value != default or isinstance(value, bool)):
            raise PydanticCustomError("unsupported", "this server does not support the option: leave it out")
        return value

    return BeforeValidator(check)


Unsupported = Annotated[None, _only(None)]
Zero = Annotated[Annotated[float, Field(ge=0, le=0)] | None, _only(0)]
One = Annotated[Literal[1] | None, _only(1)]


def _which(value: Any) -> str | None:
    """Return the tag of the type that a value must have, so that an error is about this type alone."""
    if isinstance(value, str):
        return "as-text"
    return "as-list" if isinstance(value, list) else None


def _one_or_many(error: str) -> Any:
    """Return the discriminator of a text and a list, with the message for a value that is neither."""
    return Discriminator(_which, custom_error_type="text_or_list", custom_error_message=error)


HINT = "GET /openapi.json describes the request"
OF_CONFIGS = re.compile(r"=VALUE|^glassformer |--plugin")
"""Pattern of hints that are about config files."""
SUBJECT = re.compile(r"^\w+ should have")
NAMES_OF_THE_RUN = {"model": "run", "run": "model"}
"""Other name of the option that names the run: OpenAI's routes have `model`, all others `run`."""
TAGS = re.compile(r"\.as-(?:text|list)(?=\.|$)")
OneText = Annotated[Text, Tag("as-text")]
Tokens = Annotated[list[Text], Field(min_length=1, max_length=limits.INPUT_CHARACTERS), Tag("as-list")]
Input = Annotated[OneText | Tokens, _one_or_many("must be a text or a list of tokens")]
Inputs = Annotated[list[Input], Field(min_length=1, max_length=limits.INPUTS), Tag("as-list")]
Texts = Annotated[list[Text], Field(min_length=1, max_length=limits.INPUTS), Tag("as-list")]
Stops = Annotated[list[Stop], Field(max_length=limits.STOPS), Tag("as-list")]
OneOrManyInputs = Annotated[OneText | Inputs, _one_or_many("must be a text or a list of inputs")]
OneOrManyTexts = Annotated[OneText | Texts, _one_or_many("must be a text or a list of texts")]
OneOrManyStops = Annotated[
    Annotated[Stop, Tag("as-text")] | Stops, _one_or_many("must be a text or a list of texts")
]

BodyType = TypeVar("BodyType", bound=Node)


class InvalidBody(UserError):
    """Error in a request that contradicts the OpenAPI document."""


async def read(request: Request, body: type[BodyType]) -> BodyType:
    """Read the JSON body of a request. The paths of errors are those of the JSON document."""
    try:
        return await read_body(request, body)
    except UserError as error:
        raise as_in_request(error) from None


def as_in_request(error: UserError) -> InvalidBody:
    """Return the error with paths as in the request (`inputs.3`, not `inputs.as-list.3`) and with a hint."""
    return InvalidBody(
        *(
            replace(
                detail,
                message=SUBJECT.sub("must have", detail.message),
                path=TAGS.sub("", detail.path),
                hint=_hint(detail),
            )
            for detail in error.details
        )
    )


def _hint(detail: ErrorDetail) -> str:
    if (name := NAMES_OF_THE_RUN.get(detail.path)) in detail.allowed:
        return f"use {name}: here it is the name of the option for the run"
    return HINT if not detail.hint or OF_CONFIGS.search(detail.hint) else detail.hint


class PredictBody(Node):
    """Inputs of any run."""

    run: Name | None = Field(None, description="name of a served run; may be left out if there is only one")
    inputs: OneOrManyInputs = Field(
        description="one input or a list; an input is a text or, for tasks on tokens, a list of tokens"
    )
    decoding: DecodingConfig | None = Field(
        None, description='decoding strategy, such as {"kind": "beam", "size": 4}; default: that of the run'
    )


class AttentionBody(Node):
    """Input whose attention maps are returned."""

    run: Name | None = Field(None, description="name of a served run; may be left out if there is only one")
    input: Text = Field(description="one input, as in /v1/predict")
    layers: list[Index] | None = Field(None, description="layers to return; default: all")
    heads: list[Index] | None = Field(None, description="heads to return; default: all")
    site: Site | None = Field(None, description="attention site to return; default: all of the model")


class StreamOptions(Node):
    """Options of a streamed reply."""

    include_usage: bool = Field(False, description="send one more chunk with the numbers of tokens")
    include_obfuscation: bool = Field(False, description="accepted, without effect")


class CompletionBody(Node):
    """Request of OpenAI's completions endpoint. Options without an effect here accept their default only."""

    model: Name = Field(description="name of a served language model")
    prompt: OneOrManyTexts = Field("", description="text to continue, or a list of texts")
    max_tokens: int | None = Field(16, ge=1, le=limits.NEW_TOKENS, description="maximum number of new tokens")
    temperature: float | None = Field(1.0, ge=0, le=100, description="0 takes the most probable token")
    top_p: float | None = Field(
        1.0, gt=0, le=1, description="sample from the top tokens with this probability"
    )
    top_k: int | None = Field(None, ge=1, le=1_000_000, description="sample from this many tokens")
    n: int | None = Field(1, ge=1, le=limits.CHOICES, description="completions per prompt")
    stop: OneOrManyStops | None = Field(
        None, description="texts at which a completion ends; they are not part of it"
    )
    seed: int | None = Field(
        None,
        ge=-(2**63),
        le=2**63 - 1,
        description="the same seed gives the same text; default: a new one each time",
    )
    stream: bool | None = Field(
        False, description="send the text as server-sent events while it is generated"
    )
    stream_options: StreamOptions | None = None
    echo: bool | None = Field(False, description="put the prompt before the completion")
    user: str | None = Field(None, max_length=1000, description="accepted, without effect")
    best_of: One = Field(None, description="1, or left out")
    logprobs: Unsupported = Field(None, description="not supported; /v1/predict has probabilities")
    suffix: Unsupported = Field(None, description="not supported")
    logit_bias: Unsupported = Field(None, description="not supported")
    frequency_penalty: Zero = Field(None, description="0, or left out")
    presence_penalty: Zero = Field(None, description="0, or left out")


class TranslateBody(Node):
    """Request of LibreTranslate's translate endpoint."""

    q: OneOrManyTexts = Field(description="text to translate, or a list; each line is translated by itself")
    source: Name = Field("auto", description="code of the source language, or auto if only one run fits")
    target: Name = Field(description="code of the target language")
    format: Literal["text"] = Field("text", description="plain text; HTML is not supported")
    alternatives: int = Field(
        0, ge=0, le=limits.ALTERNATIVES, description="number of other translations to return"
    )
    api_key: str | None = Field(None, max_length=1000, description="token of the server, if it has one")
    secret: str | None = Field(None, max_length=1000, description="accepted, without effect")


class Reply(BaseModel):
    """Base class of replies: clients may rely on the fields that are listed, and ignore others."""

    model_config = ConfigDict(extra="allow")


class Candidate(Reply):
    """One hypothesis: its output, its probability, and each token with its probability."""

    output: str | int | float | bool | None
    probability: float | None
    steps: list[dict[str, Any]]


class PredictionReply(Reply):
    """Prediction for one input. If the input cannot be read, `error` is a sentence and `output` is null."""

    input: str
    output: str | int | float | bool | None
    probability: float | None
    error: str | None
    warning: str | None
    candidates: list[Candidate]
    probabilities: dict[str, float] | None = None


class PredictReply(Reply):
    """Predictions in the order of the inputs."""

    run: str
    predictions: list[PredictionReply]


class SiteReply(Reply):
    """Maps of one attention site: `weights[layer][head][query][key]`."""

    name: str
    layers: list[int]
    heads: list[int]
    queries: list[str]
    keys: list[str]
    outputs: list[str] | None
    weights: list[list[list[list[float]]]]


class AttentionReply(Reply):
    """Attention maps of one input, with the checks that were made when they were recorded."""

    run: str
    input: str
    output: str | None
    caption: str
    checks: dict[str, Any]
    sites: dict[str, SiteReply]


class Choice(Reply):
    """One completion: `finish_reason` is `stop` (end of text or a stop text) or `length`."""

    index: int
    text: str
    finish_reason: Literal["stop", "length"] | None
    logprobs: None = None


class Usage(Reply):
    """Numbers of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionReply(Reply):
    """Completions of the prompts, in order."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: Usage


class ModelInfo(Reply):
    """Served run, in the shape of OpenAI's model object."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    task: str
    task_type: str
    max_length: int
    languages: list[str] | None
    endpoints: list[str]
    examples: list[str]


class ModelsReply(Reply):
    """Served runs."""

    object: Literal["list"]
    data: list[ModelInfo]


class TranslateReply(Reply):
    """Translation, or a list of them if `q` is a list."""

    translatedText: str | list[str]
    alternatives: list[str] | list[list[str]] | None = None


class Language(Reply):
    """Language with the codes of the languages that it can be translated to."""

    code: str
    name: str
    targets: list[str]


class HealthReply(Reply):
    """Sign that the server accepts requests."""

    status: Literal["ok"]
    version: str
    runs: int


class ErrorBody(Reply):
    """Reason for a refusal: message, path of the wrong value, and a hint."""

    message: str
    path: str
    value: str | None
    allowed: list[str]
    hint: str
    type: str
    code: str | None
    param: str | None


class ErrorReply(Reply):
    """Error of every endpoint but those of LibreTranslate."""

    error: ErrorBody


class TranslateErrorReply(Reply):
    """Error of the endpoints of LibreTranslate: a sentence, and its parts."""

    error: str
    detail: ErrorBody
