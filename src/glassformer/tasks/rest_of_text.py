"""Pre-training task: predict words of the rest of a text from one piece of it.

Topic and opinion run through a whole text, so this teaches what a classifier needs, without labels. Texts are
cut into windows as for a language model, but never across the end of a text. At some positions of a piece,
the target is a word from elsewhere in the same text. That word is not in the piece, so it cannot be copied.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from glassformer.blocks.heads import IGNORED
from glassformer.core.errors import ErrorDetail
from glassformer.core.registry import register
from glassformer.data.batching import Batch, draw_each, pad
from glassformer.data.token_rows import Windows
from glassformer.data.tokenizers import Tokenizer
from glassformer.generation.predict import predict_tokens
from glassformer.tasks.base import check_length
from glassformer.tasks.language import LanguageConfig, LanguageTask


@register
class RestOfTextConfig(LanguageConfig):
    """Predict words of the rest of a text from one piece of it, on your own or generated texts.

    Use it to pre-train a classifier for the topics of texts, beside or after a masked language model.
    """

    kind: Literal["rest-of-text"] = "rest-of-text"
    max_length: int = Field(16, ge=4, le=100_000, description="maximum tokens per piece")
    across_texts: Literal[False] = Field(False, description="a piece never continues into the next text")
    predicted_fraction: float = Field(
        0.15, gt=0, le=1, description="fraction of positions that predict a word"
    )
    frequency_threshold: float = Field(
        1e-4,
        gt=0,
        description="words with a relative frequency above this threshold are sampled less often",
    )

    @model_validator(mode="after")
    def _has_texts(self) -> Self:
        if self.is_running:
            raise ErrorDetail(
                "running text has no boundaries between texts",
                path="data.format",
                value="running-text",
                hint="set task.data.format=text, and write one text per line",
            )
        return self

    def make_task(self, tokenizer: Tokenizer) -> RestOfTextTask:
        return RestOfTextTask(self, tokenizer)


class RestOfTextTask(LanguageTask):
    """Task of predicting words that occur in a text outside the given piece."""

    config: RestOfTextConfig
    predict_best = staticmethod(predict_tokens)
    """Predict, at each position, the most likely word elsewhere in the text."""

    @property
    def window(self) -> int:
        """Number of tokens by which one window follows another.

        A window has two tokens more: a begin token, and the first token of the next window.
        """
        return self.config.max_length - 2

    @cached_property
    def _weights_V(self) -> np.ndarray:
        """Sampling weight of each word, lower for frequent words because they carry little information."""
        windows = self._windows("train")
        counts = np.zeros(len(self.tokenizer))
        for number in range(len(windows.rows)):
            counts += np.bincount(windows.rows[number], minlength=len(counts))
        frequencies = counts / max(1, counts.sum())
        weights = np.sqrt(
            self.config.frequency_threshold / np.maximum(frequencies, self.config.frequency_threshold)
        )
        weights[self.tokenizer.special_ids] = 0
        return weights

    def _windows(self, split: str) -> Windows:
        windows = self.splits[split].inputs
        assert isinstance(windows, Windows)  # built by `_encode`
        return windows

    def batch(self, split: str, indices: np.ndarray, epoch: int | None = None) -> Batch:
        """Collate examples and sample their targets. These depend on seed, split, epoch and example index."""
        windows = self._windows(split)
        pieces = [windows[int(index)] for index in indices]
        begin, end = self.tokenizer.begin, self.tokenizer.end
        rows = [np.array([begin, *piece[(piece != begin) & (piece != end)]]) for piece in pieces]
        shape = (max(map(len, rows)), 2)
        draws_BL2 = draw_each(shape, self.config.data_seed, "rest", split, epoch or 0, indices=indices)
        targets = [
            self._targets(row, windows.outside(int(index)), draws_L2[: len(row)])
            for row, index, draws_L2 in zip(rows, indices, draws_BL2.numpy(), strict=True)
        ]
        tokens_BL, attention_mask_BL = pad(rows)
        targets_BL, _ = pad(targets, IGNORED)
        return Batch({"tokens": tokens_BL, "mask": attention_mask_BL}, targets_BL, indices)

    def _targets(self, row: np.ndarray, rest: np.ndarray, draws_L2: np.ndarray) -> np.ndarray:
        targets = np.full(len(row), IGNORED)
        sums = np.cumsum(np.where(np.isin(rest, row), 0.0, self._weights_V[rest]))
        if not len(sums) or not sums[-1]:
            return targets  # a text of one piece has no rest
        positions = np.flatnonzero(draws_L2[:, 0] < self.config.predicted_fraction)
        # side="right": a draw of 0 selects the first word with a weight above 0.
        targets[positions] = rest[np.searchsorted(sums, draws_L2[positions, 1] * sums[-1], side="right")]
        return targets

    def parse(self, text: str) -> np.ndarray:
        tokens = self.tokenizer.encode(text)
        if not text.strip():
            raise ErrorDetail("the line is empty: nothing to predict from")
        return check_length([self.tokenizer.begin, *tokens], self.config.max_length)
