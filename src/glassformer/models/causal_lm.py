"""The causal language model: a predictor of the next token that can also write."""

from __future__ import annotations

from torch import Tensor

from glassformer.blocks.attention import Placement
from glassformer.models.base import DecodingState
from glassformer.models.encoder import TokenPredictor
from glassformer.models.heads import last_real


class CausalLanguageModel(TokenPredictor):
    def start(self, *, tokens: Tensor, real: Tensor | None = None) -> DecodingState:
        """An empty state for as many rows as `tokens` has; the prompt itself goes through `advance`."""
        return DecodingState.empty(len(tokens), len(self.encoder.layers), tokens.device)

    def advance(self, state: DecodingState, tokens_BL: Tensor, real_BL: Tensor | None = None) -> Tensor:
        positions_BL, mask = state.place(tokens_BL, real_BL)
        placement = Placement(self.embedding.position, positions_BL, state.positions_BM)
        x_BLD = self.encoder(self.embedding(tokens_BL, positions_BL), placement, mask, state.caches)
        x_BD = x_BLD[:, -1] if real_BL is None else last_real(x_BLD, real_BL)
        return self.head(x_BD, self.tied_weight())
