"""What is examined: a model, and a few small batches of its own task's examples.

Sequences are cut short, so that an examination takes seconds whatever the size of model or data.
It always happens on the CPU, and in double precision where a model allows it: rounding is then
some 1e-15, and what is larger has a cause.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from glassformer.data.batching import IGNORED, Batch
from glassformer.doctor.base import DoesNotApply
from glassformer.experiment import Experiment
from glassformer.models.base import Model
from glassformer.models.shapes import NextToken, SequenceToSequence, Shape
from glassformer.tasks.base import Task

Inputs = dict[str, Tensor | None]

ROWS = 4
LENGTH = 16
SAMPLE = 64
"""How many examples are looked at, to find a few that ask something early on."""

DOUBLE_LIMIT = 1e-6
"""Far above rounding in fp64, and above that of a plug-in which computes parts in fp32; far below a leak."""
SINGLE_LIMIT = 1e-4
"""For a model that does not run in fp64."""


@dataclass
class Subject:
    """An experiment, and its trained model if there is one."""

    experiment: Experiment
    trained: Model | None = None

    @property
    def task(self) -> Task:
        return self.experiment.task

    @property
    def shape(self) -> Shape:
        return self.experiment.task.shape

    @cached_property
    def fresh(self) -> Model:
        """As it would start training, with dropout off. Not to be changed: take a copy."""
        return self.experiment.build_model().eval()

    def build_otherwise(self) -> Model:
        """A model of the same config that starts from other random numbers."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.experiment.config.seed + 1)
            return self.experiment.config.model.build(self.shape).eval()

    @cached_property
    def weights(self) -> Model:
        """The weights to examine, in fp32: the trained ones, or fresh ones that are nowhere zero.

        What starts at zero, such as some heads, would hide a leak. Shaken weights show the structure.
        """
        if self.trained is not None:
            return copy.deepcopy(self.trained).cpu().eval()
        return shaken(copy.deepcopy(self.fresh))

    @cached_property
    def model(self) -> Model:
        """`weights` in fp64 if the model runs in it, with dropout off. Not to be changed: take a copy."""
        model = copy.deepcopy(self.weights).double()
        try:
            with torch.no_grad():
                is_double = model(**self.batch.inputs).dtype == torch.float64
        except Exception:
            # Whatever is wrong with it, the checks will meet it again in fp32, and report it.
            is_double = False
        return model if is_double else self.weights

    @property
    def limit(self) -> float:
        """How far two results may differ that should be the same, as a share of the largest."""
        return DOUBLE_LIMIT if next(self.model.parameters()).dtype == torch.float64 else SINGLE_LIMIT

    @property
    def note(self) -> str:
        numbers = "fp64" if self.limit == DOUBLE_LIMIT else "fp32, since the model does not run in fp64"
        rows = len(self.batch.indices)
        return f"compared in {numbers}, on {rows} of the task's own sequences, cut to {LENGTH} tokens"

    @cached_property
    def sample(self) -> Batch:
        """Some examples from all over the training set, cut short."""
        examples = len(self.task.splits["train"])
        indices = np.unique(np.linspace(0, examples - 1, SAMPLE).astype(np.int64))
        return cut(self.task.batch("train", indices), LENGTH)

    @cached_property
    def batch(self) -> Batch:
        """A few rows that ask something in their first half, with different answers if there are such."""
        targets = self.sample.targets
        if targets.ndim == 1:
            _, first_B = np.unique(targets.numpy(), return_index=True)
            order = [*first_B.tolist(), *(row for row in range(len(targets)) if row not in first_B)]
        else:
            early_B = (targets[:, : max(1, targets.shape[1] // 2)] != IGNORED).any(1)
            order = torch.argsort(early_B.int(), descending=True, stable=True).tolist()
        return take_rows(self.sample, sorted(order[:ROWS]))

    @cached_property
    def ragged(self) -> Batch:
        """The same rows, each cut to another length."""
        return ragged(self.batch)

    @property
    def causal_input(self) -> str | None:
        """The input of which no position may see a later one, if there is such an input."""
        shape = self.shape
        if isinstance(shape, SequenceToSequence):
            return "target"
        if isinstance(shape, NextToken) or getattr(self.fresh, "is_causal", False):
            return "tokens"
        return None

    def vocabulary(self, name: str) -> int:
        shape = self.shape
        if name == "target" and isinstance(shape, SequenceToSequence):
            return shape.target_vocabulary
        return shape.vocabulary

    def other_tokens(self, name: str, tokens: Tensor) -> Tensor:
        """Random tokens, none of them the same as before."""
        vocabulary = self.vocabulary(name)
        if vocabulary < 2:
            raise DoesNotApply("there is only one token")
        chance = torch.Generator().manual_seed(0)
        return (tokens + torch.randint(1, vocabulary, tokens.shape, generator=chance)) % vocabulary


def shaken(model: Model) -> Model:
    """Every weight moved by a little, in proportion to what its layer reads."""
    chance = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 0.2 * parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.05
            parameter.add_(torch.randn(parameter.shape, generator=chance), alpha=scale)
    return model


def difference(actual: Tensor, expected: Tensor) -> float:
    """The largest one, as a share of the largest expected value; infinite if anything is no number."""
    return largest_difference([actual], [expected])


def largest_difference(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """As `difference`, over all the tensors, on one scale."""
    with torch.no_grad():
        pairs = [(a, e) for a, e in zip(actual, expected, strict=True) if e.numel()]
        largest = [float((a - e).abs().max()) for a, e in pairs]
        scale = max((float(e.abs().max()) for _, e in pairs), default=0.0) or 1.0
    if not all(map(math.isfinite, [*largest, scale])):
        return math.inf
    return max(largest, default=0.0) / scale


def gradients(model: nn.Module) -> list[Tensor]:
    """Of every parameter, taken away from it; what has none counts as zeros."""
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    return found


def map_columns(batch: Batch, change: Callable[[str, Tensor], Tensor]) -> Batch:
    """The batch with each table of tokens, masks or targets changed; one answer a row stays."""
    inputs = {name: None if x is None else change(name, x) for name, x in batch.inputs.items()}
    targets = batch.targets if batch.targets.ndim == 1 else change("targets", batch.targets)
    return replace(batch, inputs=inputs, targets=targets)


def cut(batch: Batch, length: int) -> Batch:
    return map_columns(batch, lambda _, x: x[:, :length])


def take_rows(batch: Batch, rows: list[int]) -> Batch:
    inputs = {name: None if x is None else x[rows] for name, x in batch.inputs.items()}
    return Batch(inputs, batch.targets[rows], batch.indices[rows])


def ragged(batch: Batch) -> Batch:
    """Row i loses some of its end, so that no two rows need be equally long."""

    def lengths(x: Tensor) -> Tensor:
        width = x.shape[1]
        lost_B = torch.arange(len(x)) * max(1, width // (2 * len(x)))
        return (width - lost_B).clamp(min=min(2, width))

    def within(x: Tensor) -> Tensor:
        return torch.arange(x.shape[1]) < lengths(x)[:, None]

    def shorten(name: str, x: Tensor) -> Tensor:
        return x.masked_fill(~within(x), IGNORED if name == "targets" else 0)

    tokens, real = batch.inputs["tokens"], batch.inputs.get("real")
    assert tokens is not None
    is_real = within(tokens) if real is None else within(tokens) & real
    return map_columns(replace(batch, inputs={**batch.inputs, "real": is_real}), shorten)


def trimmed(batch: Batch) -> Batch:
    """Without the columns of inputs that no row needs; rows of equal length need no mask."""
    tokens, real = batch.inputs["tokens"], batch.inputs["real"]
    assert tokens is not None and real is not None
    longest = int(real.sum(1).max())
    is_mask_needed = not bool(real[:, :longest].all())
    inputs = {
        **batch.inputs,
        "tokens": tokens[:, :longest],
        "real": real[:, :longest] if is_mask_needed else None,
    }
    # Targets of one sequence are as wide as the input; those of a written one have a width of their own.
    is_aligned = batch.targets.ndim == 2 and "target" not in batch.inputs
    return replace(batch, inputs=inputs, targets=batch.targets[:, :longest] if is_aligned else batch.targets)
