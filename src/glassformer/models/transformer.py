"""Transformer config, models with one stack, and `Transformer`, which builds a model from options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from torch import Tensor, nn

from glassformer.blocks.attention import CrossAttention, PositionContext, SelfAttention, check_heads
from glassformer.blocks.embedding import Embedding, InputConfig, TokenEmbeddingConfig
from glassformer.blocks.feed_forward import FeedForwardConfig, GELUConfig
from glassformer.blocks.heads import (
    ClassHead,
    FirstPooling,
    Head,
    LastPooling,
    LinearOutputConfig,
    MeanPoolingConfig,
    OutputConfig,
    PoolingConfig,
    RegressionHead,
)
from glassformer.blocks.layers import DecoderBlock, DecoderStack, EncoderBlock, EncoderStack, NormPlacement
from glassformer.blocks.masks import Mask, boolean_mask
from glassformer.blocks.norms import LayerNormConfig, NormConfig
from glassformer.blocks.positions import PositionConfig, Sight, SinusoidalConfig
from glassformer.core.config import validate
from glassformer.core.errors import ErrorDetail, UserError
from glassformer.core.registry import register
from glassformer.models.base import Backbone, DecodingState, GenerativeModel, Model, ModelConfig
from glassformer.models.checks import check_mask, check_tokens, warn_about_unshifted
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
    """Model with one output per position: a label, or the token that a masked language model predicts."""

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

    def hidden(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the hidden vectors (B, L, D) of all positions."""
        return self.encode(tokens, mask)


class SequenceClassifier(Backbone):
    """Model with one output per sequence, computed from the sequence's pooled vectors."""

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

    @property
    def needs_right_padding(self) -> bool:
        return super().needs_right_padding or isinstance(self.pooling, (FirstPooling, LastPooling))

    def hidden(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the pooled vectors (B, D)."""
        mask = boolean_mask(mask)
        return self.pooling(self.encode(tokens, mask), mask)


class CausalLanguageModel(GenerativeModel, TokenPredictor):
    """Language model that predicts the next token."""

    def loss(
        self,
        tokens: Tensor,
        targets: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        label_smoothing: float = 0.0,
    ) -> Tensor:
        """Return the mean cross-entropy of the next tokens.

        Without `targets`, each token is the target of the one before. With `targets` (B, L), `targets[:, i]`
        is the token after `tokens[:, i]`. Targets of −100 and at padding are ignored.
        """
        if targets is not None:
            loss = super().loss(tokens, targets, mask=mask, label_smoothing=label_smoothing)
            warn_about_unshifted(tokens, targets)
            return loss
        check_tokens("tokens", tokens, self.task_type.vocabulary, self.task_type.max_length + 1)
        check_mask(mask, tokens, needs_right_padding=True)
        if tokens.shape[1] < 2:
            raise ErrorDetail(
                "a sequence needs two tokens, of which the second is the target of the first",
                path="tokens",
                value=tuple(tokens.shape),
                hint="pass longer sequences, or the next tokens as targets",
            )
        mask = None if mask is None else mask[:, 1:]
        return self._mean_loss(tokens[:, :-1], tokens[:, 1:], mask, label_smoothing)

    def start(self, tokens: Tensor, mask: Tensor | None = None) -> DecodingState:
        """Return an empty state with one row per row of `tokens`. Pass the prompt itself to `advance`."""
        state = DecodingState.empty(len(tokens), len(self.encoder.layers), tokens.device)
        state.project = self.projection()
        return state

    def advance_hidden(
        self, state: DecodingState, tokens_BL: Tensor, positions_BL: Tensor, mask: Mask
    ) -> Tensor:
        positions = PositionContext(self.embedding.position, positions_BL, state.positions_BM)
        return self.encoder(self.embedding(tokens_BL, positions_BL), positions, mask, state.caches)


Size = Annotated[int, Field(ge=1, le=1_000_000)]
Probability = Annotated[float, Field(ge=0, lt=1)]


@register
class TransformerConfig(ModelConfig):
    """Transformer: an encoder, a decoder or both, as the task requires, built from one set of blocks.

    Use it for every task; options change its size and its parts.
    """

    kind: Literal["transformer"] = "transformer"
    num_layers: Size = Field(2, description="number of encoder blocks, and of decoder blocks by default")
    decoder_layers: Size | None = Field(None, description="number of decoder blocks; none: num_layers")
    num_heads: Size = Field(4, description="number of attention heads per layer")
    num_key_value_heads: Size | None = Field(
        None, description="number of heads for keys and values (grouped-query attention); none: num_heads"
    )
    hidden_dim: Size = Field(128, description="width of the hidden vectors")
    feed_forward_dim: Size = Field(512, description="inner width of the feed-forward networks")
    dropout: Probability = Field(0.1, description="dropout after the embedding and in each sublayer")
    attention_dropout: Probability = Field(0.0, description="dropout on the attention weights")
    stochastic_depth: Probability = Field(
        0.0, description="probability that a sequence skips a block in training, against overfitting"
    )
    bias: bool = Field(True, description="use biases in attention and feed-forward layers")
    position: PositionConfig = Field(SinusoidalConfig(), description="positional encoding")
    norm: NormConfig = Field(LayerNormConfig(), description="kind of norm in the blocks")
    norm_placement: NormPlacement = Field("pre", description="norm before or after each sublayer")
    final_norm: bool | None = Field(None, description="add a norm after the last block; none: with pre-norm")
    embedding_norm: bool = Field(False, description="add a norm after the embedding")
    feed_forward: FeedForwardConfig = Field(GELUConfig(), description="kind of feed-forward network")
    input: InputConfig = Field(TokenEmbeddingConfig(), description="input network: tokens to vectors")
    output: OutputConfig = Field(LinearOutputConfig(), description="output network before the last layer")
    output_bias: bool = Field(True, description="use a bias in the last layer")
    tied_output: bool = Field(False, description="share the embedding matrix with the last layer")
    pooling: PoolingConfig = Field(MeanPoolingConfig(), description="pooling of a sequence classifier")
    is_causal: bool = Field(False, description="use causal attention in token and sequence classifiers")

    @model_validator(mode="after")
    def _check_widths(self) -> Self:
        check_heads(self.hidden_dim, self.num_heads, self.num_key_value_heads)
        try:
            self.position.check(self.hidden_dim // self.num_heads)
        except ErrorDetail as error:
            raise ErrorDetail(
                error.message, path=f"position.{error.path}", value=error.value, hint=error.hint
            ) from None
        return self

    def build(self, task_type: TaskType) -> Model:
        build = _BUILDERS.get(type(task_type))
        if build is None:
            raise self.refuse(task_type)
        model = build(self, task_type)
        model.config = self
        return model

    def sees(self) -> Sight:
        # A causal mask reveals how many tokens come before.
        return "absolute" if self.is_causal else self.position.sees

    def parameter_terms(self, task_type: TaskType) -> dict[str, int]:
        return transformer_terms(self, task_type)

    @property
    def has_final_norm(self) -> bool:
        """True if a norm follows the last block."""
        return self.norm_placement == "pre" if self.final_norm is None else self.final_norm

    @property
    def num_decoder_layers(self) -> int:
        """Number of decoder blocks."""
        return self.num_layers if self.decoder_layers is None else self.decoder_layers

    def build_embedding(self, vocabulary: int | None, max_length: int, is_causal: bool) -> Embedding:
        """Build an embedding. If `vocabulary` is None, the embedding has no table of its own."""
        vectors = None if vocabulary is None else self.input.build(vocabulary, self.hidden_dim)
        position = self.position.build(
            hidden_dim=self.hidden_dim, num_heads=self.num_heads, max_length=max_length, is_causal=is_causal
        )
        norm = self.norm.build(self.hidden_dim) if self.embedding_norm else None
        return Embedding(vectors, position, norm, self.dropout)

    def build_encoder(self) -> EncoderStack:
        """Build the stack of encoder blocks."""
        blocks = [
            EncoderBlock(
                self.hidden_dim,
                attention=SelfAttention(*self._attention_arguments()),
                feed_forward=self._build_feed_forward(),
                norm=self.norm.build,
                norm_placement=self.norm_placement,
                dropout=self.dropout,
                stochastic_depth=self.stochastic_depth,
            )
            for _ in range(self.num_layers)
        ]
        return EncoderStack(blocks, self._build_final_norm())

    def build_decoder(self) -> DecoderStack:
        """Build the stack of decoder blocks."""
        blocks = [
            DecoderBlock(
                self.hidden_dim,
                attention=SelfAttention(*self._attention_arguments()),
                cross_attention=CrossAttention(*self._attention_arguments()),
                feed_forward=self._build_feed_forward(),
                norm=self.norm.build,
                norm_placement=self.norm_placement,
                dropout=self.dropout,
                stochastic_depth=self.stochastic_depth,
            )
            for _ in range(self.num_decoder_layers)
        ]
        return DecoderStack(blocks, self._build_final_norm())

    def build_class_head(self, classes: int, is_tied: bool = False) -> ClassHead:
        """Build an output head with logits over classes or tokens."""
        body = self.output.build(self.hidden_dim, self.dropout)
        return ClassHead(self.hidden_dim, classes, body, is_tied, self.output_bias)

    def build_regression_head(self, outputs: int, mean: float = 0.0, scale: float = 1.0) -> RegressionHead:
        """Build an output head for real values, trained on targets standardised by `mean` and `scale`."""
        body = self.output.build(self.hidden_dim, self.dropout)
        return RegressionHead(self.hidden_dim, outputs, body, self.output_bias, mean, scale)

    def _attention_arguments(self) -> tuple[int, int, int | None, bool, float]:
        return self.hidden_dim, self.num_heads, self.num_key_value_heads, self.bias, self.attention_dropout

    def _build_feed_forward(self) -> nn.Module:
        return self.feed_forward.build(self.hidden_dim, self.feed_forward_dim, self.bias, self.dropout)

    def _build_final_norm(self) -> nn.Module | None:
        return self.norm.build(self.hidden_dim) if self.has_final_norm else None


def _token_classifier(config: TransformerConfig, task_type: TokenClassification) -> Model:
    return TokenPredictor(
        task_type,
        config.build_embedding(task_type.vocabulary, task_type.max_length, config.is_causal),
        config.build_encoder(),
        config.build_class_head(task_type.classes),
        config.is_causal,
    )


def _sequence_classifier(config: TransformerConfig, task_type: SequenceClassification) -> Model:
    return SequenceClassifier(
        task_type,
        config.build_embedding(task_type.vocabulary, task_type.max_length, config.is_causal),
        config.build_encoder(),
        config.pooling.build(config.hidden_dim),
        config.build_regression_head(task_type.outputs, task_type.target_mean, task_type.target_scale)
        if task_type.is_regression
        else config.build_class_head(task_type.outputs),
        config.is_causal,
    )


def _causal_language_model(config: TransformerConfig, task_type: CausalLM) -> Model:
    return CausalLanguageModel(
        task_type,
        config.build_embedding(task_type.vocabulary, task_type.max_length, is_causal=True),
        config.build_encoder(),
        config.build_class_head(task_type.vocabulary, config.tied_output),
        is_causal=True,
        is_tied=config.tied_output,
    )


def _masked_language_model(config: TransformerConfig, task_type: MaskedLM) -> Model:
    return TokenPredictor(
        task_type,
        config.build_embedding(task_type.vocabulary, task_type.max_length, is_causal=False),
        config.build_encoder(),
        config.build_class_head(task_type.vocabulary, config.tied_output),
        is_tied=config.tied_output,
    )


def _encoder_decoder(config: TransformerConfig, task_type: Seq2Seq) -> Model:
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
    TokenClassification: _token_classifier,
    SequenceClassification: _sequence_classifier,
    CausalLM: _causal_language_model,
    MaskedLM: _masked_language_model,
    Seq2Seq: _encoder_decoder,
}


def Transformer(task_type: TaskType, **options: Any) -> Model:
    """Build a Transformer for a task type. `options` are the fields of `TransformerConfig`.

    model = gf.Transformer(gf.CausalLM(vocabulary=256, max_length=1024), num_layers=6, num_heads=8,
                           hidden_dim=512, feed_forward_dim=2048, position="rotary", norm="rms")
    logits = model(tokens)                 # (B, L, 256)
    model.loss(tokens).backward()          # each token is the target of the previous one

    Options such as `position` take a name, or a mapping: `position={"kind": "rotary", "base": 500.0}`. An
    unknown option or value raises a `UserError` with the nearest match.
    """
    if not isinstance(task_type, TaskType):
        raise UserError(
            ErrorDetail(
                "the first argument is not a task type",
                path="task_type",
                value=task_type,
                hint="pass a task type: gf.CausalLM(vocabulary=256, max_length=1024)",
            )
        )
    return validate(TransformerConfig, options).build(task_type)
