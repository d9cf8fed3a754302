"""Target `onnx`: graphs for ONNX Runtime, with a short program that needs only numpy and onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from glassformer.interchange.export import (
    ExportExample,
    ExportPlan,
    ExportSource,
    LoadingScript,
    Obstacle,
    Outputs,
    Target,
    rounding_error,
)
from glassformer.interchange.exported_text import describe_text, needs_library, tokenizers_of
from glassformer.interchange.exported_tokenizer import input_template, tokenizer_document
from glassformer.interchange.onnx_graphs import OPSET, write_graphs
from glassformer.models.base import Model
from glassformer.models.seq2seq import EncoderDecoder
from glassformer.models.transformer import CausalLanguageModel, TransformerConfig
from glassformer.storage.files import json_bytes

CONFIG_FILE = "config.json"
SCRIPT = """\
import sys

folder, text = FOLDER, TEXT
sys.path.insert(0, folder)
from run import Model

print(Model(folder).predict([text])[0]["output"])
"""

ROUNDINGS = 4
"""Allowed difference of two float32 engines, as a multiple of the rounding error of the model in float32."""


class GraphTarget(Target):
    """Base class of the targets that run ONNX graphs, with any engine that computes in float32."""

    def limit(self, source: ExportSource, examples: Sequence[ExportExample], ours: Outputs) -> float:
        """Return the usual limit, or a multiple of the model's own rounding error if that is larger."""
        return max(
            super().limit(source, examples, ours),
            float(f"{ROUNDINGS * rounding_error(source, examples, ours):.1e}"),
        )

    def obstacles(self, plan: ExportPlan) -> list[Obstacle]:
        """Return an obstacle if the model is not a Transformer of this package, whose graphs are known."""
        if isinstance(plan.model, TransformerConfig):
            return []
        reason = "only models of the kind transformer have graphs"
        return [Obstacle("model.kind", reason, "train with model.kind=transformer")]


class OnnxTarget(GraphTarget):
    """Export to ONNX: one graph, or one for the encoder and one for each cached decoding step."""

    name = "onnx"
    tolerance = 1e-5
    packages = ("onnx", "onnxscript", "onnxruntime")
    engine = "run_onnx.py"
    library = "onnxruntime"

    def loading_script(self, source: ExportSource) -> LoadingScript:
        needs = any(needs_library(tokenizer) for tokenizer in tokenizers_of(source.task).values())
        return LoadingScript("numpy onnxruntime" + (" tokenizers" if needs else ""), SCRIPT)

    def write(self, source: ExportSource, folder: Path) -> None:
        graphs = write_graphs(source.run.model, folder)
        write_description(source, folder, graphs)
        for name in ("run.py", "text.py"):
            (folder / name).write_bytes(shipped("onnx_folder", name))


def write_description(
    source: ExportSource, folder: Path, graphs: list[str], more: Mapping[str, Any] | None = None
) -> None:
    """Write `config.json` and the tokenizers, from which a program reads inputs and shows outputs."""
    task = source.task
    for file, tokenizer in tokenizers_of(task).items():
        document = tokenizer_document(tokenizer, input_template(task))
        (folder / file).write_bytes(json_bytes(document))
    config = {
        "task": type(source.task_type).__name__,
        "opset": OPSET,
        "graphs": graphs,
        "empty_cache": empty_cache(source.run.model),
        **describe_text(task),
        **(more or {}),
    }
    (folder / CONFIG_FILE).write_bytes(json_bytes(config))


def empty_cache(model: Model) -> list[int] | None:
    """Return the shape of an empty key/value cache without its batch axis; None if the model has no cache."""
    layers: list[Any]
    if isinstance(model, EncoderDecoder):
        layers = list(model.decoder.layers)
    elif isinstance(model, CausalLanguageModel):
        layers = list(model.encoder.layers)
    else:
        return None
    first = layers[0].attention
    return [len(layers), first.num_key_value_heads, 0, first.head_dim]


def shipped(folder: str, name: str) -> bytes:
    """Return a file that exports contain as it is."""
    return (resources.files("glassformer.interchange") / folder / name).read_bytes()
