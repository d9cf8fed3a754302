"""Attribution: occlusion of words, attention rollout, logit lens."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from glassformer.blocks.heads import RegressionHead
from glassformer.blocks.layers import DecoderStack, EncoderStack
from glassformer.core.errors import ErrorDetail
from glassformer.data.batching import Examples
from glassformer.inspection.examples import Reading
from glassformer.inspection.maps import AttentionMaps, Checks, SiteMaps, Trust
from glassformer.models.base import Model, evaluating
from glassformer.tasks.base import Seq2SeqTask, SequenceClassificationTask, Task


def rollout(maps: AttentionMaps) -> AttentionMaps:
    """From each row to the tokens at the beginning, through all layers: half by attention, half straight on.

    One map a place. What a decoder's row has of the input (`cross`) and of the tokens written before it
    (`decoder`) adds up to 1 together.
    """
    if any(place.is_part for place in maps.places.values()):
        raise ErrorDetail("needs every row", path="rows", hint="all rows, layers and heads")
    rolled: dict[str, SiteMaps] = {}
    sums = []
    memory = None
    if "encoder" in maps.places:
        encoder = maps["encoder"]
        memory = np.eye(encoder.weights.shape[2], dtype=np.float64)
        for weights in encoder.weights:
            memory = 0.5 * memory + 0.5 * weights.mean(0, dtype=np.float64) @ memory
        rolled["encoder"] = _one_map(encoder, memory)
        sums.append(memory.sum(-1))
    if "decoder" in maps.places and "cross" in maps.places and memory is not None:
        decoder, cross = maps["decoder"], maps["cross"]
        own = np.eye(decoder.weights.shape[2], dtype=np.float64)
        of_input = np.zeros(cross.weights.shape[2:], dtype=np.float64)
        for own_weights, cross_weights in zip(decoder.weights, cross.weights, strict=True):
            mixing, reading = (each.mean(0, dtype=np.float64) for each in (own_weights, cross_weights))
            own, of_input = 0.5 * own + 0.5 * mixing @ own, 0.5 * of_input + 0.5 * mixing @ of_input
            own, of_input = 0.5 * own, 0.5 * of_input + 0.5 * reading @ memory
        rolled["decoder"], rolled["cross"] = _one_map(decoder, own), _one_map(cross, of_input)
        sums.append(own.sum(-1) + of_input.sum(-1))
    error = max(float(np.abs(each - 1).max(initial=0.0)) for each in sums)
    checks = Checks(error, maps.checks.answer_error, maps.checks.answer_size)
    return AttentionMaps(rolled, checks, {**maps.about, "what": "attention rollout", "trust": "hint"})


def _one_map(place: SiteMaps, weights: np.ndarray) -> SiteMaps:
    return replace(
        place,
        name=f"{place.name}, rolled out (a hint)",
        weights=weights.astype(np.float32)[None, None],
        allowed=None if place.allowed is None else place.allowed[:1, :1],
        layers=[0],
        heads=[0],
        is_summary=True,
        value_norms=None,
    )


@dataclass(frozen=True)
class Guess:
    token: str
    probability: float


@dataclass(frozen=True)
class LogitLens:
    positions: list[str]
    """The rows: input tokens, the tokens being written, or one for the whole."""
    layers: list[int]
    """After how many layers; 0 is the embedding alone."""
    guesses: list[list[list[Guess]]]
    """`[layer][position]`, the likeliest first."""
    answers: list[str]
    """The last layer's: the model's own."""
    trust: Trust = "hint"

    def document(self) -> dict[str, Any]:
        return asdict(self)


def logit_lens(model: Model, task: Task, reading: Reading, top: int = 5) -> LogitLens:
    """What the model would answer if it ended after each layer: those after it pass on what they get."""
    if top < 1:
        raise ErrorDetail("at least 1", path="top", value=top, hint="5")
    if isinstance(model.head, RegressionHead):
        raise ErrorDetail("this model answers with a number: there are no tokens to read", path="logit_lens")
    blocks = _last_stack(model)
    found = []
    with evaluating(model), torch.inference_mode():
        for depth in range(len(blocks) + 1):
            with _passing(blocks[depth:]):
                logits = model(**reading.inputs)[0].float().cpu().double()
            found.append(logits.reshape(-1, logits.shape[-1]).softmax(-1))
    guesses = [[_guesses(task, row, top) for row in probabilities_LV] for probabilities_LV in found]
    place = "decoder" if isinstance(task, Seq2SeqTask) else "encoder"
    names = next((names.queries for at, names in reading.names.items() if at == place), [])
    rows = len(found[-1])
    positions = names if len(names) == rows else ["the whole"] if rows == 1 else [str(n) for n in range(rows)]
    return LogitLens(positions, list(range(len(found))), guesses, [row[0].token for row in guesses[-1]])


def _guesses(task: Task, probabilities_V: Tensor, top: int) -> list[Guess]:
    best, tokens = probabilities_V.topk(min(top, len(probabilities_V)))
    names = [" ".join(task.output_symbols([token])) for token in tokens.tolist()]
    return [Guess(name, value) for name, value in zip(names, best.tolist(), strict=True)]


def _last_stack(model: nn.Module) -> Sequence[nn.Module]:
    """The blocks that end in the answer: a decoder's, if there is one."""
    for kind in (DecoderStack, EncoderStack):
        for module in model.modules():
            if isinstance(module, kind):
                return list(module.layers)
    raise ErrorDetail(
        "the model has no stack of blocks that can be cut short",
        path="logit_lens",
        hint="build a model of your own from glassformer.blocks",
    )


@contextmanager
def _passing(blocks: Sequence[nn.Module]) -> Iterator[None]:
    """These blocks hand on what they are given."""
    handles = [
        block.register_forward_hook(lambda module, arguments, output: arguments[0]) for block in blocks
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


TOKENS_AT_ONCE = 20_000


@dataclass(frozen=True)
class WordEffect:
    word: str
    effect: float | None
    """How much the chosen class's log-probability falls without the word, or the predicted number; below 0:
    the word spoke against it. None if nothing can be read without it, or if it is not read at all."""
    is_read: bool = True
    """Whether any of it stands within what the model reads of a long text."""


def outputs(model: Model, task: SequenceClassificationTask, rows: Sequence[np.ndarray]) -> Tensor:
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
    return answers if isinstance(model.head, RegressionHead) else answers.log_softmax(-1)


def word_effects(model: Model, task: SequenceClassificationTask, text: str) -> list[WordEffect]:
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


def _read_to(
    task: SequenceClassificationTask, text: str, row: np.ndarray, spans: Sequence[tuple[int, int]]
) -> int:
    """Where in the text the model stops reading: so much of it is read as all of it is."""
    if len(row) < task.task_type.max_length or not spans:
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


def _parse(task: SequenceClassificationTask, text: str) -> np.ndarray | None:
    """None if that cannot be read."""
    try:
        return task.parse(text)
    except ErrorDetail:
        return None
