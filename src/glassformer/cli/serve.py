"""`glassformer serve RUN …`: serve trained models over HTTP for predictions, completions and translations."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.cli.arguments import add_checkpoint, add_plugin, add_weights, check_minimum, load_plugins
from glassformer.cli.output import Output
from glassformer.core.errors import user_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from glassformer.serving.app import Service
    from glassformer.serving.examples import ExampleReader
    from glassformer.serving.served import Languages, ServedRun

TOKEN_VARIABLE = "GLASSFORMER_TOKEN"
NEW = "new"
SHORTEST_TOKEN = 16

EXAMPLES = (
    "glassformer serve runs/translation-1",
    "glassformer serve runs/classification-1 en-fr=runs/translation-1 --port 9000 --verbose",
    "glassformer serve runs/shakespeare-1 --host 0.0.0.0 --token new",
)


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "runs", metavar="RUN", nargs="+", help="folders of trained models; NAME=RUN serves a run under a name"
    )
    add("--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on; others need a token")
    add("--port", metavar="N", help="port; 0 picks any free port (default: 8780, or the next free port)")
    token_help = f"token that clients must send; {NEW} makes one (default: ${TOKEN_VARIABLE}, if it is set)"
    add("--token", metavar="TEXT", help=token_help)
    languages_help = (
        "languages of a translation run, such as en:fr or NAME=en:fr (default: from its data files)"
    )
    add("--languages", metavar="en:fr", action="append", default=[], help=languages_help)
    engine_help = (
        "engine that decodes predictions and translations, or NAME=ENGINE for one run: glassformer or"
        " ctranslate2 (default: the run's)"
    )
    add("--engine", metavar="ENGINE", action="append", default=[], help=engine_help)
    add_weights(parser)
    public_help = (
        "address of a proxy before the server, such as https://models.example.org; a token is then needed"
    )
    add("--public-url", metavar="URL", help=public_help)
    add("--max-batch", type=int, default=32, help="maximum number of inputs computed together")
    add(
        "--max-wait-ms", type=float, default=5.0, metavar="MS", help="time that a batch waits for more inputs"
    )
    add("--queue", type=int, default=512, help="maximum number of inputs that wait for one model")
    add("--max-body", type=int, default=1024, metavar="KB", help="maximum size of a request")
    threads_help = "threads per model (default: half of the cores)"
    add("--threads", type=int, help=threads_help)
    drain_help = "time for open requests to finish when the server is stopped"
    add("--drain-seconds", type=int, default=30, metavar="S", help=drain_help)
    add("--verbose", action="store_true", help="print one line per request")
    add_checkpoint(parser)
    add_plugin(parser)


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any] | None:
    minimums = {"max_batch": 1, "max_wait_ms": 0, "queue": 1, "max_body": 1, "threads": 1, "drain_seconds": 0}
    check_minimum(arguments, **minimums)
    port = _port(arguments.port)
    paths = _named(arguments.runs)
    _import_server()
    from glassformer.serving.app import Server, admission

    arguments.public_url = _public_url(arguments.public_url)
    token = _token(arguments)
    languages = _languages(arguments.languages, list(paths))
    engines = _engines(arguments.engine, list(paths))
    service = _open_service(arguments, paths, languages, engines)
    server = Server(
        service,
        admission(token, arguments.host, service.settings, arguments.public_url),
        port,
        output.print if arguments.verbose else None,
    )
    _introduce(server.url, token, list(service.runs.values()), output)
    if not server.rules.is_loopback:
        output.print(
            "WARNING: other machines can reach this server, and the connection is not encrypted: use it only"
            " on networks that you trust, or put a proxy with TLS before it."
        )
    output.give(
        {
            "url": server.url,
            "host": arguments.host,
            "port": server.port,
            "token": token,
            "runs": {
                name: {"run": str(paths[name]), "endpoints": served.endpoints}
                for name, served in service.runs.items()
            },
        }
    )
    examples = _try_out(server.url, token, service.runs, arguments.plugin, output)
    try:
        server.serve()
    finally:
        examples.stop()
    if service.cut_off:
        output.print(
            f"stopped, {service.cut_off:,} open request{'s' * (service.cut_off != 1)} did not finish within"
            f" {service.settings.drain_seconds} s (--drain-seconds)"
        )
    else:
        output.print("stopped, all open requests are finished")
    return None


def _open_service(
    arguments: argparse.Namespace,
    paths: Mapping[str, Path],
    languages: Mapping[str, Languages],
    engines: Mapping[str, Any],
) -> Service:
    """Load the runs, and return the service with their models."""
    from glassformer.core.system import usable_cores
    from glassformer.serving.app import Service
    from glassformer.serving.limits import Settings
    from glassformer.serving.served import load

    settings = Settings(
        max_batch=arguments.max_batch,
        max_wait_ms=arguments.max_wait_ms,
        queue=arguments.queue,
        body_bytes=arguments.max_body << 10,
        threads=arguments.threads or max(1, usable_cores() // 2),
        drain_seconds=arguments.drain_seconds,
    )
    load_plugins(arguments)
    service = Service({}, settings)
    service.runs = {
        name: load(
            name,
            path,
            arguments.checkpoint,
            languages.get(name),
            settings,
            service.metrics,
            engines[name],
            arguments.weights,
        )
        for name, path in paths.items()
    }
    return service


def _import_server() -> None:
    try:
        import starlette  # noqa: F401  checked before anything heavy is imported
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as missing:
        raise user_error(
            f"{missing.name} is not installed", path="serve", hint='pip install "glassformer[serve]"'
        ) from None


def _named(words: list[str]) -> dict[str, Path]:
    """Return the folders of the runs by name: NAME=RUN, or the folder's own name."""
    named: dict[str, Path] = {}
    for word in words:
        name, equals, path = word.partition("=")
        if not equals or os.path.exists(word):
            name, path = Path(os.path.abspath(word)).name, word
        if not name or not path:
            raise user_error("expected NAME=RUN", path="RUN", value=word, hint="serve demo=runs/reversal-1")
        if name in named:
            raise user_error(
                "two runs have the same name", path="RUN", value=name, hint=f"name one of them: other={path}"
            )
        named[name] = Path(path)
    return named


def _port(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()) or int(text) > 65535:
        raise user_error("expected a number from 0 to 65535", path="--port", value=text, hint="--port 8780")
    return int(text)


def _token(arguments: argparse.Namespace) -> str | None:
    """Return the token that clients must send. Beyond loopback and behind a proxy there is always one."""
    import secrets

    from glassformer.web.gate import is_loopback

    given: str | None = arguments.token or os.environ.get(TOKEN_VARIABLE)
    is_public = arguments.public_url is not None or not is_loopback(arguments.host)
    if given == NEW or (given is None and is_public):
        return secrets.token_urlsafe(32)
    if given is not None and (len(given) < SHORTEST_TOKEN or not given.isascii() or not given.isprintable()):
        raise user_error(
            f"a token has at least {SHORTEST_TOKEN} printable ASCII characters",
            path="--token",
            hint=f"--token {NEW} makes one",
        )
    return given


def _public_url(text: str | None) -> str | None:
    """Return the address of the proxy as browsers send it in Origin: no slash at the end, small letters."""
    from urllib.parse import urlsplit

    if text is None:
        return None
    try:
        parts = urlsplit(text.strip().rstrip("/").lower())
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address or parts.path or parts.query or parts.fragment or "@" in parts.netloc:
        raise user_error(
            "expected the address of a host, without a path",
            path="--public-url",
            value=text,
            hint="--public-url https://models.example.org",
        )
    return parts.geturl()


def _engines(words: list[str], names: list[str]) -> dict[str, str | None]:
    """Return the engine of each run: that of NAME=ENGINE, else that of ENGINE, else None."""
    found: dict[str, str | None] = dict.fromkeys(names)
    for word in sorted(words, key=lambda word: "=" in word):
        name, equals, engine = word.rpartition("=")
        if equals and name not in names:
            raise user_error("no run of this name is served", path="--engine", value=name, allowed=names)
        found |= dict.fromkeys([name] if equals else names, engine)
    return found


def _languages(words: list[str], names: list[str]) -> dict[str, Languages]:
    from glassformer.serving.served import Languages

    found = {}
    for word in words:
        name, equals, pair = word.rpartition("=")
        codes = [code.strip().lower() for code in pair.split(":")]
        if len(codes) != 2 or not all(codes) or (not equals and len(names) > 1):
            hint = f"--languages {names[0]}=en:fr" if len(names) > 1 else "--languages en:fr"
            raise user_error("expected the languages of a run", path="--languages", value=word, hint=hint)
        if equals and name not in names:
            raise user_error("no run of this name is served", path="--languages", value=name, allowed=names)
        found[name or names[0]] = Languages(*codes)
    return found


def _introduce(url: str, token: str | None, runs: list[ServedRun], output: Output) -> None:
    """Print the address, the token, and the runs with their endpoints."""
    output.print(f"serving  {url}" + (f"#token={token}" if token else ""), style="bold")
    for served in runs:
        output.print(f"  {served.name}: {', '.join(served.endpoints)}")
        if served.languages is None and served.run.config.task.kind == "translation":
            output.print("    not at /translate, because its languages are unknown: add --languages en:fr")
    if token:
        output.print(f"token    {token}")
    output.print("Ctrl-C stops the server")


def _try_out(
    url: str, token: str | None, runs: Mapping[str, ServedRun], plugins: list[str], output: Output
) -> ExampleReader:
    """Print one command per run that works as it is, when an input of its data is read."""
    from glassformer.serving.examples import ExampleReader

    def print_when_read() -> None:
        for served in runs.values():
            served.has_examples.wait()
            if served.examples:
                output.print(f"try      {_curl(url, token, served, len(runs) > 1)}")

    reader = ExampleReader(runs, plugins)
    threading.Thread(target=print_when_read, daemon=True).start()
    return reader


def _curl(url: str, token: str | None, served: ServedRun, is_named: bool) -> str:
    body: dict[str, Any] = {"run": served.name} if is_named else {}
    body["inputs"] = served.examples[0]
    key = f" -H {shlex.quote(f'Authorization: Bearer {token}')}" if token else ""
    text = shlex.quote(json.dumps(body, ensure_ascii=False))
    return f"curl {url}v1/predict{key} -H 'Content-Type: application/json' -d {text}"
