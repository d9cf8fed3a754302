"""Changes to a model at work: a head is switched off, an attention edge is cut.

A change is a kernel in the place of the model's own, for a pass. What it does is found by `effects.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from glassformer.blocks import reference
from glassformer.blocks.attention import explicit_scores
from glassformer.blocks.masks import Mask
from glassformer.errors import Problem
from glassformer.inspection.examples import Group
from glassformer.inspection.taps import HeadPlace, attention_at, other_kernels
from glassformer.models.base import Model
from glassformer.models.shapes import NextToken, SequenceToSequence
from glassformer.tasks.base import Task

How = Literal["zero", "mean"]
HOWS: tuple[How, ...] = ("zero", "mean")

Change = Callable[[], AbstractContextManager[None]]
"""Entered anew for each pass or decoding, since an edge counts the queries from the first on."""


@dataclass(frozen=True)
class Edge:
    """One cell of one head's map."""

    where: HeadPlace
    query: int
    key: int

    def __str__(self) -> str:
        return f"{self.where}, from query {self.query} to key {self.key}"


def switch_off(model: Model, where: HeadPlace, how: How, groups: Sequence[Group]) -> Change:
    """The head adds nothing, or always its mean over these examples and all their positions."""
    if how not in HOWS:
        raise Problem("not one of the choices", place="how", value=how, allowed=list(HOWS))
    attention = attention_at(model, where)
    inner = attention.kernel
    constant_K = mean_output(model, where, groups) if how == "mean" else torch.tensor(0.0)

    def kernel(
        q_BHLK: Tensor, k_BHMK: Tensor, v_BHMK: Tensor, mask: Mask, bias: Tensor | None, dropout: float
    ) -> Tensor:
        mixed_BHLK = inner(q_BHLK, k_BHMK, v_BHMK, mask, bias, dropout).clone()
        mixed_BHLK[:, where.head] = constant_K.to(mixed_BHLK)
        return mixed_BHLK

    return lambda: other_kernels(model, {attention: kernel})


def mean_output(model: Model, where: HeadPlace, groups: Sequence[Group]) -> Tensor:
    """What a head mixes on average, before the output projection."""
    attention = attention_at(model, where)
    inner, device = attention.kernel, next(model.parameters()).device
    sums_K, count = torch.zeros(attention.head_dim, dtype=torch.float64), 0

    def kernel(
        q_BHLK: Tensor, k_BHMK: Tensor, v_BHMK: Tensor, mask: Mask, bias: Tensor | None, dropout: float
    ) -> Tensor:
        nonlocal sums_K, count
        mixed_BHLK = inner(q_BHLK, k_BHMK, v_BHMK, mask, bias, dropout)
        sums_K = sums_K + mixed_BHLK[:, where.head].double().sum((0, 1)).cpu()
        count += mixed_BHLK.shape[0] * mixed_BHLK.shape[2]
        return mixed_BHLK

    with torch.inference_mode(), other_kernels(model, {attention: kernel}):
        for group in groups:
            model.hidden(**group.batch.to(device).inputs)
    return sums_K / max(count, 1)


def cut(model: Model, edge: Edge, *, renormalises: bool = True) -> Change:
    """The query may not read this key: the rest of the row adds up to 1 again, as behind a mask.

    Without `renormalises` the weight alone is taken away, and nothing fills its place: exactly what came
    through this edge is missing, but the row is one that the model never had in training.
    """
    attention, where = attention_at(model, edge.where), edge.where
    inner = attention.kernel

    def change() -> AbstractContextManager[None]:
        seen = 0

        def kernel(
            q_BHLK: Tensor, k_BHMK: Tensor, v_BHMK: Tensor, mask: Mask, bias: Tensor | None, dropout: float
        ) -> Tensor:
            nonlocal seen
            mixed_BHLK = inner(q_BHLK, k_BHMK, v_BHMK, mask, bias, dropout)
            queries, keys = q_BHLK.shape[2], k_BHMK.shape[2]
            # With a cache a step brings one query. To its own past it is the last; of the input's keys it
            # must be counted.
            first = seen if where.place == "cross" else keys - queries
            seen += queries
            at = edge.query - first
            if not (0 <= at < queries and edge.key < keys):
                return mixed_BHLK
            heads, rows = slice(where.head, where.head + 1), slice(at, at + 1)
            scores_B11M = explicit_scores(
                q_BHLK[:, heads, rows], k_BHMK[:, heads], _cell(bias, heads, rows, (queries, keys))
            )
            allowed = _cell(mask.dense(queries, keys, q_BHLK.device), heads, rows, (queries, keys))
            allowed_B11M = torch.ones_like(scores_B11M, dtype=torch.bool)
            if allowed is not None:
                allowed_B11M = allowed_B11M & allowed
            if renormalises:
                allowed_B11M[..., edge.key] = False
            weights_B11M = reference.weights(scores_B11M, allowed_B11M)
            weights_B11M[..., edge.key] = 0.0
            mixed_BHLK = mixed_BHLK.clone()
            mixed_BHLK[:, heads, rows] = weights_B11M @ v_BHMK[:, heads]
            return mixed_BHLK

        return other_kernels(model, {attention: kernel})

    return change


def check_edge(task: Task, edge: Edge, group: Group) -> None:
    """A Problem if the maps of these inputs can have no such cell, or one that is masked anyway.

    What the model itself writes may be longer than the right answer.
    """
    written = task.shape.max_target_length if isinstance(task.shape, SequenceToSequence) else group.keys
    queries = group.keys if edge.where.place == "encoder" else written
    keys = written if edge.where.place == "decoder" else group.keys
    for name, number, count in (("query", edge.query, queries), ("key", edge.key, keys)):
        if not 0 <= number < count:
            raise Problem(
                f"no such {name}: they are numbered from 0 to {count - 1}",
                place=name,
                value=number,
                remedy="0",
            )
    is_causal = edge.where.place == "decoder" or isinstance(task.shape, NextToken)
    if is_causal and edge.key > edge.query:
        raise Problem("no token sees what comes after it", place="key", value=edge.key, remedy="a key before")


def as_long_as(task: Task, group: Group, edge: Edge) -> Callable[[int, int], bool]:
    """Whether an example of such lengths has the same cell: its input is as long, its answer long enough.

    A text that a language model reads need only be long enough.
    """
    tokens = len(group.inputs[0])
    furthest = max(edge.query, edge.key)
    if isinstance(task.shape, NextToken):
        return lambda length, _: length > furthest + 1
    if edge.where.place == "encoder":
        return lambda length, _: length == tokens
    return lambda length, target: length == tokens and target > edge.query + 1


def _cell(tensor: Tensor | None, heads: slice, rows: slice, shape: tuple[int, int]) -> Tensor | None:
    """One head's one row of something that broadcasts to (B, H, L, M)."""
    if tensor is None:
        return None
    while tensor.ndim < 4:
        tensor = tensor[None]
    tensor = tensor.expand(-1, -1, *shape)[:, :, rows]
    return tensor[:, heads] if tensor.shape[1] > 1 else tensor
