"""Encoder-decoder classes of `transformers`: Marian, Pegasus and Blenderbot, their configs and weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from glassformer.blocks.embedding import TokenEmbeddingConfig
from glassformer.blocks.heads import LinearOutputConfig
from glassformer.blocks.norms import LayerNormConfig
from glassformer.blocks.positions import (
    LearnedConfig,
    NoPositionConfig,
    PositionConfig,
    SimplePositionConfig,
    SinusoidalConfig,
)
from glassformer.interchange.export import ExportPlan, ExportSource, Obstacle
from glassformer.interchange.huggingface_parts import (
    TABLES,
    Named,
    Weights,
    activation,
    embedding_norm_obstacles,
    feed_forward_obstacles,
    input_obstacles,
    norm_obstacles,
    position_obstacles,
    position_table,
    token_table,
    unlike,
)
from glassformer.models.seq2seq import EncoderDecoder
from glassformer.models.task_types import Seq2Seq, TaskType


@dataclass(frozen=True)
class EncoderDecoderClass:
    """Class of transformers with an encoder and a decoder: Marian, Pegasus or Blenderbot."""

    name: str
    model_type: str
    placement: str
    positions: tuple[type[PositionConfig], ...]
    has_two_vocabularies: bool = False
    auto_class: str = "AutoModelForSeq2SeqLM"
    task_type: type[TaskType] = Seq2Seq

    def obstacles(self, plan: ExportPlan) -> list[Obstacle]:
        """Return what this class cannot represent."""
        return list(self._obstacles(plan))

    def final_obstacles(self, plan: ExportPlan) -> list[Obstacle]:
        """Return nothing: other options of the model reach each of these classes."""
        return []

    def _obstacles(self, plan: ExportPlan) -> Iterator[Obstacle]:
        name, config, task_type = self.name, plan.config, plan.task_type
        assert isinstance(task_type, Seq2Seq)
        yield from position_obstacles(plan, name, self.positions)
        yield from norm_obstacles(plan, name, LayerNormConfig, self.placement, has_any_epsilon=False)
        yield from feed_forward_obstacles(plan, name, is_gated=False)
        yield from embedding_norm_obstacles(plan, name, has_embedding_norm=False)
        yield from input_obstacles(plan, name)
        if not isinstance(config.output, LinearOutputConfig):
            reason = f"{name} has one linear output layer"
            yield unlike("model.output.kind", config.output.kind, reason, "linear")
        if not self.has_two_vocabularies and task_type.vocabulary != task_type.target_vocabulary:
            reason = f"{name} has one vocabulary for source and target"
            yield unlike("task.shared_vocabulary", False, reason, "true")

    def config(self, plan: ExportPlan) -> dict[str, Any]:
        """Return the entries of `config.json`."""
        config, task_type = plan.config, plan.task_type
        assert isinstance(task_type, Seq2Seq)
        found: dict[str, Any] = {
            "architectures": [self.name],
            "model_type": self.model_type,
            "is_encoder_decoder": True,
            "vocab_size": task_type.vocabulary,
            "d_model": config.hidden_dim,
            "encoder_layers": config.num_layers,
            "decoder_layers": config.num_decoder_layers,
            "activation_function": activation(config.feed_forward),
            "max_position_embeddings": _longest(task_type),
            "dropout": config.dropout,
            "attention_dropout": config.attention_dropout,
            "activation_dropout": 0.0,
            "scale_embedding": isinstance(config.input, TokenEmbeddingConfig) and config.input.scale,
            "tie_word_embeddings": self._is_tied(plan),
            "forced_eos_token_id": None,
        }
        for side in ("encoder", "decoder"):
            found |= {f"{side}_ffn_dim": config.feed_forward_dim, f"{side}_attention_heads": config.num_heads}
        if self.has_two_vocabularies:
            is_shared = task_type.is_shared_vocabulary
            found["share_encoder_decoder_embeddings"] = is_shared
            found["decoder_vocab_size"] = task_type.target_vocabulary
        if self.model_type == "blenderbot":
            found["encoder_no_repeat_ngram_size"] = 0
        return found

    def _is_tied(self, plan: ExportPlan) -> bool:
        """Return True if the output layer shares the one embedding matrix of the class."""
        assert isinstance(plan.task_type, Seq2Seq)
        return plan.config.tied_output and (plan.task_type.is_shared_vocabulary or self.has_two_vocabularies)

    def weights(self, source: ExportSource) -> Named:
        """Yield name and tensor of each weight."""
        weights, task_type, model = Weights(source), source.task_type, source.run.model
        assert isinstance(task_type, Seq2Seq) and isinstance(model, EncoderDecoder)
        yield from self._tables(source)
        rows = _longest(task_type)
        for side, embedding, length in (
            ("encoder", model.embedding, task_type.max_length),
            ("decoder", model.target_embedding, task_type.max_target_length),
        ):
            table = position_table(embedding.position, source.config, length, rows)
            yield f"model.{side}.embed_positions.weight", table
            yield from weights.norm(f"{side}.final_norm", f"model.{side}.layer_norm")
        for side, count in (
            ("encoder", source.config.num_layers),
            ("decoder", source.config.num_decoder_layers),
        ):
            for number in range(count):
                yield from self._block(weights, side, f"{side}.layers.{number}")
        bias = weights.state.get("head.bias", torch.zeros(task_type.target_vocabulary))
        yield "final_logits_bias", bias[None]

    def _tables(self, source: ExportSource) -> Named:
        """Yield the embedding matrices and the output matrix."""
        task_type = source.task_type
        assert isinstance(task_type, Seq2Seq)
        mine, other = (
            token_table(source, is_target=is_target, is_scaled=False) for is_target in (False, True)
        )
        is_shared, is_tied = task_type.is_shared_vocabulary, self._is_tied(source)
        if is_shared or not self.has_two_vocabularies:
            yield "model.shared.weight", mine
        if not (is_shared and is_tied):
            yield "model.encoder.embed_tokens.weight", mine
            yield "model.decoder.embed_tokens.weight", other
        if not is_tied:
            state = source.run.model.state_dict()
            yield "lm_head.weight", state.get("head.weight", other)

    def _block(self, weights: Weights, side: str, ours: str) -> Named:
        theirs, where = f"model.{ours}", "before" if self.placement == "pre" else "after"
        modules = [("attention", "self_attn", "self_attn_layer_norm")]
        if side == "decoder":
            modules.append(("cross_attention", "encoder_attn", "encoder_attn_layer_norm"))
        for mine, other, norm in modules:
            parts = weights.projections(f"{ours}.{mine}", is_cross=mine == "cross_attention")
            for part, (weight, bias) in zip("qkv", parts, strict=True):
                yield f"{theirs}.{other}.{part}_proj.weight", weight
                yield f"{theirs}.{other}.{part}_proj.bias", bias
            yield from weights.layer(f"{ours}.{mine}.output", f"{theirs}.{other}.out_proj")
            yield from weights.norm(f"{ours}.{mine}_residual.{where}", f"{theirs}.{norm}")
        yield from weights.layer(f"{ours}.feed_forward.up", f"{theirs}.fc1")
        yield from weights.layer(f"{ours}.feed_forward.down", f"{theirs}.fc2")
        yield from weights.norm(f"{ours}.feed_forward_residual.{where}", f"{theirs}.final_layer_norm")


def _longest(task_type: Seq2Seq) -> int:
    return max(task_type.max_length, task_type.max_target_length)


_FIXED = (SinusoidalConfig, SimplePositionConfig, NoPositionConfig)
ENCODER_DECODERS = [
    EncoderDecoderClass("MarianMTModel", "marian", "post", TABLES, has_two_vocabularies=True),
    EncoderDecoderClass("PegasusForConditionalGeneration", "pegasus", "pre", _FIXED),
    EncoderDecoderClass("BlenderbotForConditionalGeneration", "blenderbot", "pre", (LearnedConfig,)),
]
"""Classes in the order in which they are tried."""
