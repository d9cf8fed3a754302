"""Several batches at once, a thread each: a step has many small operations, which two cores share badly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from glassformer.generation.engine import evaluating, is_observed
from glassformer.models.writing import Writing

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def side_by_side(
    model: nn.Module,
    answer: Callable[[Item], Answer],
    items: Sequence[Item],
    progress: Callable[[int], None] = lambda done: None,
) -> list[Answer]:
    """`answer` of each item, in their order; what it says must not depend on the items before.

    As many at once as PyTorch has threads, each with its share of them. The largest should come first.
    """
    # Weights that several processes share are of another type: all processes must ask such a model in turn.
    weights = list(model.parameters())
    is_whole = all(type(weight.data) is Tensor and weight.device.type == "cpu" for weight in weights)
    workers = min(torch.get_num_threads(), len(items)) if is_whole and not is_observed() else 1
    run = partial(_in_threads, workers) if workers > 1 else _one_by_one
    ready = model.writing_much() if is_whole and isinstance(model, Writing) else nullcontext()
    # Mode and weights belong to the model, which the threads share: none of them may set these back.
    with evaluating(model), ready:
        return run(answer, items, progress)


def _in_threads(
    workers: int, answer: Callable[[Item], Answer], items: Sequence[Item], progress: Callable[[int], None]
) -> list[Answer]:
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(
        workers, "decoding", initializer=torch.set_num_threads, initargs=(threads // workers,)
    )
    try:
        futures = [pool.submit(answer, item) for item in items]
        answers = []
        for done, future in enumerate(futures, start=1):
            answers.append(future.result())
            progress(done)
        return answers
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)  # what threads to come are given


def _one_by_one(
    answer: Callable[[Item], Answer], items: Sequence[Item], progress: Callable[[int], None]
) -> list[Answer]:
    answers = []
    for done, item in enumerate(items, start=1):
        answers.append(answer(item))
        progress(done)
    return answers
