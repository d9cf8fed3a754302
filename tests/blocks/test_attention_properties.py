"""Properties for any tensors: masks hide exactly the disallowed keys, and relative positions are relative."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from glassformer.blocks.attention import explicit_scores, explicit_weights, fused_kernel
from glassformer.blocks.masks import Mask, causal, padding
from glassformer.blocks.positions import Position, PositionConfig
from glassformer.core.registry import kinds

seeds = st.integers(0, 2**32 - 1)
lengths = st.integers(1, 9)


def randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(seed=seeds, queries=lengths, keys=lengths, is_causal=st.booleans(), density=st.floats(0, 1))
def test_true_means_may_attend(seed: int, queries: int, keys: int, is_causal: bool, density: float) -> None:
    q, k, v = randn(seed, 2, 2, queries, 4), randn(seed + 1, 2, 2, keys, 4), randn(seed + 2, 2, 2, keys, 4)
    allowed = torch.rand(2, 1, queries, keys, generator=torch.Generator().manual_seed(seed)) < density
    mask = Mask(is_causal, allowed)
    seen = (allowed & causal(queries, keys) if is_causal else allowed).expand(2, 2, -1, -1)

    weights = explicit_weights(q, k, mask, None)
    assert torch.equal(weights > 0, seen)
    assert_close(weights.sum(-1), seen.any(-1).double())
    output = fused_kernel(q, k, v, mask, None, 0.0)
    assert_close(output, weights @ v)

    # A change of one key changes exactly the queries that may attend to it.
    for key in range(keys):
        moved_k, moved_v = k.clone(), v.clone()
        moved_k[:, :, key] += 3.0
        moved_v[:, :, key] -= 5.0
        change = (fused_kernel(q, moved_k, moved_v, mask, None, 0.0) - output).abs().amax(-1)
        assert torch.equal(change > 1e-9, seen[..., key])


@given(queries=lengths, keys=lengths)
def test_causal_lets_the_last_query_see_everything(queries: int, keys: int) -> None:
    mask = causal(queries, keys)
    for query in range(queries):
        for key in range(keys):
            assert mask[query, key] == (key <= query + keys - queries)


@given(real_lengths=st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_padding_is_seen_by_nobody(real_lengths: list[int]) -> None:
    attention_mask = torch.arange(5) < torch.tensor(real_lengths)[:, None]
    mask = padding(attention_mask).expand(-1, 2, 3, -1)
    assert mask.sum(-1).tolist() == [[[length] * 3] * 2 for length in real_lengths]


# ---------------------------------------------------------------- relative positions

RELATIVE = ["alibi", "relative", "rotary", "t5"]


def scores(position: Position, seed: int, query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """Scores of random queries and keys with a position module."""
    q = position.rotate(randn(seed, 2, 4, query_positions.shape[1], 8), query_positions)
    k = position.rotate(randn(seed + 1, 2, 4, key_positions.shape[1], 8), key_positions)
    return explicit_scores(q, k, position.score_bias(q, query_positions, key_positions))


def built(kind: str, is_causal: bool) -> Position:
    torch.manual_seed(0)
    config = kinds(PositionConfig)[kind].model_validate({"kind": kind})
    assert isinstance(config, PositionConfig)
    return config.build(hidden_dim=32, num_heads=4, max_length=64, is_causal=is_causal).double()


@pytest.mark.parametrize("kind", RELATIVE)
@given(seed=seeds, shift=st.integers(1, 500), is_causal=st.booleans())
def test_only_the_offset_counts(kind: str, seed: int, shift: int, is_causal: bool) -> None:
    position = built(kind, is_causal)
    # Cached decoding has fewer queries than keys, and other positions in each row.
    query_positions, key_positions = (
        torch.tensor([[3, 4], [7, 8]]),
        torch.tensor([[0, 1, 2, 3, 4], [1, 5, 6, 7, 8]]),
    )
    here = scores(position, seed, query_positions, key_positions)
    there = scores(position, seed, query_positions + shift, key_positions + shift)
    assert_close(here, there, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("kind", RELATIVE)
@given(seed=seeds)
def test_the_offset_does_count(kind: str, seed: int) -> None:
    position = built(kind, is_causal=True)
    key_positions = torch.arange(6)[None].expand(2, -1)
    near = scores(position, seed, torch.tensor([[5], [5]]), key_positions)
    far = scores(position, seed, torch.tensor([[9], [9]]), key_positions)
    assert (near - far).abs().max() > 1e-3
