"""Attribution of a prediction to its input: occlusion of words, attention rollout, logit lens."""

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
from glassformer.inspection.examples import TOKENS_PER_BATCH, TokenProbability
from glassformer.inspection.maps import AttentionMaps, Checks, SiteMaps, Trust
from glassformer.inspection.record import ModelInput
from glassformer.models.base import Model, evaluating
from glassformer.tasks.base import Seq2SeqTask, SequenceClassificationTask, Task


def rollout(maps: AttentionMaps) -> AttentionMaps:
    """Compute attention rollout: the product of the attention maps of all layers (Abnar and Zuidema 2020).

    Each layer counts half as attention, averaged over heads, and half as residual connection. The result has
    one map per site (`encoder`, `decoder`, `cross`), from output positions to input tokens. For a decoder,
    each row of `cross` (input tokens) and the same row of `decoder` (previous tokens) sum to 1 together.
    """
    if any(site.is_part for site in maps.sites.values()):
        raise ErrorDetail("rollout needs every row", path="rows", hint="select all rows: leave out --rows")
    rolled: dict[str, SiteMaps] = {}
    sums = []
    memory = None
    if "encoder" in maps.sites:
        encoder = maps["encoder"]
        memory = np.eye(encoder.weights.shape[2], dtype=np.float64)
        for weights in encoder.weights:
            memory = 0.5 * memory + 0.5 * weights.mean(0, dtype=np.float64) @ memory
        rolled["encoder"] = _one_map(encoder, memory)
        sums.append(memory.sum(-1))
    if "decoder" in maps.sites and "cross" in maps.sites and memory is not None:
        decoder, cross = maps["decoder"], maps["cross"]
        own = np.eye(decoder.weights.shape[2], dtype=np.float64)
        source = np.zeros(cross.weights.shape[2:], dtype=np.float64)
        for own_weights, cross_weights in zip(decoder.weights, cross.weights, strict=True):
            mixing, reading = (each.mean(0, dtype=np.float64) for each in (own_weights, cross_weights))
            own, source = 0.5 * own + 0.5 * mixing @ own, 0.5 * source + 0.5 * mixing @ source
            own, source = 0.5 * own, 0.5 * source + 0.5 * reading @ memory
        rolled["decoder"], rolled["cross"] = _one_map(decoder, own), _one_map(cross, source)
        sums.append(own.sum(-1) + source.sum(-1))
    error = max(float(np.abs(each - 1).max(initial=0.0)) for each in sums)
    checks = Checks(error, maps.checks.logit_error, maps.checks.largest_logit)
    return AttentionMaps(rolled, checks, {**maps.about, "kind": "attention rollout", "trust": "hint"})


def _one_map(site: SiteMaps, weights: np.ndarray) -> SiteMaps:
    """Return a copy of `site` whose maps of all layers and heads are replaced by the single map `weights`."""
    return replace(
        site,
        name=f"{site.name}, rollout (a hint)",
        weights=weights.astype(np.float32)[None, None],
        allowed=None if site.allowed is None else site.allowed[:1, :1],
        layers=[0],
        heads=[0],
        is_summary=True,
        value_norms=None,
    )


@dataclass(frozen=True)
class LogitLens:
    """Predictions that the output head makes from the hidden states after each layer."""

    positions: list[str]
    """Label of each position: an input token, a generated token, or one label for the whole sequence."""
    layers: list[int]
    """Numbers of layers applied before the output head; 0 is the embedding alone."""
    guesses: list[list[list[TokenProbability]]]
    """`[layer][position]`: the predicted tokens with their probabilities, most likely first."""
    outputs: list[str]
    """Most likely token at each position after the last layer, which is the model's own output."""
    trust: Trust = "hint"

    def document(self) -> dict[str, Any]:
        """Return the predictions as a JSON-serialisable dict."""
        return asdict(self)


def logit_lens(model: Model, task: Task, model_input: ModelInput, top: int = 5) -> LogitLens:
    """Apply the final norm and the output head after each layer; return the `top` most likely tokens."""
    if top < 1:
        raise ErrorDetail("must be at least 1", path="top", value=top, hint="top=5")
    if isinstance(model.head, RegressionHead):
        raise ErrorDetail(
            "the logit lens needs token or class outputs; this model predicts a number",
            hint="choose a run that classifies or generates tokens",
        )
    blocks = _last_stack(model)
    found = []
    with evaluating(model), torch.inference_mode():
        for depth in range(len(blocks) + 1):
            with _skipping(blocks[depth:]):
                logits = model(**model_input.inputs)[0].float().cpu().double()
            found.append(logits.reshape(-1, logits.shape[-1]).softmax(-1))
    guesses = [[_guesses(task, row, top) for row in probabilities_LV] for probabilities_LV in found]
    site = "decoder" if isinstance(task, Seq2SeqTask) else "encoder"
    labels = next((labels.queries for name, labels in model_input.labels.items() if name == site), [])
    rows = len(found[-1])
    positions = [str(number) for number in range(rows)] if rows > 1 else ["whole sequence"]
    positions = labels if len(labels) == rows else positions
    return LogitLens(positions, list(range(len(found))), guesses, [row[0].token for row in guesses[-1]])


def _guesses(task: Task, probabilities_V: Tensor, top: int) -> list[TokenProbability]:
    """Return the `top` most likely tokens with their probabilities."""
    best, tokens = probabilities_V.topk(min(top, len(probabilities_V)))
    names = [" ".join(task.output_symbols([token])) for token in tokens.tolist()]
    return [TokenProbability(name, value) for name, value in zip(names, best.tolist(), strict=True)]


def _last_stack(model: nn.Module) -> Sequence[nn.Module]:
    """Return the blocks of the last stack: the decoder if there is one, else the encoder."""
    for kind in (DecoderStack, EncoderStack):
        for module in model.modules():
            if isinstance(module, kind):
                return list(module.layers)
    raise ErrorDetail(
        "the model has no EncoderStack or DecoderStack, which the logit lens needs",
        hint="build your own model from the blocks of glassformer.nn",
    )


@contextmanager
def _skipping(blocks: Sequence[nn.Module]) -> Iterator[None]:
    """Make these blocks return their input unchanged inside a `with` block."""
    handles = [
        block.register_forward_hook(lambda module, arguments, output: arguments[0]) for block in blocks
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@dataclass(frozen=True)
class WordEffect:
    """Effect of one word on a classification."""

    word: str
    effect: float | None
    """Decrease of the predicted class's log-probability, or of the predicted number, if the word is removed.
    The effect is negative if the word is evidence against the prediction. It is None if the text without the
    word is empty or invalid, or if the word is beyond the maximum length."""
    is_read: bool = True
    """False if the word is entirely beyond the model's maximum length."""
    probability_effect: float | None = None
    """Decrease of the predicted class's probability if the word is removed; None if the effect is unknown or
    the model predicts a number."""


def outputs(model: Model, task: SequenceClassificationTask, rows: Sequence[np.ndarray]) -> Tensor:
    """Return the log-probabilities of the classes (rows, classes), or the predicted numbers (rows, 1)."""
    device = next(model.parameters()).device
    longest = max(len(row) for row in rows)
    size = max(1, TOKENS_PER_BATCH // max(longest, 1))
    examples = Examples(list(rows), np.zeros(len(rows), dtype=np.int64))
    chunks = []
    with evaluating(model), torch.inference_mode():
        for start in range(0, len(rows), size):
            indices = np.arange(start, min(start + size, len(rows)))
            chunks.append(model(**task.collate(examples, indices).to(device).inputs).cpu().double())
    logits = torch.cat(chunks)
    return logits if isinstance(model.head, RegressionHead) else logits.log_softmax(-1)


def word_effects(model: Model, task: SequenceClassificationTask, text: str) -> list[WordEffect]:
    """Remove each word in turn, or each token of a single word; return the effects in text order."""
    spans = word_spans(task, text)
    row = task.parse(text)
    # Truncate first: otherwise the next word of a long text would fill the gap that a word leaves.
    part = text[: _read_to(task, text, row, spans)]
    read = [span for span in spans if span[0] < len(part)]
    without = [_parse(task, _leave_out(part, *span)) for span in read]
    readable = [other for other in without if other is not None]
    every = outputs(model, task, [row, *readable])
    values = every[:, int(every[0].argmax())]
    is_class = not isinstance(model.head, RegressionHead)
    effects = iter((values[0] - values[1:]).tolist())
    changes = iter((values[0].exp() - values[1:].exp()).tolist() if is_class else [None] * len(readable))
    words = [text[start:end] for start, end in spans]
    return [
        *(
            WordEffect(word, None)
            if other is None
            else WordEffect(word, next(effects), probability_effect=next(changes))
            for word, other in zip(words, without, strict=False)
        ),
        *(WordEffect(word, None, is_read=False) for word in words[len(read) :]),
    ]


def word_spans(task: Task, text: str) -> list[tuple[int, int]]:
    """Return the start and end of each word between white space, or of each token of a single word."""
    spans = [match.span() for match in re.finditer(r"\S+", text)]
    if len(spans) != 1:
        return spans
    return list(dict.fromkeys((piece.start, piece.end) for piece in task.pieces(text)))


def _leave_out(text: str, start: int, end: int) -> str:
    """Return the text without a span and one adjacent space, because a space may be a token."""
    before, after = text[:start], text[end:]
    return before + after.lstrip() if after.strip() else before.rstrip() + after


def _read_to(
    task: SequenceClassificationTask, text: str, row: np.ndarray, spans: Sequence[tuple[int, int]]
) -> int:
    """Return the number of characters that the model reads: text beyond its maximum length is cut off."""
    if len(row) < task.task_type.max_length or not spans:
        return len(text)

    def is_enough(end: int) -> bool:
        other = _parse(task, text[:end])
        return other is not None and np.array_equal(row, other)

    def least(ends: Sequence[int]) -> int:
        """Return the smallest prefix length in `ends` with all tokens, by bisection. The last one has all."""
        return ends[bisect_left(ends[:-1], True, key=is_enough)]

    ends = [0, *(end for _, end in spans), len(text)]
    end = least(ends)
    before = max((other for other in ends if other < end), default=0)
    return least(range(before + 1, end + 1))  # the model may read only part of the last word


def _parse(task: SequenceClassificationTask, text: str) -> np.ndarray | None:
    """Return the tokens of a text, or None if the task rejects it."""
    try:
        return task.parse(text)
    except ErrorDetail:
        return None
