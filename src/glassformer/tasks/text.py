"""Shared parts of the text tasks: reading texts, splits, tokenisation, and notes about the data."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import compress, islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from glassformer.core.errors import ErrorDetail, shorten, user_error
from glassformer.data.batching import Examples
from glassformer.data.catalogue import changed_files
from glassformer.data.formats import Record, Stream
from glassformer.data.readers import DataConfig
from glassformer.data.splits import (
    RowKeys,
    describe_split_off,
    first_rows,
    is_contained,
    split_off_rows,
    uneven_split,
)
from glassformer.data.token_rows import RaggedRows
from glassformer.data.token_store import cache_error, cache_folder, open_or_build
from glassformer.data.tokenizers import BPEConfig, Tokenizer, TokenizerConfig, word_spans
from glassformer.models.task_types import TaskType
from glassformer.tasks.base import Inputs, Piece, Task, TaskConfig, Word, mark_piece

SPLITS = ("train", "validation", "test")
TEXTS_PER_BLOCK = 512
RECORDS_PER_BLOCK = 1 << 16
MIN_WORDS_PER_LINE = 5
"""Minimum number of words for a line to be compared between splits. Shorter lines repeat by chance."""
MAX_LINE_CHARACTERS = 1 << 18
UNKNOWN_WIDTH = 60
"""Maximum number of characters of a warning that lists the unknown pieces of a text."""


class TextTaskConfig(TaskConfig):
    """Options shared by all text tasks."""

    roles: ClassVar[Mapping[str, str]]
    """Roles of the columns that the task needs (`input`, `target`), each with its default column name."""

    data: DataConfig | None = Field(None, description="your own files; none: generated texts")
    tokenizer: TokenizerConfig = Field(BPEConfig(), description="tokenizer, trained on the train split")
    max_length: int = Field(128, ge=2, le=100_000, description="maximum tokens per example")
    data_seed: int = Field(
        0, ge=0, description="seed for generated texts and for choosing the examples that are split off"
    )


class Texts:
    """Examples of a split before tokenisation: one column of values per role, such as `input` and `target`.

    Each iteration over a column reads the files again, so that the texts need not fit into memory.
    """

    name = "generated"
    files: Sequence[Path] = ()
    """Files that the texts are read from; empty for generated texts."""

    def __len__(self) -> int:
        raise NotImplementedError

    def column(self, role: str) -> Iterable[Any]:
        raise NotImplementedError

    def rows(self, roles: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """Yield one tuple per example, with the values of these roles."""
        return zip(*(self.column(role) for role in roles), strict=True)

    def select(self, role: str, indices: Sequence[int]) -> list[Any]:
        """Return the values of a role at some indices, reading no further than the last of them."""
        wanted = set(indices)
        column = islice(self.column(role), max(wanted, default=-1) + 1)
        found = {index: value for index, value in enumerate(column) if index in wanted}
        return [found[index] for index in indices]

    def take(self, is_taken: np.ndarray) -> Texts:
        """Return the examples for which a boolean mask is True."""
        raise NotImplementedError

    def location(self, index: int) -> str:
        return self.locations([index])[0]

    def locations(self, indices: Sequence[int]) -> list[str]:
        """Return the file and line of each example, or only its number if it is generated."""
        return [f"example {index + 1}" for index in indices]

    @property
    def columns_hint(self) -> str:
        """Hint to set `task.data.columns`, with column numbers if the file has no column names."""
        return "task.data.columns='{input: NAME, target: NAME}'"

    def identity(self) -> Any:
        """Return a JSON value that, with the bytes of the files, identifies these texts in the cache."""
        raise NotImplementedError


class GeneratedTexts(Texts):
    """Generated texts, which are held in memory."""

    def __init__(self, values: Mapping[str, Sequence[Any]]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))

    def column(self, role: str) -> Sequence[Any]:
        return self.values[role]

    def take(self, is_taken: np.ndarray) -> GeneratedTexts:
        return GeneratedTexts(
            {role: list(compress(column, is_taken)) for role, column in self.values.items()}
        )


Generate = Callable[[int, int, str], Sequence[tuple[str, str]]]
"""Function of (count, seed, split) that returns pairs (input, target)."""


def generate_splits(generate: Generate, examples: int, few: int, data_seed: int) -> dict[str, Texts]:
    """Generate all splits: train with `examples` pairs, validation and test with `few` pairs each."""
    splits: dict[str, Texts] = {}
    for split in SPLITS:
        pairs = generate(examples if split == "train" else few, data_seed, split)
        inputs, targets = zip(*pairs, strict=True)
        splits[split] = GeneratedTexts({"input": inputs, "target": targets})
    return splits


@dataclass(frozen=True)
class FileTexts(Texts):
    """Texts of one split from files. A mask selects records, since several splits may share a file."""

    stream: Stream
    text_roles: Sequence[str]
    data: DataConfig
    split: str
    is_selected: np.ndarray
    """Boolean mask over all records. For large files a mask needs less memory than indices."""

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.stream.name

    @property
    def files(self) -> Sequence[Path]:  # type: ignore[override]
        return self.stream.files

    def __len__(self) -> int:
        return int(np.count_nonzero(self.is_selected))

    @property
    def columns_hint(self) -> str:
        layout = self.stream.layout()
        return super().columns_hint if layout is None else layout.columns_hint()

    def _records(self) -> Iterator[Record]:
        for is_selected, record in zip(self.is_selected.data, self.stream, strict=False):
            if is_selected:
                yield record

    def rows(self, roles: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """Yield one tuple per example, reading the files once for all roles."""
        location = self.stream.location
        for values, number, _ in self._records():
            yield tuple(
                as_text(values[role], location, number) if role in self.text_roles else values[role]
                for role in roles
            )

    def column(self, role: str) -> Iterable[Any]:
        return Rereadable(lambda: (value for (value,) in self.rows([role])))

    def take(self, is_taken: np.ndarray) -> FileTexts:
        is_selected = self.is_selected.copy()
        is_selected[self.is_selected] = is_taken
        return replace(self, is_selected=is_selected)

    def locations(self, indices: Sequence[int]) -> list[str]:
        """Return the file and line of each example, reading the files once."""
        wanted = set(indices)
        records = islice(self._records(), max(wanted, default=-1) + 1)
        numbers = {index: record.number for index, record in enumerate(records) if index in wanted}
        return [self.stream.location(numbers[index]) for index in indices]

    def identity(self) -> Any:
        numbers = hashlib.sha256()
        for start in range(0, len(self.is_selected), RECORDS_PER_BLOCK):
            selected = start + np.flatnonzero(self.is_selected[start : start + RECORDS_PER_BLOCK])
            numbers.update(selected.astype("<i8").data)
        found = {"data": self.data.dump(), "split": self.split, "selected": numbers.hexdigest()}
        return found | read_as(self.stream)


@dataclass(frozen=True)
class Rereadable:
    """Iterable that calls `read` for each iteration, so that it can be iterated repeatedly."""

    read: Callable[[], Iterator[Any]]

    def __iter__(self) -> Iterator[Any]:
        return self.read()


def read_as(stream: Stream) -> dict[str, str]:
    """Return the part of a cache key for the way in which a table was read, such as its input column.

    The checksum of the file is not enough, because the same bytes can be read as different texts.
    """
    return {"read_as": stream.read_as} if stream.read_as else {}


def as_text(value: object, location: Callable[[int], str], number: int) -> str:
    """Return a JSON text or number as text; raise UserError for lists, objects, booleans and null."""
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    raise user_error(
        f"expected text, not {shorten(json.dumps(value), 40)}",
        path=location(number),
        hint="correct it in the file, or name another column in task.data.columns",
    )


Layout = dict[str, Any]
"""Layout of a training file as a JSON value; see `TableLayout.document`."""


def layout_of(stream: Stream) -> Layout | None:
    layout = stream.layout()
    return None if layout is None else layout.document()


@dataclass
class DataReport:
    """Notes made while the data are read. They are shown to the user and stored in the event log."""

    notes: list[str] = field(default_factory=list)
    layout: Layout | None = None
    """Layout of the training file, if it has columns."""

    def count(self, number: int, total: int, note: str) -> None:
        """Append `note` with the counts `number` and `total`, unless `number` is 0."""
        if number:
            self.notes.append(f"{note}: {number:,} of {total:,}")


def read_splits(
    config: PairConfig, data: DataConfig, unseen_only: bool, report: DataReport
) -> dict[str, Texts]:
    """Read each split from its file. A split without a file becomes a part of train.

    Report examples of the validation and test files that train also has.
    """
    splits: dict[str, FileTexts] = {}
    keys: dict[str, RowKeys] = {}
    for split in SPLITS:
        stream = data.stream(split, config.roles)
        if stream is not None:
            keys[split] = keys_of(texts_of(stream, "input"))
            splits[split] = FileTexts(
                stream, config.text_roles, data, split, np.ones(len(keys[split]), dtype=bool)
            )
            report.notes += [*stream.notes, *changed_sets(split, stream)]
            report.layout = layout_of(stream) if split == "train" else report.layout
    fractions = data.fractions
    if fractions:
        train = splits["train"]
        path, classes, is_first = (
            f"task.data.train: {train.name}",
            config.classes(train),
            first_rows(keys["train"]),
        )
        parts = split_off_rows(keys["train"], fractions, config.data_seed, path, classes)
        splits |= {split: train.take(part) for split, part in parts.items()}
        for split in fractions:
            rows, distinct = len(splits[split]), int(np.count_nonzero(is_first & parts[split]))
            note = describe_split_off(split, rows, distinct, len(train))
            report.notes.append(note + uneven_split(rows, len(train), fractions[split]))
    found: dict[str, Texts] = dict(splits)
    for split in splits:
        if split == "train" or split in fractions:  # splitting off leaves no overlap
            continue
        is_seen = is_contained(keys[split], keys["train"], splits["train"].is_selected)
        if is_seen.any():
            is_seen &= _has_words(splits[split].column("input"), len(is_seen))
            layout = splits[split].stream.layout()
            if layout is not None and layout.hint:
                is_seen[0] = False  # probably a header instead of an example
        found[split] = _compare(split, splits[split], is_seen, unseen_only, report)
    return found


def _has_words(texts: Iterable[str], count: int) -> np.ndarray:
    """Return a mask of the texts with at least one word, because empty lines do not count as overlap."""
    return np.fromiter((bool(text.strip()) for text in texts), dtype=bool, count=count)


def changed_sets(split: str, stream: Stream) -> list[str]:
    """Return a warning for each file of a public data set that differs from the published bytes."""
    return [
        f"WARNING: {split}: {name} is not the file that the catalogue lists"
        for name in changed_files(stream.files)
    ]


def texts_of(stream: Stream, role: str) -> Iterator[str]:
    return (as_text(record.values[role], stream.location, record.number) for record in stream)


def keys_of(texts: Iterable[str]) -> RowKeys:
    """Hash texts, to find equal ones.

    The hashes are written to the cache folder, not to /tmp, which on some machines is in memory.
    """
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return RowKeys(texts, folder)
    except OSError as error:
        raise cache_error(error, folder) from error


def _compare(
    split: str, texts: FileTexts, is_seen: np.ndarray, unseen_only: bool, report: DataReport
) -> Texts:
    number = int(np.count_nonzero(is_seen))
    if unseen_only and number == len(texts):
        raise user_error(
            f"the {split} set is empty, because all its inputs also appear in train",
            path=texts.name,
            hint="use other data, or set task.unseen_only=false",
        )
    if unseen_only:
        report.count(number, len(texts), f"{split}: omitted, also in train")
        return texts.take(~is_seen)
    report.count(number, len(texts), f"WARNING: {split} examples whose input also appears in train")
    return texts


def encode_texts(
    texts: Texts,
    tokenizers: Mapping[str, Tokenizer],
    arrange: Arrange,
    options: Mapping[str, Any],
    report: DataReport,
) -> TokenColumns:
    """Tokenise the examples, with one tokenizer per role, such as `input` and `target`.

    `arrange` receives the (text, tokens) pairs of an example and a counter that it may update. It returns one
    row of tokens per role, or None to omit the example. Tokens of texts from files are cached in
    memory-mapped files. The cache key includes `options`, which must therefore contain everything that
    `arrange` depends on.
    """
    facts = Counter[str]()

    def rows() -> Iterator[tuple[np.ndarray, ...]]:
        texts_of_each = texts.rows(list(tokenizers))
        for index, values in enumerate(_encoded(texts_of_each, list(tokenizers.values()))):
            for (_, tokens), tokenizer in zip(values, tokenizers.values(), strict=True):
                _count_tokens(tokens, tokenizer, facts)
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
            report.notes.append,
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
    """Tokenise examples in blocks; yield, for each example, one pair (text, tokens) per column.

    A thread tokenises the next block while the caller processes the examples of this one.
    """

    def encode(block: Sequence[tuple[str, ...]]) -> list[list[Encoded]]:
        columns = list(zip(*block, strict=True))
        return [
            list(zip(column, tokenizer.encode_all(column), strict=True))
            for column, tokenizer in zip(columns, tokenizers, strict=True)
        ]

    source = iter(examples)
    with ThreadPoolExecutor(1, "tokenizer") as thread:
        waiting: Future[list[list[Encoded]]] | None = None
        while block := list(islice(source, TEXTS_PER_BLOCK)):
            done, waiting = waiting, thread.submit(encode, block)
            if done is not None:
                yield from zip(*done.result(), strict=True)
        if waiting is not None:
            yield from zip(*waiting.result(), strict=True)


def _count_tokens(tokens: np.ndarray, tokenizer: Tokenizer, facts: dict[str, int]) -> None:
    facts["tokens"] += len(tokens)
    facts["unknown"] += int(np.count_nonzero(tokens == tokenizer.unknown))


@dataclass(frozen=True)
class TokenColumns:
    """Tokenised examples of a split, one column per role, such as `input` and `target`."""

    rows: Mapping[str, RaggedRows]
    facts: Counter[str]
    """Counts by name: those that `arrange` made, and the numbers of all tokens and of unknown tokens."""

    def __len__(self) -> int:
        return len(self.rows["number"])

    def report_unknown(self, split: str, report: DataReport) -> None:
        report.count(self.facts["unknown"], self.facts["tokens"], f"{split}: unknown tokens")

    def select(self, texts: Texts) -> Texts:
        """Return the texts of the examples that tokenisation did not omit."""
        if len(self) == len(texts):
            return texts
        is_taken = np.zeros(len(texts), dtype=bool)
        for start in range(0, len(self), RECORDS_PER_BLOCK):
            stop = min(start + RECORDS_PER_BLOCK, len(self))
            is_taken[self.rows["number"].tokens(start, stop)] = True
        return texts.take(is_taken)


def train_tokenizer(config: TokenizerConfig, columns: Sequence[Iterable[str]]) -> Tokenizer:
    return config.train(lambda: (text for column in columns for text in column))


def words_of(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[Word]:
    """Group the tokens of a text into words and punctuation marks, by the text that they decode to.

    A token that covers several words belongs to all of them.
    """
    ids, ends = [int(token) for token in tokens], [0]
    for count in range(1, len(ids) + 1):
        ends.append(max(len(tokenizer.decode(ids[:count])), ends[-1]))
    text, found = tokenizer.decode(ids), []
    for start, end in word_spans(text):
        own = [at for at in range(len(ids)) if ends[at] < end and ends[at + 1] > start]
        found.append(Word(text[start:end], own))
    return found


class TextTask(Task):
    """Base class for tasks whose inputs are texts."""

    tokenizer: Tokenizer
    layout: Layout | None = None
    """Layout of the training file, with which files to predict from are read; None if it has no columns."""

    def state(self) -> dict[str, Any]:
        layout = {} if self.layout is None else {"layout": self.layout}
        return {"tokenizer": self.tokenizer.json_tree(), **layout}

    def read_input(self, value: Any) -> tuple[np.ndarray, str]:
        if isinstance(value, (list, tuple)):
            raise ErrorDetail("expected a text, not a list", hint="pass a text")
        return super().read_input(value)

    def input_symbols(self, tokens: Sequence[int]) -> list[str]:
        return self.tokenizer.symbols(tokens)

    def show_input(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(tokens)

    def pieces(self, text: str) -> list[Piece]:
        spans = self.tokenizer.spans(text)
        return [Piece(start, end, not self.is_unknown(token)) for token, start, end in spans]

    def is_unknown(self, token: int) -> bool:
        return token == self.tokenizer.unknown

    def warning(self, tokens: Sequence[int], text: str = "") -> str | None:
        unknown = sum(map(self.is_unknown, tokens))
        if not unknown:
            return None
        own = len(tokens) - sum(token in (self.tokenizer.begin, self.tokenizer.end) for token in tokens)
        warning = f"{unknown} of {own} tokens are unknown to the model"
        pieces = (text[piece.start : piece.end] for piece in self.pieces(text) if not piece.is_known)
        shown = dict.fromkeys(map(mark_piece, islice(pieces, unknown)))
        return f"{warning}: {shorten(' '.join(shown), UNKNOWN_WIDTH)}" if shown else warning


class PairConfig(TextTaskConfig):
    """Options shared by the text tasks that have a target for each text."""

    text_roles: ClassVar[Sequence[str]]
    """Roles whose values must be texts or numbers, because they are tokenised."""

    def texts(self, report: DataReport) -> dict[str, Texts]:
        """Read or generate the examples of each split."""
        raise NotImplementedError

    def classes(self, texts: Texts) -> np.ndarray | None:
        """Return the class number of each text, if targets are labels. Each split gets its share of them."""
        return None

    def learn(self, texts: Mapping[str, Texts]) -> PairTask:
        """Build the task: train its tokenizers on these texts, and collect its labels."""
        raise NotImplementedError

    def build(self, seed: int) -> PairTask:
        report = DataReport()
        texts = self.texts(report)
        task = self.learn(texts)
        task.layout = report.layout
        task.splits = task.encode(texts, report)
        task.notes += report.notes
        return task


class PairTask(TextTask):
    """Base class for text tasks that have a target for each text."""

    config: PairConfig

    def __init__(self, config: PairConfig, tokenizer: Tokenizer, task_type: TaskType) -> None:
        self.tokenizer = tokenizer
        self.texts: dict[str, Texts] = {}
        """Texts of the examples of each split that has been encoded."""
        super().__init__(task_type, lambda: self.encode(config.texts(DataReport()), DataReport()))

    def encode(self, texts: Mapping[str, Texts], report: DataReport) -> dict[str, Examples]:
        return {split: self.encode_split(split, part, report) for split, part in texts.items()}

    def encode_split(self, split: str, texts: Texts, report: DataReport) -> Examples:
        raise NotImplementedError

    def replace_data(self, split: str, stream: Stream, data: DataConfig) -> list[str]:
        report = DataReport(list(stream.notes))
        is_selected = np.ones(sum(1 for _ in stream), dtype=bool)
        texts = FileTexts(stream, self.config.text_roles, data, split, is_selected)
        self.splits = self.encode({split: texts}, report)
        return report.notes

    def comparable(self, split: str) -> Iterable[Hashable]:
        _ = self.splits[split]
        return self.texts[split].column("input")

    def input_texts(self, split: str, indices: Sequence[int], rows: Inputs | None = None) -> list[str]:
        """Return the complete texts, also of inputs that are cut."""
        _ = self.splits[split]  # encodes the texts, and omits those that are not used
        return self.texts[split].select("input", indices)


class Corpus:
    """Texts of one split for language modelling. Each iteration reads the texts again."""

    def __init__(self, texts: Stream | Sequence[str], identity: Mapping[str, Any] | None = None) -> None:
        """Store the texts. `identity`, with the bytes of the files, identifies the texts in the cache."""
        self._texts = texts
        self._identity = dict(identity or {})
        self.name = str(self._identity.get("split", ""))
        self.is_running = isinstance(texts, Stream) and texts.is_running

    def __iter__(self) -> Iterator[str]:
        if isinstance(self._texts, Stream):
            return texts_of(self._texts, "input")
        return iter(self._texts)

    def layout(self) -> Layout | None:
        return layout_of(self._texts) if isinstance(self._texts, Stream) else None

    def notes(self) -> list[str]:
        """Return notes on how files were read, and on files of public data sets that were changed."""
        if not isinstance(self._texts, Stream):
            return []
        return [*self._texts.notes, *changed_sets(self.name, self._texts)]

    def comparable(self) -> Iterator[str]:
        """Yield what is compared between splits: texts with words, or the longer lines of a running text."""
        parts = _lines(self) if self.is_running else self
        least = MIN_WORDS_PER_LINE if self.is_running else 1
        return (part for part in parts if len(part.split(maxsplit=least - 1)) >= least)

    def rows(self, tokenizer: Tokenizer, report: DataReport) -> tuple[RaggedRows, int]:
        """Return the tokens and the number of characters that a causal language model predicts.

        Tokens of texts from files are cached on disk.
        """
        facts = {"characters": 0, "tokens": 0, "unknown": 0}
        if not isinstance(self._texts, Stream) or not self._texts.files:
            rows = RaggedRows.of(row for (row,) in self._encode(tokenizer, facts))
            return rows, facts["characters"]
        store = open_or_build(
            cache_folder() / "tokens",
            {"tokenizer": tokenizer.fingerprint, "texts": self._identity, **read_as(self._texts)},
            lambda: self._encode(tokenizer, facts),
            report.notes.append,
            columns=["tokens"],
            sources=self._texts.files,
            facts=facts,
        )
        report.count(store.facts["unknown"], store.facts["tokens"], f"{self.name}: unknown tokens")
        return store["tokens"], store.facts["characters"]

    def _encode(self, tokenizer: Tokenizer, facts: dict[str, int]) -> Iterator[tuple[np.ndarray]]:
        begin, end = np.array([tokenizer.begin]), np.array([tokenizer.end])
        for number, ((text, tokens),) in enumerate(_encoded(((text,) for text in self), [tokenizer])):
            facts["characters"] += len(text) if self.is_running else len(text) + 1
            if self.is_running and number == 0:
                facts["characters"] -= len(tokenizer.decode(tokens[:1]))
            _count_tokens(tokens, tokenizer, facts)
            yield (tokens if self.is_running else np.concatenate([begin, tokens, end]),)


def _lines(blocks: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a running text. Very long lines are cut, to limit memory use."""
    rest = ""
    for block in blocks:
        *lines, rest = (rest + block).split("\n")
        yield from lines
        if len(rest) > MAX_LINE_CHARACTERS:
            yield rest
            rest = ""
    yield rest
