"""Tasks on token sequences from the user's files, with labels, numbers or other sequences as targets.

Vocabularies come from the training split and are saved with the run, so that a trained model predicts without
its training files.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from glassformer.core.errors import ErrorDetail, near_match, shorten, user_error
from glassformer.core.registry import register
from glassformer.data.batching import Batch, Examples, Sequences, Vocabulary, draw_each
from glassformer.data.formats import Stream
from glassformer.data.labels import label_warnings
from glassformer.data.readers import DataConfig, Rows
from glassformer.data.splits import UnknownRows, describe_split_off, number_classes, rare_labels, split_off
from glassformer.models.task_types import Seq2Seq, SequenceClassification, TaskType, TokenClassification
from glassformer.tasks.base import (
    Inputs,
    LabelTypes,
    Piece,
    Seq2SeqTask,
    SequenceClassificationTask,
    Task,
    TaskConfig,
    TokenClassificationTask,
    at_location,
    check_length,
    mark_piece,
    parse_number,
    show_numbers,
    target_statistics,
)

UNKNOWN, BEGIN, END = "<unknown>", "<begin>", "<end>"
RESERVED = [UNKNOWN, BEGIN, END]
ROLES = {"input": "input", "target": "target"}

UNKNOWN_WIDTH = 60
"""Maximum number of characters of a warning that lists the unknown symbols of an input."""


class TokenText(str):
    """Text of an input that was given as a list of tokens, which may contain the separator."""

    tokens: list[str]

    @classmethod
    def of(cls, tokens: Sequence[str], separator: str) -> TokenText:
        text = cls(separator.join(tokens))
        text.tokens = list(tokens)
        return text


Target = Literal["token-labels", "label", "number", "sequence"]


@register
class TokensConfig(TaskConfig):
    """Your own token sequences, from TSV, CSV or JSONL files, with one label or number per sequence,
    labels per token, or another sequence.

    Use it for data that is not text: events, notes, codes, categories.
    """

    kind: Literal["tokens"] = "tokens"
    roles: ClassVar[Mapping[str, str]] = ROLES
    data: DataConfig = Field(description="your own files")
    target: Target = Field(
        "token-labels",
        description="type of target: one label per token, one label, one number, or another sequence",
    )
    separator: str | None = Field(
        None, description="text between tokens; none: white space; '': each character is a token"
    )
    shared_vocabulary: bool = Field(
        False, description="for target=sequence: one vocabulary for inputs and targets"
    )
    unknown_dropout: float = Field(
        0.25,
        ge=0,
        le=100,
        description="strength with which training tokens are replaced by the unknown token, so that the model"
        " learns to read unseen symbols: d / (d + n) is the probability for a symbol that occurs n times",
    )
    data_seed: int = Field(
        0, ge=0, description="seed for choosing the rows that are split off, independent of the run's seed"
    )

    def build(self, seed: int) -> TokensTask:
        kind = _TASKS[self.target]
        splits = kind.read(self)
        layout = splits["train"].stream.layout()
        saved = {} if layout is None else {"layout": layout.document()}
        task = kind(self, kind.learn(self, splits) | saved)
        task.notes += [*task.describe(splits), *task.label_warnings(splits["train"])]
        task.splits = task.encode(splits, task.notes)
        return task

    def restore(self, state: Mapping[str, Any], seed: int = 0) -> TokensTask:
        return _TASKS[self.target](self, state)

    def tokens(self, value: Any) -> list[str]:
        """Split a table cell, or a line that a user typed, into tokens."""
        if isinstance(value, TokenText):
            found = value.tokens
        elif isinstance(value, list):
            found = [_symbol(item) for item in value]
        elif self.separator == "":
            found = list(_symbol(value).strip())
        else:
            found = [token for token in _symbol(value).split(self.separator) if token]
        return [sys.intern(token) for token in found]  # a corpus has few distinct tokens


def _symbol(value: Any) -> str:
    if isinstance(value, (str, bool, int, float)):
        return value if isinstance(value, str) else str(value).lower()
    raise ErrorDetail(f"expected text or a number, not {shorten(repr(value), 40)}")


class TokensTask(Task):
    """Base class for tasks on the user's token sequences. Each subclass handles one type of target."""

    has_labels: ClassVar[bool] = False
    """True if targets are labels of sequences or tokens."""

    def __init__(self, config: TokensConfig, state: Mapping[str, Any]) -> None:
        self.config = config
        self._state = dict(state)
        self.vocabulary = Vocabulary(state["symbols"])
        self.target_vocabulary = Vocabulary(state["target_symbols"])
        super().__init__(self._task_type(), lambda: self.encode(self.read(config)))

    def state(self) -> dict[str, Any]:
        return dict(self._state)

    def _task_type(self) -> TaskType:
        raise NotImplementedError

    @classmethod
    def read_target(cls, config: TokensConfig, cell: Any, tokens: list[str]) -> Any:
        raise NotImplementedError

    @classmethod
    def target_symbols(cls, rows: Rows) -> Iterable[str]:
        """Return the symbols of all targets as one flat iterable."""
        return chain.from_iterable(rows.values["target"])

    def encode_targets(self, rows: Rows) -> Sequences:
        raise NotImplementedError

    @classmethod
    def learn(cls, config: TokensConfig, splits: Mapping[str, Rows]) -> dict[str, Any]:
        """Return the task state to save with a run: symbols and labels of train, and the maximum length.

        The maximum length is that of all splits.
        """
        return {
            "symbols": [UNKNOWN, *_distinct(chain.from_iterable(splits["train"].values["input"]))],
            "target_symbols": _distinct(cls.target_symbols(splits["train"])),
            "max_length": max(len(tokens) for rows in splits.values() for tokens in rows.values["input"]),
        }

    @classmethod
    def read(cls, config: TokensConfig) -> dict[str, Rows]:
        """Read the splits from their files. If there is no validation file, split off a part of train."""
        splits = {}
        for split in ("train", "validation", "test"):
            rows = config.data.read(split, ROLES)
            if rows is not None:
                splits[split] = cls._parse_rows(config, rows)
        if "validation" not in splits:
            train = splits["train"]
            fractions = {"validation": config.data.validation_fraction}
            keys = [tuple(tokens) for tokens in train.values["input"]]
            parts = split_off(keys, fractions, config.data_seed, train.name, cls.classes(train))
            splits |= {split: train.take(indices) for split, indices in parts.items()}
        return splits

    @classmethod
    def classes(cls, rows: Rows) -> np.ndarray | None:
        """Return the class number of each row, if it has one label. Each split gets its share of them."""
        return None

    @classmethod
    def _parse_rows(cls, config: TokensConfig, rows: Rows) -> Rows:
        """Return the rows with input cells split into tokens, and targets parsed but not yet encoded."""
        inputs, targets = [], []
        for index, (cell, target) in enumerate(zip(rows.values["input"], rows.values["target"], strict=True)):
            try:
                tokens = _reject_reserved(config.tokens(cell))
                if not tokens:
                    raise ErrorDetail("the input has no tokens", hint="remove the line")
                inputs.append(tokens)
                targets.append(cls.read_target(config, target, tokens))
            except ErrorDetail as detail:
                raise at_location(detail, rows.location(index)) from None
        return replace(rows, values={"input": inputs, "target": targets})

    def encode(self, splits: Mapping[str, Rows], notes: list[str] | None = None) -> dict[str, Examples]:
        """Convert all splits to ids. Rows whose labels do not occur in train are left out, with a note."""
        known = {split: self._with_known_labels(split, rows, notes) for split, rows in splits.items()}
        if notes is not None and self.has_labels:
            for split in sorted(known.keys() - {"train"}):
                counts = dict.fromkeys(self.target_vocabulary.symbols, 0)
                notes += rare_labels(split, counts | Counter(self.target_symbols(known[split])))
        return {
            split: Examples(_pack(self.vocabulary, rows.values["input"]), self.encode_targets(rows))
            for split, rows in known.items()
        }

    def replace_data(self, split: str, stream: Stream, data: DataConfig) -> list[str]:
        rows = self._parse_rows(self.config, Rows.collect(stream, list(ROLES)))
        notes = list(rows.notes)
        rows = self._with_known_labels(split, rows, notes)
        self._check_lengths(rows)
        inputs = rows.values["input"]
        total = sum(map(len, inputs))
        unknown = sum(not self._is_known(token) for tokens in inputs for token in tokens)
        notes += [f"{split}: unknown tokens: {unknown:,} of {total:,}"] if unknown else []
        self.splits = self.encode({split: rows})
        self._original_inputs = {split: inputs}
        return notes

    def _check_lengths(self, rows: Rows) -> None:
        """Raise UserError if an input, or a target that is a sequence, is longer than the model allows."""
        limits = {"input": self._state["max_length"], "target": self._state.get("max_target_length")}
        for role, limit in limits.items():
            for index, tokens in enumerate(rows.values[role] if limit else ()):
                if len(tokens) > limit:
                    raise user_error(
                        f"the {role} has {len(tokens):,} tokens, and the model reads at most {limit:,}",
                        path=rows.location(index),
                        hint="shorten it, or remove the row",
                    )

    def comparable(self, split: str) -> Iterable[Hashable]:
        return map(tuple, self._original_inputs[split])

    def label_warnings(self, train: Rows) -> list[str]:
        """Return warnings about doubtful labels; empty if targets are not labels of whole sequences."""
        return []

    def unknown_labels(self, target: Any) -> Sequence[str]:
        """Return the labels of one target that do not occur in train; empty if targets are not labels."""
        return ()

    def _with_known_labels(self, split: str, rows: Rows, notes: list[str] | None) -> Rows:
        """Return the rows whose labels occur in train, and append a note about the others to `notes`.

        `notes` is None for a restored task, which rejects labels that were not left out when it was trained.
        """
        labels = (self.unknown_labels(target) for target in rows.values["target"])
        unknown = {index: found for index, found in enumerate(labels) if found}
        if not unknown:
            return rows
        found = UnknownRows(split, unknown, len(rows), lambda indices: list(map(rows.location, indices)))
        known, left_out = self.target_vocabulary.symbols, self._state.setdefault("left_out", [])
        if notes is None:
            found.reject_new(left_out, known)
        else:
            is_split_off = split == "validation" and self.config.data.validation is None
            notes.append(found.leave_out(known, is_split_off=is_split_off))
            self._state["left_out"] = sorted({*left_out, *found.distinct})
        return rows.take(index for index in range(len(rows)) if index not in unknown)

    def describe(self, splits: Mapping[str, Rows]) -> list[str]:
        """Return notes for the user: how files were read, symbols missing from train, overlapping splits."""
        notes = list(dict.fromkeys(note for rows in splits.values() for note in rows.notes))
        if self.config.data.validation is None:
            split_off, total = len(splits["validation"]), len(splits["validation"]) + len(splits["train"])
            distinct = len(set(map(tuple, splits["validation"].values["input"])))
            notes.append(describe_split_off("validation", split_off, distinct, total, "rows"))
        for split in sorted(splits.keys() - {"train"}):
            notes += _compare(split, self._comparable(splits[split]), self._comparable(splits["train"]))
        return notes

    def _comparable(self, rows: Rows) -> dict[str, Counter[Any]]:
        return {
            "input symbols": Counter(chain.from_iterable(rows.values["input"])),
            "target symbols": Counter(self.target_symbols(rows)),
            "inputs": Counter(map(tuple, rows.values["input"])),
        }

    def parse(self, text: str) -> np.ndarray:
        return self.parse_tokens(self.config.tokens(text))

    def read_input(self, value: Any) -> tuple[np.ndarray, str]:
        if isinstance(value, (list, tuple)):
            tokens = self.config.tokens(list(value))
            return self.parse_tokens(tokens), self.join_symbols(tokens)
        return super().read_input(value)

    def are_single_tokens(self, inputs: Sequence[Any]) -> bool:
        """Return True for several texts of one token each, which may be the tokens of one input."""
        if len(inputs) < 2 or self.task_type.max_length < 2:
            return False
        return all(isinstance(text, str) and len(self.config.tokens(text)) == 1 for text in inputs)

    def parse_tokens(self, tokens: Sequence[str]) -> np.ndarray:
        """Convert tokens to ids; raise ErrorDetail if there are none or one is unknown."""
        if not tokens:
            raise ErrorDetail("the line is empty: no token to read", hint="type tokens of the training file")
        known = [token if self._is_known(token) else UNKNOWN for token in tokens]
        return check_length(self.vocabulary.encode(known), self.task_type.max_length)

    def _is_known(self, token: str) -> bool:
        return token in self.vocabulary.ids and token not in RESERVED

    def warning(self, tokens: Sequence[int], text: str = "") -> str | None:
        unknown = sum(map(self.is_unknown, tokens))
        if not unknown:
            return None
        found = dict.fromkeys(token for token in self.config.tokens(text) if not self._is_known(token))
        shown = shorten(" ".join(map(mark_piece, found)), UNKNOWN_WIDTH)
        near = near_match(
            next(iter(found), None), [each for each in self.vocabulary.symbols if each not in RESERVED]
        )
        hint = f"; did you mean {near!r}?" if near else ""
        return f"{unknown} of {len(tokens)} tokens are unknown to the model: {shown}{hint}"

    def batch(self, split: str, indices: np.ndarray, epoch: int | None = None) -> Batch:
        """Collate examples. In training, replace random tokens by UNKNOWN, mostly rare ones.

        Which tokens are replaced depends only on `data_seed`, epoch and example index.
        """
        batch = super().batch(split, indices, epoch)
        tokens_BL = batch.inputs["tokens"]
        if epoch is None or tokens_BL is None or not self.config.unknown_dropout:
            return batch
        seed = self.config.data_seed
        draws_BL = draw_each((tokens_BL.shape[1],), seed, "unknown", epoch, indices=indices)
        is_replaced = draws_BL < self._unknown_probabilities[tokens_BL]
        tokens_BL = tokens_BL.masked_fill(is_replaced, self.vocabulary.ids[UNKNOWN])
        return replace(batch, inputs={**batch.inputs, "tokens": tokens_BL})

    @cached_property
    def _unknown_probabilities(self) -> Tensor:
        """Probability of each symbol to be replaced by UNKNOWN in training."""
        counts_V = np.zeros(len(self.vocabulary))
        for row in self.splits["train"].inputs:
            np.add.at(counts_V, row, 1)
        dropout = self.config.unknown_dropout
        return torch.from_numpy(dropout / (dropout + counts_V))

    def input_symbols(self, tokens: Sequence[int]) -> list[str]:
        return self.vocabulary.decode(tokens)

    def input_texts(self, split: str, indices: Sequence[int], rows: Inputs | None = None) -> list[str]:
        inputs = self._original_inputs[split]
        return [self.join_symbols(inputs[index]) for index in indices]

    @cached_property
    def _original_inputs(self) -> dict[str, list[list[str]]]:
        splits = self.read(self.config).items()
        return {split: self._with_known_labels(split, rows, None).values["input"] for split, rows in splits}

    def pieces(self, text: str) -> list[Piece]:
        found, at = [], 0
        for token in self.config.tokens(text):
            start = text.index(token, at)  # tokens of a list are next to each other, with one separator
            at = start + len(token)
            found.append(Piece(start, at, self._is_known(token)))
        return found

    def is_unknown(self, token: int) -> bool:
        return token == self.vocabulary.ids[UNKNOWN]

    def join_symbols(self, symbols: Sequence[str]) -> TokenText:
        """Return symbols as the text that a user would type. It keeps the symbols, which may have spaces."""
        return TokenText.of(symbols, " " if self.config.separator is None else self.config.separator)

    def output_symbols(self, tokens: Sequence[int]) -> list[str]:
        return self.target_vocabulary.decode(tokens)

    def show_output(self, tokens: Sequence[int]) -> str:
        symbols = [symbol for symbol in self.output_symbols(tokens) if symbol not in (BEGIN, END)]
        return str(self.join_symbols(symbols))


class TokenLabelTask(TokensTask, TokenClassificationTask):
    """Task that predicts one label per token."""

    has_labels = True

    def _task_type(self) -> TaskType:
        return TokenClassification(
            len(self.vocabulary), self._state["max_length"], classes=len(self.target_vocabulary)
        )

    @classmethod
    def read_target(cls, config: TokensConfig, cell: Any, tokens: list[str]) -> list[str]:
        labels = config.tokens(cell)
        if len(labels) != len(tokens):
            raise ErrorDetail(
                f"{len(tokens)} tokens but {len(labels)} labels",
                hint="write one label per token, or set task.target to label, number or sequence",
            )
        return labels

    def unknown_labels(self, target: list[str]) -> Sequence[str]:
        return [label for label in target if label not in self.target_vocabulary.ids]

    def encode_targets(self, rows: Rows) -> Sequences:
        return _pack(self.target_vocabulary, rows.values["target"])


class SequenceLabelTask(TokensTask, SequenceClassificationTask):
    """Task that predicts one label per sequence."""

    has_labels = True

    def __init__(self, config: TokensConfig, state: Mapping[str, Any]) -> None:
        super().__init__(config, state)
        self.label_values = state.get("label_values", {})

    @classmethod
    def _parse_rows(cls, config: TokensConfig, rows: Rows) -> Rows:
        parsed = super()._parse_rows(config, rows)
        return replace(parsed, values={**parsed.values, "value": rows.values["target"]})

    @classmethod
    def learn(cls, config: TokensConfig, splits: Mapping[str, Rows]) -> dict[str, Any]:
        values = cls._label_types(splits["train"]).values(splits["train"].location)
        return super().learn(config, splits) | ({"label_values": values} if values else {})

    @staticmethod
    def _label_types(train: Rows) -> LabelTypes:
        types, pairs = LabelTypes(), zip(train.values["target"], train.values["value"], strict=True)
        for index, (label, value) in enumerate(pairs):
            types.add(label, value, index)
        return types

    def describe(self, splits: Mapping[str, Rows]) -> list[str]:
        return super().describe(splits) + self._label_types(splits["train"]).notes()

    def _task_type(self) -> TaskType:
        return SequenceClassification(
            len(self.vocabulary), self._state["max_length"], outputs=len(self.target_vocabulary)
        )

    @classmethod
    def read_target(cls, config: TokensConfig, cell: Any, tokens: list[str]) -> str:
        label = _symbol(cell).strip()
        if not label:
            raise ErrorDetail("the label is empty", hint="add a label, or remove the line")
        return label

    @classmethod
    def target_symbols(cls, rows: Rows) -> Iterable[str]:
        return rows.values["target"]

    def label_warnings(self, train: Rows) -> list[str]:
        return label_warnings(Counter(train.values["target"]))

    @classmethod
    def classes(cls, rows: Rows) -> np.ndarray | None:
        return number_classes(rows.values["target"], len(rows))

    def unknown_labels(self, target: str) -> Sequence[str]:
        return () if target in self.target_vocabulary.ids else (target,)

    def encode_targets(self, rows: Rows) -> Sequences:
        one_each = _pack(self.target_vocabulary, [[label] for label in rows.values["target"]])
        return np.asarray(one_each)[:, 0]


class SequenceValueTask(TokensTask, SequenceClassificationTask):
    """Task that predicts one number per sequence."""

    primary_metric = "mean_absolute_error"

    def _task_type(self) -> TaskType:
        # An older run has no statistics: its model was trained on the targets as they are.
        statistics, length = self._state.get("targets", {}), self._state["max_length"]
        return SequenceClassification(len(self.vocabulary), length, is_regression=True, **statistics)

    @classmethod
    def learn(cls, config: TokensConfig, splits: Mapping[str, Rows]) -> dict[str, Any]:
        targets = np.array(splits["train"].values["target"], dtype=np.float64)
        return super().learn(config, splits) | {"targets": target_statistics(targets, splits["train"].name)}

    @classmethod
    def read_target(cls, config: TokensConfig, cell: Any, tokens: list[str]) -> float:
        return parse_number(cell)

    @classmethod
    def target_symbols(cls, rows: Rows) -> Iterable[str]:
        return ()

    def encode_targets(self, rows: Rows) -> Sequences:
        return np.array(rows.values["target"], dtype=np.float64)

    def output_symbols(self, tokens: Sequence[float]) -> list[str]:
        return show_numbers(self.task_type, tokens)


class TokenTranslationTask(TokensTask, Seq2SeqTask):
    """Task that generates an output sequence of tokens for each input sequence."""

    def _task_type(self) -> TaskType:
        self.begin, self.end = self.target_vocabulary.encode([BEGIN, END])
        return Seq2Seq(
            len(self.vocabulary),
            self._state["max_length"],
            target_vocabulary=len(self.target_vocabulary),
            max_target_length=self._state["max_target_length"],
            is_shared_vocabulary=self.config.shared_vocabulary,
        )

    @classmethod
    def read_target(cls, config: TokensConfig, cell: Any, tokens: list[str]) -> list[str]:
        return [BEGIN, *_reject_reserved(config.tokens(cell)), END]

    @classmethod
    def learn(cls, config: TokensConfig, splits: Mapping[str, Rows]) -> dict[str, Any]:
        state = super().learn(config, splits)
        symbols = set(cls.target_symbols(splits["train"]))
        if config.shared_vocabulary:
            symbols |= set(state["symbols"])
            state["symbols"] = [*RESERVED, *_distinct(symbols - set(RESERVED))]
        state["target_symbols"] = [*RESERVED, *_distinct(symbols - set(RESERVED))]
        longest = max(len(target) for rows in splits.values() for target in rows.values["target"])
        return {**state, "max_target_length": longest}

    def encode_targets(self, rows: Rows) -> Sequences:
        return _pack(self.target_vocabulary, rows.values["target"])


_TASKS: dict[str, type[TokensTask]] = {
    "token-labels": TokenLabelTask,
    "label": SequenceLabelTask,
    "number": SequenceValueTask,
    "sequence": TokenTranslationTask,
}


def _distinct(symbols: Iterable[str]) -> list[str]:
    return sorted(set(symbols))


def _compare(split: str, here: dict[str, Counter[Any]], train: dict[str, Counter[Any]]) -> list[str]:
    notes = []
    for what in ("input symbols", "target symbols"):
        new = {symbol: count for symbol, count in here[what].items() if symbol not in train[what]}
        if new:
            examples, total = shorten(", ".join(map(repr, new)), 60), sum(new.values())
            is_most = 2 * total > here[what].total()
            notes.append(
                f"{'WARNING: ' * is_most}{split}: {what} that train does not have: {examples}"
                f" ({total:,} in total)"
            )
    known = sum(count for tokens, count in here["inputs"].items() if tokens in train["inputs"])
    if known:
        notes.append(f"WARNING: {split}: {known:,} of {here['inputs'].total():,} inputs also appear in train")
    return notes


def _reject_reserved(tokens: list[str]) -> list[str]:
    for token in tokens:
        if token in RESERVED:
            raise ErrorDetail("this symbol is reserved", value=token, hint="use another symbol")
    return tokens


def _pack(vocabulary: Vocabulary, sequences: list[list[str]]) -> Sequences:
    """Convert symbols to ids. A symbol that the vocabulary does not have gets the id of UNKNOWN.

    A vocabulary of labels has no UNKNOWN, so pass only known labels.
    """
    number_of = vocabulary.ids
    unknown = number_of.get(UNKNOWN)
    dtype = np.min_scalar_type(len(vocabulary))
    packed = [
        np.array([number_of.get(symbol, unknown) for symbol in symbols], dtype=dtype) for symbols in sequences
    ]
    is_even = len({len(row) for row in packed}) == 1
    return np.stack(packed) if is_even else packed
