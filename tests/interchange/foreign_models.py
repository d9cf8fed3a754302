"""Small foreign models with random weights, written as folders and files for the tests of import."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import nn

WORDS = [
    "the",
    "a",
    "film",
    "was",
    "good",
    "bad",
    "not",
    "very",
    "story",
    "##s",
    "##ly",
    ".",
    ",",
    "is",
    "it",
]
BERT_VOCABULARY = ["[PAD]", *(f"[unused{n}]" for n in range(4)), "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
BERT_SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


def bert_tokenizer() -> Tokenizer:
    ids = {name: number for number, name in enumerate(BERT_VOCABULARY)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(list(BERT_SPECIAL.values()))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, ids[name]) for name in ("[CLS]", "[SEP]")],
    )
    tokenizer.enable_padding(pad_id=0, pad_token="[PAD]", length=12)
    tokenizer.enable_truncation(9)
    return tokenizer


def gpt2_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {name: number for number, name in enumerate([*alphabet, "th", "the", "Ġthe", "Ġt", "Ġth"])}
    tokenizer = Tokenizer(models.BPE(ids, [("t", "h"), ("th", "e"), ("Ġ", "t"), ("Ġ", "the"), ("Ġ", "th")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


def llama_pieces() -> tuple[list[str], list[float], list[int]]:
    """Return pieces, scores and types of a SentencePiece model with bytes, as in Llama 2."""
    bytes_ = [f"<0x{number:02X}>" for number in range(256)]
    text = ["▁t", "he", "▁the", "▁", "t", "h", "e", "o", "n", "c", "▁o", "▁on", "▁once", "ce"]
    pieces = ["<unk>", "<s>", "</s>", *bytes_, *text]
    types = [2, 3, 3, *[6] * 256, *[1] * len(text)]
    scores = [0.0] * 259 + [-float(number) for number in range(len(text))]
    return pieces, scores, types


def marian_tokenizer() -> Tokenizer:
    words = ["▁the", "▁a", "▁film", "▁was", "▁good", "▁", "t", "h", "e", "a", "f", "i", "l", "m", "."]
    pieces = [("</s>", 0.0), ("<unk>", -1.0), *((word, -2.0 - number) for number, word in enumerate(words))]
    tokenizer = Tokenizer(models.Unigram([*pieces, ("<pad>", -50.0)], unk_id=1))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁")
    tokenizer.decoder = decoders.Metaspace("▁")
    tokenizer.add_special_tokens(["</s>", "<unk>", "<pad>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 0)])
    return tokenizer


def shaken(model: Any) -> Any:
    """Move all weights away from 0 and 1; return the model in evaluation mode."""
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(0.1 * torch.randn_like(tensor))
    return model.eval()


def save(
    model: nn.Module, tokenizer: Tokenizer, folder: Path, special: dict[str, str], **options: Any
) -> Path:
    """Write a model of `transformers` and a tokenizer as a Hugging Face folder."""
    model.save_pretrained(folder, **options)  # type: ignore[operator]
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {f"{name}_token": text for name, text in special.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return folder


LLAMA2C = {"dim": 16, "hidden": 24, "layers": 2, "heads": 4, "kv_heads": 2, "length": 32}


def write_llama2c(folder: Path, *, tied: bool = True, seed: int = 0, has_raw_bytes: bool = False) -> Path:
    """Write a llama2.c file with random weights, and its `tokenizer.bin`.

    With `has_raw_bytes`, byte pieces are characters, as in the first versions of llama2.c.
    """
    pieces, scores, _ = llama_pieces()
    dim, hidden, layers, heads, kv_heads, length = LLAMA2C.values()
    random = np.random.default_rng(seed)
    vocabulary = len(pieces)
    kv = dim // heads * kv_heads
    sizes = [vocabulary * dim, layers * dim, layers * dim * dim, layers * dim * kv, layers * dim * kv]
    sizes += [layers * dim * dim, layers * dim, layers * dim * hidden, layers * dim * hidden]
    sizes += [layers * dim * hidden, dim, length * (dim // heads)]
    sizes += [] if tied else [vocabulary * dim]
    numbers = np.concatenate([0.3 * random.standard_normal(size) for size in sizes]).astype("<f4")
    header = struct.pack(
        "<7i", dim, hidden, layers, heads, kv_heads, vocabulary if tied else -vocabulary, length
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tiny.bin").write_bytes(header + numbers.tobytes())
    texts = ["<unk>", "\n<s>\n", "\n</s>\n", *(piece.replace("▁", " ") for piece in pieces[3:])]
    if has_raw_bytes:
        texts = [chr(int(text[3:5], 16)) if text.startswith("<0x") else text for text in texts]
    entries = [
        struct.pack("<fi", score, len(text.encode())) + text.encode()
        for text, score in zip(texts, scores, strict=True)
    ]
    (folder / "tokenizer.bin").write_bytes(struct.pack("<i", 16) + b"".join(entries))
    return folder / "tiny.bin"


def write_gguf(path: Path, model: Any, kind: Any, *, model_kind: str = "llama", **fields: Any) -> Path:
    """Write a Llama of `transformers` as GGUF with the package `gguf`; matrices have the type `kind`."""
    import gguf

    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    pieces, scores, types = llama_pieces()
    writer.add_tokenizer_model(model_kind)
    writer.add_token_list(pieces)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    for name, value in fields.items():
        writer.add_string(name, value)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        data = tensor.float().numpy()
        for part, count in heads.items():
            if part in name:  # as llama.cpp's own converter orders the rows
                data = data.reshape(count, 2, len(data) // count // 2, -1).swapaxes(1, 2).reshape(data.shape)
        if data.ndim == 2 and kind is not None:
            data = gguf.quantize(data, kind)
            writer.add_tensor(_gguf_name(name), data, raw_dtype=kind)
        else:
            writer.add_tensor(_gguf_name(name), data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _gguf_name(name: str) -> str:
    outer = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if name in outer or name == "lm_head.weight":
        return outer.get(name, "output.weight")
    parts = {
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    _, _, number, rest = name.split(".", 3)
    return f"blk.{number}.{parts[rest.removesuffix('.weight')]}.weight"
