"""Command lines that the page shows, because they produce the same results without the studio."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from glassformer.core.config import format_value
from glassformer.runs.commands import command, plugin_arguments
from glassformer.runs.folder import CONFIG, RunFolder
from glassformer.studio.messages import (
    AttentionBody,
    AttributeBody,
    Decoding,
    HeadsBody,
    InputBody,
    InterveneBody,
    LensBody,
    PatchBody,
    ProbeBody,
    TraceBody,
)
from glassformer.studio.runs import display_path


class Commands:
    """Command lines that the page shows. They name the studio's plug-ins, because a run may need them."""

    def __init__(self, plugins: Sequence[Path]) -> None:
        self.plugin_arguments = plugin_arguments([display_path(path) for path in plugins])

    def train(self, *words: str) -> str:
        return command("train", *words, *self.plugin_arguments)

    def train_again(self, folder: RunFolder) -> str:
        return self.train(display_path(folder.path / CONFIG))

    def attention(self, folder: RunFolder, body: AttentionBody) -> str:
        options = [
            *(["--untrained"] if body.untrained else []),
            *_numbers("--layers", body.layers, ","),
            *_numbers("--heads", body.heads, ","),
            *_numbers("--rows", body.rows, ":"),
            *_decoding(body.decoding),
            *_option("--node", body.node),
            *(["--rollout"] if body.rollout else []),
            *("--out", "map.png"),
        ]
        return self._command("attention", folder, body.checkpoint, options, *_texts(body))

    def trace(self, folder: RunFolder, body: TraceBody) -> str:
        options = [*_decoding(body.decoding), "--alternatives", str(body.alternatives)]
        return self._command("trace", folder, body.checkpoint, options, *_texts(body))

    def lens(self, folder: RunFolder, body: LensBody) -> str:
        options = ["--lens", "--alternatives", str(body.alternatives)]
        return self._command("trace", folder, body.checkpoint, options, *_texts(body))

    def heads(self, folder: RunFolder, body: HeadsBody) -> str:
        return self._command("heads", folder, body.checkpoint, ["--examples", str(body.examples)])

    def intervene(self, folder: RunFolder, body: InterveneBody) -> str:
        where = f"{body.site}:{body.layer}:{body.head}"
        change = {
            "head": ["--head", where, "--ablation", body.ablation],
            "edge": ["--edge", f"{where}:{body.query}:{body.key}"],
            "token": ["--token", str(body.key)],
        }[body.kind]
        options = [*change, *_option("--examples", body.examples)]
        return self._command("intervene", folder, body.checkpoint, options, *_texts(body))

    def patch(self, folder: RunFolder, body: PatchBody) -> str:
        options = [
            *(["--noising"] if body.noising else []),
            *(["--sites", *body.sites] if body.sites else []),
        ]
        texts = [text for text in (body.input, body.corrupted) if text is not None]
        return self._command("patch", folder, body.checkpoint, options, *texts)

    def attribute(self, folder: RunFolder, body: AttributeBody) -> str:
        options = [
            *("--method", body.method),
            *_option("--output", body.output),
            *_option("--rather-than", body.rather_than),
            *(["--matrix"] if body.matrix else []),
        ]
        return self._command("attribute", folder, body.checkpoint, options, *_texts(body))

    def align(self, folder: RunFolder, body: InputBody, text: str) -> str:
        return self._command("align", folder, body.checkpoint, [], text)

    def probe(self, folder: RunFolder, body: ProbeBody) -> str:
        options = ["--examples", str(body.examples)]
        return self._command("probe", folder, body.checkpoint, options, body.label)

    def _command(
        self,
        verb: str,
        folder: RunFolder,
        checkpoint: str | None,
        options: Sequence[str],
        *texts: str,
    ) -> str:
        words = [
            display_path(folder.path),
            *_option("--checkpoint", checkpoint),
            *options,
            *self.plugin_arguments,
        ]
        # After --, an input that begins with a minus is not an option.
        return command(verb, *([*words, "--", *texts] if texts else words))


def _texts(body: InputBody) -> list[str]:
    return [] if body.input is None else [body.input]


def _option(name: str, value: object) -> list[str]:
    return [] if value is None else [name, str(value)]


def _numbers(name: str, numbers: list[int] | None, separator: str) -> list[str]:
    return [] if numbers is None else [name, separator.join(map(str, numbers))]


def _decoding(decoding: Decoding | None) -> list[str]:
    if not decoding:
        return []
    return ["--decoding", ",".join(f"{name}={format_value(value)}" for name, value in decoding.items())]
