"""Text classification and regression: one label or one number per text."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from glassformer.core.errors import ErrorDetail, UserError, user_error
from glassformer.core.registry import register
from glassformer.data.batching import Batch, Examples, Vocabulary, draw_each, generator, shuffled
from glassformer.data.columns import LABEL_ROLES
from glassformer.data.formats import Stream
from glassformer.data.labels import MAX_LABELS, label_warnings
from glassformer.data.readers import DataConfig
from glassformer.data.splits import UnknownRows, number_classes, rare_labels
from glassformer.data.tokenizers import Tokenizer, TokenizerConfig, WordsConfig
from glassformer.datasets.reviews import reviews
from glassformer.models.task_types import SequenceClassification
from glassformer.tasks.base import (
    LabelTypes,
    SequenceClassificationTask,
    at_location,
    parse_number,
    show_numbers,
    target_statistics,
)
from glassformer.tasks.text import (
    DataReport,
    Encoded,
    FileTexts,
    PairConfig,
    PairTask,
    Texts,
    encode_texts,
    generate_splits,
    read_splits,
    train_tokenizer,
)

ROLES = LABEL_ROLES
ADD_LABEL = "add a label, or remove the line"


@register
class ClassificationConfig(PairConfig):
    """One label or one number per text: your own files, or generated reviews.

    Use it for sentiment, topics, ratings and other properties of a whole text.
    """

    kind: Literal["classification"] = "classification"
    roles: ClassVar[Mapping[str, str]] = ROLES
    text_roles: ClassVar[Sequence[str]] = ("input",)
    tokenizer: TokenizerConfig = Field(WordsConfig(), description="tokenizer, trained on the train split")
    max_length: int = Field(
        128,
        ge=2,
        le=100_000,
        description="maximum tokens per text; of a longer text, the beginning is read, in every split",
    )
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
        description="fraction of training tokens to mask, chosen at random in each epoch",
    )
    unknown_fraction: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="fraction of training tokens to replace by the unknown token, chosen at random in each"
        " epoch, so that the model learns to read texts with unknown words",
    )
    unseen_only: bool = Field(
        False, description="omit validation and test examples whose text also appears in train"
    )

    def learn(self, texts: Mapping[str, Texts]) -> ClassificationTask:
        tokenizer = train_tokenizer(self.tokenizer, [texts["train"].column("input")])
        if self.target == "number":
            statistics = target_statistics(_numbers(texts["train"]), texts["train"].name)
            return RegressionTask(self, tokenizer, statistics)
        counts, types = _count_labels(texts["train"])
        task = ClassificationTask(self, tokenizer, sorted(counts))
        task.label_values = types.values(texts["train"].location)
        task.notes += types.notes() + label_warnings(counts)
        return task

    def restore(self, state: Mapping[str, Any], seed: int = 0) -> ClassificationTask:
        tokenizer = Tokenizer.from_json_tree(state["tokenizer"])
        task: ClassificationTask
        if self.target == "number":
            # An older run has no statistics: its model was trained on the targets as they are.
            task = RegressionTask(self, tokenizer, state.get("targets", {}))
        else:
            task = ClassificationTask(self, tokenizer, state["labels"])
        task.layout, task.left_out, task.is_restored = state.get("layout"), state.get("left_out", []), True
        task.label_values = state.get("label_values", {})
        return task

    def texts(self, report: DataReport) -> dict[str, Texts]:
        if self.data is not None:
            splits = read_splits(self, self.data, self.unseen_only, report)
        else:
            few = min(2000, max(10, self.examples // 5))
            splits = generate_splits(reviews, self.examples, few, self.data_seed)
        if self.train_limit is not None:
            train = splits["train"]
            splits["train"] = self._limited(train, self.train_limit)
            omitted = len(train) - len(splits["train"])
            report.count(omitted, len(train), "train: omitted by task.train_limit")
        return splits

    def classes(self, texts: Texts) -> np.ndarray | None:
        return number_classes(_labels(texts), len(texts)) if self.target == "label" else None

    def _limited(self, texts: Texts, limit: int) -> Texts:
        """Return `limit` random examples, balanced over the labels. The choice depends on `data_seed`."""
        classes = self.classes(texts)
        label_of_each = np.zeros(len(texts), dtype=np.int32) if classes is None else classes
        counts = np.bincount(label_of_each)
        if limit < len(counts):
            message = f"fewer examples than labels: train has {len(counts):,} labels"
            raise user_error(message, path="task.train_limit", value=limit, hint=f"{len(counts)} or more")

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


def _labels(texts: Texts) -> Iterator[str]:
    """Yield the label of each text. A label may be empty; null is an error."""
    return (label for label, _ in _labels_and_values(texts))


def _labels_and_values(texts: Texts) -> Iterator[tuple[str, Any]]:
    """Yield the label of each text, and the value in the data, which may be a number or a boolean."""
    for index, value in enumerate(texts.column("target")):
        if value is None:
            raise user_error("the target is null", path=texts.location(index), hint=ADD_LABEL)
        yield str(value).strip(), value


def _count_labels(train: Texts) -> tuple[Counter[str], LabelTypes]:
    """Count the labels of train, and return their types in the data.

    Raise UserError if a label is empty or there is only one.
    """
    found = Counter[str]()
    types = LabelTypes()
    for index, (label, value) in enumerate(_labels_and_values(train)):
        if not label:
            raise _empty_label(train, index)
        found[label] += 1
        types.add(label, value, index)
        if len(found) > MAX_LABELS:
            message = f"more than {MAX_LABELS:,} different labels: is this the right column?"
            raise user_error(message, path=train.name, hint=f"{train.columns_hint}, or task.target=number")
    if len(found) < 2:
        message = f"only one label, {next(iter(found))!r}: nothing to classify"
        raise user_error(message, path=train.name, hint=train.columns_hint)
    return found, types


def _numbers(texts: Texts) -> np.ndarray:
    """Return the target of each text as a float64; raise UserError if one is not a number."""
    numbers = np.empty(len(texts), dtype=np.float64)
    for index, value in enumerate(texts.column("target")):
        try:
            numbers[index] = parse_number(value)
        except ErrorDetail as detail:
            raise at_location(detail, texts.location(index)) from None
    return numbers


def _empty_label(texts: Texts, index: int) -> UserError:
    return user_error("the label is empty", path=texts.location(index), hint=ADD_LABEL)


def _check_special(config: ClassificationConfig, tokenizer: Tokenizer) -> None:
    """Raise ErrorDetail if an option needs a special token that an imported tokenizer does not have."""
    needed = {"masked_fraction": ("mask", tokenizer.mask), "unknown_fraction": ("unknown", tokenizer.unknown)}
    for option, (name, token) in needed.items():
        if getattr(config, option) and token < 0:
            raise ErrorDetail(
                f"the tokenizer has no {name} token",
                path=f"task.{option}",
                value=getattr(config, option),
                hint=f"task.{option}=0",
            )


class ClassificationTask(PairTask, SequenceClassificationTask):
    """Text classification task. As in a language-model prompt, inputs have a begin token but no end token."""

    config: ClassificationConfig

    def __init__(self, config: ClassificationConfig, tokenizer: Tokenizer, labels: Sequence[str]) -> None:
        self.config = config
        self.labels = Vocabulary(labels)
        self.left_out: list[str] = []
        """Labels that train does not have. Their rows in other splits are left out."""
        self.is_restored = False
        _check_special(config, tokenizer)
        super().__init__(config, tokenizer, self._task_type(len(tokenizer)))

    def _task_type(self, vocabulary: int) -> SequenceClassification:
        return SequenceClassification(vocabulary, self.config.max_length, outputs=len(self.labels))

    def state(self) -> dict[str, Any]:
        left_out = {"left_out": sorted(set(self.left_out))} if self.left_out else {}
        values = {"label_values": dict(self.label_values)} if self.label_values else {}
        return super().state() | {"labels": self.labels.symbols} | left_out | values

    def encode_split(self, split: str, texts: Texts, report: DataReport) -> Examples:
        limit, tokenizer = self.config.max_length, self.tokenizer
        longest = limit - 1 - tokenizer.ends_inputs
        texts = self._with_known_labels(split, texts, report)

        def arrange(sides: Sequence[Encoded], facts: Counter[str]) -> tuple[np.ndarray, ...]:
            ((_, row),) = sides
            facts["long"] += len(row) > longest
            facts["empty"] += not len(row)
            return (tokenizer.enclose(row, limit),)

        columns = encode_texts(texts, {"input": tokenizer}, arrange, {"limit": limit}, report)
        report.count(columns.facts["long"], len(texts), f"{split}: truncated to {limit} tokens")
        report.count(columns.facts["empty"], len(texts), f"WARNING: {split}: texts without tokens")
        columns.report_unknown(split, report)
        self.texts[split] = texts
        targets = self._encode_targets(texts)
        if split in ("validation", "test") and isinstance(texts, FileTexts) and len(self.labels):
            counts = np.bincount(targets, minlength=len(self.labels)).tolist()
            report.notes += rare_labels(split, dict(zip(self.labels.symbols, counts, strict=True)))
        return Examples(columns.rows["input"], targets)

    def replace_data(self, split: str, stream: Stream, data: DataConfig) -> list[str]:
        self.is_restored = False  # rows with unknown labels are new, and do not mean that a file has changed
        return super().replace_data(split, stream, data)

    def _with_known_labels(self, split: str, texts: Texts, report: DataReport) -> Texts:
        """Return the texts whose labels occur in the training split.

        A few texts with other labels are left out with a warning. If there are many, raise UserError.
        """
        unknown: dict[int, list[str]] = {}
        for index, label in enumerate(_labels(texts)):
            if not label:
                raise _empty_label(texts, index)
            if label not in self.labels.ids:
                unknown[index] = [label]
        if not unknown:
            return texts
        rows, known = UnknownRows(split, unknown, len(texts), texts.locations), self.labels.symbols
        if self.is_restored:
            rows.reject_new(self.left_out, known)
        is_split_off = isinstance(texts, FileTexts) and texts.split != split
        report.notes.append(rows.leave_out(known, is_split_off=is_split_off))
        self.left_out += rows.distinct
        is_taken = np.ones(len(texts), dtype=bool)
        is_taken[list(unknown)] = False
        return texts.take(is_taken)

    def _encode_targets(self, texts: Texts) -> np.ndarray:
        numbers = (self.labels.ids[label] for label in _labels(texts))
        return np.fromiter(numbers, dtype=np.int16, count=len(texts))

    def batch(self, split: str, indices: np.ndarray, epoch: int | None = None) -> Batch:
        """Collate examples. In training, replace random tokens by MASK or UNKNOWN.

        Which tokens are replaced depends only on `data_seed`, epoch and example index.
        """
        batch = super().batch(split, indices, epoch)
        tokens_BL = batch.inputs["tokens"]
        if epoch is None or tokens_BL is None:
            return batch
        masked, unknown = self.config.masked_fraction, self.config.unknown_fraction
        hidden, strange = self.tokenizer.mask, self.tokenizer.unknown
        is_text_V = torch.from_numpy(self.tokenizer.is_text)
        for purpose, fraction, token in (("hide", masked, hidden), ("unknown", unknown, strange)):
            if fraction:
                shape = (tokens_BL.shape[1],)
                draws_BL = draw_each(shape, self.config.data_seed, purpose, epoch, indices=indices)
                is_replaced = (draws_BL < fraction) & is_text_V[tokens_BL]
                tokens_BL = tokens_BL.masked_fill(is_replaced, token)
        return replace(batch, inputs={**batch.inputs, "tokens": tokens_BL})

    def parse(self, text: str) -> np.ndarray:
        tokens = self.tokenizer.encode(text)
        if not text.strip():
            raise ErrorDetail("the line is empty: nothing to classify", hint="type a text")
        return self.tokenizer.enclose(tokens, self.config.max_length)

    def warning(self, tokens: Sequence[int], text: str = "") -> str | None:
        cut = None
        if len(tokens) == self.config.max_length:  # a shorter input is complete
            added = 1 + self.tokenizer.ends_inputs  # begin and end tokens
            read, total = len(tokens) - added, len(self.tokenizer.encode(text))
            cut = f"only the first {read:,} of {total:,} tokens are read" if total > read else None
        return "; ".join(reason for reason in (cut, super().warning(tokens, text)) if reason) or None

    def output_symbols(self, tokens: Sequence[int]) -> list[str]:
        return self.labels.decode(tokens)


class RegressionTask(ClassificationTask):
    """Task that predicts one number per text.

    `statistics` are the mean and the standard deviation of the training targets, by `target_statistics`.
    """

    primary_metric = "mean_absolute_error"

    def __init__(
        self, config: ClassificationConfig, tokenizer: Tokenizer, statistics: Mapping[str, float]
    ) -> None:
        self.statistics = dict(statistics)
        super().__init__(config, tokenizer, [])

    def _task_type(self, vocabulary: int) -> SequenceClassification:
        length, statistics = self.config.max_length, self.statistics
        return SequenceClassification(vocabulary, length, outputs=1, is_regression=True, **statistics)

    def state(self) -> dict[str, Any]:
        return super().state() | ({"targets": self.statistics} if self.statistics else {})

    def _with_known_labels(self, split: str, texts: Texts, report: DataReport) -> Texts:
        return texts

    def _encode_targets(self, texts: Texts) -> np.ndarray:
        return _numbers(texts)

    def output_symbols(self, tokens: Sequence[float]) -> list[str]:
        return show_numbers(self.task_type, tokens)
