"""Task on random tokens with a learnable rule, for a classifier or a language model.

It needs no data files, so it can test and time models of any vocabulary size and length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from glassformer.core.errors import ErrorDetail
from glassformer.core.registry import register
from glassformer.data.batching import Examples, generator
from glassformer.models.task_types import CausalLM, SequenceClassification
from glassformer.tasks.base import CausalLMTask, SequenceClassificationTask
from glassformer.tasks.sequences import SequencesConfig, SequenceTask, choose_splits

MAJORITY_LABELS = ["low", "high"]


@register
class RandomTokensConfig(SequencesConfig):
    """Classify random sequences by the majority of their tokens, or predict the repetition of a sequence.

    Use it to test classifiers and language models of any size on data with a known answer.
    """

    kind: Literal["random-tokens"] = "random-tokens"
    length: int = Field(32, ge=2, le=1_000_000, description="tokens per sequence")
    categories: int = Field(100, ge=2, le=1_000_000, description="number of distinct tokens, numbered from 0")
    target: Literal["class", "next"] = Field(
        "class",
        description="class: whether most tokens are in the upper half; next: the next token",
    )
    shortest_period: int | None = Field(
        None,
        ge=2,
        description="target next: the tokens repeat after a random number of tokens, between this one and "
        "half of the length; none: always after half of the length",
    )

    @property
    def longest_period(self) -> int:
        """Number of random tokens per sequence, of which shorter periods repeat the first ones."""
        return -(-self.length // 2)

    @model_validator(mode="after")
    def _check_period(self) -> Self:
        if self.shortest_period is None:
            return self
        if self.target != "next":
            raise ErrorDetail(
                "applies only to the target next", path="shortest_period", value=self.shortest_period
            )
        if self.shortest_period > self.longest_period:
            raise ErrorDetail(
                f"must be at most {self.longest_period}, half of the length",
                path="shortest_period",
                value=self.shortest_period,
                hint="a smaller value, or increase task.length",
            )
        return self

    def build(self, seed: int) -> RandomTokensTask:
        return _TASKS[self.target](self)


class RandomTokensTask(SequenceTask):
    """Base class for the two tasks on random tokens: target `class` and target `next`."""

    config: RandomTokensConfig

    def random_rows(self, length: int) -> dict[str, np.ndarray]:
        """Draw distinct rows for each split. If too few exist, the training split repeats its rows."""
        return choose_splits(self.config.sequences(length), self.config.sizes(), self.config.data_seed)


class MajorityTask(RandomTokensTask, SequenceClassificationTask):
    """Task with the class `high` if more than half of the tokens are in the upper half of the vocabulary."""

    def __init__(self, config: RandomTokensConfig) -> None:
        self.config = config
        task_type = SequenceClassification(config.categories, config.length, outputs=len(MAJORITY_LABELS))
        super().__init__(task_type, self._generate)

    def _generate(self) -> dict[str, Examples]:
        rows = self.random_rows(self.config.length)
        return {split: Examples(inputs, self._classify(inputs)) for split, inputs in rows.items()}

    def _classify(self, inputs: np.ndarray) -> np.ndarray:
        are_high = inputs >= self.config.categories / 2
        return (are_high.mean(axis=1) > 0.5).astype(np.uint8)

    def solve(self, tokens: Sequence[int]) -> list[int]:
        return self._classify(np.array([tokens])).tolist()

    def output_symbols(self, tokens: Sequence[int]) -> list[str]:
        return [MAJORITY_LABELS[token] for token in tokens]


class RepetitionTask(RandomTokensTask, CausalLMTask):
    """Language-model task on sequences of random tokens that repeat, after half of the length or earlier."""

    def __init__(self, config: RandomTokensConfig) -> None:
        self.config = config
        super().__init__(CausalLM(config.categories, config.length), self._generate)

    def _generate(self) -> dict[str, Examples]:
        rows = self.random_rows(self.config.longest_period)
        found = {split: self._repeat(row, self._periods(split, len(row))) for split, row in rows.items()}
        return {split: Examples(inputs, inputs) for split, inputs in found.items()}

    def _periods(self, split: str, count: int) -> np.ndarray:
        """Return the number of tokens after which each sequence repeats."""
        longest = self.config.longest_period
        shortest = self.config.shortest_period or longest
        rng = generator(self.config.data_seed, "periods", split)
        return rng.integers(shortest, longest, count, endpoint=True)

    def _repeat(self, rows: np.ndarray, periods: np.ndarray) -> np.ndarray:
        return np.take_along_axis(rows, np.arange(self.config.length) % periods[:, None], axis=1)

    def solve(self, tokens: Sequence[int]) -> list[int] | None:
        """Return the rest of the sequence, which repeats its beginning.

        Return None if more than one rest is possible, as before the first repetition.
        """
        given, config = np.asarray(tokens), self.config
        if len(given) < config.longest_period + (config.shortest_period is not None):
            return None
        periods = range(config.shortest_period or config.longest_period, config.longest_period + 1)
        fitting = [each for each in periods if np.array_equal(given[each:], given[: len(given) - each])]
        rests = {tuple(given[np.arange(len(given), config.length) % period].tolist()) for period in fitting}
        return list(rests.pop()) if len(rests) == 1 else None

    def parse(self, text: str) -> np.ndarray:
        tokens = super().parse(text)
        if len(tokens) == self.config.length:
            raise ErrorDetail(
                f"nothing is left to predict after {len(tokens)} tokens", hint="type a shorter input"
            )
        return tokens


_TASKS: dict[str, type[MajorityTask] | type[RepetitionTask]] = {
    "class": MajorityTask,
    "next": RepetitionTask,
}
