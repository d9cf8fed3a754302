"""Compare positions with the implementations of T5, BLOOM, Llama and Marian, and with Shaw's formula."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.models.t5.modeling_t5 import T5Attention

from glassformer.blocks.positions import ALiBi, Rotary, ShawRelative, Sinusoidal, T5Relative, distances

LENGTH = 400


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (8, 20)])
def test_t5_buckets(num_buckets: int, max_distance: int, is_causal: bool) -> None:
    offsets = torch.arange(-LENGTH, LENGTH)[None, None]
    ours = T5Relative(2, num_buckets, max_distance, is_causal).bucket(offsets)
    theirs = T5Attention._relative_position_bucket(offsets, not is_causal, num_buckets, max_distance)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("num_heads", [1, 2, 3, 6, 8, 12])
def test_alibi_slopes(num_heads: int) -> None:
    theirs = build_alibi_tensor(torch.ones(1, 2), num_heads, torch.float32)  # slope × position
    assert_close(ALiBi(num_heads).slopes_H, theirs[:, 0, 1])


def test_rotary() -> None:
    head_dim, base = 8, 500.0
    q, k = torch.randn(2, 2, 3, LENGTH, head_dim, dtype=torch.float64)
    rotary = Rotary(head_dim, base)
    positions = torch.arange(LENGTH)[None]
    angles = positions[..., None] * base ** (-torch.arange(0, head_dim, 2) / head_dim)
    doubled = torch.cat([angles, angles], -1)
    theirs = apply_rotary_pos_emb(q, k, doubled.cos(), doubled.sin())
    for x, expected in zip((q, k), theirs, strict=True):
        assert_close(rotary.rotate(x, positions), expected, atol=1e-5, rtol=1e-5)


def test_sinusoidal_is_marians_table_with_pairs_side_by_side() -> None:
    width = 10
    theirs = MarianSinusoidalPositionalEmbedding(LENGTH, width).create_weight()
    ours = Sinusoidal(width, 10000.0, LENGTH).embed(
        torch.zeros(1, LENGTH, width), torch.arange(LENGTH)[None]
    )[0]
    assert_close(torch.cat([ours[:, 0::2], ours[:, 1::2]], -1), theirs, atol=1e-6, rtol=0)


def test_sinusoidal_continues_beyond_its_table() -> None:
    short, long = Sinusoidal(8, 100.0, 5), Sinusoidal(8, 100.0, 50)
    positions = torch.arange(50)[None]
    assert torch.equal(
        short.embed(torch.zeros(1, 50, 8), positions), long.embed(torch.zeros(1, 50, 8), positions)
    )


def test_relative_is_shaws_formula() -> None:
    """e_ij = q_i · (k_j + a_ij) / √K, where a_ij belongs to the clipped distance j − i."""
    length, width, limit = 7, 4, 3
    relative = ShawRelative(width, limit)
    q, k = torch.randn(2, 1, 1, length, width)
    positions = torch.arange(length)[None]
    bias = relative.score_bias(q, positions, positions)
    assert bias is not None
    scores = q @ k.mT / math.sqrt(width) + bias
    for i in range(length):
        for j in range(length):
            vector = relative.table.weight[min(max(j - i, -limit), limit) + limit]
            expected = q[0, 0, i] @ (k[0, 0, j] + vector) / math.sqrt(width)
            assert_close(scores[0, 0, i, j], expected)


def test_distances_are_negative_for_the_past() -> None:
    assert distances(torch.tensor([[5]]), torch.tensor([[3, 5, 9]])).tolist() == [[[-2, 0, 4]]]
