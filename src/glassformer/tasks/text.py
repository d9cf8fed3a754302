"""What the tasks on text share: where texts come from, what is left out or cut, and what is told of it."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from glassformer.data.readers import DataConfig, split_off
from glassformer.data.streams import Record, Stream
from glassformer.data.token_cache import cache_folder, open_or_build
from glassformer.data.token_rows import RaggedRows
from glassformer.data.tokenizers import UNKNOWN, BPEConfig, Tokenizer, TokenizerConfig
from glassformer.errors import shorten, user_error
from glassformer.tasks.base import TaskConfig

SPLITS = ("train", "validation", "test")
TEXTS_AT_A_TIME = 256
KEYS_AT_A_TIME = 1 << 16


class TextTaskConfig(TaskConfig):
    """Options of every task on text."""

    data: DataConfig | None = Field(None, description="your own files; none: texts that are made here")
    tokenizer: TokenizerConfig = BPEConfig()
    max_length: int = Field(
        128, ge=2, le=100_000, description="tokens; longer examples are left out of training, cut elsewhere"
    )
    data_seed: int = Field(0, ge=0, description="drives made texts and what is split off, not the run's seed")


class Texts:
    """The examples of a split before they are tokens: a column of values a role, and where they stand.

    Columns are read again with each `iter()`, so that texts from files need not be in memory.
    """

    name = "made here"
    files: Sequence[Path] = ()
    """What they are read from."""

    def __len__(self) -> int:
        raise NotImplementedError

    def column(self, role: str) -> Iterable[Any]:
        raise NotImplementedError

    def take(self, indices: Sequence[int] | np.ndarray) -> Texts:
        """Those with these numbers, which ascend."""
        raise NotImplementedError

    def place(self, index: int) -> str:
        return f"example {index + 1}"

    def identity(self) -> Any:
        """All that decides, besides the bytes of the files, which texts these are."""
        raise NotImplementedError


class MadeTexts(Texts):
    def __init__(self, values: Mapping[str, Sequence[Any]]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))

    def column(self, role: str) -> Sequence[Any]:
        return self.values[role]

    def take(self, indices: Sequence[int] | np.ndarray) -> MadeTexts:
        return MadeTexts({role: [column[i] for i in indices] for role, column in self.values.items()})


@dataclass(frozen=True)
class FileTexts(Texts):
    """Those records of a stream whose numbers, counted from 0, are `kept`."""

    stream: Stream
    text_roles: Sequence[str]
    data: DataConfig
    split: str
    kept: np.ndarray

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.stream.name

    @property
    def files(self) -> Sequence[Path]:  # type: ignore[override]
        return self.stream.files

    def __len__(self) -> int:
        return len(self.kept)

    def _records(self) -> Iterator[Record]:
        kept = iter(self.kept.tolist())
        wanted = next(kept, None)
        for index, record in enumerate(self.stream):
            if index == wanted:
                yield record
                wanted = next(kept, None)
            if wanted is None:
                return

    def column(self, role: str) -> Iterable[Any]:
        is_text, place = role in self.text_roles, self.stream.place

        def read() -> Iterator[Any]:
            for record in self._records():
                value = record.values[role]
                yield as_text(value, place, record.number) if is_text else value

        return Rereadable(read)

    def take(self, indices: Sequence[int] | np.ndarray) -> FileTexts:
        return replace(self, kept=self.kept[np.asarray(indices, dtype=np.int64)])

    def place(self, index: int) -> str:
        record = next(islice(self._records(), index, None))
        return self.stream.place(record.number)

    def identity(self) -> Any:
        kept = hashlib.sha256(np.ascontiguousarray(self.kept, dtype="<i8").data)
        return {"data": self.data.dump(), "split": self.split, "kept": kept.hexdigest()}


@dataclass(frozen=True)
class Rereadable:
    read: Callable[[], Iterator[Any]]

    def __iter__(self) -> Iterator[Any]:
        return self.read()


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
    splits: dict[str, FileTexts] = {}
    keys: dict[str, np.ndarray] = {}
    for split in SPLITS:
        stream = data.stream(split, roles)
        if stream is not None:
            texts = (as_text(record.values[key], stream.place, record.number) for record in stream)
            keys[split] = _keys(texts)
            splits[split] = FileTexts(stream, text_roles, data, split, np.arange(len(keys[split])))
            told.notes += stream.notes
    fractions = {}
    if data.validation is None:
        fractions["validation"] = data.validation_fraction
    if data.test is None and data.test_fraction is not None:
        fractions["test"] = data.test_fraction
    if fractions:
        train, own = splits["train"], keys["train"]
        parts = split_off(own, fractions, data_seed, f"task.data.train: {train.name}")
        for split, indices in parts.items():
            splits[split], keys[split] = train.take(indices), own[indices]
        for split in fractions:
            note = f"{split}: {len(splits[split]):,} of {len(train):,} training examples, split off"
            told.notes.append(note)
    return {
        split: texts if split == "train" else _compare(split, texts, keys, unseen_only, told)
        for split, texts in splits.items()
    }


def _keys(texts: Iterable[str]) -> np.ndarray:
    """In blocks: an array that grows takes twice what it holds."""
    numbers, blocks = map(_key, texts), []
    while len(block := np.fromiter(islice(numbers, KEYS_AT_A_TIME), dtype=np.uint64)):
        blocks.append(block)
    return np.concatenate([np.empty(0, dtype=np.uint64), *blocks])


def _key(text: str) -> int:
    """Of equal texts the same number. Of a billion different ones, a few dozen may share theirs."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def _compare(
    split: str, texts: FileTexts, keys: Mapping[str, np.ndarray], unseen_only: bool, told: Told
) -> Texts:
    unseen = np.flatnonzero(~_stand_in(keys[split], keys["train"]))
    number = len(texts) - len(unseen)
    if unseen_only and not len(unseen):
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


def _stand_in(few: np.ndarray, many: np.ndarray) -> np.ndarray:
    """Which of the few keys are among the many; unlike `np.isin` without a sorted copy of the many."""
    sought, places = np.unique(few, return_inverse=True)
    is_found = np.zeros(len(sought), dtype=bool)
    for start in range(0, len(many) if len(sought) else 0, KEYS_AT_A_TIME):
        block = many[start : start + KEYS_AT_A_TIME]
        nearest = np.searchsorted(sought, block).clip(max=len(sought) - 1)
        is_found[nearest[sought[nearest] == block]] = True
    return is_found[places]


def encode_texts(
    texts: Texts,
    tokenizers: Mapping[str, Tokenizer],
    arrange: Arrange,
    options: Mapping[str, Any],
    told: Told,
) -> TokenColumns:
    """The texts of each role as tokens: in memory where they were made, else in files that are mapped.

    `arrange` gives the rows of an example, or none if it is left out, and counts what it must. All that it
    depends on is in `options`.
    """
    facts = Counter[str]()

    def rows() -> Iterator[tuple[np.ndarray, ...]]:
        texts_of_each = zip(*(texts.column(role) for role in tokenizers), strict=True)
        for index, values in enumerate(_encoded(texts_of_each, list(tokenizers.values()))):
            arranged = arrange(values, facts)
            if arranged is not None:
                yield (*arranged, np.array([index]))

    columns = [*tokenizers, "number"]
    if not texts.files:
        by_column = list(zip(*rows(), strict=True)) or [()] * len(columns)
        found = {name: RaggedRows.of(column) for name, column in zip(columns, by_column, strict=True)}
    else:
        store = open_or_build(
            cache_folder() / "tokens",
            {
                "tokenizers": {role: tokenizer.fingerprint for role, tokenizer in tokenizers.items()},
                "texts": texts.identity(),
                "options": dict(options),
            },
            rows,
            told.notes.append,
            columns=columns,
            sources=texts.files,
            facts=facts,
        )
        found, facts = {name: store[name] for name in columns}, Counter(store.facts)
    return TokenColumns(found, facts)


Encoded = tuple[str, np.ndarray]
Arrange = Callable[[Sequence[Encoded], Counter[str]], tuple[np.ndarray, ...] | None]


def _encoded(
    examples: Iterable[tuple[str, ...]], tokenizers: Sequence[Tokenizer]
) -> Iterator[tuple[Encoded, ...]]:
    """Each text with its tokens."""
    source = iter(examples)
    while block := list(islice(source, TEXTS_AT_A_TIME)):
        columns = list(zip(*block, strict=True))
        sides = [
            list(zip(column, tokenizer.encode_all(column), strict=True))
            for column, tokenizer in zip(columns, tokenizers, strict=True)
        ]
        yield from zip(*sides, strict=True)


@dataclass(frozen=True)
class TokenColumns:
    rows: Mapping[str, RaggedRows]
    facts: Counter[str]
    """What `arrange` counted."""

    def __len__(self) -> int:
        return len(self.rows["number"])

    def kept(self, texts: Texts) -> Texts:
        """Those of the texts that became tokens."""
        if len(self) == len(texts):
            return texts
        return texts.take(self.rows["number"].tokens(0, len(self)))


def train_tokenizer(config: TokenizerConfig, columns: Sequence[Iterable[str]]) -> Tokenizer:
    return config.train(lambda: (text for column in columns for text in column))


def unknown_words(tokens: Sequence[int]) -> str | None:
    """Why an answer may be of little worth: the tokenizer never saw some of the words."""
    unknown = sum(token == UNKNOWN for token in tokens)
    return f"{unknown} of {len(tokens)} tokens are unknown to the model" if unknown else None
