"""Plug-in with a planted bug: an encoder-decoder whose decoder sees the future while it trains.

    glassformer doctor arithmetic model.kind=no-causal-mask --plugin no_causal_mask.py

The study `arithmetic-leak` trains it. `glassformer doctor` detects the leak.
"""

from __future__ import annotations

from typing import Literal

from glassformer.blocks.masks import EVERYTHING
from glassformer.core.registry import register
from glassformer.models.base import Model
from glassformer.models.seq2seq import EncoderDecoder
from glassformer.models.task_types import TaskType
from glassformer.models.transformer import TransformerConfig


@register
class NoCausalMaskConfig(TransformerConfig):
    """Encoder-decoder without the causal mask of its decoder, so that training leaks the next token.

    Use it to see what a leak does to the metrics, and that `glassformer doctor` detects it.
    """

    kind: Literal["no-causal-mask"] = "no-causal-mask"  # type: ignore[assignment]

    def build(self, task_type: TaskType) -> Model:
        model = super().build(task_type)
        assert isinstance(model, EncoderDecoder), "only an encoder-decoder has such a mask"
        model.target_mask = EVERYTHING
        return model
