"""One input as a model reads it: the tensors, and a name for every token on the axes of its maps.

What a model writes token by token is decoded first. One pass over the finished answer then has the same
attention as the decoding had, since no token sees what comes after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from glassformer.generation import DecodingConfig
from glassformer.inspection.maps import Place
from glassformer.models.base import Model
from glassformer.models.shapes import PerSequence, PerToken, SequenceToSequence, Shape
from glassformer.tasks.answering import Answer
from glassformer.tasks.base import SequenceToSequenceTask, Task


@dataclass(frozen=True)
class Names:
    """What stands on the axes of one place's maps."""

    queries: list[str]
    keys: list[str]
    query_axis: str
    key_axis: str
    answers: list[str] | None = None
    """What is said at each query, where that is not the query's own name."""


@dataclass(frozen=True)
class Reading:
    inputs: Mapping[str, Tensor | None]
    names: Mapping[Place, Names]
    answer: Answer | None = None

    def lengths(self) -> dict[Place, tuple[int, int]]:
        return {place: (len(names.queries), len(names.keys)) for place, names in self.names.items()}


def read(model: Model, task: Task, tokens: np.ndarray, decoding: DecodingConfig | None = None) -> Reading:
    """`tokens` as this model reads them, and what it answers."""
    reader = _READERS.get(type(task.shape), _read_only)
    return reader(model, task, tokens, decoding)


def _read_only(model: Model, task: Task, tokens: np.ndarray, decoding: DecodingConfig | None) -> Reading:
    return Reading({"tokens": _row(model, tokens)}, {"encoder": _own(task, tokens)})


def _per_sequence(model: Model, task: Task, tokens: np.ndarray, decoding: DecodingConfig | None) -> Reading:
    ((answer,),) = task.answer(model, [tokens], decoding)
    return Reading({"tokens": _row(model, tokens)}, {"encoder": _own(task, tokens)}, answer)


def _per_token(model: Model, task: Task, tokens: np.ndarray, decoding: DecodingConfig | None) -> Reading:
    ((answer,),) = task.answer(model, [tokens], decoding)
    names = _own(task, tokens, task.output_symbols(answer.tokens))
    return Reading({"tokens": _row(model, tokens)}, {"encoder": names}, answer)


def _writing(model: Model, task: Task, tokens: np.ndarray, decoding: DecodingConfig | None) -> Reading:
    assert isinstance(task, SequenceToSequenceTask)
    answer = task.answer(model, [tokens], decoding)[0][0]
    # An answer that was cut off has no probability of an end, and no place where the end was written.
    is_finished = len(answer.probabilities) > len(answer.tokens)
    written = [*answer.tokens, task.end] if is_finished else answer.tokens
    target = [task.begin, *written[:-1]]
    inputs = {"tokens": _row(model, tokens), "target": _row(model, np.array(target))}
    source_names, target_names = task.input_symbols(tokens.tolist()), task.output_symbols(target)
    written_names = task.output_symbols(written)
    names: dict[Place, Names] = {
        "encoder": _own(task, tokens),
        "decoder": Names(written_names, target_names, "token being written", "token written before"),
        "cross": Names(written_names, source_names, "token being written", "input token"),
    }
    return Reading(inputs, names, answer)


def _own(task: Task, tokens: np.ndarray, answers: list[str] | None = None) -> Names:
    names = task.input_symbols(tokens.tolist())
    return Names(names, names, "token that looks", "token it looks at", answers)


def _row(model: Model, tokens: np.ndarray) -> Tensor:
    device = next(model.parameters()).device
    return torch.from_numpy(tokens.astype(np.int64))[None].to(device)


_READERS: dict[type[Shape], Callable[[Model, Task, np.ndarray, DecodingConfig | None], Reading]] = {
    PerToken: _per_token,
    PerSequence: _per_sequence,
    SequenceToSequence: _writing,
}
