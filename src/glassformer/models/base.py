"""Base classes: `Model`, and what a generating model adds (cached decoding, beams)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from glassformer.blocks.attention import DROP_IN_KERNELS, MultiHeadAttention, PositionContext
from glassformer.blocks.embedding import Embedding
from glassformer.blocks.heads import Head, LossOutput, last_token
from glassformer.blocks.layers import BlockCache, EncoderStack
from glassformer.blocks.masks import Mask, padding
from glassformer.core.errors import ErrorDetail
from glassformer.core.registry import Kind
from glassformer.models.task_types import TaskType


class Model(nn.Module):
    """Tokens in, answers out. `inputs` are named tensors, the same names as in a batch."""

    head: Head

    def __init__(self, task_type: TaskType) -> None:
        super().__init__()
        self.task_type = task_type

    def hidden(self, **inputs: Tensor | None) -> Tensor:
        """The vectors that the head reads."""
        raise NotImplementedError

    def tied_weight(self) -> Tensor | None:
        """The embedding matrix, if the head borrows it."""
        return None

    def token_embedding(self) -> Tensor | None:
        """The embedding matrix (V, D) of what is read, if there is one."""
        return None

    def forward(self, **inputs: Tensor | None) -> Tensor:
        return self.head(self.hidden(**inputs), self.tied_weight())

    def compute_loss(
        self, inputs: dict[str, Tensor | None], targets: Tensor, label_smoothing: float = 0.0
    ) -> LossOutput:
        return self.head.loss_from_hidden(self.hidden(**inputs), targets, self.tied_weight(), label_smoothing)


class Backbone(Model):
    """Embedding and one stack. The names `embedding` and `encoder` are the same in every shape."""

    def __init__(
        self, task_type: TaskType, embedding: Embedding, encoder: EncoderStack, is_causal: bool
    ) -> None:
        super().__init__(task_type)
        self.embedding = embedding
        self.encoder = encoder
        self.is_causal = is_causal

    def token_embedding(self) -> Tensor | None:
        return self.embedding.input_net().weight_VD

    def encode(self, tokens_BL: Tensor, attention_mask_BL: Tensor | None = None) -> Tensor:
        positions_BL = torch.arange(tokens_BL.shape[1], device=tokens_BL.device)[None]
        positions = PositionContext(self.embedding.position, positions_BL, positions_BL)
        # Padding stands on the right: a causal model never sees it from a real position.
        mask = Mask.of(
            is_causal=self.is_causal, attention_mask_BM=None if self.is_causal else attention_mask_BL
        )
        return self.encoder(self.embedding(tokens_BL, positions_BL), positions, mask)


@contextmanager
def evaluating(model: object) -> Iterator[None]:
    """Evaluation mode, and afterwards each module's own mode again."""
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
    """What generation has read and written so far, a row a sequence.

    The branches of a row stand side by side in it: each step appends a token for every branch, and each
    branch sees, of all that was appended, what it goes on from. So nothing is copied when branches fork.
    """

    caches: list[BlockCache]
    positions_BM: Tensor
    attention_mask_BM: Tensor
    memory_mask_BM: Tensor | None = None
    project: Callable[[Tensor], Tensor] | None = None
    """Function from hidden vectors to logits."""
    is_padded: bool = field(init=False, default=False)
    seen_BWM: Tensor | None = field(init=False, default=None)
    """What each branch sees, once there are any."""

    @classmethod
    def empty(cls, batch: int, layers: int, device: torch.device) -> DecodingState:
        nothing_B0 = torch.empty(batch, 0, dtype=torch.long, device=device)
        return cls([BlockCache() for _ in range(layers)], nothing_B0, nothing_B0.bool())

    def place(self, tokens_BL: Tensor, attention_mask_BL: Tensor | None) -> tuple[Tensor, Mask]:
        """Give the new tokens their positions; return these and what they may attend to."""
        self.is_padded = self.is_padded or attention_mask_BL is not None
        if attention_mask_BL is None:
            attention_mask_BL = torch.ones_like(tokens_BL, dtype=torch.bool)
        if self.is_padded:
            written_B1 = self.attention_mask_BM.sum(1, keepdim=True)
            # Padding stands where the last real token stands, and so never runs over a maximum length.
            positions_BL = (written_B1 + attention_mask_BL.cumsum(1) - 1).clamp(min=0)
        else:
            length = self.attention_mask_BM.shape[1]
            numbers_L = torch.arange(length, length + tokens_BL.shape[1], device=tokens_BL.device)
            positions_BL = numbers_L.expand(len(tokens_BL), -1)
        self.positions_BM = torch.cat([self.positions_BM, positions_BL], 1)
        self.attention_mask_BM = torch.cat([self.attention_mask_BM, attention_mask_BL], 1)
        return positions_BL, Mask(
            is_causal=True, allowed=padding(self.attention_mask_BM) if self.is_padded else None
        )

    def fork(self, beam_indices_BW: Tensor) -> tuple[Tensor, Mask]:
        """As `place`, for a token of each branch. Each goes on from a branch of the step before."""
        branches = beam_indices_BW.shape[1]
        before_BWM = self.attention_mask_BM[:, None] if self.seen_BWM is None else self.seen_BWM
        seen_BWM = before_BWM.gather(1, beam_indices_BW[..., None].expand(-1, -1, before_BWM.shape[2]))
        itself_WW = torch.eye(branches, dtype=torch.bool, device=seen_BWM.device)
        positions_BW = seen_BWM.sum(2)
        self.seen_BWM = torch.cat([seen_BWM, itself_WW.expand(len(seen_BWM), -1, -1)], 2)
        self.positions_BM = torch.cat([self.positions_BM, positions_BW], 1)
        return positions_BW, Mask(allowed=self.seen_BWM[:, None])

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row may be taken more than once."""
        for cache in self.caches:
            cache.select(rows)
        self.positions_BM, self.attention_mask_BM = self.positions_BM[rows], self.attention_mask_BM[rows]
        if self.memory_mask_BM is not None:
            self.memory_mask_BM = self.memory_mask_BM[rows]
        if self.seen_BWM is not None:
            self.seen_BWM = self.seen_BWM[rows]


@runtime_checkable
class SupportsGeneration(Protocol):
    """A model that writes: `generation.py` needs no more than this."""

    def start(self, **inputs: Tensor | None) -> DecodingState:
        """Read the inputs; nothing is written yet."""
        ...

    def advance(
        self, state: DecodingState, tokens_BL: Tensor, attention_mask_BL: Tensor | None = None
    ) -> Tensor:
        """Append tokens (padding on the right) and return the logits (B, V) after each row's last one.

        They are the caller's, who may write into them.

        Each row brings at least one real token; the logits of one that does not mean nothing.
        """
        ...


@runtime_checkable
class SupportsBeams(SupportsGeneration, Protocol):
    """A model that writes along several branches of a row at once, without copies of what they share."""

    @property
    def supports_beams(self) -> bool:
        """Whether it can as it stands now."""
        ...

    def branch(self, state: DecodingState, beam_indices_BW: Tensor, tokens_BW: Tensor) -> Tensor:
        """Append a token to each branch and return the logits (B, W, V) after it.

        Each branch goes on from one of the branches that the step before had; after `advance` a row has one.
        """
        ...


class ModelConfig(Kind):
    """What kind of model, and how large."""

    def build(self, task_type: TaskType) -> Model:
        raise NotImplementedError

    def parameter_terms(self, task_type: TaskType) -> dict[str, int]:
        """The closed form of the parameter count, a named term each; empty if the kind has none."""
        return {}

    def refuse(self, task_type: TaskType) -> ErrorDetail:
        return ErrorDetail(
            f"a model of this kind cannot answer {type(task_type).__name__}",
            path="model.kind",
            value=self.kind,
            hint="choose another model kind or task",
        )


class GenerativeModel(Model):
    """A model with incremental decoding: extends a state by new tokens and returns the logits after them."""

    prepacked_head: Callable[[Tensor], Tensor] | None = None
    """Faster function from hidden vectors to logits, while `generation.cpu.prepack` is active."""

    def projection(self) -> Callable[[Tensor], Tensor]:
        """Function from hidden vectors to logits, for all steps of one decoding."""
        return self.prepacked_head or (lambda hidden: self.head(hidden, self.tied_weight()))

    def extend(self, state: DecodingState, tokens_BL: Tensor, positions_BL: Tensor, mask: Mask) -> Tensor:
        """Hidden vectors of new tokens, whose keys and values are added to the state."""
        raise NotImplementedError

    def advance(
        self, state: DecodingState, tokens_BL: Tensor, attention_mask_BL: Tensor | None = None
    ) -> Tensor:
        assert state.project is not None
        x_BLD = self.extend(state, tokens_BL, *state.place(tokens_BL, attention_mask_BL))
        x_BD = x_BLD[:, -1] if attention_mask_BL is None else last_token(x_BLD, attention_mask_BL)
        return state.project(x_BD)

    @property
    def supports_beams(self) -> bool:
        """False while a custom attention kernel is installed, which may expect one query per step."""
        attentions = [module for module in self.modules() if isinstance(module, MultiHeadAttention)]
        return all(attention.kernel in DROP_IN_KERNELS for attention in attentions)

    def branch(self, state: DecodingState, beam_indices_BW: Tensor, tokens_BW: Tensor) -> Tensor:
        assert state.project is not None
        return state.project(self.extend(state, tokens_BW, *state.fork(beam_indices_BW)))
