"""One stack: a class per position, or one answer for the sequence. Also masked language models."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from glassformer.blocks.attention import Placement
from glassformer.blocks.embedding import Embedding
from glassformer.blocks.layers import EncoderStack
from glassformer.blocks.masks import Mask
from glassformer.models.base import Model
from glassformer.models.heads import Head
from glassformer.models.shapes import Shape


class Backbone(Model):
    """Embedding and one stack. The names `embedding` and `encoder` are the same in every shape."""

    def __init__(self, shape: Shape, embedding: Embedding, encoder: EncoderStack, is_causal: bool) -> None:
        super().__init__(shape)
        self.embedding = embedding
        self.encoder = encoder
        self.is_causal = is_causal

    def token_vectors(self) -> Tensor | None:
        return self.embedding.input_net().weight_VD

    def encode(self, tokens_BL: Tensor, real_BL: Tensor | None = None) -> Tensor:
        positions_BL = torch.arange(tokens_BL.shape[1], device=tokens_BL.device)[None]
        placement = Placement(self.embedding.position, positions_BL, positions_BL)
        # Padding stands on the right: a causal model never sees it from a real position.
        mask = Mask.of(is_causal=self.is_causal, real_BM=None if self.is_causal else real_BL)
        return self.encoder(self.embedding(tokens_BL, positions_BL), placement, mask)


class TokenPredictor(Backbone):
    """An answer per position: labels, or the hidden words of a masked language model."""

    def __init__(
        self,
        shape: Shape,
        embedding: Embedding,
        encoder: EncoderStack,
        head: Head,
        is_causal: bool = False,
        is_tied: bool = False,
    ) -> None:
        super().__init__(shape, embedding, encoder, is_causal)
        self.head = head
        self.is_tied = is_tied

    def tied_weight(self) -> Tensor | None:
        return self.token_vectors() if self.is_tied else None

    def hidden(self, *, tokens: Tensor, real: Tensor | None = None) -> Tensor:  # type: ignore[override]
        return self.encode(tokens, real)


class SequenceClassifier(Backbone):
    """One answer for the sequence, from its pooled vectors."""

    def __init__(
        self,
        shape: Shape,
        embedding: Embedding,
        encoder: EncoderStack,
        pooling: nn.Module,
        head: Head,
        is_causal: bool = False,
    ) -> None:
        super().__init__(shape, embedding, encoder, is_causal)
        self.pooling = pooling
        self.head = head

    def hidden(self, *, tokens: Tensor, real: Tensor | None = None) -> Tensor:  # type: ignore[override]
        return self.pooling(self.encode(tokens, real), real)
