"""Whole texts and one answer to each: a label, or a number."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from glassformer.core.errors import ErrorDetail, user_error
from glassformer.core.registry import register
from glassformer.data.batching import Batch, Examples, Vocabulary, draw_each, generator, shuffled
from glassformer.data.tokenizers import BEGIN, MASK, RESERVED, Tokenizer, TokenizerConfig, WordsConfig
from glassformer.datasets.reviews import reviews
from glassformer.models.task_types import SequenceClassification
from glassformer.tasks.base import SequenceClassificationTask
from glassformer.tasks.text import (
    SPLITS,
    DataReport,
    Encoded,
    MadeTexts,
    Texts,
    TextTaskConfig,
    encode_texts,
    read_splits,
    train_tokenizer,
    unknown_words,
)

ROLES = {"input": "text", "target": "label"}
MOST_LABELS = 1000


@register
class ClassificationConfig(TextTaskConfig):
    """A label or a number for a whole text: your own files, or reviews that are made here."""

    kind: Literal["classification"] = "classification"
    roles: ClassVar[Mapping[str, str]] = ROLES
    tokenizer: TokenizerConfig = WordsConfig()
    answer: Literal["label", "number"] = Field("label", description="one of a few labels, or a real number")
    examples: int = Field(20_000, ge=10, description="reviews to make for training, without data")
    train_limit: int | None = Field(
        None, ge=2, description="train on so many examples only, evenly over the labels; none: on all"
    )
    hidden_fraction: float = Field(
        0.0, ge=0, lt=1, description="of a training text's tokens, hidden from the model, others each epoch"
    )
    unseen_only: bool = Field(
        False, description="leave out validation and test examples whose text also stands in train"
    )

    def build(self, seed: int) -> ClassificationTask:
        told = DataReport()
        texts = self.texts(told)
        tokenizer = train_tokenizer(self.tokenizer, [texts["train"].column("input")])
        labels = [] if self.answer == "number" else _labels(texts)
        task = _TASKS[self.answer](self, tokenizer, labels)
        task.splits = task.encode(texts, told)
        task.notes += told.notes
        return task

    def restore(self, state: Mapping[str, Any], seed: int = 0) -> ClassificationTask:
        return _TASKS[self.answer](self, Tokenizer.from_tree(state["tokenizer"]), state["labels"])

    def texts(self, told: DataReport) -> dict[str, Texts]:
        if self.data is not None:
            splits = read_splits(
                self.data,
                ROLES,
                text_roles=["input"],
                key="input",
                data_seed=self.data_seed,
                unseen_only=self.unseen_only,
                told=told,
            )
        else:
            few = min(2000, max(10, self.examples // 5))
            counts = {"train": self.examples, "validation": few, "test": few}
            splits = {}
            for split in SPLITS:
                made = reviews(counts[split], self.data_seed, split)
                columns = {"input": [text for text, _ in made], "target": [label for _, label in made]}
                splits[split] = MadeTexts(columns)
        if self.train_limit is not None:
            train = splits["train"]
            splits["train"] = self._limited(train, self.train_limit)
            left_out = len(train) - len(splits["train"])
            told.count(left_out, len(train), "train: left out by task.train_limit")
        return splits

    def _limited(self, texts: Texts, limit: int) -> Texts:
        """The first so many of a fixed order that takes the labels in turn."""
        numbers: dict[str, int] = {}
        labels = (str(value).strip() if self.answer == "label" else "" for value in texts.column("target"))
        label_of_each = np.fromiter(
            (numbers.setdefault(label, len(numbers)) for label in labels), dtype=np.int32, count=len(texts)
        )
        counts = np.bincount(label_of_each)

        def taken_in(turns: int) -> int:
            return int(np.minimum(counts, turns).sum())

        whole_turns = bisect_right(range(limit + 1), limit, key=taken_in) - 1
        of_next_turn = limit - taken_in(whole_turns)
        is_taken = np.zeros(len(texts), dtype=bool)
        turns = [0] * len(counts)
        for index in shuffled(len(texts), generator(self.data_seed, "limit")).data:
            label = label_of_each[index]
            is_next_turn = turns[label] == whole_turns and of_next_turn > 0
            is_taken[index] = turns[label] < whole_turns or is_next_turn
            of_next_turn -= is_next_turn
            turns[label] += 1
        return texts.take(is_taken)


def _labels(splits: Mapping[str, Texts]) -> list[str]:
    """A label that only another split has is a label nevertheless."""
    found = set()
    for texts in splits.values():
        for index, value in enumerate(texts.column("target")):
            label = str(value).strip()
            if not label:
                raise user_error(
                    "the label is empty", path=texts.place(index), hint="give it one, or remove the line"
                )
            found.add(label)
            if len(found) > MOST_LABELS:
                raise user_error(
                    f"more than {MOST_LABELS:,} different labels: is this the right column?",
                    path=splits["train"].name,
                    hint="task.data.columns={input: NAME, target: NAME}, or task.answer=number",
                )
    if len(found) < 2:
        raise user_error(
            f"only one label, {next(iter(found))!r}: nothing to tell apart",
            path=splits["train"].name,
            hint="task.data.columns={input: NAME, target: NAME}",
        )
    return sorted(found)


class ClassificationTask(SequenceClassificationTask):
    """A text is read as a language model reads it, up to where it would say what follows."""

    def __init__(self, config: ClassificationConfig, tokenizer: Tokenizer, labels: Sequence[str]) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.labels = Vocabulary(labels)
        super().__init__(self._shape(), lambda: self.encode(config.texts(DataReport()), DataReport()))

    def _shape(self) -> SequenceClassification:
        return SequenceClassification(len(self.tokenizer), self.config.max_length, outputs=len(self.labels))

    def state(self) -> dict[str, Any]:
        return {"tokenizer": self.tokenizer.tree(), "labels": self.labels.symbols}

    def encode(self, texts: Mapping[str, Texts], told: DataReport) -> dict[str, Examples]:
        return {split: self._encode(split, part, told) for split, part in texts.items()}

    def _encode(self, split: str, texts: Texts, told: DataReport) -> Examples:
        limit = self.config.max_length

        def arrange(sides: Sequence[Encoded], facts: Counter[str]) -> tuple[np.ndarray, ...]:
            ((_, row),) = sides
            facts["long"] += len(row) >= limit
            facts["empty"] += not len(row)
            return (np.concatenate([[BEGIN], row[: limit - 1]]),)

        columns = encode_texts(texts, {"input": self.tokenizer}, arrange, {"limit": limit}, told)
        told.count(columns.facts["long"], len(texts), f"{split}: cut to their first {limit} tokens")
        told.count(columns.facts["empty"], len(texts), f"WARNING: {split}: texts without a token")
        columns.tell_unknown(split, told)
        return Examples(columns.rows["input"], self._encode_targets(texts))

    def _encode_targets(self, texts: Texts) -> np.ndarray:
        def number(index: int, value: object) -> int:
            label = str(value).strip()
            if label not in self.labels.number:
                raise user_error(
                    "a label that the model does not know",
                    path=texts.place(index),
                    value=label,
                    allowed=self.labels.symbols,
                )
            return self.labels.number[label]

        numbers = (number(index, value) for index, value in enumerate(texts.column("target")))
        return np.fromiter(numbers, dtype=np.int16, count=len(texts))

    def batch(self, split: str, indices: np.ndarray, epoch: int | None = None) -> Batch:
        """What is hidden in training follows from the epoch and the number of an example."""
        batch = super().batch(split, indices, epoch)
        tokens_BL = batch.inputs["tokens"]
        if epoch is None or not self.config.hidden_fraction or tokens_BL is None:
            return batch
        draws_BL = draw_each((tokens_BL.shape[1],), self.config.data_seed, "hide", epoch, indices=indices)
        is_hidden = (draws_BL < self.config.hidden_fraction) & (tokens_BL >= len(RESERVED))
        return replace(batch, inputs={**batch.inputs, "tokens": tokens_BL.masked_fill(is_hidden, MASK)})

    def parse(self, text: str) -> np.ndarray:
        tokens = self.tokenizer.encode(text)
        if not text.strip():
            raise ErrorDetail("the line is empty: nothing to judge")
        return np.array([BEGIN, *tokens[: self.config.max_length - 1]], dtype=np.int64)

    def input_symbols(self, tokens: Sequence[int]) -> list[str]:
        return self.tokenizer.symbols(tokens)

    def show_input(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(tokens)

    def caution(self, tokens: Sequence[int], text: str = "") -> str | None:
        read, there = len(tokens) - 1, len(self.tokenizer.encode(text))  # the first is no token of the text
        cut = f"only the first {read:,} of {there:,} tokens are read" if there > read else None
        return "; ".join(reason for reason in (cut, unknown_words(tokens)) if reason) or None

    def output_symbols(self, tokens: Sequence[int]) -> list[str]:
        return self.labels.decode(tokens)


class RegressionTask(ClassificationTask):
    primary_metric = "mean_absolute_error"

    def _shape(self) -> SequenceClassification:
        return SequenceClassification(len(self.tokenizer), self.config.max_length, outputs=1, is_real=True)

    def _encode_targets(self, texts: Texts) -> np.ndarray:
        numbers = np.empty(len(texts), dtype=np.float32)
        for index, value in enumerate(texts.column("target")):
            try:
                numbers[index] = float(value)
            except (TypeError, ValueError):
                numbers[index] = math.nan
            if isinstance(value, bool) or not math.isfinite(numbers[index]):
                raise user_error(
                    "not a number",
                    path=texts.place(index),
                    value=value,
                    hint="a number with a point, such as 0.5; task.data.header=true, if that is a header;"
                    " or task.answer=label",
                )
        return numbers

    def output_symbols(self, tokens: Sequence[float]) -> list[str]:
        return [f"{number:.6g}" for number in tokens]


_TASKS: dict[str, type[ClassificationTask]] = {"label": ClassificationTask, "number": RegressionTask}
