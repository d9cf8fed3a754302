"""Examples, the order in which they are seen, and how they become tensors."""

from __future__ import annotations

import hashlib
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from glassformer.blocks.heads import IGNORED
from glassformer.core.errors import ErrorDetail
from glassformer.data.token_rows import Computed, TokenRows


class Vocabulary:
    def __init__(self, symbols: Iterable[str]) -> None:
        self.symbols = list(symbols)
        self.number = {symbol: number for number, symbol in enumerate(self.symbols)}
        if len(self.number) != len(self.symbols):
            raise ValueError("a symbol stands twice in the vocabulary")

    def __len__(self) -> int:
        return len(self.symbols)

    def encode(self, symbols: Iterable[str]) -> list[int]:
        numbers = []
        for place, symbol in enumerate(symbols, start=1):
            if symbol not in self.number:
                raise ErrorDetail(
                    f"unknown symbol at place {place}",
                    value=symbol,
                    allowed=self.symbols,
                    hint="check the input",
                )
            numbers.append(self.number[symbol])
        return numbers

    def decode(self, numbers: Sequence[int]) -> list[str]:
        return [self.symbols[number] for number in numbers]


EXAMPLES_AT_A_TIME = 1 << 16

Sequences = Sequence[np.ndarray] | TokenRows | np.ndarray


@dataclass(frozen=True)
class Examples:
    """Inputs and their targets: equally long rows as one array, a list of arrays, or rows kept on disk.

    A target is a sequence, or one number per example.
    """

    inputs: Sequences
    targets: Sequences

    def __len__(self) -> int:
        return len(self.inputs)

    def lengths(self) -> np.ndarray:
        """How many tokens an example takes up, on its longer side."""
        lengths = _lengths(self.inputs)
        if self._has_one_target:
            return lengths
        others = _lengths(self.targets)
        return np.maximum(lengths, others, out=lengths if lengths.dtype == others.dtype else None)

    @property
    def _has_one_target(self) -> bool:
        return isinstance(self.targets, np.ndarray) and self.targets.ndim == 1

    def take(self, indices: np.ndarray) -> Examples:
        return Examples(_take(self.inputs, indices), _take(self.targets, indices))

    def checksum(self) -> str:
        digest = hashlib.sha256()
        for side in (self.inputs, self.targets):
            if isinstance(side, TokenRows):
                digest.update(side.checksum().encode())
                continue
            if isinstance(self.inputs, TokenRows) and isinstance(side, np.ndarray) and side.dtype.kind == "i":
                side = side.astype(np.int64)  # kept as narrow as can be, and the same data nevertheless
            rows = [np.asarray(side.shape), side] if isinstance(side, np.ndarray) else side
            for row in rows:
                digest.update(np.ascontiguousarray(row).tobytes())
                digest.update(b"|")
        return digest.hexdigest()


def _lengths(side: Sequences) -> np.ndarray:
    if isinstance(side, np.ndarray):
        return np.full(len(side), side.shape[1], dtype=np.int64)
    if isinstance(side, TokenRows):
        return side.lengths()
    return np.fromiter((len(row) for row in side), dtype=np.int64, count=len(side))


def _take(side: Sequences, indices: np.ndarray) -> Sequences:
    return side[indices] if isinstance(side, np.ndarray) else [side[int(index)] for index in indices]


def generator(seed: int, *purpose: str | int) -> np.random.Generator:
    """Random numbers that follow from the seed and the purpose, and from nothing else."""
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in purpose]
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, *words])))


def draw_each(shape: tuple[int, ...], seed: int, *purpose: str | int, indices: np.ndarray) -> torch.Tensor:
    """Numbers from 0 to 1 for each example, which do not depend on the examples beside it."""
    return torch.from_numpy(
        np.stack([generator(seed, *purpose, int(index)).random(shape) for index in indices])
    )


def in_turn(count: int) -> np.ndarray:
    """The numbers from 0, in 4 bytes each while they fit."""
    return np.arange(count, dtype=np.int32 if count <= np.iinfo(np.int32).max else np.int64)


def shuffled(count: int, random: np.random.Generator) -> np.ndarray:
    """What `random.permutation(count)` gives, to the number, in half the memory."""
    order = in_turn(count)
    random.shuffle(order)
    return order


class BatchPlan(Computed[np.ndarray]):
    """The batches of an epoch: parts of one order of the examples, taken in turns of their own."""

    def __init__(self, order: np.ndarray, borders: np.ndarray, turns: np.ndarray) -> None:
        self._order = order
        self._borders = borders
        self._turns = turns

    def __len__(self) -> int:
        return len(self._turns)

    def item(self, index: int) -> np.ndarray:
        part = self._turns[index]
        return self._order[self._borders[part] : self._borders[part + 1]].astype(np.int64)


class StepPlan(Computed[list[np.ndarray]]):
    """The batches of each step of an epoch, so many a step; the last may have fewer."""

    def __init__(self, batches: BatchPlan, size: int) -> None:
        self._batches = batches
        self._size = size

    def __len__(self) -> int:
        return -(-len(self._batches) // self._size)

    def item(self, index: int) -> list[np.ndarray]:
        return self._batches[index * self._size : (index + 1) * self._size]


def plan_batches(
    lengths: np.ndarray,
    *,
    seed: int,
    split: str,
    epoch: int,
    batch_size: int | None = None,
    batch_tokens: int | None = None,
    shuffle: bool = True,
    drop_last: bool = False,
) -> BatchPlan:
    """The batches of one epoch, each an array of example numbers.

    With `batch_size`, that many examples; with `batch_tokens`, examples of like length, as many as fit
    when padded to the longest of them.
    """
    rng = generator(seed, "order", split, epoch)
    count = len(lengths)
    order = shuffled(count, rng) if shuffle else in_turn(count)
    if batch_tokens is None:
        size = batch_size or max(1, count)
        end = count - count % size if drop_last and count >= size else count
        borders = np.append(np.arange(0, end, size), end)
        return BatchPlan(order, borders, in_turn(len(borders) - 1))
    order = _by_length(order, lengths)
    borders = np.fromiter(_bucket_borders(order, lengths, batch_tokens), dtype=np.int64)
    batches = len(borders) - 1
    return BatchPlan(order, borders, shuffled(batches, rng) if shuffle else in_turn(batches))


def split_balanced(examples: Examples, indices: np.ndarray, parts: int) -> list[np.ndarray]:
    """A batch in so many parts of like work; in each stand examples of like size, so that less is padding."""
    if parts == 1:
        return [indices]
    taken = examples.take(indices)
    sizes = _lengths(taken.inputs)
    if not examples._has_one_target:
        sizes = sizes + _lengths(taken.targets)
    order = np.argsort(sizes, kind="stable")
    done = np.cumsum(sizes[order])
    borders = np.searchsorted(done, done[-1] * np.arange(1, parts) / parts)
    return [indices[part] for part in np.split(order, borders) if len(part)]


def _by_length(order: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """As a stable sort would have it, without the numbers that sorting all at once takes beside it."""
    blocks = range(0, len(order), EXAMPLES_AT_A_TIME)
    different = np.empty(0, dtype=lengths.dtype)
    for start in blocks:
        different = np.union1d(different, lengths[start : start + EXAMPLES_AT_A_TIME])
    counts = np.zeros(len(different) + 1, dtype=np.int64)
    for start in blocks:
        places = np.searchsorted(different, lengths[start : start + EXAMPLES_AT_A_TIME])
        counts[1:] += np.bincount(places, minlength=len(different))
    free = np.cumsum(counts)[:-1]  # for each length, where the next example of it goes
    found = np.empty_like(order)
    for start in blocks:
        block = order[start : start + EXAMPLES_AT_A_TIME]
        places = np.searchsorted(different, lengths[block])
        sorting = np.argsort(places, kind="stable")
        places = places[sorting]
        counts = np.bincount(places, minlength=len(different))
        before = np.cumsum(counts) - counts
        found[free[places] + np.arange(len(block)) - before[places]] = block[sorting]
        free += counts
    return found


def _bucket_borders(by_length: np.ndarray, lengths: np.ndarray, batch_tokens: int) -> Iterator[int]:
    start = 0
    yield start

    def is_too_much(last: int) -> bool:
        return int(lengths[by_length[last]]) * (last - start + 1) > batch_tokens

    while start < len(by_length):
        start = bisect_left(range(len(by_length)), True, lo=start + 1, key=is_too_much)
        yield start


@dataclass(frozen=True)
class Batch:
    """Named inputs for a model, targets, and which examples these are."""

    inputs: dict[str, Tensor | None]
    targets: Tensor
    indices: np.ndarray

    def to(self, device: torch.device) -> Self:
        inputs = {name: None if x is None else x.to(device) for name, x in self.inputs.items()}
        return replace(self, inputs=inputs, targets=self.targets.to(device))

    def target_count(self) -> int:
        """How many real targets there are: padding never counts."""
        if self.targets.is_floating_point():
            return self.targets.numel()
        return int((self.targets != IGNORED).sum())

    def token_count(self) -> int:
        """How many real tokens are read, and written if a decoder writes: what a speed is counted in."""
        tokens, attention_mask = self.inputs["tokens"], self.inputs.get("mask")
        assert tokens is not None
        read = tokens.numel() if attention_mask is None else int(attention_mask.sum())
        return read + (self.target_count() if "target" in self.inputs else 0)


def pad(rows: Sequences, padding: int = 0) -> tuple[Tensor, Tensor | None]:
    """Rows as one tensor, padded on the right, and which places are real: None if all are."""
    if isinstance(rows, np.ndarray):
        return torch.from_numpy(rows.astype(np.int64)), None
    lengths = _lengths(rows)
    longest = int(lengths.max(initial=0))
    padded = np.full((len(rows), longest), padding, dtype=np.int64)
    for place, row in enumerate(rows):
        padded[place, : len(row)] = row
    if (lengths == longest).all():
        return torch.from_numpy(padded), None
    return torch.from_numpy(padded), torch.from_numpy(np.arange(longest) < lengths[:, None])


def collate_token_classification(examples: Examples, indices: np.ndarray) -> Batch:
    taken = examples.take(indices)
    tokens_BL, attention_mask_BL = pad(taken.inputs)
    targets_BL, _ = pad(taken.targets, IGNORED)
    return Batch({"tokens": tokens_BL, "mask": attention_mask_BL}, targets_BL, indices)


def collate_sequence_classification(examples: Examples, indices: np.ndarray) -> Batch:
    taken = examples.take(indices)
    tokens_BL, attention_mask_BL = pad(taken.inputs)
    answers_B = np.asarray(taken.targets)
    answers_B = answers_B.astype(np.float32 if answers_B.dtype.kind == "f" else np.int64)
    return Batch({"tokens": tokens_BL, "mask": attention_mask_BL}, torch.from_numpy(answers_B), indices)


def collate_causal_lm(examples: Examples, indices: np.ndarray) -> Batch:
    """Each row predicts itself, one place on; `targets` of the examples are not looked at."""
    rows = examples.take(indices).inputs
    tokens_BL, attention_mask_BL = pad(rows)
    targets_BL, _ = pad(rows, IGNORED)
    attention_mask_BL = None if attention_mask_BL is None else attention_mask_BL[:, :-1]
    return Batch(
        {"tokens": tokens_BL[:, :-1], "mask": attention_mask_BL},
        targets_BL[:, 1:].contiguous(),
        indices,
    )


def collate_seq2seq(examples: Examples, indices: np.ndarray) -> Batch:
    """Targets run from BOS to EOS: the decoder reads all but the last, and predicts all but the first."""
    taken = examples.take(indices)
    tokens_BL, attention_mask_BL = pad(taken.inputs)
    target_BL, _ = pad(taken.targets)
    answers_BL, _ = pad(taken.targets, IGNORED)
    inputs = {"tokens": tokens_BL, "mask": attention_mask_BL, "target": target_BL[:, :-1]}
    return Batch(inputs, answers_BL[:, 1:].contiguous(), indices)
