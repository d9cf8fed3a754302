"""Which words carried a decision: each is left out in turn, and the answer is asked for again.

For models with one answer a sequence. What a word does together with others is not seen: of two words that
each suffice, neither seems to matter.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from glassformer.data.batching import Examples
from glassformer.errors import Problem
from glassformer.inspection.reading import evaluating
from glassformer.models.base import Model
from glassformer.models.heads import RealHead
from glassformer.tasks.base import PerSequenceTask

TOKENS_AT_ONCE = 20_000


@dataclass(frozen=True)
class WordEffect:
    word: str
    effect: float | None
    """How much the chosen class's log-probability falls without the word, or the predicted number; below 0:
    the word spoke against it. None if nothing can be read without it."""


def outputs(model: Model, task: PerSequenceTask, rows: Sequence[np.ndarray]) -> Tensor:
    """Log-probabilities of the classes (rows, classes), or the predicted number (rows, 1)."""
    device = next(model.parameters()).device
    longest = max(len(row) for row in rows)
    size = max(1, TOKENS_AT_ONCE // max(longest, 1))
    examples = Examples(list(rows), np.zeros(len(rows), dtype=np.int64))
    parts = []
    with evaluating(model), torch.inference_mode():
        for start in range(0, len(rows), size):
            indices = np.arange(start, min(start + size, len(rows)))
            parts.append(model(**task.collate(examples, indices).to(device).inputs).cpu().double())
    answers = torch.cat(parts)
    return answers if isinstance(model.head, RealHead) else answers.log_softmax(-1)


def word_effects(model: Model, task: PerSequenceTask, text: str) -> list[WordEffect]:
    """The words in the order of the text; its characters, if nothing parts it into words."""
    spans = [match.span() for match in re.finditer(r"\S+\s*", text)]
    if len(spans) == 1:
        spans = [match.span() for match in re.finditer(r"\S", text)]
    words = [text[start:end].strip() for start, end in spans]
    without = [_parse(task, text[:start] + text[end:]) for start, end in spans]
    readable = [row for row in without if row is not None]
    answers = outputs(model, task, [task.parse(text), *readable])
    fallen = iter((answers[0] - answers[1:])[:, int(answers[0].argmax())].tolist())
    return [
        WordEffect(word, None if row is None else next(fallen))
        for word, row in zip(words, without, strict=True)
    ]


def _parse(task: PerSequenceTask, text: str) -> np.ndarray | None:
    try:
        return task.parse(text)
    except Problem:
        return None
