"""The studio without a socket: routes behind the gate."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from glassformer.core.errors import ErrorDetail, UserError, is_out_of_memory
from glassformer.studio import about, form_routes, model_routes, page, run_routes
from glassformer.studio.gate import Admission, Gate
from glassformer.studio.replies import Refusal, error_reply, refusal
from glassformer.studio.state import Studio

Handler = Callable[[Studio, Request], Awaitable[Response]]

ROUTES: dict[str, dict[str, Handler]] = {
    "/": {"GET": page.index},
    "/static/{name:path}": {"GET": page.static},
    "/api/health": {"GET": about.health},
    "/api/studio": {"GET": about.about},
    "/api/form": {"GET": form_routes.form, "POST": form_routes.filled},
    "/api/runs": {"GET": run_routes.table, "POST": form_routes.start},
    "/api/runs/{run}": {"GET": run_routes.run},
    "/api/runs/{run}/events": {"GET": run_routes.events},
    "/api/runs/{run}/stop": {"POST": form_routes.stop},
    "/api/runs/{run}/film": {"GET": run_routes.film},
    "/api/runs/{run}/attention": {"POST": model_routes.attention},
    "/api/runs/{run}/trace": {"POST": model_routes.trace},
    "/api/runs/{run}/lens": {"POST": model_routes.lens},
    "/api/runs/{run}/heads": {"GET": model_routes.known_heads, "POST": model_routes.heads},
    "/api/runs/{run}/intervene": {"POST": model_routes.intervene},
    "/api/compare": {"GET": run_routes.compare},
    "/api/maps/{map}/export": {"GET": model_routes.export},
    "/api/maps/{map}/{place}/{layer}/{head}": {"GET": model_routes.map_of},
    "/api/maps/{map}/{place}/{layer}/{head}/rows": {"GET": model_routes.rows_of},
}
"""All there is: path → method → what answers."""


def create_app(studio: Studio, admission: Admission) -> ASGIApp:
    routes = [
        Route(path, _dispatch(studio, handlers), methods=list(handlers)) for path, handlers in ROUTES.items()
    ]
    handlers = {error: _told for error in (Refusal, UserError, ErrorDetail, HTTPException, Exception)}
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return Gate(app, admission)


def _dispatch(studio: Studio, handlers: dict[str, Handler]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await handlers[method](studio, request)

    return endpoint


async def _told(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        what = "no such method here" if error.status_code == 405 else "nothing is here"
        refused = refusal(error.status_code, what, value=request.method, hint="reload the page")
        return error_reply(Refusal(refused.status, refused.problem, headers=dict(error.headers or {})))
    if isinstance(error, (Refusal, UserError, ErrorDetail)):
        return error_reply(error)
    if is_out_of_memory(error):
        return error_reply(refusal(507, "not enough memory here", hint="a shorter input, fewer layers"))
    return error_reply(
        refusal(500, "the studio has failed; its terminal says how", hint="this is our fault: report it")
    )
