"""Inputs for inspection: tensors, token labels, and groups of examples of equal length."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from glassformer.blocks.heads import IGNORED
from glassformer.core.errors import ErrorDetail
from glassformer.data.batching import (
    Batch,
    Examples,
    collate_seq2seq,
    collate_sequence_classification,
    collate_token_classification,
)
from glassformer.data.tokenizers import MASK
from glassformer.generation import DecodingConfig
from glassformer.generation.predict import Prediction
from glassformer.inspection.maps import Site
from glassformer.models.base import Model, evaluating
from glassformer.models.task_types import CausalLM, MaskedLM, Seq2Seq, SequenceClassification
from glassformer.tasks.base import Seq2SeqTask, SequenceClassificationTask, Task, TokenClassificationTask


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
    names: Mapping[Site, Names]
    answer: Prediction | None = None
    patterns: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)
    """What the task would look for in the maps of each place."""

    def lengths(self) -> dict[Site, tuple[int, int]]:
        return {place: (len(names.queries), len(names.keys)) for place, names in self.names.items()}


def read(model: Model, task: Task, tokens: np.ndarray, decoding: DecodingConfig | None = None) -> Reading:
    """`tokens` as this model reads them, and what it answers: of several answers the best."""
    with evaluating(model):
        if isinstance(task, Seq2SeqTask):
            return read_answer(model, task, tokens, task.predict(model, [tokens], decoding)[0][0])
        inputs = {"tokens": row(model, tokens)}
        if isinstance(task, TokenClassificationTask):
            answer = task.predict(model, [tokens])[0][0]
            names = _own(task, tokens, task.output_symbols(answer.tokens))
            return Reading(inputs, {"encoder": names}, answer, task.attention_patterns(tokens.tolist()))
        said = task.predict(model, [tokens])[0][0] if isinstance(task, SequenceClassificationTask) else None
        patterns = task.attention_patterns(tokens.tolist())
        return Reading(inputs, {"encoder": _own(task, tokens)}, said, patterns)


def read_answer(model: Model, task: Seq2SeqTask, tokens: np.ndarray, answer: Prediction) -> Reading:
    """The model as it wrote this answer, the best or any other."""
    # An answer that was cut off has no probability of an end, and no place where the end was written.
    is_finished = len(answer.probabilities) > len(answer.tokens)
    written = [*answer.tokens, task.end] if is_finished else answer.tokens
    return replace(read_written(model, task, tokens, written), answer=answer)


def read_written(model: Model, task: Task, tokens: np.ndarray, written: Sequence[int]) -> Reading:
    """The model as it wrote these tokens, the end included if it was reached; the last is not read again."""
    if not isinstance(task, Seq2SeqTask):
        return _read_on(model, task, tokens, written)
    target = [task.begin, *written[:-1]]
    inputs = {"tokens": row(model, tokens), "target": row(model, np.array(target))}
    source_names, target_names = task.input_symbols(tokens.tolist()), task.output_symbols(target)
    written_names = task.output_symbols(written)
    names: dict[Site, Names] = {
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


TOKENS_AT_ONCE = 20_000
MOST_LOOKED_THROUGH = 20_000
"""Examples, in search of those with wanted lengths."""


@dataclass(frozen=True)
class Group:
    """Equally long inputs, with equally long answers where these are sequences."""

    batch: Batch
    inputs: list[np.ndarray]
    written: list[list[int]] | None
    """The right answers without begin and end, where answers are written token by token."""

    @property
    def keys(self) -> int:
        """How many tokens the model reads of each."""
        tokens_BL = self.batch.inputs["tokens"]
        assert tokens_BL is not None
        return int(tokens_BL.shape[1])

    def patterns(self, task: Task) -> list[dict[str, dict[str, np.ndarray]]]:
        """What the task would look for in each example's maps."""
        tokens_BL = self.batch.inputs["tokens"]
        assert tokens_BL is not None
        rows = zip(tokens_BL.tolist(), self.batch.targets.tolist(), strict=True)
        writes = self.written is not None
        return [task.attention_patterns(tokens, target if writes else ()) for tokens, target in rows]


def choose_split(task: Task, split: str | None) -> str:
    """The test set, if there is one, unless another split is asked for."""
    if split is None:
        return "test" if "test" in task.splits else "validation"
    if split not in task.splits:
        raise ErrorDetail("no such split", path="split", value=split, allowed=sorted(task.splits))
    return split


def first_example(task: Task) -> np.ndarray:
    """Something to ask: the first test example, as a person would type it.

    A language model gets half a window, and so has room to go on; one that fills in gets tokens to fill in.
    """
    split = choose_split(task, None)
    examples = task.splits[split]
    tokens = np.asarray(examples.inputs[0]).astype(np.int64)
    if isinstance(task.task_type, CausalLM):
        return tokens[: max(1, task.task_type.max_length // 2)]
    if isinstance(task.task_type, MaskedLM):
        for index in range(len(examples)):
            hidden_BL = task.batch(split, np.array([index])).inputs["tokens"]
            if hidden_BL is not None and bool((hidden_BL == MASK).any()):
                return hidden_BL[0].numpy()
    return tokens


def groups_of(
    task: Task, split: str, count: int, is_wanted: Callable[[int, int], bool] = lambda tokens, target: True
) -> list[Group]:
    """The first so many examples of a split, of those with wanted lengths of input and target."""
    if count < 1:
        raise ErrorDetail("at least 1", path="examples", value=count, hint="64")
    examples = task.splits[split]
    by_length: dict[tuple[int, int], list[int]] = {}
    taken = 0
    for index in range(min(len(examples), MOST_LOOKED_THROUGH)):
        lengths = (len(examples.inputs[index]), int(np.size(examples.targets[index])))
        if is_wanted(*lengths):
            by_length.setdefault(lengths, []).append(index)
            taken += 1
        if taken == count:
            break
    return [
        _group(task, split, np.array(indices[start : start + size]))
        for (length, answer), indices in sorted(by_length.items())
        for size in [max(1, TOKENS_AT_ONCE // max(length, answer, 1))]
        for start in range(0, len(indices), size)
    ]


def _group(task: Task, split: str, indices: np.ndarray) -> Group:
    taken = task.splits[split].take(indices)
    inputs = [np.asarray(tokens).astype(np.int64) for tokens in taken.inputs]
    written = None
    if isinstance(task, Seq2SeqTask):
        written = [[int(token) for token in target[1:-1]] for target in taken.targets]
    return Group(task.batch(split, indices), inputs, written)


@dataclass(frozen=True)
class Question:
    """One input with an answer to measure by."""

    group: Group
    reference: str
    """Which answer that is, for people."""


def question(
    model: Model, task: Task, tokens: np.ndarray, decoding: DecodingConfig | None = None
) -> Question:
    """Measured by the right answer, if the task knows it, else by what the model itself answers."""
    task_type = task.task_type
    if isinstance(task_type, CausalLM):
        following = next_token(model, tokens)
        text = np.append(tokens, following)
        batch = task.collate(Examples([text], [text]), np.array([0]))
        return Question(Group(batch, [tokens], None), "the text itself and its likeliest next token")
    right = task.solve(tokens.tolist())
    reference = "the right answer" if right is not None else "the model's own answer"
    value: float | None = None
    if right is None:
        with evaluating(model):
            answer = task.predict(model, [tokens], decoding)[0][0]
        right, value = answer.tokens, answer.value
    group = Group(_batch(task, tokens, right, value), [tokens], None)
    if isinstance(task, Seq2SeqTask):
        group = Group(group.batch, [tokens], [list(right)])
    return Question(group, reference)


def _batch(task: Task, tokens: np.ndarray, right: Sequence[int], value: float | None) -> Batch:
    first, task_type = np.array([0]), task.task_type
    if isinstance(task_type, SequenceClassification):
        answer = np.array([right[0]]) if value is None else np.array([value])
        return collate_sequence_classification(Examples([tokens], answer), first)
    if isinstance(task, Seq2SeqTask) and isinstance(task_type, Seq2Seq):
        target = np.array([task.begin, *right, task.end])
        return collate_seq2seq(Examples([tokens], [target]), first)
    target = np.array(right)
    if isinstance(task_type, MaskedLM):
        target = np.where(tokens == MASK, target, IGNORED)
    return collate_token_classification(Examples([tokens], [target]), first)


def next_token(model: Model, tokens: np.ndarray) -> int:
    with evaluating(model), torch.inference_mode():
        return int(model(tokens=row(model, tokens))[0, -1].argmax())
