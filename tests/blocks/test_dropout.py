"""Dropout drops with the given probability, preserves the mean, and is reproducible by its seed."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from glassformer.blocks.dropout import Dropout

MANY = 200_000


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.25, 0.5, 0.9, 0.999])
def test_probability_and_scale(rate: float) -> None:
    torch.manual_seed(1)
    dropped = Dropout(rate)(torch.ones(MANY))
    share = float((dropped == 0).float().mean())
    assert abs(share - rate) < 5 * math.sqrt(rate * (1 - rate) / MANY) + 2**-17
    kept = dropped[dropped != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - rate)), rtol=0.02, atol=0.0)
    # The mean is exact for a probability that is a multiple of 1/65,536.
    assert float(kept[0]) * round((1 - rate) * 2**16) / 2**16 == pytest.approx(1)


def test_the_four_draws_of_one_number_are_independent() -> None:
    """All patterns of four neighbours are equally frequent (chi-squared test)."""
    torch.manual_seed(2)
    kept = (Dropout(0.5)(torch.ones(MANY)) != 0).view(-1, 4).long()
    counts = torch.bincount(kept @ torch.tensor([8, 4, 2, 1]), minlength=16).double()
    expected = MANY / 4 / 16
    chi_squared = float(((counts - expected) ** 2 / expected).sum())
    assert chi_squared < 44.3  # 15 degrees of freedom, probability 1 in 10,000


def test_the_same_seed_drops_the_same() -> None:
    module, x = Dropout(0.3), torch.randn(7, 13)
    torch.manual_seed(3)
    first, second = module(x), module(x)
    torch.manual_seed(3)
    assert torch.equal(module(x), first) and not torch.equal(first, second)


def test_gradients_go_where_values_went() -> None:
    torch.manual_seed(4)
    x = torch.randn(3, 5, 7, requires_grad=True)
    out = Dropout(0.4)(x)
    out.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad * x, out)
    assert x.grad.unique().tolist() == pytest.approx([0.0, 1 / 0.6], rel=1e-4)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3,), (5, 1, 3), (2, 0, 4), (4, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_odd_sizes(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    out = Dropout(0.5)(torch.ones(shape, dtype=dtype))
    assert out.shape == shape and out.dtype == dtype
    assert set(out.flatten().tolist()) <= {0.0, 2.0}


def test_tensors_that_are_not_contiguous() -> None:
    x = torch.randn(6, 8)
    torch.manual_seed(5)
    out = Dropout(0.5)(x.T)
    torch.manual_seed(5)
    assert torch.equal(out, Dropout(0.5)(x.T.contiguous()))


@pytest.mark.parametrize("module", [Dropout(0.7).eval(), Dropout(0.0), Dropout(1e-9)])
def test_nothing_is_dropped(module: nn.Module) -> None:
    x = torch.randn(5, 3)
    assert torch.equal(module(x), x)


@pytest.mark.parametrize("rate", [0.99999, 0.999999, 1 - 1e-12, 1.0])
def test_nearly_everything_is_dropped(rate: float) -> None:
    torch.manual_seed(6)
    out = Dropout(rate)(torch.ones(10_000))
    assert out.isfinite().all() and float((out != 0).float().mean()) < 0.002
