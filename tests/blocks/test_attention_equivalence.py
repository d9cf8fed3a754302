"""Compare the three reference implementations of attention with each other and with the fused kernel.

The tolerance is 1e-5 in fp32. The same comparison holds to 1e-12 in fp64, so only rounding differs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close

from glassformer.blocks import reference
from glassformer.blocks.attention import Kernel, explicit_weights, fused_kernel
from glassformer.blocks.masks import Mask, causal, padding

BATCH, HEADS, QUERIES, KEYS, WIDTH = 2, 2, 5, 7, 4
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def one_sequence_each(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    rows = range(BATCH * HEADS)
    flat = [x.flatten(0, 1) for x in (q, k, v)]
    masks = [None] * len(rows) if mask is None else list(mask.expand(BATCH, HEADS, -1, -1).flatten(0, 1))
    outputs = [reference.attention_one_sequence(*(x[row] for x in flat), masks[row]) for row in rows]
    return torch.stack(outputs).unflatten(0, (BATCH, HEADS))


def batch_loops(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    flat_mask = None if mask is None else mask.expand(BATCH, HEADS, -1, -1).flatten(0, 1)
    output = reference.attention_batch_loops(*(x.flatten(0, 1) for x in (q, k, v)), flat_mask)
    return output.unflatten(0, (BATCH, HEADS))


def fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    return fused_kernel(q, k, v, Mask(allowed=mask), None, 0.0)


FORMS: list[Callable[..., Tensor]] = [batch_loops, reference.attention_no_loop, fused]


def tensors(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    q = torch.randn(BATCH, HEADS, QUERIES, WIDTH, dtype=dtype, generator=generator)
    k, v = torch.randn(2, BATCH, HEADS, KEYS, WIDTH, dtype=dtype, generator=generator)
    return q, k, v


def masks() -> dict[str, Tensor | None]:
    attention_mask = torch.tensor([[True] * 4 + [False] * 3, [True] * 7])
    arbitrary = torch.rand(BATCH, 1, QUERIES, KEYS, generator=torch.Generator().manual_seed(3)) > 0.5
    arbitrary[0, 0, 2] = False
    arbitrary[1, 0, 0] = False
    return {
        "none": None,
        "causal": causal(QUERIES, KEYS)[None, None],
        "padding": padding(attention_mask).expand(-1, -1, QUERIES, -1),
        "both": padding(attention_mask) & causal(QUERIES, KEYS),
        "with empty rows": arbitrary,
    }


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", masks())
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_every_form_equals_the_two_loops(form: Callable[..., Tensor], name: str, dtype: torch.dtype) -> None:
    q, k, v = tensors(dtype)
    mask = masks()[name]
    tolerance = TOLERANCE[dtype]
    assert_close(form(q, k, v, mask), one_sequence_each(q, k, v, mask), atol=tolerance, rtol=tolerance)


def test_a_causal_mask_alone_equals_the_mask_written_out() -> None:
    q, k, v = (x[:, :, :QUERIES] for x in tensors(torch.float32))
    alone = fused_kernel(q, k, v, Mask(is_causal=True), None, 0.0)
    assert_close(alone, reference.attention_no_loop(q, k, v, causal(QUERIES, QUERIES)), atol=1e-5, rtol=1e-5)


def test_fewer_queries_than_keys_are_the_last_ones() -> None:
    _, k, v = tensors(torch.float32)
    whole = fused_kernel(k, k, v, Mask(is_causal=True), None, 0.0)
    for count in (1, 3):
        last = fused_kernel(k[:, :, -count:], k, v, Mask(is_causal=True), None, 0.0)
        assert_close(last, whole[:, :, -count:], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", masks())
def test_a_bias_is_added_before_the_softmax(name: str) -> None:
    q, k, v = tensors(torch.float64)
    mask = Mask(allowed=masks()[name])
    bias = torch.randn(
        1, HEADS, QUERIES, KEYS, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    weights = explicit_weights(q, k, mask, bias)
    expected = reference.weights(q @ k.mT / WIDTH**0.5 + bias, mask.allowed)
    assert_close(weights, expected)
    assert_close(fused_kernel(q, k, v, mask, bias, 0.0), expected @ v)


# ---------------------------------------------------------------- queries without any allowed key


def explicit_kernel(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, dropout: float
) -> Tensor:
    return explicit_weights(q, k, mask, bias) @ v


def loops_kernel(q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, dropout: float) -> Tensor:
    return batch_loops(q, k, v, mask.allowed)


# PyTorch chooses its kernel by dropout and by whether the bias needs gradients, so all cases are tested.
PATHS: dict[str, tuple[Kernel, SDPBackend | None, bool, float]] = {
    "loops": (loops_kernel, None, False, 0.0),
    "explicit": (explicit_kernel, None, False, 0.0),
    "explicit, bias": (explicit_kernel, None, True, 0.0),
    "fused": (fused_kernel, None, False, 0.0),
    "fused, bias": (fused_kernel, None, True, 0.0),
    "fused, dropout": (fused_kernel, None, False, 0.5),
    "fused, bias, dropout": (fused_kernel, None, True, 0.5),
    "math": (fused_kernel, SDPBackend.MATH, False, 0.0),
    "math, bias": (fused_kernel, SDPBackend.MATH, True, 0.0),
    "flash": (fused_kernel, SDPBackend.FLASH_ATTENTION, False, 0.0),
}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("path", PATHS)
def test_an_empty_row_gives_zeros_and_finite_gradients(path: str, dtype: torch.dtype) -> None:
    kernel, backend, has_bias, dropout = PATHS[path]
    q, k, v = (x.requires_grad_() for x in tensors(dtype))
    bias = torch.randn(1, HEADS, QUERIES, KEYS, dtype=dtype, requires_grad=True) if has_bias else None
    allowed = torch.ones(BATCH, 1, QUERIES, KEYS, dtype=torch.bool)
    allowed[0, :, 2] = False  # one query of the first sequence, and the whole second sequence
    allowed[1] = False
    # Anomaly mode fails on any NaN in the backward pass, even if it is overwritten later.
    with torch.autograd.set_detect_anomaly(True), sdpa_kernel(backend) if backend else nullcontext():
        output = kernel(q, k, v, Mask(allowed=allowed), bias, dropout)
        (output * torch.randn_like(output)).sum().backward()
    assert (output[0, :, 2] == 0).all() and (output[1] == 0).all()
    assert output.isfinite().all() and output[0, :, 0].abs().sum() > 0
    gradients = [x.grad for x in (q, k, v, bias) if x is not None]
    for gradient in gradients:
        assert gradient is not None and gradient.isfinite().all() and gradient.abs().sum() > 0
    for gradient in gradients[:3]:
        assert gradient is not None and (gradient[1] == 0).all()
    assert q.grad is not None and (q.grad[0, :, 2] == 0).all()
