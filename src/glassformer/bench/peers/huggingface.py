"""Hugging Face's Marian: trained as its users train it, and writing with weights of ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.bench.peers import Sizes
from glassformer.data.batching import Batch, pad
from glassformer.data.tokenizers import BEGIN, END, PAD


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


def trainer(sizes: Sizes, batches: Sequence[Batch]) -> Callable[[], None]:
    """A call that makes a step with each batch."""
    model = marian(sizes).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def train() -> None:
        for batch in batches:
            tokens_BL, attention_mask_BL = batch.inputs["tokens"], batch.inputs.get("attention_mask")
            mask_BL = None if attention_mask_BL is None else attention_mask_BL.long()
            loss = model(
                input_ids=tokens_BL,
                attention_mask=mask_BL,
                decoder_input_ids=batch.inputs["target"],
                labels=batch.targets,
            ).loss
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    return train


def writer(
    sizes: Sizes, weights: dict[str, Tensor], forbidden: Sequence[int]
) -> Callable[[Sequence[Any], int], list[list[int]]]:
    """A call that writes the outputs for rows of tokens, with a beam of a size."""
    model = marian(sizes).eval()
    model.load_state_dict(weights)
    model.tie_weights()

    def write(rows: Sequence[Any], beam: int) -> list[list[int]]:
        tokens_BL, attention_mask_BL = pad(list(rows))
        with torch.inference_mode():
            written = model.generate(
                input_ids=tokens_BL,
                attention_mask=None if attention_mask_BL is None else attention_mask_BL.long(),
                num_beams=beam,
                do_sample=False,
                max_new_tokens=sizes.max_length,
                suppress_tokens=list(forbidden),
            )
        return [_until_end(row[1:].tolist()) for row in written]

    return write


def _until_end(tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(END)] if END in tokens else [token for token in tokens if token != PAD]


def marian_weights(ours: dict[str, Tensor], positions_LD: Tensor, layers: int) -> dict[str, Tensor]:
    """Weights of our encoder-decoder, post-norm and tied, under their names."""
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
