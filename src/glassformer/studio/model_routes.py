"""Routes that ask a run's model, in the worker; and the maps that it left in memory."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from glassformer.core.config import validate
from glassformer.core.errors import ErrorDetail
from glassformer.inspection.attribution import rollout
from glassformer.inspection.maps import AttentionMaps
from glassformer.plotting.page import described
from glassformer.runs.folder import RunFolder
from glassformer.studio.map_store import MEDIA_TYPES, exact_rows, exported, map_bytes
from glassformer.studio.replies import bytes_reply, json_reply, problem_document
from glassformer.studio.requests import (
    AttentionBody,
    HeadsBody,
    InterveneBody,
    LensBody,
    TraceBody,
    body_of,
    number_of,
)
from glassformer.studio.state import Studio


async def attention(studio: Studio, request: Request) -> Response:
    folder = studio.folder.open(request.path_params["run"])
    body = await body_of(request, AttentionBody)
    return await studio.ask_model(request, _attention, studio, folder, body)


def _attention(studio: Studio, folder: RunFolder, body: AttentionBody) -> dict[str, Any]:
    if body.rollout and (body.layers or body.heads or body.rows):
        raise ErrorDetail("takes every layer, head and row", path="rollout", hint="leave them out")
    maps = studio.loaded.get(folder, body.checkpoint).attention(
        body.input,
        layers=body.layers,
        heads=body.heads,
        rows=None if body.rows is None else (body.rows[0], body.rows[1]),
        is_untrained=body.untrained,
        decoding=body.decoding,
        branch=body.branch,
    )
    if body.rollout:
        maps = rollout(maps)
    return _shown(studio, maps) | {"command": studio.commands.attention(folder, body)}


def _shown(studio: Studio, maps: AttentionMaps) -> dict[str, Any]:
    return {"map": studio.maps.add(maps), "about": maps.about, **described(maps)}


async def trace(studio: Studio, request: Request) -> Response:
    folder = studio.folder.open(request.path_params["run"])
    body = await body_of(request, TraceBody)
    return await studio.ask_model(request, _trace, studio, folder, body)


def _trace(studio: Studio, folder: RunFolder, body: TraceBody) -> dict[str, Any]:
    run = studio.loaded.get(folder, body.checkpoint)
    traced = run.trace(body.input, body.decoding, body.alternatives)
    # An empty decoding is the run's own, and the maps go over all that it has written.
    decoding = None if traced.branches is None else body.decoding or {}
    document = traced.document() | {"command": studio.commands.trace(folder, body)}
    try:
        shown = _shown(studio, run.attention(body.input, decoding=decoding))
    except ErrorDetail as problem:  # such as too little memory: the trace is there all the same
        return document | {"map": None, "attention": None, "map_problem": problem_document(problem)}
    return document | {"map": shown["map"], "attention": shown}


async def lens(studio: Studio, request: Request) -> Response:
    folder = studio.folder.open(request.path_params["run"])
    body = await body_of(request, LensBody)
    return await studio.ask_model(request, _lens, studio, folder, body)


def _lens(studio: Studio, folder: RunFolder, body: LensBody) -> dict[str, Any]:
    found = studio.loaded.get(folder, body.checkpoint).logit_lens(body.input, body.alternatives)
    return found.document() | {"command": studio.commands.lens(folder, body)}


async def heads(studio: Studio, request: Request) -> Response:
    folder = studio.folder.open(request.path_params["run"])
    body = await body_of(request, HeadsBody)
    return await studio.ask_model(request, _heads, studio, folder, body)


def _heads(studio: Studio, folder: RunFolder, body: HeadsBody) -> dict[str, Any]:
    run = studio.loaded.get(folder, body.checkpoint)
    key = studio.loaded.key(folder, body.checkpoint), body.examples
    known = studio.heads.get(key)
    if known is None:
        known = run.heads(body.examples) | {"command": studio.commands.heads(folder, body)}
        studio.heads.add(key, known)
    return known


async def known_heads(studio: Studio, request: Request) -> Response:
    folder = studio.folder.open(request.path_params["run"])
    query = request.query_params
    body = validate(
        HeadsBody,
        {
            "checkpoint": query.get("checkpoint"),
            "examples": number_of(request, "examples", HeadsBody().examples),
        },
    )
    known = studio.heads.get((await studio.read(studio.loaded.key, folder, body.checkpoint), body.examples))
    # That nothing was measured yet is no error, and no browser's console should say so.
    return Response(status_code=204) if known is None else json_reply(request, known)


async def intervene(studio: Studio, request: Request) -> Response:
    folder = studio.folder.open(request.path_params["run"])
    body = await body_of(request, InterveneBody)
    return await studio.ask_model(request, _intervene, studio, folder, body)


def _intervene(studio: Studio, folder: RunFolder, body: InterveneBody) -> dict[str, Any]:
    run = studio.loaded.get(folder, body.checkpoint)
    more: dict[str, Any] = {} if body.examples is None else {"examples": body.examples}
    where = (body.place, body.layer, body.head)
    effects = {
        "head": lambda: run.switch_off(*where, body.how, text=body.input, **more),
        "edge": lambda: run.cut_edge(body.input, *where, body.query, body.key, **more),
        "token": lambda: run.occlude(body.input, body.key, **more),
    }[body.kind]()
    return effects.document() | {"command": studio.commands.intervene(folder, body)}


async def map_of(studio: Studio, request: Request) -> Response:
    maps, place, layer, head = _asked(studio, request)
    return await studio.read(
        lambda: bytes_reply(request, map_bytes(maps, place, layer, head), "application/octet-stream")
    )


async def rows_of(studio: Studio, request: Request) -> Response:
    maps, place, layer, head = _asked(studio, request)
    start = number_of(request, "start")
    stop = number_of(request, "stop", start + 1)
    return await studio.read(
        lambda: bytes_reply(
            request, exact_rows(maps, place, layer, head, start, stop), "application/octet-stream"
        )
    )


def _asked(studio: Studio, request: Request) -> tuple[AttentionMaps, str, int, int]:
    maps = studio.maps.get(request.path_params["map"])
    return maps, request.path_params["place"], number_of(request, "layer"), number_of(request, "head")


async def export(studio: Studio, request: Request) -> Response:
    """Drawing takes long: it waits for its turn as the models do."""
    maps = studio.maps.get(request.path_params["map"])
    query = request.query_params
    ending = query.get("format", "png")
    layer, head = (number_of(request, name) if name in query else None for name in ("layer", "head"))

    def drawn() -> Response:
        data = exported(maps, ending, query.get("place"), layer, head)
        headers = {"Content-Disposition": f'attachment; filename="attention.{ending}"'}
        return bytes_reply(request, data, MEDIA_TYPES[ending], headers=headers)

    return await studio.worker.run(drawn, request)
