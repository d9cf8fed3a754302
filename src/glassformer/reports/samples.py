"""Predictions of a model for a few examples, with the expected outputs; wrong ones are included."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from glassformer.blocks.heads import IGNORED
from glassformer.core.errors import shorten
from glassformer.generation.predict import Prediction
from glassformer.models.task_types import CausalLM, MaskedLM, SequenceClassification, TokenClassification
from glassformer.plotting.markup import format_number
from glassformer.runs.run import Run
from glassformer.tasks.base import CausalLMTask, Seq2SeqTask, Task, mark_unknown

EXAMINED = 32
MAX_TOKENS = 40
TOKENS_BEFORE_ERROR = 8
MAX_CHARACTERS = 320


@dataclass(frozen=True)
class Segment:
    """Part of an input or output, which may be marked as unknown to the model or as wrong."""

    text: str
    is_wrong: bool = False
    is_unknown: bool = False


@dataclass(frozen=True)
class ExamplePrediction:
    """Prediction for one example, compared with the expected output."""

    index: int
    """Index of the example in its split, from 0."""
    input: list[Segment]
    """Input as it is written in the data."""
    expected: list[Segment]
    output: list[Segment]
    verdict: str
    is_right: bool | None
    """True or False if the output can be right or wrong; None for a predicted number or a continued text."""
    error: float = 0.0
    """Absolute error, if the task predicts a number."""
    separator: str = " "


@dataclass(frozen=True)
class SampleSet:
    """Predictions of one model that a report shows, with a description of how they were selected."""

    split: str
    shown: list[ExamplePrediction]
    description: str
    """Sentence about how the examples were selected and how many outputs were right or wrong."""


def take_samples(run: Run, count: int) -> SampleSet:
    """Predict the first examples of a split, and select up to `count` of them, both wrong and right."""
    split = "test" if "test" in run.task.splits else "validation"
    examples = run.task.splits[split]
    is_language_model = isinstance(run.task.task_type, CausalLM)
    examined = min(len(examples), count if is_language_model else max(count, EXAMINED))
    samples = _predict(run, split, examined)
    first = "" if examined == len(examples) else f"first {examined:,} of "
    of = f"the {first}{len(examples):,} {split} examples"
    if is_language_model:
        kind = run.config.evaluation.decoding.kind
        description = f"The model continues the first half of {of} (decoding: {kind})."
        return SampleSet(split, samples, f"{description} A text has many good continuations: none is wrong.")
    if any(sample.is_right is None for sample in samples):
        ordered = sorted(samples, key=lambda sample: -sample.error)
        shown = ordered[: -(-count // 2)] + ordered[len(ordered) - count // 2 :]
        return SampleSet(split, shown, f"Largest and smallest errors among {of}.")
    wrong = [sample for sample in samples if not sample.is_right]
    right = [sample for sample in samples if sample.is_right]
    few = min(len(right), max(count // 2, count - len(wrong)))
    shown = sorted(wrong[: count - few] + right[:few], key=lambda sample: sample.index)
    good, bad = ("equal the reference", "differ from it")
    if run.task.text_pairs(split) is None:
        good, bad = ("are right", "are wrong")
    if not wrong or not right:
        description = f"All outputs for {of} {good if right else bad}; the first are shown."
    else:
        counts = f"{len(right):,} outputs {good}, {len(wrong):,} {bad}"
        description = f"{of[0].upper()}{of[1:]}: {counts}; the first of both are shown."
    return SampleSet(split, shown, description)


def _predict(run: Run, split: str, count: int) -> list[ExamplePrediction]:
    task, decoding = run.task, run.config.evaluation.decoding
    indices = np.arange(count)
    examples = task.splits[split].take(indices)
    rows = [np.asarray(row).astype(np.int64) for row in examples.inputs]
    targets: list[np.ndarray] = [np.asarray(target) for target in examples.targets]
    if isinstance(task.task_type, MaskedLM):
        # The batch draws the hidden tokens, separately for each example.
        batches = [task.batch(split, indices[index : index + 1]) for index in range(count)]
        rows = [np.asarray(batch.inputs["tokens"])[0] for batch in batches]
        targets = [np.asarray(batch.targets)[0] for batch in batches]
        indices = np.array(
            [index for index in indices if _hidden(task, rows[index], targets[index])], dtype=int
        )
    if isinstance(task.task_type, CausalLM):
        halves = [max(1, len(row) // 2) for row in rows]
        targets = [row[half:] for row, half in zip(rows, halves, strict=True)]
        rows = [row[:half] for row, half in zip(rows, halves, strict=True)]
    chosen = indices.tolist()
    texts = dict(zip(chosen, _inputs(task, split, chosen, rows), strict=True))
    wholes = task.input_texts(split, chosen) if isinstance(task.task_type, CausalLM) else []
    inputs = [rows[index] for index in chosen]
    if isinstance(task, CausalLMTask):  # no more is shown than the text has
        longest = max((len(targets[index]) for index in chosen), default=1)
        predictions = task.predict(run.model, inputs, decoding, max_tokens=longest) if chosen else []
    else:
        predictions = task.predict(run.model, inputs, decoding) if chosen else []
    pairs = task.text_pairs(split)
    samples = []
    for number, (index, (prediction, *_)) in enumerate(zip(chosen, predictions, strict=True)):
        make = partial(ExamplePrediction, index, _segments(task, texts[index]))
        if pairs is not None:
            samples.append(_compare_text(make, pairs[1][index], task.show_output(prediction.tokens)))
        elif wholes:
            rest = _segments(task, wholes[number], len(texts[index]))
            samples.append(_compare_continuation(make, task, rest, targets[index], prediction))
        else:
            tokens = [int(token) for token in rows[index]]
            samples.append(_compare(make, task, tokens, targets[index], prediction))
    return samples


def _inputs(task: Task, split: str, chosen: list[int], rows: Sequence[np.ndarray]) -> list[str]:
    return task.input_texts(split, chosen, [rows[index] for index in chosen])


def _segments(task: Task, text: str, start: int = 0) -> list[Segment]:
    """Return a part of a text, cut from `start` on, as segments that the model knows or does not know.

    The text is tokenised before it is cut, because a word can be another token at the beginning of a text.
    """
    segments = []
    end = start + MAX_CHARACTERS
    at = 0
    for part, is_unknown in mark_unknown(task, text):
        shown = part[max(0, start - at) : max(0, end - at)]
        segments += [Segment(shown, is_unknown=is_unknown)] if shown else []
        at += len(part)
    return [*segments, Segment("…")] if len(text) > end else segments


Make = Callable[..., ExamplePrediction]
"""Constructor of an `ExamplePrediction` whose index and input are already set."""


def _compare(
    make: Make, task: Task, tokens: Sequence[int], target: np.ndarray, prediction: Prediction
) -> ExamplePrediction:
    """Compare a prediction with its target in the way that suits the task type."""
    task_type = task.task_type
    if isinstance(task_type, SequenceClassification) and prediction.value is not None:
        error = abs(prediction.value - float(target))
        expected, output = ([Segment(format_number(value))] for value in (float(target), prediction.value))
        return make(expected, output, f"off by {format_number(error)}", None, error)
    if isinstance(task_type, TokenClassification):
        return _compare_tokens(make, task, target, prediction)
    if isinstance(task_type, MaskedLM):
        return _compare_hidden(make, task, tokens, target, prediction)
    wanted = [int(token) for token in np.atleast_1d(target)]
    if isinstance(task, Seq2SeqTask):
        wanted = wanted[1:-1]
    expected = [Segment(_show_output(task, wanted))]
    is_right = list(prediction.tokens) == wanted
    output = [Segment(_show_output(task, prediction.tokens), not is_right)]
    probability = prediction.probability
    suffix = "" if probability is None else f", probability {format_number(probability)}"
    return make(expected, output, ("right" if is_right else "wrong") + suffix, is_right)


def _compare_continuation(
    make: Make, task: Task, rest: list[Segment], target: np.ndarray, prediction: Prediction
) -> ExamplePrediction:
    """Compare a continuation with the rest of the text, token by token."""
    wanted = [int(token) for token in target]
    same = sum(one == other for one, other in zip(prediction.tokens, wanted, strict=False))
    continued = [Segment(_show_output(task, prediction.tokens[: len(wanted)]))]
    verdict = f"{same:,} of {len(wanted):,} tokens equal the text"
    return make(rest, continued, verdict, None, separator="")


def _compare_text(make: Make, reference: str, output: str) -> ExamplePrediction:
    is_right = output.split() == reference.split()
    verdict = "equals the reference" if is_right else "differs from the reference"
    texts = [shorten(text, MAX_CHARACTERS) for text in (reference, output)]
    return make([Segment(texts[0])], [Segment(texts[1])], verdict, is_right)


def _compare_tokens(make: Make, task: Task, target: np.ndarray, prediction: Prediction) -> ExamplePrediction:
    """Compare token by token. A long sequence is cut to the part around its first error."""
    wanted = [int(token) for token in target]
    wrong = [
        at for at, (one, other) in enumerate(zip(prediction.tokens, wanted, strict=True)) if one != other
    ]
    start = max(0, wrong[0] - TOKENS_BEFORE_ERROR) if wrong and wrong[0] >= MAX_TOKENS else 0
    window = slice(start, start + MAX_TOKENS)
    expected, output = (task.output_symbols(side)[window] for side in (wanted, prediction.tokens))
    verdict = f"{len(wrong):,} of {len(wanted):,} tokens wrong" if wrong else "right"
    if len(wanted) > MAX_TOKENS:
        verdict += f"; tokens {start:,} to {min(start + MAX_TOKENS, len(wanted)) - 1:,} are shown"
    segments = [Segment(symbol, at in wrong) for at, symbol in enumerate(output, start=start)]
    return make([Segment(symbol) for symbol in expected], segments, verdict, not wrong)


def _compare_hidden(
    make: Make, task: Task, tokens: Sequence[int], target: np.ndarray, prediction: Prediction
) -> ExamplePrediction:
    """Compare only the tokens that the mask token hides. Targets that the input shows are skipped."""
    hidden = _hidden(task, tokens, target)
    expected = [Segment(_show_output(task, [int(target[at])])) for at in hidden]
    output = [
        Segment(_show_output(task, [prediction.tokens[at]]), prediction.tokens[at] != int(target[at]))
        for at in hidden
    ]
    wrong = sum(segment.is_wrong for segment in output)
    verdict = f"{wrong:,} of {len(hidden):,} hidden tokens wrong" if wrong else "right"
    return make(expected, output, verdict, not wrong, separator=" · ")


def _hidden(task: Task, tokens: Sequence[int] | np.ndarray, target: np.ndarray) -> list[int]:
    """Return the indices of the tokens that the mask token hides and that count in the loss."""
    hidden = (at for at, token in enumerate(tokens) if token == task.mask_token)
    return [at for at in hidden if int(target[at]) != IGNORED]


def _show_output(task: Task, tokens: Sequence[int]) -> str:
    return shorten(task.show_output(list(tokens)), MAX_CHARACTERS) or "(nothing)"
