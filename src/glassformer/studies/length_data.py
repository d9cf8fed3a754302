"""Examples by length: train and validation up to a length, test beyond it up to twice that, as files.

Each kind of example is drawn at random, none stands in two files, and the same numbers give the same files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from glassformer.datasets.grammar import translation_pairs
from glassformer.storage.files import replace_file

Pair = tuple[str, str]
Measure = Callable[[str], int]
"""How long an input is."""
Draw = Callable[[str, int, int, np.random.Generator], Iterator[Pair]]
"""Endless pairs for a split, with lengths from one number to another."""

SEED = 0
HELD_OUT = 5
"""One sum of so many is kept from training: of the few short ones, each split has its share."""
GRAMMAR_PAIRS = 4_000
"""So many sentences are made at a time, until enough have the right length."""


def words(source: str) -> int:
    return len(source.split())


def digits(source: str) -> int:
    """Of the first number; the second has as many."""
    return len(source.partition("+")[0])


@dataclass(frozen=True)
class LengthData:
    name: str
    draw: Draw
    shortest: int
    longest: int
    """Of the training examples; the test examples are longer, up to twice as long."""
    train_examples: int
    other_examples: int
    """In validation, and in test."""
    measure: Measure = words

    @property
    def folder(self) -> str:
        """Its name follows from all that decides what stands in it."""
        decides = (self.name, self.shortest, self.longest, self.train_examples, self.other_examples, SEED)
        return f"{self.name}-{hashlib.sha256(repr(decides).encode()).hexdigest()[:8]}"

    def files(self) -> dict[str, str]:
        return {split: f"{self.folder}/{split}.tsv" for split in ("train", "validation", "test")}

    def lengths(self, file: Path) -> np.ndarray:
        """Of the inputs of a file, line by line."""
        lines = file.read_text(encoding="utf-8").splitlines()
        return np.array([self.measure(line.partition("\t")[0]) for line in lines])

    def write(self, parent: Path) -> None:
        """What is there is kept."""
        seen: set[str] = set()
        bounds = {
            "validation": (self.shortest, self.longest, self.other_examples),
            "test": (self.longest + 1, 2 * self.longest, self.other_examples),
            "train": (self.shortest, self.longest, self.train_examples),
        }
        files = {split: parent / name for split, name in self.files().items()}
        if all(file.is_file() for file in files.values()):
            return
        for number, (split, (low, high, count)) in enumerate(bounds.items()):
            drawn = self.draw(split, low, high, np.random.default_rng((SEED, number)))
            lines: list[str] = []
            while len(lines) < count:
                source, target = next(drawn)
                if source not in seen:
                    seen.add(source)
                    lines.append(f"{source}\t{target}\n")
            files[split].parent.mkdir(parents=True, exist_ok=True)
            replace_file(files[split], "".join(lines).encode())


def draw_reversals(split: str, low: int, high: int, rng: np.random.Generator) -> Iterator[Pair]:
    """Ten categories, and the same backwards."""
    while True:
        tokens = rng.integers(0, 10, rng.integers(low, high, endpoint=True)).astype(str).tolist()
        yield " ".join(tokens), " ".join(reversed(tokens))


def draw_sums(split: str, low: int, high: int, rng: np.random.Generator) -> Iterator[Pair]:
    """Two numbers of equally many digits, and their sum."""
    while True:
        digits = int(rng.integers(low, high, endpoint=True))
        first, second = rng.integers(10 ** (digits - 1), 10**digits, 2).tolist()
        is_held_out = (first + 2 * second) % HELD_OUT == 0
        if is_held_out == (split != "train"):
            yield f"{first}+{second}", str(first + second)


def draw_sentences(split: str, low: int, high: int, rng: np.random.Generator) -> Iterator[Pair]:
    """English and French of the offline grammar, by words of English; combinations of train stay its own."""
    while True:
        pairs = translation_pairs(GRAMMAR_PAIRS, int(rng.integers(2**31)), split)
        yield from (pair for pair in pairs if low <= len(pair[0].split()) <= high)
