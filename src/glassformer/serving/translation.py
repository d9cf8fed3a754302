"""LibreTranslate's endpoints for translation runs: `/translate`, `/languages`, and no `/detect`."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import Response

from glassformer.core.config import validate
from glassformer.core.errors import ErrorDetail, UserError
from glassformer.generation import BeamConfig, DecodingConfig
from glassformer.serving.messages import TranslateBody, as_in_request, read
from glassformer.serving.served import ServedRun
from glassformer.web.messages import json_reply, refusal

if TYPE_CHECKING:
    from glassformer.serving.app import Service

PATHS = frozenset({"/translate", "/languages", "/detect"})
"""URL paths whose clients send the token as `api_key` in the body, and expect errors as one sentence."""
FORM = "application/x-www-form-urlencoded"
NAMES = {
    "ar": "Arabic", "bg": "Bulgarian", "cs": "Czech", "da": "Danish", "de": "German", "el": "Greek",
    "en": "English", "es": "Spanish", "et": "Estonian", "fi": "Finnish", "fr": "French", "he": "Hebrew",
    "hi": "Hindi", "hu": "Hungarian", "it": "Italian", "ja": "Japanese", "ko": "Korean", "lt": "Lithuanian",
    "lv": "Latvian", "nl": "Dutch", "no": "Norwegian", "pl": "Polish", "pt": "Portuguese", "ro": "Romanian",
    "ru": "Russian", "sk": "Slovak", "sl": "Slovenian", "sv": "Swedish", "tr": "Turkish", "uk": "Ukrainian",
    "vi": "Vietnamese", "zh": "Chinese",
}  # fmt: skip
"""English names of languages. A language without one is shown by its code."""


async def translate(service: Service, request: Request) -> Response:
    body = await _read(request)
    check_key(service, request, body.api_key)
    served = _find(service, body.source.lower(), body.target.lower())
    texts = [body.q] if isinstance(body.q, str) else body.q
    lines = [line for text in texts for line in text.splitlines() if line.strip()]
    found: list[list[str]] = []
    if lines:
        predictions = await service.predict(request, served, lines, _decoding(served, body.alternatives))
        found = [_outputs(prediction, number) for number, prediction in enumerate(predictions)]
    translated = [_joined(text, found) for text in texts]
    document: dict[str, Any] = {"translatedText": [best for best, *_ in translated]}
    if body.alternatives:
        document["alternatives"] = [others for _, *others in translated]
    if isinstance(body.q, str):
        document = {key: values[0] for key, values in document.items()}
    return json_reply(request, document)


async def languages(service: Service, request: Request) -> Response:
    key = parse_qs((await request.body()).decode("utf-8", "replace")).get("api_key", [None])[0]
    check_key(service, request, key or request.query_params.get("api_key"))
    pairs = [served.languages for served in service.runs.values() if served.languages is not None]
    codes = dict.fromkeys(code for pair in pairs for code in (pair.source, pair.target))
    return json_reply(
        request,
        [
            {
                "code": code,
                "name": NAMES.get(code, code),
                "targets": list(dict.fromkeys(pair.target for pair in pairs if pair.source == code)),
            }
            for code in codes
        ],
    )


async def detect(service: Service, request: Request) -> Response:
    raise refusal(
        404,
        "this server does not detect languages",
        hint="send the code of the source language: GET /languages",
    )


def check_key(service: Service, request: Request, key: str | None) -> None:
    """Raise a 401 `Refusal` unless the request has the token, as `api_key` or in its header."""
    token = service.token
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    offered = given.strip() if scheme.lower() == "bearer" else key or ""
    if token is not None and not hmac.compare_digest(offered.encode("utf-8", "replace"), token.encode()):
        raise refusal(
            401,
            "the token is missing or wrong",
            path="api_key",
            hint="use the token that the terminal printed",
        )


async def _read(request: Request) -> TranslateBody:
    """Read a body in JSON, or as a form, which LibreTranslate's own client sends."""
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != FORM:
        return await read(request, TranslateBody)
    try:
        fields = parse_qs(
            (await request.body()).decode("utf-8"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=1000,
        )
    except (ValueError, UnicodeDecodeError):
        raise refusal(400, "the form cannot be read", hint="send it URL-encoded, in UTF-8") from None
    document: dict[str, Any] = {name: values[-1] for name, values in fields.items()}
    if len(fields.get("q", [])) > 1:
        document["q"] = fields["q"]
    count = document.get("alternatives")
    if count is not None and count.isascii() and count.isdecimal():
        document["alternatives"] = int(count[:9])
    try:
        return validate(TranslateBody, document)
    except UserError as error:
        raise as_in_request(error) from None


def _find(service: Service, source: str, target: str) -> ServedRun:
    """Return the run that translates between two languages. The source may be `auto` if only one run fits."""
    pairs = {name: served.languages for name, served in service.runs.items() if served.languages is not None}
    if not pairs:
        raise refusal(
            404,
            "no served run translates between known languages",
            hint="start the server with a translation run, and --languages en:fr if it does not know them",
        )
    sources = list(dict.fromkeys(pair.source for pair in pairs.values()))
    if source not in (*sources, "auto"):
        raise ErrorDetail("no run reads this language", path="source", value=source, allowed=sources)
    fitting = [
        name for name, pair in pairs.items() if source in (pair.source, "auto") and pair.target == target
    ]
    if not fitting:
        targets = [pair.target for pair in pairs.values() if source in (pair.source, "auto")]
        raise ErrorDetail(
            "no run translates to this language",
            path="target",
            value=target,
            allowed=list(dict.fromkeys(targets)),
        )
    if source == "auto" and len({pairs[name].source for name in fitting}) > 1:
        raise ErrorDetail(
            "several source languages are possible, and this server does not detect languages",
            path="source",
            value=source,
            allowed=[pairs[name].source for name in fitting],
        )
    return service.runs[fitting[0]]


def _decoding(served: ServedRun, alternatives: int) -> DecodingConfig:
    own = served.decoding(None)
    if not alternatives:
        return own
    size = own.size if isinstance(own, BeamConfig) else 1
    penalty = own.length_penalty if isinstance(own, BeamConfig) else 1.0
    return BeamConfig(size=max(size, alternatives + 1), n_best=alternatives + 1, length_penalty=penalty)


def _outputs(prediction: dict[str, Any], line: int) -> list[str]:
    if prediction["error"] is not None:
        raise ErrorDetail(
            prediction["error"], path="q", value=prediction["input"], hint="translate one sentence per line"
        )
    return [str(candidate["output"]) for candidate in prediction["candidates"]]


def _joined(text: str, found: list[list[str]]) -> list[str]:
    """Return the translations of a text, best first. Its lines are taken from the front of `found`."""
    lines = text.splitlines()
    outputs = [found.pop(0) if line.strip() else None for line in lines]
    count = min((len(output) for output in outputs if output is not None), default=1)
    return ["\n".join("" if each is None else each[rank] for each in outputs) for rank in range(count)]
