"""Text classification and regression: one label or one number per text."""

from __future__ import annotations

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
from glassformer.tasks.base import SequenceClassificationTask, at_location, parse_number
from glassformer.tasks.text import (
    SPLITS,
    DataReport,
    Encoded,
    GeneratedTexts,
    Texts,
    TextTask,
    TextTaskConfig,
    encode_texts,
    read_splits,
    train_tokenizer,
)

ROLES = {"input": "text", "target": "label"}
MAX_LABELS = 1000


@register
class ClassificationConfig(TextTaskConfig):
    """One label or number per text: your own files, or generated reviews."""

    kind: Literal["classification"] = "classification"
    roles: ClassVar[Mapping[str, str]] = ROLES
    tokenizer: TokenizerConfig = Field(WordsConfig(), description="tokenizer, trained on the train split")
    target: Literal["label", "number"] = Field(
        "label", description="type of target: one of several labels, or a real number"
    )
    examples: int = Field(20_000, ge=10, description="training reviews to generate, unless data is set")
    train_limit: int | None = Field(
        None, ge=2, description="number of training examples to use, balanced over the labels; none: all"
    )
    masked_fraction: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="fraction of training tokens that are masked, different ones in each epoch",
    )
    unseen_only: bool = Field(
        False, description="omit validation and test examples whose text also appears in train"
    )

    def build(self, seed: int) -> ClassificationTask:
        report = DataReport()
        texts = self.texts(report)
        tokenizer = train_tokenizer(self.tokenizer, [texts["train"].column("input")])
        labels = [] if self.target == "number" else _labels(texts)
        task = _TASKS[self.target](self, tokenizer, labels)
        task.splits = task.encode(texts, report)
        task.notes += report.notes
        return task

    def restore(self, state: Mapping[str, Any], seed: int = 0) -> ClassificationTask:
        return _TASKS[self.target](self, Tokenizer.from_json_tree(state["tokenizer"]), state["labels"])

    def texts(self, report: DataReport) -> dict[str, Texts]:
        if self.data is not None:
            splits = read_splits(self, self.data, ["input"], self.unseen_only, report)
        else:
            few = min(2000, max(10, self.examples // 5))
            counts = {"train": self.examples, "validation": few, "test": few}
            splits = {}
            for split in SPLITS:
                generated = reviews(counts[split], self.data_seed, split)
                columns = {
                    "input": [text for text, _ in generated],
                    "target": [label for _, label in generated],
                }
                splits[split] = GeneratedTexts(columns)
        if self.train_limit is not None:
            train = splits["train"]
            splits["train"] = self._limited(train, self.train_limit)
            omitted = len(train) - len(splits["train"])
            report.count(omitted, len(train), "train: omitted by task.train_limit")
        return splits

    def _limited(self, texts: Texts, limit: int) -> Texts:
        """Select `limit` examples from a fixed random order, taking the labels in turn."""
        numbers: dict[str, int] = {}
        labels = (str(value).strip() if self.target == "label" else "" for value in texts.column("target"))
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
    """Collect the labels of all splits, sorted."""
    found = set()
    for texts in splits.values():
        for index, value in enumerate(texts.column("target")):
            label = str(value).strip()
            if not label:
                raise user_error(
                    "the label is empty", path=texts.location(index), hint="add a label, or remove the line"
                )
            found.add(label)
            if len(found) > MAX_LABELS:
                raise user_error(
                    f"more than {MAX_LABELS:,} different labels: is this the right column?",
                    path=splits["train"].name,
                    hint="task.data.columns={input: NAME, target: NAME}, or task.target=number",
                )
    if len(found) < 2:
        raise user_error(
            f"only one label, {next(iter(found))!r}: nothing to classify",
            path=splits["train"].name,
            hint="task.data.columns={input: NAME, target: NAME}",
        )
    return sorted(found)


class ClassificationTask(TextTask, SequenceClassificationTask):
    """Classifier of texts. Inputs are encoded as for a language model: a begin token, but no end token."""

    def __init__(self, config: ClassificationConfig, tokenizer: Tokenizer, labels: Sequence[str]) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.labels = Vocabulary(labels)
        super().__init__(self._task_type(), lambda: self.encode(config.texts(DataReport()), DataReport()))

    def _task_type(self) -> SequenceClassification:
        return SequenceClassification(len(self.tokenizer), self.config.max_length, outputs=len(self.labels))

    def state(self) -> dict[str, Any]:
        return {"tokenizer": self.tokenizer.json_tree(), "labels": self.labels.symbols}

    def encode(self, texts: Mapping[str, Texts], report: DataReport) -> dict[str, Examples]:
        return {split: self._encode(split, part, report) for split, part in texts.items()}

    def _encode(self, split: str, texts: Texts, report: DataReport) -> Examples:
        limit = self.config.max_length

        def arrange(sides: Sequence[Encoded], facts: Counter[str]) -> tuple[np.ndarray, ...]:
            ((_, row),) = sides
            facts["long"] += len(row) >= limit
            facts["empty"] += not len(row)
            return (np.concatenate([[BEGIN], row[: limit - 1]]),)

        columns = encode_texts(texts, {"input": self.tokenizer}, arrange, {"limit": limit}, report)
        report.count(columns.facts["long"], len(texts), f"{split}: truncated to {limit} tokens")
        report.count(columns.facts["empty"], len(texts), f"WARNING: {split}: texts without tokens")
        columns.report_unknown(split, report)
        return Examples(columns.rows["input"], self._encode_targets(texts))

    def _encode_targets(self, texts: Texts) -> np.ndarray:
        def number(index: int, value: object) -> int:
            label = str(value).strip()
            if label not in self.labels.ids:
                raise user_error(
                    "unknown label",
                    path=texts.location(index),
                    value=label,
                    allowed=self.labels.symbols,
                )
            return self.labels.ids[label]

        numbers = (number(index, value) for index, value in enumerate(texts.column("target")))
        return np.fromiter(numbers, dtype=np.int16, count=len(texts))

    def batch(self, split: str, indices: np.ndarray, epoch: int | None = None) -> Batch:
        """Collate, and mask tokens in training. The mask is a function of epoch and example index."""
        batch = super().batch(split, indices, epoch)
        tokens_BL = batch.inputs["tokens"]
        if epoch is None or not self.config.masked_fraction or tokens_BL is None:
            return batch
        draws_BL = draw_each((tokens_BL.shape[1],), self.config.data_seed, "hide", epoch, indices=indices)
        is_masked = (draws_BL < self.config.masked_fraction) & (tokens_BL >= len(RESERVED))
        return replace(batch, inputs={**batch.inputs, "tokens": tokens_BL.masked_fill(is_masked, MASK)})

    def parse(self, text: str) -> np.ndarray:
        tokens = self.tokenizer.encode(text)
        if not text.strip():
            raise ErrorDetail("the line is empty: nothing to classify")
        return np.array([BEGIN, *tokens[: self.config.max_length - 1]], dtype=np.int64)

    def warning(self, tokens: Sequence[int], text: str = "") -> str | None:
        read, total = len(tokens) - 1, len(self.tokenizer.encode(text))  # without the begin token
        cut = f"only the first {read:,} of {total:,} tokens are read" if total > read else None
        return "; ".join(reason for reason in (cut, super().warning(tokens)) if reason) or None

    def output_symbols(self, tokens: Sequence[int]) -> list[str]:
        return self.labels.decode(tokens)


class RegressionTask(ClassificationTask):
    """Predictor of one number per text."""

    primary_metric = "mean_absolute_error"

    def _task_type(self) -> SequenceClassification:
        return SequenceClassification(
            len(self.tokenizer), self.config.max_length, outputs=1, is_regression=True
        )

    def _encode_targets(self, texts: Texts) -> np.ndarray:
        numbers = np.empty(len(texts), dtype=np.float32)
        for index, value in enumerate(texts.column("target")):
            try:
                numbers[index] = parse_number(value)
            except ErrorDetail as detail:
                raise at_location(detail, texts.location(index)) from None
        return numbers

    def output_symbols(self, tokens: Sequence[float]) -> list[str]:
        return [f"{number:.6g}" for number in tokens]


_TASKS: dict[str, type[ClassificationTask]] = {"label": ClassificationTask, "number": RegressionTask}
