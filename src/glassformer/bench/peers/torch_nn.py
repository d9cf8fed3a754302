"""What one writes with `torch.nn.Transformer`: padded batches, all logits, PyTorch's loss and optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.bench.peers import Sizes
from glassformer.blocks.heads import IGNORED
from glassformer.data.batching import Batch


class Translator(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.width)
        self.position = nn.Embedding(sizes.max_length, sizes.width)
        self.transformer = nn.Transformer(
            sizes.width,
            sizes.heads,
            sizes.layers,
            sizes.layers,
            sizes.feed_forward,
            sizes.dropout,
            batch_first=True,
        )
        self.output = nn.Linear(sizes.width, sizes.vocabulary)
        self.output.weight = self.embedding.weight
        self.factor = math.sqrt(sizes.width)

    def _embed(self, tokens_BL: Tensor) -> Tensor:
        positions_L = torch.arange(tokens_BL.shape[1])
        return self.embedding(tokens_BL) * self.factor + self.position(positions_L)

    def forward(self, tokens_BL: Tensor, padding_BL: Tensor, target_BL: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(target_BL.shape[1]) == -math.inf
        hidden = self.transformer(
            self._embed(tokens_BL),
            self._embed(target_BL),
            tgt_mask=causal,
            src_key_padding_mask=padding_BL,
            memory_key_padding_mask=padding_BL,
            tgt_is_causal=True,
        )
        return self.output(hidden)


def trainer(sizes: Sizes, batches: Sequence[Batch]) -> Callable[[], None]:
    """A call that makes a step with each batch."""
    model = Translator(sizes).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def train() -> None:
        for batch in batches:
            tokens_BL, attention_mask_BL, target_BL = (
                batch.inputs.get(name) for name in ("tokens", "attention_mask", "target")
            )
            assert tokens_BL is not None
            assert target_BL is not None
            padding_BL = (
                torch.zeros_like(tokens_BL, dtype=torch.bool)
                if attention_mask_BL is None
                else ~attention_mask_BL
            )
            logits = model(tokens_BL, padding_BL, target_BL)
            loss = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORED)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    return train
