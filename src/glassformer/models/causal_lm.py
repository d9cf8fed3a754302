"""The causal language model: a predictor of the next token that can also write."""

from __future__ import annotations

from torch import Tensor

from glassformer.blocks.attention import Placement
from glassformer.blocks.masks import Mask
from glassformer.models.base import DecodingState
from glassformer.models.encoder import TokenPredictor
from glassformer.models.writing import Writing


class CausalLanguageModel(Writing, TokenPredictor):
    def start(self, *, tokens: Tensor, real: Tensor | None = None) -> DecodingState:
        """An empty state for as many rows as `tokens` has; the prompt itself goes through `advance`."""
        state = DecodingState.empty(len(tokens), len(self.encoder.layers), tokens.device)
        state.answer = self.answering()
        return state

    def read_on(self, state: DecodingState, tokens_BL: Tensor, positions_BL: Tensor, mask: Mask) -> Tensor:
        placement = Placement(self.embedding.position, positions_BL, state.positions_BM)
        return self.encoder(self.embedding(tokens_BL, positions_BL), placement, mask, state.caches)
