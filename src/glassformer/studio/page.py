"""The page's own files: the studio's, those that all pages with maps share, and plotly's from its package."""

from __future__ import annotations

import gzip
import re
from functools import lru_cache
from importlib import resources, util
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from glassformer.core.errors import user_error
from glassformer.plotting.page import SHARED_SCRIPTS, SHARED_STYLES
from glassformer.studio.replies import WORTH_COMPRESSING, accepts_gzip, refusal
from glassformer.studio.state import Studio

PLOTLY = "plotly.min.js"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
}
STYLE_ID = re.compile(r"""getElementById\(["']([0-9a-f]{64})["']\)""", re.ASCII)
NAME = re.compile(r"(?:[a-z0-9][a-z0-9._-]*/)*[a-z0-9][a-z0-9._-]*", re.ASCII)


def plotly_path() -> Path:
    """Found without importing plotly, which takes a while."""
    found = util.find_spec("plotly")
    path = Path(found.origin).parent / "package_data" / PLOTLY if found and found.origin else None
    if path is None or not path.is_file():
        raise user_error(
            "plotly is not installed, and the studio draws its curves with it",
            path="plotly",
            hint='pip install "glassformer[studio]"',
        )
    return path


@lru_cache(maxsize=1)
def plotly_styles() -> tuple[str, ...]:
    """The ids of the styles that plotly writes into a page unless it finds them there.

    Our policy forbids that, and the browser's console would say so each time. They are of maps of the
    world, which nobody draws here: the page has something empty by these names.
    """
    text = plotly_path().read_text(encoding="utf-8")
    return tuple(dict.fromkeys(STYLE_ID.findall(text)))


def file_of(name: str) -> Path:
    """Where a file of the page is; a Refusal if it has none of this name."""
    own = Path(str(resources.files("glassformer.studio"))) / "static"
    if name == PLOTLY:
        return plotly_path()
    if name in (*SHARED_SCRIPTS, *SHARED_STYLES):
        return Path(str(resources.files("glassformer.plotting"))) / name
    path = own / name
    is_inside = NAME.fullmatch(name) and path.resolve().is_relative_to(own.resolve())
    if not is_inside or path.suffix not in MEDIA_TYPES or not path.is_file():
        raise refusal(404, "no such file", place="static", value=name, hint="reload the page")
    return path


async def index(studio: Studio, request: Request) -> Response:
    return await studio.read(_reply, request, "index.html")


async def static(studio: Studio, request: Request) -> Response:
    return await studio.read(_reply, request, request.path_params["name"])


def _reply(request: Request, name: str) -> Response:
    path = file_of(name)
    status = path.stat()
    tag = f'"{status.st_mtime_ns:x}-{status.st_size:x}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    if tag in [
        given.strip().removeprefix("W/") for given in request.headers.get("if-none-match", "").split(",")
    ]:
        return Response(status_code=304, headers=headers)
    if accepts_gzip(request) and status.st_size >= WORTH_COMPRESSING:
        headers["Content-Encoding"] = "gzip"
        body = _compressed(path, status.st_mtime_ns)
    else:
        body = path.read_bytes()
    return Response(body, 200, headers, MEDIA_TYPES[path.suffix])


@lru_cache(maxsize=64)
def _compressed(path: Path, changed: int) -> bytes:
    return gzip.compress(path.read_bytes(), compresslevel=6, mtime=0)
