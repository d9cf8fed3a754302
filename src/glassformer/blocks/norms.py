"""Norms over the hidden axis."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import nn

from glassformer.core.registry import Kind, register


class NormConfig(Kind):
    """How a hidden vector is normalised."""

    def build(self, dim: int) -> nn.Module:
        raise NotImplementedError

    def parameter_count(self, dim: int) -> int:
        raise NotImplementedError


@register
class LayerNormConfig(NormConfig):
    kind: Literal["layer"] = "layer"
    epsilon: float = Field(1e-5, gt=0, description="added to the variance")

    def build(self, dim: int) -> nn.Module:
        return nn.LayerNorm(dim, eps=self.epsilon)

    def parameter_count(self, dim: int) -> int:
        return 2 * dim


@register
class RMSNormConfig(NormConfig):
    kind: Literal["rms"] = "rms"
    epsilon: float = Field(1e-6, gt=0, description="added to the mean square")

    def build(self, dim: int) -> nn.Module:
        return nn.RMSNorm(dim, eps=self.epsilon)

    def parameter_count(self, dim: int) -> int:
        return dim


@register
class NoNormConfig(NormConfig):
    kind: Literal["none"] = "none"

    def build(self, dim: int) -> nn.Module:
        return nn.Identity()

    def parameter_count(self, dim: int) -> int:
        return 0
