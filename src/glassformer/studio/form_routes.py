"""Routes that act on trainings: the form of a new run, its start, and the stop of one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from glassformer.studio.draft import draft
from glassformer.studio.replies import json_reply, refusal
from glassformer.studio.requests import FormBody, body_of
from glassformer.studio.state import Studio

NUMBER = re.compile(r"-\d+$")


async def form(studio: Studio, request: Request) -> Response:
    what = request.query_params.get("what")
    if not what:
        raise refusal(400, "of what?", place="what", hint="what=reversal")
    return await studio.reply(request, _form, studio, what, {})


async def filled(studio: Studio, request: Request) -> Response:
    body = await body_of(request, FormBody)
    return await studio.reply(request, _form, studio, body.what, body.values)


def _form(studio: Studio, what: str, values: Mapping[str, Any]) -> dict[str, Any]:
    made = draft(studio.folder, what, values)
    return made.document() | {"command": studio.commands.train(*made.words)}


async def start(studio: Studio, request: Request) -> Response:
    body = await body_of(request, FormBody)
    made = await studio.read(draft, studio.folder, body.what, body.values)
    if made.problems:
        errors = made.errors()
        return json_reply(request, {"error": errors[0], "errors": errors}, status=400)
    name = await studio.read(studio.trainings.start, NUMBER.sub("", body.what) or body.what, made.words)
    return json_reply(request, {"run": name, "command": studio.commands.train(*made.words)}, status=201)


async def stop(studio: Studio, request: Request) -> Response:
    name = request.path_params["run"]
    studio.folder.path_of(name)
    await studio.read(studio.trainings.stop, name)
    return json_reply(request, {"run": name, "asked": "SIGTERM"}, status=202)
