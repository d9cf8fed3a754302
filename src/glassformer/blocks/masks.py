"""Attention masks, in which True means that a query may attend to a key.

A query that may not attend to any key gets zeros, never NaN, and finite gradients. `reference.weights` and
PyTorch's kernel (from version 2.5) both guarantee this.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from glassformer.core.errors import user_error


def causal(query_length: int, key_length: int, device: torch.device | str | None = None) -> Tensor:
    """Return a bool mask (L, M) that hides later keys. The last query may attend to every key."""
    ones_LM = torch.ones(query_length, key_length, dtype=torch.bool, device=device)
    return ones_LM.tril(key_length - query_length)


def padding(attention_mask_BM: Tensor) -> Tensor:
    """Return a bool mask (B, 1, 1, M) that hides padding. `attention_mask_BM` is True at real tokens."""
    return attention_mask_BM[:, None, None, :]


def boolean_mask(mask: Tensor | None, name: str = "mask") -> Tensor | None:
    """Return a padding mask as booleans. Numbers must be 0 (padding) and 1; other values raise UserError.

    An attention kernel would add a mask of floats to the scores instead of hiding padding.
    """
    if mask is None or mask.dtype == torch.bool:
        return mask
    is_real = mask == 1
    if not bool((is_real | (mask == 0)).all()):
        raise user_error(
            "a mask has only True (or 1) at real tokens and False (or 0) at padding",
            path=name,
            value=mask[~is_real & (mask != 0)].flatten()[0].item(),
            hint="mask = tokens != pad",
        )
    return is_real


@dataclass(frozen=True)
class Mask:
    """Attention mask that is expanded to a tensor only if an attention kernel needs one.

    `allowed` is a boolean tensor that broadcasts to (B, H, L, M). `is_causal` restricts it further.

    gf.nn.Mask(is_causal=True)                 # no query sees a later key
    gf.nn.Mask.of(attention_mask=mask_BM)      # no query sees padding
    """

    is_causal: bool = False
    allowed: Tensor | None = None

    @classmethod
    def of(cls, *, is_causal: bool = False, attention_mask: Tensor | None = None) -> Mask:
        """Build a mask from the padding of a batch: `attention_mask` (B, M) is True at real tokens."""
        found = boolean_mask(attention_mask, "attention_mask")
        return cls(is_causal, None if found is None else padding(found))

    def dense(self, query_length: int, key_length: int, device: torch.device) -> Tensor | None:
        """Return the mask as one boolean tensor, or None if every query may attend to every key."""
        if not self.is_causal or query_length == 1:
            return self.allowed
        causal_LM = causal(query_length, key_length, device)
        return causal_LM if self.allowed is None else causal_LM & self.allowed

    def of_block(self, queries: slice, keys: int, before: int, device: torch.device) -> Mask:
        """Return the mask of these queries for the first `keys` keys; `before` keys precede query 0."""
        allowed = self.allowed
        if allowed is not None:
            allowed = allowed[..., :keys] if allowed.shape[-1] > 1 else allowed
            allowed = allowed[..., queries, :] if allowed.ndim > 1 and allowed.shape[-2] > 1 else allowed
        if self.is_causal:
            ones_LM = torch.ones(queries.stop - queries.start, keys, dtype=torch.bool, device=device)
            causal_LM = ones_LM.tril(before + queries.start)
            allowed = causal_LM if allowed is None else causal_LM & allowed
        return Mask(False, allowed)


EVERYTHING = Mask()
CAUSAL = Mask(is_causal=True)
