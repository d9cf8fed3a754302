"""One input as a model reads it: the tensors, and a name for every token on the axes of its maps.

What a model writes token by token is decoded first. One pass over the finished answer then has the same
attention as the decoding had, since no token sees what comes after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

from glassformer.generation import DecodingConfig
from glassformer.inspection.maps import Place
from glassformer.models.base import Model
from glassformer.tasks.answering import Answer
from glassformer.tasks.base import PerSequenceTask, PerTokenTask, SequenceToSequenceTask, Task


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
    patterns: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)
    """What the task would look for in the maps of each place."""

    def lengths(self) -> dict[Place, tuple[int, int]]:
        return {place: (len(names.queries), len(names.keys)) for place, names in self.names.items()}


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode; afterwards every part is in the mode that it was in."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, is_training in modes.items():
            module.training = is_training


def read(model: Model, task: Task, tokens: np.ndarray, decoding: DecodingConfig | None = None) -> Reading:
    """`tokens` as this model reads them, and what it answers: of several answers the best."""
    with evaluating(model):
        if isinstance(task, SequenceToSequenceTask):
            return read_answer(model, task, tokens, task.answer(model, [tokens], decoding)[0][0])
        inputs = {"tokens": row(model, tokens)}
        if isinstance(task, PerTokenTask):
            answer = task.answer(model, [tokens])[0][0]
            names = _own(task, tokens, task.output_symbols(answer.tokens))
            return Reading(inputs, {"encoder": names}, answer, task.attention_patterns(tokens.tolist()))
        said = task.answer(model, [tokens])[0][0] if isinstance(task, PerSequenceTask) else None
        patterns = task.attention_patterns(tokens.tolist())
        return Reading(inputs, {"encoder": _own(task, tokens)}, said, patterns)


def read_answer(model: Model, task: SequenceToSequenceTask, tokens: np.ndarray, answer: Answer) -> Reading:
    """The model as it wrote this answer, the best or any other."""
    # An answer that was cut off has no probability of an end, and no place where the end was written.
    is_finished = len(answer.probabilities) > len(answer.tokens)
    written = [*answer.tokens, task.end] if is_finished else answer.tokens
    return replace(read_written(model, task, tokens, written), answer=answer)


def read_written(model: Model, task: Task, tokens: np.ndarray, written: Sequence[int]) -> Reading:
    """The model as it wrote these tokens, the end included if it was reached; the last is not read again."""
    if not isinstance(task, SequenceToSequenceTask):
        return _read_on(model, task, tokens, written)
    target = [task.begin, *written[:-1]]
    inputs = {"tokens": row(model, tokens), "target": row(model, np.array(target))}
    source_names, target_names = task.input_symbols(tokens.tolist()), task.output_symbols(target)
    written_names = task.output_symbols(written)
    names: dict[Place, Names] = {
        "encoder": _own(task, tokens),
        "decoder": Names(written_names, target_names, "token being written", "token written before"),
        "cross": Names(written_names, source_names, "token being written", "input token"),
    }
    return Reading(inputs, names, patterns=task.attention_patterns(tokens.tolist(), written))


def _read_on(model: Model, task: Task, tokens: np.ndarray, written: Sequence[int]) -> Reading:
    """A language model reads on over what it wrote; before it was given all, it says nothing."""
    seen = np.array([*tokens.tolist(), *written[:-1]])
    said = [*[""] * (len(tokens) - 1), *task.output_symbols(written)]
    patterns = task.attention_patterns(seen.tolist())
    return Reading({"tokens": row(model, seen)}, {"encoder": _own(task, seen, said)}, patterns=patterns)


def _own(task: Task, tokens: np.ndarray, answers: list[str] | None = None) -> Names:
    names = task.input_symbols(tokens.tolist())
    return Names(names, names, "token that looks", "token it looks at", answers)


def row(model: Model, tokens: np.ndarray) -> Tensor:
    """A batch of one, where the model is."""
    device = next(model.parameters()).device
    return torch.from_numpy(tokens.astype(np.int64))[None].to(device)
