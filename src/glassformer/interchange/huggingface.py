"""Conversion of live models of Hugging Face's `transformers`, with their weights.

    model = from_huggingface(GPT2LMHeadModel.from_pretrained("gpt2"))

The `transformers` library itself is not imported. A model is recognised by the name of its class and read
through its `config` and `state_dict`. Options that our blocks do not have raise an error, so that the logits
are equal in evaluation mode. In training, our blocks apply dropout at their own places, with the probability
of the original's residual dropout.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import nn

from glassformer.interchange.converters import convert
from glassformer.models.base import Model


class _Config(Protocol):
    def to_dict(self) -> dict[str, Any]: ...


def from_huggingface(model: nn.Module) -> Model:
    """Convert a Hugging Face model to a `Model` with the same weights, dtype, device and training mode."""
    config: _Config = getattr(model, "config", None) or _NoConfig()
    tensors = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    converted = convert(type(model).__name__, config.to_dict(), tensors)
    with torch.random.fork_rng(devices=[]):
        ours = converted.config.build(converted.task_type)
    ours = ours.to(next(model.parameters()))
    ours.load_state_dict(converted.weights)
    return ours.train(model.training)


class _NoConfig:
    def to_dict(self) -> dict[str, Any]:
        return {}
