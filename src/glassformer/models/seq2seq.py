"""The encoder-decoder: reads one sequence, writes another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from glassformer.blocks.attention import Placement
from glassformer.blocks.embedding import Embedding
from glassformer.blocks.heads import Head
from glassformer.blocks.layers import DecoderBlock, DecoderStack, EncoderStack
from glassformer.blocks.masks import Mask
from glassformer.models.base import Backbone, DecodingState, GenerativeModel
from glassformer.models.task_types import Shape

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


def _ends(tokens_BM: Tensor, real_BM: Tensor | None) -> Tensor:
    """Behind the last real token of each row."""
    if real_BM is None:
        return torch.full((len(tokens_BM),), tokens_BM.shape[1])
    return (real_BM * torch.arange(1, real_BM.shape[1] + 1, device=real_BM.device)).amax(1)


class EncoderDecoder(GenerativeModel, Backbone):
    """With `target_embedding.vectors` absent, both sides share the table of the source side."""

    def __init__(
        self,
        shape: Shape,
        embedding: Embedding,
        encoder: EncoderStack,
        target_embedding: Embedding,
        decoder: DecoderStack,
        head: Head,
        is_tied: bool = False,
    ) -> None:
        super().__init__(shape, embedding, encoder, is_causal=False)
        self.target_embedding = target_embedding
        self.decoder = decoder
        self.head = head
        self.is_tied = is_tied

    def token_vectors(self) -> Tensor | None:
        return self.embedding.input_net().weight_VD

    def tied_weight(self) -> Tensor | None:
        return self.target_embedding.input_net(self.embedding.vectors).weight_VD if self.is_tied else None

    def hidden(  # type: ignore[override]
        self, *, tokens: Tensor, target: Tensor, real: Tensor | None = None
    ) -> Tensor:
        """`target` is the decoder's input: the sequence to write, shifted right."""
        memory_BMD = self.encode(tokens, real)
        positions_BL = torch.arange(target.shape[1], device=target.device)[None]
        placement = Placement(self.target_embedding.position, positions_BL, positions_BL)
        x_BLD = self.target_embedding(target, positions_BL, self.embedding.vectors)
        return self.decoder(x_BLD, placement, Mask(is_causal=True), memory_BMD, Mask.of(real_BM=real))

    def start(self, *, tokens: Tensor, real: Tensor | None = None) -> DecodingState:
        """Rows of like lengths are read together, so that hardly any padding is."""
        state = DecodingState.empty(len(tokens), len(self.decoder.layers), tokens.device)
        state.memory_real_BM = real
        state.project = self.projection()
        ends_B = _ends(tokens, real)
        for rows, longest in like_lengths(ends_B.tolist(), TOKENS_AT_ONCE):
            rows_G = torch.tensor(rows, device=tokens.device)
            real_GM = None if real is None else real[rows_G, :longest]
            if real_GM is not None and bool(real_GM.all()):
                real_GM = None
            memory_GMD = self.encode(tokens[rows_G, :longest], real_GM)
            for block, cache in zip(self.decoder.layers, state.caches, strict=True):
                assert isinstance(block, DecoderBlock)
                keys, values = block.read_source(memory_GMD)
                cache.cross.fill(rows_G, keys, values, batch=len(tokens), length=tokens.shape[1])
        return state

    def read_on(self, state: DecodingState, tokens_BL: Tensor, positions_BL: Tensor, mask: Mask) -> Tensor:
        placement = Placement(self.target_embedding.position, positions_BL, state.positions_BM)
        x_BLD = self.target_embedding(tokens_BL, positions_BL, self.embedding.vectors)
        memory_mask = Mask.of(real_BM=state.memory_real_BM)
        return self.decoder(x_BLD, placement, mask, None, memory_mask, state.caches)
