"""Decoding without a key/value cache: a slow reference to test cached decoding against."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from glassformer.models.base import DecodingState, Model
from glassformer.models.task_types import Seq2Seq


@dataclass
class WholeSequences(DecodingState):
    """Decoding state that holds all inputs and all tokens so far, and no caches."""

    inputs: dict[str, Tensor | None] = field(kw_only=True)
    tokens_BM: Tensor = field(kw_only=True)

    def select(self, rows: Tensor) -> None:
        super().select(rows)
        self.inputs = {name: None if x is None else x[rows] for name, x in self.inputs.items()}
        self.tokens_BM = self.tokens_BM[rows]


class NoCache(nn.Module):
    """Wrapper that runs a model over the whole sequence at each decoding step, as in training.

    generate(NoCache(model), prompt=tokens, end=END)
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.task_type = model.task_type

    def start(self, **inputs: Tensor | None) -> WholeSequences:
        """Return a state that stores the inputs."""
        tokens = inputs["tokens"]
        assert tokens is not None
        nothing_B0 = tokens.new_empty(len(tokens), 0)
        return WholeSequences([], nothing_B0, nothing_B0.bool(), inputs=inputs, tokens_BM=nothing_B0)

    def advance(
        self, state: DecodingState, tokens_BL: Tensor, attention_mask_BL: Tensor | None = None
    ) -> Tensor:
        """Append tokens, run the model on whole rows, and return the logits after each row's last token."""
        assert isinstance(state, WholeSequences)
        state.append(tokens_BL, attention_mask_BL)
        state.tokens_BM = torch.cat([state.tokens_BM, tokens_BL], 1)
        # Move the padding of all steps to the right.
        lengths_B = state.attention_mask_BM.sum(1)
        order_BM = state.attention_mask_BM.byte().argsort(dim=1, descending=True, stable=True)
        sequence_BL = state.tokens_BM.gather(1, order_BM)[:, : int(lengths_B.max())]
        if isinstance(self.task_type, Seq2Seq):
            logits_BLV = self.model(**state.inputs, target=sequence_BL)
        else:
            logits_BLV = self.model(sequence_BL)
        return logits_BLV[torch.arange(len(logits_BLV), device=logits_BLV.device), lengths_B - 1]
