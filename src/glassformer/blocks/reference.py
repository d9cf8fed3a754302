"""Scaled dot-product attention, written to be read. The tests hold the fast forms to these.

softmax(q·kᵀ / √K)·v, three times: two loops for one sequence, two loops over a batch, no loop.
`mask` is True where a query may attend to a key; a query that may attend to nothing gives zeros.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def attention_one_sequence(q_LK: Tensor, k_MK: Tensor, v_MK: Tensor, mask_LM: Tensor | None = None) -> Tensor:
    """One sequence, a loop over queries and a loop over keys, one number at a time."""
    output_LK = torch.zeros(len(q_LK), v_MK.shape[-1], dtype=v_MK.dtype)
    for query in range(len(q_LK)):
        scores = {}
        for key in range(len(k_MK)):
            if mask_LM is None or mask_LM[query, key]:
                scores[key] = float(q_LK[query] @ k_MK[key]) / math.sqrt(q_LK.shape[-1])
        if not scores:
            continue
        largest = max(scores.values())
        total = sum(math.exp(score - largest) for score in scores.values())
        for key, score in scores.items():
            output_LK[query] += math.exp(score - largest) / total * v_MK[key]
    return output_LK


def attention_batch_loops(
    q_BLK: Tensor, k_BMK: Tensor, v_BMK: Tensor, mask_BLM: Tensor | None = None
) -> Tensor:
    """A batch of sequences, still a loop over queries and a loop over keys."""
    batch, queries, width = q_BLK.shape
    keys = k_BMK.shape[1]
    scores_BLM = torch.empty(batch, queries, keys, dtype=q_BLK.dtype)
    for query in range(queries):
        for key in range(keys):
            scores_BLM[:, query, key] = (q_BLK[:, query] * k_BMK[:, key]).sum(-1) / math.sqrt(width)
    return weights(scores_BLM, mask_BLM) @ v_BMK


def attention_no_loop(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Any leading axes (batch, heads), no loop."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return weights(scores, mask) @ v


def weights(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """The softmax over the keys that a query may attend to; a row of zeros where there are none."""
    if mask is None:
        return scores.softmax(-1)
    # Not −∞, so that a row without any key has no NaN on its way, forth or back.
    masked = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return masked.softmax(-1).masked_fill(~mask, 0.0)
