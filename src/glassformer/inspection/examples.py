"""Inputs for inspection: tensors of one input with axis labels, and groups of examples of equal length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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
from glassformer.generation import DecodingConfig
from glassformer.generation.predict import Prediction
from glassformer.inspection.maps import AxisLabels, Site
from glassformer.inspection.record import ModelInput
from glassformer.models.base import Model, evaluating
from glassformer.models.task_types import CausalLM, MaskedLM, Seq2Seq, SequenceClassification
from glassformer.tasks.base import Seq2SeqTask, SequenceClassificationTask, Task, TokenClassificationTask


@dataclass(frozen=True)
class TokenProbability:
    """A token as text, and its probability."""

    token: str
    probability: float


def prepare_input(
    model: Model,
    task: Task,
    tokens: np.ndarray,
    decoding: DecodingConfig | None = None,
    text: str | None = None,
) -> ModelInput:
    """Return the tensors of one input, the axis labels of its attention maps, and the model's prediction.

    `text` is the input as it is written, for the labels of tokens that the model does not know.
    """
    with evaluating(model):
        if isinstance(task, Seq2SeqTask):
            best = task.predict(model, [tokens], decoding)[0][0]
            return prepare_prediction(model, task, tokens, best, text)
        inputs = {"tokens": row(model, tokens)}
        patterns = task.attention_patterns(tokens.tolist())
        if isinstance(task, TokenClassificationTask):
            prediction = task.predict(model, [tokens])[0][0]
            labels = _self_labels(task, tokens, text, task.output_symbols(prediction.tokens))
            return ModelInput(inputs, {"encoder": labels}, prediction, patterns)
        is_classifier = isinstance(task, SequenceClassificationTask)
        label = task.predict(model, [tokens])[0][0] if is_classifier else None
        return ModelInput(inputs, {"encoder": _self_labels(task, tokens, text)}, label, patterns)


def prepare_prediction(
    model: Model, task: Seq2SeqTask, tokens: np.ndarray, prediction: Prediction, text: str | None = None
) -> ModelInput:
    """Return the tensors of the forward pass that generates a prediction, which need not be the best one."""
    # A truncated prediction has no probability for the end token.
    is_finished = len(prediction.probabilities) > len(prediction.tokens)
    generated = [*prediction.tokens, task.end] if is_finished else prediction.tokens
    return replace(prepare_generated(model, task, tokens, generated, text), prediction=prediction)


def prepare_generated(
    model: Model, task: Task, tokens: np.ndarray, generated: Sequence[int], text: str | None = None
) -> ModelInput:
    """Return the tensors of the forward pass that generates these tokens, end token included if there is one.

    The model input leaves out the last token, because that token is only an output.
    """
    if not isinstance(task, Seq2SeqTask):
        return _prepare_continuation(model, task, tokens, generated, text)
    target = [task.begin, *generated[:-1]]
    inputs = {"tokens": row(model, tokens), "target": row(model, np.array(target))}
    source, previous = task.input_labels(tokens.tolist(), text), task.output_symbols(target)
    outputs = task.output_symbols(generated)
    labels: dict[Site, AxisLabels] = {
        "encoder": _self_labels(task, tokens, text),
        "decoder": AxisLabels(outputs, previous, "generated token", "previous token"),
        "cross": AxisLabels(outputs, source, "generated token", "input token"),
    }
    return ModelInput(inputs, labels, patterns=task.attention_patterns(tokens.tolist(), generated))


def _prepare_continuation(
    model: Model, task: Task, tokens: np.ndarray, generated: Sequence[int], text: str | None
) -> ModelInput:
    """Return the tensors of a prompt with its continuation; output labels begin at the last prompt token."""
    seen = np.array([*tokens.tolist(), *generated[:-1]])
    outputs = [*[""] * (len(tokens) - 1), *task.output_symbols(generated)]
    patterns = task.attention_patterns(seen.tolist())
    labels: dict[Site, AxisLabels] = {"encoder": _self_labels(task, seen, text, outputs)}
    return ModelInput({"tokens": row(model, seen)}, labels, patterns=patterns)


def _self_labels(
    task: Task, tokens: np.ndarray, text: str | None, outputs: list[str] | None = None
) -> AxisLabels:
    """Return axis labels for self-attention, in which queries and keys are the same tokens."""
    symbols = task.input_labels(tokens.tolist(), text)
    return AxisLabels(symbols, symbols, "query token", "key token", outputs)


def row(model: Model, tokens: np.ndarray) -> Tensor:
    """Return tokens as a batch (1, L) on the model's device."""
    device = next(model.parameters()).device
    return torch.from_numpy(tokens.astype(np.int64))[None].to(device)


TOKENS_PER_BATCH = 20_000
"""Maximum number of tokens per batch of examples."""
MAX_SCANNED = 20_000
"""Maximum number of examples searched for those with the wanted lengths."""


@dataclass(frozen=True)
class ExampleGroup:
    """Examples whose inputs have equal length, and whose targets have equal length if they are sequences."""

    batch: Batch
    inputs: list[np.ndarray]
    references: list[list[int]] | None
    """Correct outputs without begin and end tokens, if the task generates its outputs token by token."""

    @property
    def keys(self) -> int:
        """Number of input tokens per example."""
        tokens_BL = self.batch.inputs["tokens"]
        assert tokens_BL is not None
        return int(tokens_BL.shape[1])

    def patterns(self, task: Task) -> list[dict[str, dict[str, np.ndarray]]]:
        """Return one dict per example: site (encoder, decoder or cross) → pattern name → boolean mask.

        A pattern marks the cells of an attention map that a head attends to if it solves the task.
        """
        tokens_BL = self.batch.inputs["tokens"]
        assert tokens_BL is not None
        rows = zip(tokens_BL.tolist(), self.batch.targets.tolist(), strict=True)
        generates = self.references is not None
        return [task.attention_patterns(tokens, target if generates else ()) for tokens, target in rows]


def first_input(task: Task) -> tuple[np.ndarray, str]:
    """Return the tokens of `first_example`, and its text as it is written in the data."""
    index, tokens = _first(task)
    return tokens, task.input_texts(default_split(task), [index], [tokens])[0]


def default_split(task: Task) -> str:
    return "test" if "test" in task.splits else "validation"


def first_example(task: Task) -> np.ndarray:
    """Return the tokens of the first test example, the default input of every inspection.

    For a causal language model it is half as long as the context, which leaves room for a continuation. For a
    masked language model it is the first example with a masked token.
    """
    return _first(task)[1]


def _first(task: Task) -> tuple[int, np.ndarray]:
    """Return the index and the tokens of the default example."""
    split = default_split(task)
    examples = task.splits[split]
    tokens = np.asarray(examples.inputs[0]).astype(np.int64)
    if isinstance(task.task_type, CausalLM):
        return 0, tokens[: max(1, task.task_type.max_length // 2)]
    if isinstance(task.task_type, MaskedLM):
        for index in range(len(examples)):
            hidden_BL = task.batch(split, np.array([index])).inputs["tokens"]
            if hidden_BL is not None and bool((hidden_BL == task.mask_token).any()):
                return index, hidden_BL[0].numpy()
    return 0, tokens


def group_examples(
    task: Task, split: str, count: int, is_wanted: Callable[[int, int], bool] = lambda tokens, target: True
) -> list[ExampleGroup]:
    """Return the first `count` examples of a split, grouped by input and target length.

    Only examples for which `is_wanted(input length, target length)` is true are counted.
    """
    if count < 1:
        raise ErrorDetail("must be at least 1", path="examples", value=count, hint="--examples 64")
    examples = task.splits[split]
    by_length: dict[tuple[int, int], list[int]] = {}
    taken = 0
    for index in range(min(len(examples), MAX_SCANNED)):
        lengths = (len(examples.inputs[index]), int(np.size(examples.targets[index])))
        if is_wanted(*lengths):
            by_length.setdefault(lengths, []).append(index)
            taken += 1
        if taken == count:
            break
    return [
        _group(task, split, np.array(indices[start : start + size]))
        for (length, target), indices in sorted(by_length.items())
        for size in [max(1, TOKENS_PER_BATCH // max(length, target, 1))]
        for start in range(0, len(indices), size)
    ]


def _group(task: Task, split: str, indices: np.ndarray) -> ExampleGroup:
    """Return the group of the examples with these indices."""
    taken = task.splits[split].take(indices)
    inputs = [np.asarray(tokens).astype(np.int64) for tokens in taken.inputs]
    references = None
    if isinstance(task, Seq2SeqTask):
        references = [[int(token) for token in target[1:-1]] for target in taken.targets]
    return ExampleGroup(task.batch(split, indices), inputs, references)


@dataclass(frozen=True)
class ReferenceInput:
    """One input with a reference output, against which loss and accuracy are measured."""

    group: ExampleGroup
    reference: str
    """Description of the reference output, for display."""
    labels: list[str]
    """Label of each input token."""


def reference_input(
    model: Model,
    task: Task,
    tokens: np.ndarray,
    decoding: DecodingConfig | None = None,
    text: str | None = None,
) -> ReferenceInput:
    """Return an input with its correct output if the task can compute it, else with the model's own output.

    For a language model, the reference output is the input text and its most likely next token. `text` is the
    input as it is written, for the labels of tokens that the model does not know.
    """
    labels = task.input_labels(tokens.tolist(), text)
    if isinstance(task.task_type, CausalLM):
        whole = np.append(tokens, next_token(model, tokens))
        batch = task.collate(Examples([whole], [whole]), np.array([0]))
        group = ExampleGroup(batch, [tokens], None)
        return ReferenceInput(group, "the input text and its most likely next token", labels)
    correct = task.solve(tokens.tolist())
    reference = "the correct output" if correct is not None else "the model's own output"
    value: float | None = None
    if correct is None:
        with evaluating(model):
            prediction = task.predict(model, [tokens], decoding)[0][0]
        correct, value = prediction.tokens, prediction.value
    references = [list(correct)] if isinstance(task, Seq2SeqTask) else None
    group = ExampleGroup(_batch(task, tokens, correct, value), [tokens], references)
    return ReferenceInput(group, reference, labels)


def _batch(task: Task, tokens: np.ndarray, output: Sequence[int], value: float | None) -> Batch:
    """Return a batch of one input with its target: output tokens, or a real value."""
    first, task_type = np.array([0]), task.task_type
    if isinstance(task_type, SequenceClassification):
        label = np.array([output[0]]) if value is None else np.array([value])
        return collate_sequence_classification(Examples([tokens], label), first)
    if isinstance(task, Seq2SeqTask) and isinstance(task_type, Seq2Seq):
        target = np.array([task.begin, *output, task.end])
        return collate_seq2seq(Examples([tokens], [target]), first)
    target = np.array(output)
    if isinstance(task_type, MaskedLM):
        target = np.where(tokens == task.mask_token, target, IGNORED)
    return collate_token_classification(Examples([tokens], [target]), first)


def next_token(model: Model, tokens: np.ndarray) -> int:
    """Return the most likely token after `tokens`."""
    with evaluating(model), torch.inference_mode():
        return int(model(tokens=row(model, tokens))[0, -1].argmax())
