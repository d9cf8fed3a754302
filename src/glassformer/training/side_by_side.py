"""A step in parts, a thread each: on a CPU two threads in every operation are slower than one in each part.

Which parts a batch has, and what dropout draws in each, follows from batch and model and not from the number
of threads: with more or fewer of them a run differs by rounding alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from glassformer.blocks.attention import MultiHeadAttention
from glassformer.blocks.dropout import Dropout, drawing_from
from glassformer.blocks.ready import is_plain
from glassformer.data.batching import Batch
from glassformer.models.base import Model
from glassformer.threads import Crew
from glassformer.training.undivided import Autocast, Learned, Undivided

Item = TypeVar("Item")
Answer = TypeVar("Answer")

WORTH_PARTING = 1e10
"""Floating-point operations of a step, forward and back; one of fewer is over before parting it pays."""
WORK_OF_A_PART, TOKENS_OF_A_PART = 2e10, 512
"""At least, of more parts than two: so Python, and sums of gradients of a large model, hardly count."""


def number_of_parts(parameters: int, lengths: np.ndarray) -> int:
    """Of a batch of examples of these lengths: a power of two, so that as many threads are done at once."""
    tokens = int(lengths.sum())
    if _work(parameters, tokens) < WORTH_PARTING or tokens < 2 * TOKENS_OF_A_PART or len(lengths) < 2:
        return 1
    most = min(_work(parameters, tokens) / WORK_OF_A_PART, tokens / TOKENS_OF_A_PART, len(lengths))
    return 2 ** max(1, int(math.log2(most)))


def gradients_held(parts: int, threads: int) -> int:
    """How many of a whole model there are at a time: their sum, and those of parts that are not in it yet."""
    return 1 if parts == 1 else 1 + min(parts, _ahead(min(parts, threads)))


def share_at_once(parts: int, threads: int) -> float:
    """Of a batch, what is being worked on at a time."""
    return min(parts, threads) / parts


def _work(parameters: int, tokens: int) -> float:
    return 6.0 * parameters * tokens


def _ahead(workers: int) -> int:
    """Parts that may be begun before the first of them is added: one that is done early need not wait."""
    return workers + 1 if workers > 1 else 1


class SideBySide(Undivided):
    """One process, one model, and the parts of a step at once."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self._parameters = sum(parameter.numel() for parameter in model.parameters())
        self._crew: Crew | None = None

    def parts(self, lengths: np.ndarray) -> int:
        return number_of_parts(self._parameters, lengths)

    def learn(
        self, batches: Sequence[Batch], count: int, label_smoothing: float, autocast: Autocast
    ) -> list[Learned]:
        if len(batches) == 1 or not self._is_much(batches):
            return super().learn(batches, count, label_smoothing, autocast)
        seeds = torch.randint(2**62, (len(batches),)).tolist()
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]

        def learn(part: tuple[Batch, int]) -> tuple[Learned, tuple[Tensor | None, ...]]:
            batch, seed = part
            with drawing_from(torch.Generator().manual_seed(seed)):
                with autocast():
                    score = self.score(batch, label_smoothing)
                gradients = torch.autograd.grad(score.loss / count, trained, allow_unused=True)
            return (float(score.loss.detach()), int(score.correct)), gradients

        scores = []
        for learned, gradients in self._each(learn, list(zip(batches, seeds, strict=True))):
            scores.append(learned)
            _add(trained, gradients)
        return scores

    def _is_much(self, batches: Sequence[Batch]) -> bool:
        """Of parts always; batches that were planned apart may be too small for threads of their own."""
        places = sum(max(x.numel() for x in batch.inputs.values() if x is not None) for batch in batches)
        return _work(self._parameters, places) >= len(batches) * WORTH_PARTING / 4

    def _each(self, learn: Callable[[Item], Answer], parts: Sequence[Item]) -> Iterator[Answer]:
        workers = min(len(parts), torch.get_num_threads())
        if workers == 1:
            return map(learn, parts)
        if self._crew is None or self._crew.workers != workers:
            self._crew = Crew(workers, "training")
        return self._crew.each(learn, parts, _ahead(workers))


def _add(parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor | None]) -> None:
    """In the order of the parts, whichever is done first: sums are rounded alike in each run."""
    pairs = [(p, g.contiguous()) for p, g in zip(parameters, gradients, strict=True) if g is not None]
    for parameter, gradient in pairs:
        if parameter.grad is None:
            parameter.grad = gradient
    more = [(p.grad, g) for p, g in pairs if p.grad is not g]
    if more:
        torch._foreach_add_([cast(Tensor, total) for total, _ in more], [gradient for _, gradient in more])


def can_learn_in_parts(model: Model) -> bool:
    """On a CPU, and if nothing but our dropout draws random numbers: one generator serves no two threads."""
    return all(map(is_plain, model.parameters())) and not any(map(_may_draw, model.modules()))


def _may_draw(module: nn.Module) -> bool:
    if isinstance(module, MultiHeadAttention):
        return module.dropout > 0
    package = type(module).__module__
    is_dropout = isinstance(module, nn.modules.dropout._DropoutNd) and not isinstance(module, Dropout)
    return is_dropout or not package.startswith(("glassformer.", "torch.nn."))
