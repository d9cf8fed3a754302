"""Conversion of a model to CTranslate2, an inference engine in C++: specification, weights and vocabulary.

    write_model(model, folder, Vocabulary(words, begin="<begin>", end="<end>"))
    ctranslate2.Translator(folder).translate_batch([["a", "word", "<end>"]])

The export, the decoding engine (`ctranslate2_engine.py`) and the benchmark use this conversion.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from glassformer.blocks.embedding import (
    Embedding,
    InputNet,
    OneHot,
    OneHotConfig,
    TokenEmbedding,
    TokenEmbeddingConfig,
)
from glassformer.blocks.feed_forward import (
    FeedForwardConfig,
    GELUConfig,
    ReLUConfig,
    SiLUConfig,
    SwiGLU,
    SwiGLUConfig,
)
from glassformer.blocks.heads import LinearOutputConfig
from glassformer.blocks.layers import DecoderStack, EncoderStack
from glassformer.blocks.norms import LayerNormConfig, RMSNormConfig
from glassformer.blocks.positions import (
    ALiBi,
    ALiBiConfig,
    LearnedConfig,
    NoPositionConfig,
    Position,
    Rotary,
    RotaryConfig,
    ShawRelative,
    ShawRelativeConfig,
    SimplePositionConfig,
    SinusoidalConfig,
    T5Relative,
    T5RelativeConfig,
)
from glassformer.core.errors import ErrorDetail
from glassformer.models.base import Backbone, Model, ModelConfig
from glassformer.models.seq2seq import EncoderDecoder
from glassformer.models.task_types import CausalLM, Seq2Seq, TaskType
from glassformer.models.transformer import CausalLanguageModel, TransformerConfig

Quantization = Literal["int8"]

_TABLES = (NoPositionConfig, SinusoidalConfig, LearnedConfig, SimplePositionConfig)
"""Positions that add one vector per position to the embedding."""
_POSITIONS = (*_TABLES, RotaryConfig, ShawRelativeConfig, T5RelativeConfig, ALiBiConfig)
_ONNX = "export to onnx"


@dataclass(frozen=True)
class Vocabulary:
    """Token strings by id, and the strings that begin and end a generated sequence."""

    tokens: Sequence[str]
    begin: str
    end: str
    unknown: str
    """String of the unknown token. If it is not one of the tokens, CTranslate2 appends it."""


def limits(config: ModelConfig, task_type: TaskType) -> list[ErrorDetail]:
    """Return the options of a model that CTranslate2 cannot represent. An empty list: it can be converted."""
    if not isinstance(task_type, (CausalLM, Seq2Seq)):
        reason = "CTranslate2 runs language models and encoder-decoders only"
        return [ErrorDetail(reason, path="task.kind", value=type(task_type).__name__, hint=_ONNX)]
    if not isinstance(config, TransformerConfig):
        reason = "CTranslate2 does not know this kind of model"
        return [ErrorDetail(reason, path="model.kind", value=config.kind, hint=_ONNX)]
    found = list(_unknown_parts(config))
    if not found and isinstance(config.position, T5RelativeConfig):
        found += _t5_limits(config.position, task_type)
    if isinstance(config.position, ALiBiConfig) and isinstance(task_type, Seq2Seq):
        found.append(_limit("position", config.position, "the encoder of CTranslate2 has no ALiBi", "rotary"))
    return found


def _unknown_parts(config: TransformerConfig) -> Iterator[ErrorDetail]:
    """Yield the parts of a model that have no counterpart in any specification."""
    if not isinstance(config.norm, (LayerNormConfig, RMSNormConfig)):
        yield _limit("norm", config.norm, "a block of CTranslate2 has a layer norm or an RMS norm", "layer")
    if not isinstance(config.output, LinearOutputConfig):
        yield _limit("output", config.output, "the output head of CTranslate2 is one linear layer", "linear")
    if not isinstance(config.position, _POSITIONS):
        yield _limit("position", config.position, "CTranslate2 does not have this encoding", "rotary")
    if not isinstance(config.feed_forward, (ReLUConfig, GELUConfig, SiLUConfig, SwiGLUConfig)):
        yield _limit("feed_forward", config.feed_forward, "CTranslate2 does not have this network", "gelu")
    if not isinstance(config.input, (TokenEmbeddingConfig, OneHotConfig)):
        yield _limit("input", config.input, "CTranslate2 does not have this input network", "tokens")


def _limit(option: str, given: Any, reason: str, other: str) -> ErrorDetail:
    hint = f"train with model.{option}.kind={other}, or {_ONNX}"
    return ErrorDetail(reason, path=f"model.{option}.kind", value=given.kind, hint=hint)


def _t5_limits(position: T5RelativeConfig, task_type: TaskType) -> Iterator[ErrorDetail]:
    if not isinstance(task_type, Seq2Seq):
        yield _limit(
            "position",
            position,
            "CTranslate2 gives all tokens of a prompt the position of the last one",
            "rotary",
        )
        return
    lengths = {True: task_type.max_target_length, False: task_type.max_length}
    for is_causal, length in lengths.items():
        if not _has_same_buckets(position.num_buckets, position.max_distance, is_causal, length):
            reason = "CTranslate2 rounds distances to other buckets"
            yield _limit("position", position, reason, "rotary")
            return


@cache
def _has_same_buckets(num_buckets: int, max_distance: int, is_causal: bool, length: int) -> bool:
    """Return True if CTranslate2 puts all distances within a length into our buckets."""
    ours = T5Relative(1, num_buckets, max_distance, is_causal)
    distances = np.arange(-length, 1 if is_causal else length + 1)
    return bool((ours.bucket(torch.from_numpy(distances)).numpy() == _t5_buckets(ours, distances)).all())


def _t5_buckets(position: T5Relative, distances: np.ndarray) -> np.ndarray:
    """Return the buckets that CTranslate2 computes, in single precision."""
    buckets, offset = position.num_buckets, np.zeros_like(distances)
    if position.is_causal:
        far = -np.minimum(distances, 0)
    else:
        buckets //= 2
        offset, far = np.where(distances > 0, buckets, 0), np.abs(distances)
    exact = np.float32(buckets // 2)
    ratio = np.log(np.maximum(far, exact).astype(np.float32) / exact)
    ratio = ratio / np.log(np.float32(position.max_distance) / exact) * (np.float32(buckets) - exact)
    return offset + np.where(far < exact, far, np.minimum((exact + ratio).astype(np.int64), buckets - 1))


def write_model(
    model: Model,
    folder: str | Path,
    source: Vocabulary,
    target: Vocabulary | None = None,
    quantization: Quantization | None = None,
    extra_positions: int = 0,
) -> None:
    """Write `model.bin`, `config.json` and the vocabularies to an existing folder.

    `target` is the vocabulary of the generated tokens. None: the same as that of the source. A table of
    positions gets `extra_positions` rows of zeros: CTranslate2 scores a target with its end token, and so
    reads one position more than a target of maximum length has.
    """
    config = model.config
    if not isinstance(config, TransformerConfig):
        raise ErrorDetail(
            "only a model that a config built can be converted",
            path="model",
            value=type(model).__name__,
            hint="build it with gf.Transformer(...)",
        )
    for limit in limits(config, model.task_type):
        raise limit
    target = target or source
    if isinstance(model, EncoderDecoder):
        spec = _encoder_decoder(model, config, source, target, extra_positions)
    else:
        assert isinstance(model, CausalLanguageModel)
        spec = _language_model(model, config, target)
    for name, vocabulary in (("source", source), ("target", target)):
        if len(set(vocabulary.tokens)) != len(vocabulary.tokens):
            raise ValueError(f"the {name} tokens are not distinct")
    settings = spec.config
    settings.unk_token, settings.bos_token, settings.eos_token = target.unknown, target.begin, target.end
    settings.layer_norm_epsilon = config.norm.epsilon  # type: ignore[attr-defined]
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(folder))


def _encoder_decoder(
    model: EncoderDecoder,
    config: TransformerConfig,
    source: Vocabulary,
    target: Vocabulary,
    extra_positions: int,
) -> Any:
    from ctranslate2.specs import TransformerSpec
    from ctranslate2.specs.transformer_spec import TransformerDecoderSpec, TransformerEncoderSpec

    task_type = model.task_type
    assert isinstance(task_type, Seq2Seq)
    options = _options(config)
    alibi = options.pop("alibi")
    spec = TransformerSpec(
        TransformerEncoderSpec(config.num_layers, config.num_heads, **options),
        TransformerDecoderSpec(config.num_decoder_layers, config.num_heads, alibi=alibi, **options),
    )
    spec.config.decoder_start_token = target.begin
    spec.register_source_vocabulary(list(source.tokens))
    spec.register_target_vocabulary(list(target.tokens))
    shared = model.embedding.input_net()
    _set_embedding(spec.encoder, spec.encoder.embeddings[0], model.embedding, shared, task_type.max_length)
    _set_stack(spec.encoder, model.encoder, model.embedding.position, config)
    _set_embedding(
        spec.decoder, spec.decoder.embeddings, model.target_embedding, shared, task_type.max_target_length
    )
    if extra_positions and _is_table(model.target_embedding.position):
        table = spec.decoder.position_encodings
        table.encodings = np.pad(table.encodings, ((0, extra_positions), (0, 0)))
    _set_stack(spec.decoder, model.decoder, model.target_embedding.position, config)
    _set_head(spec.decoder, model)
    return spec


def _language_model(model: CausalLanguageModel, config: TransformerConfig, vocabulary: Vocabulary) -> Any:
    from ctranslate2.specs.transformer_spec import TransformerDecoderModelSpec, TransformerDecoderSpec

    spec = TransformerDecoderModelSpec(
        TransformerDecoderSpec(
            config.num_layers, config.num_heads, with_encoder_attention=False, **_options(config)
        )
    )
    spec.register_vocabulary(list(vocabulary.tokens))
    shared, longest = model.embedding.input_net(), model.task_type.max_length
    _set_embedding(spec.decoder, spec.decoder.embeddings, model.embedding, shared, longest)
    _set_stack(spec.decoder, model.encoder, model.embedding.position, config)
    _set_head(spec.decoder, model)
    return spec


def _options(config: TransformerConfig) -> dict[str, Any]:
    """Return the arguments of an encoder or decoder specification."""
    position, heads = config.position, config.num_key_value_heads
    options = {
        "pre_norm": config.norm_placement == "pre",
        "no_final_norm": not config.has_final_norm,
        "activation": _activation(config.feed_forward),
        "layernorm_embedding": config.embedding_norm,
        "relative_position": isinstance(position, ShawRelativeConfig),
        "relative_attention_bias": isinstance(position, T5RelativeConfig),
        "ffn_glu": isinstance(config.feed_forward, SwiGLUConfig),
        "rms_norm": isinstance(config.norm, RMSNormConfig),
        "alibi": isinstance(position, ALiBiConfig),
        # The number is given only if it differs: the default has a faster path.
        "num_heads_kv": None if heads == config.num_heads else heads,
    }
    if isinstance(position, RotaryConfig):
        options |= {"rotary_dim": 0, "rotary_interleave": False, "rotary_base": position.base}
    return options


def _activation(feed_forward: FeedForwardConfig) -> Any:
    from ctranslate2.specs.common_spec import Activation

    if isinstance(feed_forward, GELUConfig):
        return Activation.GELU if feed_forward.approximate == "none" else Activation.GELUTanh
    return Activation.RELU if isinstance(feed_forward, ReLUConfig) else Activation.SWISH


def _set_embedding(stack: Any, table: Any, embedding: Embedding, shared: InputNet, longest: int) -> None:
    """Set the token vectors, their scale, the table of positions and the norm after them."""
    net = embedding.input_net(shared)
    if isinstance(net, OneHot):
        table.weight, stack.scale_embeddings = _array(net.weight_VD + net.net.bias), False
    else:
        assert isinstance(net, TokenEmbedding)
        table.weight, stack.scale_embeddings = _array(net.weight_VD), net.factor != 1.0
    if _is_table(embedding.position):
        stack.position_encodings.encodings = _position_table(embedding.position, longest, net)
    elif hasattr(stack, "position_encodings"):
        del stack.position_encodings
    if hasattr(stack, "layernorm_embedding"):
        _set_norm(stack.layernorm_embedding, embedding.norm)


def _is_table(position: Position) -> bool:
    """Return True if the encoding acts on the embedding only. Without positions, the table is zero."""
    return not isinstance(position, (Rotary, ShawRelative, T5Relative, ALiBi))


def _position_table(position: Position, longest: int, net: InputNet) -> np.ndarray:
    zeros_1LD = torch.zeros(1, longest, net.weight_VD.shape[1])
    with torch.inference_mode():
        return _array(position.embed(zeros_1LD, torch.arange(longest)[None])[0])


def _set_stack(
    spec: Any, stack: EncoderStack | DecoderStack, position: Position, config: TransformerConfig
) -> None:
    """Set all blocks and the norm after the last one."""
    from ctranslate2.specs.common_spec import LayerNormSpec

    if config.has_final_norm:
        # CTranslate2 reads this norm for any placement, but its specification has it only with pre-norm.
        vars(spec).setdefault("layer_norm", LayerNormSpec(isinstance(config.norm, RMSNormConfig)))
        _set_norm(spec.layer_norm, stack.final_norm)
    for layer, block in zip(spec.layer, stack.layers, strict=True):
        _set_block(layer, block)
        _set_relative_position(layer.self_attention, position)


def _set_block(layer: Any, block: Any) -> None:
    _set_linear(layer.self_attention.linear[0], block.attention.query_key_value)
    _set_linear(layer.self_attention.linear[1], block.attention.output)
    _set_norm(layer.self_attention.layer_norm, _norm(block.attention_residual))
    if hasattr(layer, "attention"):
        _set_linear(layer.attention.linear[0], block.cross_attention.query)
        _set_linear(layer.attention.linear[1], block.cross_attention.key_value)
        _set_linear(layer.attention.linear[2], block.cross_attention.output)
        _set_norm(layer.attention.layer_norm, _norm(block.cross_attention_residual))
    network = block.feed_forward
    if isinstance(network, SwiGLU):
        _set_linear(layer.ffn.linear_0, network.gate)
        _set_linear(layer.ffn.linear_0_noact, network.up)
    else:
        _set_linear(layer.ffn.linear_0, network.up)
    _set_linear(layer.ffn.linear_1, network.down)
    _set_norm(layer.ffn.layer_norm, _norm(block.feed_forward_residual))


def _set_relative_position(attention: Any, position: Position) -> None:
    """Set the tables of relative positions. All layers share them."""
    if isinstance(position, ShawRelative):
        attention.relative_position_keys = _array(position.table.weight)
        attention.relative_position_values = np.zeros_like(attention.relative_position_keys)
    elif isinstance(position, T5Relative):
        attention.relative_attention_bias = _array(position.table.weight)
        attention.relative_attention_max_distance = np.int32(position.max_distance)


def _norm(residual: Any) -> nn.Module:
    """Return the norm of a residual connection, which is before or after its sublayer."""
    return residual.after if isinstance(residual.before, nn.Identity) else residual.before


def _set_head(decoder: Any, model: Backbone) -> None:
    decoder.projection.weight = _array(model.head.output_weight(model.tied_weight()))
    if model.head.bias is not None:
        decoder.projection.bias = _array(model.head.bias)


def _set_linear(spec: Any, layer: nn.Linear) -> None:
    spec.weight = _array(layer.weight)
    if layer.bias is not None:
        spec.bias = _array(layer.bias)


def _set_norm(spec: Any, norm: Any) -> None:
    spec.gamma = _array(norm.weight)
    if hasattr(spec, "beta"):
        spec.beta = _array(norm.bias)


def _array(tensor: Tensor) -> np.ndarray:
    """Return a copy, because CTranslate2 quantises in place."""
    return np.array(tensor.detach().cpu().numpy(), dtype=np.float32, order="C")
