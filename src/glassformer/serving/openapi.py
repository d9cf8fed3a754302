"""OpenAPI document of the server, generated from the classes in `messages.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from glassformer import __version__
from glassformer.core.config import Node
from glassformer.core.registry import kinds
from glassformer.generation import BeamConfig, DecodingConfig
from glassformer.serving import limits, messages
from glassformer.serving.served import ServedRun

REFERENCE = "#/components/schemas/{model}"
ERRORS = {
    "400": "a value is wrong",
    "401": "the token is missing or wrong",
    "403": "the request comes from a page of another site",
    "404": "no such run or endpoint",
    "405": "method not allowed",
    "408": "the body did not arrive in time",
    "413": "the body is too large",
    "414": "the URL is too long",
    "415": "the body has the wrong media type",
    "421": "the Host header does not name this server",
    "500": "the model failed",
    "503": "the server or the model is busy; Retry-After has a time in seconds",
}
Body = type[BaseModel]

POSTS: dict[str, tuple[str, Body, Body]] = {
    "/v1/predict": ("Predict one or many inputs", messages.PredictBody, messages.PredictReply),
    "/v1/completions": ("Continue a text (OpenAI)", messages.CompletionBody, messages.CompletionReply),
    "/v1/attention": ("Attention maps as numbers", messages.AttentionBody, messages.AttentionReply),
    "/translate": ("Translate (LibreTranslate)", messages.TranslateBody, messages.TranslateReply),
}
GETS: dict[str, tuple[str, Body]] = {
    "/v1/models": ("Served runs (OpenAI)", messages.ModelsReply),
    "/v1/models/{model}": ("One served run (OpenAI)", messages.ModelInfo),
    "/health": ("Health of the server", messages.HealthReply),
}


def openapi_document(runs: Mapping[str, ServedRun], *, has_token: bool) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of a server with these runs."""
    paths: dict[str, Any] = {path: {"get": _get(path, *of)} for path, of in GETS.items()}
    paths |= {path: {"post": _post(path, *of)} for path, of in POSTS.items()}
    paths["/languages"] = {"get": _languages()}
    paths["/metrics"] = {"get": _metrics()}
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Glassformer",
            "version": __version__,
            "description": f"Served runs: {', '.join(runs)}.",
        },
        "paths": paths,
        "components": {"schemas": _schemas(runs)},
    }
    if has_token:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
    return document


def _schemas(runs: Mapping[str, ServedRun]) -> dict[str, Any]:
    classes = [value for value in vars(messages).values() if isinstance(value, type)]
    decodings = list(kinds(DecodingConfig).values())
    abstract = (Node, DecodingConfig)
    requests = [each for each in classes if issubclass(each, Node) and each not in abstract] + decodings
    replies = [each for each in classes if issubclass(each, messages.Reply)]
    modes: list[Any] = [(each, "validation") for each in requests] + [
        (each, "serialization") for each in replies
    ]
    _, document = models_json_schema(modes, ref_template=REFERENCE)
    schemas: dict[str, Any] = document["$defs"]
    _name_runs(schemas, runs)
    _name_decodings(schemas, decodings)
    return schemas


def _name_decodings(schemas: dict[str, Any], decodings: Sequence[type[Node]]) -> None:
    """List the decoding strategies where a request chooses one: by name, or as an object with options."""
    names = [each.model_fields["kind"].default for each in decodings]
    choices = [{"type": "null"}, {"enum": names}, *map(_reference, decodings)]
    description = schemas["PredictBody"]["properties"]["decoding"]["description"]
    schemas["PredictBody"]["properties"]["decoding"] = {"anyOf": choices, "description": description}
    for each in decodings:
        schema = schemas[each.__name__]
        schema["required"] = ["kind"]
        if issubclass(each, BeamConfig):
            schema["properties"]["size"]["maximum"] = limits.BEAMS


def _name_runs(schemas: dict[str, Any], runs: Mapping[str, ServedRun]) -> None:
    """List the names and languages of the served runs where a request chooses one."""
    names = list(runs)
    for body in ("PredictBody", "AttentionBody"):
        schemas[body]["properties"]["run"] = {"enum": names, "description": "name of a served run"}
        if len(names) > 1:
            schemas[body]["required"] = [*schemas[body].get("required", []), "run"]
    complete = [name for name, served in runs.items() if served.completes]
    if complete:
        schemas["CompletionBody"]["properties"]["model"]["enum"] = complete
    pairs = [served.languages for served in runs.values() if served.languages is not None]
    if pairs:
        properties = schemas["TranslateBody"]["properties"]
        properties["source"]["enum"] = ["auto", *dict.fromkeys(pair.source for pair in pairs)]
        properties["target"]["enum"] = list(dict.fromkeys(pair.target for pair in pairs))


def _post(path: str, summary: str, body: Body, reply: Body) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": _reference(body)}}
    replies: dict[str, Any] = {"application/json": {"schema": _reference(reply)}}
    error: Body = messages.ErrorReply
    if path == "/translate":
        content["application/x-www-form-urlencoded"] = {"schema": _reference(body)}
        error = messages.TranslateErrorReply
    if path == "/v1/completions":
        replies["text/event-stream"] = {}
    return {
        "summary": summary,
        "description": (body.__doc__ or "").strip(),
        "operationId": path.strip("/").replace("/", "_"),
        "requestBody": {"required": True, "content": content},
        "responses": {"200": {"description": (reply.__doc__ or "").strip(), "content": replies}}
        | _errors(error),
    }


def _get(path: str, summary: str, reply: Body) -> dict[str, Any]:
    description = {"description": (reply.__doc__ or "").strip()}
    content = {"application/json": {"schema": _reference(reply)}}
    operation: dict[str, Any] = {
        "summary": summary,
        "operationId": path.strip("/").replace("/", "_").replace("{", "").replace("}", ""),
        "responses": {"200": description | {"content": content}} | _errors(messages.ErrorReply),
    }
    if "{model}" in path:
        schema = {"type": "string", "minLength": 1}
        operation["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": schema}]
    return operation


def _languages() -> dict[str, Any]:
    content = {"application/json": {"schema": {"type": "array", "items": _reference(messages.Language)}}}
    return {
        "summary": "Languages (LibreTranslate)",
        "operationId": "languages",
        "responses": {"200": {"description": "Languages of the served runs.", "content": content}}
        | _errors(messages.TranslateErrorReply),
    }


def _metrics() -> dict[str, Any]:
    content = {"text/plain": {"schema": {"type": "string"}}}
    return {
        "summary": "Metrics in Prometheus' text format",
        "operationId": "metrics",
        "responses": {"200": {"description": "Metrics.", "content": content}} | _errors(messages.ErrorReply),
    }


def _errors(reply: Body) -> dict[str, Any]:
    content = {"application/json": {"schema": _reference(reply)}}
    return {status: {"description": text, "content": content} for status, text in ERRORS.items()}


def _reference(body: Body) -> dict[str, str]:
    return {"$ref": REFERENCE.format(model=body.__name__)}
