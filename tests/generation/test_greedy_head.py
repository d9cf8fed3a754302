"""The head of greedy decoding finds the same tokens as all logits in float32 do, and its bound holds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.core.errors import ErrorDetail
from glassformer.generation import GreedyConfig, generate, greedy_head, int8
from glassformer.generation.greedy_head import BROKEN, GreedyHead
from glassformer.generation.int8 import Int8Head, quantise
from glassformer.generation.predict import decoding_mode
from glassformer.models.task_types import Seq2Seq
from glassformer.models.transformer import TransformerConfig

VOCABULARY, WIDTH = 1003, 96
KINDS = ["plain", "close", "equal", "outliers", "one large weight"]


def weights(kind: str) -> Tensor:
    torch.manual_seed(1)
    weight_VD = torch.randn(VOCABULARY, WIDTH)
    if kind == "close":  # neighbours differ by less than int8 can show
        weight_VD[1::2] = weight_VD[:-1:2] + 1e-4 * torch.randn(VOCABULARY // 2, WIDTH)
    if kind == "equal":
        weight_VD[1::2] = weight_VD[:-1:2]
    if kind == "outliers":
        weight_VD *= 10.0 ** torch.randint(-3, 2, (VOCABULARY, 1))
    if kind == "one large weight":  # rounds all other weights of its rows to zero
        weight_VD[::3, 5] = 1e3
    return weight_VD


def hidden(rows: int = 150) -> Tensor:
    torch.manual_seed(2)
    return F.layer_norm(torch.randn(rows, WIDTH), [WIDTH]) * 10.0 ** torch.randint(-2, 3, (rows, 1))


def build(
    weight_VD: Tensor, bias_V: Tensor | None = None, limit: int | None = None, is_exact: bool = True
) -> GreedyHead:
    scores = Int8Head(weight_VD, bias_V, limit or int8.activation_limit())
    return GreedyHead(scores, weight_VD if is_exact else None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", [int8.FULL, int8.REDUCED])
def test_tokens_are_those_of_the_largest_logits_in_float32(kind: str, limit: int) -> None:
    if limit > int8.activation_limit():
        pytest.skip("sums overflow on this processor")
    weight_VD, rows_ND = weights(kind), hidden()
    bias_V = 0.1 * torch.randn(VOCABULARY).repeat_interleave(2)[:VOCABULARY]
    head = build(weight_VD, bias_V, limit)
    logits_NV = F.linear(rows_ND.double(), weight_VD.double(), bias_V.double())
    for forbidden in ([], [0, 1, 7, *range(400, 900)]):
        logits_NV[:, forbidden] = -torch.inf
        tokens_N = head.without(forbidden)(rows_ND)
        largest_N = logits_NV.amax(1)
        chosen_N = logits_NV.gather(1, tokens_N[:, None])[:, 0]
        rounding_N = 1e-6 * rows_ND.norm(dim=1) * weight_VD.norm(dim=1).max()
        assert (chosen_N >= largest_N - rounding_N).all()
        if kind == "equal":
            assert (tokens_N == logits_NV.argmax(1)).all()
            assert ((tokens_N < VOCABULARY - 1).any() and (tokens_N % 2 == 0).all()) or forbidden


@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_holds(kind: str) -> None:
    weight_VD, rows_ND = weights(kind), hidden()
    limit = int8.activation_limit()
    head = build(weight_VD, None, limit)
    scale_N1 = int8.row_scales(rows_ND) / limit
    integers_ND = (rows_ND / scale_N1).round()
    scores_NV = head.matrix.product_of_integers(integers_ND)[:, :VOCABULARY] * scale_N1
    exact_NV = rows_ND.double() @ weight_VD.double().t()
    bound_N1 = head.bound(rows_ND, integers_ND * scale_N1)
    assert ((scores_NV - exact_NV).abs() <= bound_N1).all()
    if kind == "plain":  # and it is tight enough to be useful
        assert (bound_N1 < 0.1 * exact_NV.std(1, keepdim=True) * 10).all()
        assert ((scores_NV - exact_NV).abs().amax(1) > 0.1 * bound_N1[:, 0]).all()


def test_many_candidates_are_compared_by_all_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    weight_VD, rows_ND = weights("close"), hidden()
    head = build(weight_VD)
    expected_N = head.without([])(rows_ND)
    calls = []
    largest = greedy_head._largest
    monkeypatch.setattr(greedy_head, "_largest", lambda logits: calls.append(1) or largest(logits))
    assert torch.equal(head.without([])(rows_ND), expected_N) and not calls
    monkeypatch.setattr(greedy_head, "MAX_CANDIDATES", 0)
    found_N = head.without([])(rows_ND)
    assert len(calls) == 3
    logits_NV = rows_ND @ weight_VD.t()
    assert torch.allclose(logits_NV.gather(1, found_N[:, None]), logits_NV.amax(1, keepdim=True))


@pytest.mark.parametrize("is_exact", [True, False])
def test_broken_rows_are_marked_and_zeros_are_not(is_exact: bool) -> None:
    rows_ND = hidden(70)
    head = build(weights("plain"), is_exact=is_exact)
    expected_N = head.without([])(rows_ND)
    rows_ND[3, 1], rows_ND[66, 0], rows_ND[5] = torch.nan, torch.inf, 0.0
    tokens_N = head.without([])(rows_ND)
    assert tokens_N[[3, 66]].tolist() == [BROKEN, BROKEN] and tokens_N[5] == 0
    kept = [row for row in range(70) if row not in (3, 5, 66)]
    assert torch.equal(tokens_N[kept], expected_N[kept])


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> torch.nn.Module:
    monkeypatch.setattr(greedy_head, "MIN_EXACT_WEIGHTS", 1)
    torch.manual_seed(0)
    config = TransformerConfig(num_layers=2, num_heads=2, hidden_dim=64, feed_forward_dim=96)
    model = config.build(Seq2Seq(600, 20, 600, 20)).eval()
    model.head.weight.data.mul_(20)
    return model


@pytest.mark.parametrize("weights", ["fp32", "int8"])
def test_greedy_decoding_is_the_same_with_all_logits(model: torch.nn.Module, weights: str) -> None:
    decoder = quantise(model) if weights == "int8" else model
    tokens = torch.randint(3, 600, (90, 9))
    options = {"begin": 0, "end": 1, "forbidden": [0, 2], "strategy": GreedyConfig()}
    plain = generate(decoder, {"tokens": tokens}, **options)
    with decoding_mode(decoder):
        assert isinstance(decoder.greedy_head, GreedyHead)
        fast = generate(decoder, {"tokens": tokens}, **options, is_scored=False)
        scored = generate(decoder, {"tokens": tokens}, **options)
    assert decoder.greedy_head is None
    assert [best.tokens for best, *_ in fast] == [best.tokens for best, *_ in plain]
    assert [best.is_finished for best, *_ in fast] == [best.is_finished for best, *_ in plain]
    assert [best.tokens for best, *_ in scored] == [best.tokens for best, *_ in plain]
    assert len({str(best.tokens) for best, *_ in fast}) > 30


def test_errors_are_those_of_all_logits(model: torch.nn.Module) -> None:
    tokens = torch.randint(3, 600, (4, 9))
    with decoding_mode(model):
        with pytest.raises(ErrorDetail, match="not a token id"):
            generate(model, {"tokens": tokens}, begin=0, end=600, is_scored=False)
        dict(model.named_parameters())["decoder.final_norm.weight"].data[:] = torch.nan
        with pytest.raises(ErrorDetail, match="NaN or infinite at token 1 of row 0"):
            generate(model, {"tokens": tokens}, begin=0, end=1, is_scored=False)


def test_small_heads_and_heads_of_other_types_have_none(model: torch.nn.Module) -> None:
    assert greedy_head.greedy_head(model) is not None
    assert greedy_head.greedy_head(TransformerConfig(hidden_dim=16).build(model.task_type)) is None
    assert greedy_head.greedy_head(model.double()) is None
