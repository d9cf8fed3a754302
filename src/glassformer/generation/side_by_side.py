"""Several batches at once, a thread each: a step has many small operations, which two cores share badly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import TypeVar

import torch
from torch import nn

from glassformer.blocks.feed_forward import transposed_weights
from glassformer.generation.engine import evaluating, is_observed

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
    is_on_cpu = all(parameter.device.type == "cpu" for parameter in model.parameters())
    workers = min(torch.get_num_threads(), len(items)) if is_on_cpu and not is_observed() else 1
    run = partial(_in_threads, workers) if workers > 1 else _one_by_one
    # Mode and weights belong to the model, which the threads share: one that is done must not set them back.
    with evaluating(model), transposed_weights(model) if is_on_cpu else nullcontext():
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
