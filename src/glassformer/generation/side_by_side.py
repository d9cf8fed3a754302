"""Several batches at once, a thread each: a step has many small operations, which two cores share badly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TypeVar

import torch
from torch import nn

from glassformer.blocks.products import fast_products
from glassformer.blocks.ready import is_plain
from glassformer.generation.engine import evaluating, is_observed
from glassformer.models.writing import Writing
from glassformer.threads import Crew

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def dealt(rows: Sequence[Item], parts: int) -> list[list[Item]]:
    """In so many parts of like work, if rows of like work stand together."""
    return [list(rows[part::parts]) for part in range(min(parts, len(rows)))]


def at_once(model: nn.Module) -> int:
    """How many batches of this model are worked on side by side."""
    return torch.get_num_threads() if _is_whole(model) and not is_observed() else 1


def side_by_side(
    model: nn.Module,
    answer: Callable[[Item], Answer],
    items: Sequence[Item],
    progress: Callable[[int], None] = lambda done: None,
) -> list[Answer]:
    """`answer` of each item, in their order; what it says must not depend on the items before.

    As many at once as PyTorch has threads, each with its share of them. The largest should come first.
    """
    workers = min(at_once(model), len(items))
    run = partial(_in_threads, workers) if workers > 1 else _one_by_one
    ready = model.writing_much() if _is_whole(model) and isinstance(model, Writing) else nullcontext()
    # Mode and weights belong to the model, which the threads share: none of them may set these back.
    with evaluating(model), ready, fast_products():
        return run(answer, items, progress)


def _is_whole(model: nn.Module) -> bool:
    """All processes that share weights must ask such a model in turn."""
    return all(map(is_plain, model.parameters()))


def _in_threads(
    workers: int, answer: Callable[[Item], Answer], items: Sequence[Item], progress: Callable[[int], None]
) -> list[Answer]:
    crew = Crew(workers, "decoding")
    try:
        return _told(crew.each(answer, items), progress)
    finally:
        crew.close()


def _one_by_one(
    answer: Callable[[Item], Answer], items: Sequence[Item], progress: Callable[[int], None]
) -> list[Answer]:
    return _told(map(answer, items), progress)


def _told(answers: Iterable[Answer], progress: Callable[[int], None]) -> list[Answer]:
    kept = []
    for answer in answers:
        kept.append(answer)
        progress(len(kept))
    return kept
