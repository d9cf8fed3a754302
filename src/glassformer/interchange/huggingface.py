"""Conversion of models of Hugging Face's `transformers`: GPT-2, BERT and Marian, with their weights.

    model = from_huggingface(GPT2LMHeadModel.from_pretrained("gpt2"))

The `transformers` library itself is not imported. A model is recognised by the name of its class and read
through its `config` and `state_dict`. Options that our blocks do not have raise an error, so that the logits
are equal in evaluation mode. In training, our blocks apply dropout at their own places, with the probability
of the original's residual dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.blocks.embedding import TokenEmbeddingConfig
from glassformer.blocks.feed_forward import FeedForwardConfig, GELUConfig, ReLUConfig, SiLUConfig
from glassformer.blocks.heads import TransformOutputConfig
from glassformer.blocks.norms import LayerNormConfig
from glassformer.blocks.positions import LearnedConfig
from glassformer.core.errors import ErrorDetail
from glassformer.models.base import Model
from glassformer.models.task_types import CausalLM, MaskedLM, Seq2Seq, TaskType
from glassformer.models.transformer import TransformerConfig

Tensors = dict[str, Tensor]
Converted = tuple[TransformerConfig, TaskType, Tensors]


def from_huggingface(model: nn.Module) -> Model:
    """Convert a Hugging Face model to a `Model` with the same weights, dtype, device and training mode."""
    name = type(model).__name__
    convert = _CONVERTERS.get(name)
    if convert is None:
        raise ErrorDetail(
            "models of this class cannot be converted",
            path="from_huggingface",
            value=name,
            allowed=sorted(_CONVERTERS),
            hint="load the model with the head it was trained with",
        )
    source = _Source(model.state_dict())
    config, task_type, weights = convert(model.config, source)
    source.check_all_taken()
    converted = config.build(task_type).to(next(model.parameters()))
    converted.load_state_dict(weights)
    return converted.train(model.training)


class _Source:
    """Tensors of the original model that are not converted yet. In the end none may be left over."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._left = dict(tensors)

    def take(self, name: str) -> Tensor:
        """Remove the tensor of this name and return it."""
        if name not in self._left:
            raise ErrorDetail(
                "the model does not have this weight",
                path=name,
                hint="convert a plain model, without adapters",
            )
        return self._left.pop(name)

    def check_all_taken(self) -> None:
        """Raise an ErrorDetail if a tensor was not taken."""
        for name in self._left:
            raise ErrorDetail(
                "this weight has no counterpart in our model",
                path=name,
                hint="convert a plain model, without adapters or added parts",
            )

    def pair(self, ours: str, *theirs: str) -> Tensors:
        """Return the weight and bias of the layer `theirs`, renamed to `ours.weight` and `ours.bias`.

        If several layers are named, such as query, key and value, they are concatenated.
        """
        return {
            f"{ours}.{part}": torch.cat([self.take(f"{name}.{part}") for name in theirs])
            for part in ("weight", "bias")
        }

    def transposed_pair(self, ours: str, theirs: str) -> Tensors:
        """Return the weight and bias of the GPT-2 layer `theirs`, renamed to `ours.weight` and `ours.bias`.

        The weight is transposed, because GPT-2 stores it as (inputs, outputs).
        """
        return {
            f"{ours}.weight": self.take(f"{theirs}.weight").T,
            f"{ours}.bias": self.take(f"{theirs}.bias"),
        }


def _gpt2(config: Any, source: _Source) -> Converted:
    _require(
        config,
        {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    )
    table_VD, head_VD = source.take("transformer.wte.weight"), source.take("lm_head.weight")
    is_tied = torch.equal(table_VD, head_VD)
    ours = TransformerConfig(
        num_layers=config.n_layer,
        num_heads=config.n_head,
        hidden_dim=config.n_embd,
        feed_forward_dim=config.n_inner or 4 * config.n_embd,
        dropout=float(config.resid_pdrop),
        attention_dropout=float(config.attn_pdrop),
        position=LearnedConfig(),
        norm=LayerNormConfig(epsilon=config.layer_norm_epsilon),
        norm_placement="pre",
        feed_forward=_feed_forward(config.activation_function, "activation_function"),
        input=TokenEmbeddingConfig(scale=False),
        output_bias=False,
        tied_output=is_tied,
    )
    weights = {
        "embedding.vectors.table.weight": table_VD,
        "embedding.position.table.weight": source.take("transformer.wpe.weight"),
        **source.pair("encoder.final_norm", "transformer.ln_f"),
    }
    if not is_tied:
        weights["head.weight"] = head_VD
    for number in range(config.n_layer):
        block, theirs = f"encoder.layers.{number}", f"transformer.h.{number}"
        weights |= source.pair(f"{block}.attention_residual.before", f"{theirs}.ln_1")
        weights |= source.transposed_pair(f"{block}.attention.query_key_value", f"{theirs}.attn.c_attn")
        weights |= source.transposed_pair(f"{block}.attention.output", f"{theirs}.attn.c_proj")
        weights |= source.pair(f"{block}.feed_forward_residual.before", f"{theirs}.ln_2")
        weights |= source.transposed_pair(f"{block}.feed_forward.up", f"{theirs}.mlp.c_fc")
        weights |= source.transposed_pair(f"{block}.feed_forward.down", f"{theirs}.mlp.c_proj")
    return ours, CausalLM(config.vocab_size, config.n_positions), weights


def _bert(config: Any, source: _Source) -> Converted:
    """Convert BERT for single-segment texts. The embedding of segment 0 is added to all positions."""
    # BERT's output network uses the activation of its blocks, ours always uses GELU.
    _require(
        config,
        {
            "is_decoder": False,
            "add_cross_attention": False,
            "position_embedding_type": "absolute",
            "hidden_act": "gelu",
        },
    )
    table_VD = source.take("bert.embeddings.word_embeddings.weight")
    head_VD = source.take("cls.predictions.decoder.weight")
    is_tied = torch.equal(table_VD, head_VD)
    source.take("cls.predictions.bias")  # another name for the bias of `decoder`
    ours = TransformerConfig(
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        hidden_dim=config.hidden_size,
        feed_forward_dim=config.intermediate_size,
        dropout=float(config.hidden_dropout_prob),
        attention_dropout=float(config.attention_probs_dropout_prob),
        position=LearnedConfig(),
        norm=LayerNormConfig(epsilon=config.layer_norm_eps),
        norm_placement="post",
        embedding_norm=True,
        feed_forward=GELUConfig(),
        input=TokenEmbeddingConfig(scale=False),
        output=TransformOutputConfig(epsilon=config.layer_norm_eps),
        tied_output=is_tied,
    )
    positions_LD = source.take("bert.embeddings.position_embeddings.weight")
    segments = source.take("bert.embeddings.token_type_embeddings.weight")
    weights = {
        "embedding.vectors.table.weight": table_VD,
        "embedding.position.table.weight": positions_LD + segments[0],
        **source.pair("embedding.norm", "bert.embeddings.LayerNorm"),
        **source.pair("head.body.0", "cls.predictions.transform.dense"),
        **source.pair("head.body.2", "cls.predictions.transform.LayerNorm"),
        "head.bias": source.take("cls.predictions.decoder.bias"),
    }
    if not is_tied:
        weights["head.weight"] = head_VD
    for number in range(config.num_hidden_layers):
        block, theirs = f"encoder.layers.{number}", f"bert.encoder.layer.{number}"
        stacked = [f"{theirs}.attention.self.{part}" for part in ("query", "key", "value")]
        weights |= source.pair(f"{block}.attention.query_key_value", *stacked)
        weights |= source.pair(f"{block}.attention.output", f"{theirs}.attention.output.dense")
        weights |= source.pair(f"{block}.attention_residual.after", f"{theirs}.attention.output.LayerNorm")
        weights |= source.pair(f"{block}.feed_forward.up", f"{theirs}.intermediate.dense")
        weights |= source.pair(f"{block}.feed_forward.down", f"{theirs}.output.dense")
        weights |= source.pair(f"{block}.feed_forward_residual.after", f"{theirs}.output.LayerNorm")
    return ours, MaskedLM(config.vocab_size, config.max_position_embeddings), weights


def _marian(config: Any, source: _Source) -> Converted:
    """Convert Marian. Its sinusoidal positions are ordered unlike ours, so they become a learned table."""
    _require(
        config,
        {
            "decoder_attention_heads": config.encoder_attention_heads,
            "decoder_ffn_dim": config.encoder_ffn_dim,
        },
    )
    source_VD = source.take("model.encoder.embed_tokens.weight")
    target_VD = source.take("model.decoder.embed_tokens.weight")
    if config.share_encoder_decoder_embeddings:
        source.take("model.shared.weight")  # another name for both
    head_VD = source.take("lm_head.weight")
    is_shared, is_tied = torch.equal(source_VD, target_VD), torch.equal(target_VD, head_VD)
    ours = TransformerConfig(
        num_layers=config.encoder_layers,
        decoder_layers=config.decoder_layers,
        num_heads=config.encoder_attention_heads,
        hidden_dim=config.d_model,
        feed_forward_dim=config.encoder_ffn_dim,
        dropout=float(config.dropout),
        attention_dropout=float(config.attention_dropout),
        position=LearnedConfig(),
        norm=LayerNormConfig(),
        norm_placement="post",
        feed_forward=_feed_forward(config.activation_function, "activation_function"),
        input=TokenEmbeddingConfig(scale=config.scale_embedding),
        tied_output=is_tied,
    )
    weights = {
        "embedding.vectors.table.weight": source_VD,
        "embedding.position.table.weight": source.take("model.encoder.embed_positions.weight"),
        "target_embedding.position.table.weight": source.take("model.decoder.embed_positions.weight"),
        "head.bias": source.take("final_logits_bias")[0],
    }
    if not is_shared:
        weights["target_embedding.vectors.table.weight"] = target_VD
    if not is_tied:
        weights["head.weight"] = head_VD
    for number in range(config.encoder_layers):
        weights |= _marian_block(source, "encoder", number)
    for number in range(config.decoder_layers):
        weights |= _marian_block(source, "decoder", number)
        weights |= _marian_cross_attention(source, number)
    longest = config.max_position_embeddings
    return ours, Seq2Seq(len(source_VD), longest, len(target_VD), longest, is_shared), weights


def _marian_block(source: _Source, side: str, number: int) -> Tensors:
    ours, theirs = f"{side}.layers.{number}", f"model.{side}.layers.{number}"
    stacked = [f"{theirs}.self_attn.{part}_proj" for part in "qkv"]
    return {
        **source.pair(f"{ours}.attention.query_key_value", *stacked),
        **source.pair(f"{ours}.attention.output", f"{theirs}.self_attn.out_proj"),
        **source.pair(f"{ours}.attention_residual.after", f"{theirs}.self_attn_layer_norm"),
        **source.pair(f"{ours}.feed_forward.up", f"{theirs}.fc1"),
        **source.pair(f"{ours}.feed_forward.down", f"{theirs}.fc2"),
        **source.pair(f"{ours}.feed_forward_residual.after", f"{theirs}.final_layer_norm"),
    }


def _marian_cross_attention(source: _Source, number: int) -> Tensors:
    ours, theirs = f"decoder.layers.{number}", f"model.decoder.layers.{number}"
    stacked = [f"{theirs}.encoder_attn.{part}_proj" for part in "kv"]
    return {
        **source.pair(f"{ours}.cross_attention.query", f"{theirs}.encoder_attn.q_proj"),
        **source.pair(f"{ours}.cross_attention.key_value", *stacked),
        **source.pair(f"{ours}.cross_attention.output", f"{theirs}.encoder_attn.out_proj"),
        **source.pair(f"{ours}.cross_attention_residual.after", f"{theirs}.encoder_attn_layer_norm"),
    }


_CONVERTERS: dict[str, Callable[[Any, _Source], Converted]] = {
    "GPT2LMHeadModel": _gpt2,
    "BertForMaskedLM": _bert,
    "MarianMTModel": _marian,
}

_ACTIVATIONS: dict[str, FeedForwardConfig] = {
    "relu": ReLUConfig(),
    "gelu": GELUConfig(),
    "gelu_new": GELUConfig(approximate="tanh"),
    "gelu_pytorch_tanh": GELUConfig(approximate="tanh"),
    "silu": SiLUConfig(),
    "swish": SiLUConfig(),
}


def _feed_forward(activation: str, option: str) -> FeedForwardConfig:
    if activation not in _ACTIVATIONS:
        raise _unsupported(option, activation, list(_ACTIVATIONS))
    return _ACTIVATIONS[activation]


def _require(config: Any, options: Mapping[str, object]) -> None:
    """Raise an ErrorDetail if a Hugging Face config has an option with another value than `options` requires.

    An option that the config does not have is accepted.
    """
    for option, needed in options.items():
        given = getattr(config, option, needed)
        if given != needed:
            raise _unsupported(option, given, [str(needed)])


def _unsupported(option: str, given: object, allowed: Sequence[str]) -> ErrorDetail:
    return ErrorDetail(
        "our blocks do not support this value",
        path=f"config.{option}",
        value=given,
        allowed=allowed,
        hint="convert a model whose config has an allowed value",
    )
