"""Compare attention, blocks and stacks with PyTorch's modules and the same weights; fp32, 1e-5."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from glassformer.blocks.attention import CrossAttention, PositionContext, SelfAttention
from glassformer.blocks.feed_forward import FeedForward
from glassformer.blocks.layers import DecoderBlock, DecoderStack, EncoderBlock, EncoderStack, NormPlacement
from glassformer.blocks.masks import Mask
from glassformer.blocks.positions import Position

BATCH, LENGTH, MEMORY, WIDTH, HEADS, FEED_FORWARD = 3, 6, 5, 16, 4, 24
equal = partial(assert_close, atol=1e-5, rtol=1e-5)

REAL = torch.arange(LENGTH) < torch.tensor([[6], [4], [1]])
MEMORY_REAL = torch.arange(MEMORY) < torch.tensor([[2], [5], [3]])


@dataclass(frozen=True)
class Case:
    """One mask in both conventions: in PyTorch's modules, True means *may not attend*."""

    is_causal: bool = False
    attention_mask: Tensor | None = None

    @property
    def ours(self) -> Mask:
        return Mask.of(is_causal=self.is_causal, attention_mask=self.attention_mask)

    @property
    def attn_mask(self) -> Tensor | None:
        return torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1) if self.is_causal else None

    @property
    def key_padding_mask(self) -> Tensor | None:
        return None if self.attention_mask is None else ~self.attention_mask


CASES = {
    "no mask": Case(),
    "padding": Case(attention_mask=REAL),
    "causal": Case(is_causal=True),
    "both": Case(is_causal=True, attention_mask=REAL),
}
each_mask = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
each_placement = pytest.mark.parametrize("placement", ["pre", "post"])
each_activation = pytest.mark.parametrize("activation", [F.relu, F.gelu], ids=["relu", "gelu"])


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(5)


def numbered(length: int = LENGTH) -> PositionContext:
    positions = torch.arange(length)[None]
    return PositionContext(Position(), positions, positions)


def vectors(length: int = LENGTH) -> Tensor:
    return torch.randn(BATCH, length, WIDTH, requires_grad=True)


def shake(module: nn.Module) -> None:
    """Move biases and norms away from their initial zeros and ones, which would hide a mistake."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))


def compare(ours: Callable[[], Tensor], theirs: Callable[[], Tensor], *inputs: Tensor) -> None:
    """Compare outputs, and gradients of the inputs."""
    results = []
    for run in (ours, theirs):
        output = run()
        weights = torch.linspace(-1, 1, output.numel()).view_as(output)
        results.append((output, *torch.autograd.grad((output * weights).sum(), inputs)))
    for mine, yours in zip(*results, strict=True):
        equal(mine, yours)


def copy(ours: nn.Module, theirs: nn.Module) -> None:
    ours.load_state_dict(theirs.state_dict())


def copy_attention(ours: SelfAttention | CrossAttention, theirs: nn.MultiheadAttention) -> None:
    with torch.no_grad():
        weight, bias = theirs.in_proj_weight, theirs.in_proj_bias
        if isinstance(ours, SelfAttention):
            ours.query_key_value.weight.copy_(weight)
            ours.query_key_value.bias.copy_(bias)
        else:
            ours.query.weight.copy_(weight[:WIDTH])
            ours.query.bias.copy_(bias[:WIDTH])
            ours.key_value.weight.copy_(weight[WIDTH:])
            ours.key_value.bias.copy_(bias[WIDTH:])
    copy(ours.output, theirs.out_proj)


def copy_feed_forward(ours: nn.Module, theirs: nn.Module) -> None:
    assert isinstance(ours, FeedForward)
    copy(ours.up, theirs.get_submodule("linear1"))
    copy(ours.down, theirs.get_submodule("linear2"))


def encoder_block(
    theirs: nn.TransformerEncoderLayer, placement: NormPlacement, activation: Callable[[Tensor], Tensor]
) -> EncoderBlock:
    feed_forward = FeedForward(WIDTH, FEED_FORWARD, activation)
    ours = EncoderBlock(
        WIDTH,
        attention=SelfAttention(WIDTH, HEADS),
        feed_forward=feed_forward,
        norm_placement=placement,
    )
    copy_attention(ours.attention, theirs.self_attn)
    copy_feed_forward(ours.feed_forward, theirs)
    side = "before" if placement == "pre" else "after"
    copy(ours.attention_residual.get_submodule(side), theirs.norm1)
    copy(ours.feed_forward_residual.get_submodule(side), theirs.norm2)
    return ours


def decoder_block(
    theirs: nn.TransformerDecoderLayer, placement: NormPlacement, activation: Callable[[Tensor], Tensor]
) -> DecoderBlock:
    ours = DecoderBlock(
        WIDTH,
        attention=SelfAttention(WIDTH, HEADS),
        cross_attention=CrossAttention(WIDTH, HEADS),
        feed_forward=FeedForward(WIDTH, FEED_FORWARD, activation),
        norm_placement=placement,
    )
    copy_attention(ours.attention, theirs.self_attn)
    copy_attention(ours.cross_attention, theirs.multihead_attn)
    copy_feed_forward(ours.feed_forward, theirs)
    side = "before" if placement == "pre" else "after"
    copy(ours.attention_residual.get_submodule(side), theirs.norm1)
    copy(ours.cross_attention_residual.get_submodule(side), theirs.norm2)
    copy(ours.feed_forward_residual.get_submodule(side), theirs.norm3)
    return ours


@each_mask
def test_self_attention(case: Case) -> None:
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    shake(theirs)
    ours = SelfAttention(WIDTH, HEADS)
    copy_attention(ours, theirs)
    x = vectors()
    compare(
        lambda: ours(x, numbered(), case.ours),
        lambda: theirs(x, x, x, case.key_padding_mask, False, case.attn_mask)[0],
        x,
    )


@pytest.mark.parametrize("attention_mask", [None, MEMORY_REAL], ids=["no mask", "padding"])
def test_cross_attention(attention_mask: Tensor | None) -> None:
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    shake(theirs)
    ours = CrossAttention(WIDTH, HEADS)
    copy_attention(ours, theirs)
    x, memory = vectors(), vectors(MEMORY)
    compare(
        lambda: ours(x, memory, Mask.of(attention_mask=attention_mask)),
        lambda: theirs(x, memory, memory, None if attention_mask is None else ~attention_mask, False)[0],
        x,
        memory,
    )


@each_mask
@each_placement
@each_activation
def test_encoder_block(case: Case, placement: NormPlacement, activation: Callable[[Tensor], Tensor]) -> None:
    theirs = nn.TransformerEncoderLayer(
        WIDTH, HEADS, FEED_FORWARD, 0.0, activation, batch_first=True, norm_first=placement == "pre"
    )
    shake(theirs)
    ours = encoder_block(theirs, placement, activation)
    x = vectors()
    compare(
        lambda: ours(x, numbered(), case.ours),
        lambda: theirs(x, case.attn_mask, case.key_padding_mask),
        x,
    )


@each_mask
@each_placement
@each_activation
def test_decoder_block(case: Case, placement: NormPlacement, activation: Callable[[Tensor], Tensor]) -> None:
    theirs = nn.TransformerDecoderLayer(
        WIDTH, HEADS, FEED_FORWARD, 0.0, activation, batch_first=True, norm_first=placement == "pre"
    )
    shake(theirs)
    ours = decoder_block(theirs, placement, activation)
    x, memory = vectors(), vectors(MEMORY)
    compare(
        lambda: ours(x, memory, numbered(), case.ours, Mask.of(attention_mask=MEMORY_REAL)),
        lambda: theirs(x, memory, case.attn_mask, None, case.key_padding_mask, ~MEMORY_REAL),
        x,
        memory,
    )


@each_placement
@each_activation
def test_stacks(placement: NormPlacement, activation: Callable[[Tensor], Tensor]) -> None:
    """Compare with torch.nn.Transformer, which has a final norm for either norm placement."""
    theirs = nn.Transformer(
        WIDTH, HEADS, 2, 3, FEED_FORWARD, 0.0, activation, batch_first=True, norm_first=placement == "pre"
    )
    shake(theirs)
    encoder = EncoderStack(
        [encoder_block(layer, placement, activation) for layer in theirs.encoder.layers], nn.LayerNorm(WIDTH)
    )
    decoder = DecoderStack(
        [decoder_block(layer, placement, activation) for layer in theirs.decoder.layers], nn.LayerNorm(WIDTH)
    )
    copy(encoder.final_norm, theirs.encoder.norm)
    copy(decoder.final_norm, theirs.decoder.norm)
    source, target = vectors(MEMORY), vectors()
    attention_mask = Mask.of(attention_mask=MEMORY_REAL)
    both = CASES["both"]
    compare(
        lambda: decoder(
            target, encoder(source, numbered(MEMORY), attention_mask), numbered(), both.ours, attention_mask
        ),
        lambda: theirs(
            source,
            target,
            tgt_mask=both.attn_mask,
            src_key_padding_mask=~MEMORY_REAL,
            tgt_key_padding_mask=both.key_padding_mask,
            memory_key_padding_mask=~MEMORY_REAL,
        ),
        source,
        target,
    )


@each_mask
@pytest.mark.parametrize("groups", [1, 2])
def test_grouped_self_attention_is_attention_with_repeated_heads(case: Case, groups: int) -> None:
    """Compare with PyTorch's module, whose key and value projections repeat each group's rows."""
    ours = SelfAttention(WIDTH, HEADS, num_key_value_heads=groups)
    shake(ours)
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    with torch.no_grad():
        for name in ("weight", "bias"):
            q, k, v = ours.query_key_value.get_parameter(name).split(ours.parts)
            theirs.get_parameter(f"in_proj_{name}").copy_(
                torch.cat([q, repeat(k, groups), repeat(v, groups)])
            )
    copy(theirs.out_proj, ours.output)
    x = vectors()
    compare(
        lambda: ours(x, numbered(), case.ours),
        lambda: theirs(x, x, x, case.key_padding_mask, False, case.attn_mask)[0],
        x,
    )


@pytest.mark.parametrize("groups", [1, 2])
def test_grouped_cross_attention_is_attention_with_repeated_heads(groups: int) -> None:
    ours = CrossAttention(WIDTH, HEADS, num_key_value_heads=groups)
    shake(ours)
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    with torch.no_grad():
        for name in ("weight", "bias"):
            k, v = ours.key_value.get_parameter(name).chunk(2)
            query = ours.query.get_parameter(name)
            rows = torch.cat([query, repeat(k, groups), repeat(v, groups)])
            theirs.get_parameter(f"in_proj_{name}").copy_(rows)
    copy(theirs.out_proj, ours.output)
    x, memory = vectors(), vectors(MEMORY)
    compare(
        lambda: ours(x, memory, Mask.of(attention_mask=MEMORY_REAL)),
        lambda: theirs(x, memory, memory, ~MEMORY_REAL, False)[0],
        x,
        memory,
    )


def repeat(rows: Tensor, groups: int) -> Tensor:
    """Repeat the rows of each group for its query heads: 0 and 1 use group 0, 2 and 3 group 1, and so on."""
    by_group = rows.unflatten(0, (groups, WIDTH // HEADS))
    return torch.cat([by_group[head * groups // HEADS] for head in range(HEADS)])
