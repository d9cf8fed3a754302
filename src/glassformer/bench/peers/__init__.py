"""Other people's Transformers of the same size, for a fair race. Nothing else in the product imports them."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """Of an encoder-decoder with one vocabulary, whose output is tied to its embedding."""

    layers: int
    heads: int
    width: int
    feed_forward: int
    vocabulary: int
    max_length: int
    dropout: float = 0.1


def is_importable(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
