"""The encoder-decoder: reads one sequence, writes another."""

from __future__ import annotations

import torch
from torch import Tensor

from glassformer.blocks.attention import Placement
from glassformer.blocks.embedding import Embedding
from glassformer.blocks.layers import DecoderStack, EncoderStack
from glassformer.blocks.masks import Mask
from glassformer.models.base import DecodingState
from glassformer.models.encoder import Backbone
from glassformer.models.heads import Head, last_real
from glassformer.models.shapes import Shape


class EncoderDecoder(Backbone):
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
        state = DecodingState.empty(len(tokens), len(self.decoder.layers), tokens.device)
        state.memory_BMD = self.encode(tokens, real)
        state.memory_real_BM = real
        return state

    def advance(self, state: DecodingState, tokens_BL: Tensor, real_BL: Tensor | None = None) -> Tensor:
        positions_BL, mask = state.place(tokens_BL, real_BL)
        placement = Placement(self.target_embedding.position, positions_BL, state.positions_BM)
        x_BLD = self.target_embedding(tokens_BL, positions_BL, self.embedding.vectors)
        memory_mask = Mask.of(real_BM=state.memory_real_BM)
        x_BLD = self.decoder(x_BLD, placement, mask, state.memory_BMD, memory_mask, state.caches)
        x_BD = x_BLD[:, -1] if real_BL is None else last_real(x_BLD, real_BL)
        return self.head(x_BD, self.tied_weight())
