"""Several batches at once, a core each: a step has many small operations, which two cores share badly."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
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

    As many at once as PyTorch has threads: in copies of this process, which do not wait for each other in the
    interpreter, or in threads where it cannot be copied. What else `answer` changes may be lost. The largest
    items should come first.
    """
    # Weights that several processes share are of another type: all processes must ask such a model in turn.
    weights = list(model.parameters())
    is_whole = all(type(weight.data) is Tensor and weight.device.type == "cpu" for weight in weights)
    workers = min(torch.get_num_threads(), len(items)) if is_whole and not is_observed() else 1
    at_once = _in_copies if _can_be_copied() else _in_threads
    run = partial(at_once, workers) if workers > 1 else _one_by_one
    ready = model.writing_much() if is_whole and isinstance(model, Writing) else nullcontext()
    # Mode and weights belong to the model, which the threads share: none of them may set these back.
    with evaluating(model), ready:
        return run(answer, items, progress)


def _can_be_copied() -> bool:
    """A copy lacks the other threads, and keeps for ever the locks that they held, such as PyTorch's."""
    others = (thread for thread in threading.enumerate() if thread is not threading.current_thread())
    is_daemon = multiprocessing.current_process().daemon  # may have no children
    return sys.platform == "linux" and not is_daemon and all(map(_only_shows, others))


def _only_shows(thread: threading.Thread) -> bool:
    """How far something is."""
    return isinstance(thread, threading.Timer) or type(thread).__module__.startswith("rich.")


def _in_copies(
    workers: int, answer: Callable[[Item], Answer], items: Sequence[Item], progress: Callable[[int], None]
) -> list[Answer]:
    context = multiprocessing.get_context("fork")
    copies: dict[Connection, BaseProcess] = {}
    try:
        for _ in range(workers):
            ours, theirs = context.Pipe()
            copy = context.Process(target=_serve, args=(theirs, [*copies, ours], answer, items), daemon=True)
            with warnings.catch_warnings():  # of threads: a copy uses none of PyTorch's
                warnings.simplefilter("ignore", DeprecationWarning)
                try:
                    copy.start()
                except OSError:  # the system has no memory or no number for another process
                    return _in_threads(workers, answer, items, progress)
            theirs.close()
            copies[ours] = copy
        return _collect(copies, items, progress)
    finally:
        for end, copied in copies.items():
            copied.kill()
            copied.join()
            end.close()


def _collect(
    copies: Mapping[Connection, BaseProcess], items: Collection[Item], progress: Callable[[int], None]
) -> list[Answer]:
    numbers = iter(range(len(items)))
    answers: dict[int, Answer] = {}
    for connection, number in zip(copies, numbers, strict=False):
        connection.send(number)
    while len(answers) < len(items):
        heard = wait(list(copies))
        for connection in (end for end in copies if end in heard):
            try:
                number, answer, error = connection.recv()
            except EOFError:
                copies[connection].join()
                code = copies[connection].exitcode
                raise RuntimeError(f"a process that decodes has died, exit code {code}") from None
            if error is not None:
                raise error
            answers[number] = answer
            progress(len(answers))
            following = next(numbers, None)
            if following is not None:
                connection.send(following)
    return [answers[number] for number in range(len(items))]


def _serve(
    connection: Connection,
    of_parent: Sequence[Connection],
    answer: Callable[[Item], Answer],
    items: Sequence[Item],
) -> None:
    """In a copy: answers for numbers, until there is nobody left to ask."""
    for end in of_parent:
        end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it, too, and ends its copies
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    with suppress(EOFError, OSError):
        while True:
            number = connection.recv()
            try:
                connection.send((number, answer(items[number]), None))
            except Exception as error:
                connection.send((number, None, error))


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
