"""What a task is: examples in splits, the shape of model it needs, and how a person reads and writes them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from glassformer.data.batching import (
    Batch,
    Examples,
    collate_next_token,
    collate_per_sequence,
    collate_per_token,
    collate_sequence_to_sequence,
)
from glassformer.models.shapes import Shape
from glassformer.registry import Kind


class TaskConfig(Kind):
    """What is to be learned, and from which data."""

    def build(self, seed: int) -> Task:
        raise NotImplementedError


class Task:
    """Examples in splits `train`, `validation` and, where there is one, `test`."""

    headline: ClassVar[str] = "accuracy"
    """The metric a person looks at first."""
    drop_last: ClassVar[bool] = False
    """Whether training leaves out the last, incomplete batch of an epoch."""

    def __init__(self, shape: Shape, splits: Mapping[str, Examples]) -> None:
        self.shape = shape
        self.splits = dict(splits)

    def collate(self, examples: Examples, indices: np.ndarray) -> Batch:
        raise NotImplementedError

    def batch(self, split: str, indices: np.ndarray, epoch: int = 0) -> Batch:
        """These examples as tensors; the same for the same arguments, always."""
        return self.collate(self.splits[split], indices)

    def checksum(self) -> str:
        """SHA-256 over all examples of all splits."""
        digest = hashlib.sha256()
        for name, examples in sorted(self.splits.items()):
            digest.update(f"{name}:{examples.checksum()};".encode())
        return digest.hexdigest()

    def parse(self, text: str) -> np.ndarray:
        """What a person typed, as token numbers; a Problem if it cannot be."""
        raise NotImplementedError

    def input_symbols(self, tokens: Sequence[int]) -> list[str]:
        """Input tokens as a person reads them, one string a token."""
        raise NotImplementedError

    def output_symbols(self, tokens: Sequence[int]) -> list[str]:
        """Answers as a person reads them, one string a token, or the one label."""
        raise NotImplementedError

    def show_output(self, tokens: Sequence[int]) -> str:
        """The whole answer as one line."""
        return " ".join(self.output_symbols(tokens))




class PerTokenTask(Task):
    collate = staticmethod(collate_per_token)  # type: ignore[assignment]


class PerSequenceTask(Task):
    collate = staticmethod(collate_per_sequence)  # type: ignore[assignment]


class NextTokenTask(Task):
    headline = "loss"
    collate = staticmethod(collate_next_token)  # type: ignore[assignment]


class SequenceToSequenceTask(Task):
    """Targets begin with `begin` and end with `end`; answers are written token by token."""

    headline = "exact_match"
    collate = staticmethod(collate_sequence_to_sequence)  # type: ignore[assignment]
    begin: int
    end: int

    def compare(self, outputs: Sequence[Sequence[int]], references: Sequence[Sequence[int]]) -> dict[str, float]:
        """Metrics of decoded answers against the right ones, both without `begin` and `end`."""
        same = sum(list(output) == list(reference) for output, reference in zip(outputs, references, strict=True))
        return {"exact_match": same / max(len(references), 1)}
