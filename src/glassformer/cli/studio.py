"""`glassformer studio [--runs DIR] [--port N]`"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from glassformer.cli.output import Output
from glassformer.cli.what import add_plugin, load_plugins
from glassformer.core.errors import user_error


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="where the runs are")
    parser.add_argument(
        "--port", metavar="N", help="0: any free one (default: 8770, or the next one that is free)"
    )
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="H", help="where others reach it too (default: only from here)"
    )
    parser.add_argument("--no-browser", action="store_true", help="print the link and open nothing")
    add_plugin(parser)


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any] | None:
    port = _port(arguments.port)
    if arguments.runs.exists() and not arguments.runs.is_dir():
        raise user_error("is no folder", path="--runs", value=str(arguments.runs), hint="--runs runs")
    try:
        import starlette  # noqa: F401  asked for before anything heavy is imported
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as missing:
        raise user_error(
            f"{missing.name} is not installed", path="studio", hint='pip install "glassformer[studio]"'
        ) from None
    import secrets

    from glassformer.studio.gate import Admission
    from glassformer.studio.server import Server

    load_plugins(arguments)
    admission = Admission(secrets.token_urlsafe(32), arguments.host)
    server = Server(arguments.runs, admission, port, [path.absolute() for path in arguments.plugin])
    output.say(f"studio  {server.link}", style="bold")
    output.say(f"runs    {arguments.runs}")
    if not admission.is_loopback:
        output.say(
            "WARNING: other machines reach this one. Whoever has the link can read every run here, and can"
            " start trainings as you. The connection is not encrypted: keep it to networks that you trust,"
            " or leave --host out and use ssh -L."
        )
    output.say("Ctrl-C ends it; trainings go on")
    output.give(
        {
            "url": server.link,
            "host": arguments.host,
            "port": server.port,
            "token": admission.token,
            "runs": str(arguments.runs),
        }
    )
    server.serve(opens_browser=not arguments.no_browser)
    return None


def _port(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()) or int(text) > 65535:
        raise user_error("no port", path="--port", value=text, hint="a number from 0 to 65535")
    return int(text)
