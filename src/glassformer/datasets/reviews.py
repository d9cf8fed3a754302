"""Reviews whose label no single word gives away, and text of the same world without labels.

A review is a few sentences about a meal, a hotel, a film, … Each opinion has a side (the adjective's, turned
round by a negation) and a weight (1, 2 or 3: `fairly`, nothing, `really`; `not very`, `not`, `not … at all`).
What is conceded (`although …`, `…, but`) does not count. The label is the side on which more weight lies,
by two at least. A bag of words sees neither which adjective is negated nor which clause is conceded.

Text without labels holds such reviews too. In it an opinion is often followed by a word of joy or regret
that fits its side and weight, and most reviews by a last sentence on what the writer did then, which follows
from the label. The first word of either tells: who learns to foresee it has learnt what a review says.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

from glassformer.core.errors import user_error

Item = TypeVar("Item")

SPLITS = {"train": range(0, 8), "validation": range(8, 9), "test": range(9, 10)}
"""Of ten texts; where a text belongs follows from the text alone."""
LABELS = ("negative", "positive")

_MARGIN = 2
_AGREEING = 0.7
"""How often an opinion takes the side that the writer leans to."""
_BALANCED = 0.3
"""How often an opinion is drawn on each side, so that only their weight decides."""
_NEGATED = 0.35
_CONTRASTED = 0.32
_NEUTRAL = 0.12
_WITH_REACTION = 0.5
_WITH_CONSEQUENCE = 0.7


class Topic(NamedTuple):
    openings: tuple[str, ...]
    aspects: tuple[str, ...]
    """One that ends in s is a plural."""


_TOPICS = (
    Topic(
        ("We had dinner there on Friday.", "My sister took me to this restaurant.", "We ordered the fish."),
        ("food", "service", "wine", "music", "dessert", "soup", "salads", "waiters", "coffee"),
    ),
    Topic(
        ("We stayed there for three nights.", "The hotel is near the station.", "I booked a double room."),
        ("room", "bed", "breakfast", "view", "staff", "bathroom", "towels", "pool", "service"),
    ),
    Topic(
        ("I saw this film last week.", "We watched it at home.", "The film lasts two hours."),
        ("plot", "acting", "music", "ending", "dialogues", "pictures", "first half", "story"),
    ),
    Topic(
        ("I read this book on the train.", "A friend lent me this book.", "The book has ten chapters."),
        ("story", "style", "characters", "ending", "first chapter", "dialogues", "cover", "plot"),
    ),
    Topic(
        (
            "I bought this phone in May.",
            "The phone arrived after two days.",
            "My brother has the same phone.",
        ),
        ("screen", "battery", "camera", "sound", "menu", "case", "keyboard", "speakers"),
    ),
    Topic(
        ("We took the tour in summer.", "The tour starts at nine.", "There were twelve people on the bus."),
        ("guide", "bus", "food", "walks", "museum", "beach", "stories", "boat", "hotel"),
    ),
)
_NEUTRALS = (
    "It was a Tuesday.",
    "It rained that day.",
    "My parents came too.",
    "I paid by card.",
    "That was in the evening.",
    "I had an hour to spare.",
    "Somebody took a picture.",
    "There was a table by the door.",
)

# Adjectives by side; weights by how they are said.
_ADJECTIVES = {
    +1: ("good", "nice", "pleasant", "impressive", "satisfying", "appealing", "lovely", "remarkable"),
    -1: ("bad", "poor", "unpleasant", "disappointing", "weak", "dull", "annoying", "unattractive"),
}
_WEIGHTS = (1, 2, 3)
_DEGREES = {1: ("fairly ", "rather ", "somewhat "), 2: ("",), 3: ("very ", "really ", "extremely ")}
_AFFIRMED = (
    "the {aspect} {was} {degree}{adjective}",
    "I found the {aspect} {degree}{adjective}",
    "we thought that the {aspect} {was} {degree}{adjective}",
)
_DENIED = {
    1: (
        "the {aspect} {was} not very {adjective}",
        "the {aspect} {was} hardly {adjective}",
        "I did not find the {aspect} very {adjective}",
    ),
    2: (
        "the {aspect} {was} not {adjective}",
        "I did not find the {aspect} {adjective}",
        "the {aspect} {was} never {adjective}",
        "nobody thought that the {aspect} {was} {adjective}",
    ),
    3: (
        "the {aspect} {was} not {adjective} at all",
        "the {aspect} {was} anything but {adjective}",
        "I did not find the {aspect} {adjective} at all",
    ),
}
# The first is conceded, the second counts.
_CONTRASTS = ("{0}, but {1}", "although {0}, {1}", "{1}, although {0}", "{1}, even though {0}")

# What is foreseen must show in its first word: the state before it then knows the side.
_REACTIONS = {
    +3: ("Wonderful!", "What a joy!"),
    +2: ("Well done.", "Happily so."),
    +1: ("Fair enough.", "Fine with us."),
    -1: ("Oh well.", "Still tolerable."),
    -2: ("Sadly so.", "Alas."),
    -3: ("Horrible!", "Shame on them!"),
}
_CONSEQUENCES = {
    +1: (
        "Friends of mine must try it.",
        "Five stars from me.",
        "Tomorrow I would do it again.",
        "Smiling, I went home.",
        "Thanks to all of them.",
    ),
    -1: (
        "Never again.",
        "One star from me.",
        "Angry, I went home.",
        "Money back, please.",
        "Complaints were sent.",
    ),
}


class Review(NamedTuple):
    sentences: tuple[str, ...]
    weights: tuple[int, ...]
    """What each sentence weighs: above zero for what is liked, 0 if it says nothing that counts."""

    @property
    def text(self) -> str:
        return " ".join(self.sentences)

    @property
    def total(self) -> int:
        return sum(self.weights)


class _Writer:
    """Writes reviews from a source of random numbers, and from nothing else."""

    def __init__(self, source: random.Random) -> None:
        self.random = source.random

    def pick(self, items: Sequence[Item]) -> Item:
        # Not random.choice, whose way of drawing may change with Python's version.
        return items[int(self.random() * len(items))]

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def opinion(self, aspect: str, side: int, weight: int) -> str:
        """A clause that says so much of an aspect."""
        denied = self.chance(_NEGATED)
        pattern = self.pick(_DENIED[weight] if denied else _AFFIRMED)
        return pattern.format(
            aspect=aspect,
            was="were" if aspect.endswith("s") and aspect != "bus" else "was",
            degree=self.pick(_DEGREES[weight]),
            adjective=self.pick(_ADJECTIVES[-side if denied else side]),
        )

    def review(self) -> Review:
        topic = self.pick(_TOPICS)
        aspects = list(topic.aspects)
        sentences = [(self.pick(topic.openings), 0)]
        for side in self._sides():
            weight = self.pick(_WEIGHTS)
            clause = self.opinion(self._take(aspects), side, weight)
            if self.chance(_CONTRASTED):
                conceded = self.opinion(self._take(aspects), -side, self.pick(_WEIGHTS))
                clause = self.pick(_CONTRASTS).format(conceded, clause)
            sentences.append((clause[0].upper() + clause[1:] + ".", side * weight))
            if self.chance(_NEUTRAL):
                sentences.append((self.pick(_NEUTRALS), 0))
        return Review(*zip(*sentences, strict=True))

    def comment(self, review: Review) -> str:
        """The review with what the writer felt, and did then."""
        sentences = []
        for sentence, weight in zip(review.sentences, review.weights, strict=True):
            sentences.append(sentence)
            if weight and self.chance(_WITH_REACTION):
                sentences.append(self.pick(_REACTIONS[weight]))
        if self.chance(_WITH_CONSEQUENCE):
            sentences.append(self.pick(_CONSEQUENCES[1 if review.total > 0 else -1]))
        return " ".join(sentences)

    def _sides(self) -> list[int]:
        if self.chance(_BALANCED):
            return self.pick(([1, -1], [-1, 1]))
        leaning = self.pick((1, -1))
        return [leaning if self.chance(_AGREEING) else -leaning for _ in range(self.pick((2, 3, 3)))]

    def _take(self, aspects: list[str]) -> str:
        return aspects.pop(int(self.random() * len(aspects)))


def _split_of(text: str) -> str:
    place = zlib.crc32(text.encode()) % 10
    return next(split for split, places in SPLITS.items() if place in places)


def _written(writer: _Writer, split: str) -> Iterator[Review]:
    """Reviews of a split, without end, and never one twice."""
    seen: set[str] = set()
    while True:
        review = writer.review()
        text = review.text
        if abs(review.total) >= _MARGIN and text not in seen and _split_of(text) == split:
            seen.add(text)
            yield review


def reviews(count: int, seed: int, split: str) -> list[tuple[str, str]]:
    """Texts and their labels; fewer are the beginning of more."""
    if split not in SPLITS:
        raise user_error("no such split", path="split", value=split, allowed=list(SPLITS))
    written = _written(_Writer(random.Random(f"reviews {seed} {split}")), split)
    return [(review.text, LABELS[review.total > 0]) for review in islice(written, count)]


def review_texts(count: int, seed: int, split: str = "train") -> list[str]:
    """Texts without labels, for pre-training; no review of another split is among them."""
    purpose = f"review texts {seed}" if split == "train" else f"review texts {seed} {split}"
    writer = _Writer(random.Random(purpose))
    return [writer.comment(review) for review in islice(_written(writer, split), count)]
