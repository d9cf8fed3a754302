"""Encoder-decoders of other libraries for the benchmarks: torch.nn, Hugging Face's Marian, CTranslate2.

Each optional library is imported by the function that needs it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.bench.base import Sizes
from glassformer.blocks.heads import IGNORED
from glassformer.data.batching import Batch, pad
from glassformer.data.tokenizers import BEGIN, END, PAD, UNKNOWN
from glassformer.models.seq2seq import EncoderDecoder


class Translator(nn.Module):
    """Encoder-decoder as users write it with `nn.Transformer`, without any care to skip padding."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.width)
        self.position = nn.Embedding(sizes.max_length, sizes.width)
        self.transformer = nn.Transformer(
            sizes.width,
            sizes.heads,
            sizes.layers,
            sizes.layers,
            sizes.feed_forward,
            sizes.dropout,
            batch_first=True,
        )
        self.output = nn.Linear(sizes.width, sizes.vocabulary)
        self.output.weight = self.embedding.weight
        self.factor = math.sqrt(sizes.width)

    def _embed(self, tokens_BL: Tensor) -> Tensor:
        positions_L = torch.arange(tokens_BL.shape[1])
        return self.embedding(tokens_BL) * self.factor + self.position(positions_L)

    def forward(self, tokens_BL: Tensor, padding_BL: Tensor, target_BL: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(target_BL.shape[1]) == -math.inf
        hidden = self.transformer(
            self._embed(tokens_BL),
            self._embed(target_BL),
            tgt_mask=causal,
            src_key_padding_mask=padding_BL,
            memory_key_padding_mask=padding_BL,
            tgt_is_causal=True,
        )
        return self.output(hidden)


def _trainer(
    model: nn.Module, batches: Sequence[Batch], loss_of: Callable[[Batch], Tensor], autocast: bool
) -> Callable[[], None]:
    """Return a call that trains the model for one step per batch, in fp32 or under autocast to bf16."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def train() -> None:
        for batch in batches:
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = loss_of(batch)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    return train


def torch_nn_trainer(sizes: Sizes, batches: Sequence[Batch], autocast: bool = False) -> Callable[[], None]:
    """Return a call that trains a new torch.nn model for one step per batch."""
    model = Translator(sizes)

    def loss_of(batch: Batch) -> Tensor:
        tokens_BL, attention_mask_BL = batch.inputs["tokens"], batch.inputs.get("mask")
        assert tokens_BL is not None
        if attention_mask_BL is None:
            attention_mask_BL = torch.ones_like(tokens_BL, dtype=torch.bool)
        logits = model(tokens_BL, ~attention_mask_BL, batch.inputs["target"])
        return F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORED)

    return _trainer(model, batches, loss_of, autocast)


def marian(sizes: Sizes) -> Any:
    import transformers

    transformers.logging.set_verbosity_error()
    config = transformers.MarianConfig(
        vocab_size=sizes.vocabulary,
        d_model=sizes.width,
        encoder_layers=sizes.layers,
        decoder_layers=sizes.layers,
        encoder_attention_heads=sizes.heads,
        decoder_attention_heads=sizes.heads,
        encoder_ffn_dim=sizes.feed_forward,
        decoder_ffn_dim=sizes.feed_forward,
        max_position_embeddings=sizes.max_length,
        dropout=sizes.dropout,
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=PAD,
        eos_token_id=END,
        forced_eos_token_id=None,
        decoder_start_token_id=BEGIN,
    )
    return transformers.MarianMTModel(config)


def huggingface_trainer(sizes: Sizes, batches: Sequence[Batch], autocast: bool = False) -> Callable[[], None]:
    """Return a call that trains a new Marian model for one step per batch."""
    model = marian(sizes)

    def loss_of(batch: Batch) -> Any:
        attention_mask_BL = batch.inputs.get("mask")
        return model(
            input_ids=batch.inputs["tokens"],
            attention_mask=None if attention_mask_BL is None else attention_mask_BL.long(),
            decoder_input_ids=batch.inputs["target"],
            labels=batch.targets,
        ).loss

    return _trainer(model, batches, loss_of, autocast)


def huggingface_decoder(
    sizes: Sizes, weights: dict[str, Tensor], forbidden: Sequence[int]
) -> Callable[[Sequence[Any], int], list[list[int]]]:
    """Return a function of token rows and beam size that returns the decoded token rows."""
    model = marian(sizes).eval()
    model.load_state_dict(weights)
    model.tie_weights()

    def decode(rows: Sequence[Any], beam: int) -> list[list[int]]:
        tokens_BL, attention_mask_BL = pad(list(rows))
        with torch.inference_mode():
            generated = model.generate(
                input_ids=tokens_BL,
                attention_mask=None if attention_mask_BL is None else attention_mask_BL.long(),
                num_beams=beam,
                do_sample=False,
                max_new_tokens=sizes.max_length,
                suppress_tokens=list(forbidden),
            )
        return [_until_end(row[1:].tolist()) for row in generated]

    return decode


def _until_end(tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(END)] if END in tokens else [token for token in tokens if token != PAD]


def marian_weights(ours: dict[str, Tensor], positions_LD: Tensor, layers: int) -> dict[str, Tensor]:
    """Return the weights of our post-norm encoder-decoder with a tied output under Marian's names."""
    table_VD = ours["embedding.vectors.table.weight"]
    weights = {
        "model.shared.weight": table_VD,
        "model.encoder.embed_tokens.weight": table_VD,
        "model.decoder.embed_tokens.weight": table_VD,
        "lm_head.weight": table_VD,
        "model.encoder.embed_positions.weight": positions_LD,
        "model.decoder.embed_positions.weight": positions_LD,
        "final_logits_bias": ours["head.bias"][None],
    }
    for side in ("encoder", "decoder"):
        for number in range(layers):
            own, theirs = f"{side}.layers.{number}", f"model.{side}.layers.{number}"
            names = {
                f"{own}.attention.query_key_value": [f"{theirs}.self_attn.{part}_proj" for part in "qkv"],
                f"{own}.attention.output": [f"{theirs}.self_attn.out_proj"],
                f"{own}.attention_residual.after": [f"{theirs}.self_attn_layer_norm"],
                f"{own}.feed_forward.up": [f"{theirs}.fc1"],
                f"{own}.feed_forward.down": [f"{theirs}.fc2"],
                f"{own}.feed_forward_residual.after": [f"{theirs}.final_layer_norm"],
            }
            if side == "decoder":
                names |= {
                    f"{own}.cross_attention.query": [f"{theirs}.encoder_attn.q_proj"],
                    f"{own}.cross_attention.key_value": [
                        f"{theirs}.encoder_attn.{part}_proj" for part in "kv"
                    ],
                    f"{own}.cross_attention.output": [f"{theirs}.encoder_attn.out_proj"],
                    f"{own}.cross_attention_residual.after": [f"{theirs}.encoder_attn_layer_norm"],
                }
            for name, parts in names.items():
                for kind in ("weight", "bias"):
                    pieces = ours[f"{name}.{kind}"].chunk(len(parts))
                    weights |= {f"{part}.{kind}": piece for part, piece in zip(parts, pieces, strict=True)}
    return weights


def ctranslate2_decoder(
    model: EncoderDecoder,
    forbidden: Sequence[int],
    threads: int,
    concurrency: int = 1,
    weights: Literal["float32", "int8"] = "float32",
) -> Callable[[Sequence[Any], int, int], list[list[int]]]:
    """Return a function of token rows, beam size and batch size that returns the decoded token rows.

    CTranslate2 receives token ids as words. It decodes `concurrency` batches at the same time, and each batch
    gets an equal share of the threads. `weights` is the number type of its matrices.
    """
    import ctranslate2

    from glassformer.generation.ctranslate2 import Vocabulary, write_model

    words = [str(number) for number in range(model.task_type.vocabulary)]
    longest = model.task_type.max_length
    before = torch.get_num_threads()
    with TemporaryDirectory(prefix="glassformer-bench-") as folder:
        write_model(model, folder, Vocabulary(words, words[BEGIN], words[END], words[UNKNOWN]))
        translator = ctranslate2.Translator(
            folder,
            device="cpu",
            compute_type=weights,
            inter_threads=concurrency,
            intra_threads=threads // concurrency,
        )
    torch.set_num_threads(before)  # CTranslate2 changes the threads of the whole process

    def decode(rows: Sequence[Any], beam: int, batch_size: int) -> list[list[int]]:
        results = translator.translate_batch(
            [[words[token] for token in row] for row in rows],
            max_batch_size=batch_size,
            beam_size=beam,
            max_decoding_length=longest,
            min_decoding_length=0,
            suppress_sequences=[[words[token]] for token in forbidden],
            return_scores=False,
        )
        return [[int(word) for word in result.hypotheses[0]] for result in results]

    return decode
