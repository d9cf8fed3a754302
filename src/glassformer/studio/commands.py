"""What one types to get the same without the studio."""

from __future__ import annotations

import shlex
from typing import Any

from glassformer.runs import RunFolder
from glassformer.studio.folder import shown_path
from glassformer.studio.requests import AttentionBody, HeadsBody, InterveneBody, TraceBody


def attention_command(folder: RunFolder, body: AttentionBody) -> str:
    if body.decoding is not None or body.branch is not None:
        return _python(
            folder,
            body.checkpoint,
            "attention",
            {
                "text": body.input,
                "layers": body.layers,
                "heads": body.heads,
                "rows": None if body.rows is None else tuple(body.rows),
                "is_untrained": body.untrained or None,
                "decoding": body.decoding,
                "branch": body.branch,
            },
            'save("map.png")',
        )
    words = ["glassformer", "attention", shown_path(folder.path)]
    words += _option("--checkpoint", body.checkpoint)
    words += ["--random"] if body.untrained else []
    for option, numbers, separator in (
        ("--layers", body.layers, ","),
        ("--heads", body.heads, ","),
        ("--rows", body.rows, ":"),
    ):
        words += _option(option, None if numbers is None else separator.join(map(str, numbers)))
    words += ["--out", "map.png"]
    if body.input is not None:
        words += ["--", body.input]
    return shlex.join(words)


def trace_command(folder: RunFolder, body: TraceBody) -> str:
    given = {"text": body.input, "decoding": body.decoding, "alternatives": body.alternatives}
    return _python(folder, body.checkpoint, "trace", given, "document()")


def heads_command(folder: RunFolder, body: HeadsBody) -> str:
    return _python(folder, body.checkpoint, "heads", {"examples": body.examples})


def intervene_command(folder: RunFolder, body: InterveneBody) -> str:
    where = {"place": body.place, "layer": body.layer, "head": body.head}
    method, given = {
        "head": ("switch_off", {**where, "how": body.how, "text": body.input}),
        "edge": ("cut_edge", {"text": body.input, **where, "query": body.query, "key": body.key}),
        "token": ("occlude", {"text": body.input, "position": body.key}),
    }[body.kind]
    return _python(folder, body.checkpoint, method, given | {"examples": body.examples}, "document()")


def _option(name: str, value: str | None) -> list[str]:
    return [] if value is None else [name, value]


def _python(
    folder: RunFolder, checkpoint: str | None, method: str, given: dict[str, Any], then: str = ""
) -> str:
    """A line of Python; `text` is named even if it is none, since some methods must have one."""
    opened = ", ".join(repr(value) for value in (shown_path(folder.path), checkpoint) if value is not None)
    passed = ", ".join(
        f"{name}={value!r}" for name, value in given.items() if value is not None or name == "text"
    )
    call = f"gf.Run({opened}).{method}({passed})" + (f".{then}" if then else "")
    return shlex.join(["python", "-c", f"import glassformer as gf; print({call})"])
