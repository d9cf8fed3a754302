"""From a piece of a text, words of the rest of it.

What a text is about, and what it thinks of that, runs through all of it. Texts are read and cut as for a
language model, but never across the end of a text. At some places of a piece the model is asked for a word
that stands elsewhere in the same text and not in the piece, so it cannot copy. No label is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from glassformer.blocks.heads import IGNORED
from glassformer.core.errors import ErrorDetail
from glassformer.core.registry import register
from glassformer.data.batching import Batch, draw_each, pad
from glassformer.data.token_rows import Windows
from glassformer.data.tokenizers import BEGIN, END, RESERVED, Tokenizer
from glassformer.generation import DecodingConfig
from glassformer.generation.predict import Prediction, predict_tokens
from glassformer.models.base import Model
from glassformer.models.task_types import MaskedLM
from glassformer.tasks.language import LanguageConfig, LanguageTask


@register
class RestOfTextConfig(LanguageConfig):
    """Words of the rest of a text, from a piece of it: your own texts, or reviews that are made here."""

    kind: Literal["rest-of-text"] = "rest-of-text"
    max_length: int = Field(16, ge=4, le=100_000, description="tokens of a piece")
    across_texts: Literal[False] = Field(False, description="a piece never runs into the next text")
    asked_fraction: float = Field(
        0.15, gt=0, le=1, description="of a piece's places, at each of which a word is asked for"
    )
    common: float = Field(
        1e-4, gt=0, description="words that are more frequent are asked for less, by the root of the ratio"
    )

    @model_validator(mode="after")
    def _has_texts(self) -> Self:
        if self.is_running:
            raise ErrorDetail(
                "a running text is one text: nothing tells its pieces apart",
                path="data.format",
                value="running-text",
                hint="task.data.format=text, a text a line",
            )
        return self

    def build(self, seed: int) -> RestOfTextTask:
        corpus = self.corpora()["train"]
        task = RestOfTextTask(self, self.tokenizer.train(lambda: corpus))
        _ = task.splits  # a file's faults show now, not at the first batch
        task.notes += self.leaks(task.corpora).notes
        return task

    def restore(self, state: Mapping[str, Any], seed: int = 0) -> RestOfTextTask:
        return RestOfTextTask(self, Tokenizer.from_tree(state["tokenizer"]))


class RestOfTextTask(LanguageTask):
    config: RestOfTextConfig

    def __init__(self, config: RestOfTextConfig, tokenizer: Tokenizer) -> None:
        super().__init__(config, tokenizer, MaskedLM(len(tokenizer), config.max_length))

    @property
    def window(self) -> int:
        """A begin stands before each, and a window's last token is the next one's first."""
        return self.config.max_length - 2

    def characters(self, split: str) -> int | None:
        return None

    @cached_property
    def _weights_V(self) -> np.ndarray:
        """How readily a word is asked for; one that stands everywhere says little."""
        windows = self._windows("train")
        counts = np.zeros(len(self.tokenizer))
        for number in range(len(windows.rows)):
            counts += np.bincount(windows.rows[number], minlength=len(counts))
        frequencies = counts / max(1, counts.sum())
        weights = np.sqrt(self.config.common / np.maximum(frequencies, self.config.common))
        weights[: len(RESERVED)] = 0
        return weights

    def _windows(self, split: str) -> Windows:
        windows = self.splits[split].inputs
        assert isinstance(windows, Windows)  # as `_encode` made them
        return windows

    def batch(self, split: str, indices: np.ndarray, epoch: int | None = None) -> Batch:
        """Where a word is asked for, and which, follows from split, epoch and number of an example."""
        windows = self._windows(split)
        pieces = [windows[int(index)] for index in indices]
        rows = [np.array([BEGIN, *piece[(piece != BEGIN) & (piece != END)]]) for piece in pieces]
        shape = (max(map(len, rows)), 2)
        draws_BL2 = draw_each(shape, self.config.data_seed, "rest", split, epoch or 0, indices=indices)
        targets = [
            self._targets(row, windows.outside(int(index)), draws_L2[: len(row)])
            for row, index, draws_L2 in zip(rows, indices, draws_BL2.numpy(), strict=True)
        ]
        tokens_BL, attention_mask_BL = pad(rows)
        targets_BL, _ = pad(targets, IGNORED)
        return Batch({"tokens": tokens_BL, "attention_mask": attention_mask_BL}, targets_BL, indices)

    def _targets(self, row: np.ndarray, rest: np.ndarray, draws_L2: np.ndarray) -> np.ndarray:
        targets = np.full(len(row), IGNORED)
        sums = np.cumsum(np.where(np.isin(rest, row), 0.0, self._weights_V[rest]))
        if not len(sums) or not sums[-1]:
            return targets  # a text of one piece has no rest
        places = np.flatnonzero(draws_L2[:, 0] < self.config.asked_fraction)
        # From the right, so that a draw of 0 is the first word that has any weight.
        targets[places] = rest[np.searchsorted(sums, draws_L2[places, 1] * sums[-1], side="right")]
        return targets

    def parse(self, text: str) -> np.ndarray:
        tokens = self.tokenizer.encode(text)
        if not text.strip():
            raise ErrorDetail("the line is empty: nothing to foresee from")
        return self._checked([BEGIN, *tokens], self.config.max_length)

    def predict(
        self, model: Model, rows: Sequence[np.ndarray], decoding: DecodingConfig | None = None
    ) -> list[list[Prediction]]:
        """At each place, the word that is likeliest to stand elsewhere."""
        return [[answer] for answer in predict_tokens(model, rows)]
