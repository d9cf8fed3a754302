"""Models with known logits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from glassformer.generation import Hypothesis
from glassformer.models.base import DecodingState

Logits = Callable[[int, tuple[int, ...]], list[float]]


@dataclass
class Histories(DecodingState):
    rows: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)

    def select(self, rows: Tensor) -> None:
        self.rows = [self.rows[row] for row in rows.tolist()]


class Scripted:
    """Model whose logits are a function of the input's single token and of all tokens so far.

    `lines` has the number of rows of each call to `advance`.
    """

    def __init__(self, logits: Logits) -> None:
        self.logits = logits
        self.lines: list[int] = []

    def start(self, *, tokens: Tensor) -> Histories:
        nothing_B0 = torch.empty(len(tokens), 0)
        return Histories([], nothing_B0, nothing_B0, rows=[(int(row[0]), ()) for row in tokens])

    def advance(self, state: Histories, tokens_BL: Tensor, attention_mask_BL: Tensor | None = None) -> Tensor:
        assert len(tokens_BL) == len(state.rows)
        attention_mask_BL = (
            torch.ones_like(tokens_BL, dtype=torch.bool) if attention_mask_BL is None else attention_mask_BL
        )
        self.lines.append(len(tokens_BL))
        state.rows = [
            (name, (*history, *new[attention_mask].tolist()))
            for (name, history), new, attention_mask in zip(
                state.rows, tokens_BL, attention_mask_BL, strict=True
            )
        ]
        return torch.tensor([self.logits(*row) for row in state.rows], dtype=torch.float64)


@pytest.fixture
def scripted() -> Callable[[Logits], Scripted]:
    return Scripted


@pytest.fixture
def random_table() -> Callable[[int, int], Logits]:
    """Random logits for each history; equal for the same seed and history."""

    def table(seed: int, vocabulary: int) -> Logits:
        known: dict[tuple[int, tuple[int, ...]], list[float]] = {}

        def logits(name: int, written: tuple[int, ...]) -> list[float]:
            if (name, written) not in known:
                random = torch.Generator().manual_seed(hash((seed, name, written)) % 2**31)
                known[name, written] = (2 * torch.randn(vocabulary, generator=random)).tolist()
            return known[name, written]

        return logits

    return table


@pytest.fixture
def token_of_half_the_rows() -> Callable[[list[list[Hypothesis]]], int]:
    """Token that occurs in about half of the rows: as the end token, it stops rows at various steps."""

    def choose(written: list[list[Hypothesis]]) -> int:
        counts = Counter(token for hypotheses in written for token in set(hypotheses[0].tokens))
        return min(counts, key=lambda token: (abs(2 * counts[token] - len(written)), token))

    return choose
