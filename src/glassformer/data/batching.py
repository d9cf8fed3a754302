"""Examples, their order in an epoch, and their collation into padded batches.

The order depends only on (seed, split, epoch), so that a resumed run sees the same batches.
"""

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
from glassformer.data.token_rows import LazySequence, TokenRows


class Vocabulary:
    """List of symbols. The id of a symbol is its index in the list."""

    def __init__(self, symbols: Iterable[str]) -> None:
        self.symbols = list(symbols)
        self.ids = {symbol: number for number, symbol in enumerate(self.symbols)}
        if len(self.ids) != len(self.symbols):
            raise ValueError("the vocabulary contains a symbol twice")

    def __len__(self) -> int:
        return len(self.symbols)

    def encode(self, symbols: Iterable[str]) -> list[int]:
        ids = []
        for position, symbol in enumerate(symbols):
            if symbol not in self.ids:
                message = f"unknown symbol at position {position} (counted from 0)"
                raise ErrorDetail(message, value=symbol, allowed=self.symbols, hint="check the input")
            ids.append(self.ids[symbol])
        return ids

    def decode(self, ids: Sequence[int]) -> list[str]:
        return [self.symbols[number] for number in ids]


EXAMPLES_PER_BLOCK = 1 << 16

Sequences = Sequence[np.ndarray] | TokenRows | np.ndarray


@dataclass(frozen=True)
class Examples:
    """Inputs and targets of a split: each a 2-D array, a list of arrays of any length, or rows on disk.

    Targets may also be a 1-D array, with one number per example.
    """

    inputs: Sequences
    targets: Sequences

    def __len__(self) -> int:
        return len(self.inputs)

    def lengths(self) -> np.ndarray:
        """Return the length of each example in tokens: that of its input or target, whichever is longer."""
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
                side = side.astype(np.int64)  # stored as narrow as possible; the data are the same
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
    """Return a NumPy random generator that depends only on `seed` and `purpose`."""
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in purpose]
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, *words])))


def draw_each(shape: tuple[int, ...], seed: int, *purpose: str | int, indices: np.ndarray) -> torch.Tensor:
    """Draw an array of uniform random numbers in [0, 1) for each example of a batch.

    The numbers of an example depend on `seed`, `purpose` and its index, not on the rest of the batch.
    """
    draws = [generator(seed, *purpose, int(index)).random(shape) for index in indices]
    return torch.from_numpy(np.stack(draws))


def arange32(count: int) -> np.ndarray:
    """Return the integers from 0 to count - 1 as int32, or as int64 if int32 is too small."""
    return np.arange(count, dtype=np.int32 if count <= np.iinfo(np.int32).max else np.int64)


def shuffled(count: int, random: np.random.Generator) -> np.ndarray:
    """Return the permutation that `random.permutation(count)` would return, with half the memory."""
    order = arange32(count)
    random.shuffle(order)
    return order


@dataclass(frozen=True, eq=False)
class BatchPlan(LazySequence[np.ndarray]):
    """Batches of an epoch. Each is an array of example indices, sliced from `order` when it is accessed."""

    order: np.ndarray
    borders: np.ndarray
    batch_order: np.ndarray

    def __len__(self) -> int:
        return len(self.batch_order)

    def item(self, index: int) -> np.ndarray:
        batch = self.batch_order[index]
        return self.order[self.borders[batch] : self.borders[batch + 1]].astype(np.int64)


@dataclass(frozen=True, eq=False)
class StepPlan(LazySequence[list[np.ndarray]]):
    """Batches of each optimizer step of an epoch: `size` batches per step, or fewer in the last step."""

    batches: BatchPlan
    size: int

    def __len__(self) -> int:
        return -(-len(self.batches) // self.size)

    def item(self, index: int) -> list[np.ndarray]:
        return self.batches[index * self.size : (index + 1) * self.size]


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
    """Plan the batches of one epoch, each an array of example indices.

    `batch_size` is the number of examples per batch. `batch_tokens` is instead the maximum number of tokens
    per batch, including padding. Each batch then groups examples of similar length.
    """
    rng = generator(seed, "order", split, epoch)
    count = len(lengths)
    order = shuffled(count, rng) if shuffle else arange32(count)
    if batch_tokens is None:
        size = batch_size or max(1, count)
        end = count - count % size if drop_last and count >= size else count
        borders = np.append(np.arange(0, end, size), end)
        return BatchPlan(order, borders, arange32(len(borders) - 1))
    order = _by_length(order, lengths)
    borders = np.fromiter(_bucket_borders(order, lengths, batch_tokens), dtype=np.int64)
    batches = len(borders) - 1
    return BatchPlan(order, borders, shuffled(batches, rng) if shuffle else arange32(batches))


def split_balanced(examples: Examples, indices: np.ndarray, parts: int) -> list[np.ndarray]:
    """Split a batch into micro-batches of about equal token counts, with similar lengths in each."""
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
    """Sort the example indices in `order` stably by length. Sorting in blocks saves memory."""
    blocks = range(0, len(order), EXAMPLES_PER_BLOCK)
    distinct = np.empty(0, dtype=lengths.dtype)
    for start in blocks:
        distinct = np.union1d(distinct, lengths[start : start + EXAMPLES_PER_BLOCK])
    counts = np.zeros(len(distinct) + 1, dtype=np.int64)
    for start in blocks:
        ranks = np.searchsorted(distinct, lengths[start : start + EXAMPLES_PER_BLOCK])
        counts[1:] += np.bincount(ranks, minlength=len(distinct))
    free = np.cumsum(counts)[:-1]  # position of the next example of each length
    found = np.empty_like(order)
    for start in blocks:
        block = order[start : start + EXAMPLES_PER_BLOCK]
        ranks = np.searchsorted(distinct, lengths[block])
        sorting = np.argsort(ranks, kind="stable")
        ranks = ranks[sorting]
        counts = np.bincount(ranks, minlength=len(distinct))
        before = np.cumsum(counts) - counts
        found[free[ranks] + np.arange(len(block)) - before[ranks]] = block[sorting]
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
    """Named inputs for a model, targets, and the indices of the examples."""

    inputs: dict[str, Tensor | None]
    targets: Tensor
    indices: np.ndarray
    counts: tuple[int, int] | None = None
    """Numbers of targets and of tokens, counted before the batch was moved to another device."""

    def to(self, device: torch.device) -> Self:
        """Move the batch to a device. Copies to a GPU are asynchronous, from pinned memory."""
        if device.type == "cpu":
            return self
        counts = self.target_count(), self.token_count()
        inputs = {name: None if x is None else _moved(x, device) for name, x in self.inputs.items()}
        targets = self.targets.float() if self._is_too_wide_for(device) else self.targets
        return replace(self, inputs=inputs, targets=_moved(targets, device), counts=counts)

    def _is_too_wide_for(self, device: torch.device) -> bool:
        """Return True for float64 targets and a device without float64. `RegressionHead` checks the range."""
        return device.type == "mps" and self.targets.dtype == torch.float64

    def target_count(self) -> int:
        """Return the number of target tokens, not counting padding."""
        if self.counts is not None:
            return self.counts[0]
        if self.targets.is_floating_point():
            return self.targets.numel()
        return int((self.targets != IGNORED).sum())

    def token_count(self) -> int:
        """Return the number of input and decoder tokens without padding, as used to measure throughput."""
        if self.counts is not None:
            return self.counts[1]
        tokens, attention_mask = self.inputs["tokens"], self.inputs.get("mask")
        assert tokens is not None
        read = tokens.numel() if attention_mask is None else int(attention_mask.sum())
        return read + (self.target_count() if "target" in self.inputs else 0)


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    pinned = tensor.pin_memory() if device.type == "cuda" and torch.cuda.is_available() else tensor
    return pinned.to(device, non_blocking=True)


def pad(rows: Sequences, padding: int = 0) -> tuple[Tensor, Tensor | None]:
    """Pad rows on the right. Return one tensor and its attention mask, which is None without padding."""
    if isinstance(rows, np.ndarray):
        return torch.from_numpy(rows.astype(np.int64)), None
    lengths = _lengths(rows)
    longest = int(lengths.max(initial=0))
    padded = np.full((len(rows), longest), padding, dtype=np.int64)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    is_real = np.arange(longest) < lengths[:, None]
    return torch.from_numpy(padded), None if is_real.all() else torch.from_numpy(is_real)


def collate_token_classification(examples: Examples, indices: np.ndarray) -> Batch:
    taken = examples.take(indices)
    tokens_BL, attention_mask_BL = pad(taken.inputs)
    targets_BL, _ = pad(taken.targets, IGNORED)
    return Batch({"tokens": tokens_BL, "mask": attention_mask_BL}, targets_BL, indices)


def collate_sequence_classification(examples: Examples, indices: np.ndarray) -> Batch:
    taken = examples.take(indices)
    tokens_BL, attention_mask_BL = pad(taken.inputs)
    targets_B = np.asarray(taken.targets)
    targets_B = targets_B.astype(np.float64 if targets_B.dtype.kind == "f" else np.int64)
    return Batch({"tokens": tokens_BL, "mask": attention_mask_BL}, torch.from_numpy(targets_B), indices)


def collate_causal_lm(examples: Examples, indices: np.ndarray) -> Batch:
    """Build a batch whose targets are the inputs shifted by one token. `examples.targets` is ignored."""
    rows = examples.take(indices).inputs
    tokens_BL, attention_mask_BL = pad(rows)
    targets_BL, _ = pad(rows, IGNORED)
    attention_mask_BL = None if attention_mask_BL is None else attention_mask_BL[:, :-1]
    inputs = {"tokens": tokens_BL[:, :-1], "mask": attention_mask_BL}
    return Batch(inputs, targets_BL[:, 1:].contiguous(), indices)


def collate_seq2seq(examples: Examples, indices: np.ndarray) -> Batch:
    """Build a batch. The decoder reads a target without its last token, and predicts all but its first."""
    taken = examples.take(indices)
    tokens_BL, attention_mask_BL = pad(taken.inputs)
    target_BL, _ = pad(taken.targets)
    labels_BL, _ = pad(taken.targets, IGNORED)
    inputs = {"tokens": tokens_BL, "mask": attention_mask_BL, "target": target_BL[:, :-1]}
    return Batch(inputs, labels_BL[:, 1:].contiguous(), indices)
