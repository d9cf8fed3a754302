"""Base classes of models, and the state of cached decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from glassformer.blocks.attention import DROP_IN_KERNELS, MultiHeadAttention, PositionContext
from glassformer.blocks.embedding import Embedding
from glassformer.blocks.heads import IGNORED, Head, LossOutput, last_token
from glassformer.blocks.layers import BlockCache, EncoderStack
from glassformer.blocks.masks import Mask, boolean_mask, padding
from glassformer.blocks.positions import Position, Sight
from glassformer.core.errors import ErrorDetail
from glassformer.core.registry import Kind
from glassformer.models.checks import (
    check_classes,
    check_mask,
    check_no_empty_rows,
    check_shape,
    check_tensor,
    check_tokens,
    is_checked,
)
from glassformer.models.task_types import SequenceClassification, TaskType

if TYPE_CHECKING:
    from glassformer.generation.greedy_head import GreedyHead
    from glassformer.generation.predict import Engine


class WithoutInitialisation(TorchFunctionMode):
    """Context in which new parameters are not filled with random numbers, because weights are loaded next.

    Drawing the numbers takes most of the time to open a large model.
    """

    def __torch_function__(
        self, function: Any, types: Any, arguments: Sequence[Any] = (), named: Mapping[str, Any] | None = None
    ) -> Any:
        named = named or {}
        is_fill = function in (torch.Tensor.uniform_, torch.Tensor.normal_)
        if is_fill or getattr(function, "__module__", None) == nn.init.__name__:
            return arguments[0] if arguments else named["tensor"]
        return function(*arguments, **named)


class Model(nn.Module):
    """Base class of models, which compute outputs and the loss for a batch of tokens.

    Inputs are tensors passed by name: `tokens`, `mask` (True or 1 at real tokens, False or 0 at padding on
    the right), and for an encoder-decoder `target` (the decoder's input).
    """

    head: Head
    config: ModelConfig | None = None
    """Config that built the model. None: the model was put together from its parts."""

    def __init__(self, task_type: TaskType) -> None:
        super().__init__()
        self.task_type = task_type

    def hidden(self, *inputs: Any, **named: Any) -> Tensor:
        """Return the hidden vectors that the output head reads."""
        raise NotImplementedError

    def tied_weight(self) -> Tensor | None:
        """Return the embedding matrix (V, D) that the output head shares, or None if it is not tied."""
        return None

    def token_embedding(self) -> Tensor | None:
        """Return the embedding matrix (V, D) of the input tokens, or None if there is none."""
        return None

    def forward(self, *inputs: Tensor | None, **named: Tensor | None) -> Tensor:
        """Compute the outputs: logits (B, L, V) or (B, V), or real values (B, 1).

        logits = model(tokens, mask=mask)
        logits = model(tokens, target, mask=mask)     # encoder-decoder
        """
        if is_checked():
            self.check_inputs(*inputs, **named)
        return self.head(self.hidden(*inputs, **named), self.tied_weight())

    def check_inputs(self, *inputs: Any, **named: Any) -> None:
        """Raise an ErrorDetail if the inputs of `forward` are not valid. By default, nothing is checked."""

    def compute_loss(
        self, inputs: Mapping[str, Tensor | None], targets: Tensor, label_smoothing: float = 0.0
    ) -> LossOutput:
        """Return the summed loss of a batch. Targets of −100 are ignored."""
        return self.head.loss_from_hidden(self.hidden(**inputs), targets, self.tied_weight(), label_smoothing)

    def loss(
        self, tokens: Tensor, targets: Tensor, *, mask: Tensor | None = None, label_smoothing: float = 0.0
    ) -> Tensor:
        """Return the mean loss, ready for `.backward()`.

        `targets` has one class per token (B, L), or one class or value per sequence (B). Targets of −100 are
        ignored, and so are targets at padding.
        """
        self.check_inputs(tokens, mask=mask)
        check_tensor("targets", targets)
        task_type, is_per_sequence = self.task_type, isinstance(self.task_type, SequenceClassification)
        hint = "pass one target per sequence" if is_per_sequence else "pass one target per token"
        check_shape("targets", targets, tokens.shape[:1] if is_per_sequence else tokens.shape, hint)
        if not (isinstance(task_type, SequenceClassification) and task_type.is_regression):
            check_classes(targets, task_type.num_outputs)
        if mask is not None and is_per_sequence:
            check_no_empty_rows(mask, targets)
        return self._mean_loss(tokens, targets, mask, label_smoothing)

    def _mean_loss(
        self, tokens: Tensor, targets: Tensor, mask: Tensor | None, label_smoothing: float
    ) -> Tensor:
        mask = boolean_mask(mask)
        if mask is not None and targets.ndim > 1:
            targets = targets.masked_fill(~mask, IGNORED)
        return self.compute_loss({"tokens": tokens, "mask": mask}, targets, label_smoothing).mean

    def summary(self) -> str:
        """Return one line with the class, the task type and the number of parameters."""
        parameters = sum(parameter.numel() for parameter in self.parameters())
        return f"{type(self).__name__}, {self.task_type}: {parameters:,} parameters"

    def __repr__(self) -> str:
        return f"{self.summary()}\n{super().__repr__()}"


class Backbone(Model):
    """Base class of models with an embedding and an encoder.

    These two modules have the same names for every task type, so that weights can be transferred by name.
    """

    def __init__(
        self, task_type: TaskType, embedding: Embedding, encoder: EncoderStack, is_causal: bool
    ) -> None:
        super().__init__(task_type)
        self.embedding = embedding
        self.encoder = encoder
        self.is_causal = is_causal

    def token_embedding(self) -> Tensor | None:
        return self.embedding.input_net().weight_VD

    @property
    def needs_right_padding(self) -> bool:
        """True if padding before a real token would change the outputs, whatever the mask is.

        An encoding that is added to the embedding counts the padding: real tokens move to later positions.
        """
        return self.is_causal or type(self.embedding.position).embed is not Position.embed

    def check_inputs(self, tokens: Any, mask: Any = None, **others: Any) -> None:
        check_tokens("tokens", tokens, self.task_type.vocabulary, self.task_type.max_length)
        check_mask(mask, tokens, needs_right_padding=self.needs_right_padding)

    def encode(self, tokens_BL: Tensor, attention_mask_BL: Tensor | None = None) -> Tensor:
        """Return the vectors (B, L, D) after the last block of the stack."""
        positions_BL = torch.arange(tokens_BL.shape[1], device=tokens_BL.device)[None]
        positions = PositionContext(self.embedding.position, positions_BL, positions_BL)
        # Padding is on the right, so the real tokens of a causal model never see it.
        mask = Mask.of(is_causal=self.is_causal, attention_mask=None if self.is_causal else attention_mask_BL)
        return self.encoder(self.embedding(tokens_BL, positions_BL), positions, mask)

    def summary(self) -> str:
        """Return one line with the class, the task type, the number of parameters and the stack's size."""
        attention = next(
            (module for module in self.modules() if isinstance(module, MultiHeadAttention)), None
        )
        if attention is None:
            return super().summary()
        return (
            f"{super().summary()}, num_layers {len(self.encoder.layers)}, num_heads {attention.num_heads},"
            f" hidden_dim {attention.hidden_dim}, position {type(self.embedding.position).__name__}"
        )


@contextmanager
def evaluating(model: object) -> Iterator[None]:
    """Put the model into evaluation mode inside a `with` block, then restore the mode of each module."""
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    modes = [module.training for module in modules]
    try:
        for module in modules:
            module.training = False
        yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode


@dataclass
class DecodingState:
    """Caches, positions and masks of a batch during generation, one row per sequence.

    The beams of a sequence share one row. Each step appends one token per beam to the row, and each beam sees
    only the appended tokens of its own history. Several beams may continue the same beam; nothing is copied.
    """

    caches: list[BlockCache]
    positions_BM: Tensor
    attention_mask_BM: Tensor
    memory_mask_BM: Tensor | None = None
    project: Callable[[Tensor], Tensor] | None = None
    """Function from hidden vectors (N, D) to logits (N, V), or to the most probable tokens (N)."""
    is_padded: bool = field(init=False, default=False)
    visible_BWM: Tensor | None = field(init=False, default=None)
    """True at the tokens that each beam may attend to. None before the first step with beams."""

    @classmethod
    def empty(cls, batch: int, layers: int, device: torch.device) -> DecodingState:
        """Return the state before the first token."""
        nothing_B0 = torch.empty(batch, 0, dtype=torch.long, device=device)
        return cls([BlockCache() for _ in range(layers)], nothing_B0, nothing_B0.bool())

    def append(self, tokens_BL: Tensor, attention_mask_BL: Tensor | None) -> tuple[Tensor, Mask]:
        """Append tokens. Return their positions, and the mask of the tokens that they may attend to."""
        attention_mask_BL = boolean_mask(attention_mask_BL, "attention_mask_BL")
        self.is_padded = self.is_padded or attention_mask_BL is not None
        if attention_mask_BL is None:
            attention_mask_BL = torch.ones_like(tokens_BL, dtype=torch.bool)
        if self.is_padded:
            lengths_B1 = self.attention_mask_BM.sum(1, keepdim=True)
            # Padding gets the position of the last real token, and so never exceeds a maximum length.
            positions_BL = (lengths_B1 + attention_mask_BL.cumsum(1) - 1).clamp(min=0)
        else:
            length = self.attention_mask_BM.shape[1]
            numbers_L = torch.arange(length, length + tokens_BL.shape[1], device=tokens_BL.device)
            positions_BL = numbers_L.expand(len(tokens_BL), -1)
        self.positions_BM = torch.cat([self.positions_BM, positions_BL], 1)
        self.attention_mask_BM = torch.cat([self.attention_mask_BM, attention_mask_BL], 1)
        return positions_BL, Mask(
            is_causal=True, allowed=padding(self.attention_mask_BM) if self.is_padded else None
        )

    def append_beams(self, beam_indices_BW: Tensor) -> tuple[Tensor, Mask]:
        """Append one token per beam. Return the positions and the attention mask of the new tokens.

        `beam_indices_BW` has the index of the beam of the previous step that each beam continues.
        """
        beams = beam_indices_BW.shape[1]
        before_BWM = self.attention_mask_BM[:, None] if self.visible_BWM is None else self.visible_BWM
        visible_BWM = before_BWM.gather(1, beam_indices_BW[..., None].expand(-1, -1, before_BWM.shape[2]))
        itself_WW = torch.eye(beams, dtype=torch.bool, device=visible_BWM.device)
        positions_BW = visible_BWM.sum(2)
        self.visible_BWM = torch.cat([visible_BWM, itself_WW.expand(len(visible_BWM), -1, -1)], 2)
        self.positions_BM = torch.cat([self.positions_BM, positions_BW], 1)
        return positions_BW, Mask(allowed=self.visible_BWM[:, None])

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order. A row may be selected more than once."""
        for cache in self.caches:
            cache.select(rows)
        self.positions_BM, self.attention_mask_BM = self.positions_BM[rows], self.attention_mask_BM[rows]
        if self.memory_mask_BM is not None:
            self.memory_mask_BM = self.memory_mask_BM[rows]
        if self.visible_BWM is not None:
            self.visible_BWM = self.visible_BWM[rows]

    def join(self, other: DecodingState) -> None:
        """Append the rows of another state, both of a model without a source and before any beams."""
        for cache, more in zip(self.caches, other.caches, strict=True):
            cache.join(more)
        length = max(self.attention_mask_BM.shape[1], other.attention_mask_BM.shape[1])
        self.is_padded = True
        self.positions_BM = torch.cat([_widen(state.positions_BM, length) for state in (self, other)])
        self.attention_mask_BM = torch.cat(
            [_widen(state.attention_mask_BM, length) for state in (self, other)]
        )

    def compact(self) -> None:
        """Remove padding between tokens: the caches become as short as the longest row."""
        order_BM = self.attention_mask_BM.byte().argsort(dim=1, descending=True, stable=True)
        index_BM = order_BM[:, : int(self.attention_mask_BM.sum(1).max())]
        for cache in self.caches:
            cache.own.pick(index_BM)
        self.positions_BM = self.positions_BM.gather(1, index_BM)
        self.attention_mask_BM = self.attention_mask_BM.gather(1, index_BM)


def _widen(x_BM: Tensor, length: int) -> Tensor:
    """Return a tensor padded with zeros (False) on the right."""
    return x_BM if x_BM.shape[1] == length else nn.functional.pad(x_BM, (0, length - x_BM.shape[1]))


@runtime_checkable
class SupportsGeneration(Protocol):
    """Protocol of models that `generation.generate` can decode with."""

    def start(self, *inputs: Any, **named: Any) -> DecodingState:
        """Read the inputs, such as the source of an encoder-decoder. Return the state before any token."""
        ...

    def advance(
        self, state: DecodingState, tokens_BL: Tensor, attention_mask_BL: Tensor | None = None
    ) -> Tensor:
        """Append tokens, padded on the right, and return the logits (B, V) after each row's last token.

        Each row must have at least one real token, or its logits are meaningless. The caller owns the logits
        and may modify them.
        """
        ...


@runtime_checkable
class SupportsBeams(SupportsGeneration, Protocol):
    """Protocol of models that decode all beams of a sequence in one batch row, without copying the cache."""

    @property
    def supports_beams(self) -> bool:
        """True if the model can use `advance_beams` in its current state."""
        ...

    def advance_beams(self, state: DecodingState, beam_indices_BW: Tensor, tokens_BW: Tensor) -> Tensor:
        """Append one token per beam and return the logits (B, W, V) after it.

        `beam_indices_BW` has the index of the beam of the previous step that each beam continues. After
        `advance`, a row has one beam.
        """
        ...


class ModelConfig(Kind):
    """Base class of the configs of models."""

    def build(self, task_type: TaskType) -> Model:
        """Build a model for a task type."""
        raise NotImplementedError

    def sees(self) -> Sight:
        """Return what one attention layer knows of a token's position; by default, the absolute position."""
        return "absolute"

    def parameter_terms(self, task_type: TaskType) -> dict[str, int]:
        """Return the parameter count of each module by formula. Empty if the model has no formula."""
        return {}

    def refuse(self, task_type: TaskType) -> ErrorDetail:
        """Return the error for a task type that this kind of model does not support."""
        return ErrorDetail(
            f"a model of this kind does not support {type(task_type).__name__}",
            path="model.kind",
            value=self.kind,
            hint="choose another model kind or task",
        )


class GenerativeModel(Model):
    """Base class of models that generate tokens with a key/value cache."""

    prepacked_head: Callable[[Tensor], Tensor] | None = None
    """Faster function from hidden vectors to logits while `generation.cpu.prepack` is active, else None."""
    greedy_head: GreedyHead | None = None
    """Finder of the most probable tokens while `generation.cpu.prepack` is active, if it is faster."""
    engine: Engine | None = None
    """Engine that generates the outputs, if the model is from `generation.predict.with_engine`, else None."""

    def projection(self) -> Callable[[Tensor], Tensor]:
        """Return the function from hidden vectors to logits that all decoding steps use."""
        return self.prepacked_head or (lambda hidden: self.head(hidden, self.tied_weight()))

    def advance_hidden(
        self, state: DecodingState, tokens_BL: Tensor, positions_BL: Tensor, mask: Mask
    ) -> Tensor:
        """Return the hidden vectors of new tokens, and append their keys and values to the caches."""
        raise NotImplementedError

    def advance(
        self, state: DecodingState, tokens_BL: Tensor, attention_mask_BL: Tensor | None = None
    ) -> Tensor:
        """Append tokens and return the logits after each row's last token. See `SupportsGeneration`."""
        assert state.project is not None
        x_BLD = self.advance_hidden(state, tokens_BL, *state.append(tokens_BL, attention_mask_BL))
        x_BD = x_BLD[:, -1] if attention_mask_BL is None else last_token(x_BLD, attention_mask_BL)
        return state.project(x_BD)

    @property
    def supports_beams(self) -> bool:
        """False while a custom attention kernel is installed, because it may expect one query per step."""
        attentions = [module for module in self.modules() if isinstance(module, MultiHeadAttention)]
        return all(attention.kernel in DROP_IN_KERNELS for attention in attentions)

    def advance_beams(self, state: DecodingState, beam_indices_BW: Tensor, tokens_BW: Tensor) -> Tensor:
        """Append one token per beam and return the logits (B, W, V) after it. See `SupportsBeams`."""
        assert state.project is not None
        return state.project(self.advance_hidden(state, tokens_BW, *state.append_beams(beam_indices_BW)))
