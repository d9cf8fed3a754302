"""How much arithmetic a Transformer must do, and how much of it the machine could do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from glassformer.bench.peers import Sizes

if TYPE_CHECKING:
    import numpy as np

PRODUCT = 1024
"""Rows and columns of the matrices whose product is the measure: large enough for every core."""
TRAINING = 3
"""A forward pass, and a backward pass of twice its size."""


def matrix_product() -> Callable[[], object]:
    """A product of square matrices in 32-bit floats: the fastest thing that a Transformer does."""
    import torch

    left, right = torch.randn(PRODUCT, PRODUCT), torch.randn(PRODUCT, PRODUCT)
    out = torch.empty(PRODUCT, PRODUCT)
    return lambda: torch.mm(left, right, out=out)


def product_flops() -> int:
    return 2 * PRODUCT**3


def encoder_decoder_flops(sizes: Sizes, sources: np.ndarray, targets: np.ndarray) -> int:
    """Of a forward pass over pairs of these lengths, without any padding; a causal mask is not deducted."""
    width, wide = sizes.width, sizes.feed_forward
    read, written = int(sources.sum()), int(targets.sum())
    square = width * width
    encoder = read * (4 * square + 2 * width * wide) + 2 * width * int((sources**2).sum())
    decoder = written * (6 * square + 2 * width * wide) + read * 2 * square
    decoder += 2 * width * int((targets**2).sum() + (sources * targets).sum())
    output = written * width * sizes.vocabulary
    return 2 * (sizes.layers * (encoder + decoder) + output)
