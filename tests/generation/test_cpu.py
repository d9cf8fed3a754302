"""Fast paths of decoding equal the plain ones: prepacked layers, groups by length, beams in shared rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from glassformer.blocks import reference
from glassformer.blocks.attention import LayerCache, MultiHeadAttention, fused_kernel, select_rows
from glassformer.blocks.heads import ClassHead
from glassformer.generation import BeamConfig, generate
from glassformer.generation.cpu import prepack, prepack_head, prepack_linear, short_weights
from glassformer.models.base import Model, SupportsBeams
from glassformer.models.seq2seq import EncoderDecoder, group_by_length
from glassformer.models.task_types import CausalLM, Seq2Seq, TaskType
from glassformer.models.transformer import TransformerConfig

BEGIN, END, VOCABULARY = 0, 1, 37
TASK_TYPES: list[TaskType] = [CausalLM(VOCABULARY, 20), Seq2Seq(VOCABULARY, 9, VOCABULARY, 20)]


def build(task_type: TaskType, **options: Any) -> Any:
    torch.manual_seed(0)
    config = TransformerConfig(num_layers=2, num_heads=2, hidden_dim=16, feed_forward_dim=24, **options)
    return config.build(task_type).double().eval()


@pytest.mark.parametrize("outputs", [3, 16, 17, 31, 32, 100])
@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_prepacked_head_gives_the_same_logits(outputs: int, is_tied: bool, bias: bool) -> None:
    torch.manual_seed(outputs)
    head = ClassHead(8, outputs, nn.ReLU(), is_tied, bias).double()
    tied_VD = torch.randn(outputs, 8, dtype=torch.float64) if is_tied else None
    hidden = torch.randn(2, 3, 8, dtype=torch.float64)
    model = Model(CausalLM(outputs, 9))
    model.head, model.tied_weight = head, lambda: tied_VD  # type: ignore[method-assign]
    assert_close(prepack_head(model)(hidden), head(hidden, tied_VD), atol=1e-12, rtol=0)


@pytest.mark.parametrize("sizes", [(5, 9), (9, 5), (7, 7)])
@pytest.mark.parametrize("bias", [False, True])
def test_a_prepacked_product_is_the_linear_map(sizes: tuple[int, int], bias: bool) -> None:
    layer = nn.Linear(*sizes, bias=bias).double()
    product = prepack_linear(layer.weight.data, layer.bias.data if bias else None)
    for shape in ((3,), (2, 3), (2, 3, 1), (0,)):
        x = torch.randn(*shape, sizes[0], dtype=torch.float64)
        assert_close(product(x), layer(x), atol=1e-12, rtol=0)


@pytest.mark.parametrize("task_type", TASK_TYPES, ids=["language model", "encoder-decoder"])
@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("feed_forward", ["relu", "gelu", "swiglu"])
@pytest.mark.parametrize("norm", ["layer", "rms", "none"])
def test_a_prepacked_model_gives_the_same_logits_and_is_restored_afterwards(
    task_type: TaskType, placement: str, feed_forward: str, norm: str
) -> None:
    model = build(
        task_type,
        norm_placement=placement,
        feed_forward={"kind": feed_forward},
        norm={"kind": norm},
        dropout=0.5,
    )
    tokens_BL = torch.randint(2, VOCABULARY, (3, 6))
    inputs = {"tokens": tokens_BL} | ({"target": tokens_BL} if isinstance(task_type, Seq2Seq) else {})
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    with torch.no_grad():
        expected = model(**inputs)
        with prepack(model):
            assert any(set(vars(module)) != before[name] for name, module in model.named_modules())
            assert_close(model(**inputs), expected, atol=1e-10, rtol=0)
        assert torch.equal(model(**inputs), expected)
    assert {name: set(vars(module)) for name, module in model.named_modules()} == before


@pytest.mark.parametrize("keys", [1, 2, 9, 15, 16])
def test_attention_weights_of_few_keys_are_a_softmax(keys: int) -> None:
    torch.manual_seed(keys)
    scores = 50 * torch.randn(7, 2, 3, keys, dtype=torch.float64)
    mask = torch.rand(7, 1, 1, keys) < 0.6
    mask[0] = False
    for allowed in (None, mask):
        assert_close(short_weights(scores, allowed), reference.weights(scores, allowed), atol=1e-12, rtol=0)
    scores[1, 0, 0, 0] = torch.nan
    assert short_weights(scores)[1, 0, 0].isnan().all()


def test_an_input_network_that_reads_its_weight_is_not_prepacked() -> None:
    model = build(TASK_TYPES[0], input={"kind": "one-hot"})
    tokens_BL = torch.randint(2, VOCABULARY, (3, 6))
    with torch.no_grad():
        expected = model(tokens_BL)
        with prepack(model):
            assert_close(model(tokens_BL), expected, atol=1e-10, rtol=0)


def test_a_head_with_its_own_forward_keeps_it() -> None:
    class Doubled(ClassHead):
        def forward(self, hidden: Tensor, tied_VD: Tensor | None = None) -> Tensor:
            return 2 * super().forward(hidden, tied_VD)

    head, hidden = Doubled(8, 19), torch.randn(3, 8)
    model = Model(CausalLM(19, 9))
    model.head = head
    assert torch.equal(prepack_head(model)(hidden), head(hidden))


@given(lengths=st.lists(st.integers(0, 30), max_size=40), tokens=st.integers(1, 100))
def test_groups_by_length_hold_every_row_once(lengths: list[int], tokens: int) -> None:
    groups = list(group_by_length(lengths, tokens))
    assert sorted(row for rows, _ in groups for row in rows) == list(range(len(lengths)))
    for rows, longest in groups:
        assert longest == max(1, *(lengths[row] for row in rows))
        assert len(rows) == 1 or len(rows) * longest <= tokens
    longests = [longest for _, longest in groups]
    assert longests == sorted(longests)


def test_a_source_read_in_groups_is_as_if_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers groups of one row, of several lengths and of equal lengths, and gaps in the mask."""
    monkeypatch.setattr("glassformer.models.seq2seq.ENCODER_TOKENS", 20)
    model = build(TASK_TYPES[1], position="rotary")  # absolute positions need a mask without gaps
    assert isinstance(model, EncoderDecoder)
    tokens_BM = torch.randint(2, VOCABULARY, (7, 9))
    attention_mask_BM = torch.arange(9) < torch.tensor([9, 2, 4, 4, 1, 9, 6])[:, None]
    attention_mask_BM[6, 2] = False
    begin_B1 = torch.full((7, 1), BEGIN)
    with torch.no_grad():
        logits_BV = model.advance(model.start(tokens=tokens_BM, mask=attention_mask_BM), begin_B1)
        expected_BV = model(tokens=tokens_BM, mask=attention_mask_BM, target=begin_B1)[:, -1]
    assert_close(logits_BV, expected_BV, atol=1e-9, rtol=0)


@given(data=st.data(), rows=st.integers(1, 9), length=st.integers(0, 5))
def test_rows_of_a_cache_are_selected(data: st.DataObject, rows: int, length: int) -> None:
    chosen = data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=12))
    if data.draw(st.booleans()):  # all but one keep their index
        one = chosen[0]
        chosen = list(range(data.draw(st.integers(1, rows))))
        chosen[data.draw(st.sampled_from(chosen))] = one
    x_BHMK = torch.randn(rows, 2, 5, 3)
    expected = x_BHMK[chosen][:, :, :length].clone()
    assert torch.equal(select_rows(x_BHMK, torch.tensor(chosen), length)[:, :, :length], expected)


def test_a_cache_that_is_filled_in_parts_is_zero_elsewhere() -> None:
    cache, keys = LayerCache(), torch.randn(2, 1, 3, 4)
    cache.fill(torch.tensor([2, 0]), keys, -keys, batch=3, length=5)
    k_BHMK, v_BHMK = cache.get()
    assert torch.equal(k_BHMK[[2, 0], :, :3], keys) and torch.equal(v_BHMK, -k_BHMK)
    assert not k_BHMK[1].any() and not k_BHMK[:, :, 3:].any()


@pytest.mark.parametrize("task_type", TASK_TYPES, ids=lambda task_type: type(task_type).__name__)
def test_beams_in_a_shared_row_equal_beams_in_rows_of_their_own(task_type: TaskType) -> None:
    """With a custom kernel, here the same function, each beam has a row of its own."""
    model = build(task_type)
    assert isinstance(model, SupportsBeams)
    tokens_BM = torch.randint(2, VOCABULARY, (8, 9))
    prompt = {"prompt": tokens_BM} if isinstance(task_type, CausalLM) else {"inputs": {"tokens": tokens_BM}}
    options: dict[str, Any] = {**prompt, "begin": BEGIN, "end": END, "max_length": 11}
    strategy = BeamConfig(size=5, n_best=5)
    assert model.supports_beams
    shared = generate(model, **options, strategy=strategy)
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            module.kernel = lambda *inputs: fused_kernel(*inputs)
    assert not model.supports_beams
    alone = generate(model, **options, strategy=strategy)
    for found, expected in zip(shared, alone, strict=True):
        assert [hypothesis.tokens for hypothesis in found] == [hypothesis.tokens for hypothesis in expected]
        for one, other in zip(found, expected, strict=True):
            assert one.log_probabilities == pytest.approx(other.log_probabilities, abs=1e-9)
