"""The chunked loss equals PyTorch's in value and in every gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.blocks import heads as loss_module
from glassformer.blocks.heads import CHUNK, IGNORED, ClassHead, linear_cross_entropy

EXACT = {"rtol": 1e-10, "atol": 1e-10}


def parts(rows: int, classes: int = 7, dim: int = 5, *, bias: bool = True) -> tuple[Tensor, ...]:
    torch.manual_seed(rows)
    shapes = [(rows, dim), (classes, dim), *([(classes,)] if bias else [])]
    made = tuple((3 * torch.randn(shape, dtype=torch.float64)).requires_grad_() for shape in shapes)
    return (*made, torch.randint(classes, (rows,)))


def reference(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float
) -> Tensor:
    return F.cross_entropy(
        F.linear(hidden, weight, bias), targets, reduction="sum", label_smoothing=smoothing
    )


@pytest.mark.parametrize("rows", [1, 3, CHUNK, CHUNK + 1, 2 * CHUNK + 17])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("has_bias", [True, False])
def test_value_and_gradients(rows: int, smoothing: float, has_bias: bool) -> None:
    *inputs, targets = parts(rows, bias=has_bias)
    bias = inputs[2] if has_bias else None
    loss, correct = linear_cross_entropy(inputs[0], inputs[1], bias, targets, smoothing)
    expected = reference(inputs[0], inputs[1], bias, targets, smoothing)
    torch.testing.assert_close(loss, expected, **EXACT)
    assert int(correct) == int((F.linear(inputs[0], inputs[1], bias).argmax(1) == targets).sum())
    # Scaled, so that the incoming gradient is not 1.
    ours = torch.autograd.grad(0.37 * loss, inputs)
    theirs = torch.autograd.grad(0.37 * expected, inputs)
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other, **EXACT)


def test_large_logits_stay_finite() -> None:
    hidden, weight, bias, targets = parts(4)
    loss, _ = linear_cross_entropy(1e4 * hidden, weight, bias, targets)
    torch.testing.assert_close(loss, reference(1e4 * hidden, weight, bias, targets, 0.0))
    assert loss.isfinite() and all(g.isfinite().all() for g in torch.autograd.grad(loss, (hidden, weight)))


def test_only_what_is_trained_gets_a_gradient() -> None:
    hidden, weight, bias, targets = parts(5)
    loss, _ = linear_cross_entropy(hidden, weight.detach(), bias.detach(), targets, 0.1)
    expected = reference(hidden, weight, bias, targets, 0.1)
    torch.testing.assert_close(
        torch.autograd.grad(loss, hidden), torch.autograd.grad(expected, hidden), **EXACT
    )


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode: type) -> None:
    hidden, weight, bias, targets = parts(CHUNK + 3)
    with mode():
        loss, correct = linear_cross_entropy(hidden, weight, bias, targets, 0.1)
        torch.testing.assert_close(loss, reference(hidden, weight, bias, targets, 0.1), **EXACT)
    assert not loss.requires_grad and 0 <= int(correct) <= len(targets)


def test_nothing_selected() -> None:
    hidden, weight, bias, targets = parts(0)
    loss, correct = linear_cross_entropy(hidden, weight, bias, targets, 0.1)
    assert loss.item() == 0 and int(correct) == 0
    for gradient in torch.autograd.grad(loss, (hidden, weight, bias)):
        assert gradient.isfinite().all() and not gradient.any()


@pytest.mark.parametrize("is_tied", [False, True])
def test_the_loss_of_hidden_vectors_equals_the_loss_of_their_logits(
    is_tied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Includes ignored targets and more rows than a chunk."""
    monkeypatch.setattr(loss_module, "CHUNK", 4)
    torch.manual_seed(0)
    head = ClassHead(6, 9, torch.nn.LayerNorm(6), is_tied=is_tied).double()
    tied = torch.randn(9, 6, dtype=torch.float64, requires_grad=True) if is_tied else None
    hidden = torch.randn(3, 5, 6, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(9, (3, 5))
    targets[0, 2:] = targets[1, :] = IGNORED
    trained = [hidden, *head.parameters(), *([] if tied is None else [tied])]
    ours = head.loss_from_hidden(hidden, targets, tied, 0.1)
    theirs = head.compute_loss(head(hidden, tied), targets, 0.1)
    assert int(ours.count) == int(theirs.count) == 7 and int(ours.correct) == int(theirs.correct)
    torch.testing.assert_close(ours.loss, theirs.loss, **EXACT)
    for own, other in zip(
        torch.autograd.grad(ours.loss, trained), torch.autograd.grad(theirs.loss, trained), strict=True
    ):
        torch.testing.assert_close(own, other, **EXACT)
    nothing = head.loss_from_hidden(hidden, torch.full_like(targets, IGNORED), tied)
    assert nothing.loss.item() == 0 and int(nothing.count) == 0


def test_a_row_at_a_time_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, bias, targets = parts(11)
    whole, _ = linear_cross_entropy(hidden, weight, bias, targets)
    monkeypatch.setattr(loss_module, "CHUNK", 1)
    by_row, _ = linear_cross_entropy(hidden, weight, bias, targets)
    torch.testing.assert_close(by_row, whole, **EXACT)
