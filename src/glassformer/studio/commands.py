"""What one types to get the same without the studio."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from glassformer.config import format_value
from glassformer.runs import RunFolder
from glassformer.studio.folder import shown_path
from glassformer.studio.requests import AttentionBody, Decoding, HeadsBody, InterveneBody, TraceBody


def attention_command(folder: RunFolder, body: AttentionBody) -> str:
    options = [
        *(["--random"] if body.untrained else []),
        *_numbers("--layers", body.layers, ","),
        *_numbers("--heads", body.heads, ","),
        *_numbers("--rows", body.rows, ":"),
        *_decoding(body.decoding),
        *_option("--branch", body.branch),
        *("--out", "map.png"),
    ]
    return _command("attention", folder, body.checkpoint, options, body.input)


def trace_command(folder: RunFolder, body: TraceBody) -> str:
    options = [*_decoding(body.decoding), "--alternatives", str(body.alternatives)]
    return _command("trace", folder, body.checkpoint, options, body.input)


def heads_command(folder: RunFolder, body: HeadsBody) -> str:
    return _command("heads", folder, body.checkpoint, ["--examples", str(body.examples)])


def intervene_command(folder: RunFolder, body: InterveneBody) -> str:
    where = f"{body.place}:{body.layer}:{body.head}"
    change = {
        "head": ["--head", where, "--how", body.how],
        "edge": ["--edge", f"{where}:{body.query}:{body.key}"],
        "token": ["--token", str(body.key)],
    }[body.kind]
    return _command(
        "intervene", folder, body.checkpoint, [*change, *_option("--examples", body.examples)], body.input
    )


def _command(
    verb: str, folder: RunFolder, checkpoint: str | None, options: Sequence[str], text: str | None = None
) -> str:
    words = ["glassformer", verb, shown_path(folder.path), *_option("--checkpoint", checkpoint), *options]
    # Behind -- even an input that begins with a minus is an input.
    return shlex.join(words if text is None else [*words, "--", text])


def _option(name: str, value: object) -> list[str]:
    return [] if value is None else [name, str(value)]


def _numbers(name: str, numbers: list[int] | None, separator: str) -> list[str]:
    return [] if numbers is None else [name, separator.join(map(str, numbers))]


def _decoding(decoding: Decoding | None) -> list[str]:
    if not decoding:
        return []
    return ["--decoding", ",".join(f"{name}={format_value(value)}" for name, value in decoding.items())]
