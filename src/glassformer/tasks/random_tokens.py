"""Random tokens with a rule that can be learned: the smallest task for a classifier and for a language model.

It serves to size, check and time models whose vocabulary and length are given, with no data at hand.
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
from glassformer.tasks.sequences import SequencesConfig, SequenceTask, choose_rows, repeat_to, share

MAJORITY_LABELS = ["low", "high"]


@register
class RandomTokensConfig(SequencesConfig):
    """`class`: are most tokens in the upper half of the categories? `next`: a sequence that is said twice."""

    kind: Literal["random-tokens"] = "random-tokens"
    length: int = Field(32, ge=2, le=1_000_000, description="tokens a sequence")
    categories: int = Field(100, ge=2, le=1_000_000, description="different tokens, numbered from 0")
    predict: Literal["class", "next"] = Field(
        "class", description="one of two classes, or each token from those before it"
    )

    def build(self, seed: int) -> RandomTokensTask:
        return _TASKS[self.predict](self)


class RandomTokensTask(SequenceTask):
    config: RandomTokensConfig

    def random_rows(self, length: int) -> dict[str, np.ndarray]:
        """Distinct rows for each split; training repeats its own if there are too few."""
        space = self.config.sequences(length)
        rows = choose_rows(space, share(space.size, self.config.sizes()), self.config.data_seed)
        return {**rows, "train": repeat_to(rows["train"], self.config.train_examples)}


class MajorityTask(RandomTokensTask, SequenceClassificationTask):
    """`high` if more than half of the tokens are."""

    def __init__(self, config: RandomTokensConfig) -> None:
        self.config = config
        shape = SequenceClassification(config.categories, config.length, outputs=len(MAJORITY_LABELS))
        super().__init__(shape, self._generate)

    def _generate(self) -> dict[str, Examples]:
        rows = self.random_rows(self.config.length)
        return {split: Examples(inputs, self._answer(inputs)) for split, inputs in rows.items()}

    def _answer(self, inputs: np.ndarray) -> np.ndarray:
        are_high = inputs >= self.config.categories / 2
        return (are_high.mean(axis=1) > 0.5).astype(np.uint8)

    def solve(self, tokens: Sequence[int]) -> list[int]:
        return self._answer(np.array([tokens])).tolist()

    def output_symbols(self, tokens: Sequence[int]) -> list[str]:
        return [MAJORITY_LABELS[token] for token in tokens]


class RepetitionTask(RandomTokensTask, CausalLMTask):
    """The first half cannot be foretold, and the second half says it again."""

    def __init__(self, config: RandomTokensConfig) -> None:
        self.config = config
        self.period = -(-config.length // 2)
        super().__init__(CausalLM(config.categories, config.length), self._generate)

    def _generate(self) -> dict[str, Examples]:
        rows = self.random_rows(self.period)
        twice = {split: np.tile(row, 2)[:, : self.config.length] for split, row in rows.items()}
        return {split: Examples(inputs, inputs) for split, inputs in twice.items()}

    def solve(self, tokens: Sequence[int]) -> list[int] | None:
        """What follows, once the first half is known."""
        if len(tokens) < self.period:
            return None
        return [int(tokens[place % self.period]) for place in range(len(tokens), self.config.length)]

    def parse(self, text: str) -> np.ndarray:
        tokens = super().parse(text)
        if len(tokens) == self.config.length:
            raise ErrorDetail(
                f"nothing is left to be said after {len(tokens)} tokens", hint="a shorter beginning"
            )
        return tokens

    def output_symbols(self, tokens: Sequence[int]) -> list[str]:
        return [str(token) for token in tokens]


_TASKS: dict[str, type[MajorityTask] | type[RepetitionTask]] = {
    "class": MajorityTask,
    "next": RepetitionTask,
}
