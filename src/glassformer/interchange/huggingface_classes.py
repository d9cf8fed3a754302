"""Model classes of `transformers`: which models each can represent, its config, and its weights by name.

A class has a backbone, such as Llama's, and an output head. Options of our models that a class does not have
are obstacles. Parts that a class has and a model has not, such as a bias, are written as zeros.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from glassformer.blocks.embedding import TokenEmbedding
from glassformer.blocks.heads import (
    FirstPoolingConfig,
    LastPoolingConfig,
    LinearOutputConfig,
    PoolingConfig,
    TransformOutputConfig,
)
from glassformer.blocks.norms import LayerNormConfig, RMSNormConfig
from glassformer.blocks.positions import (
    RotaryConfig,
)
from glassformer.interchange.export import ExportPlan, ExportSource, Obstacle
from glassformer.interchange.exported_tokenizer import padding_id
from glassformer.interchange.huggingface_parts import (
    TABLES,
    Named,
    Weights,
    activation,
    embedding_norm_obstacles,
    epsilon,
    feed_forward_obstacles,
    input_obstacles,
    norm_obstacles,
    position_obstacles,
    position_table,
    token_table,
    unlike,
)
from glassformer.interchange.huggingface_seq2seq import ENCODER_DECODERS, EncoderDecoderClass
from glassformer.models.base import Backbone as BackboneModel
from glassformer.models.task_types import (
    CausalLM,
    MaskedLM,
    SequenceClassification,
    TaskType,
    TokenClassification,
)


class Backbone(ABC):
    """Stack of blocks of a family of classes, with its embedding."""

    model_type: ClassVar[str]
    prefix: ClassVar[str] = "model"
    is_causal: ClassVar[bool] = True

    @abstractmethod
    def obstacles(self, plan: ExportPlan, name: str) -> Iterator[Obstacle]:
        """Yield what the backbone cannot represent."""

    @abstractmethod
    def config(self, plan: ExportPlan) -> dict[str, Any]:
        """Return the entries of `config.json` that describe the backbone."""

    @abstractmethod
    def weights(self, source: ExportSource, final_norm: float) -> Named:
        """Yield the weights. Those of the final norm are multiplied by `final_norm`."""


class Llama(Backbone):
    """Backbone with RMS norms before the sublayers, rotary positions and SwiGLU."""

    model_type = "llama"

    def obstacles(self, plan: ExportPlan, name: str) -> Iterator[Obstacle]:
        yield from position_obstacles(plan, name, (RotaryConfig,))
        yield from norm_obstacles(plan, name, RMSNormConfig, "pre")
        yield from feed_forward_obstacles(plan, name, is_gated=True)
        yield from embedding_norm_obstacles(plan, name, has_embedding_norm=False)
        yield from input_obstacles(plan, name)

    def config(self, plan: ExportPlan) -> dict[str, Any]:
        config = plan.config
        return {
            **_rotary_config(plan),
            "intermediate_size": config.feed_forward_dim,
            "head_dim": config.hidden_dim // config.num_heads,
            "hidden_act": "silu",
            "rms_norm_eps": epsilon(config.norm),
            "attention_bias": config.bias,
            "mlp_bias": config.bias,
        }

    def weights(self, source: ExportSource, final_norm: float) -> Named:
        weights = Weights(source, has_grouped_heads=True)
        has_bias = source.config.bias
        yield "model.embed_tokens.weight", token_table(source)
        yield from weights.norm("encoder.final_norm", "model.norm", final_norm)
        for number in range(source.config.num_layers):
            ours, theirs = f"encoder.layers.{number}", f"model.layers.{number}"
            yield from _separate_attention(weights, ours, theirs, has_bias)
            for part in ("gate", "up", "down"):
                name = f"{theirs}.mlp.{part}_proj"
                yield from weights.layer(f"{ours}.feed_forward.{part}", name, has_bias=has_bias)


class EuroBert(Llama):
    """Llama's backbone with attention in both directions."""

    model_type = "eurobert"
    is_causal = False

    def config(self, plan: ExportPlan) -> dict[str, Any]:
        # In EuroBertForMaskedLM, this option also decides about the bias of the output layer.
        has_bias = plan.config.bias or (isinstance(plan.task_type, MaskedLM) and plan.config.output_bias)
        return {**super().config(plan), "mlp_bias": has_bias}

    def weights(self, source: ExportSource, final_norm: float) -> Named:
        yield from super().weights(source, final_norm)
        if source.config.bias or not self.config(source)["mlp_bias"]:
            return
        for number in range(source.config.num_layers):
            for part, size in (
                ("gate", source.config.feed_forward_dim),
                ("up", source.config.feed_forward_dim),
                ("down", source.config.hidden_dim),
            ):
                yield f"model.layers.{number}.mlp.{part}_proj.bias", torch.zeros(size)


class Starcoder2(Backbone):
    """Backbone with layer norms before the sublayers, rotary positions and networks of two layers."""

    model_type = "starcoder2"

    def obstacles(self, plan: ExportPlan, name: str) -> Iterator[Obstacle]:
        yield from position_obstacles(plan, name, (RotaryConfig,))
        yield from norm_obstacles(plan, name, LayerNormConfig, "pre")
        yield from feed_forward_obstacles(plan, name, is_gated=False)
        yield from embedding_norm_obstacles(plan, name, has_embedding_norm=False)
        yield from input_obstacles(plan, name)

    def config(self, plan: ExportPlan) -> dict[str, Any]:
        config = plan.config
        return {
            **_rotary_config(plan),
            "intermediate_size": config.feed_forward_dim,
            "hidden_act": activation(config.feed_forward),
            "norm_epsilon": epsilon(config.norm),
            "use_bias": config.bias,
            "sliding_window": None,
            "residual_dropout": 0.0,
            "embedding_dropout": 0.0,
        }

    def weights(self, source: ExportSource, final_norm: float) -> Named:
        weights, has_bias = Weights(source, has_grouped_heads=True), source.config.bias
        yield "model.embed_tokens.weight", token_table(source)
        yield from weights.norm("encoder.final_norm", "model.norm", final_norm)
        for number in range(source.config.num_layers):
            ours, theirs = f"encoder.layers.{number}", f"model.layers.{number}"
            yield from _separate_attention(weights, ours, theirs, has_bias)
            for mine, other in (("up", "c_fc"), ("down", "c_proj")):
                name = f"{theirs}.mlp.{other}"
                yield from weights.layer(f"{ours}.feed_forward.{mine}", name, has_bias=has_bias)


def _rotary_config(plan: ExportPlan) -> dict[str, Any]:
    config = plan.config
    assert isinstance(config.position, RotaryConfig)
    return {
        "hidden_size": config.hidden_dim,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_key_value_heads or config.num_heads,
        "max_position_embeddings": plan.task_type.max_length,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.position.base},
        "rope_theta": config.position.base,
        "attention_dropout": config.attention_dropout,
    }


def _separate_attention(weights: Weights, ours: str, theirs: str, has_bias: bool) -> Named:
    """Yield the attention and the norms of a block of Llama, EuroBERT or Starcoder2."""
    for part, (weight, bias) in zip("qkv", weights.projections(f"{ours}.attention"), strict=True):
        yield f"{theirs}.self_attn.{part}_proj.weight", weight
        if has_bias:
            yield f"{theirs}.self_attn.{part}_proj.bias", bias
    yield from weights.layer(f"{ours}.attention.output", f"{theirs}.self_attn.o_proj", has_bias=has_bias)
    yield from weights.norm(f"{ours}.attention_residual.before", f"{theirs}.input_layernorm")
    yield from weights.norm(f"{ours}.feed_forward_residual.before", f"{theirs}.post_attention_layernorm")


class GPT2(Backbone):
    """Backbone with layer norms before the sublayers and positions added to the embedding."""

    model_type = "gpt2"
    prefix = "transformer"

    def obstacles(self, plan: ExportPlan, name: str) -> Iterator[Obstacle]:
        yield from position_obstacles(plan, name, TABLES)
        yield from norm_obstacles(plan, name, LayerNormConfig, "pre")
        yield from feed_forward_obstacles(plan, name, is_gated=False)
        yield from embedding_norm_obstacles(plan, name, has_embedding_norm=False)
        yield from input_obstacles(plan, name)

    def config(self, plan: ExportPlan) -> dict[str, Any]:
        config = plan.config
        return {
            "n_embd": config.hidden_dim,
            "n_layer": config.num_layers,
            "n_head": config.num_heads,
            "n_inner": config.feed_forward_dim,
            "n_positions": plan.task_type.max_length,
            "activation_function": activation(config.feed_forward),
            "layer_norm_epsilon": epsilon(config.norm),
            "resid_pdrop": config.dropout,
            "embd_pdrop": config.dropout,
            "attn_pdrop": config.attention_dropout,
        }

    def weights(self, source: ExportSource, final_norm: float) -> Named:
        weights, length = Weights(source), source.task_type.max_length
        model = source.run.model
        assert isinstance(model, BackboneModel)
        yield "transformer.wte.weight", token_table(source)
        table = position_table(model.embedding.position, source.config, length, length)
        yield "transformer.wpe.weight", table
        yield from weights.norm("encoder.final_norm", "transformer.ln_f", final_norm)
        for number in range(source.config.num_layers):
            ours, theirs = f"encoder.layers.{number}", f"transformer.h.{number}"
            parts = weights.projections(f"{ours}.attention")
            yield f"{theirs}.attn.c_attn.weight", torch.cat([weight for weight, _ in parts]).T
            yield f"{theirs}.attn.c_attn.bias", torch.cat([bias for _, bias in parts])
            for mine, other in (
                ("attention.output", "attn.c_proj"),
                ("feed_forward.up", "mlp.c_fc"),
                ("feed_forward.down", "mlp.c_proj"),
            ):
                yield from weights.layer(f"{ours}.{mine}", f"{theirs}.{other}", is_transposed=True)
            yield from weights.norm(f"{ours}.attention_residual.before", f"{theirs}.ln_1")
            yield from weights.norm(f"{ours}.feed_forward_residual.before", f"{theirs}.ln_2")


class Bert(Backbone):
    """Backbone with layer norms after the sublayers and the embedding, and a table of positions."""

    model_type = "bert"
    prefix = "bert"
    is_causal = False
    placement: ClassVar[str] = "post"

    def obstacles(self, plan: ExportPlan, name: str) -> Iterator[Obstacle]:
        yield from position_obstacles(plan, name, TABLES)
        yield from norm_obstacles(plan, name, LayerNormConfig, self.placement)
        yield from feed_forward_obstacles(plan, name, is_gated=False)
        yield from embedding_norm_obstacles(plan, name, has_embedding_norm=self.placement == "post")
        yield from input_obstacles(plan, name)

    def config(self, plan: ExportPlan) -> dict[str, Any]:
        config = plan.config
        return {
            "hidden_size": config.hidden_dim,
            "num_hidden_layers": config.num_layers,
            "num_attention_heads": config.num_heads,
            "intermediate_size": config.feed_forward_dim,
            "hidden_act": activation(config.feed_forward),
            "max_position_embeddings": plan.task_type.max_length + self.first_position(plan),
            "type_vocab_size": 1,
            "layer_norm_eps": epsilon(config.norm),
            "hidden_dropout_prob": config.dropout,
            "attention_probs_dropout_prob": config.attention_dropout,
        }

    def first_position(self, plan: ExportPlan) -> int:
        """Return the row of the position table that belongs to the first token."""
        return 0

    def weights(self, source: ExportSource, final_norm: float) -> Named:
        weights, length, first = Weights(source), source.task_type.max_length, self.first_position(source)
        model, width = source.run.model, source.config.hidden_dim
        assert isinstance(model, BackboneModel)
        embeddings = f"{self.prefix}.embeddings"
        yield f"{embeddings}.word_embeddings.weight", token_table(source)
        table = position_table(model.embedding.position, source.config, length, length)
        yield f"{embeddings}.position_embeddings.weight", torch.cat([torch.zeros(first, width), table])
        yield f"{embeddings}.token_type_embeddings.weight", torch.zeros(1, width)
        yield from weights.norm("embedding.norm", f"{embeddings}.LayerNorm")
        yield from weights.norm("encoder.final_norm", f"{self.prefix}.encoder.LayerNorm", final_norm)
        for number in range(source.config.num_layers):
            ours, theirs = f"encoder.layers.{number}", f"{self.prefix}.encoder.layer.{number}"
            parts = weights.projections(f"{ours}.attention")
            for name, (weight, bias) in zip(("query", "key", "value"), parts, strict=True):
                yield f"{theirs}.attention.self.{name}.weight", weight
                yield f"{theirs}.attention.self.{name}.bias", bias
            for mine, other in (
                ("attention.output", "attention.output.dense"),
                ("feed_forward.up", "intermediate.dense"),
                ("feed_forward.down", "output.dense"),
            ):
                yield from weights.layer(f"{ours}.{mine}", f"{theirs}.{other}")
            yield from self.block_norms(weights, ours, theirs)

    def block_norms(self, weights: Weights, ours: str, theirs: str) -> Named:
        """Yield the two norms of a block."""
        yield from weights.norm(f"{ours}.attention_residual.after", f"{theirs}.attention.output.LayerNorm")
        yield from weights.norm(f"{ours}.feed_forward_residual.after", f"{theirs}.output.LayerNorm")


class XLMRobertaXL(Bert):
    """Backbone like BERT's, with norms before the sublayers. Positions are counted after the padding id."""

    model_type = "xlm-roberta-xl"
    prefix = "roberta"
    placement = "pre"

    def first_position(self, plan: ExportPlan) -> int:
        return padding_id(plan.task) + 1

    def block_norms(self, weights: Weights, ours: str, theirs: str) -> Named:
        norm = f"{theirs}.attention.self_attn_layer_norm"
        yield from weights.norm(f"{ours}.attention_residual.before", norm)
        yield from weights.norm(f"{ours}.feed_forward_residual.before", f"{theirs}.LayerNorm")


class OutputHead(ABC):
    """Output layer of a class of transformers."""

    @abstractmethod
    def obstacles(self, plan: ExportPlan, name: str) -> Iterator[Obstacle]:
        """Yield what the head cannot represent."""

    @abstractmethod
    def weights(self, source: ExportSource, factor: float) -> Named:
        """Yield the weights. A head with a norm multiplies it by `factor`."""

    has_norm: bool = False
    """True if the head has a norm, which takes the factor of a tied and scaled embedding."""


@dataclass(frozen=True)
class LinearHead(OutputHead):
    """One linear layer."""

    layer: str
    has_bias: bool
    may_be_tied: bool = False
    pooler: str = ""
    """Name of the layer before tanh and this one, which a class that pools by the first position has."""

    def obstacles(self, plan: ExportPlan, name: str) -> Iterator[Obstacle]:
        config = plan.config
        if not isinstance(config.output, LinearOutputConfig):
            reason = f"{name} has one linear output layer"
            yield unlike("model.output.kind", config.output.kind, reason, "linear")
        if config.output_bias and not self.has_bias:
            yield unlike("model.output_bias", True, f"{name} has no bias in its last layer", "false")

    def weights(self, source: ExportSource, factor: float) -> Named:
        state, is_tied = source.run.model.state_dict(), self.may_be_tied and source.config.tied_output
        if self.pooler:
            yield from Weights(source).layer("pooling.linear", self.pooler)
        if not is_tied:
            yield f"{self.layer}.weight", state["head.weight"]
        outputs = source.task_type.vocabulary if self.may_be_tied else len(state["head.weight"])
        if self.has_bias and (not self.may_be_tied or source.config.bias or source.config.output_bias):
            yield f"{self.layer}.bias", state.get("head.bias", torch.zeros(outputs))


@dataclass(frozen=True)
class TransformHead(OutputHead):
    """Linear layer, GELU, layer norm and a linear layer with a bias: the head of BERT's language model."""

    dense: str
    norm: str
    decoder: str
    bias: str
    shares_activation: bool
    has_norm: bool = True

    def obstacles(self, plan: ExportPlan, name: str) -> Iterator[Obstacle]:
        config = plan.config
        if not isinstance(config.output, TransformOutputConfig):
            reason = f"{name} has a transform before its last layer"
            yield unlike("model.output.kind", config.output.kind, reason, "transform")
        elif config.output.epsilon != epsilon(config.norm):
            reason = f"{name} has one epsilon for all norms"
            yield unlike("model.output.epsilon", config.output.epsilon, reason, f"{epsilon(config.norm):g}")
        if self.shares_activation and activation(config.feed_forward) not in ("gelu", None):
            reason = f"{name} has one activation for its networks and its output, which is gelu here"
            yield unlike("model.feed_forward.kind", config.feed_forward.kind, reason, "gelu")

    def weights(self, source: ExportSource, factor: float) -> Named:
        weights = Weights(source)
        yield from weights.layer("head.body.0", self.dense)
        yield from weights.norm("head.body.2", self.norm, factor)
        bias = weights.state.get("head.bias", torch.zeros(source.task_type.vocabulary))
        yield self.bias, bias
        yield f"{self.decoder}.bias", bias
        if not source.config.tied_output:
            yield f"{self.decoder}.weight", weights.state["head.weight"]


@dataclass(frozen=True)
class ModelClass:
    """Class of transformers with one stack: a backbone and an output head."""

    name: str
    auto_class: str
    task_type: type[TaskType]
    backbone: Backbone
    head: OutputHead
    pooling: type[PoolingConfig] = LastPoolingConfig
    """Pooling of a class for sequence classification."""

    def obstacles(self, plan: ExportPlan) -> list[Obstacle]:
        """Return what this class cannot represent. If no option of the model helps, return only that."""
        return self.final_obstacles(plan) or [
            *self._direction_obstacles(plan),
            *self.backbone.obstacles(plan, self.name),
            *self.head.obstacles(plan, self.name),
        ]

    def _direction_obstacles(self, plan: ExportPlan) -> Iterator[Obstacle]:
        config, task_type = plan.config, plan.task_type
        is_classifier = isinstance(task_type, (TokenClassification, SequenceClassification))
        if is_classifier and config.is_causal != self.backbone.is_causal:
            direction = "only backwards" if self.backbone.is_causal else "in both directions"
            needed = str(self.backbone.is_causal).lower()
            yield unlike("model.is_causal", config.is_causal, f"{self.name} attends {direction}", needed)

    def final_obstacles(self, plan: ExportPlan) -> list[Obstacle]:
        """Return the parts of a sequence classifier that make this class the wrong one altogether."""
        task_type, found = plan.task_type, []
        if not isinstance(task_type, SequenceClassification):
            return []
        pooling = plan.config.pooling
        has_layer = isinstance(pooling, FirstPoolingConfig) and pooling.transform
        if not isinstance(pooling, self.pooling) or has_layer != (self.pooling is FirstPoolingConfig):
            reason = f"no class of transformers pools by {pooling.kind} and then has one linear layer"
            option, remedy = "model.pooling.kind", "export to onnx"
            if isinstance(pooling, FirstPoolingConfig) and not has_layer:
                option = "model.pooling.transform"
                remedy = f"train with {option}=true, or {remedy}"
            found.append(Obstacle(option, reason, remedy))
        if task_type.is_regression:
            reason = f"{self.name} has no mean and scale of its outputs"
            found.append(Obstacle("task.target", reason, "export to onnx"))
        return found

    def config(self, plan: ExportPlan) -> dict[str, Any]:
        """Return the entries of `config.json`."""
        is_language_model = isinstance(plan.task_type, (CausalLM, MaskedLM))
        return {
            "architectures": [self.name],
            "model_type": self.backbone.model_type,
            "vocab_size": max(plan.task_type.vocabulary, padding_id(plan.task) + 1)
            if not is_language_model
            else plan.task_type.vocabulary,
            "tie_word_embeddings": is_language_model and plan.config.tied_output,
            **self.backbone.config(plan),
        }

    def weights(self, source: ExportSource) -> Named:
        """Yield name and tensor of each weight.

        A tied embedding that is multiplied by √D is stored multiplied, and the last norm divided.
        """
        factor = 1.0
        model = source.run.model
        assert isinstance(model, BackboneModel)
        net = model.embedding.vectors
        if isinstance(net, TokenEmbedding) and isinstance(self.task_type, type) and self._is_tied(source):
            factor = 1 / net.factor
        final_norm, head = (1.0, factor) if self.head.has_norm else (factor, 1.0)
        for name, tensor in self.backbone.weights(source, final_norm):
            yield name, self._padded(source, name, tensor)
        yield from self.head.weights(source, head)

    def _is_tied(self, source: ExportSource) -> bool:
        return source.config.tied_output and issubclass(self.task_type, (CausalLM, MaskedLM))

    def _padded(self, source: ExportSource, name: str, tensor: Tensor) -> Tensor:
        """Return an embedding matrix with one more row if the padding token is added to the vocabulary."""
        rows = self.config(source)["vocab_size"]
        if (
            name.endswith(("embed_tokens.weight", "wte.weight", "word_embeddings.weight"))
            and len(tensor) < rows
        ):
            return torch.cat([tensor, tensor.new_zeros(rows - len(tensor), tensor.shape[1])])
        return tensor


_LANGUAGE = LinearHead("lm_head", has_bias=False, may_be_tied=True)
_SCORE = LinearHead("score", has_bias=False)
_TOKENS = LinearHead("classifier", has_bias=True)
_BERT = TransformHead(
    "cls.predictions.transform.dense",
    "cls.predictions.transform.LayerNorm",
    "cls.predictions.decoder",
    "cls.predictions.bias",
    shares_activation=True,
)
_ROBERTA = TransformHead(
    "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias", shares_activation=False
)


def _decoder_classes(
    name: str, language_model: str, backbone: Backbone, tokens: LinearHead
) -> list[ModelClass]:
    return [
        ModelClass(language_model, "AutoModelForCausalLM", CausalLM, backbone, _LANGUAGE),
        ModelClass(
            f"{name}ForSequenceClassification",
            "AutoModelForSequenceClassification",
            SequenceClassification,
            backbone,
            _SCORE,
        ),
        ModelClass(
            f"{name}ForTokenClassification",
            "AutoModelForTokenClassification",
            TokenClassification,
            backbone,
            tokens,
        ),
    ]


def _encoder_classes(name: str, backbone: Backbone, head: OutputHead) -> list[ModelClass]:
    return [
        ModelClass(f"{name}ForMaskedLM", "AutoModelForMaskedLM", MaskedLM, backbone, head),
        ModelClass(
            f"{name}ForTokenClassification",
            "AutoModelForTokenClassification",
            TokenClassification,
            backbone,
            _TOKENS,
        ),
    ]


_SCORES = LinearHead("score", has_bias=True)
CLASSES: list[ModelClass | EncoderDecoderClass] = [
    *_encoder_classes("EuroBert", EuroBert(), LinearHead("lm_head", has_bias=True, may_be_tied=True)),
    *_encoder_classes("Bert", Bert(), _BERT),
    ModelClass(
        "BertForSequenceClassification",
        "AutoModelForSequenceClassification",
        SequenceClassification,
        Bert(),
        LinearHead("classifier", has_bias=True, pooler="bert.pooler.dense"),
        FirstPoolingConfig,
    ),
    *_encoder_classes("XLMRobertaXL", XLMRobertaXL(), _ROBERTA),
    *_decoder_classes("Llama", "LlamaForCausalLM", Llama(), _SCORES),
    *_decoder_classes("Starcoder2", "Starcoder2ForCausalLM", Starcoder2(), _SCORES),
    *_decoder_classes("GPT2", "GPT2LMHeadModel", GPT2(), _TOKENS),
    *ENCODER_DECODERS,
]
"""Classes in the order in which they are tried."""
