"""What the tasks on text share: where texts come from, what is left out or cut, and what is told of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from glassformer.data.readers import DataConfig, Rows, split_off
from glassformer.data.tokenizers import UNKNOWN, BPEConfig, Tokenizer, TokenizerConfig
from glassformer.errors import shorten, user_error
from glassformer.tasks.base import TaskConfig

SPLITS = ("train", "validation", "test")


class TextTaskConfig(TaskConfig):
    """Options of every task on text."""

    data: DataConfig | None = Field(None, description="your own files; none: texts that are made here")
    tokenizer: TokenizerConfig = BPEConfig()
    max_length: int = Field(
        128, ge=2, le=100_000, description="tokens; longer examples are left out of training, cut elsewhere"
    )
    data_seed: int = Field(0, ge=0, description="drives made texts and what is split off, not the run's seed")


@dataclass
class Texts:
    """The examples of a split before they are tokens: a column of values a role, and where they stand."""

    values: dict[str, list[Any]]
    name: str = "made here"
    place: Callable[[int], str] = lambda index: f"example {index + 1}"

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))

    def take(self, indices: Sequence[int]) -> Texts:
        kept = {role: [column[index] for index in indices] for role, column in self.values.items()}
        places = list(indices)
        return Texts(kept, self.name, lambda index: self.place(places[index]))

    @classmethod
    def of(cls, rows: Rows, text_roles: Sequence[str]) -> Texts:
        texts = {
            role: [as_text(value, rows.place, index) for index, value in enumerate(rows.values[role])]
            for role in text_roles
        }
        return cls({**rows.values, **texts}, rows.name, rows.place)


def as_text(value: object, place: Callable[[int], str], number: int) -> str:
    """A number in a JSON file is read as it is written; a list, or nothing at all, is no text."""
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    raise user_error(
        f"a text belongs here, not {shorten(json.dumps(value), 40)}",
        place=place(number),
        remedy="correct it there, or name another column in task.data.columns",
    )


@dataclass
class Told:
    """What happened to the data on their way in: told to the person, and kept in the run's record."""

    notes: list[str] = field(default_factory=list)

    def count(self, number: int, of: int, note: str) -> None:
        if number:
            self.notes.append(f"{note}: {number:,} of {of:,}")


def read_splits(
    data: DataConfig,
    roles: Mapping[str, str],
    *,
    text_roles: Sequence[str],
    key: str,
    data_seed: int,
    unseen_only: bool,
    told: Told,
) -> dict[str, Texts]:
    """Every split that has a file, and a validation split in any case. What two splits share is told."""
    splits: dict[str, Texts] = {}
    for split in SPLITS:
        rows = data.read(split, roles)
        if rows is not None:
            told.notes += rows.notes
            splits[split] = Texts.of(rows, text_roles)
    fractions = {}
    if data.validation is None:
        fractions["validation"] = data.validation_fraction
    if data.test is None and data.test_fraction is not None:
        fractions["test"] = data.test_fraction
    train = splits["train"]
    if fractions:
        parts = split_off(train.values[key], fractions, data_seed, f"task.data.train: {train.name}")
        splits |= {split: train.take(indices.tolist()) for split, indices in parts.items()}
    for split in fractions:
        told.notes.append(f"{split}: {len(splits[split]):,} of {len(train):,} training examples, split off")
    return {split: _compare(split, texts, splits, key, unseen_only, told) for split, texts in splits.items()}


def _compare(
    split: str, texts: Texts, splits: Mapping[str, Texts], key: str, unseen_only: bool, told: Told
) -> Texts:
    if split == "train":
        return texts
    seen = set(splits["train"].values[key])
    unseen = [index for index, value in enumerate(texts.values[key]) if value not in seen]
    number = len(texts) - len(unseen)
    if unseen_only and not unseen:
        raise user_error(
            f"nothing is left of {split}: all its inputs also stand in train",
            place=texts.name,
            remedy="other data, or task.unseen_only=false",
        )
    if unseen_only:
        told.count(number, len(texts), f"{split}: left out, since also in train")
        return texts.take(unseen)
    told.count(number, len(texts), f"WARNING: {split} examples whose input also stands in train")
    return texts


def train_tokenizer(config: TokenizerConfig, columns: Sequence[Sequence[str]]) -> Tokenizer:
    return config.train(lambda: (text for column in columns for text in column))


def unknown_words(tokens: Sequence[int]) -> str | None:
    """Why an answer may be of little worth: the tokenizer never saw some of the words."""
    unknown = sum(token == UNKNOWN for token in tokens)
    return f"{unknown} of {len(tokens)} tokens are unknown to the model" if unknown else None
