"""`glassformer studio [--runs DIR] [--port N]`: serve the studio's web page on this machine."""

from __future__ import annotations

import argparse
from typing import Any

from glassformer.cli.arguments import add_plugin, add_runs_folder, load_plugins
from glassformer.cli.output import Output
from glassformer.core.errors import user_error

EXAMPLES = (
    "glassformer studio",
    "glassformer studio --runs experiments --port 9000 --no-browser",
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_runs_folder(parser)
    parser.add_argument(
        "--port",
        metavar="N",
        help="port to listen on; 0 picks any free port (default: 8770, or the next free port)",
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address to listen on; the default accepts connections from this machine only",
    )
    parser.add_argument("--no-browser", action="store_true", help="print the link and do not open a browser")
    add_plugin(parser)


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any] | None:
    port = _port(arguments.port)
    if arguments.runs.exists() and not arguments.runs.is_dir():
        raise user_error("this is not a folder", path="--runs", value=str(arguments.runs), hint="--runs runs")
    try:
        import starlette  # noqa: F401  checked before anything heavy is imported
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as missing:
        raise user_error(
            f"{missing.name} is not installed", path="studio", hint='pip install "glassformer[studio]"'
        ) from None
    import secrets

    from glassformer.studio.app import Server
    from glassformer.web.gate import Admission

    load_plugins(arguments)
    admission = Admission(secrets.token_urlsafe(32), arguments.host)
    server = Server(arguments.runs, admission, port, [path.absolute() for path in arguments.plugin])
    output.print(f"studio  {server.link}", style="bold")
    output.print(f"runs    {arguments.runs}")
    if not admission.is_loopback:
        output.print(
            "WARNING: other machines can reach this server. Anyone with the link can read every run here and"
            " start trainings as you. The connection is not encrypted: use it only on networks that you"
            " trust, or leave --host out and use ssh -L."
        )
    output.print("Ctrl-C stops the studio; trainings that it started continue")
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
        raise user_error("expected a number from 0 to 65535", path="--port", value=text, hint="--port 8770")
    return int(text)
