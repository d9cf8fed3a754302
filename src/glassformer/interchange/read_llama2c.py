"""Reader of llama2.c: the weights of a small Llama as one `.bin` file, with `tokenizer.bin` beside it."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from glassformer.core.system import read_regular_file
from glassformer.interchange.foreign import ForeignModel, TokenizerFile, check_finite, check_regular, refuse
from glassformer.interchange.options import MAX_SIZE
from glassformer.interchange.tokenizer_files import BYTE, CONTROL, NORMAL, UNKNOWN, sentencepiece_tree

HEADER = struct.Struct("<7i")
LATER_VERSION = 0x616B3432
"""First number of a file of a later version of the format, which has other layouts."""
TOKENIZER = "tokenizer.bin"
MAX_PIECE_BYTES = 1024
NOT_LLAMA2C = "name a .bin file of llama2.c (version 0), a .gguf file or a Hugging Face folder"


def read_llama2c(path: Path) -> ForeignModel:
    """Read the header and check the size of the file. The weights are read later."""
    size = check_regular(path)
    with open(path, "rb") as file:
        start = file.read(HEADER.size)
    if len(start) < HEADER.size:
        raise refuse("not a llama2.c file: it is too short", path, NOT_LLAMA2C)
    dim, hidden, layers, heads, kv_heads, vocabulary, length = HEADER.unpack(start)
    if dim == LATER_VERSION:
        raise refuse("a llama2.c file of version 1 or 2, which is not supported", path, NOT_LLAMA2C)
    is_tied, vocabulary = vocabulary > 0, abs(vocabulary)
    sizes = (dim, hidden, layers, heads, kv_heads, vocabulary, length)
    if not all(0 < number <= MAX_SIZE for number in sizes) or dim % heads or heads % kv_heads:
        raise refuse("not a llama2.c file: its header states impossible sizes", path, NOT_LLAMA2C)
    config = {
        "hidden_size": dim,
        "intermediate_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": length,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": is_tied,
    }
    tensors = _Llama2cTensors(path, size, sizes, is_tied)
    tokenizer = path.with_name(TOKENIZER)
    if not os.path.exists(tokenizer):
        raise refuse(f"there is no {TOKENIZER} beside this file", path, f"copy {TOKENIZER} into its folder")
    pieces, scores = zip(*_pieces(tokenizer, vocabulary), strict=True)
    if pieces[FIRST_BYTE : FIRST_BYTE + 256] == RAW_BYTES:
        pieces = (*pieces[:FIRST_BYTE], *NAMED_BYTES, *pieces[FIRST_BYTE + 256 :])
    if len(set(pieces)) != vocabulary:
        raise refuse("two pieces are equal", tokenizer)
    types = [_type(number, piece) for number, piece in enumerate(pieces)]
    tree = sentencepiece_tree(pieces, scores, types, begin=1)
    return ForeignModel(
        format="llama2.c",
        architecture="LlamaForCausalLM",
        config=config,
        tensors=tensors,
        # As in run.c: texts are separated by the begin token, and a model that predicts it has ended.
        tokenizer=TokenizerFile(tree, {"unknown": 0, "begin": 1, "end": 1}),
        files=[path, tokenizer],
    )


def half_split(weight: Tensor, heads: int) -> Tensor:
    """Reorder the rows of a query or key projection: pairs that rotate together are no longer adjacent.

    Meta's files and GGUF put the two components of a pair side by side. Our rotary encoding, like that of
    Hugging Face, rotates the first half of a head with the second half.
    """
    return weight.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def interleaved(weight: Tensor, heads: int) -> Tensor:
    """Undo `half_split`: put the two rows of a query or key projection that rotate together side by side."""
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


FIRST_BYTE = 3
"""Id of the piece for the byte 0."""
RAW_BYTES = tuple(chr(byte).replace(" ", "▁") for byte in range(256))
"""Byte pieces as the first versions of llama2.c wrote them, which equal pieces of text."""
NAMED_BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))


class _Llama2cTensors(dict[str, Tensor]):
    """Tensors of a llama2.c file under the names of Hugging Face's Llama."""

    def __init__(self, path: Path, size: int, sizes: tuple[int, ...], is_tied: bool) -> None:
        dim, hidden, layers, heads, kv_heads, vocabulary, length = sizes
        kv_dim, angles = dim // heads * kv_heads, length * (dim // heads // 2)
        shapes: list[tuple[str, tuple[int, ...]]] = [
            ("embed_tokens", (vocabulary, dim)),
            ("input_layernorm", (layers, dim)),
            ("self_attn.q_proj", (layers, dim, dim)),
            ("self_attn.k_proj", (layers, kv_dim, dim)),
            ("self_attn.v_proj", (layers, kv_dim, dim)),
            ("self_attn.o_proj", (layers, dim, dim)),
            ("post_attention_layernorm", (layers, dim)),
            ("mlp.gate_proj", (layers, hidden, dim)),
            ("mlp.down_proj", (layers, dim, hidden)),
            ("mlp.up_proj", (layers, hidden, dim)),
            ("norm", (dim,)),
            ("angles", (2 * angles,)),
        ]
        shapes += [] if is_tied else [("lm_head", (vocabulary, dim))]
        counts = [int(np.prod([int(n) for n in shape], dtype=object)) for _, shape in shapes]
        if HEADER.size + 4 * sum(counts) != size:
            message = f"the header asks for {HEADER.size + 4 * sum(counts):,} bytes, the file has {size:,}"
            raise refuse(f"not a llama2.c file: {message}", path, NOT_LLAMA2C)
        data = np.fromfile(path, dtype="<f4", offset=HEADER.size)
        start = 0
        for (name, shape), count in zip(shapes, counts, strict=True):
            tensor = torch.from_numpy(data[start : start + count].reshape(shape))
            start += count
            if name != "angles":  # of the rotary encoding, which follow from the config
                check_finite(name, tensor, path)
                self.update(_named(name, tensor, heads, kv_heads))


def _named(name: str, tensor: Tensor, heads: int, kv_heads: int) -> Iterator[tuple[str, Tensor]]:
    if name == "lm_head":
        yield "lm_head.weight", tensor
    elif name in ("embed_tokens", "norm"):
        yield f"model.{name}.weight", tensor
    else:
        reordered = {"self_attn.q_proj": heads, "self_attn.k_proj": kv_heads}
        for number, own in enumerate(tensor):
            weight = half_split(own, reordered[name]) if name in reordered else own
            yield f"model.layers.{number}.{name}.weight", weight


def _pieces(path: Path, count: int) -> Iterator[tuple[str, float]]:
    """Yield text and score of each piece of a `tokenizer.bin`."""
    try:
        data = read_regular_file(path)
    except (OSError, ValueError) as error:
        raise refuse(f"cannot be read: {error}", path) from None
    at = 4  # after the length of the longest piece
    for number in range(count):
        if at + 8 > len(data):
            raise refuse(f"has {number:,} pieces, and the model has {count:,} tokens", path)
        score, length = struct.unpack_from("<fi", data, at)
        at += 8
        if not 0 <= length <= min(MAX_PIECE_BYTES, len(data) - at) or not abs(score) < 1e30:
            raise refuse(f"the piece {number} is damaged", path)
        text = data[at : at + length].decode("utf-8", "replace")
        at += length
        special = {0: "<unk>", 1: "<s>", 2: "</s>"}
        yield special.get(number, text.replace(" ", "▁")), score
    if at != len(data):
        raise refuse(f"has more pieces than the {count:,} tokens of the model", path)


def _type(number: int, piece: str) -> int:
    if number < 3:
        return UNKNOWN if number == 0 else CONTROL
    return BYTE if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">") else NORMAL
