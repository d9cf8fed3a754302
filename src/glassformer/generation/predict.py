"""Predictions for rows of tokens: batch, run the model or decode, read the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from glassformer.blocks.heads import RegressionHead
from glassformer.core.threads import ThreadPool
from glassformer.data.batching import pad
from glassformer.generation.cpu import is_local, numpy_matmul, prepack
from glassformer.generation.decoding import generate, is_observed
from glassformer.generation.search import Hypothesis
from glassformer.generation.strategies import DecodingConfig
from glassformer.models.base import Model, SupportsGeneration, evaluating


@dataclass(frozen=True)
class Prediction:
    """Tokens (or one class, or one number), how likely the whole is, and how likely each part was."""

    tokens: list[int]
    probability: float | None
    probabilities: list[float]
    alternatives: list[list[tuple[int, float]]]
    """For each part the likeliest tokens with their probabilities."""
    value: float | None = None


ALTERNATIVES = 5


def predict_tokens(
    model: Model, rows: Sequence[np.ndarray], forbidden: Sequence[int] = ()
) -> list[Prediction]:
    logits_BLV = _forward(model, rows)
    if forbidden:
        logits_BLV = logits_BLV.index_fill(-1, torch.tensor(forbidden), -torch.inf)
    return [_choose(logits[: len(row)]) for logits, row in zip(logits_BLV, rows, strict=True)]


def predict_sequences(model: Model, rows: Sequence[np.ndarray]) -> list[Prediction]:
    answers_BV = _forward(model, rows)
    if isinstance(model.head, RegressionHead):
        return [Prediction([], None, [], [], float(value)) for value in answers_BV.squeeze(-1)]
    return [_choose(logits[None]) for logits in answers_BV]


def predict_by_decoding(
    model: Model,
    rows: Sequence[np.ndarray],
    *,
    begin: int,
    end: int,
    decoding: DecodingConfig,
    forbidden: Sequence[int] = (),
    is_scored: bool = True,
) -> list[list[Prediction]]:
    """The hypotheses of each row, the best first. Without `is_scored` their probabilities may be left out."""
    if not isinstance(model, SupportsGeneration):
        raise TypeError(f"{type(model).__name__} cannot write")
    tokens_BL, attention_mask_BL = _tensors(model, rows)
    written = generate(
        model,
        {"tokens": tokens_BL, "attention_mask": attention_mask_BL},
        begin=begin,
        end=end,
        strategy=decoding,
        forbidden=[begin, *forbidden],
        is_scored=is_scored,
    )
    return _answers(written)


def predict_continuations(
    model: Model,
    rows: Sequence[np.ndarray],
    decoding: DecodingConfig,
    end: int | None = None,
    forbidden: Sequence[int] = (),
) -> list[list[Prediction]]:
    """What a language model writes after each row, as far as it has room."""
    if not isinstance(model, SupportsGeneration):
        raise TypeError(f"{type(model).__name__} cannot write")
    tokens_BL, attention_mask_BL = _tensors(model, rows)
    room = [max(1, model.task_type.max_length - len(row)) for row in rows]
    return _answers(
        generate(
            model,
            prompt_BL=tokens_BL,
            attention_mask_BL=attention_mask_BL,
            end=end,
            max_length=room,
            strategy=decoding,
            forbidden=forbidden,
        )
    )


def _answers(written: list[list[Hypothesis]]) -> list[list[Prediction]]:
    return [[_answer(hypothesis) for hypothesis in hypotheses] for hypotheses in written]


def _answer(hypothesis: Hypothesis) -> Prediction:
    logs = hypothesis.log_probabilities
    probability = math.exp(hypothesis.log_probability) if logs else None
    return Prediction(hypothesis.tokens, probability, [math.exp(log) for log in logs], [])


def _tensors(model: Model, rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor | None]:
    device = next(model.parameters()).device
    tokens_BL, attention_mask_BL = pad(list(rows))
    return tokens_BL.to(device), None if attention_mask_BL is None else attention_mask_BL.to(device)


def _forward(model: Model, rows: Sequence[np.ndarray]) -> Tensor:
    tokens_BL, attention_mask_BL = _tensors(model, rows)
    with torch.inference_mode():
        return model(tokens=tokens_BL, attention_mask=attention_mask_BL).float().cpu()


def _choose(logits_LV: Tensor) -> Prediction:
    probabilities_LV = logits_LV.double().softmax(-1)
    best_LA, tokens_LA = probabilities_LV.topk(min(ALTERNATIVES, logits_LV.shape[-1]), dim=-1)
    alternatives = [
        list(zip(tokens, values, strict=True))
        for tokens, values in zip(tokens_LA.tolist(), best_LA.tolist(), strict=True)
    ]
    chosen = best_LA[:, 0].tolist()
    return Prediction(tokens_LA[:, 0].tolist(), math.prod(chosen), chosen, alternatives)


Item = TypeVar("Item")
Output = TypeVar("Output")


def round_robin(rows: Sequence[Item], parts: int) -> list[list[Item]]:
    """In so many parts of like work, if rows of like work stand together."""
    return [list(rows[part::parts]) for part in range(min(parts, len(rows)))]


def concurrency(model: nn.Module) -> int:
    """How many batches of this model are worked on side by side."""
    return torch.get_num_threads() if _is_whole(model) and not is_observed() else 1


def run_concurrently(
    model: nn.Module,
    answer: Callable[[Item], Output],
    items: Sequence[Item],
    progress: Callable[[int], None] = lambda done: None,
) -> list[Output]:
    """`answer` of each item, in their order; what it says must not depend on the items before.

    As many at once as PyTorch has threads, each with its share of them. The largest should come first.
    """
    workers = min(concurrency(model), len(items))
    run = partial(_in_threads, workers) if workers > 1 else _one_by_one
    packed = prepack(model) if _is_whole(model) else nullcontext()
    # Mode and weights belong to the model, which the threads share: none of them may set these back.
    with evaluating(model), packed, numpy_matmul():
        return run(answer, items, progress)


def _is_whole(model: nn.Module) -> bool:
    """All processes that share weights must ask such a model in turn."""
    return all(map(is_local, model.parameters()))


def _in_threads(
    workers: int, answer: Callable[[Item], Output], items: Sequence[Item], progress: Callable[[int], None]
) -> list[Output]:
    crew = ThreadPool(workers, "decoding")
    try:
        return _told(crew.each(answer, items), progress)
    finally:
        crew.close()


def _one_by_one(
    answer: Callable[[Item], Output], items: Sequence[Item], progress: Callable[[int], None]
) -> list[Output]:
    return _told(map(answer, items), progress)


def _told(answers: Iterable[Output], progress: Callable[[int], None]) -> list[Output]:
    kept = []
    for answer in answers:
        kept.append(answer)
        progress(len(kept))
    return kept
