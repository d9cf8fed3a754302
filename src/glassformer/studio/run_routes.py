"""Routes about runs: their table, one of them, its record as it grows, two of them side by side, its film."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from glassformer.core.config import dump_yaml, flatten
from glassformer.runs.folder import RunFolder
from glassformer.studio import limits
from glassformer.studio.folder import status_of
from glassformer.studio.introduction import introduce
from glassformer.studio.record import read_after
from glassformer.studio.replies import refusal
from glassformer.studio.requests import number_of
from glassformer.studio.state import Studio

FILM_POINTS = 2000


async def table(studio: Studio, request: Request) -> Response:
    return await studio.reply(request, _table, studio)


def _table(studio: Studio) -> dict[str, Any]:
    document = studio.folder.table()
    there = {row["name"] for row in document["runs"]}
    return document | {"runs": [*studio.trainings.rows(there), *document["runs"]]}


async def run(studio: Studio, request: Request) -> Response:
    folder = studio.folder.open(request.path_params["run"])
    introduction = await introduce(studio, folder)
    return await studio.reply(request, lambda: _described(studio, folder) | introduction)


def _described(studio: Studio, folder: RunFolder) -> dict[str, Any]:
    config = folder.config()
    return {
        "name": folder.path.name,
        **_status(folder),
        "config": flatten(config),
        "yaml": dump_yaml(config),
        "results": folder.results(),
        "environment": folder.environment(),
        "checkpoints": checkpoints(folder),
        "said": studio.trainings.said(folder.path.name),
        "command": studio.commands.train_again(folder),
    }


def _status(folder: RunFolder) -> dict[str, Any]:
    status = status_of(folder)
    return {"status": status.name, "step": status.step, "total_steps": status.total_steps}


def checkpoints(folder: RunFolder) -> list[dict[str, Any]]:
    """From the oldest to the newest, one a step: what was kept for the film too has the same weights."""
    store = folder.checkpoints()
    best, latest = store.pointed("best"), store.pointed("latest")
    names: dict[int, str] = {}
    for name in sorted(store.names(), key=len):
        if (step := name.split("-")[1]).isdecimal():
            names.setdefault(int(step), name)
    return [
        {"name": name, "step": step, "is_best": name == best, "is_latest": name == latest}
        for step, name in sorted(names.items())
    ]


async def events(studio: Studio, request: Request) -> Response:
    folder = studio.folder.open(request.path_params["run"])
    after, mark = number_of(request, "after", 0), request.query_params.get("mark")
    return await studio.reply(request, _events, folder, after, mark)


def _events(folder: RunFolder, after: int, mark: str | None) -> dict[str, Any]:
    # The status first: when it says that the run is over, the record below it is complete.
    status = _status(folder)
    return read_after(folder.events.path, after, mark) | status


async def compare(studio: Studio, request: Request) -> Response:
    names = request.query_params.getlist("run")
    if not 1 <= len(names) <= limits.COMPARED_RUNS:
        raise refusal(
            400,
            "which runs?",
            place="run",
            value=len(names),
            hint=f"run=A&run=B, at most {limits.COMPARED_RUNS}",
        )
    folders = [studio.folder.open(name) for name in dict.fromkeys(names)]
    return await studio.reply(request, lambda: {"differences": _differences(folders)})


def _differences(folders: list[RunFolder]) -> dict[str, dict[str, Any]]:
    options = {folder.path.name: flatten(folder.config()) for folder in folders}
    paths = dict.fromkeys(path for of_run in options.values() for path in of_run)
    missing = object()
    return {
        path: {name: of_run[path] for name, of_run in options.items() if path in of_run}
        for path in paths
        if len({repr(of_run.get(path, missing)) for of_run in options.values()}) > 1
    }


async def film(studio: Studio, request: Request) -> Response:
    folder = studio.folder.open(request.path_params["run"])
    return await studio.reply(request, _film, folder)


def _film(folder: RunFolder) -> dict[str, Any]:
    events: list[dict[str, Any]] = []
    reply: dict[str, Any] = {"next": 0, "mark": None, "more": True}
    while reply["more"] and not reply.get("restart"):
        reply = read_after(folder.events.path, reply["next"], reply["mark"], most_steps=FILM_POINTS)
        events += reply["events"]
    return {
        "checkpoints": [{"name": item["name"], "step": item["step"]} for item in checkpoints(folder)],
        "scores": [event for event in events if event.get("event") == "heads"],
        "loss": [[event.get("step"), event.get("loss")] for event in events if event.get("event") == "step"],
    }
