"""Hints: attention rollout and the logit lens. Each is a model of the model, and either can mislead.

Rollout (Abnar and Zuidema 2020) multiplies the layers' maps as if a token's vector were a mixture of tokens
and every head weighed alike; it knows nothing of values and feed-forward. The logit lens (nostalgebraist
2020) reads the answer from an earlier layer with the last one's eyes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from glassformer.blocks.layers import DecoderStack, EncoderStack
from glassformer.errors import Problem
from glassformer.inspection.maps import AttentionMaps, Checks, PlaceMaps
from glassformer.inspection.reading import Reading, evaluating
from glassformer.inspection.trust import Trust
from glassformer.models.base import Model
from glassformer.models.heads import RealHead
from glassformer.tasks.base import SequenceToSequenceTask, Task


def rollout(maps: AttentionMaps) -> AttentionMaps:
    """From each row to the tokens at the beginning, through all layers: half by attention, half straight on.

    One map a place. What a decoder's row has of the input (`cross`) and of the tokens written before it
    (`decoder`) adds up to 1 together.
    """
    if any(place.is_part for place in maps.places.values()):
        raise Problem("needs every row", place="rows", remedy="all rows, layers and heads")
    rolled: dict[str, PlaceMaps] = {}
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


def _one_map(place: PlaceMaps, weights: np.ndarray) -> PlaceMaps:
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
        raise Problem("at least 1", place="top", value=top, remedy="5")
    if isinstance(model.head, RealHead):
        raise Problem("this model answers with a number: there are no tokens to read", place="logit_lens")
    blocks = _last_stack(model)
    found = []
    with evaluating(model), torch.inference_mode():
        for depth in range(len(blocks) + 1):
            with _passing(blocks[depth:]):
                logits = model(**reading.inputs)[0].float().cpu().double()
            found.append(logits.reshape(-1, logits.shape[-1]).softmax(-1))
    guesses = [[_guesses(task, row, top) for row in probabilities_LV] for probabilities_LV in found]
    place = "decoder" if isinstance(task, SequenceToSequenceTask) else "encoder"
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
    raise Problem(
        "the model has no stack of blocks that can be cut short",
        place="logit_lens",
        remedy="build a model of your own from glassformer.blocks",
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
