"""Metrics of answers that a model wrote by itself: the task's own, and the scorers' if answers are text."""

from __future__ import annotations

import numpy as np

from glassformer.evaluation.bootstrap import share_interval
from glassformer.evaluation.corpus_scores import bleu, score_corpus
from glassformer.evaluation.interface import Decoded, Evaluable, Measured, Progress


def measure_written(
    task: Evaluable, split: str, decoded: Decoded, *, is_thorough: bool, progress: Progress | None = None
) -> Measured:
    metrics = task.compare(decoded.outputs, decoded.references)
    pairs = task.text_pairs(split)
    if pairs is None:
        is_same = np.array([o == r for o, r in zip(decoded.outputs, decoded.references, strict=True)])
        measured = Measured(metrics, decoded=decoded)
    else:
        references = [pairs[1][number] for number in decoded.numbers.tolist()]
        is_same = np.array([line == text for line, text in zip(decoded.lines, references, strict=True)])
        measured = _measure_texts(metrics, decoded, references, is_thorough=is_thorough, progress=progress)
        if "exact_match" in metrics:
            measured.metrics["exact_match"] = float(is_same.sum() / max(len(is_same), 1))
    if is_thorough and "exact_match" in metrics:
        measured.intervals["exact_match"] = share_interval(is_same, np.ones(len(is_same)))
    return measured


def _measure_texts(
    metrics: dict[str, float],
    decoded: Decoded,
    references: list[str],
    *,
    is_thorough: bool,
    progress: Progress | None,
) -> Measured:
    if not is_thorough:
        return Measured({**metrics, "bleu": bleu(decoded.lines, references)}, decoded=decoded)
    if progress is not None:
        progress("scoring", 0, 1)
    scores = score_corpus(decoded.lines, references).by_name()
    return Measured(
        metrics | {name: score.value for name, score in scores.items()},
        {name: score.interval for name, score in scores.items()},
        {"signatures": {name: score.signature for name, score in scores.items()}},
        decoded=decoded,
    )
