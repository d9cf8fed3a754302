"""Data of the transfer studies: pre-training text without test leakage, and a bag-of-words baseline."""

from __future__ import annotations

import hashlib
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from glassformer.core.config import validate
from glassformer.data.readers import DataConfig
from glassformer.evaluation.intervals import Interval, ratio_interval, share_interval
from glassformer.storage.files import atomic_write
from glassformer.tasks.classification import ClassificationConfig
from glassformer.tasks.text import DataReport, Texts

ROLES = {"input": "text"}
OWN = "the task's own texts, {}"
ANCHOR_WORDS = 5
"""Minimum number of words of a test text that is searched inside every line.

A shorter text is compared with whole lines only, because unrelated lines may contain the same few words.
"""

_WORD = re.compile(r"\w+")
_LINE_BREAK = re.compile(r"<br\s*/?>")
_PUNCTUATION = re.compile(r"\s*([^\w\s'’-])\s*")


@dataclass(frozen=True)
class TextSource:
    """Source of texts: a data file, described in the same way as `task.data` in a config."""

    data: Mapping[str, Any]
    as_polarity: bool = False
    """True to rewrite texts like the data set movie_polarity: lower case, spaces around punctuation."""

    @property
    def name(self) -> str:
        """Name of the source in reports: the path of its data file."""
        return str(self.data["train"])

    def texts(self) -> Iterator[str]:
        """Yield the texts of the file, without HTML line breaks."""
        stream = validate(DataConfig, dict(self.data)).stream("train", ROLES)
        assert stream is not None  # `train` is a required key
        for record in stream:
            text = _LINE_BREAK.sub(" ", str(record.values["input"]))
            yield _PUNCTUATION.sub(r" \1 ", text.lower()) if self.as_polarity else text


@dataclass(frozen=True)
class TextPlan:
    """Sources of the pre-training text: files, and splits of the classification task without their labels."""

    sources: Sequence[TextSource]
    own_splits: Sequence[str]
    own_times: int = 1
    """Number of times that an epoch reads each text of `own_splits`, with other masked words each time."""
    quick_lines: int = 4000
    """Maximum number of lines per source in the quick version of the study."""


@dataclass(frozen=True)
class PretrainingText:
    """Pre-training file with one text per line, and its statistics."""

    path: Path
    record: dict[str, Any]
    """Statistics of the file: lines by source, counts of omitted lines, and the checksum."""


class TestTexts:
    """Index of the test set's texts that detects them in other text, ignoring case and punctuation."""

    __test__ = False  # tells pytest that this is not a test class

    def __init__(self, texts: Iterable[str]) -> None:
        self._short: set[tuple[str, ...]] = set()
        self._long: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
        for text in texts:
            words = _words(text)
            if 0 < len(words) < ANCHOR_WORDS:
                self._short.add(words)
            elif words:
                self._long.setdefault(words[:ANCHOR_WORDS], []).append(words)

    def occur_in(self, line: str) -> bool:
        """Return True if the line contains a test text."""
        words = _words(line)
        if words in self._short:
            return True
        for start in range(len(words) - ANCHOR_WORDS + 1):
            for sought in self._long.get(words[start : start + ANCHOR_WORDS], ()):
                if words[start : start + len(sought)] == sought:
                    return True
        return False


def _words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(text.casefold()))


def gather_text(
    plan: TextPlan, task: ClassificationConfig, folder: Path, *, is_quick: bool
) -> PretrainingText:
    """Write the pre-training text to a file named by its checksum; leave out lines with test texts."""
    splits = task.model_copy(update={"train_limit": None}).texts(DataReport())
    test = TestTexts(str(text) for text in splits["test"].column("input"))
    parts: dict[str, Iterable[str]] = {source.name: source.texts() for source in plan.sources}
    for split in plan.own_splits:
        parts[OWN.format(split)] = map(str, splits[split].column("input"))
    times = dict.fromkeys(map(OWN.format, plan.own_splits), plan.own_times)
    lines: dict[str, int] = {}
    counts = Counter[str]()
    left_out = {"holds a test text": 0, "duplicate": 0, "empty": 0}
    for name, texts in parts.items():
        for text in islice(texts, plan.quick_lines if is_quick else None):
            line = " ".join(text.split())
            if not line:
                left_out["empty"] += 1
            elif line in lines:
                left_out["duplicate"] += 1
            elif test.occur_in(line):
                left_out["holds a test text"] += 1
            else:
                lines[line] = times.get(name, 1)
                counts[name] += 1
    data = "".join(f"{line}\n" * count for line, count in lines.items()).encode()
    sha256 = hashlib.sha256(data).hexdigest()
    path = folder / f"text-{sha256[:8]}.txt"
    if not path.exists():
        atomic_write(path, data)
    record = {
        "file": path.name,
        "sha256": sha256,
        "lines": len(lines),
        "by_source": dict(counts),
        "own_times": plan.own_times,
        "left_out": left_out,
    }
    return PretrainingText(path, record)


# ---------------------------------------------------------------- bag-of-words baseline

BASELINE = "TF-IDF + logistic regression"
BASELINE_HINT = "pip install 'glassformer[classic]'"
REGULARISATIONS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Inverse regularisation strengths C to try. The validation split selects one; the smallest wins ties."""


@dataclass(frozen=True)
class BaselineResult:
    """Accuracy of the bag-of-words baseline for one number of labelled texts."""

    labels: int
    """Number of training examples."""
    strength: float
    """Inverse regularisation strength C that the validation split selected."""
    validation_accuracy: float
    test_accuracy: float
    interval: Interval
    """Bootstrap confidence interval of the test accuracy, over test examples."""
    test_examples: int
    features: int
    seconds: float


def has_baseline() -> bool:
    """Return True if scikit-learn, an optional dependency, is installed."""
    return find_spec("sklearn") is not None


def measure_baseline(task: ClassificationConfig) -> BaselineResult:
    """Train logistic regression on TF-IDF of words and word pairs, and return its accuracy.

    It uses the same splits as the models. It is deterministic, because the bootstrap has a fixed seed.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    started = time.perf_counter()
    splits = task.texts(DataReport())
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    train = vectorizer.fit_transform(_inputs(splits["train"]))
    validation, test = (vectorizer.transform(_inputs(splits[split])) for split in ("validation", "test"))
    best, best_accuracy, best_strength = None, -1.0, 0.0
    for strength in REGULARISATIONS:
        model = LogisticRegression(C=strength, max_iter=2000).fit(train, _labels(splits["train"]))
        accuracy = float(_correct(model.predict(validation), splits["validation"]).mean())
        if accuracy > best_accuracy:
            best, best_accuracy, best_strength = model, accuracy, strength
    assert best is not None
    correct = _correct(best.predict(test), splits["test"])
    ones = np.ones(len(correct))
    return BaselineResult(
        labels=len(splits["train"]),
        strength=best_strength,
        validation_accuracy=best_accuracy,
        test_accuracy=float(correct.mean()),
        interval=ratio_interval(correct, ones) or share_interval(correct, ones),
        test_examples=len(correct),
        features=train.shape[1],
        seconds=round(time.perf_counter() - started, 3),
    )


def _inputs(split: Texts) -> list[str]:
    return [str(text) for text in split.column("input")]


def _labels(split: Texts) -> list[str]:
    return [str(label).strip() for label in split.column("target")]


def _correct(predicted: Sequence[str], split: Texts) -> np.ndarray:
    return (np.asarray(predicted) == np.asarray(_labels(split))).astype(np.float64)
