"""The studio as an ASGI application and as a server: shared state, routes, static files, shutdown."""

from __future__ import annotations

import re
import socket
import threading
import webbrowser
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from importlib import resources, util
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from glassformer import __version__
from glassformer.core.cache import LRUCache
from glassformer.core.errors import ErrorDetail, UserError, is_out_of_memory, user_error
from glassformer.evaluation.metrics import EXPLANATIONS
from glassformer.inspection.maps import CAPTION
from glassformer.plotting.page import SHARED_SCRIPTS, SHARED_STYLES, scales
from glassformer.runs.commands import preset_sentence
from glassformer.runs.experiment import preset_text, presets
from glassformer.studio import forms, limits, models, preview, runs
from glassformer.studio.commands import Commands
from glassformer.studio.maps import MapStore
from glassformer.studio.models import LoadedRuns, Worker
from glassformer.studio.runs import RunsFolder, display_path
from glassformer.studio.trainings import Trainings
from glassformer.web.gate import Admission, Gate
from glassformer.web.listening import address, listen, make_uvicorn
from glassformer.web.messages import Refusal, error_reply, file_reply, json_reply, refusal, static_file

Result = TypeVar("Result")


@dataclass
class Studio:
    """State that all routes share: the runs folder, the model worker, started trainings, and caches."""

    folder: RunsFolder
    plugins: Sequence[Path] = ()
    """Plug-in files of the user. Trainings started here load them, and displayed commands name them."""
    worker: Worker = field(default_factory=Worker)
    trainings: Trainings = field(init=False)
    commands: Commands = field(init=False)
    loaded: LoadedRuns = field(default_factory=LoadedRuns)
    maps: MapStore = field(default_factory=MapStore)
    model_infos: LRUCache[Any, Any] = field(default_factory=lambda: LRUCache(limits.CACHED_STATISTICS))
    heads: LRUCache[Any, Any] = field(default_factory=lambda: LRUCache(limits.CACHED_STATISTICS))
    shows_files: bool = True
    """True if the page may show the beginning of data files, which are outside of the runs folder."""
    _files: anyio.CapacityLimiter | None = None

    def __post_init__(self) -> None:
        self.trainings = Trainings(self.folder, self.plugins)
        self.commands = Commands(self.plugins)

    async def reply(
        self, request: Request, work: Callable[..., Any], *arguments: Any, status: int = 200
    ) -> Response:
        """Run `work` in a thread, and return its result as a JSON reply."""
        return await self.read(lambda: json_reply(request, work(*arguments), status))

    async def ask_model(self, request: Request, work: Callable[..., Any], *arguments: Any) -> Response:
        """Run `work` in the thread of the model worker, and return its result as a JSON reply."""
        return await self.worker.run(lambda: json_reply(request, work(*arguments)), request)

    async def read(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Run `work` in a thread and return its result. Reading files must not block other requests."""
        if self._files is None:
            self._files = anyio.CapacityLimiter(limits.FILE_THREADS)
        return await anyio.to_thread.run_sync(partial(work, *arguments), limiter=self._files)


PLOTLY = "plotly.min.js"
STYLE_ID = re.compile(r"""getElementById\(["']([0-9a-f]{64})["']\)""", re.ASCII)


def plotly_path() -> Path:
    """Return the path of plotly's script. Plotly is not imported, because that is slow."""
    found = util.find_spec("plotly")
    path = Path(found.origin).parent / "package_data" / PLOTLY if found and found.origin else None
    if path is None or not path.is_file():
        raise user_error(
            "the studio draws curves with plotly, which is not installed",
            path="plotly",
            hint='pip install "glassformer[studio]"',
        )
    return path


@lru_cache(maxsize=1)
def plotly_styles() -> tuple[str, ...]:
    """Return the ids of the style elements that plotly injects into a page unless they exist.

    The page creates empty elements with these ids, because our Content-Security-Policy forbids the injection
    and the browser would log errors. The styles are for geographic maps, which the studio does not draw.
    """
    text = plotly_path().read_text(encoding="utf-8")
    return tuple(dict.fromkeys(STYLE_ID.findall(text)))


def file_of(name: str) -> Path:
    """Return the path of a static file of the page, or raise a 404 `Refusal` for any other name."""
    if name == PLOTLY:
        return plotly_path()
    if name in (*SHARED_SCRIPTS, *SHARED_STYLES):
        return Path(str(resources.files("glassformer.plotting"))) / name
    return static_file("glassformer.studio", name)


async def index(studio: Studio, request: Request) -> Response:
    return await studio.read(_reply, request, "index.html")


async def static(studio: Studio, request: Request) -> Response:
    return await studio.read(_reply, request, request.path_params["name"])


def _reply(request: Request, name: str) -> Response:
    return file_reply(request, file_of(name))


FIRST_PRESET = "reversal"
"""Preset of the README, which a new run offers first."""
FACT = re.compile(r"^#\s+(command|expected|time)\s+(.+)$")
MORE = re.compile(r"^#\s{5,}(\S.*)$")


async def health(studio: Studio, request: Request) -> Response:
    return json_reply(request, {"ok": True, "version": __version__})


async def about(studio: Studio, request: Request) -> Response:
    document = {
        "runs_folder": str(studio.folder.path),
        "runs_shown": display_path(studio.folder.path),
        "plugin_words": studio.commands.plugin_arguments,
        "plotly_styles": await studio.read(plotly_styles),
        "version": __version__,
        "presets": list(_presets()),
        "scales": await studio.read(scales),
        "caption": CAPTION,
        "metrics": EXPLANATIONS,
    }
    return json_reply(request, document)


@cache
def _presets() -> tuple[dict[str, Any], ...]:
    names = sorted(presets(), key=lambda name: (name != FIRST_PRESET, name))
    return tuple(
        {"name": name, "sentence": preset_sentence(name), **_head(preset_text(name))} for name in names
    )


def _head(text: str) -> dict[str, str]:
    """Parse the head comment of a preset to a dict with its description, command, expected score and time."""
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


Handler = Callable[[Studio, Request], Awaitable[Response]]

ROUTES: dict[str, dict[str, Handler]] = {
    "/": {"GET": index},
    "/static/{name:path}": {"GET": static},
    "/api/health": {"GET": health},
    "/api/studio": {"GET": about},
    "/api/form": {"GET": forms.form, "POST": forms.filled},
    "/api/preview": {"POST": preview.preview},
    "/api/runs": {"GET": runs.table, "POST": forms.start},
    "/api/runs/{run}": {"GET": runs.run},
    "/api/runs/{run}/events": {"GET": runs.events},
    "/api/runs/{run}/stop": {"POST": forms.stop},
    "/api/runs/{run}/film": {"GET": runs.film},
    "/api/runs/{run}/attention": {"POST": models.attention},
    "/api/runs/{run}/trace": {"POST": models.trace},
    "/api/runs/{run}/lens": {"POST": models.lens},
    "/api/runs/{run}/heads": {"GET": models.known_heads, "POST": models.heads},
    "/api/runs/{run}/intervene": {"POST": models.intervene},
    "/api/runs/{run}/patch": {"POST": models.patch},
    "/api/runs/{run}/attribute": {"POST": models.attribute},
    "/api/runs/{run}/align": {"POST": models.align},
    "/api/runs/{run}/probe": {"POST": models.probe},
    "/api/compare": {"GET": runs.compare},
    "/api/maps/{map}/export": {"GET": models.export},
    "/api/maps/{map}/{site}/{layer}/{head}": {"GET": models.map_cells},
    "/api/maps/{map}/{site}/{layer}/{head}/rows": {"GET": models.map_rows},
}
"""Routes of the application: URL path → HTTP method → handler."""


def create_app(studio: Studio, admission: Admission) -> ASGIApp:
    studio.shows_files = admission.is_loopback
    routes = [
        Route(path, _dispatch(studio, handlers), methods=list(handlers)) for path, handlers in ROUTES.items()
    ]
    handlers = {
        error: _error_handler for error in (Refusal, UserError, ErrorDetail, HTTPException, Exception)
    }
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return Gate(app, admission)


def _dispatch(studio: Studio, handlers: dict[str, Handler]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await handlers[method](studio, request)

    return endpoint


async def _error_handler(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        message = "method not allowed" if error.status_code == 405 else "page not found"
        refused = refusal(error.status_code, message, value=request.method, hint="reload the page")
        refused.headers |= error.headers or {}
        return error_reply(refused)
    if isinstance(error, (Refusal, UserError, ErrorDetail)):
        return error_reply(error)
    if is_out_of_memory(error):
        return error_reply(refusal(507, "out of memory", hint="use a shorter input, or choose fewer layers"))
    message = "the studio failed because of a bug; its terminal shows the error"
    return error_reply(refusal(500, message, hint="report the bug with this error"))


DEFAULT_PORT = 8770
SHUTDOWN_SECONDS = 2


@dataclass
class Server:
    """HTTP server. It listens from construction on, and `serve` runs until the process gets a signal."""

    runs: Path
    admission: Admission
    port: int | None = None
    plugins: Sequence[Path] = ()
    socket: socket.socket = field(init=False)
    studio: Studio = field(init=False)

    def __post_init__(self) -> None:
        plotly_path()
        self.studio = Studio(RunsFolder(self.runs), tuple(self.plugins))
        self.socket = listen(self.admission.host, self.port, DEFAULT_PORT)
        self.port = self.socket.getsockname()[1]

    @property
    def link(self) -> str:
        """Link for the browser. The token is in the fragment, which browsers never send to a server."""
        return f"{address(self.admission.host, self.port or 0)}#token={self.admission.token}"

    def serve(self, *, opens_browser: bool) -> None:
        if opens_browser:
            # In a thread, because some browsers block until they are closed.
            threading.Thread(target=webbrowser.open, args=(self.link,), daemon=True).start()
        try:
            self.uvicorn().run(sockets=[self.socket])
        finally:
            self.studio.worker.stop()
            self.socket.close()

    def uvicorn(self) -> uvicorn.Server:
        return make_uvicorn(create_app(self.studio, self.admission), SHUTDOWN_SECONDS)
