"""Properties for any tokens: no leak of the future, no effect of padding, order only through positions."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from glassformer.blocks.heads import PoolingConfig
from glassformer.blocks.positions import PositionConfig
from glassformer.core.registry import kinds
from glassformer.models.base import Model
from glassformer.models.task_types import (
    CausalLM,
    MaskedLM,
    Seq2Seq,
    SequenceClassification,
    TaskType,
    TokenClassification,
)
from glassformer.models.transformer import TransformerConfig

VOCABULARY, LONGEST = 11, 12
POSITIONS = sorted(kinds(PositionConfig))

each_position = pytest.mark.parametrize("position", POSITIONS)
seeds = st.integers(0, 2**32 - 1)
# In fp64, rounding is far below this tolerance and the effect of a leak far above it.
NOTHING = {"atol": 1e-9, "rtol": 1e-9}


@cache
def build(task_type: TaskType, position: str, **options: Any) -> Model:
    torch.manual_seed(1)
    tree = {"num_heads": 4, "num_key_value_heads": 2, "hidden_dim": 16, "feed_forward_dim": 24}
    config = TransformerConfig.model_validate({**tree, "position": position, **options})
    return config.build(task_type).double().eval()


def draw_tokens(seed: int, *shape: int) -> Tensor:
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def changed_positions(before: Tensor, after: Tensor) -> Tensor:
    return (before - after).abs().amax(-1) > 1e-9


@each_position
@pytest.mark.parametrize("placement", ["pre", "post"])
@given(seed=seeds, length=st.integers(2, LONGEST), data=st.data())
def test_the_future_cannot_change_the_past(
    position: str, placement: str, seed: int, length: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(1, length - 1))
    tokens = draw_tokens(seed, 1, length)
    other = tokens.clone()
    other[:, start:] = (
        tokens[:, start:] + 1 + draw_tokens(seed + 1, 1, length - start) % (VOCABULARY - 1)
    ) % VOCABULARY
    source = draw_tokens(seed + 2, 1, 5)
    for task_type, options, fixed, name in (
        (CausalLM(VOCABULARY, LONGEST), {}, {}, "tokens"),
        (TokenClassification(VOCABULARY, LONGEST, 3), {"is_causal": True}, {}, "tokens"),
        (Seq2Seq(VOCABULARY, 5, VOCABULARY, LONGEST), {}, {"tokens": source}, "target"),
    ):
        model = build(task_type, position, norm_placement=placement, **options)
        changed = changed_positions(model(**fixed, **{name: tokens}), model(**fixed, **{name: other}))[0]
        assert not changed[:start].any()
        assert changed[start:].all()


@each_position
@given(seed=seeds, length=st.integers(1, LONGEST - 1), more=st.integers(1, LONGEST))
def test_padding_cannot_change_real_positions(position: str, seed: int, length: int, more: int) -> None:
    """Compare a row alone with the same row in a longer batch, followed by any tokens."""
    longest = min(length + more, LONGEST)
    batch = draw_tokens(seed, 3, longest)
    attention_mask = torch.arange(longest) < torch.tensor([[longest], [length], [longest]])
    alone = batch[1:2, :length]
    target = draw_tokens(seed + 1, 3, 4)
    for task_type in (
        TokenClassification(VOCABULARY, LONGEST, 3),
        CausalLM(VOCABULARY, LONGEST),
        MaskedLM(VOCABULARY, LONGEST),
    ):
        model = build(task_type, position)
        assert_close(model(tokens=batch, mask=attention_mask)[1:2, :length], model(tokens=alone), **NOTHING)
    model = build(Seq2Seq(VOCABULARY, LONGEST, VOCABULARY, 4), position)
    padded = model(tokens=batch, mask=attention_mask, target=target)[1:2]
    assert_close(padded, model(tokens=alone, target=target[1:2]), **NOTHING)


@pytest.mark.parametrize("pooling", sorted(kinds(PoolingConfig)))
@pytest.mark.parametrize("is_causal", [False, True])
@given(seed=seeds, length=st.integers(1, LONGEST - 1))
def test_padding_cannot_change_a_pooled_output(pooling: str, is_causal: bool, seed: int, length: int) -> None:
    model = build(
        SequenceClassification(VOCABULARY, LONGEST, 3), "sinusoidal", pooling=pooling, is_causal=is_causal
    )
    batch = draw_tokens(seed, 2, LONGEST)
    attention_mask = torch.arange(LONGEST) < torch.tensor([[LONGEST], [length]])
    assert_close(model(tokens=batch, mask=attention_mask)[1:], model(tokens=batch[1:, :length]), **NOTHING)


@pytest.mark.parametrize("pooling", sorted(kinds(PoolingConfig)))
def test_an_empty_sequence_in_the_batch_stays_finite(pooling: str) -> None:
    model = build(SequenceClassification(VOCABULARY, LONGEST, 3), "alibi", pooling=pooling)
    tokens = draw_tokens(0, 2, 5)
    attention_mask = torch.tensor([[True] * 5, [False] * 5])
    outputs = model(tokens=tokens, mask=attention_mask)
    assert outputs.isfinite().all() and outputs.abs().max() < 100
    outputs.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@given(seed=seeds, length=st.integers(2, LONGEST))
def test_without_positions_an_encoder_permutes_with_its_input(seed: int, length: int) -> None:
    tokens = draw_tokens(seed, 2, length)
    order = torch.randperm(length, generator=torch.Generator().manual_seed(seed))
    for task_type in (TokenClassification(VOCABULARY, LONGEST, 3), MaskedLM(VOCABULARY, LONGEST)):
        model = build(task_type, "none")
        assert_close(model(tokens=tokens[:, order]), model(tokens=tokens)[:, order], **NOTHING)
    for pooling in ("mean", "max", "attention"):
        model = build(SequenceClassification(VOCABULARY, LONGEST, 3), "none", pooling=pooling)
        assert_close(model(tokens=tokens[:, order]), model(tokens=tokens), **NOTHING)


@pytest.mark.parametrize("position", [kind for kind in POSITIONS if kind != "none"])
def test_with_positions_it_does_not(position: str) -> None:
    model = build(MaskedLM(VOCABULARY, LONGEST), position)
    tokens = torch.arange(8)[None]
    order = torch.tensor([2, 0, 1, 3, 7, 6, 5, 4])
    assert changed_positions(model(tokens=tokens[:, order]), model(tokens=tokens)[:, order]).all()
