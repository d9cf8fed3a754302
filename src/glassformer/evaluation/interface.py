"""What measuring asks of a task, and what it gives: numbers, how sure they are, and what lies behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np

from glassformer.data.batching import Batch
from glassformer.evaluation.bootstrap import Interval
from glassformer.generation import DecodingConfig
from glassformer.models.base import Model

Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True)
class Decoded:
    """What a model wrote by itself for examples of a split, in the split's order."""

    numbers: np.ndarray
    """Which examples."""
    outputs: list[list[int]]
    references: list[list[int]]
    lines: list[str]
    """The outputs as a person reads them."""


@dataclass(frozen=True)
class Measured:
    metrics: dict[str, float]
    intervals: dict[str, Interval] = field(default_factory=dict)
    """95 %, for the metrics that have one."""
    protocol: dict[str, Any] = field(default_factory=dict)
    """What a number depends on besides the model and the data, such as a scorer's signature."""
    details: dict[str, Any] = field(default_factory=dict)
    """As JSON: confusions, calibration."""
    decoded: Decoded | None = None

    def and_then(self, later: Measured) -> Measured:
        """Both; where they name the same, the later one."""
        return Measured(
            self.metrics | later.metrics,
            self.intervals | later.intervals,
            self.protocol | later.protocol,
            self.details | later.details,
            later.decoded or self.decoded,
        )


class SplitOfExamples(Protocol):
    def __len__(self) -> int: ...
    def lengths(self) -> np.ndarray: ...


class Evaluable(Protocol):
    """What the evaluator needs of a task; `tasks/base.py` says what each means."""

    writes_answers: ClassVar[bool]

    @property
    def splits(self) -> Mapping[str, SplitOfExamples]: ...
    def batch(self, split: str, indices: np.ndarray, epoch: int | None = None) -> Batch: ...
    def output_symbols(self, tokens: Sequence[int]) -> list[str]: ...
    def characters(self, split: str) -> int | None: ...
    def text_pairs(self, split: str) -> tuple[Sequence[str], Sequence[str]] | None: ...
    def compare(
        self, outputs: Sequence[Sequence[int]], references: Sequence[Sequence[int]]
    ) -> dict[str, float]: ...
    def decode(
        self,
        model: Model,
        split: str,
        batches: Sequence[np.ndarray],
        decoding: DecodingConfig,
        progress: Progress | None = None,
    ) -> Decoded: ...
