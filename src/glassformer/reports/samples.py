"""What a model answers to a few examples, beside what was right: wrong answers among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from glassformer.blocks.heads import IGNORED
from glassformer.core.errors import shorten
from glassformer.data.tokenizers import MASK
from glassformer.generation.predict import Prediction
from glassformer.models.task_types import CausalLM, MaskedLM, SequenceClassification, TokenClassification
from glassformer.reports.tables import number
from glassformer.runs.run import Run
from glassformer.tasks.base import Seq2SeqTask, Task

LOOKED_AT = 32
MOST_TOKENS = 40
TOKENS_BEFORE_A_FAULT = 8
MOST_CHARACTERS = 320


@dataclass(frozen=True)
class Part:
    """A piece of an answer."""

    text: str
    is_wrong: bool = False


@dataclass(frozen=True)
class Sample:
    number: int
    """Of the example in its split, from 0."""
    input: str
    expected: list[Part]
    answer: list[Part]
    verdict: str
    is_right: bool | None
    """None where there is no right answer, only a nearer or a further one."""
    error: float = 0.0
    """Of a number."""
    separator: str = " "


@dataclass(frozen=True)
class Samples:
    split: str
    shown: list[Sample]
    words: str
    """How they were chosen, and of how many."""


def take_samples(run: Run, count: int) -> Samples:
    split = "test" if "test" in run.task.splits else "validation"
    examples = run.task.splits[split]
    is_continued = isinstance(run.task.task_type, CausalLM)
    looked_at = min(len(examples), count if is_continued else max(count, LOOKED_AT))
    samples = _ask(run, split, looked_at)
    first = "" if looked_at == len(examples) else f"first {looked_at:,} of "
    of = f"the {first}{len(examples):,} {split} examples"
    if is_continued:
        words = f"The beginnings of {of}, continued by the model ({run.config.evaluation.decoding.kind})."
        return Samples(
            split, samples, words + " A text can go on in many ways: nothing is right or wrong here."
        )
    if any(sample.is_right is None for sample in samples):
        ordered = sorted(samples, key=lambda sample: -sample.error)
        shown = ordered[: -(-count // 2)] + ordered[len(ordered) - count // 2 :]
        return Samples(split, shown, f"Of {of}: those with the largest and those with the smallest errors.")
    wrong = [sample for sample in samples if not sample.is_right]
    right = [sample for sample in samples if sample.is_right]
    few = min(len(right), max(count // 2, count - len(wrong)))
    shown = sorted(wrong[: count - few] + right[:few], key=lambda sample: sample.number)
    good, bad = ("are worded as the reference is", "are worded otherwise")
    if run.task.text_pairs(split) is None:
        good, bad = ("are answered without a fault", "have a fault")
    if not wrong or not right:
        words = f"All of {of} {good if right else bad}; shown are the first."
    else:
        words = f"Of {of}, {len(right):,} {good}, {len(wrong):,} {bad}; shown are the first of both."
    return Samples(split, shown, words)


def _ask(run: Run, split: str, count: int) -> list[Sample]:
    task, decoding = run.task, run.config.evaluation.decoding
    numbers = np.arange(count)
    examples = task.splits[split].take(numbers)
    rows = [np.asarray(row).astype(np.int64) for row in examples.inputs]
    targets: list[np.ndarray] = [np.asarray(target) for target in examples.targets]
    if isinstance(task.task_type, MaskedLM):
        # What is hidden is drawn by the batch, for each example by itself.
        batches = [task.batch(split, numbers[place : place + 1]) for place in range(count)]
        rows = [np.asarray(batch.inputs["tokens"])[0] for batch in batches]
        targets = [np.asarray(batch.targets)[0] for batch in batches]
    if isinstance(task.task_type, CausalLM):
        targets = [row[_half(row) :] for row in rows]
        rows = [row[: _half(row)] for row in rows]
    kept = [
        place
        for place in range(count)
        if not isinstance(task.task_type, MaskedLM) or _hidden(rows[place], targets[place])
    ]
    answers = task.predict(run.model, [rows[place] for place in kept], decoding) if kept else []
    pairs = task.text_pairs(split)
    samples = []
    for place, (answer, *_) in zip(kept, answers, strict=True):
        if pairs is not None:
            written = task.show_output(answer.tokens)
            samples.append(_judge_text(place, pairs[0][place], pairs[1][place], written))
        else:
            samples.append(_judge(task, place, rows[place], targets[place], answer))
    return samples


def _half(row: np.ndarray) -> int:
    return max(1, len(row) // 2)


def _judge(task: Task, place: int, row: np.ndarray, target: np.ndarray, answer: Prediction) -> Sample:
    task_type, tokens = task.task_type, [int(token) for token in row]
    if isinstance(task_type, SequenceClassification) and task_type.is_real and answer.value is not None:
        return _judge_number(task, place, tokens, float(target), answer.value)
    if isinstance(task_type, TokenClassification):
        return _judge_tokens(task, place, tokens, target, answer)
    if isinstance(task_type, MaskedLM):
        return _judge_hidden(task, place, tokens, target, answer)
    wanted = [int(token) for token in np.atleast_1d(target)]
    if isinstance(task, Seq2SeqTask):
        wanted = wanted[1:-1]
    told, is_right = _show_output(task, answer.tokens), list(answer.tokens) == wanted
    if isinstance(task_type, CausalLM):
        same = sum(one == other for one, other in zip(answer.tokens, wanted, strict=False))
        verdict = f"{same:,} of {len(wanted):,} tokens as in the text"
        continued = _show_output(task, answer.tokens[: len(wanted)])
        return Sample(
            place,
            _show_input(task, tokens),
            [Part(_show_output(task, wanted))],
            [Part(continued)],
            verdict,
            None,
        )
    sure = "" if answer.probability is None else f", probability {number(answer.probability)}"
    return Sample(
        place,
        _show_input(task, tokens),
        [Part(_show_output(task, wanted))],
        [Part(told, not is_right)],
        ("right" if is_right else "wrong") + sure,
        is_right,
    )


def _judge_text(place: int, source: str, reference: str, written: str) -> Sample:
    is_right = written.split() == reference.split()
    verdict = "worded as the reference is" if is_right else "worded otherwise than the reference"
    texts = [shorten(text, MOST_CHARACTERS) for text in (source, reference, written)]
    return Sample(place, texts[0], [Part(texts[1])], [Part(texts[2])], verdict, is_right)


def _judge_number(task: Task, place: int, tokens: list[int], wanted: float, value: float) -> Sample:
    error = abs(value - wanted)
    return Sample(
        place,
        _show_input(task, tokens),
        [Part(number(wanted))],
        [Part(number(value))],
        f"off by {number(error)}",
        None,
        error,
    )


def _judge_tokens(
    task: Task, place: int, tokens: list[int], target: np.ndarray, answer: Prediction
) -> Sample:
    """Token by token; of a long sequence the piece around its first fault."""
    wanted = [int(token) for token in target]
    faults = [at for at, (one, other) in enumerate(zip(answer.tokens, wanted, strict=True)) if one != other]
    start = max(0, faults[0] - TOKENS_BEFORE_A_FAULT) if faults and faults[0] >= MOST_TOKENS else 0
    window = slice(start, start + MOST_TOKENS)
    expected, said = (task.output_symbols(side)[window] for side in (wanted, answer.tokens))
    verdict = f"{len(faults):,} of {len(wanted):,} tokens wrong" if faults else "right"
    if len(wanted) > MOST_TOKENS:
        verdict += f"; shown from token {start:,} to {min(start + MOST_TOKENS, len(wanted)) - 1:,}"
    return Sample(
        place,
        _show_input(task, tokens),
        [Part(symbol) for symbol in expected],
        [Part(symbol, at in faults) for at, symbol in enumerate(said, start=start)],
        verdict,
        not faults,
    )


def _judge_hidden(
    task: Task, place: int, tokens: list[int], target: np.ndarray, answer: Prediction
) -> Sample:
    """The hidden tokens alone; some that were asked for were not hidden, and are left aside here."""
    hidden = _hidden(tokens, target)
    expected = [_show_output(task, [int(target[at])]) for at in hidden]
    said = [_show_output(task, [answer.tokens[at]]) for at in hidden]
    wrong = [answer.tokens[at] != int(target[at]) for at in hidden]
    verdict = f"{sum(wrong):,} of {len(hidden):,} hidden tokens wrong" if any(wrong) else "right"
    return Sample(
        place,
        _show_input(task, tokens),
        [Part(symbol) for symbol in expected],
        [Part(symbol, is_wrong) for symbol, is_wrong in zip(said, wrong, strict=True)],
        verdict,
        not any(wrong),
        separator=" · ",
    )


def _hidden(tokens: Sequence[int] | np.ndarray, target: np.ndarray) -> list[int]:
    return [at for at, token in enumerate(tokens) if token == MASK and int(target[at]) != IGNORED]


def _show_input(task: Task, tokens: Sequence[int]) -> str:
    return shorten(task.show_input(list(tokens)), MOST_CHARACTERS)


def _show_output(task: Task, tokens: Sequence[int]) -> str:
    return shorten(task.show_output(list(tokens)), MOST_CHARACTERS) or "(nothing)"
