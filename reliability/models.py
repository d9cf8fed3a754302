"""Small foreign models as files: good specimens of each format, which faults then damage."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

Field = tuple[int, Any]
"""Type and value of a GGUF field."""
UINT8, UINT32, INT32, FLOAT32, BOOL, TEXT, ARRAY, UINT64 = 0, 4, 5, 6, 7, 8, 9, 10
FORMATS = {UINT8: "B", UINT32: "I", INT32: "i", FLOAT32: "f", BOOL: "?", UINT64: "Q"}
DIM, HIDDEN, LAYERS, HEADS, LENGTH = 8, 8, 1, 2, 64
SMALL = {
    "task.examples": 1300,
    "task.max_length": LENGTH,
    "task.tokenizer.kind": "characters",
    "model.num_layers": LAYERS,
    "model.num_heads": HEADS,
    "model.hidden_dim": DIM,
    "model.feed_forward_dim": HIDDEN,
}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {
        "task.kind": "language-model",
        "model.position.kind": "rotary",
        "model.norm.kind": "rms",
        "model.feed_forward.kind": "swiglu",
        "model.bias": False,
        "model.output_bias": False,
    },
    "gpt2": {"task.kind": "language-model", "model.position.kind": "learned", "model.output_bias": False},
    "bert": {
        "task.kind": "masked-language-model",
        "model.position.kind": "learned",
        "model.norm_placement": "post",
        "model.embedding_norm": True,
        "model.output.kind": "transform",
    },
    "marian": {"task.kind": "translation", "model.norm_placement": "post"},
}
"""Options of models that `export --to huggingface` writes as a class that can be imported."""


def pack_text(text: str | bytes, length: int | None = None) -> bytes:
    """Return a GGUF text, whose stated length may be wrong."""
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data) if length is None else length) + data


def pack_value(kind: int, value: Any) -> bytes:
    """Return a GGUF value: a number, a text, an array (inner type and items), or raw bytes as they are."""
    if isinstance(value, bytes):
        return value
    if kind == TEXT:
        return pack_text(value)
    if kind == ARRAY:
        inner, items = value
        return struct.pack("<IQ", inner, len(items)) + b"".join(pack_value(inner, item) for item in items)
    return struct.pack(f"<{FORMATS[kind]}", value)


def pack_gguf(
    fields: Mapping[str, Field],
    tensors: Sequence[tuple[str, Sequence[int], int, int]],
    data: bytes,
    *,
    version: int = 3,
    tensor_count: int | None = None,
    field_count: int | None = None,
    alignment: int = 32,
) -> bytes:
    """Return a GGUF file. A tensor is its name, its axes with the shortest stride first, type and offset."""
    counts = (
        len(tensors) if tensor_count is None else tensor_count,
        len(fields) if field_count is None else field_count,
    )
    head = b"GGUF" + struct.pack("<IQQ", version, *counts)
    for name, (kind, value) in fields.items():
        head += pack_text(name) + struct.pack("<I", kind) + pack_value(kind, value)
    for name, axes, kind, offset in tensors:
        head += pack_text(name) + struct.pack(f"<I{len(axes)}Q", len(axes), *axes)
        head += struct.pack("<IQ", kind, offset)
    return head + bytes(-len(head) % alignment) + data


def pieces() -> list[tuple[str, float, int]]:
    """Return text, score and type of each piece of a SentencePiece model with all bytes."""
    special = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    raw = [(f"<0x{number:02X}>", 0.0, 6) for number in range(256)]
    return [*special, *raw, ("▁", -1.0, 1), ("t", -2.0, 1), ("he", -3.0, 1), ("▁t", -4.0, 1)]


def gguf_parts() -> tuple[dict[str, Field], list[tuple[str, list[int], int, int]], bytes]:
    """Return fields, tensors and data of a good GGUF file."""
    texts, scores, types = zip(*pieces(), strict=True)
    fields: dict[str, Field] = {
        "general.architecture": (TEXT, "llama"),
        "llama.block_count": (UINT32, LAYERS),
        "llama.context_length": (UINT32, LENGTH),
        "llama.embedding_length": (UINT32, DIM),
        "llama.feed_forward_length": (UINT32, HIDDEN),
        "llama.attention.head_count": (UINT32, HEADS),
        "llama.attention.head_count_kv": (UINT32, HEADS),
        "llama.attention.layer_norm_rms_epsilon": (FLOAT32, 1e-5),
        "tokenizer.ggml.model": (TEXT, "llama"),
        "tokenizer.ggml.tokens": (ARRAY, (TEXT, texts)),
        "tokenizer.ggml.scores": (ARRAY, (FLOAT32, scores)),
        "tokenizer.ggml.token_type": (ARRAY, (INT32, types)),
        "tokenizer.ggml.bos_token_id": (UINT32, 1),
        "tokenizer.ggml.eos_token_id": (UINT32, 2),
    }
    shapes = {"token_embd": [DIM, len(texts)], "output_norm": [DIM]}
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        shapes[f"blk.0.{name}"] = [DIM, DIM]
    for name in ("ffn_gate", "ffn_up", "ffn_down"):
        shapes[f"blk.0.{name}"] = [DIM, HIDDEN]
    shapes |= {"blk.0.attn_norm": [DIM], "blk.0.ffn_norm": [DIM]}
    tensors, data = [], b""
    for name, axes in shapes.items():
        tensors.append((f"{name}.weight", axes, 0, len(data)))
        data += weights(int(np.prod(axes)))
    return fields, tensors, data


def weights(count: int, seed: int = 0) -> bytes:
    """Return random numbers as float32."""
    return np.random.default_rng(seed).normal(0, 0.2, count).astype("<f4").tobytes()


def llama2c_parts() -> tuple[list[int], bytes, bytes]:
    """Return the header, the weights and the `tokenizer.bin` of a good llama2.c file."""
    vocabulary = len(pieces())
    header = [DIM, HIDDEN, LAYERS, HEADS, HEADS, vocabulary, LENGTH]
    count = vocabulary * DIM + LAYERS * (2 * DIM + 4 * DIM * DIM + 3 * DIM * HIDDEN) + DIM
    entries = [pack_piece(text.replace("▁", " "), score) for text, score, _ in pieces()]
    return header, weights(count + LENGTH * (DIM // HEADS)), struct.pack("<i", 8) + b"".join(entries)


def pack_piece(text: str, score: float, length: int | None = None) -> bytes:
    """Return an entry of a `tokenizer.bin`, whose stated length may be wrong."""
    data = text.encode()
    return struct.pack("<fi", score, len(data) if length is None else length) + data


def write_specimens(folder: Path) -> None:
    """Write a good model of each format into its own folder."""
    for name in KINDS:
        write_huggingface(folder / name, name)
    (folder / "gguf").mkdir()
    (folder / "gguf" / "model.gguf").write_bytes(pack_gguf(*gguf_parts()))
    header, data, tokenizer = llama2c_parts()
    (folder / "llama2c").mkdir()
    (folder / "llama2c" / "model.bin").write_bytes(struct.pack("<7i", *header) + data)
    (folder / "llama2c" / "tokenizer.bin").write_bytes(tokenizer)


def write_huggingface(folder: Path, name: str) -> None:
    """Write a good Hugging Face folder, as an export writes it."""
    folder.mkdir(parents=True)
    for path, data in _huggingface(name).items():
        (folder / path).write_bytes(data)


@cache
def _huggingface(name: str) -> dict[str, bytes]:
    """Return the files of an exported model with random weights."""
    from tempfile import TemporaryDirectory

    from glassformer.interchange.export import ExportSource, make_target
    from tests.interchange.small_runs import random_run

    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_target("huggingface").write(ExportSource.of(random_run({**SMALL, **KINDS[name]})), folder)
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def model_path(folder: Path) -> Path:
    """Return what a user imports from the folder of a specimen: a file, or the folder."""
    files = [folder / name for name in ("model.gguf", "model.bin") if (folder / name).exists()]
    return files[0] if files else folder


def edit_json(path: Path, **changes: Any) -> None:
    """Set entries of a JSON file; `...` removes one."""
    tree = json.loads(path.read_text(encoding="utf-8")) | changes
    kept = {name: value for name, value in tree.items() if value is not ...}
    path.write_text(json.dumps(kept), encoding="utf-8")


def replace_specimen(folder: Path, whole: Path) -> None:
    """Restore a specimen from its copy."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
