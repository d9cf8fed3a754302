"""Tasks on generated sequences: reversal, copy, sort, shift, palindrome."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from glassformer.core.errors import ErrorDetail, shorten, user_error
from glassformer.core.registry import register
from glassformer.data.batching import Examples, generator
from glassformer.models.task_types import SequenceClassification, TokenClassification
from glassformer.tasks.base import (
    SequenceClassificationTask,
    Task,
    TaskConfig,
    TokenClassificationTask,
    check_length,
)


@dataclass(frozen=True)
class Space:
    """Set of all `size` possible examples, as rows of integers, from which the splits are drawn."""

    size: int
    enumerate: Callable[[], np.ndarray]
    """Function that returns every row once. It is called only if the space is small."""
    draw: Callable[[np.random.Generator, int], np.ndarray]
    """Function of a generator and a count that draws about that many rows uniformly, with replacement."""


def share(size: int, wanted: Mapping[str, int]) -> dict[str, int]:
    """Return the number of distinct rows per split.

    These are the wanted numbers. If fewer rows exist, all of them are divided in proportion to the wanted
    numbers.
    """
    wanted = {split: count for split, count in wanted.items() if count}
    if size >= sum(wanted.values()):
        return dict(wanted)
    if size < len(wanted):
        raise user_error(
            f"only {size} different examples exist, too few for {len(wanted)} splits",
            path="task",
            hint="increase the length, the number of categories or the range of operands",
        )
    counts = {split: max(1, size * count // sum(wanted.values())) for split, count in wanted.items()}
    largest = max(counts, key=lambda split: counts[split])
    counts[largest] += size - sum(counts.values())
    return counts


def choose_rows(space: Space, counts: Mapping[str, int], data_seed: int) -> dict[str, np.ndarray]:
    """Choose distinct rows for each split, so that no row is in two splits."""
    # Train comes last, so that the number of training examples does not affect the other splits.
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
    """Draw `count` distinct rows that are not in `seen`, and add these rows to `seen`."""
    parts, missing = [], count
    while missing:
        rows = np.ascontiguousarray(space.draw(rng, missing))
        fresh = []
        for index, row in enumerate(rows):
            key = row.tobytes()
            if key not in seen:
                seen.add(key)
                fresh.append(index)
        parts.append(rows[fresh])
        missing -= len(fresh)
    return np.concatenate(parts) if len(parts) > 1 else parts[0]


def choose_splits(space: Space, wanted: Mapping[str, int], data_seed: int) -> dict[str, np.ndarray]:
    """Choose distinct rows for each split. If too few exist, the training split repeats its rows."""
    rows = choose_rows(space, share(space.size, wanted), data_seed)
    return {**rows, "train": repeat_to(rows["train"], wanted["train"])}


def repeat_to(rows: np.ndarray, count: int) -> np.ndarray:
    """Repeat the rows until there are `count`. If there are already more, return them unchanged."""
    return rows if len(rows) >= count else rows[np.arange(count) % len(rows)]


PALINDROME_LABELS = ["no palindrome", "palindrome"]


class SequencesConfig(TaskConfig):
    """Options shared by all tasks on generated sequences."""

    length: int = Field(100, ge=1, le=1_000_000, description="tokens per sequence")
    categories: int = Field(10, ge=2, le=1_000_000, description="number of distinct tokens, numbered from 0")
    train_examples: int = Field(50_000, ge=1, description="number of training examples")
    validation_examples: int = Field(1_000, ge=1, description="number of validation examples")
    test_examples: int = Field(10_000, ge=0, description="number of test examples")
    data_seed: int = Field(0, ge=0, description="seed of the examples, independent of the seed of the run")

    def targets(self, inputs: np.ndarray) -> np.ndarray:
        """Return the targets for these inputs, one row per example."""
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
        """Return the space of all sequences of this length."""

        def enumerate_all() -> np.ndarray:
            numbers = np.arange(self.categories**length)
            powers = self.categories ** np.arange(length)[::-1]
            return (numbers[:, None] // powers % self.categories).astype(self.token_type)

        def draw(rng: np.random.Generator, count: int) -> np.ndarray:
            return rng.integers(0, self.categories, (count, length), dtype=self.token_type)

        return Space(self.number_of_sequences(length), enumerate_all, draw)

    def number_of_sequences(self, length: int) -> int:
        """Return the number of sequences, capped at 2⁶² because huge integers take seconds to compute."""
        bits = length * math.log2(self.categories)
        return self.categories**length if bits < 62 else 1 << 62


class SequenceTask(Task):
    """Base class for tasks on sequences of integers: parses and shows them."""

    config: SequencesConfig

    def parse(self, text: str) -> np.ndarray:
        """Parse `3 1 4`, `3,1,4` or `[3, 1, 4]`. Also parse `314` if all tokens are single digits."""
        words = text.strip().strip("[]()").replace(",", " ").split()
        if not words:
            raise ErrorDetail("the line is empty: no sequence to read", hint="type 3 1 4")
        if len(words) == 1 and self.config.categories <= 10 and words[0].isdigit():
            words = list(words[0])
        last = self.config.categories - 1
        tokens = []
        for position, word in enumerate(words):
            # int() would also accept 1_0 and digits of other scripts.
            token = (word.lstrip("0") or "0") if word.isascii() and word.isdigit() else ""
            if not token or len(token) > 9 or int(token) > last:
                symbol = shorten(repr(word), 40)
                raise ErrorDetail(
                    f"unknown symbol {symbol} at position {position} (counted from 0): expected numbers from"
                    f" 0 to {last}"
                )
            tokens.append(int(token))
        return check_length(tokens, self.config.length)

    def input_symbols(self, tokens: Sequence[int]) -> list[str]:
        return [str(token) for token in tokens]

    output_symbols = input_symbols

    def warning(self, tokens: Sequence[int], text: str = "") -> str | None:
        if len(tokens) == self.config.length:
            return None
        return f"the model was trained on sequences of {self.config.length} tokens, not of {len(tokens)}"

    def solve(self, tokens: Sequence[int]) -> list[int] | None:
        return np.atleast_1d(self.config.targets(np.array([tokens]))[0]).tolist()


class TokenSequenceTask(SequenceTask, TokenClassificationTask):
    """Task that predicts one output token for each input token."""

    drop_last = True

    def __init__(self, config: TokenSequencesConfig) -> None:
        self.config = config
        task_type = TokenClassification(
            vocabulary=config.categories, max_length=config.length, classes=config.categories
        )
        self._space = config.sequences(config.length)
        notes = _describe_small_space("sequences", self._space.size, config.sizes())
        super().__init__(task_type, self._generate, notes)

    def _generate(self) -> dict[str, Examples]:
        chosen = choose_splits(self._space, self.config.sizes(), self.config.data_seed)
        return {split: Examples(rows, self.config.targets(rows)) for split, rows in chosen.items()}


class TokenSequencesConfig(SequencesConfig):
    """Options shared by the tasks that predict one output token for each input token."""

    def build(self, seed: int) -> TokenSequenceTask:
        return TokenSequenceTask(self)


@register
class ReversalConfig(TokenSequencesConfig):
    """Reverse a random sequence: the output at each position is the token of the mirrored position.

    Use it to see attention learn an exact pattern, the anti-diagonal. It needs absolute positions:
    choose sinusoidal or learned positions.
    """

    kind: Literal["reversal"] = "reversal"
    needs_absolute_positions = True

    def targets(self, inputs: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(inputs[:, ::-1])


@register
class CopyConfig(TokenSequencesConfig):
    """Copy a random sequence, token by token.

    Use it as the simplest check of a model: each token reads itself.
    """

    kind: Literal["copy"] = "copy"

    def targets(self, inputs: np.ndarray) -> np.ndarray:
        return inputs


@register
class SortConfig(TokenSequencesConfig):
    """Sort a random sequence in ascending order.

    Use it for a task in which every output depends on all inputs.
    """

    kind: Literal["sort"] = "sort"

    def targets(self, inputs: np.ndarray) -> np.ndarray:
        return np.sort(inputs, axis=1, kind="stable")  # a radix sort


@register
class ShiftConfig(TokenSequencesConfig):
    """Rotate a random sequence to the right: each output is the token a fixed distance away.

    Use it for a task that distances solve, to compare positional encodings with reversal.
    """

    kind: Literal["shift"] = "shift"
    offset: int = Field(1, description="positions to rotate by; negative: to the left")

    def targets(self, inputs: np.ndarray) -> np.ndarray:
        return np.roll(inputs, self.offset, axis=1)


@register
class PalindromeConfig(SequencesConfig):
    """Classify random sequences as palindromes or not.

    Use it for a classification that compares pairs of tokens.

    Half of the sequences are palindromes. Each other sequence is a palindrome with two unequal tokens of its
    left half swapped, so that token counts carry no information.
    """

    kind: Literal["palindrome"] = "palindrome"
    needs_absolute_positions = True
    length: int = Field(16, ge=4, le=1_000_000, description="tokens per sequence")

    def build(self, seed: int) -> PalindromeTask:
        return PalindromeTask(self)

    def targets(self, inputs: np.ndarray) -> np.ndarray:
        return (inputs == inputs[:, ::-1]).all(axis=1).astype(np.uint8)

    def halves(self) -> Space:
        """Return the space of left halves from which palindromes are made.

        For an odd length, a left half ends with the middle token. Each has two unequal tokens before the
        middle, so that swapping them gives a sequence that is not a palindrome.
        """
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
    """Palindrome classification task. Each left half gives one palindrome and one other sequence."""

    drop_last = True

    def __init__(self, config: PalindromeConfig) -> None:
        self.config: PalindromeConfig = config
        task_type = SequenceClassification(
            vocabulary=config.categories, max_length=config.length, outputs=len(PALINDROME_LABELS)
        )
        self._space = config.halves()
        self._pairs = {split: -(-count // 2) for split, count in config.sizes().items()}
        notes = _describe_small_space("usable palindromes", self._space.size, self._pairs)
        super().__init__(task_type, self._generate, notes)

    def _generate(self) -> dict[str, Examples]:
        chosen = choose_splits(self._space, self._pairs, self.config.data_seed)
        sizes = self.config.sizes()
        return {split: self._complete(split, halves, sizes[split]) for split, halves in chosen.items()}

    def _complete(self, split: str, halves: np.ndarray, count: int) -> Examples:
        half = self.config.length // 2
        right = halves[:, half - 1 :: -1]
        palindromes = np.concatenate([halves, right], axis=1)
        others = palindromes.copy()
        # Random keys choose one position, and another among those with an unequal token.
        rows = np.arange(len(halves))
        rng = generator(self.config.data_seed, "exchange", split)
        keys = rng.random((len(halves), half), dtype=np.float32)
        one = keys.argmax(axis=1)
        unequal = halves[:, :half] != halves[rows, one][:, None]
        other = np.where(unequal, keys, np.float32(-1)).argmax(axis=1)
        others[rows, one], others[rows, other] = halves[rows, other], halves[rows, one]
        inputs = np.stack([palindromes, others], axis=1).reshape(-1, self.config.length)[:count]
        return Examples(inputs, self.config.targets(inputs))

    def output_symbols(self, tokens: Sequence[int]) -> list[str]:
        return [PALINDROME_LABELS[token] for token in tokens]


def _describe_small_space(what: str, size: int, wanted: dict[str, int]) -> list[str]:
    """Return a note for the user if fewer examples exist than the splits want, else an empty list."""
    counts = share(size, wanted)
    if all(counts.get(split, 0) >= count for split, count in wanted.items()):
        return []
    shares = ", ".join(f"{split} {count:,}" for split, count in counts.items())
    return [
        f"only {size:,} {what} exist, divided without overlap ({shares}); "
        "training repeats its examples, the other splits are smaller than requested"
    ]
