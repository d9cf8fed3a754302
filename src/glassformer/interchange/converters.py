"""Converters from the weights and the config of a foreign model to a config, a task type and weights of ours.

A converter reads a mapping from names to tensors and a config as a dict, so that it serves a live model of
`transformers`, a folder with safetensors, and a GGUF file alike. Options that our blocks do not have raise an
error, so that the logits are equal in evaluation mode.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from pydantic import ValidationError
from torch import Tensor

from glassformer.blocks.embedding import TokenEmbeddingConfig
from glassformer.blocks.feed_forward import (
    FeedForwardConfig,
    GELUConfig,
    ReLUConfig,
    SiLUConfig,
    SwiGLUConfig,
)
from glassformer.blocks.heads import FirstPoolingConfig, TransformOutputConfig
from glassformer.blocks.norms import LayerNormConfig, RMSNormConfig
from glassformer.blocks.positions import LearnedConfig, RotaryConfig
from glassformer.core.errors import ErrorDetail
from glassformer.interchange.options import Options, unsupported
from glassformer.models.task_types import CausalLM, MaskedLM, Seq2Seq, SequenceClassification, TaskType
from glassformer.models.transformer import TransformerConfig

Tensors = dict[str, Tensor]

PLAIN = "convert a plain model, without adapters or added parts"


@dataclass(frozen=True)
class Converted:
    """Model config, task type and weights that a converter made."""

    config: TransformerConfig
    task_type: TaskType
    weights: Tensors
    has_head: bool = True
    """False if the source has no output head, so that its outputs mean nothing."""
    left_out: tuple[str, ...] = ()
    """Names of the weights of the source that the model has no use for."""


class Source:
    """Tensors of the original model that are not converted yet. In the end none may be left over.

    Names may start with `prefix`, which some files have and others have not.
    """

    def __init__(self, tensors: Mapping[str, Tensor], prefix: str = "") -> None:
        self._tensors = tensors
        self._left = {name.removeprefix(prefix): name for name in tensors}
        self.left_out: list[str] = []

    def take(self, name: str) -> Tensor:
        """Remove the tensor of this name and return it."""
        if name not in self._left:
            raise ErrorDetail("the model does not have this weight", path=name, hint=PLAIN)
        found = self._tensors[self._left.pop(name)]
        if not found.numel() or not found.ndim:
            raise ErrorDetail("this weight is empty, or a single number", path=name, hint=PLAIN)
        return found

    def take_optional(self, name: str) -> Tensor | None:
        """Remove the tensor of this name and return it, or None if there is none."""
        return self.take(name) if name in self._left else None

    def tied(self, name: str, other: Tensor, is_tied: bool) -> Tensor:
        """Return the tensor `name`, or `other` if it is missing and the config states that they are tied."""
        found = self.take_optional(name)
        return other if found is None and is_tied else self.take(name) if found is None else found

    def ignore(self, *endings: str) -> None:
        """Remove the tensors whose names end like this: buffers that contain no knowledge."""
        self._left = {name: full for name, full in self._left.items() if not name.endswith(endings)}

    def leave_out(self, *beginnings: str) -> None:
        """Remove the tensors whose names start like this, and list them as left out."""
        found = [name for name in self._left if name.startswith(beginnings)]
        self.left_out += [self._left.pop(name) for name in found]

    def check_all_taken(self) -> None:
        """Raise an ErrorDetail if a tensor was not taken."""
        for name in self._left.values():
            raise ErrorDetail("this weight has no counterpart in our model", path=name, hint=PLAIN)

    def pair(self, ours: str, *theirs: str) -> Tensors:
        """Return the weight and bias of the layer `theirs`, renamed to `ours.weight` and `ours.bias`.

        If several layers are named, such as query, key and value, they are concatenated.
        """
        return {f"{ours}.{part}": self._joined(theirs, part) for part in ("weight", "bias")}

    def stacked(self, ours: str, *theirs: str, bias: bool) -> Tensors:
        """Return the weight of the layer `theirs`, and with `bias` its bias, which is zero if it has none."""
        weights = {f"{ours}.weight": self._joined(theirs, "weight")}
        if bias:
            found = [self.take_optional(f"{name}.bias") for name in theirs]
            zeros = torch.zeros(len(weights[f"{ours}.weight"]), dtype=weights[f"{ours}.weight"].dtype)
            given = [tensor for tensor in found if tensor is not None]
            if given and len(given) < len(found):
                raise ErrorDetail("only some of these layers have a bias", path=theirs[0], hint=PLAIN)
            weights[f"{ours}.bias"] = torch.cat(given) if given else zeros
        return weights

    def _joined(self, names: tuple[str, ...], part: str) -> Tensor:
        tensors = [self.take(f"{name}.{part}") for name in names]
        if len({tensor.shape[1:] for tensor in tensors}) > 1:
            raise ErrorDetail("the shapes of these layers differ", path=f"{names[0]}.{part}", hint=PLAIN)
        return torch.cat(tensors) if len(tensors) > 1 else tensors[0]

    def transposed_pair(self, ours: str, theirs: str) -> Tensors:
        """Return the weight and bias of the GPT-2 layer `theirs`, renamed to `ours.weight` and `ours.bias`.

        The weight is transposed, because GPT-2 stores it as (inputs, outputs).
        """
        return {
            f"{ours}.weight": self.take(f"{theirs}.weight").mT,
            f"{ours}.bias": self.take(f"{theirs}.bias"),
        }


def convert(architecture: str, values: Mapping[str, object], tensors: Mapping[str, Tensor]) -> Converted:
    """Convert a model of this class, such as `LlamaForCausalLM`, from its config and its tensors."""
    if architecture not in CONVERTERS:
        raise ErrorDetail(
            "models of this class cannot be converted",
            path="architecture",
            value=architecture,
            allowed=sorted(CONVERTERS),
            hint="load the model with the head it was trained with",
        )
    prefix, converter = CONVERTERS[architecture]
    source = Source(tensors, prefix)
    try:
        converted = converter(Options(values), source)
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ").splitlines()[0]
        hint = "the config must be that of the weights"
        raise ErrorDetail(
            f"our models cannot have these options: {reason}", path="config", hint=hint
        ) from None
    source.check_all_taken()
    _check_shapes(converted)
    return Converted(
        converted.config,
        converted.task_type,
        converted.weights,
        converted.has_head,
        tuple(source.left_out),
    )


def _check_shapes(converted: Converted) -> None:
    """Raise an ErrorDetail unless the weights have the shapes of the model, which is built without memory."""
    with torch.device("meta"):
        expected = converted.config.build(converted.task_type).state_dict()
    for name, tensor in expected.items():
        given = converted.weights.get(name)
        if given is None or given.shape != tensor.shape:
            shape = None if given is None else tuple(given.shape)
            message = f"the config asks for the shape {tuple(tensor.shape)} of {name}"
            raise ErrorDetail(
                message, path="config", value=shape, hint="the config must be that of the weights"
            )
    for name in converted.weights.keys() - expected.keys():
        raise ErrorDetail("this weight has no counterpart in our model", path=name, hint=PLAIN)


def _llama(options: Options, source: Source) -> Converted:
    hidden_dim, heads = options.integer("hidden_size"), options.integer("num_attention_heads")
    layers = options.integer("num_hidden_layers")
    options.require({"hidden_act": "silu", "pretraining_tp": 1, "partial_rotary_factor": 1.0})
    if options.integer("head_dim", hidden_dim // heads) * heads != hidden_dim:
        raise unsupported("head_dim", options.values.get("head_dim"), [f"{hidden_dim / heads:g}"])
    has_bias = options.flag("attention_bias", False) or options.flag("mlp_bias", False)
    source.ignore("rotary_emb.inv_freq")
    table_VD = source.take("embed_tokens.weight")
    head_VD = source.tied("lm_head.weight", table_VD, options.flag("tie_word_embeddings", False))
    is_tied = head_VD is table_VD or torch.equal(table_VD, head_VD)
    ours = TransformerConfig(
        num_layers=layers,
        num_heads=heads,
        num_key_value_heads=options.integer("num_key_value_heads", heads),
        hidden_dim=hidden_dim,
        feed_forward_dim=options.integer("intermediate_size"),
        dropout=0.0,
        attention_dropout=options.number("attention_dropout", 0.0),
        bias=has_bias,
        position=RotaryConfig(base=_rotary_base(options)),
        norm=RMSNormConfig(epsilon=options.number("rms_norm_eps", 1e-6)),
        norm_placement="pre",
        feed_forward=SwiGLUConfig(),
        input=TokenEmbeddingConfig(scale=False),
        output_bias=False,
        tied_output=is_tied,
    )
    weights = {
        "embedding.vectors.table.weight": table_VD,
        "encoder.final_norm.weight": source.take("norm.weight"),
    }
    if not is_tied:
        weights["head.weight"] = head_VD
    for number in range(layers):
        block, theirs = f"encoder.layers.{number}", f"layers.{number}"
        projections = [f"{theirs}.self_attn.{part}_proj" for part in "qkv"]
        weights |= source.stacked(f"{block}.attention.query_key_value", *projections, bias=has_bias)
        weights |= source.stacked(f"{block}.attention.output", f"{theirs}.self_attn.o_proj", bias=has_bias)
        for part in ("gate", "up", "down"):
            weights |= source.stacked(
                f"{block}.feed_forward.{part}", f"{theirs}.mlp.{part}_proj", bias=has_bias
            )
        for residual, norm in (("attention", "input"), ("feed_forward", "post_attention")):
            name = f"{block}.{residual}_residual.before.weight"
            weights[name] = source.take(f"{theirs}.{norm}_layernorm.weight")
    return Converted(ours, CausalLM(len(table_VD), options.integer("max_position_embeddings", 2048)), weights)


def _rotary_base(options: Options) -> float:
    """Return the base of the rotary angles. Stretched angles, as for long contexts, are not supported."""
    base = options.number("rope_theta", 10000.0)
    for name in ("rope_scaling", "rope_parameters"):
        scaling = options.values.get(name)
        if scaling is None:
            continue
        if not isinstance(scaling, Mapping):
            raise unsupported(name, scaling, ["none"])
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        if kind not in ("default", None):
            raise unsupported(f"{name}.rope_type", kind, ["default"])
        if "rope_theta" in scaling:
            base = Options(scaling).number("rope_theta")
    return base


def _gpt2(options: Options, source: Source) -> Converted:
    options.require(
        {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False}
    )
    hidden_dim, layers = options.integer("n_embd"), options.integer("n_layer")
    source.ignore(".attn.bias", ".attn.masked_bias")
    table_VD = source.take("wte.weight")
    head_VD = source.tied("lm_head.weight", table_VD, options.flag("tie_word_embeddings", True))
    is_tied = head_VD is table_VD or torch.equal(table_VD, head_VD)
    ours = TransformerConfig(
        num_layers=layers,
        num_heads=options.integer("n_head"),
        hidden_dim=hidden_dim,
        feed_forward_dim=options.integer("n_inner", 4 * hidden_dim),
        dropout=options.number("resid_pdrop", 0.1),
        attention_dropout=options.number("attn_pdrop", 0.1),
        position=LearnedConfig(),
        norm=LayerNormConfig(epsilon=options.number("layer_norm_epsilon", 1e-5)),
        norm_placement="pre",
        feed_forward=_feed_forward(options, "activation_function", "gelu_new"),
        input=TokenEmbeddingConfig(scale=False),
        output_bias=False,
        tied_output=is_tied,
    )
    weights = {
        "embedding.vectors.table.weight": table_VD,
        "embedding.position.table.weight": source.take("wpe.weight"),
        **source.pair("encoder.final_norm", "ln_f"),
    }
    if not is_tied:
        weights["head.weight"] = head_VD
    for number in range(layers):
        block, theirs = f"encoder.layers.{number}", f"h.{number}"
        weights |= source.pair(f"{block}.attention_residual.before", f"{theirs}.ln_1")
        weights |= source.transposed_pair(f"{block}.attention.query_key_value", f"{theirs}.attn.c_attn")
        weights |= source.transposed_pair(f"{block}.attention.output", f"{theirs}.attn.c_proj")
        weights |= source.pair(f"{block}.feed_forward_residual.before", f"{theirs}.ln_2")
        weights |= source.transposed_pair(f"{block}.feed_forward.up", f"{theirs}.mlp.c_fc")
        weights |= source.transposed_pair(f"{block}.feed_forward.down", f"{theirs}.mlp.c_proj")
    longest = len(weights["embedding.position.table.weight"])
    return Converted(ours, CausalLM(len(table_VD), longest), weights)


def _bert_backbone(options: Options, source: Source) -> tuple[dict[str, object], Tensors]:
    """Convert the blocks of BERT; return options of `TransformerConfig` and weights.

    Texts have one segment: the embedding of segment 0 is added to all positions.
    """
    # BERT's output network uses the activation of its blocks, ours always uses GELU.
    options.require(
        {
            "is_decoder": False,
            "add_cross_attention": False,
            "position_embedding_type": "absolute",
            "hidden_act": "gelu",
        }
    )
    source.ignore("embeddings.position_ids")
    layers, epsilon = options.integer("num_hidden_layers"), options.number("layer_norm_eps", 1e-12)
    ours: dict[str, object] = {
        "num_layers": layers,
        "num_heads": options.integer("num_attention_heads"),
        "hidden_dim": options.integer("hidden_size"),
        "feed_forward_dim": options.integer("intermediate_size"),
        "dropout": options.number("hidden_dropout_prob", 0.1),
        "attention_dropout": options.number("attention_probs_dropout_prob", 0.1),
        "position": LearnedConfig(),
        "norm": LayerNormConfig(epsilon=epsilon),
        "norm_placement": "post",
        "embedding_norm": True,
        "feed_forward": GELUConfig(),
        "input": TokenEmbeddingConfig(scale=False),
    }
    positions_LD = source.take("embeddings.position_embeddings.weight")
    segments = source.take("embeddings.token_type_embeddings.weight")
    if segments.ndim != 2 or not len(segments) or segments.shape[1:] != positions_LD.shape[1:]:
        raise ErrorDetail("the shape is wrong", path="embeddings.token_type_embeddings.weight", hint=PLAIN)
    weights = {
        "embedding.vectors.table.weight": source.take("embeddings.word_embeddings.weight"),
        "embedding.position.table.weight": positions_LD + segments[0],
        **source.pair("embedding.norm", "embeddings.LayerNorm"),
    }
    for number in range(layers):
        block, theirs = f"encoder.layers.{number}", f"encoder.layer.{number}"
        stacked = [f"{theirs}.attention.self.{part}" for part in ("query", "key", "value")]
        weights |= source.pair(f"{block}.attention.query_key_value", *stacked)
        weights |= source.pair(f"{block}.attention.output", f"{theirs}.attention.output.dense")
        weights |= source.pair(f"{block}.attention_residual.after", f"{theirs}.attention.output.LayerNorm")
        weights |= source.pair(f"{block}.feed_forward.up", f"{theirs}.intermediate.dense")
        weights |= source.pair(f"{block}.feed_forward.down", f"{theirs}.output.dense")
        weights |= source.pair(f"{block}.feed_forward_residual.after", f"{theirs}.output.LayerNorm")
    return ours, weights


def _bert_sizes(weights: Tensors) -> tuple[int, int]:
    """Return the size of the vocabulary and the number of positions."""
    tables = (weights[f"embedding.{part}.table.weight"] for part in ("vectors", "position"))
    vocabulary, length = (len(table) for table in tables)
    return vocabulary, length


def _bert_masked(options: Options, source: Source) -> Converted:
    ours, weights = _bert_backbone(options, source)
    table_VD = weights["embedding.vectors.table.weight"]
    is_tied = options.flag("tie_word_embeddings", True)
    head_VD = source.tied("cls.predictions.decoder.weight", table_VD, is_tied)
    biases = [source.take_optional(f"cls.predictions.{name}bias") for name in ("decoder.", "")]
    bias = next((found for found in biases if found is not None), None)
    weights["head.bias"] = source.take("cls.predictions.bias") if bias is None else bias
    weights |= source.pair("head.body.0", "cls.predictions.transform.dense")
    weights |= source.pair("head.body.2", "cls.predictions.transform.LayerNorm")
    is_tied = head_VD is table_VD or torch.equal(table_VD, head_VD)
    if not is_tied:
        weights["head.weight"] = head_VD
    source.leave_out("pooler.", "cls.seq_relationship.")
    ours |= {"output": TransformOutputConfig(epsilon=options.number("layer_norm_eps", 1e-12))}
    config = TransformerConfig.model_validate({**ours, "tied_output": is_tied})
    return Converted(config, MaskedLM(*_bert_sizes(weights)), weights)


def _bert_encoder(options: Options, source: Source) -> Converted:
    """Convert BERT without an output head. The embedding takes the place of the head, without a bias."""
    ours, weights = _bert_backbone(options, source)
    source.leave_out("pooler.", "cls.")
    config = TransformerConfig.model_validate({**ours, "tied_output": True, "output_bias": False})
    return Converted(config, MaskedLM(*_bert_sizes(weights)), weights, has_head=False)


def _bert_classifier(options: Options, source: Source) -> Converted:
    if options.values.get("problem_type") == "multi_label_classification":
        raise unsupported("problem_type", "multi_label_classification", ["single_label_classification"])
    ours, weights = _bert_backbone(options, source)
    weights |= source.pair("pooling.linear", "pooler.dense")
    weights |= source.pair("head", "classifier")
    outputs = len(weights["head.weight"])
    config = TransformerConfig.model_validate({**ours, "pooling": FirstPoolingConfig(transform=True)})
    is_regression = outputs == 1
    task_type = SequenceClassification(*_bert_sizes(weights), outputs=outputs, is_regression=is_regression)
    return Converted(config, task_type, weights)


def _marian(options: Options, source: Source) -> Converted:
    """Convert Marian. Its sinusoidal positions are ordered unlike ours, so they become a learned table."""
    heads, width = options.integer("encoder_attention_heads"), options.integer("encoder_ffn_dim")
    options.require({"decoder_attention_heads": heads, "decoder_ffn_dim": width})
    options.require({"normalize_before": False, "normalize_embedding": False})
    hidden_dim, longest = options.integer("d_model"), options.integer("max_position_embeddings", 1024)
    encoder_layers, decoder_layers = options.integer("encoder_layers"), options.integer("decoder_layers")
    shared_VD = source.take_optional("shared.weight")
    tables = [source.take_optional(f"{side}.embed_tokens.weight") for side in ("encoder", "decoder")]
    source_VD, target_VD = (shared_VD if table is None else table for table in tables)
    if source_VD is None or target_VD is None:
        raise ErrorDetail("the model does not have this weight", path="model.shared.weight", hint=PLAIN)
    head_VD = source.tied("lm_head.weight", target_VD, options.flag("tie_word_embeddings", True))
    is_shared, is_tied = torch.equal(source_VD, target_VD), torch.equal(target_VD, head_VD)
    ours = TransformerConfig(
        num_layers=encoder_layers,
        decoder_layers=decoder_layers,
        num_heads=heads,
        hidden_dim=hidden_dim,
        feed_forward_dim=width,
        dropout=options.number("dropout", 0.1),
        attention_dropout=options.number("attention_dropout", 0.0),
        position=LearnedConfig(),
        norm=LayerNormConfig(),
        norm_placement="post",
        feed_forward=_feed_forward(options, "activation_function", "gelu"),
        input=TokenEmbeddingConfig(scale=options.flag("scale_embedding", False)),
        tied_output=is_tied,
    )
    weights = {
        "embedding.vectors.table.weight": source_VD,
        "embedding.position.table.weight": _marian_positions(source, "encoder", longest, hidden_dim),
        "target_embedding.position.table.weight": _marian_positions(source, "decoder", longest, hidden_dim),
        "head.bias": source.take("final_logits_bias").flatten(),
    }
    if not is_shared:
        weights["target_embedding.vectors.table.weight"] = target_VD
    if not is_tied:
        weights["head.weight"] = head_VD
    for number in range(encoder_layers):
        weights |= _marian_block(source, "encoder", number)
    for number in range(decoder_layers):
        weights |= _marian_block(source, "decoder", number)
        weights |= _marian_cross_attention(source, number)
    return Converted(ours, Seq2Seq(len(source_VD), longest, len(target_VD), longest, is_shared), weights)


def _marian_positions(source: Source, side: str, length: int, width: int) -> Tensor:
    """Return Marian's table of positions, which files need not have: all sines, then all cosines."""
    found = source.take_optional(f"{side}.embed_positions.weight")
    if found is not None:
        return found
    if length * width > 1 << 28:
        raise unsupported("max_position_embeddings", length, ["at most 2**28 / d_model"])
    rates = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(10000.0) / width))
    angles = torch.arange(length, dtype=torch.float64)[:, None] * rates
    return torch.cat([angles.sin(), angles[:, : width // 2].cos()], dim=1).float()


def _marian_block(source: Source, side: str, number: int) -> Tensors:
    ours, theirs = f"{side}.layers.{number}", f"{side}.layers.{number}"
    stacked = [f"{theirs}.self_attn.{part}_proj" for part in "qkv"]
    return {
        **source.pair(f"{ours}.attention.query_key_value", *stacked),
        **source.pair(f"{ours}.attention.output", f"{theirs}.self_attn.out_proj"),
        **source.pair(f"{ours}.attention_residual.after", f"{theirs}.self_attn_layer_norm"),
        **source.pair(f"{ours}.feed_forward.up", f"{theirs}.fc1"),
        **source.pair(f"{ours}.feed_forward.down", f"{theirs}.fc2"),
        **source.pair(f"{ours}.feed_forward_residual.after", f"{theirs}.final_layer_norm"),
    }


def _marian_cross_attention(source: Source, number: int) -> Tensors:
    ours = theirs = f"decoder.layers.{number}"
    stacked = [f"{theirs}.encoder_attn.{part}_proj" for part in "kv"]
    return {
        **source.pair(f"{ours}.cross_attention.query", f"{theirs}.encoder_attn.q_proj"),
        **source.pair(f"{ours}.cross_attention.key_value", *stacked),
        **source.pair(f"{ours}.cross_attention.output", f"{theirs}.encoder_attn.out_proj"),
        **source.pair(f"{ours}.cross_attention_residual.after", f"{theirs}.encoder_attn_layer_norm"),
    }


CONVERTERS: dict[str, tuple[str, Callable[[Options, Source], Converted]]] = {
    "LlamaForCausalLM": ("model.", _llama),
    "GPT2LMHeadModel": ("transformer.", _gpt2),
    "BertModel": ("bert.", _bert_encoder),
    "BertForMaskedLM": ("bert.", _bert_masked),
    "BertForSequenceClassification": ("bert.", _bert_classifier),
    "MarianMTModel": ("model.", _marian),
}
"""Prefix of the names of weights, and converter, by the name of the class in `transformers`."""

_ACTIVATIONS: dict[str, FeedForwardConfig] = {
    "relu": ReLUConfig(),
    "gelu": GELUConfig(),
    "gelu_new": GELUConfig(approximate="tanh"),
    "gelu_pytorch_tanh": GELUConfig(approximate="tanh"),
    "silu": SiLUConfig(),
    "swish": SiLUConfig(),
}


def _feed_forward(options: Options, name: str, default: str) -> FeedForwardConfig:
    return _ACTIVATIONS[options.choice(name, default, list(_ACTIVATIONS))]
