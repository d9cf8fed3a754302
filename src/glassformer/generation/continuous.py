"""Continuous batching: sequences of a language model join and leave a decoding batch between two steps.

A server decodes for many clients at once. Each sequence has its own prompt, length limit and way to choose
tokens, and none waits for the end of another. The tokens of a sequence do not depend on the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from glassformer.data.batching import generator, pad
from glassformer.generation.cpu import prepack_head
from glassformer.generation.strategies import DecodingConfig, Sample, SampleConfig, Scores, first_largest
from glassformer.models.base import DecodingState
from glassformer.models.transformer import CausalLanguageModel

Ending = Literal["end", "length", "failed", "cancelled"]
"""Reason why a sequence ended: the end token, the length limit, NaN logits, or a request to stop."""
SLACK = 1.5
"""Caches are compacted if they are longer than the longest sequence by this factor."""


@dataclass(eq=False)
class Continuation:
    """Prompt of a language model, with the tokens generated so far."""

    prompt: Sequence[int]
    max_tokens: int
    decoding: DecodingConfig
    """Greedy decoding, or sampling with a seed."""
    tokens: list[int] = field(default_factory=list)
    ending: Ending | None = None
    is_cancelled: bool = False
    """True to end the sequence before its next token. Any thread may set it."""
    _start: int = field(init=False, default=0)
    """Index of the first token of the context."""
    _random: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        seed = self.decoding.seed if isinstance(self.decoding, SampleConfig) else 0
        self._random = generator(seed, "sample", 0)

    def draw(self) -> float:
        """Return the next random number of this sequence, from 0 to 1."""
        return float(self._random.random())

    def window(self, max_length: int) -> list[int]:
        """Return the tokens that a model of this maximum length reads next.

        A full context continues from its second half.
        """
        known = [*self.prompt, *self.tokens]
        if self.tokens and len(known) - self._start >= max_length:
            self._start = len(known) - max_length // 2
        return known[self._start :]


class ContinuousBatch:
    """Batch of sequences that a causal language model continues together, one token per step."""

    def __init__(self, model: CausalLanguageModel, *, end: int | None, forbidden: Sequence[int] = ()) -> None:
        self.model = model
        self.max_length: int = model.task_type.max_length
        self.end = end
        self.forbidden = list(forbidden)
        self.rows: list[Continuation] = []
        self._lengths: list[int] = []
        """Number of tokens of each row in the caches."""
        self._state: DecodingState | None = None
        self._logits_BV: Tensor | None = None

    @torch.inference_mode()
    def join(self, rows: Sequence[Continuation]) -> None:
        """Read the prompts of these sequences, and let the sequences take part in the next step."""
        if not rows:
            return
        windows = [row.window(self.max_length) for row in rows]
        tokens_BL, mask_BL = pad([np.array(window) for window in windows])
        device = next(self.model.parameters()).device
        state = self.model.start(tokens=tokens_BL.to(device))
        if self.model.prepacked_head is None:
            state.project = prepack_head(self.model)
        mask_BL = None if mask_BL is None or bool(mask_BL.all()) else mask_BL.to(device)
        logits_BV = self.model.advance(state, tokens_BL.to(device), mask_BL).float()
        if self._state is None or self._logits_BV is None:
            self._state, self._logits_BV = state, logits_BV
        else:
            self._state.join(state)
            self._logits_BV = torch.cat([self._logits_BV, logits_BV])
        self.rows += rows
        self._lengths += map(len, windows)

    @torch.inference_mode()
    def step(self) -> list[Continuation]:
        """Generate one token per sequence. Return the sequences that ended; they have left the batch."""
        if self._logits_BV is None:
            return []
        self._choose(self._logits_BV)
        kept = [
            index
            for index, row in enumerate(self.rows)
            if row.ending is None and self._lengths[index] + 1 < self.max_length
        ]
        left = self._leave(kept)
        if self.rows:
            self._advance()
        self.join([row for row in left if row.ending is None])  # their context is full: read its second half
        return [row for row in left if row.ending is not None]

    def clear(self) -> list[Continuation]:
        """Remove all sequences, as after an error of the model, and return them."""
        removed, self.rows, self._lengths = self.rows, [], []
        self._state = self._logits_BV = None
        return removed

    def _choose(self, logits_BV: Tensor) -> None:
        """Append one token to each row, and set the ending of the rows that are done."""
        is_finite = logits_BV.amax(-1).isfinite().tolist()
        logits_BV[:, self.forbidden] = -torch.inf
        for index, token in _chosen(self.rows, logits_BV):
            row = self.rows[index]
            if row.is_cancelled:
                row.ending = "cancelled"
            elif not is_finite[index]:
                row.ending = "failed"
            elif token == self.end:
                row.ending = "end"
            else:
                row.tokens.append(token)
                row.ending = "length" if len(row.tokens) >= row.max_tokens else None

    def _leave(self, staying: list[int]) -> list[Continuation]:
        """Keep these rows, and return the others."""
        if len(staying) == len(self.rows):
            return []
        kept = set(staying)
        left = [row for index, row in enumerate(self.rows) if index not in kept]
        self.rows = [self.rows[index] for index in staying]
        self._lengths = [self._lengths[index] for index in staying]
        if not staying:
            self._state = self._logits_BV = None
        elif self._state is not None and self._logits_BV is not None:
            rows = torch.tensor(staying, device=self._logits_BV.device)
            self._state.select(rows)
            self._logits_BV = self._logits_BV[rows]
        return left

    def _advance(self) -> None:
        """Feed the last token of each row to the model."""
        assert self._state is not None
        if self._state.attention_mask_BM.shape[1] > SLACK * max(self._lengths):
            self._state.compact()
        tokens_B1 = torch.tensor([[row.tokens[-1]] for row in self.rows])
        device = self._state.attention_mask_BM.device
        self._logits_BV = self.model.advance(self._state, tokens_B1.to(device)).float()
        self._lengths = [length + 1 for length in self._lengths]


def _chosen(rows: Sequence[Continuation], logits_BV: Tensor) -> Iterable[tuple[int, int]]:
    """Yield the index of each row with its next token. Rows with the same options are chosen together."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, row in enumerate(rows):
        options = row.decoding
        key = (options.temperature, options.top_k, options.top_p) if isinstance(options, SampleConfig) else ()
        groups.setdefault(key, []).append(index)
    for indices in groups.values():
        group_BV = logits_BV if len(indices) == len(rows) else logits_BV[indices]
        options = rows[indices[0]].decoding
        if isinstance(options, SampleConfig):
            uniform_B1 = torch.tensor([[rows[index].draw()] for index in indices], dtype=torch.float64)
            strategy = Sample(options.temperature, options.top_k, options.top_p, uniform_B1)
            sums_B1 = torch.zeros_like(uniform_B1)
            scores = Scores(group_BV[:, None], sums_B1[..., None])
            _, token_B1 = strategy.choose(sums_B1, scores, torch.arange(len(indices)), 0)
            tokens = token_B1[:, 0].tolist()
        else:
            tokens = first_largest(group_BV).tolist()
        yield from zip(indices, tokens, strict=True)
