"""Scores of generated text: BLEU, chrF, TER and exact match, with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glassformer.evaluation.intervals import (
    RESAMPLES,
    SEED,
    Interval,
    percentile_interval,
    resampled_sums,
    share_interval,
)
from glassformer.evaluation.metrics import Decoded, Evaluable, Measured, Progress, known_intervals


@dataclass(frozen=True)
class CorpusScore:
    """Score of a corpus by one sacreBLEU metric, with its confidence interval."""

    value: float
    """Score from 0 to 100, as in sacreBLEU. TER exceeds 100 if there are more edits than words."""
    interval: Interval | None
    """None without texts, and if all bootstrap resamples have the same score."""
    signature: str
    """sacreBLEU signature: name and settings of the metric."""


@dataclass(frozen=True)
class CorpusScores:
    """BLEU, chrF and TER of a corpus."""

    bleu: CorpusScore
    chrf: CorpusScore
    ter: CorpusScore

    def by_name(self) -> dict[str, CorpusScore]:
        """Return the scores by metric name."""
        return {"bleu": self.bleu, "chrf": self.chrf, "ter": self.ter}


@dataclass(frozen=True)
class SentenceScore:
    """Texts and scores of one sentence. `number` counts scored sentences from 1, not lines of a file."""

    number: int
    source: str
    reference: str
    hypothesis: str
    bleu: float
    chrf: float


def score_corpus(hypotheses: Sequence[str], references: Sequence[str]) -> CorpusScores:
    """Return BLEU, chrF and TER with confidence intervals."""
    from sacrebleu.metrics import BLEU, CHRF, TER

    _check_lengths(hypotheses, references)
    return CorpusScores(*(_score(metric(), hypotheses, references) for metric in (BLEU, CHRF, TER)))


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Return BLEU without a confidence interval: fast enough for every validation."""
    from sacrebleu.metrics import BLEU

    _check_lengths(hypotheses, references)
    if not hypotheses:
        return math.nan
    # `force` silences a warning about tokenized text, which the final scores print once.
    return float(BLEU(force=True).corpus_score(list(hypotheses), [list(references)]).score)


def sentence_table(
    sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str], count: int = 3
) -> dict[str, list[SentenceScore]]:
    """Return the `count` best, typical (around the median) and worst sentences, without repetition.

    On ties the longer sentences come first.
    """
    from sacrebleu.metrics import BLEU, CHRF

    bleu_metric, chrf_metric = BLEU(effective_order=True), CHRF()
    scored = [
        SentenceScore(
            number,
            source,
            reference,
            hypothesis,
            float(bleu_metric.sentence_score(hypothesis, [reference]).score),
            float(chrf_metric.sentence_score(hypothesis, [reference]).score),
        )
        for number, (source, hypothesis, reference) in enumerate(
            zip(sources, hypotheses, references, strict=True), start=1
        )
    ]
    # Rounded, because a perfect score may be slightly above 100.
    scored.sort(key=lambda scored: (-round(scored.bleu, 6), -round(scored.chrf, 6), -len(scored.reference)))
    best, rest = scored[:count], scored[count:]
    split = max(0, len(rest) - count)
    worst, between = rest[split:][::-1], rest[:split]
    middle = max(0, min(len(scored) // 2 - count - count // 2, len(between) - count))
    return {"best": best, "typical": between[middle : middle + count], "worst": worst}


def one_line(text: str) -> str:
    """Replace line breaks by spaces, for a file with one line per sentence. This changes no score."""
    return text.replace("\r\n", " ").replace("\n", " ").replace("\r", " ")


def _check_lengths(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} references")


def _score(metric: Any, hypotheses: Sequence[str], references: Sequence[str]) -> CorpusScore:
    """Return score and bootstrap confidence interval of a sacreBLEU metric."""
    if not hypotheses:
        return CorpusScore(math.nan, None, "")
    counts = metric._extract_corpus_statistics(list(hypotheses), [list(references)])
    score = metric._aggregate_and_compute(counts)
    resampled = resampled_sums(np.array(counts, dtype=np.float64))
    values = np.array([metric._compute_score_from_stats(sums).score for sums in resampled.tolist()])
    metric.n_bootstrap, metric.seed = RESAMPLES, SEED
    signature = f"{score.name}|{metric.get_signature()}"
    return CorpusScore(float(score.score), percentile_interval(values), signature)


def measure_generated(
    task: Evaluable, split: str, decoded: Decoded, *, is_thorough: bool, progress: Progress | None = None
) -> Measured:
    """Return the metrics of generated outputs: the task's own, and text scores if the split has texts."""
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
        known_intervals({name: score.interval for name, score in scores.items()}),
        {"signatures": {name: score.signature for name, score in scores.items()}},
        decoded=decoded,
    )
