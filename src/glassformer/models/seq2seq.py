"""The encoder-decoder: reads one sequence, writes another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from glassformer.blocks.attention import PositionContext
from glassformer.blocks.embedding import Embedding
from glassformer.blocks.heads import Head
from glassformer.blocks.layers import DecoderBlock, DecoderStack, EncoderStack
from glassformer.blocks.masks import Mask
from glassformer.models.base import Backbone, DecodingState, GenerativeModel
from glassformer.models.task_types import TaskType

TOKENS_AT_ONCE = 1024
"""What the encoder reads together: enough for fast products of matrices, and not too much for a cache."""


def like_lengths(lengths: Sequence[int], tokens: int) -> Iterator[tuple[list[int], int]]:
    """Groups of rows with about so many tokens, padding included, and the longest length of each."""
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
    """Behind the last real token of each row."""
    if attention_mask_BM is None:
        return torch.full((len(tokens_BM),), tokens_BM.shape[1])
    return (
        attention_mask_BM * torch.arange(1, attention_mask_BM.shape[1] + 1, device=attention_mask_BM.device)
    ).amax(1)


class EncoderDecoder(GenerativeModel, Backbone):
    """With `target_embedding.vectors` absent, both sides share the table of the source side."""

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

    def token_embedding(self) -> Tensor | None:
        return self.embedding.input_net().weight_VD

    def tied_weight(self) -> Tensor | None:
        return self.target_embedding.input_net(self.embedding.vectors).weight_VD if self.is_tied else None

    def hidden(  # type: ignore[override]
        self, *, tokens: Tensor, target: Tensor, attention_mask: Tensor | None = None
    ) -> Tensor:
        """`target` is the decoder's input: the sequence to write, shifted right."""
        memory_BMD = self.encode(tokens, attention_mask)
        positions_BL = torch.arange(target.shape[1], device=target.device)[None]
        positions = PositionContext(self.target_embedding.position, positions_BL, positions_BL)
        x_BLD = self.target_embedding(target, positions_BL, self.embedding.vectors)
        return self.decoder(
            x_BLD, positions, Mask(is_causal=True), memory_BMD, Mask.of(attention_mask_BM=attention_mask)
        )

    def start(self, *, tokens: Tensor, attention_mask: Tensor | None = None) -> DecodingState:
        """Rows of like lengths are read together, so that hardly any padding is."""
        state = DecodingState.empty(len(tokens), len(self.decoder.layers), tokens.device)
        state.memory_mask_BM = attention_mask
        state.project = self.projection()
        ends_B = _ends(tokens, attention_mask)
        for rows, longest in like_lengths(ends_B.tolist(), TOKENS_AT_ONCE):
            rows_G = torch.tensor(rows, device=tokens.device)
            attention_mask_GM = None if attention_mask is None else attention_mask[rows_G, :longest]
            if attention_mask_GM is not None and bool(attention_mask_GM.all()):
                attention_mask_GM = None
            memory_GMD = self.encode(tokens[rows_G, :longest], attention_mask_GM)
            for block, cache in zip(self.decoder.layers, state.caches, strict=True):
                assert isinstance(block, DecoderBlock)
                keys, values = block.read_source(memory_GMD)
                cache.cross.fill(rows_G, keys, values, batch=len(tokens), length=tokens.shape[1])
        return state

    def extend(self, state: DecodingState, tokens_BL: Tensor, positions_BL: Tensor, mask: Mask) -> Tensor:
        positions = PositionContext(self.target_embedding.position, positions_BL, state.positions_BM)
        x_BLD = self.target_embedding(tokens_BL, positions_BL, self.embedding.vectors)
        memory_mask = Mask.of(attention_mask_BM=state.memory_mask_BM)
        return self.decoder(x_BLD, positions, mask, None, memory_mask, state.caches)
