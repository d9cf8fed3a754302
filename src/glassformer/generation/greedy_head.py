"""Most probable tokens for greedy decoding, found from scores in int8 without all logits in memory.

The output layer takes a large part of a decoding step. Greedy decoding needs only its largest logit. A score
in int8 differs from the logit in float32 by at most a bound that is computed for each row, so a token whose
score is lower than the best one by more than twice the bound cannot win. The few tokens that are left get
their logits in float32.

Axes: N rows, D hidden dimension, V vocabulary padded to a multiple of 16, C candidates of all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from glassformer.blocks.heads import ClassHead, Head, pad_to_alignment
from glassformer.core.errors import UserError
from glassformer.generation.cpu import is_local, matmul
from glassformer.generation.int8 import Int8Head, activation_limit, is_worth_it, row_scales
from glassformer.models.base import Model

CHUNK = 64
"""Number of rows whose scores are computed at a time: enough for a fast product, few enough for the cache."""
MIN_EXACT_WEIGHTS = 1 << 19
"""Minimum size of an output layer in float32 for which scores in int8 are computed first."""
ROUNDING = 2.0**-14
"""Relative rounding error that a logit in float32 may have, far above that of any order of summation."""
MAX_CANDIDATES = 24
"""Mean number of candidates per row above which all logits of a chunk are computed in float32."""
BROKEN = -1
"""Token id of a row whose logits are NaN or infinite."""


class GreedyHead:
    """Function from hidden vectors to the tokens with the largest logits, or to BROKEN.

    With `weight_VD`, the logits are those in float32. Without it, they are those of the product in int8.
    """

    def __init__(self, scores: Int8Head, weight_VD: Tensor | None = None) -> None:
        self.outputs = scores.outputs
        self.bias_V, self.matrix = scores.bias_V, scores.matrix
        self.weight_VD = weight_VD
        if weight_VD is not None:
            self.weight_VD, _ = pad_to_alignment(weight_VD.detach(), None)
            scale_V1 = self.matrix.scale_O[:, None]
            error_VD = self.weight_VD - (self.weight_VD / scale_V1).round() * scale_V1
            # A quantised weight may be off by a rounding of its own, which ROUNDING covers.
            self.largest_norm = float(self.weight_VD.norm(dim=1).max())
            self.largest_error = float(error_VD.norm(dim=1).max())
            self.largest_bias = float(self.bias_V[: self.outputs].abs().max())

    def without(self, forbidden: Sequence[int]) -> Callable[[Tensor], Tensor]:
        """Return the function from hidden vectors (…, N, D) to tokens (N), none of them forbidden."""
        bias_V = self.bias_V.clone()
        bias_V[list(forbidden)] = -torch.inf
        choose = self._choose_int8 if self.weight_VD is None else self._choose_exactly

        def tokens(rows_ND: Tensor) -> Tensor:
            return torch.cat([torch.from_numpy(choose(chunk, bias_V)) for chunk in rows_ND.split(CHUNK)])

        return tokens

    def _choose_int8(self, rows_ND: Tensor, bias_V: Tensor) -> np.ndarray:
        return _largest(self.matrix.product(rows_ND, bias_V))

    def _choose_exactly(self, rows_ND: Tensor, bias_V: Tensor) -> np.ndarray:
        """Return the tokens with the largest logits in float32."""
        assert self.weight_VD is not None
        scale_N1 = row_scales(rows_ND) / self.matrix.limit
        integers_ND = (rows_ND / scale_N1).round_()
        scores_NV = self.matrix.product_of_integers(integers_ND)
        torch.addcmul(bias_V, scores_NV, scale_N1, out=scores_NV)
        least_N1 = scores_NV.amax(1, keepdim=True) - 2 * self.bound(rows_ND, integers_ND * scale_N1)
        hits_C = np.flatnonzero(scores_NV.numpy() >= least_N1.numpy())
        rows_C, tokens_C = np.divmod(hits_C, scores_NV.shape[1])
        if len(hits_C) > MAX_CANDIDATES * len(rows_ND):
            return _largest(matmul(rows_ND, self.weight_VD.t(), bias_V))
        counts_N = np.bincount(rows_C, minlength=len(rows_ND))
        tokens_N = np.full(len(rows_ND), BROKEN)
        tokens_N[rows_C[::-1]] = tokens_C[::-1]  # correct for rows with one candidate
        is_open_C = counts_N[rows_C] > 1
        if is_open_C.any():
            rows_C, tokens_C = rows_C[is_open_C], tokens_C[is_open_C]
            rows, tokens = torch.from_numpy(rows_C), torch.from_numpy(tokens_C)
            logits_C = (rows_ND[rows] * self.weight_VD[tokens]).sum(1).add_(bias_V[tokens]).numpy()
            # The last entry of each row wins: the largest logit, and on ties the lowest id.
            order_C = np.lexsort((-tokens_C, logits_C, rows_C))
            tokens_N[rows_C[order_C]] = tokens_C[order_C]
        return tokens_N

    def bound(self, rows_ND: Tensor, quantised_ND: Tensor) -> Tensor:
        """Return the largest possible difference (N, 1) of a score from its logit, by Cauchy and Schwarz.

        x·w − x̂·ŵ = (x − x̂)·w + x̂·(w − ŵ), where x̂ and ŵ are the quantised vectors.
        """
        error_N1 = torch.linalg.vector_norm(rows_ND - quantised_ND, dim=1, keepdim=True)
        norm_N1 = torch.linalg.vector_norm(quantised_ND, dim=1, keepdim=True)
        rounding_N1 = ROUNDING * ((norm_N1 + error_N1) * self.largest_norm + self.largest_bias)
        return error_N1 * self.largest_norm + norm_N1 * self.largest_error + rounding_N1


def _largest(logits_NV: Tensor) -> np.ndarray:
    """Return the index of the largest logit of each row, the lowest one on ties, or BROKEN."""
    logits = logits_NV.numpy()
    tokens_N = logits.argmax(1)
    tokens_N[~np.isfinite(logits[np.arange(len(logits)), tokens_N])] = BROKEN
    return tokens_N


def greedy_head(model: Model) -> GreedyHead | None:
    """Return the greedy head of a model, or None if it would not be faster, or the head is not linear."""
    head = model.head
    if not isinstance(head, ClassHead) or type(head).forward is not Head.forward:
        return None
    if isinstance(head.linear, Int8Head):
        return GreedyHead(head.linear)
    weight_VD = head.output_weight(model.tied_weight())
    if weight_VD.numel() < MIN_EXACT_WEIGHTS or not is_local(weight_VD) or not is_worth_it(weight_VD):
        return None
    try:
        limit = activation_limit()
    except UserError:  # the kernels do not run here, and are not needed
        return None
    return GreedyHead(Int8Head(weight_VD, head.bias, limit), weight_VD)
