"""Which words carried a decision: each is left out in turn, and the answer is asked for again.

For models with one answer a sequence. What a word does together with others is not seen: of two words that
each suffice, neither seems to matter.
"""

from __future__ import annotations

import re
from bisect import bisect_left
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
    the word spoke against it. None if nothing can be read without it, or if it is not read at all."""
    is_read: bool = True
    """Whether any of it stands within what the model reads of a long text."""


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
    spans = [match.span() for match in re.finditer(r"\S+", text)]
    if len(spans) == 1:
        spans = [match.span() for match in re.finditer(r"\S", text)]
    row = task.parse(text)
    # Without the rest of the text, or else its next word would take the place of the one that is left out.
    part = text[: _read_to(task, text, row, spans)]
    read = [span for span in spans if span[0] < len(part)]
    without = [_parse(task, _leave_out(part, *span)) for span in read]
    readable = [other for other in without if other is not None]
    answers = outputs(model, task, [row, *readable])
    fallen = iter((answers[0] - answers[1:])[:, int(answers[0].argmax())].tolist())
    words = [text[start:end] for start, end in spans]
    return [
        *(
            WordEffect(word, None if other is None else next(fallen))
            for word, other in zip(words, without, strict=False)
        ),
        *(WordEffect(word, None, is_read=False) for word in words[len(read) :]),
    ]


def _leave_out(text: str, start: int, end: int) -> str:
    """With the space after it, or before it at the end: a space too many would be a token, too."""
    before, after = text[:start], text[end:]
    return before + after.lstrip() if after.strip() else before.rstrip() + after


def _read_to(task: PerSequenceTask, text: str, row: np.ndarray, spans: Sequence[tuple[int, int]]) -> int:
    """Where in the text the model stops reading: so much of it is read as all of it is."""
    if len(row) < task.shape.max_length or not spans:
        return len(text)

    def is_enough(end: int) -> bool:
        other = _parse(task, text[:end])
        return other is not None and np.array_equal(row, other)

    def least(ends: Sequence[int]) -> int:
        """By halves; the last one is known to be enough."""
        return ends[bisect_left(ends[:-1], True, key=is_enough)]

    ends = [0, *(end for _, end in spans), len(text)]
    end = least(ends)
    before = max((other for other in ends if other < end), default=0)
    return least(range(before + 1, end + 1))  # of its last word perhaps only a part, or the space before it


def _parse(task: PerSequenceTask, text: str) -> np.ndarray | None:
    """None if that cannot be read."""
    try:
        return task.parse(text)
    except Problem:
        return None
