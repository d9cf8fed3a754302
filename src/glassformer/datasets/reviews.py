"""Generated reviews whose label no single word reveals, and unlabelled text about the same topics.

A review is a few sentences about a meal, a hotel or a film. Each opinion has a side, positive or negative.
The side is that of the adjective, reversed by a negation. Each opinion also has a weight: 1 for `fairly` and
`not very`, 2 for a plain adjective and `not`, 3 for `really` and `not … at all`. A concession (`although …`,
`…, but`) does not count. The label is the side with more weight, and the weights differ by at least 2. A
bag-of-words model sees neither which adjective is negated nor which clause is a concession.

Unlabelled text contains such reviews too. An opinion is often followed by an exclamation that fits its side
and weight. Most reviews end with a consequence that follows from the label. The first word of an exclamation
or a consequence reveals the side, so that a language model must learn the opinion to predict this word.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import NamedTuple, TypeVar

from glassformer.core.errors import user_error
from glassformer.datasets.tables import read_table

Item = TypeVar("Item")

SPLITS = {"train": range(0, 8), "validation": range(8, 9), "test": range(9, 10)}
"""Values of a text's hash (0 to 9) for each split. The text alone determines its split."""
LABELS = ("negative", "positive")

_WEIGHTS = (1, 2, 3)
_MARGIN = 2
"""Minimum difference between the total weights of positive and negative opinions in a review."""
_AGREEING = 0.7
"""Probability that an opinion has the same polarity, positive or negative, as its review."""
_BALANCED = 0.3
"""Probability of a review with one positive and one negative opinion, so that the weights decide."""
_NEGATED = 0.35
_CONTRASTED = 0.32
_NEUTRAL = 0.12
_WITH_REACTION = 0.5
_WITH_CONSEQUENCE = 0.7


@dataclass(frozen=True, slots=True)
class _Line:
    """Row of `reviews.tsv`: a list name such as `opening`, a key such as `hotel`, and a text."""

    list: str
    key: str
    text: str


@cache
def _texts() -> dict[str, dict[str, list[str]]]:
    """Return the texts by list name and key. A key is a topic, weight, side (`-1`) or both (`-3`)."""
    texts: dict[str, dict[str, list[str]]] = {}
    for line in read_table("reviews.tsv", _Line):
        texts.setdefault(line.list, {}).setdefault(line.key, []).append(line.text)
    return texts


class Review(NamedTuple):
    sentences: tuple[str, ...]
    weights: tuple[int, ...]
    """Signed weight of each sentence: positive for praise, negative for criticism, 0 for neither."""

    @property
    def text(self) -> str:
        return " ".join(self.sentences)

    @property
    def total(self) -> int:
        return sum(self.weights)


class _Generator:
    """Generator of random reviews, and of unlabelled texts made from them."""

    def __init__(self, source: random.Random) -> None:
        self.random = source.random
        self.texts = _texts()

    def pick(self, items: Sequence[Item]) -> Item:
        # random.choice may draw differently in another version of Python.
        return items[int(self.random() * len(items))]

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def opinion(self, aspect: str, side: int, weight: int) -> str:
        """Return a random clause that rates an aspect, such as `the soup was really good`."""
        denied = self.chance(_NEGATED)
        pattern = self.pick(self.texts["denied"][str(weight)] if denied else self.texts["affirmed"]["any"])
        degree = self.pick(self.texts["degree"][str(weight)])
        adjective = self.pick(self.texts["adjective"][f"{-side if denied else side:+d}"])
        return pattern.format(
            aspect=aspect,
            was="were" if aspect.endswith("s") and aspect != "bus" else "was",
            adjective=adjective if denied else degree.format(adjective=adjective),
        )

    def review(self) -> Review:
        topic = self.pick(list(self.texts["opening"]))
        aspects = list(self.texts["aspect"][topic])
        sentences = [(self.pick(self.texts["opening"][topic]), 0)]
        for side in self._sides():
            weight = self.pick(_WEIGHTS)
            clause = self.opinion(self._take(aspects), side, weight)
            if self.chance(_CONTRASTED):
                conceded = self.opinion(self._take(aspects), -side, self.pick(_WEIGHTS))
                clause = self.pick(self.texts["contrast"]["any"]).format(conceded, clause)
            sentences.append((clause[0].upper() + clause[1:] + ".", side * weight))
            if self.chance(_NEUTRAL):
                sentences.append((self.pick(self.texts["neutral"]["0"]), 0))
        return Review(*zip(*sentences, strict=True))

    def comment(self, review: Review) -> str:
        """Return a review as unlabelled text, with random exclamations and, mostly, a final consequence."""
        sentences = []
        for sentence, weight in zip(review.sentences, review.weights, strict=True):
            sentences.append(sentence)
            if weight and self.chance(_WITH_REACTION):
                sentences.append(self.pick(self.texts["reaction"][f"{weight:+d}"]))
        if self.chance(_WITH_CONSEQUENCE):
            sentences.append(self.pick(self.texts["consequence"]["+1" if review.total > 0 else "-1"]))
        return " ".join(sentences)

    def _sides(self) -> list[int]:
        if self.chance(_BALANCED):
            return self.pick(([1, -1], [-1, 1]))
        leaning = self.pick((1, -1))
        return [leaning if self.chance(_AGREEING) else -leaning for _ in range(self.pick((2, 3, 3)))]

    def _take(self, aspects: list[str]) -> str:
        return aspects.pop(int(self.random() * len(aspects)))


def _split_of(text: str) -> str:
    bucket = zlib.crc32(text.encode()) % 10
    return next(split for split, buckets in SPLITS.items() if bucket in buckets)


def _generate(generator: _Generator, split: str) -> Iterator[Review]:
    """Yield an endless stream of distinct reviews that belong to a split."""
    seen: set[str] = set()
    while True:
        review = generator.review()
        text = review.text
        if abs(review.total) >= _MARGIN and text not in seen and _split_of(text) == split:
            seen.add(text)
            yield review


def reviews(count: int, seed: int, split: str) -> list[tuple[str, str]]:
    """Return the first `count` pairs of text and label of the stream for this seed and split."""
    if split not in SPLITS:
        raise user_error("no such split", path="split", value=split, allowed=list(SPLITS))
    generated = _generate(_Generator(random.Random(f"reviews {seed} {split}")), split)
    return [(review.text, LABELS[review.total > 0]) for review in islice(generated, count)]


def review_texts(count: int, seed: int, split: str = "train") -> list[str]:
    """Return `count` unlabelled texts for pre-training, made from reviews of this split alone."""
    purpose = f"review texts {seed}" if split == "train" else f"review texts {seed} {split}"
    generator = _Generator(random.Random(purpose))
    return [generator.comment(review) for review in islice(_generate(generator, split), count)]
