"""What the studio is: its version, its presets, and the colours of its maps."""

from __future__ import annotations

import base64
import re
from functools import cache
from itertools import takewhile
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from glassformer import __version__
from glassformer.inspection.maps import CAPTION
from glassformer.plotting.attention import MASKED, colours
from glassformer.runs.experiment import preset_text, presets
from glassformer.studio.folder import shown_path
from glassformer.studio.page import plotly_styles
from glassformer.studio.replies import json_reply
from glassformer.studio.state import Studio

FACT = re.compile(r"^#\s+(command|expected|time)\s+(.+)$")
MORE = re.compile(r"^#\s{5,}(\S.*)$")


async def health(studio: Studio, request: Request) -> Response:
    return json_reply(request, {"ok": True, "version": __version__})


async def about(studio: Studio, request: Request) -> Response:
    document = {
        "runs_folder": str(studio.folder.path),
        "runs_shown": shown_path(studio.folder.path),
        "plugin_words": studio.commands.plugin_words,
        "plotly_styles": await studio.read(plotly_styles),
        "version": __version__,
        "presets": list(_presets()),
        "colours": base64.b64encode(colours().tobytes()).decode("ascii"),
        "masked": MASKED.tolist(),
        "caption": CAPTION,
    }
    return json_reply(request, document)


@cache
def _presets() -> tuple[dict[str, Any], ...]:
    return tuple({"name": name, **_head(preset_text(name))} for name in presets())


def _head(text: str) -> dict[str, str]:
    """The first paragraph of a preset's head comment, and the facts that it lists."""
    comment = list(takewhile(lambda line: line.startswith("#"), text.splitlines()))
    paragraph = takewhile(lambda line: line.strip("# "), comment)
    head = {"about": " ".join(line.lstrip("# ").strip() for line in paragraph)}
    head |= {"command": "", "expected": "", "time": ""}
    fact = ""
    for line in comment:
        if match := FACT.match(line):
            fact = match[1]
            head[fact] = match[2].strip()
        elif fact and (match := MORE.match(line)):
            head[fact] += f" {match[1].strip()}"
        else:
            fact = ""
    return head
