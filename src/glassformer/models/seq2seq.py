"""Encoder-decoder model, which encodes one sequence and generates another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from glassformer.blocks.attention import PositionContext
from glassformer.blocks.embedding import Embedding
from glassformer.blocks.heads import Head
from glassformer.blocks.layers import DecoderBlock, DecoderStack, EncoderStack
from glassformer.blocks.masks import CAUSAL, Mask, boolean_mask
from glassformer.models.base import Backbone, DecodingState, GenerativeModel
from glassformer.models.checks import check_classes, check_shape, check_tensor, check_tokens
from glassformer.models.task_types import Seq2Seq, TaskType

ENCODER_TOKENS = 1024
"""Maximum number of tokens per encoder batch: enough for a fast matmul, few enough for a CPU's cache."""


def group_by_length(lengths: Sequence[int], tokens: int) -> Iterator[tuple[list[int], int]]:
    """Group rows of similar length. Yield the row indices and the maximum length of each group.

    A group has at most `tokens` tokens, padding included, but at least one row.
    """
    rows: list[int] = []
    longest = 1
    for row in sorted(range(len(lengths)), key=lambda row: lengths[row]):
        length = max(lengths[row], 1)
        if rows and (len(rows) + 1) * length > tokens:
            yield rows, longest
            rows = []
        rows.append(row)
        longest = length
    if rows:
        yield rows, longest


def _ends(tokens_BM: Tensor, attention_mask_BM: Tensor | None) -> Tensor:
    """Return the number of positions up to the last real token of each row."""
    if attention_mask_BM is None:
        return torch.full((len(tokens_BM),), tokens_BM.shape[1])
    numbers_M = torch.arange(1, attention_mask_BM.shape[1] + 1, device=attention_mask_BM.device)
    return (attention_mask_BM * numbers_M).amax(1)


class EncoderDecoder(GenerativeModel, Backbone):
    """Encoder-decoder Transformer.

    If `target_embedding.vectors` is None, source and target tokens share one embedding table.
    """

    target_mask = CAUSAL
    """Mask of the decoder's self-attention while it reads a whole target sequence."""

    def __init__(
        self,
        task_type: TaskType,
        embedding: Embedding,
        encoder: EncoderStack,
        target_embedding: Embedding,
        decoder: DecoderStack,
        head: Head,
        is_tied: bool = False,
    ) -> None:
        super().__init__(task_type, embedding, encoder, is_causal=False)
        self.target_embedding = target_embedding
        self.decoder = decoder
        self.head = head
        self.is_tied = is_tied

    def tied_weight(self) -> Tensor | None:
        return self.target_embedding.input_net(self.embedding.vectors).weight_VD if self.is_tied else None

    def hidden(self, tokens: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the decoder's hidden vectors. `target` is the target sequence without its last token."""
        mask = boolean_mask(mask)
        memory_BMD = self.encode(tokens, mask)
        positions_BL = torch.arange(target.shape[1], device=target.device)[None]
        positions = PositionContext(self.target_embedding.position, positions_BL, positions_BL)
        x_BLD = self.target_embedding(target, positions_BL, self.embedding.vectors)
        return self.decoder(x_BLD, memory_BMD, positions, self.target_mask, Mask.of(attention_mask=mask))

    def loss(
        self, tokens: Tensor, targets: Tensor, *, mask: Tensor | None = None, label_smoothing: float = 0.0
    ) -> Tensor:
        """Return the mean cross-entropy of the target sequences, with teacher forcing.

        Each row of `targets` is a whole sequence, begin and end tokens included, padded with −100. The
        decoder reads all tokens but the last and predicts all tokens but the first.
        """
        check_tensor("targets", targets)
        check_shape("targets", targets, (len(tokens), None), "pass one target sequence per row")
        check_classes(targets, self.task_type.num_outputs)
        self.check_inputs(tokens, targets[:, :-1].clamp(min=0), mask)
        inputs = {"tokens": tokens, "target": targets[:, :-1].clamp(min=0), "mask": mask}
        return self.compute_loss(inputs, targets[:, 1:], label_smoothing).mean

    def check_inputs(  # type: ignore[override]  # positional arguments in the order of `hidden`
        self, tokens: Any, target: Any = None, mask: Any = None, **others: Any
    ) -> None:
        super().check_inputs(tokens, mask)
        task_type = self.task_type
        assert isinstance(task_type, Seq2Seq)
        check_tokens("target", target, task_type.target_vocabulary, task_type.max_target_length)
        check_shape("target", target, (len(tokens), None), "pass one target sequence per row")

    def start(self, tokens: Tensor, mask: Tensor | None = None) -> DecodingState:
        """Encode the source in groups of rows of similar length, and return the decoding state."""
        mask = boolean_mask(mask)
        state = DecodingState.empty(len(tokens), len(self.decoder.layers), tokens.device)
        state.memory_mask_BM = mask
        state.project = self.projection()
        for rows, longest in group_by_length(_ends(tokens, mask).tolist(), ENCODER_TOKENS):
            rows_G = torch.tensor(rows, device=tokens.device)
            mask_GM = None if mask is None else mask[rows_G, :longest]
            if mask_GM is not None and bool(mask_GM.all()):
                mask_GM = None
            memory_GMD = self.encode(tokens[rows_G, :longest], mask_GM)
            for block, cache in zip(self.decoder.layers, state.caches, strict=True):
                assert isinstance(block, DecoderBlock)
                keys, values = block.project_memory(memory_GMD)
                cache.cross.fill(rows_G, keys, values, batch=len(tokens), length=tokens.shape[1])
        return state

    def advance_hidden(
        self, state: DecodingState, tokens_BL: Tensor, positions_BL: Tensor, mask: Mask
    ) -> Tensor:
        positions = PositionContext(self.target_embedding.position, positions_BL, state.positions_BM)
        x_BLD = self.target_embedding(tokens_BL, positions_BL, self.embedding.vectors)
        memory_mask = Mask.of(attention_mask=state.memory_mask_BM)
        return self.decoder(x_BLD, None, positions, mask, memory_mask, state.caches)
