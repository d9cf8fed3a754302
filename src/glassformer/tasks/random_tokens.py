"""Task on random tokens with a learnable rule, for a classifier or a language model.

It needs no data files, so it can test and time models of any vocabulary size and length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from glassformer.core.errors import ErrorDetail
from glassformer.core.registry import register
from glassformer.data.batching import Examples
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
    """Language-model task on sequences that consist of a random first half and its repetition."""

    def __init__(self, config: RandomTokensConfig) -> None:
        self.config = config
        self.period = -(-config.length // 2)
        super().__init__(CausalLM(config.categories, config.length), self._generate)

    def _generate(self) -> dict[str, Examples]:
        rows = self.random_rows(self.period)
        twice = {split: np.tile(row, 2)[:, : self.config.length] for split, row in rows.items()}
        return {split: Examples(inputs, inputs) for split, inputs in twice.items()}

    def solve(self, tokens: Sequence[int]) -> list[int] | None:
        """Return the rest of the sequence, which repeats its first half.

        Return None if the input does not contain the whole first half.
        """
        if len(tokens) < self.period:
            return None
        return [int(tokens[index % self.period]) for index in range(len(tokens), self.config.length)]

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
