"""Reader of GGUF files of Llama models: full, half and quantised weights, with their tokenizer."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor

from glassformer.core.errors import user_error
from glassformer.interchange.foreign import ForeignModel, TokenizerFile, check_finite, check_regular, refuse
from glassformer.interchange.read_llama2c import half_split
from glassformer.interchange.tokenizer_files import NORMAL, SPLITS, byte_level_tree, sentencepiece_tree

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_FIELDS, MAX_TENSORS, MAX_TEXT_BYTES = 10_000, 100_000, 1 << 22
MAX_ITEMS = 2_000_000
"""Largest number of items in all lists of a file. The tokenizers of large models need 1.4 million."""
MAX_PIECE_CHARACTERS = 1024
FLOAT32, FLOAT16, BFLOAT16 = 0, 1, 30
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Formats of `struct` for the types of a field. 8 is a text, 9 an array."""
_TEXT, _ARRAY = 8, 9
BLOCKS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Names of a block's layers in GGUF, and in Hugging Face's Llama."""
OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
"""Names of the other layers in GGUF, and in Hugging Face's Llama."""


@dataclass(frozen=True)
class _Entry:
    """Tensor of the file: its shape with the longest stride first, its type, and where its data start."""

    shape: tuple[int, ...]
    kind: int
    offset: int


class _Cursor:
    """Position in the bytes of a file, which no read may leave."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data, self.path, self.at = data, path, 0
        self.items_left = MAX_ITEMS

    def number(self, format: str) -> Any:
        size = struct.calcsize(f"<{format}")
        return struct.unpack(f"<{format}", self.take(size))[0]

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise refuse("not a complete GGUF file", self.path)
        self.at += size
        return self.data[self.at - size : self.at]

    def count(self, largest: int, what: str) -> int:
        found = int(self.number("Q"))
        if found > largest:
            raise refuse(f"not a GGUF file: it states {found:,} {what}", self.path)
        return found

    def text(self) -> str:
        return self.take(self.count(MAX_TEXT_BYTES, "bytes in one text")).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        """Read the value of a field: a number, a text, or a list of them."""
        if kind == _TEXT:
            return self.text()
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind])
        if kind != _ARRAY:
            raise refuse(f"not a GGUF file: a field has the unknown type {kind}", self.path)
        inner = self.number("I")
        count = self.count(self.items_left, "more items in a list than are allowed")
        self.items_left -= count
        if inner in _NUMBERS:
            data = self.take(count * struct.calcsize(f"<{_NUMBERS[inner]}"))
            return list(struct.unpack(f"<{count}{_NUMBERS[inner]}", data))
        if inner != _TEXT:
            raise refuse("not a GGUF file: a list of lists", self.path)
        return [self.text() for _ in range(count)]


class GGUFFile(Mapping[str, Tensor]):
    """Fields and tensors of a GGUF file. The tensors have the names of Hugging Face's Llama, as float32."""

    def __init__(self, path: Path) -> None:
        """Read the header alone, and check that all data are within the file."""
        size = check_regular(path)
        if size < 24:
            raise refuse("not a complete GGUF file", path)
        with open(path, "rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.path = path
        cursor = _Cursor(self._data, path)
        version = struct.unpack("<I", cursor.take(8)[4:])[0]
        if version not in VERSIONS:
            raise refuse(f"GGUF version {version} is not supported", path, "use a file of version 2 or 3")
        tensors, fields = cursor.count(MAX_TENSORS, "tensors"), cursor.count(MAX_FIELDS, "fields")
        self.fields: dict[str, Any] = {}
        for _ in range(fields):
            name = cursor.text()
            self.fields[name] = cursor.value(cursor.number("I"))
        found = dict(self._entry(cursor) for _ in range(tensors))
        alignment = self.fields.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20:
            raise refuse("the alignment is wrong", path)
        self._start = -(-cursor.at // alignment) * alignment
        self._entries = {self._renamed(name): entry for name, entry in found.items()}
        for name, entry in self._entries.items():
            if entry.offset + self._bytes(name, entry) > size - self._start:
                raise refuse(f"the tensor {name} is not within the file", path)

    def _entry(self, cursor: _Cursor) -> tuple[str, _Entry]:
        name, axes = cursor.text(), cursor.number("I")
        if not 1 <= axes <= 4:
            raise refuse(f"the tensor {name[:60]} has {axes} axes", self.path)
        shape = tuple(int(cursor.number("Q")) for _ in range(axes))[::-1]
        return name, _Entry(shape, int(cursor.number("I")), int(cursor.number("Q")))

    def _renamed(self, name: str) -> str:
        """Return the name of a tensor in Hugging Face's Llama."""
        outer, _, part = name.rpartition(".")
        pieces = outer.split(".")
        if outer in OUTER:
            return f"{OUTER[outer]}.{part}"
        if len(pieces) == 3 and pieces[0] == "blk" and pieces[1].isdecimal() and pieces[2] in BLOCKS:
            return f"model.layers.{int(pieces[1])}.{BLOCKS[pieces[2]]}.{part}"
        hint = "models with stretched rotary angles cannot be imported" if name == "rope_freqs.weight" else ""
        raise refuse(
            f"the tensor {name[:60]!r} is not one of a plain Llama", self.path, hint or "use another file"
        )

    def _bytes(self, name: str, entry: _Entry) -> int:
        """Return the number of bytes of a tensor."""
        block, per_block = _block_size(entry.kind, self.path)
        count = 1
        for size in entry.shape:
            count *= size
        if not count or entry.shape[-1] % block:
            raise refuse(f"the tensor {name} has the impossible shape {entry.shape}", self.path)
        return count // block * per_block

    def __getitem__(self, name: str) -> Tensor:
        entry = self._entries[name]
        start = self._start + entry.offset
        data = np.frombuffer(self._data, np.uint8, self._bytes(name, entry), start)
        tensor = torch.from_numpy(_dequantized(data, entry.kind)).reshape(entry.shape)
        heads = {"self_attn.q_proj": "head_count", "self_attn.k_proj": "head_count_kv"}
        for layer, field in heads.items():
            if name.endswith((f"{layer}.weight", f"{layer}.bias")):
                count = self.heads(field)
                if len(tensor) % (2 * count):
                    raise refuse(f"the tensor {name} does not have {count} heads", self.path)
                tensor = half_split(tensor, count)
        return check_finite(name, tensor, self.path)

    def heads(self, field: str) -> int:
        """Return a number of heads, which every block must share."""
        found = self.fields.get(f"llama.attention.{field}", self.fields.get("llama.attention.head_count"))
        if not isinstance(found, int) or found < 1:
            raise refuse(f"llama.attention.{field} is not one number", self.path, "use a plain Llama model")
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def _block_size(kind: int, path: Path) -> tuple[int, int]:
    """Return how many numbers a block of this type holds, and its bytes."""
    plain = {FLOAT32: 4, FLOAT16: 2, BFLOAT16: 2}
    if kind in plain:
        return 1, plain[kind]
    gguf = _gguf()
    try:
        block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
        return int(block), int(size)
    except (KeyError, ValueError):
        raise refuse(f"the type {kind} of a tensor is unknown", path) from None


def _gguf() -> Any:
    try:
        import gguf
    except ImportError:
        raise user_error(
            "quantised weights need the package gguf", path="import", hint="pip install 'glassformer[models]'"
        ) from None
    return gguf


def _dequantized(data: np.ndarray, kind: int) -> np.ndarray:
    """Return the numbers of a tensor as float32, in one row."""
    if kind == FLOAT32:
        return data.view("<f4").astype(np.float32)
    if kind == FLOAT16:
        return data.view("<f2").astype(np.float32)
    if kind == BFLOAT16:
        return (data.view("<u2").astype(np.uint32) << 16).view(np.float32)
    gguf = _gguf()
    try:
        return np.array(gguf.dequantize(data, gguf.GGMLQuantizationType(kind)), dtype=np.float32).ravel()
    except NotImplementedError:
        name = gguf.GGMLQuantizationType(kind).name
        raise user_error(f"weights of the type {name} cannot be read", path="import", value=name) from None


def read_gguf(path: Path) -> ForeignModel:
    """Read the fields and the tokenizer of a GGUF file. The weights are read later."""
    file = GGUFFile(path)
    fields = file.fields
    architecture = fields.get("general.architecture")
    if architecture != "llama":
        message = f"models of the architecture {str(architecture)[:60]!r} cannot be imported"
        raise refuse(message, path, "use a GGUF file of a Llama")
    for field in ("llama.rope.scaling.type", "llama.expert_count"):
        if fields.get(field) not in (None, 0, "none"):
            raise refuse(
                f"{field}={str(fields[field])[:40]} is not supported", path, "use a plain Llama model"
            )
    embedding, heads = fields.get("llama.embedding_length"), file.heads("head_count")
    if isinstance(embedding, int):
        for field in ("llama.rope.dimension_count", "llama.attention.key_length"):
            if fields.get(field) not in (None, embedding // heads):
                raise refuse(f"{field}={fields[field]} is not supported", path, f"{embedding // heads} is")
    config = {
        "hidden_size": embedding,
        "intermediate_size": fields.get("llama.feed_forward_length"),
        "num_hidden_layers": fields.get("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": file.heads("head_count_kv"),
        "max_position_embeddings": fields.get("llama.context_length"),
        "rms_norm_eps": _short(fields.get("llama.attention.layer_norm_rms_epsilon", 1e-6)),
        "rope_theta": fields.get("llama.rope.freq_base", 10000.0),
        "tie_word_embeddings": "lm_head.weight" not in file,
        "attention_bias": any(name.endswith(".bias") for name in file),
    }
    return ForeignModel(
        format="GGUF",
        architecture="LlamaForCausalLM",
        config=config,
        tensors=file,
        tokenizer=_tokenizer(file),
        files=[path],
        licence=str(fields.get("general.license", ""))[:100],
    )


def _are_numbers(values: object, count: int) -> TypeGuard[list[Any]]:
    """Return True for a list of this many finite numbers."""
    return (
        isinstance(values, list)
        and len(values) == count
        and all(isinstance(value, (int, float)) for value in values)
        and bool(np.isfinite(values).all())
    )


def _short(number: object) -> object:
    """Return a float32 with the fewest digits that mean it: 1e-05 instead of 9.999999747378752e-06."""
    return float(str(np.float32(number))) if isinstance(number, float) else number


def _tokenizer(file: GGUFFile) -> TokenizerFile:
    fields, path = file.fields, file.path
    tokens = fields.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise refuse("there is no tokenizer in this file", path)
    if len(set(tokens)) != len(tokens) or max(map(len, tokens), default=0) > MAX_PIECE_CHARACTERS:
        raise refuse("the tokenizer has equal or very long tokens", path)
    types = fields.get("tokenizer.ggml.token_type") or [NORMAL] * len(tokens)
    ids = {
        role: fields.get(f"tokenizer.ggml.{name}_token_id")
        for role, name in {
            "pad": "padding",
            "unknown": "unknown",
            "begin": "bos",
            "end": "eos",
            "mask": "mask",
        }.items()
    }
    roles = {role: number for role, number in ids.items() if isinstance(number, int) and number < len(tokens)}
    kind = fields.get("tokenizer.ggml.model")
    adds_begin = fields.get("tokenizer.ggml.add_bos_token", kind == "llama")
    begin = roles.get("begin") if adds_begin else None
    if not _are_numbers(types, len(tokens)):
        raise refuse("the tokenizer does not have one type per token", path)
    if kind == "llama":
        scores = fields.get("tokenizer.ggml.scores")
        if not _are_numbers(scores, len(tokens)):
            raise refuse("the tokenizer has no scores", path)
        return TokenizerFile(sentencepiece_tree(tokens, scores, types, begin=begin), roles)
    if kind != "gpt2":
        raise refuse(
            f"tokenizers of the kind {str(kind)[:40]!r} cannot be imported", path, "use a Llama model"
        )
    split, merges = fields.get("tokenizer.ggml.pre", "default"), fields.get("tokenizer.ggml.merges")
    if split not in SPLITS:
        raise refuse(
            f"the text is split by {str(split)[:40]!r}, which is not known",
            path,
            f"known: {', '.join(SPLITS)}",
        )
    if not isinstance(merges, list) or not all(isinstance(merge, str) for merge in merges):
        raise refuse("the tokenizer has no merges", path)
    try:
        return TokenizerFile(byte_level_tree(tokens, merges, types, split, begin=begin), roles)
    except Exception as error:  # the library raises plain Exceptions
        raise refuse(f"the tokenizer cannot be used: {error}", path) from None
