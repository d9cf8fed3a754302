"""Slow reference implementations of scaled dot-product attention, to test the fast kernels against.

softmax(q·kᵀ / √K)·v in three forms: two loops for one sequence, two loops for a batch, and no loop.
`mask` is True where a query may attend to a key. A query without any allowed key gets zeros.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def attention_one_sequence(q_LK: Tensor, k_MK: Tensor, v_MK: Tensor, mask_LM: Tensor | None = None) -> Tensor:
    """Compute attention for one sequence with loops over queries and keys, one score at a time."""
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
    """Compute attention for a batch of sequences with loops over queries and keys."""
    batch, queries, width = q_BLK.shape
    keys = k_BMK.shape[1]
    scores_BLM = torch.empty(batch, queries, keys, dtype=q_BLK.dtype)
    for query in range(queries):
        for key in range(keys):
            scores_BLM[:, query, key] = (q_BLK[:, query] * k_BMK[:, key]).sum(-1) / math.sqrt(width)
    return weights(scores_BLM, mask_BLM) @ v_BMK


def attention_no_loop(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute attention without loops, for tensors with any leading axes such as batch and heads."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return weights(scores, mask) @ v


def weights(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the softmax over the allowed keys of each query. A query without allowed keys gets zeros."""
    if mask is None:
        return scores.softmax(-1)
    # The smallest number instead of −∞: a row without keys then has no NaN, forward or backward.
    masked = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return masked.softmax(-1).masked_fill(~mask, 0.0)
