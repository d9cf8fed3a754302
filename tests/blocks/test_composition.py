"""Blocks composed by hand, as a library user does: defaults, parts handed in, and errors for wrong sizes."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import glassformer.blocks as blocks
from glassformer.blocks import (
    ALiBi,
    BlockCache,
    ClassHead,
    CrossAttention,
    DecoderBlock,
    DecoderStack,
    Embedding,
    EncoderBlock,
    EncoderStack,
    FeedForward,
    LayerCache,
    Learned,
    Mask,
    MeanPooling,
    Position,
    PositionContext,
    RegressionHead,
    RMSNorm,
    Rotary,
    SelfAttention,
    ShawRelative,
    Sinusoidal,
    SwiGLU,
    T5Relative,
    TokenEmbedding,
)
from glassformer.core.errors import ErrorDetail

WIDTH, HEADS, LENGTH = 64, 4, 6


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def vectors(length: int = LENGTH) -> torch.Tensor:
    return torch.randn(2, length, WIDTH)


def test_every_exported_block_has_a_usage_line() -> None:
    # Base classes and values show no call of their own.
    without_call = {"Head", "InputNet", "BlockCache", "LossOutput", "PositionContext", "Residual"}
    for name in blocks.__all__:
        exported = getattr(blocks, name)
        assert exported.__doc__, name
        if isinstance(exported, type) and name not in without_call:
            assert re.search(r"gf\.nn\.|cache=cache", exported.__doc__), name


def test_attention_without_positions_and_mask() -> None:
    x, attention = vectors(), SelfAttention(WIDTH, num_heads=HEADS)
    positions = PositionContext.arange(Position(), x)
    assert torch.equal(attention(x), attention(x, positions, Mask()))
    assert CrossAttention(WIDTH, num_heads=HEADS)(x, vectors(9)).shape == x.shape


@pytest.mark.parametrize(
    "position", [Rotary(WIDTH // HEADS), ALiBi(HEADS), T5Relative(HEADS), ShawRelative(WIDTH // HEADS)]
)
def test_a_position_of_its_own_equals_the_same_one_passed_in(position: Position) -> None:
    x, mask = vectors(), Mask(is_causal=True)
    attention = SelfAttention(WIDTH, HEADS, position=position)
    plain = SelfAttention(WIDTH, HEADS)
    plain.load_state_dict(attention.state_dict(), strict=False)
    assert torch.equal(attention(x, mask=mask), plain(x, PositionContext.arange(position, x), mask))
    assert not torch.equal(attention(x), plain(x))
    cache = LayerCache()
    pieces = [attention(part, mask=mask, cache=cache) for part in x.split([3, 1, 2], dim=1)]
    assert_close(torch.cat(pieces, 1), attention(x, mask=mask))


def test_an_encoder_block_has_sensible_defaults() -> None:
    x, block = vectors(), EncoderBlock(WIDTH, num_heads=HEADS)
    assert block(x).shape == x.shape
    assert isinstance(block.attention_residual.before, nn.LayerNorm)
    assert isinstance(block.attention_residual.after, nn.Identity)
    assert isinstance(block.feed_forward, FeedForward) and block.feed_forward.up.out_features == 4 * WIDTH


def test_an_encoder_block_takes_parts() -> None:
    feed_forward = SwiGLU(WIDTH, 96)
    block = EncoderBlock(
        WIDTH,
        num_heads=HEADS,
        norm=RMSNorm,
        norm_placement="post",
        position=Rotary(16),
        feed_forward=feed_forward,
        dropout=0.1,
    )
    assert block(vectors()).shape == (2, LENGTH, WIDTH)
    assert isinstance(block.feed_forward_residual.after, RMSNorm) and block.feed_forward is feed_forward
    assert isinstance(block.attention.position, Rotary)
    own = SelfAttention(WIDTH, 2, num_key_value_heads=1)
    assert EncoderBlock(WIDTH, attention=own).attention is own


def test_stacks_embedding_pooling_and_heads_make_a_model() -> None:
    tokens = torch.randint(50, (2, LENGTH))
    embedding = Embedding(TokenEmbedding(50, WIDTH), Sinusoidal(WIDTH), dropout=0.1)
    encoder = EncoderStack([EncoderBlock(WIDTH, num_heads=HEADS) for _ in range(2)], RMSNorm(WIDTH))
    decoder = DecoderStack([DecoderBlock(WIDTH, num_heads=HEADS) for _ in range(2)])
    memory = encoder(embedding(tokens))
    outputs = decoder(vectors(4), memory, memory_mask=Mask.of(attention_mask=tokens > 3))
    loss = ClassHead(WIDTH, 50).loss_from_hidden(outputs, torch.randint(50, (2, 4))).mean
    loss.backward()
    assert 2 < float(loss.detach()) < 6
    assert all(parameter.grad is not None for parameter in encoder.parameters())
    values = RegressionHead(WIDTH)(MeanPooling()(memory, tokens > 3))
    assert values.shape == (2, 1)


def test_a_decoder_block_is_causal_by_default_and_reads_a_cache() -> None:
    x, memory, block = vectors(), vectors(9), DecoderBlock(WIDTH, num_heads=HEADS)
    changed = x.clone()
    changed[:, -1] += 1
    assert torch.equal(block(x, memory)[:, :-1], block(changed, memory)[:, :-1])
    cache = BlockCache()
    cache.cross.extend(*block.project_memory(memory))
    steps = [block(x[:, step : step + 1], cache=cache) for step in range(LENGTH)]
    assert_close(torch.cat(steps, 1), block(x, memory))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: SelfAttention(64, num_heads=5), "5 heads do not divide hidden_dim 64"),
        (lambda: CrossAttention(64, 4, num_key_value_heads=3), "3 key/value heads do not divide num_heads 4"),
        (lambda: SelfAttention(64, 4, position=Rotary(8)), "built for head_dim 8, this attention has 16"),
        (lambda: SelfAttention(64, 4, position=ALiBi(8)), "built for num_heads 8, this attention has 4"),
        (lambda: SelfAttention(64, 4, position=Sinusoidal(64)), "acts on the embedding"),
        (lambda: SelfAttention(64, 4, position=Learned(64, 9)), "acts on the embedding"),
        (lambda: Rotary(7), "head width 7 is odd"),
        (lambda: EncoderBlock(64), "either num_heads or its attention"),
        (lambda: EncoderBlock(64, 4, attention=SelfAttention(64, 4)), "either num_heads or its attention"),
        (lambda: EncoderBlock(64, attention=SelfAttention(32, 4)), "width 32, the block has width 64"),
        (lambda: DecoderBlock(64, attention=SelfAttention(64, 4)), "either num_heads or its attention"),
        (lambda: SelfAttention(32, 4)(vectors()), "shape (batch, length, 32)"),
        (lambda: EncoderBlock(32, 4)(vectors()), "shape (batch, length, 32)"),
        (lambda: DecoderBlock(64, 4)(vectors()), "needs the encoder's output"),
    ],
)
def test_wrong_sizes_are_explained(build, words) -> None:
    with pytest.raises(ErrorDetail, match=re.escape(words)) as caught:
        build()
    assert caught.value.hint or caught.value.allowed
