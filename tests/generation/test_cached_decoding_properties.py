"""Decoding in pieces with a cache equals one pass without it, for every position kind and any division.

The reference is the whole model on each row alone: no cache, no padding, no batch.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from glassformer.blocks.positions import PositionConfig
from glassformer.core.errors import ErrorDetail
from glassformer.core.registry import kinds
from glassformer.models.base import DecodingState, Model, SupportsGeneration
from glassformer.models.task_types import CausalLM, Seq2Seq, TaskType
from glassformer.models.transformer import TransformerConfig

VOCABULARY, LONGEST, SOURCE = 9, 16, 6
TASK_TYPES: list[TaskType] = [
    CausalLM(VOCABULARY, LONGEST),
    Seq2Seq(VOCABULARY, SOURCE, VOCABULARY, LONGEST, is_shared_vocabulary=True),
]
each_task_type = pytest.mark.parametrize(
    "task_type", TASK_TYPES, ids=lambda task_type: type(task_type).__name__
)
each_position = pytest.mark.parametrize("position", sorted(kinds(PositionConfig)))
each_placement = pytest.mark.parametrize("placement", ["pre", "post"])

# A chunk: number of tokens that each row appends, then the rows that continue (None: all).
chunks = st.lists(
    st.tuples(
        st.lists(st.integers(1, 4), min_size=4, max_size=4),
        st.none() | st.lists(st.integers(0, 3), min_size=1, max_size=4),
    ),
    min_size=1,
    max_size=4,
)


class Reader:
    """Model with a decoding state, and the tokens of each row as lists."""

    def __init__(self, model: Model, seed: int) -> None:
        assert isinstance(model, SupportsGeneration)
        self.model = model
        self.random = torch.Generator().manual_seed(seed)
        self.rows: list[list[int]] = [[] for _ in range(4)]
        self.sources = [self.draw(length) for length in (SOURCE, 1, 3, SOURCE)]
        self.state: DecodingState = model.start(**self.inputs())

    def draw(self, length: int) -> list[int]:
        return torch.randint(VOCABULARY, (length,), generator=self.random).tolist()

    def inputs(self) -> dict[str, Tensor | None]:
        tokens = torch.tensor([row + self.draw(SOURCE - len(row)) for row in self.sources])
        attention_mask = torch.arange(SOURCE) < torch.tensor([[len(row)] for row in self.sources])
        return {"tokens": tokens, "mask": attention_mask}

    def read(self, lengths: list[int]) -> Tensor:
        """Append random tokens of these lengths to each row; padding is arbitrary."""
        new = [self.draw(length) for length in lengths]
        longest = max(lengths)
        tokens = torch.tensor([row + self.draw(longest - len(row)) for row in new])
        attention_mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
        self.rows = [old + row for old, row in zip(self.rows, new, strict=True)]
        assert isinstance(self.model, SupportsGeneration)
        return self.model.advance(self.state, tokens, None if bool(attention_mask.all()) else attention_mask)

    def select(self, rows: list[int]) -> None:
        self.state.select(torch.tensor(rows))
        self.rows = [list(self.rows[row]) for row in rows]
        self.sources = [self.sources[row] for row in rows]

    def expected(self) -> Tensor:
        logits = []
        for row, source in zip(self.rows, self.sources, strict=True):
            if isinstance(self.model.task_type, Seq2Seq):
                whole = self.model(tokens=torch.tensor([source]), target=torch.tensor([row]))
            else:
                whole = self.model(tokens=torch.tensor([row]))
            logits.append(whole[0, -1])
        return torch.stack(logits)


@cache
def build(task_type: TaskType, position: str, placement: str = "pre") -> Model:
    torch.manual_seed(2)
    tree = {
        "num_heads": 4,
        "num_key_value_heads": 2,
        "hidden_dim": 16,
        "feed_forward_dim": 24,
        "tied_output": True,
    }
    config = TransformerConfig.model_validate({**tree, "position": position, "norm_placement": placement})
    return config.build(task_type).double().eval()


@each_task_type
@each_position
@each_placement
@torch.no_grad()
@given(seed=st.integers(0, 2**32 - 1), chunks=chunks)
def test_cached_equals_full(
    task_type: TaskType,
    position: str,
    placement: str,
    seed: int,
    chunks: list[tuple[list[int], list[int] | None]],
) -> None:
    reader = Reader(build(task_type, position, placement), seed)
    for lengths, chosen in chunks:
        logits = reader.read(lengths[: len(reader.rows)])
        assert_close(logits, reader.expected(), atol=1e-9, rtol=1e-9)
        if chosen is not None:
            reader.select([row % len(reader.rows) for row in chosen])


@each_task_type
@each_position
@torch.no_grad()
def test_token_by_token_after_a_ragged_prompt(task_type: TaskType, position: str) -> None:
    reader = Reader(build(task_type, position), seed=0)
    reader.read([5, 1, 3, 2])
    for _ in range(6):
        assert_close(reader.read([1, 1, 1, 1]), reader.expected(), atol=1e-9, rtol=1e-9)


@each_task_type
@torch.no_grad()
def test_rows_that_are_chosen_before_anything_is_read(task_type: TaskType) -> None:
    """One row becomes several at the start, as in beam search."""
    reader = Reader(build(task_type, "rotary"), seed=0)
    reader.select([2, 2, 0])
    assert_close(reader.read([2, 1, 3]), reader.expected(), atol=1e-9, rtol=1e-9)


@each_task_type
@torch.no_grad()
def test_padding_does_not_use_up_learned_positions(task_type: TaskType) -> None:
    reader = Reader(build(task_type, "learned"), seed=0)
    reader.read([LONGEST - 1, 2, 3, 4])
    # Three positions of padding after the last real token: the real tokens fit.
    assert_close(reader.read([1, 4, 1, 2]), reader.expected(), atol=1e-9, rtol=1e-9)
    with pytest.raises(ErrorDetail, match=f"end at length {LONGEST}, this sequence needs {LONGEST + 1}"):
        reader.read([1, 1, 1, 1])
