"""Transformers with one stack (token and sequence classifiers, language models), and the config of all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from torch import Tensor, nn

from glassformer.blocks.attention import CrossAttention, PositionContext, SelfAttention
from glassformer.blocks.embedding import Embedding, InputConfig, TokenVectorsConfig
from glassformer.blocks.feed_forward import FeedForwardConfig, GELUConfig
from glassformer.blocks.heads import (
    ClassHead,
    Head,
    LinearOutputConfig,
    MeanPoolingConfig,
    OutputConfig,
    PoolingConfig,
    RegressionHead,
)
from glassformer.blocks.layers import DecoderBlock, DecoderStack, EncoderBlock, EncoderStack, NormPlacement
from glassformer.blocks.masks import Mask
from glassformer.blocks.norms import LayerNormConfig, NormConfig
from glassformer.blocks.positions import PositionConfig, SinusoidalConfig
from glassformer.core.errors import ErrorDetail
from glassformer.core.registry import register
from glassformer.models.base import Backbone, DecodingState, GenerativeModel, Model, ModelConfig
from glassformer.models.closed_form import transformer_terms
from glassformer.models.seq2seq import EncoderDecoder
from glassformer.models.task_types import (
    CausalLM,
    MaskedLM,
    Seq2Seq,
    SequenceClassification,
    TaskType,
    TokenClassification,
)


class TokenPredictor(Backbone):
    """An answer per position: labels, or the hidden words of a masked language model."""

    def __init__(
        self,
        task_type: TaskType,
        embedding: Embedding,
        encoder: EncoderStack,
        head: Head,
        is_causal: bool = False,
        is_tied: bool = False,
    ) -> None:
        super().__init__(task_type, embedding, encoder, is_causal)
        self.head = head
        self.is_tied = is_tied

    def tied_weight(self) -> Tensor | None:
        return self.token_embedding() if self.is_tied else None

    def hidden(self, *, tokens: Tensor, attention_mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        return self.encode(tokens, attention_mask)


class SequenceClassifier(Backbone):
    """One answer for the sequence, from its pooled vectors."""

    def __init__(
        self,
        task_type: TaskType,
        embedding: Embedding,
        encoder: EncoderStack,
        pooling: nn.Module,
        head: Head,
        is_causal: bool = False,
    ) -> None:
        super().__init__(task_type, embedding, encoder, is_causal)
        self.pooling = pooling
        self.head = head

    def hidden(self, *, tokens: Tensor, attention_mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        return self.pooling(self.encode(tokens, attention_mask), attention_mask)


class CausalLanguageModel(GenerativeModel, TokenPredictor):
    def start(self, *, tokens: Tensor, attention_mask: Tensor | None = None) -> DecodingState:
        """An empty state for as many rows as `tokens` has; the prompt itself goes through `advance`."""
        state = DecodingState.empty(len(tokens), len(self.encoder.layers), tokens.device)
        state.project = self.projection()
        return state

    def extend(self, state: DecodingState, tokens_BL: Tensor, positions_BL: Tensor, mask: Mask) -> Tensor:
        positions = PositionContext(self.embedding.position, positions_BL, state.positions_BM)
        return self.encoder(self.embedding(tokens_BL, positions_BL), positions, mask, state.caches)


Size = Annotated[int, Field(ge=1, le=1_000_000)]
Rate = Annotated[float, Field(ge=0, lt=1)]


@register
class TransformerConfig(ModelConfig):
    kind: Literal["transformer"] = "transformer"
    num_layers: Size = Field(2, description="blocks in the encoder, and in the decoder unless said")
    decoder_layers: Size | None = Field(None, description="blocks in the decoder; none: as num_layers")
    num_heads: Size = 4
    num_key_value_heads: Size | None = Field(None, description="fewer heads for keys and values; none: all")
    hidden_dim: Size = 128
    feed_forward_dim: Size = 512
    dropout: Rate = 0.1
    attention_dropout: Rate = Field(0.0, description="dropout on the attention weights themselves")
    bias: bool = Field(True, description="biases in attention and feed-forward")
    position: PositionConfig = SinusoidalConfig()
    norm: NormConfig = LayerNormConfig()
    norm_placement: NormPlacement = "pre"
    final_norm: bool | None = Field(None, description="a norm after the last block; none: with pre-norm only")
    embedding_norm: bool = Field(False, description="a norm after the embedding")
    feed_forward: FeedForwardConfig = GELUConfig()
    input: InputConfig = TokenVectorsConfig()
    output: OutputConfig = LinearOutputConfig()
    output_bias: bool = Field(True, description="a bias per answer")
    tied_output: bool = Field(False, description="the output matrix is the embedding's")
    pooling: PoolingConfig = MeanPoolingConfig()
    is_causal: bool = Field(False, description="for labels and classes: look only back")

    @model_validator(mode="after")
    def _check_widths(self) -> Self:
        if self.hidden_dim % self.num_heads:
            divisors = [str(n) for n in range(1, min(self.hidden_dim, 64) + 1) if self.hidden_dim % n == 0]
            raise ErrorDetail(
                f"{self.num_heads} heads do not divide hidden_dim {self.hidden_dim}",
                path="num_heads",
                value=self.num_heads,
                allowed=divisors,
            )
        if self.num_heads % (self.num_key_value_heads or self.num_heads):
            raise ErrorDetail(
                f"must divide num_heads {self.num_heads}",
                path="num_key_value_heads",
                value=self.num_key_value_heads,
                hint="num_key_value_heads=1",
            )
        try:
            self.position.check(self.hidden_dim // self.num_heads)
        except ErrorDetail as problem:
            raise ErrorDetail(
                problem.message,
                path=f"position.{problem.path}",
                value=problem.value,
                hint=problem.hint,
            ) from None
        return self

    def build(self, task_type: TaskType) -> Model:
        build = _BUILDERS.get(type(task_type))
        if build is None:
            raise self.refuse(task_type)
        return build(self, task_type)

    def parameter_terms(self, task_type: TaskType) -> dict[str, int]:
        return transformer_terms(self, task_type)

    @property
    def has_final_norm(self) -> bool:
        return self.norm_placement == "pre" if self.final_norm is None else self.final_norm

    @property
    def num_decoder_layers(self) -> int:
        return self.num_layers if self.decoder_layers is None else self.decoder_layers

    def build_embedding(self, vocabulary: int | None, max_length: int, is_causal: bool) -> Embedding:
        vectors = None if vocabulary is None else self.input.build(vocabulary, self.hidden_dim)
        position = self.position.build(
            hidden_dim=self.hidden_dim, num_heads=self.num_heads, max_length=max_length, is_causal=is_causal
        )
        norm = self.norm.build(self.hidden_dim) if self.embedding_norm else nn.Identity()
        return Embedding(vectors, position, norm, self.dropout)

    def build_encoder(self) -> EncoderStack:
        blocks = [
            EncoderBlock(
                SelfAttention(*self._attention_arguments()),
                self._build_feed_forward(),
                self._build_norm,
                self.norm_placement,
                self.dropout,
            )
            for _ in range(self.num_layers)
        ]
        return EncoderStack(blocks, self._build_final_norm())

    def build_decoder(self) -> DecoderStack:
        blocks = [
            DecoderBlock(
                SelfAttention(*self._attention_arguments()),
                CrossAttention(*self._attention_arguments()),
                self._build_feed_forward(),
                self._build_norm,
                self.norm_placement,
                self.dropout,
            )
            for _ in range(self.num_decoder_layers)
        ]
        return DecoderStack(blocks, self._build_final_norm())

    def build_class_head(self, classes: int, is_tied: bool = False) -> ClassHead:
        body = self.output.build(self.hidden_dim, self.dropout)
        return ClassHead(body, self.hidden_dim, classes, is_tied, self.output_bias)

    def build_real_head(self, outputs: int) -> RegressionHead:
        body = self.output.build(self.hidden_dim, self.dropout)
        return RegressionHead(body, self.hidden_dim, outputs, bias=self.output_bias)

    def _attention_arguments(self) -> tuple[int, int, int | None, bool, float]:
        return self.hidden_dim, self.num_heads, self.num_key_value_heads, self.bias, self.attention_dropout

    def _build_feed_forward(self) -> nn.Module:
        return self.feed_forward.build(self.hidden_dim, self.feed_forward_dim, self.bias, self.dropout)

    def _build_norm(self) -> nn.Module:
        return self.norm.build(self.hidden_dim)

    def _build_final_norm(self) -> nn.Module:
        return self._build_norm() if self.has_final_norm else nn.Identity()


def _per_token(config: TransformerConfig, task_type: TokenClassification) -> Model:
    return TokenPredictor(
        task_type,
        config.build_embedding(task_type.vocabulary, task_type.max_length, config.is_causal),
        config.build_encoder(),
        config.build_class_head(task_type.classes),
        config.is_causal,
    )


def _per_sequence(config: TransformerConfig, task_type: SequenceClassification) -> Model:
    return SequenceClassifier(
        task_type,
        config.build_embedding(task_type.vocabulary, task_type.max_length, config.is_causal),
        config.build_encoder(),
        config.pooling.build(config.hidden_dim),
        config.build_real_head(task_type.outputs)
        if task_type.is_real
        else config.build_class_head(task_type.outputs),
        config.is_causal,
    )


def _next_token(config: TransformerConfig, task_type: CausalLM) -> Model:
    return CausalLanguageModel(
        task_type,
        config.build_embedding(task_type.vocabulary, task_type.max_length, is_causal=True),
        config.build_encoder(),
        config.build_class_head(task_type.vocabulary, config.tied_output),
        is_causal=True,
        is_tied=config.tied_output,
    )


def _masked_token(config: TransformerConfig, task_type: MaskedLM) -> Model:
    return TokenPredictor(
        task_type,
        config.build_embedding(task_type.vocabulary, task_type.max_length, is_causal=False),
        config.build_encoder(),
        config.build_class_head(task_type.vocabulary, config.tied_output),
        is_tied=config.tied_output,
    )


def _sequence_to_sequence(config: TransformerConfig, task_type: Seq2Seq) -> Model:
    target_vocabulary = None if task_type.is_shared_vocabulary else task_type.target_vocabulary
    return EncoderDecoder(
        task_type,
        config.build_embedding(task_type.vocabulary, task_type.max_length, is_causal=False),
        config.build_encoder(),
        config.build_embedding(target_vocabulary, task_type.max_target_length, is_causal=True),
        config.build_decoder(),
        config.build_class_head(task_type.target_vocabulary, config.tied_output),
        is_tied=config.tied_output,
    )


_BUILDERS: dict[type[TaskType], Callable[..., Model]] = {
    TokenClassification: _per_token,
    SequenceClassification: _per_sequence,
    CausalLM: _next_token,
    MaskedLM: _masked_token,
    Seq2Seq: _sequence_to_sequence,
}
