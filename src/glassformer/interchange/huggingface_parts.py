"""Parts of the exports to `transformers`: weights under other names, and obstacles by option of the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from glassformer.blocks.embedding import OneHot, OneHotConfig, TokenEmbedding, TokenEmbeddingConfig
from glassformer.blocks.feed_forward import (
    FeedForwardConfig,
    GELUConfig,
    ReLUConfig,
    SiLUConfig,
    SwiGLUConfig,
)
from glassformer.blocks.norms import LAYER_NORM_EPSILON, NormConfig, RMSNormConfig
from glassformer.blocks.positions import (
    LearnedConfig,
    NoPositionConfig,
    Position,
    PositionConfig,
    RotaryConfig,
    SimplePositionConfig,
    SinusoidalConfig,
)
from glassformer.generation.ctranslate2 import limits
from glassformer.interchange.export import ExportPlan, ExportSource, Obstacle
from glassformer.models.base import Backbone as BackboneModel
from glassformer.models.seq2seq import EncoderDecoder
from glassformer.models.task_types import Seq2Seq
from glassformer.models.transformer import TransformerConfig

Named = Iterator[tuple[str, Tensor]]
TABLES = (SinusoidalConfig, LearnedConfig, SimplePositionConfig, NoPositionConfig)
"""Positions that are a table of vectors added to the embedding, so that a learned table can hold them."""


OR = ", or export to onnx"
"""End of a remedy: the target that can represent every model."""


def unlike(option: str, given: object, reason: str, needed: str) -> Obstacle:
    """Return the obstacle for an option with another value than `needed`."""
    shown = str(given).lower() if isinstance(given, bool) else given
    return Obstacle(option, f"{reason}, this model has {option}={shown}", f"train with {option}={needed}{OR}")


def activation(config: FeedForwardConfig) -> str | None:
    """Return the name of a feed-forward network's activation in transformers; None if it is gated."""
    if isinstance(config, GELUConfig):
        return "gelu" if config.approximate == "none" else "gelu_pytorch_tanh"
    return {ReLUConfig: "relu", SiLUConfig: "silu"}.get(type(config))


def epsilon(config: NormConfig) -> float:
    """Return the small number that a norm adds."""
    return float(getattr(config, "epsilon", LAYER_NORM_EPSILON))


class Weights:
    """Weights of a trained model, read by our names and returned by those of transformers."""

    def __init__(self, source: ExportSource, *, has_grouped_heads: bool = False) -> None:
        self.config = source.config
        self.state: dict[str, Tensor] = source.run.model.state_dict()
        self.has_grouped_heads = has_grouped_heads
        """True if the class of transformers has grouped-query attention; otherwise keys are repeated."""

    def bias(self, name: str, like: Tensor) -> Tensor:
        """Return the bias of a layer, or zeros if it has none."""
        found = self.state.get(f"{name}.bias")
        return like.new_zeros(len(like)) if found is None else found

    def layer(self, ours: str, theirs: str, *, has_bias: bool = True, is_transposed: bool = False) -> Named:
        """Yield weight and bias of a linear layer."""
        weight = self.state[f"{ours}.weight"]
        yield f"{theirs}.weight", weight.T if is_transposed else weight
        if has_bias:
            yield f"{theirs}.bias", self.bias(ours, weight)

    def norm(self, ours: str, theirs: str, factor: float = 1.0) -> Named:
        """Yield weight and, for a layer norm, bias of a norm, multiplied by `factor`."""
        for part in ("weight", "bias"):
            if f"{ours}.{part}" in self.state:
                tensor = self.state[f"{ours}.{part}"]
                yield f"{theirs}.{part}", tensor if factor == 1 else tensor * factor

    def projections(self, attention: str, *, is_cross: bool = False) -> list[tuple[Tensor, Tensor]]:
        """Return weight and bias of the query, key and value projections of an attention module."""
        config = self.config
        width = config.hidden_dim // config.num_heads
        groups = config.num_key_value_heads or config.num_heads
        sizes = [groups * width] * 2
        if is_cross:
            parts = [self._split(f"{attention}.query", [config.hidden_dim])[0]]
            parts += self._split(f"{attention}.key_value", sizes)
        else:
            parts = self._split(f"{attention}.query_key_value", [config.hidden_dim, *sizes])
        if self.has_grouped_heads or groups == config.num_heads:
            return parts
        repeats = config.num_heads // groups
        query, *others = parts
        return [query, *(tuple(_repeat_heads(each, width, repeats) for each in pair) for pair in others)]  # type: ignore[list-item]

    def _split(self, name: str, sizes: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        weight = self.state[f"{name}.weight"]
        bias = self.bias(name, weight)
        return list(zip(weight.split(list(sizes)), bias.split(list(sizes)), strict=True))


def _repeat_heads(rows: Tensor, width: int, repeats: int) -> Tensor:
    """Repeat each head of a projection, as grouped-query attention does."""
    heads = rows.unflatten(0, (-1, width))
    return heads.repeat_interleave(repeats, dim=0).flatten(0, 1)


def token_table(source: ExportSource, *, is_target: bool = False, is_scaled: bool = True) -> Tensor:
    """Return the embedding matrix, multiplied by √D if the model does so and `is_scaled`."""
    model = source.run.model
    assert isinstance(model, BackboneModel)
    net = model.embedding.input_net()
    if is_target and isinstance(model, EncoderDecoder):
        net = model.target_embedding.input_net(net)
    if isinstance(net, OneHot):
        return net.weight_VD + net.net.bias
    assert isinstance(net, TokenEmbedding)
    return net.table.weight * net.factor if is_scaled and net.factor != 1 else net.table.weight


def position_table(position: Position, config: TransformerConfig, length: int, rows: int) -> Tensor:
    """Return the vectors of positions 0 to `length` − 1 as a table with `rows` rows; the others are zero."""
    table = torch.zeros(rows, config.hidden_dim)
    table[:length] = position.embed(torch.zeros(1, length, config.hidden_dim), torch.arange(length)[None])[0]
    return table


def input_obstacles(plan: ExportPlan, name: str) -> Iterator[Obstacle]:
    """Yield what is different about the token embedding."""
    config = plan.config
    if not isinstance(config.input, (TokenEmbeddingConfig, OneHotConfig)):
        yield unlike("model.input.kind", config.input.kind, f"{name} has a token embedding", "tokens")
    elif isinstance(config.input, OneHotConfig) and config.tied_output:
        reason = f"{name} has no bias in an embedding that the output layer shares"
        yield unlike("model.input.kind", "one-hot", reason, "tokens")


def norm_obstacles(
    plan: ExportPlan, name: str, kind: type[NormConfig], placement: str, *, has_any_epsilon: bool = True
) -> Iterator[Obstacle]:
    """Yield what is different about the norms of the blocks."""
    config = plan.config
    wanted = "rms" if kind is RMSNormConfig else "layer"
    if not isinstance(config.norm, kind):
        yield unlike("model.norm.kind", config.norm.kind, f"{name} has {_NORMS[wanted]}", wanted)
    elif not has_any_epsilon and epsilon(config.norm) != LAYER_NORM_EPSILON:
        reason = f"the norms of {name} add {LAYER_NORM_EPSILON:g}"
        yield unlike("model.norm.epsilon", epsilon(config.norm), reason, f"{LAYER_NORM_EPSILON:g}")
    if config.norm_placement != placement:
        reason = f"{name} has its norms {_PLACEMENTS[placement]}"
        yield unlike("model.norm_placement", config.norm_placement, reason, placement)
    elif config.has_final_norm != (placement == "pre"):
        has = "a norm" if placement == "pre" else "no norm"
        needed = str(placement == "pre").lower()
        yield unlike(
            "model.final_norm", config.has_final_norm, f"{name} has {has} after the last block", needed
        )


_NORMS = {"rms": "RMS norms", "layer": "layer norms"}
_PLACEMENTS = {"pre": "before the sublayers", "post": "after the sublayers"}


def embedding_norm_obstacles(plan: ExportPlan, name: str, *, has_embedding_norm: bool) -> Iterator[Obstacle]:
    """Yield what is different about the norm after the embedding."""
    if plan.config.embedding_norm != has_embedding_norm:
        has, needed = ("a norm", "true") if has_embedding_norm else ("no norm", "false")
        given = plan.config.embedding_norm
        yield unlike("model.embedding_norm", given, f"{name} has {has} after the embedding", needed)


def position_obstacles(
    plan: ExportPlan, name: str, kinds: tuple[type[PositionConfig], ...]
) -> Iterator[Obstacle]:
    """Yield an obstacle if the positions are of another kind."""
    position = plan.config.position
    if isinstance(position, kinds):
        return
    is_rotary = kinds == (RotaryConfig,)
    reason = f"{name} has rotary positions" if is_rotary else f"{name} adds its positions to the embedding"
    needed = "rotary" if is_rotary else "learned"
    if isinstance(plan.task_type, Seq2Seq):
        reason = (
            f"transformers has no encoder-decoder with {position.kind} positions and otherwise like this one"
        )
        others = "onnx" if limits(plan.model, plan.task_type) else "ctranslate2 or onnx"
        remedy = f"export to {others}, or train with model.position.kind=sinusoidal"
        yield Obstacle("model.position.kind", reason, remedy)
        return
    yield unlike("model.position.kind", position.kind, reason, needed)


def feed_forward_obstacles(plan: ExportPlan, name: str, *, is_gated: bool) -> Iterator[Obstacle]:
    """Yield an obstacle if the feed-forward networks are of another kind."""
    network = plan.config.feed_forward
    if is_gated and not isinstance(network, SwiGLUConfig):
        yield unlike("model.feed_forward.kind", network.kind, f"{name} has SwiGLU networks", "swiglu")
    if not is_gated and activation(network) is None:
        reason = f"{name} has networks of two layers"
        yield unlike("model.feed_forward.kind", network.kind, reason, "gelu")
