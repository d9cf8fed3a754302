"""What the tasks on text share: where texts come from, what is left out or cut, and what is told of it."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress, islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from glassformer.core.errors import shorten, user_error
from glassformer.data.catalogue import changed_files
from glassformer.data.readers import DataConfig, split_off_rows
from glassformer.data.row_keys import RowKeys, stand_in
from glassformer.data.streams import Record, Stream
from glassformer.data.token_rows import RaggedRows
from glassformer.data.token_store import cache_folder, open_or_build, storage_error
from glassformer.data.tokenizers import BEGIN, END, UNKNOWN, BPEConfig, Tokenizer, TokenizerConfig
from glassformer.tasks.base import TaskConfig

SPLITS = ("train", "validation", "test")
TEXTS_AT_A_TIME = 256
RECORDS_AT_A_TIME = 1 << 16


class TextTaskConfig(TaskConfig):
    """Options of every task on text."""

    roles: ClassVar[Mapping[str, str]]
    """What is asked of the data, and the column that each role has by default."""

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

    def rows(self, roles: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """The values of these roles, example by example."""
        return zip(*(self.column(role) for role in roles), strict=True)

    def take(self, is_taken: np.ndarray) -> Texts:
        """Some of them: for each it is said whether."""
        raise NotImplementedError

    def place(self, index: int) -> str:
        return self.places([index])[0]

    def places(self, indices: Sequence[int]) -> list[str]:
        """Of these examples: the lines of the user's file, where there is one."""
        return [f"example {index + 1}" for index in indices]

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

    def take(self, is_taken: np.ndarray) -> MadeTexts:
        return MadeTexts({role: list(compress(column, is_taken)) for role, column in self.values.items()})


@dataclass(frozen=True)
class FileTexts(Texts):
    """Those records of a stream that are kept."""

    stream: Stream
    text_roles: Sequence[str]
    data: DataConfig
    split: str
    is_kept: np.ndarray
    """For each record; a byte, and not its number, for the sake of large files."""

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.stream.name

    @property
    def files(self) -> Sequence[Path]:  # type: ignore[override]
        return self.stream.files

    def __len__(self) -> int:
        return int(np.count_nonzero(self.is_kept))

    def _records(self) -> Iterator[Record]:
        for is_kept, record in zip(self.is_kept.data, self.stream, strict=False):
            if is_kept:
                yield record

    def rows(self, roles: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """All in one reading of the files."""
        place = self.stream.place
        for values, number in self._records():
            yield tuple(
                as_text(values[role], place, number) if role in self.text_roles else values[role]
                for role in roles
            )

    def column(self, role: str) -> Iterable[Any]:
        return Rereadable(lambda: (value for (value,) in self.rows([role])))

    def take(self, is_taken: np.ndarray) -> FileTexts:
        is_kept = self.is_kept.copy()
        is_kept[self.is_kept] = is_taken
        return replace(self, is_kept=is_kept)

    def places(self, indices: Sequence[int]) -> list[str]:
        """All in one reading of the files."""
        asked = set(indices)
        records = islice(self._records(), max(asked, default=-1) + 1)
        numbers = {index: record.number for index, record in enumerate(records) if index in asked}
        return [self.stream.place(numbers[index]) for index in indices]

    def identity(self) -> Any:
        numbers = hashlib.sha256()
        for start in range(0, len(self.is_kept), RECORDS_AT_A_TIME):
            kept = start + np.flatnonzero(self.is_kept[start : start + RECORDS_AT_A_TIME])
            numbers.update(kept.astype("<i8").data)
        found = {"data": self.data.dump(), "split": self.split, "kept": numbers.hexdigest()}
        return found | read_as(self.stream)


@dataclass(frozen=True)
class Rereadable:
    read: Callable[[], Iterator[Any]]

    def __iter__(self) -> Iterator[Any]:
        return self.read()


def read_as(stream: Stream) -> dict[str, str]:
    """For the identity of texts: a file that is read in another way holds others, though no byte differs."""
    return {"read_as": stream.read_as} if stream.read_as else {}


def as_text(value: object, place: Callable[[int], str], number: int) -> str:
    """A number in a JSON file is read as it is written; a list, or nothing at all, is no text."""
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    raise user_error(
        f"a text belongs here, not {shorten(json.dumps(value), 40)}",
        path=place(number),
        hint="correct it there, or name another column in task.data.columns",
    )


@dataclass
class DataReport:
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
    told: DataReport,
) -> dict[str, Texts]:
    """Every split that has a file, and a validation split in any case. What two splits share is told."""
    splits: dict[str, FileTexts] = {}
    keys: dict[str, RowKeys] = {}
    for split in SPLITS:
        stream = data.stream(split, roles)
        if stream is not None:
            keys[split] = keys_of(texts_of(stream, key))
            splits[split] = FileTexts(stream, text_roles, data, split, np.ones(len(keys[split]), dtype=bool))
            told.notes += [*stream.notes, *changed_sets(split, stream)]
    fractions = {}
    if data.validation is None:
        fractions["validation"] = data.validation_fraction
    if data.test is None and data.test_fraction is not None:
        fractions["test"] = data.test_fraction
    if fractions:
        train = splits["train"]
        parts = split_off_rows(keys["train"], fractions, data_seed, f"task.data.train: {train.name}")
        splits |= {split: train.take(part) for split, part in parts.items()}
        for split in fractions:
            note = f"{split}: {len(splits[split]):,} of {len(train):,} training examples, split off"
            told.notes.append(note)
    found: dict[str, Texts] = dict(splits)
    for split in splits:
        if split == "train" or split in fractions:  # what was split off shares nothing with the rest
            continue
        is_seen = stand_in(keys[split], keys["train"], splits["train"].is_kept)
        if is_seen.any():
            is_seen &= _has_words(splits[split].column(key), len(is_seen))
        found[split] = _compare(split, splits[split], is_seen, unseen_only, told)
    return found


def _has_words(texts: Iterable[str], count: int) -> np.ndarray:
    """That an empty line stands elsewhere too says nothing."""
    return np.fromiter((bool(text.strip()) for text in texts), dtype=bool, count=count)


def changed_sets(split: str, stream: Stream) -> list[str]:
    """A score on a known set is taken for one on its published bytes."""
    return [
        f"WARNING: {split}: {name} is not the file that the catalogue lists"
        for name in changed_files(stream.files)
    ]


def texts_of(stream: Stream, role: str) -> Iterator[str]:
    return (as_text(record.values[role], stream.place, record.number) for record in stream)


def keys_of(texts: Iterable[str]) -> RowKeys:
    """On the disk that has room for tokens: what the system keeps for the time being may be memory."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return RowKeys(texts, folder)
    except OSError as error:
        raise storage_error(error, folder) from error


def _compare(split: str, texts: FileTexts, is_seen: np.ndarray, unseen_only: bool, told: DataReport) -> Texts:
    number = int(np.count_nonzero(is_seen))
    if unseen_only and number == len(texts):
        raise user_error(
            f"nothing is left of {split}: all its inputs also stand in train",
            path=texts.name,
            hint="other data, or task.unseen_only=false",
        )
    if unseen_only:
        told.count(number, len(texts), f"{split}: left out, since also in train")
        return texts.take(~is_seen)
    told.count(number, len(texts), f"WARNING: {split} examples whose input also stands in train")
    return texts


def encode_texts(
    texts: Texts,
    tokenizers: Mapping[str, Tokenizer],
    arrange: Arrange,
    options: Mapping[str, Any],
    told: DataReport,
) -> TokenColumns:
    """The texts of each role as tokens: in memory where they were made, else in files that are mapped.

    `arrange` gives the rows of an example, or none if it is left out, and counts what it must. All that it
    depends on is in `options`.
    """
    facts = Counter[str]()

    def rows() -> Iterator[tuple[np.ndarray, ...]]:
        texts_of_each = texts.rows(list(tokenizers))
        for index, values in enumerate(_encoded(texts_of_each, list(tokenizers.values()))):
            for _, tokens in values:
                facts["tokens"] += len(tokens)
                facts["unknown"] += int(np.count_nonzero(tokens == UNKNOWN))
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
                "counted": ["tokens", "unknown"],
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
    """What `arrange` counted; and how many tokens there were, and how many of them unknown."""

    def __len__(self) -> int:
        return len(self.rows["number"])

    def tell_unknown(self, split: str, told: DataReport) -> None:
        told.count(self.facts["unknown"], self.facts["tokens"], f"{split}: tokens that are unknown")

    def kept(self, texts: Texts) -> Texts:
        """Those of the texts that became tokens."""
        if len(self) == len(texts):
            return texts
        is_taken = np.zeros(len(texts), dtype=bool)
        for start in range(0, len(self), RECORDS_AT_A_TIME):
            stop = min(start + RECORDS_AT_A_TIME, len(self))
            is_taken[self.rows["number"].tokens(start, stop)] = True
        return texts.take(is_taken)


def train_tokenizer(config: TokenizerConfig, columns: Sequence[Iterable[str]]) -> Tokenizer:
    return config.train(lambda: (text for column in columns for text in column))


def unknown_words(tokens: Sequence[int]) -> str | None:
    """Why an answer may be of little worth: the tokenizer never saw some of the words."""
    unknown = sum(token == UNKNOWN for token in tokens)
    return f"{unknown} of {len(tokens)} tokens are unknown to the model" if unknown else None


TEXTS_AT_A_TIME = 256
WORDS_OF_A_LINE = 5
"""Of a running text, below which a line may well be in another one too."""
MOST_CHARACTERS_OF_A_LINE = 1 << 18


class Corpus:
    """The texts of a split, to be read as often as one likes, and as tokens."""

    def __init__(self, texts: Stream | Sequence[str], identity: Mapping[str, Any] | None = None) -> None:
        """`identity` is all that decides, besides the bytes of the files, which texts these are."""
        self._texts = texts
        self._identity = dict(identity or {})
        self.name = str(self._identity.get("split", ""))
        self.is_running = isinstance(texts, Stream) and texts.is_running

    def __iter__(self) -> Iterator[str]:
        if isinstance(self._texts, Stream):
            return texts_of(self._texts, "input")
        return iter(self._texts)

    def notes(self) -> list[str]:
        """How its files were read, and whether they are what their names say."""
        if not isinstance(self._texts, Stream):
            return []
        return [*self._texts.notes, *changed_sets(self.name, self._texts)]

    def comparable(self) -> Iterator[str]:
        """What it would be odd to find in another split too: texts with words, or long lines of one text."""
        parts = _lines(self) if self.is_running else self
        least = WORDS_OF_A_LINE if self.is_running else 1
        return (part for part in parts if len(part.split(maxsplit=least - 1)) >= least)

    def rows(self, tokenizer: Tokenizer, told: DataReport) -> tuple[RaggedRows, int]:
        """Its tokens, kept on disk where it comes from files, and how many characters they predict."""
        facts = {"characters": 0, "tokens": 0, "unknown": 0}
        if not isinstance(self._texts, Stream):
            rows = RaggedRows.of(row for (row,) in self._encode(tokenizer, facts))
            return rows, facts["characters"]
        store = open_or_build(
            cache_folder() / "tokens",
            {"tokenizer": tokenizer.fingerprint, "texts": self._identity, **read_as(self._texts)},
            lambda: self._encode(tokenizer, facts),
            told.notes.append,
            columns=["tokens"],
            sources=self._texts.files,
            facts=facts,
        )
        told.count(store.facts["unknown"], store.facts["tokens"], f"{self.name}: tokens that are unknown")
        return store["tokens"], store.facts["characters"]

    def _encode(self, tokenizer: Tokenizer, facts: dict[str, int]) -> Iterator[tuple[np.ndarray]]:
        texts = iter(self)
        is_first = True
        while block := list(islice(texts, TEXTS_AT_A_TIME)):
            for text, tokens in zip(block, tokenizer.encode_all(block), strict=True):
                facts["characters"] += len(text) if self.is_running else len(text) + 1
                if self.is_running and is_first:
                    facts["characters"] -= len(tokenizer.decode(tokens[:1]))
                is_first = False
                facts["tokens"] += len(tokens)
                facts["unknown"] += int((tokens == UNKNOWN).sum())
                yield (tokens if self.is_running else np.concatenate([[BEGIN], tokens, [END]]),)


def _lines(blocks: Iterable[str]) -> Iterator[str]:
    """Of a running text; what has no line ends is cut somewhere, so that it need not be held as a whole."""
    rest = ""
    for block in blocks:
        *lines, rest = (rest + block).split("\n")
        yield from lines
        if len(rest) > MOST_CHARACTERS_OF_A_LINE:
            yield rest
            rest = ""
    yield rest
