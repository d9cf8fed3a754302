"""Routes that ask a run's model, in the worker; and the maps that it left in memory."""

from __future__ import annotations

import shlex
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from glassformer.inspection.html import described
from glassformer.inspection.maps import AttentionMaps
from glassformer.runs import RunFolder
from glassformer.studio.folder import shown_path
from glassformer.studio.map_store import MEDIA_TYPES, exact_rows, exported, map_bytes
from glassformer.studio.replies import bytes_reply, json_reply
from glassformer.studio.requests import AttentionBody, body_of, number_of
from glassformer.studio.state import Studio


async def attention(studio: Studio, request: Request) -> Response:
    folder = studio.folder.open(request.path_params["run"])
    body = await body_of(request, AttentionBody)
    return json_reply(request, await studio.worker.run(lambda: _attention(studio, folder, body)))


def _attention(studio: Studio, folder: RunFolder, body: AttentionBody) -> dict[str, Any]:
    run = studio.loaded.get(folder, body.checkpoint)
    maps = run.attention(
        body.input,
        layers=body.layers,
        heads=body.heads,
        rows=None if body.rows is None else (body.rows[0], body.rows[1]),
        is_untrained=body.untrained,
    )
    return _shown(studio, maps) | {"command": _command(folder, body, maps)}


def _shown(studio: Studio, maps: AttentionMaps) -> dict[str, Any]:
    return {"map": studio.maps.add(maps), "about": maps.about, **described(maps)}


def _command(folder: RunFolder, body: AttentionBody, maps: AttentionMaps) -> str:
    words = ["glassformer", "attention", shown_path(folder.path)]
    if body.input is not None:
        words.append(body.input)
    if body.checkpoint is not None:
        words += ["--checkpoint", body.checkpoint]
    if body.untrained:
        words.append("--random")
    for option, numbers, separator in (
        ("--layers", body.layers, ","),
        ("--heads", body.heads, ","),
        ("--rows", body.rows, ":"),
    ):
        if numbers is not None:
            words += [option, separator.join(map(str, numbers))]
    return shlex.join([*words, "--out", "map.png"])


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
    maps = studio.maps.get(request.path_params["map"])
    query = request.query_params
    ending = query.get("format", "png")
    layer, head = (number_of(request, name) if name in query else None for name in ("layer", "head"))
    data = await studio.read(exported, maps, ending, query.get("place"), layer, head)
    headers = {"Content-Disposition": f'attachment; filename="attention.{ending}"'}
    return bytes_reply(request, data, MEDIA_TYPES[ending], headers=headers)
