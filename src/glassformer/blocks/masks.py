"""Who may attend to whom. True means *may attend*, everywhere.

A row with nothing to attend to gives zeros, never NaN, and so do its gradients: `reference.weights` and
PyTorch's kernel (from 2.5 on) see to that.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def causal(query_length: int, key_length: int, device: torch.device | str | None = None) -> Tensor:
    """Each query may attend to itself and the keys before it; the last query sees every key."""
    ones_LM = torch.ones(query_length, key_length, dtype=torch.bool, device=device)
    return ones_LM.tril(key_length - query_length)


def padding(attention_mask_BM: Tensor) -> Tensor:
    """Every query may attend to the real keys of its own sequence."""
    return attention_mask_BM[:, None, None, :]


@dataclass(frozen=True)
class Mask:
    """A mask that is written out as a tensor only if some kernel needs it.

    `allowed` is any boolean tensor that broadcasts to (B, H, L, M); `is_causal` comes on top of it.
    """

    is_causal: bool = False
    allowed: Tensor | None = None

    @classmethod
    def of(cls, *, is_causal: bool = False, attention_mask_BM: Tensor | None = None) -> Mask:
        return cls(is_causal, None if attention_mask_BM is None else padding(attention_mask_BM))

    def dense(self, query_length: int, key_length: int, device: torch.device) -> Tensor | None:
        """The mask as one boolean tensor, or None where everybody may attend to everything."""
        if not self.is_causal or query_length == 1:
            return self.allowed
        causal_LM = causal(query_length, key_length, device)
        return causal_LM if self.allowed is None else causal_LM & self.allowed


EVERYTHING = Mask()
