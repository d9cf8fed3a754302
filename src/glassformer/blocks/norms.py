"""Layer norm and RMS norm over the hidden axis, and their configs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import nn

from glassformer.core.registry import Kind, register

LAYER_NORM_EPSILON = 1e-5
RMS_NORM_EPSILON = 1e-6


class LayerNorm(nn.LayerNorm):
    """PyTorch's layer norm over the last axis of width `dim`.

    y = gf.nn.LayerNorm(64)(x)     # x and y: (..., 64)
    """

    def __init__(self, dim: int, epsilon: float = LAYER_NORM_EPSILON) -> None:
        super().__init__(dim, eps=epsilon)


class RMSNorm(nn.RMSNorm):
    """PyTorch's root-mean-square norm (Zhang and Sennrich 2019) over the last axis of width `dim`.

    y = gf.nn.RMSNorm(64)(x)     # x and y: (..., 64)
    """

    def __init__(self, dim: int, epsilon: float = RMS_NORM_EPSILON) -> None:
        super().__init__(dim, eps=epsilon)


class NormConfig(Kind):
    """Base class of the configs of norms."""

    def build(self, dim: int) -> nn.Module:
        """Build the norm for vectors of width `dim`."""
        raise NotImplementedError

    def parameter_count(self, dim: int) -> int:
        """Return the number of parameters of the norm."""
        raise NotImplementedError


@register
class LayerNormConfig(NormConfig):
    """Layer norm: subtract the mean of a vector, divide by its standard deviation, then scale and shift by
    learned values.

    Use it as the default.
    """

    kind: Literal["layer"] = "layer"
    epsilon: float = Field(LAYER_NORM_EPSILON, gt=0, description="small number added to the variance")

    def build(self, dim: int) -> nn.Module:
        return LayerNorm(dim, self.epsilon)

    def parameter_count(self, dim: int) -> int:
        return 2 * dim


@register
class RMSNormConfig(NormConfig):
    """Root-mean-square norm: divide a vector by its root mean square, then scale by learned values.

    Use it for a slightly cheaper norm that usually works as well, as in most recent language models.
    """

    kind: Literal["rms"] = "rms"
    epsilon: float = Field(RMS_NORM_EPSILON, gt=0, description="small number added to the mean square")

    def build(self, dim: int) -> nn.Module:
        return RMSNorm(dim, self.epsilon)

    def parameter_count(self, dim: int) -> int:
        return dim


@register
class NoNormConfig(NormConfig):
    """No norm: vectors pass unchanged.

    Use it only to see what a norm is good for: deeper models without it rarely train.
    """

    kind: Literal["none"] = "none"

    def build(self, dim: int) -> nn.Module:
        return nn.Identity()

    def parameter_count(self, dim: int) -> int:
        return 0
