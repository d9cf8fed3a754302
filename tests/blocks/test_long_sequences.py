"""Long sequences: attention in blocks of queries equals plain attention, and no tensor has the size L × L."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from glassformer.blocks import attention
from glassformer.blocks.attention import LayerCache, PositionContext, SelfAttention
from glassformer.blocks.masks import Mask
from glassformer.blocks.positions import PositionConfig
from glassformer.core.registry import kinds
from glassformer.models.base import Model
from glassformer.models.task_types import CausalLM, Seq2Seq, SequenceClassification, TokenClassification
from glassformer.models.transformer import Transformer

POSITIONS = sorted(kinds(PositionConfig))
LENGTH = 11
MASKS = {
    "full": (False, False),
    "padded": (False, True),
    "causal": (True, False),
    "causal, padded": (True, True),
}


def set_limit(monkeypatch: pytest.MonkeyPatch, scores: int) -> None:
    """Compute attention in blocks of this number of scores, if it has more."""
    monkeypatch.setattr(attention, "MAX_SCORES", scores)
    monkeypatch.setattr(attention, "BLOCK_SCORES", scores)


def build(kind: str, is_causal: bool, dropout: float = 0.0) -> tuple[SelfAttention, PositionContext]:
    torch.manual_seed(0)
    position = kinds(PositionConfig)[kind]().build(
        hidden_dim=8, num_heads=2, max_length=32, is_causal=is_causal
    )
    positions = torch.arange(LENGTH)[None]
    module = SelfAttention(8, 2, num_key_value_heads=1, dropout=dropout).double()
    return module, PositionContext(position.double(), positions, positions)


def outputs_and_gradients(
    module: SelfAttention, positions: PositionContext, mask: Mask
) -> tuple[Tensor, list[Tensor | None]]:
    torch.manual_seed(1)
    x = torch.randn(3, LENGTH, 8, dtype=torch.float64, requires_grad=True)
    y = module(x, positions, mask)
    parameters = [x, *module.parameters(), *positions.position.parameters()]
    return y, list(torch.autograd.grad((y * torch.randn_like(y)).sum(), parameters, allow_unused=True))


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("kind", POSITIONS)
def test_blocks_of_queries_equal_plain_attention(
    kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_causal, is_padded = MASKS[name]
    module, positions = build(kind, is_causal)
    is_real = torch.arange(LENGTH) < torch.tensor([LENGTH, 4, 7])[:, None]
    mask = Mask.of(is_causal=is_causal, attention_mask=is_real if is_padded else None)
    expected, wanted = outputs_and_gradients(module, positions, mask)
    set_limit(monkeypatch, 4 * LENGTH)  # blocks of 4, 4 and 3 queries
    found, gradients = outputs_and_gradients(module, positions, mask)
    assert_close(found, expected)
    for one, other in zip(gradients, wanted, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert_close(one, other)
    with torch.no_grad():
        assert_close(outputs_without_gradient(module, positions, mask), expected.detach())


def outputs_without_gradient(module: SelfAttention, positions: PositionContext, mask: Mask) -> Tensor:
    torch.manual_seed(1)
    return module(torch.randn(3, LENGTH, 8, dtype=torch.float64), positions, mask)


@pytest.mark.parametrize("kind", ["alibi", "relative", "t5"])
def test_blocks_under_autocast(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, positions = build(kind, False)
    module.float(), positions.position.float()
    x = torch.randn(2, LENGTH, 8, requires_grad=True)
    found = []
    for scores in (1000, 4 * LENGTH):
        set_limit(monkeypatch, scores)
        with torch.autocast("cpu", torch.bfloat16):
            y = module(x, positions, Mask())
        parameters = [x, *module.parameters(), *positions.position.parameters()]
        found.append([y, *torch.autograd.grad(y.float().sum(), parameters)])
    for one, other in zip(*found, strict=True):
        assert (one - other).norm() <= 0.05 * other.norm() + 1e-3


def test_blocks_continue_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    module, context = build("alibi", True)
    x = torch.randn(2, LENGTH, 8, dtype=torch.float64)
    expected = module(x, context, Mask(is_causal=True))
    set_limit(monkeypatch, 16)
    cache, found = LayerCache(), []
    for start, stop in ((0, 3), (3, LENGTH)):
        queries, keys = torch.arange(start, stop)[None], torch.arange(stop)[None]
        part = PositionContext(context.position, queries, keys)
        found.append(module(x[:, start:stop], part, Mask(is_causal=True), cache))
    assert_close(torch.cat(found, 1), expected)


def test_dropout_of_a_block_is_the_same_in_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of the weighted sum, which is linear in the values, must agree with its outputs."""
    set_limit(monkeypatch, 4 * LENGTH)
    module, positions = build("none", False, dropout=0.5)
    values = torch.randn(1, 1, LENGTH, 4, dtype=torch.float64, requires_grad=True)
    queries, keys = torch.zeros(1, 2, LENGTH, 4).double(), torch.zeros(1, 1, LENGTH, 4).double()
    torch.manual_seed(3)
    y = module._attend(queries, keys, values, Mask(), positions)
    weights = torch.randn_like(y)
    (gradient,) = torch.autograd.grad((y * weights).sum(), values)
    without_bias = y.detach() - module.output.bias.detach()
    assert_close((gradient * values.detach()).sum(), (without_bias * weights).sum())


# ---------------------------------------------------------------- memory


class LargestTensor(TorchDispatchMode):
    """Mode that records the largest number of elements that a tensor holds in memory."""

    elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        result = function(*arguments, **(named or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.itemsize)
        return result


LONG = 512
SMALL: dict[str, Any] = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "feed_forward_dim": 16}
TASK_TYPES = {
    "causal LM": CausalLM(10, LONG),
    "token classification": TokenClassification(10, LONG, 4),
    "sequence classification": SequenceClassification(10, LONG, 4),
    "sequence to sequence": Seq2Seq(10, LONG, 10, LONG),
}


def train_on_a_padded_batch(model: Model) -> None:
    tokens = torch.randint(10, (2, LONG))
    is_real = torch.arange(LONG) < torch.tensor([LONG, LONG - 100])[:, None]
    inputs: dict[str, Tensor | None] = {"tokens": tokens, "mask": is_real}
    if isinstance(model.task_type, Seq2Seq):
        inputs["target"] = tokens
    is_per_sequence = isinstance(model.task_type, SequenceClassification)
    targets = torch.randint(4, (2,) if is_per_sequence else (2, LONG))
    model.train().compute_loss(inputs, targets).loss.backward()


@pytest.mark.parametrize("task_type", TASK_TYPES)
@pytest.mark.parametrize("kind", POSITIONS)
def test_training_holds_no_tensor_of_length_times_length(
    kind: str, task_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_limit(monkeypatch, LONG * LONG // 32)
    model = Transformer(TASK_TYPES[task_type], position=kind, **SMALL)
    with LargestTensor() as largest:
        train_on_a_padded_batch(model)
    assert largest.elements < LONG * LONG / 2


@pytest.mark.parametrize("options", [{"attention_dropout": 0.1}, {"is_causal": True}])
def test_dropout_and_causal_classifiers_hold_none_either(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_limit(monkeypatch, LONG * LONG // 32)
    model = Transformer(TASK_TYPES["token classification"], **SMALL, **options)
    with LargestTensor() as largest:
        train_on_a_padded_batch(model)
    assert largest.elements < LONG * LONG / 2


def test_the_mode_sees_tensors_of_all_scores() -> None:
    model = Transformer(TASK_TYPES["causal LM"], position="t5", **SMALL)
    with LargestTensor() as largest:
        train_on_a_padded_batch(model)
    assert largest.elements >= LONG * LONG
