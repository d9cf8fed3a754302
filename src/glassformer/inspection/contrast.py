"""Contrast of two answers: the number that patching and attribution explain.

A model prefers one answer to another by the difference of their logits at one output position. For a
regression, the number is the predicted value itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from glassformer.core.errors import ErrorDetail
from glassformer.generation import GreedyConfig
from glassformer.generation.predict import Prediction
from glassformer.inspection.examples import row
from glassformer.models.base import Model, evaluating
from glassformer.models.task_types import CausalLM, MaskedLM, SequenceClassification
from glassformer.tasks.base import Seq2SeqTask, Task

Inputs = Mapping[str, Tensor | None]


@dataclass(frozen=True)
class Contrast:
    """Difference of two logits at one output position, or a predicted value."""

    position: int | None
    """Output position; None if the model has one output per sequence."""
    answer: int
    """Class or token whose logit counts as positive."""
    other: int | None
    """Class or token whose logit is subtracted. None: the logit of `answer`, or a predicted value, alone."""
    name: str
    """Description for display, such as `logit of '7' − logit of '3' at output 2`."""

    def value(self, outputs: Tensor) -> Tensor:
        """Return the number for each row of a batch of model outputs (B, V) or (B, L, V)."""
        rows_BV = outputs if self.position is None else outputs[:, self.position]
        found_B = rows_BV[:, self.answer]
        return found_B if self.other is None else found_B - rows_BV[:, self.other]


@dataclass(frozen=True)
class ContrastedInputs:
    """Tensors of a clean and a corrupted input of equal length, and the contrast of their outputs."""

    clean: Inputs
    corrupted: Inputs
    contrast: Contrast
    generated: Sequence[int] = ()
    """Output tokens before the contrast that the decoder reads for both inputs."""


def contrast_inputs(model: Model, task: Task, clean: np.ndarray, corrupted: np.ndarray) -> ContrastedInputs:
    """Return the contrast at the first position where the model's outputs for two inputs differ.

    The decoder of an encoder-decoder reads the output tokens that both have in common. Raise an ErrorDetail
    if the inputs differ in length or the outputs do not differ.
    """
    if len(clean) != len(corrupted):
        raise ErrorDetail(
            f"the inputs have {len(clean)} and {len(corrupted)} tokens",
            path="corrupted",
            hint="choose two inputs of one length: each position is patched from one to the other",
        )
    with evaluating(model), torch.no_grad():
        if isinstance(task, Seq2SeqTask):
            return _seq2seq_contrast(model, task, clean, corrupted)
        first, second = ({"tokens": row(model, tokens)} for tokens in (clean, corrupted))
        outputs = [model(**each)[0] for each in (first, second)]
    return ContrastedInputs(first, second, _find_contrast(task, outputs, clean, corrupted))


def _find_contrast(
    task: Task, outputs: Sequence[Tensor], clean: np.ndarray, corrupted: np.ndarray
) -> Contrast:
    task_type = task.task_type
    if isinstance(task_type, SequenceClassification):
        if task_type.is_regression:
            return Contrast(None, 0, None, "predicted value")
        answers = [int(logits_V.argmax()) for logits_V in outputs]
        return _contrast(task, None, *answers)
    best = [logits_LV.argmax(-1).tolist() for logits_LV in outputs]
    positions = list(range(len(clean)))
    if isinstance(task_type, CausalLM):
        positions = positions[-1:]
    if isinstance(task_type, MaskedLM):
        masked = (clean == task.mask_token) & (corrupted == task.mask_token)
        positions = np.flatnonzero(masked).tolist()
    differing = [position for position in positions if best[0][position] != best[1][position]]
    if not differing:
        raise _same_outputs()
    position = differing[0]
    return _contrast(task, position, best[0][position], best[1][position])


def generated_tokens(task: Seq2SeqTask, prediction: Prediction) -> list[int]:
    """Return the generated tokens with the end token, unless the output was cut off before it."""
    # A truncated prediction has no probability for the end token.
    is_finished = len(prediction.probabilities) > len(prediction.tokens)
    return [*map(int, prediction.tokens), *([task.end] if is_finished else [])]


def _seq2seq_contrast(
    model: Model, task: Seq2SeqTask, clean: np.ndarray, corrupted: np.ndarray
) -> ContrastedInputs:
    predictions = task.predict(model, [clean, corrupted], GreedyConfig())
    first, second = (generated_tokens(task, best[0]) for best in predictions)
    if first == second:
        raise _same_outputs()
    pairs = zip(first, second, strict=False)
    at = next(index for index, (mine, other) in enumerate(pairs) if mine != other)
    generated = first[:at]
    target = row(model, np.array([task.begin, *generated]))
    return ContrastedInputs(
        {"tokens": row(model, clean), "target": target},
        {"tokens": row(model, corrupted), "target": target},
        _contrast(task, at, first[at], second[at]),
        generated,
    )


def _contrast(task: Task, position: int | None, answer: int, other: int) -> Contrast:
    if answer == other:
        raise _same_outputs()
    names = [" ".join(task.output_symbols([token])) or "(end)" for token in (answer, other)]
    where = "" if position is None else f" at output {position}"
    return Contrast(position, answer, other, f"logit of {names[0]!r} − logit of {names[1]!r}{where}")


def _same_outputs() -> ErrorDetail:
    return ErrorDetail(
        "the model has the same output for both inputs, so there is nothing to explain",
        path="corrupted",
        hint="choose inputs with different outputs, or leave the second one out",
    )
