"""Generated sequences: reversal, copy, sort, palindrome."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from glassformer.core.errors import ErrorDetail, shorten, user_error
from glassformer.core.registry import register
from glassformer.data.batching import Examples, generator
from glassformer.models.task_types import SequenceClassification, TokenClassification
from glassformer.tasks.base import SequenceClassificationTask, Task, TaskConfig, TokenClassificationTask


@dataclass(frozen=True)
class Space:
    """`size` possible rows of whole numbers."""

    size: int
    enumerate: Callable[[], np.ndarray]
    """Every row once; only called when the space is small."""
    draw: Callable[[np.random.Generator, int], np.ndarray]
    """About so many random rows, repetitions included; all rows are equally likely."""


def share(size: int, wanted: Mapping[str, int]) -> dict[str, int]:
    """How many distinct rows each split gets: what is wanted or, if too few exist, a part in proportion."""
    wanted = {split: count for split, count in wanted.items() if count}
    if size >= sum(wanted.values()):
        return dict(wanted)
    if size < len(wanted):
        raise user_error(
            f"only {size} different examples exist, too few for {len(wanted)} splits",
            path="task",
            hint="a larger task: greater length, more categories, a wider range",
        )
    counts = {split: max(1, size * count // sum(wanted.values())) for split, count in wanted.items()}
    largest = max(counts, key=lambda split: counts[split])
    counts[largest] += size - sum(counts.values())
    return counts


def choose_rows(space: Space, counts: Mapping[str, int], data_seed: int) -> dict[str, np.ndarray]:
    """So many distinct rows for each split, no row in two of them."""
    # The training split comes last, so that another number of training examples leaves the others alone.
    splits = sorted(counts, key=lambda split: (split == "train", split))
    total = sum(counts.values())
    if space.size <= 4 * total:
        order = generator(data_seed, "space").permutation(space.size)
        ends = np.cumsum([counts[split] for split in splits])
        rows = space.enumerate()
        return {split: rows[part] for split, part in zip(splits, np.split(order, ends), strict=False)}
    seen: set[bytes] = set()
    return {
        split: _draw_distinct(space, counts[split], generator(data_seed, "space", split), seen)
        for split in splits
    }


def _draw_distinct(space: Space, count: int, rng: np.random.Generator, seen: set[bytes]) -> np.ndarray:
    """`count` rows that are not in `seen`; they are added to it."""
    parts, missing = [], count
    while missing:
        rows = np.ascontiguousarray(space.draw(rng, missing))
        fresh = []
        for place, row in enumerate(rows):
            key = row.tobytes()
            if key not in seen:
                seen.add(key)
                fresh.append(place)
        parts.append(rows[fresh])
        missing -= len(fresh)
    return np.concatenate(parts) if len(parts) > 1 else parts[0]


def repeat_to(rows: np.ndarray, count: int) -> np.ndarray:
    """The rows again and again until there are `count`; all of them if there are more."""
    return rows if len(rows) >= count else rows[np.arange(count) % len(rows)]


PALINDROME_LABELS = ["no palindrome", "palindrome"]


class SequencesConfig(TaskConfig):
    """What the tasks of this family share."""

    length: int = Field(100, ge=1, le=1_000_000, description="tokens a sequence")
    categories: int = Field(10, ge=2, le=1_000_000, description="different tokens, numbered from 0")
    train_examples: Annotated[int, Field(ge=1)] = 50_000
    validation_examples: Annotated[int, Field(ge=1)] = 1_000
    test_examples: Annotated[int, Field(ge=0)] = 10_000
    data_seed: int = Field(0, ge=0, description="drives the examples; the run's seed does not")

    def answer(self, inputs: np.ndarray) -> np.ndarray:
        """The targets of inputs, a row an example."""
        raise NotImplementedError

    def sizes(self) -> dict[str, int]:
        return {
            "train": self.train_examples,
            "validation": self.validation_examples,
            "test": self.test_examples,
        }

    @property
    def token_type(self) -> np.dtype:
        return np.min_scalar_type(self.categories - 1)

    def sequences(self, length: int) -> Space:
        """All sequences of this length."""

        def enumerate_all() -> np.ndarray:
            numbers = np.arange(self.categories**length)
            powers = self.categories ** np.arange(length)[::-1]
            return (numbers[:, None] // powers % self.categories).astype(self.token_type)

        def draw(rng: np.random.Generator, count: int) -> np.ndarray:
            return rng.integers(0, self.categories, (count, length), dtype=self.token_type)

        return Space(self.number_of_sequences(length), enumerate_all, draw)

    def number_of_sequences(self, length: int) -> int:
        """Exact up to 2⁶², and no larger: a number of a million digits takes seconds."""
        bits = length * math.log2(self.categories)
        return self.categories**length if bits < 62 else 1 << 62


class SequenceTask(Task):
    """How a person writes and reads sequences of categories."""

    config: SequencesConfig

    def parse(self, text: str) -> np.ndarray:
        """`3 1 4`, `3,1,4`, `[3, 1, 4]`, and `314` if no category has two digits."""
        words = text.strip().strip("[]()").replace(",", " ").split()
        if not words:
            raise ErrorDetail("the line is empty: no sequence to read", hint="3 1 4")
        if len(words) == 1 and self.config.categories <= 10 and words[0].isdigit():
            words = list(words[0])
        length, last = self.config.length, self.config.categories - 1
        tokens = []
        for place, word in enumerate(words, start=1):
            # Not int(): it also takes 1_0, and other scripts' digits.
            token = (word.lstrip("0") or "0") if word.isascii() and word.isdigit() else ""
            if not token or len(token) > 9 or int(token) > last:
                symbol = shorten(repr(word), 40)
                raise ErrorDetail(
                    f"unknown symbol {symbol} at place {place}: numbers from 0 to {last} are known"
                )
            tokens.append(int(token))
        if len(tokens) > length:
            raise ErrorDetail(f"too long: {len(tokens)} tokens, and the model reads at most {length}")
        return np.array(tokens, dtype=np.int64)

    def input_symbols(self, tokens: Sequence[int]) -> list[str]:
        return [str(token) for token in tokens]

    def caution(self, tokens: Sequence[int], text: str = "") -> str | None:
        if len(tokens) == self.config.length:
            return None
        return f"the model has only seen sequences of {self.config.length} tokens, not of {len(tokens)}"

    def solve(self, tokens: Sequence[int]) -> list[int] | None:
        return np.atleast_1d(self.config.answer(np.array([tokens]))[0]).tolist()


class CategoryPerToken(SequenceTask, TokenClassificationTask):
    drop_last = True

    def __init__(self, config: TokenSequencesConfig) -> None:
        self.config = config
        shape = TokenClassification(
            vocabulary=config.categories, max_length=config.length, classes=config.categories
        )
        self._space = config.sequences(config.length)
        self._counts = share(self._space.size, config.sizes())
        notes = _tell_small("sequences", self._space.size, self._counts, config.sizes())
        super().__init__(shape, self._generate, notes)

    def _generate(self) -> dict[str, Examples]:
        chosen = choose_rows(self._space, self._counts, self.config.data_seed)
        chosen["train"] = repeat_to(chosen["train"], self.config.train_examples)
        return {split: Examples(rows, self.config.answer(rows)) for split, rows in chosen.items()}

    def output_symbols(self, tokens: Sequence[int]) -> list[str]:
        return [str(token) for token in tokens]


class TokenSequencesConfig(SequencesConfig):
    """A category at each place."""

    def build(self, seed: int) -> CategoryPerToken:
        return CategoryPerToken(self)


@register
class ReversalConfig(TokenSequencesConfig):
    """The sequence, last token first."""

    kind: Literal["reversal"] = "reversal"

    def answer(self, inputs: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(inputs[:, ::-1])


@register
class CopyConfig(TokenSequencesConfig):
    """The sequence itself."""

    kind: Literal["copy"] = "copy"

    def answer(self, inputs: np.ndarray) -> np.ndarray:
        return inputs


@register
class SortConfig(TokenSequencesConfig):
    """The sequence in rising order."""

    kind: Literal["sort"] = "sort"

    def answer(self, inputs: np.ndarray) -> np.ndarray:
        return np.sort(inputs, axis=1, kind="stable")  # a radix sort


@register
class ShiftConfig(TokenSequencesConfig):
    """The sequence moved to the right; what falls off comes in on the left."""

    kind: Literal["shift"] = "shift"
    places: int = Field(1, description="how far; to the left if negative")

    def answer(self, inputs: np.ndarray) -> np.ndarray:
        return np.roll(inputs, self.places, axis=1)


@register
class PalindromeConfig(SequencesConfig):
    """Does the sequence read the same from both ends?

    Half of the sequences do. Each of the others is a palindrome with two unequal tokens of its left half
    exchanged: it has the same tokens equally often, so that counting them tells nothing.
    """

    kind: Literal["palindrome"] = "palindrome"
    length: int = Field(16, ge=4, le=1_000_000, description="tokens a sequence")

    def build(self, seed: int) -> PalindromeTask:
        return PalindromeTask(self)

    def answer(self, inputs: np.ndarray) -> np.ndarray:
        return (inputs == inputs[:, ::-1]).all(axis=1).astype(np.uint8)

    def halves(self) -> Space:
        """Left halves, the middle of an odd length included, with two unequal tokens to exchange."""
        half, middle = self.length // 2, self.length % 2
        every = self.sequences(half + middle)

        def has_unequal(rows: np.ndarray) -> np.ndarray:
            return rows[(rows[:, :half] != rows[:, :1]).any(axis=1)]

        return Space(
            (self.number_of_sequences(half) - self.categories) * self.categories**middle,
            lambda: has_unequal(every.enumerate()),
            lambda rng, count: has_unequal(every.draw(rng, count)),
        )


class PalindromeTask(SequenceTask, SequenceClassificationTask):
    """Each half makes one palindrome and one other sequence; a half is in one split only."""

    drop_last = True

    def __init__(self, config: PalindromeConfig) -> None:
        self.config: PalindromeConfig = config
        shape = SequenceClassification(
            vocabulary=config.categories, max_length=config.length, outputs=len(PALINDROME_LABELS)
        )
        self._space = config.halves()
        pairs = {split: -(-count // 2) for split, count in config.sizes().items()}
        self._counts = share(self._space.size, pairs)
        notes = _tell_small("usable palindromes", self._space.size, self._counts, pairs)
        super().__init__(shape, self._generate, notes)

    def _generate(self) -> dict[str, Examples]:
        chosen = choose_rows(self._space, self._counts, self.config.data_seed)
        chosen["train"] = repeat_to(chosen["train"], -(-self.config.train_examples // 2))
        sizes = self.config.sizes()
        return {split: self._complete(split, halves, sizes[split]) for split, halves in chosen.items()}

    def _complete(self, split: str, halves: np.ndarray, count: int) -> Examples:
        half = self.config.length // 2
        right = halves[:, half - 1 :: -1]
        palindromes = np.concatenate([halves, right], axis=1)
        others = palindromes.copy()
        # Random keys choose a place, and another one among those with an unequal token.
        rows = np.arange(len(halves))
        rng = generator(self.config.data_seed, "exchange", split)
        keys = rng.random((len(halves), half), dtype=np.float32)
        one = keys.argmax(axis=1)
        unequal = halves[:, :half] != halves[rows, one][:, None]
        other = np.where(unequal, keys, np.float32(-1)).argmax(axis=1)
        others[rows, one], others[rows, other] = halves[rows, other], halves[rows, one]
        inputs = np.stack([palindromes, others], axis=1).reshape(-1, self.config.length)[:count]
        return Examples(inputs, self.config.answer(inputs))

    def output_symbols(self, tokens: Sequence[int]) -> list[str]:
        return [PALINDROME_LABELS[token] for token in tokens]


def _tell_small(what: str, size: int, counts: dict[str, int], wanted: dict[str, int]) -> list[str]:
    """What a person should know when a space is too small for the wanted splits."""
    if all(counts.get(split, 0) >= count for split, count in wanted.items()):
        return []
    shares = ", ".join(f"{split} {count:,}" for split, count in counts.items())
    return [
        f"only {size:,} {what} exist, shared out without overlap ({shares}); "
        "training repeats its own, the other splits are smaller than asked for"
    ]
