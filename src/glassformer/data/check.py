"""`data check`: reads text data as training does, and reports every finding with file, line and excerpt.

Each file is read twice: once byte by byte, and once with the reader of training, whose errors are collected.
Memory use is about 40 bytes per example, which hold the hashes that find duplicates.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np

from glassformer.core.errors import UserError, user_error
from glassformer.data.columns import (
    LABEL_ROLES,
    PAIR_ROLES,
    SAMPLE_ROWS,
    SEPARATOR,
    TEXT_ROLES,
    Column,
    ColumnSpec,
    Reference,
)
from glassformer.data.findings import (
    ClassCount,
    ColumnUse,
    FileSummary,
    Findings,
    Issue,
    Leak,
    Location,
    Report,
    excerpt,
)
from glassformer.data.formats import AlignedLines, ClassFolder, Record, Stream
from glassformer.data.labels import MAX_LABELS, are_real_values, find_doubts
from glassformer.data.readers import ENDINGS, DataConfig, Source, file_ending
from glassformer.data.roles import are_comma_numbers, as_shown, comma_number, is_number, looks_like_labels
from glassformer.data.scan import ScannedFile, scan
from glassformer.data.splits import are_too_many, check_split, same_number
from glassformer.data.text_files import MAX_BAD_LINES, TextFile

BATCH_ROWS = 8192

Progress = Callable[[int, int], None]
"""Callback that receives the number of bytes checked so far, and the total number of bytes."""


@dataclass(frozen=True)
class Limits:
    """Thresholds above or below which `data check` reports a text."""

    max_words: int = 200
    """Maximum number of words per text. Longer texts are reported."""
    max_ratio: float = 3.0
    """Maximum ratio of the two sides' numbers of characters. Pairs with a larger ratio are reported."""
    min_characters: int = 20
    """Minimum number of characters of the longer side for a pair to be checked for `max_ratio`."""
    max_locations: int | None = 5
    """Maximum number of locations kept per kind of finding; None keeps all. All findings are counted."""
    min_words: int = 5
    """Minimum number of words for a line of running text to count as overlap between splits."""


@dataclass(frozen=True)
class Corpus:
    """Files of each split that are checked together, with the `task.data` options to read them."""

    splits: Mapping[str, Sequence[Path]]
    format: str | None = None
    columns: Mapping[str, Column | list[Column]] = field(default_factory=dict)
    header: bool | None = None
    separator: str = SEPARATOR
    classes: Mapping[str, str] = field(default_factory=dict)
    encoding: str = "utf-8"
    part: str = ""
    """Name of this part of a data set, such as a language pair; empty if there is only one."""
    roles: Mapping[str, str] | None = None
    """Default column name of each role (`input`, `target`) of the task; None if no task is known."""
    has_classes: bool | None = None
    """True if the targets are classes, False if they are not; None if no task is known."""
    is_aligned: bool = True
    """True if two text files are aligned line by line, as the input and the target of each example."""
    fractions: Mapping[str, float] = field(default_factory=lambda: {"validation": 0.1})
    """Fractions of train that training splits off for the splits without files."""
    hash_seed: int | None = None
    """Seed of a task that splits off examples by hashes, else None; see `check_split`."""

    def format_of(self, split: str) -> str:
        if self.format is not None:
            return self.format
        formats = {path: _format_of(path) for path in self.splits[split]}
        if len(set(formats.values())) > 1:
            each = ", ".join(f"{path.name} is {format}" for path, format in formats.items())
            raise user_error(f"files of several formats: {each}", path=split, hint="choose one with --format")
        return next(iter(formats.values()))

    def sources(self, split: str) -> list[Source]:
        """Return the sources of a split, each in the form of `task.data.train`: a path or a list of paths."""
        paths = [str(path) for path in self.splits[split]]
        if self.format_of(split) != "text":
            return list(paths)
        return [paths] if self.is_aligned else [[path] for path in paths]

    @property
    def decisive(self) -> tuple[str, Source]:
        """Split and source whose layout all files must have: the first training source.

        Without training files, it is the first source of the first split.
        """
        split = "train" if "train" in self.splits else next(iter(self.splits))
        return split, self.sources(split)[0]

    def config(self, split: str, source: Source) -> DataConfig:
        return DataConfig(
            train=source,
            format=self.format_of(split),  # type: ignore[arg-type]
            columns=dict(self.columns),
            header=self.header,
            separator=self.separator,
            classes=dict(self.classes),
            encoding=self.encoding,
        )


def _format_of(path: Path) -> str:
    return "folder" if path.is_dir() else ENDINGS.get(file_ending(path), "text")


def check_corpora(
    corpora: Sequence[Corpus], limits: Limits | None = None, progress: Progress | None = None
) -> Report:
    """Check all parts of a data set, and return the report. A file in several parts is scanned once."""
    return _Check(limits or Limits(), progress or (lambda done, total: None)).run(corpora)


class _Check:
    """State of one run of `data check`."""

    def __init__(self, limits: Limits, progress: Progress) -> None:
        self.limits = limits
        self.progress = progress
        self.findings = Findings(limits.max_locations)
        self.scanned: dict[Path, ScannedFile] = {}
        self.leaks: list[Leak] = []
        self._reported: dict[tuple[Path, str, str], int] = {}
        """Last reported line by file, kind and unit, because a file is read several times."""
        self.classes: list[ClassCount] = []
        self.has_values = False
        """True if the targets are real numbers instead of labels."""
        self._done, self._phase_end, self._total = 0.0, 0.0, 0

    def run(self, corpora: Sequence[Corpus]) -> Report:
        if (encoding := self._other_encoding(corpora)) is not None:
            return Report([], self.findings.in_order(), [], encoding=encoding)
        readers = [_Reader(corpus) for corpus in corpora]
        opened = [
            {
                split: [self._open(reader, split, source) for source in reader.corpus.sources(split)]
                for split in reader.corpus.splits
            }
            for reader in readers
        ]
        self._total = sum(_size(stream) for splits in opened for each in splits.values() for stream in each)
        for reader, splits in zip(readers, opened, strict=True):
            self._check_corpus(reader.corpus, splits, reader.has_classes)
        summaries = [scanned.summary for scanned in self.scanned.values()]
        source = readers[0].source(self.has_values) if len(readers) == 1 else ""
        is_other = self.findings.count("invalid-utf8") > MAX_BAD_LINES
        encoding = self._likely_encoding() if is_other else ""
        return Report(summaries, self.findings.in_order(), self.leaks, self.classes, source, encoding)

    def _likely_encoding(self) -> str:
        """Return the encoding that fits all files that are not UTF-8; empty if none does."""
        likely = {scanned.file.likely_encoding() for scanned in self.scanned.values()} - {"utf-8"}
        return "" if "" in likely else "cp1252" if "cp1252" in likely else "latin-1"

    def _other_encoding(self, corpora: Sequence[Corpus]) -> str | None:
        """Report a file that begins as UTF-16 or UTF-32. Every further finding would be about its bytes."""
        for corpus in corpora:
            for path in (path for paths in corpus.splits.values() for path in paths):
                encoding = TextFile(path, "", corpus.encoding).marked_encoding()
                if encoding is not None:
                    detail = f"it begins like {encoding.upper()}"
                    self.findings.add_one("invalid-utf8", Location(str(path), 1, 0, detail=detail))
                    return encoding
        return None

    def _open(self, reader: _Reader, split: str, source: Source) -> Stream:
        config, reference = reader.corpus.config(split, source), reader.reference_for(split, source)
        setting = f"task.data.{split}" if reader.corpus.roles is not None else ""
        return config.open(source, reader.roles, setting, self._on_finding, self._on_read, reference)

    def _on_finding(self, issue: Issue) -> None:
        """Record an issue, unless it was already recorded when the same file was read before."""
        kind, path, line, error, shown, unit, _ = issue
        is_explained = kind == "no-example" and self.findings.has_error
        if is_explained or line <= self._reported.get((path, kind, unit), 0):
            return
        self._reported[path, kind, unit] = line
        byte = self.scanned[path].offset(line) if unit == "line" else None
        detail = "" if error is None or kind in ("empty-file", "no-example") else error.details[0].message
        if error is not None and kind == "other-layout" and error.details[0].hint:
            detail += f"; {error.details[0].hint}"
        self.findings.add_one(kind, Location(str(path), line, byte, excerpt(shown), detail))

    def _on_read(self, size: int) -> None:
        """Advance the progress by half of the bytes read, because each file is read twice."""
        self._done = min(self._done + size / 2, self._phase_end)
        self.progress(int(self._done), self._total)

    def _end_phase(self) -> None:
        self._done = self._phase_end
        self.progress(int(self._done), self._total)

    def _scan(self, stream: Stream, split: str) -> None:
        """Scan the bytes of a stream's files. Add the columns of a table or of JSON rows to its summary."""
        self._phase_end += _size(stream) / 2
        for file in stream.sources:
            if file.path not in self.scanned:
                summary = FileSummary(str(file.path), split)
                self.scanned[file.path] = scan(
                    file, summary, self.findings, has_long_lines=stream.has_long_lines
                )
        self._end_phase()
        summary = self.scanned[stream.sources[0].path].summary
        summary.notes = list(stream.notes)
        if stream.layout() is not None:
            summary.read_as, summary.columns = stream.read_as, column_uses(stream)

    def _check_corpus(
        self, corpus: Corpus, splits: Mapping[str, Sequence[Stream]], has_classes: bool | None
    ) -> None:
        ledgers: dict[str, Ledger] = {}
        has_labels: bool | None = has_classes or None
        for split, streams in splits.items():
            ledger = ledgers[split] = Ledger(split, self.scanned)
            for stream in streams:
                self._scan(stream, split)
                self._phase_end += _size(stream) / 2
                ledger.skip_header(stream)
                for batch in _batches(stream):
                    if corpus.roles is None or has_classes is False:
                        self._report_comma_numbers(batch, join_scope(corpus.part, split))
                    if has_labels is None:
                        has_labels = len(batch.columns) == 2 and looks_like_labels(batch.columns[1])
                    if stream.is_running:
                        self._examine_running(batch, ledger)
                    else:
                        is_labelled = bool(has_labels) and len(batch.columns) == 2
                        self._examine(batch, ledger, is_labelled, join_scope(corpus.part, split))
                self._end_phase()
        is_running = corpus.format == "running-text"
        unit = f"lines of {self.limits.min_words} words or more" if is_running else "examples"
        for ledger in ledgers.values() if not is_running else ():
            self._find_duplicates(ledger, "two-labels" if has_labels else "other-target", corpus.part)
        for split, other in (("test", "train"), ("validation", "train"), ("test", "validation")):
            if split in ledgers and other in ledgers:
                self._find_overlap(ledgers[split], ledgers[other], corpus.part, unit)
        self._check_split(corpus, splits.get("train", ()))
        if has_labels and has_classes is not False:
            self._check_labels(ledgers, corpus, is_certain=bool(has_classes))

    def _report_comma_numbers(self, batch: Batch, scope: str) -> None:
        """Report each target with a comma if all targets are numbers. Training cannot read them."""
        if len(batch.columns) != 2 or not are_comma_numbers(batch.columns[1]):
            return
        self.has_values = True
        advice = list(map(comma_number, batch.columns[1]))
        found = [row for row, each in enumerate(advice) if each]
        locate = partial(self._location, batch)
        self.findings.add("comma-number", found, lambda row: locate(row, 1, advice[row]), scope)

    def _check_split(self, corpus: Corpus, streams: Sequence[Stream]) -> None:
        """Report too few training examples to split off each validation or test set that has no file."""
        missing = {split: part for split, part in corpus.fractions.items() if split not in corpus.splits}
        if self.findings.has_error or len(streams) != 1 or not missing:
            return
        try:
            check_split(streams[0], missing, corpus.hash_seed)
        except UserError as error:
            location = Location(str(streams[0].files[0]), 1, None, detail=error.details[0].message)
            self.findings.add_one("too-few", location)

    def _examine_running(self, batch: Batch, ledger: Ledger) -> None:
        """Count the words in lines of a continuous text, and hash the long lines to compare splits."""
        words = [len(text.split()) for text in batch.columns[0]]
        long = [row for row, number in enumerate(words) if number >= self.limits.min_words]
        ledger.enter(batch, long, has_labels=False)
        self._count_words(batch, 0, sum(words), max(words))

    def _count_words(self, batch: Batch, column: int, words: int, longest: int) -> None:
        file, _ = batch.stream.locate(batch.numbers[0], column)
        summary = self.scanned[file.path].summary
        summary.words += words
        summary.longest = max(summary.longest, longest)

    def _examine(self, batch: Batch, ledger: Ledger, has_labels: bool, scope: str) -> None:
        words = np.array([[len(text.split()) for text in column] for column in batch.columns])
        files = {batch.stream.locate(batch.numbers[0], column)[0].path for column in range(len(words))}
        for path in files:
            self.scanned[path].summary.examples += len(batch.numbers)
        for column, counts in enumerate(words[:1] if has_labels else words):
            self._count_words(batch, column, int(counts.sum()), int(counts.max()))
        empty = (words == 0).sum(0)
        is_empty, is_half = empty == len(words), (empty > 0) & (empty < len(words))
        shortest, longest = words.argmin(0), words.argmax(0)
        locate = partial(self._location, batch)

        def add(kind: str, which: Any, location: Callable[[int], Location]) -> None:
            self.findings.add(kind, np.nonzero(which)[0].tolist(), location, scope)

        # In two aligned files, the empty side may be a short text instead of a label.
        if has_labels and not isinstance(batch.stream, AlignedLines):
            is_unlabelled = words[1] == 0
            is_empty, is_half = is_empty & ~is_unlabelled, is_half & ~is_unlabelled
            add("empty-label", is_unlabelled, lambda row: locate(row, 1, shown=0))
            has_spaces = np.array([label != label.strip() for label in batch.columns[1]])
            is_spaced = has_spaces & ~is_unlabelled
            add("label-spaces", is_spaced, lambda row: locate(row, 1, repr(batch.columns[1][row]), 0))
        add("empty-line", is_empty, locate)
        add("empty-side", is_half, lambda row: locate(row, shortest[row], shown=longest[row]))
        ledger.enter(batch, np.nonzero(empty == 0)[0].tolist(), has_labels)
        is_long = (words > self.limits.max_words).any(0)
        add("too-long", is_long, lambda row: locate(row, longest[row], f"{words[longest[row], row]:,} words"))
        if len(words) != 2 or has_labels:
            return
        characters = np.array([[len(text) for text in column] for column in batch.columns])
        shorter, longer = characters.min(0), characters.max(0)
        is_far = (longer > self.limits.max_ratio * shorter) & (longer >= self.limits.min_characters)

        def far(row: int) -> Location:
            first, second = characters[:, row]
            return locate(row, int(characters[:, row].argmax()), f"{first:,} and {second:,} characters")

        add("length-ratio", (words.min(0) > 0) & is_far, far)

    def _location(
        self, batch: Batch, row: int, column: int = 0, detail: str = "", shown: int | None = None
    ) -> Location:
        """Return the location of a row and column. The excerpt is of column `shown` (default: `column`)."""
        path, line, byte = _position(self.scanned, batch.stream, batch.numbers[row], column)
        text = batch.columns[column if shown is None else shown][row]
        return Location(str(path), line, byte, excerpt(text), detail)

    def _find_duplicates(self, ledger: Ledger, other_target: str, part: str) -> None:
        """Report every example whose input appears earlier in the split, with any target."""
        first_example, first_input = _first_rows(ledger.examples), _first_rows(ledger.inputs)
        numbers = np.arange(len(ledger))
        is_duplicate = first_example != numbers
        scope = join_scope(part, ledger.split)
        self._add("duplicate", ledger, is_duplicate, ledger, first_example, scope)
        self._add(other_target, ledger, (first_input != numbers) & ~is_duplicate, ledger, first_input, scope)

    def _find_overlap(self, ledger: Ledger, other: Ledger, part: str, unit: str) -> None:
        """Report every example of `ledger` whose input also appears in `other`, another split."""
        in_example = _first_rows(ledger.examples, other.examples)
        in_input = _first_rows(ledger.inputs, other.inputs)
        is_same = in_example >= 0
        is_same_input = (in_input >= 0) & ~is_same
        scope = join_scope(part, f"{ledger.split} in {other.split}")
        self._add("in-two-splits", ledger, is_same, other, in_example, scope)
        self._add("input-in-two-splits", ledger, is_same_input, other, in_input, scope)
        same, same_input = int(is_same.sum()), int(is_same_input.sum())
        if same or same_input:
            self.leaks.append(Leak(ledger.split, other.split, same, same_input, len(ledger), part, unit))

    def _add(
        self, kind: str, ledger: Ledger, is_found: np.ndarray, other: Ledger, rows: np.ndarray, scope: str
    ) -> None:
        """Report each example of `ledger` in the mask `is_found` as a finding of this kind.

        `rows` gives for each example the row of `other` that it repeats.
        """

        def locate(kept: list[int]) -> list[Location]:
            return ledger.locations(kept, [f"as {other.name(int(rows[row]))}" for row in kept])

        self.findings.add_all(kind, np.nonzero(is_found)[0].tolist(), locate, scope)

    def _check_labels(self, ledgers: Mapping[str, Ledger], corpus: Corpus, *, is_certain: bool) -> None:
        """Count the classes. Report doubtful labels, and labels that do not occur in train."""
        counts = Counter[str]()
        for ledger in ledgers.values():
            counts.update({label: len(rows) for label, rows in ledger.labels.items()})
        is_rare = all(map(is_number, counts)) and 2 * len(counts) > counts.total()
        self.has_values |= are_real_values(counts) or (is_rare and corpus.roles is None)
        if len(counts) > MAX_LABELS or self.has_values:
            return
        for ledger in ledgers.values():
            self.classes += ledger.class_counts(corpus.part)
        known = ledgers["train"].labels if "train" in ledgers else counts
        is_folder = "folder" in map(corpus.format_of, corpus.splits)
        can_be_read = not is_folder and not self.findings.has_error
        if is_certain and can_be_read and "train" in ledgers and len(known) == 1:
            label, locate = next(iter(known)), ledgers["train"].locations
            self.findings.add_all("one-label", [0], partial(locate, details=[repr(label)]), "train")
        refused = {split: is_certain and ledger.is_other(known) for split, ledger in ledgers.items()}
        doubts = {} if is_folder else find_doubts(counts)
        for label in sorted(counts, key=lambda label: (counts[label], label)):
            for split, ledger in ledgers.items():
                rows, scope = ledger.labels.get(label, ()), join_scope(corpus.part, split)
                if label not in known and refused[split]:
                    same = same_number(label, known)
                    also = "" if same is None else f": train has {same!r}"
                    kind, detail = "other-labels", f"{label!r}{also}"
                elif label in doubts:
                    kind, detail = doubts[label].kind, doubts[label].detail
                elif label not in known:
                    kind, detail = "new-label", repr(label)
                else:
                    continue
                self.findings.add_all(kind, rows, partial(ledger.locations, details=repeat(detail)), scope)


class _Reader:
    """Column roles (`input`, `target`) and table layout with which all files of a corpus are read.

    The first training file decides both.
    """

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        self.decisive = corpus.decisive
        split, source = self.decisive
        config = corpus.config(split, source)
        self.roles = corpus.roles or _guess_roles(config)
        self.has_classes = corpus.has_classes
        if corpus.roles is None and self.roles == LABEL_ROLES:
            self.has_classes = True
        self._reference = config.reference(source, self.roles, "", _ignore)

    def source(self, has_values: bool) -> str:
        """Return a preset to suggest for the files, such as `classification`; empty if a task is known."""
        split, _ = self.decisive
        if self.corpus.roles is not None or len(self.corpus.sources(split)) > 1:
            return ""
        if self.has_classes:
            return "classification task.target=number" if has_values else "classification"
        return {1: "language-model", 2: "translation"}.get(len(self.roles), "")

    def reference_for(self, split: str, source: Source) -> Reference | None:
        return None if (split, source) == self.decisive else self._reference


def column_uses(stream: Stream) -> list[ColumnUse]:
    """Return each column of a table or of JSON rows, with its role, such as `input`, and its first value."""
    layout, record = stream.layout(), next(stream.records(), None)
    if layout is None or record is None:
        return []
    roles = {column: role for role, columns in layout.columns.items() for column in columns}
    columns: Sequence[Column] = range(layout.width) if layout.width else layout.names
    names = layout.names or [""] * len(columns)
    values = (record.row[column] if _has(record.row, column) else "" for column in columns)
    return [
        ColumnUse(column, str(name), roles.get(column, ""), excerpt(as_shown(value)))
        for column, name, value in zip(columns, names, values, strict=True)
    ]


def _has(row: Any, column: Column) -> bool:
    return column in row if isinstance(row, dict) else isinstance(column, int) and column < len(row)


def _size(stream: Stream) -> int:
    return sum(path.stat().st_size for path in stream.files if path.is_file())


def _ignore(issue: Issue) -> None:
    """Ignore an issue during layout detection. The check reads the file again, and reports the issue."""


def _guess_roles(config: DataConfig) -> Mapping[str, str]:
    """Guess the roles of columns if no task is known: texts with labels, pairs of texts, or texts alone."""
    if isinstance(config.train, list):
        names = ["input", "target", *(f"column {number}" for number in range(2, len(config.train)))]
        return {name: name for name in names[: len(config.train)]}
    if config.format == "running-text" or (config.columns and "target" not in config.columns):
        return TEXT_ROLES
    stream = config.open(config.train, LABEL_ROLES, "", _ignore)
    first = stream.first_row()
    if isinstance(first, dict) and not config.columns:
        columns = ColumnSpec({"input": None, "target": None}, LABEL_ROLES)
        if columns.name_in("target", first) is None and columns.name_in("input", first) is not None:
            return TEXT_ROLES
    if isinstance(first, list) and len(first) == 1:
        return TEXT_ROLES
    targets = [as_shown(record.values["target"]) for record in islice(stream.records(), SAMPLE_ROWS)]
    return LABEL_ROLES if looks_like_labels(targets) else PAIR_ROLES


@dataclass(frozen=True)
class Batch:
    """Block of examples of a stream, in columns: the input first, then the target."""

    stream: Stream
    columns: list[list[str]]
    numbers: list[int]
    """Line or row number of each example."""


def _batches(stream: Stream) -> Iterator[Batch]:
    records = _running_lines(stream) if stream.is_running else _without_null(stream)
    if isinstance(stream, ClassFolder):  # each file has a summary of its own
        for _, of_file in groupby(records, lambda record: stream.locate(record.number)[0].path):
            yield from _cut(stream, of_file)
    else:
        yield from _cut(stream, records)


def _cut(stream: Stream, records: Iterator[Record]) -> Iterator[Batch]:
    while chunk := list(islice(records, BATCH_ROWS)):
        rows = ([as_shown(value) for value in record.values.values()] for record in chunk)
        columns = [list(column) for column in zip(*rows, strict=True)]
        yield Batch(stream, columns, [record.number for record in chunk])


def _without_null(stream: Stream) -> Iterator[Record]:
    for record in stream:
        empty = next((role for role, value in record.values.items() if value is None), None)
        if empty is None:
            yield record
            continue
        error = user_error(f"the {empty} is null", path=stream.location(record.number), hint="write a text")
        stream.report("bad-row", record.number, error, json.dumps(record.values, ensure_ascii=False))


def _running_lines(stream: Stream) -> Iterator[Record]:
    """Yield the lines of one continuous text. A line may extend over several blocks of the stream."""
    number, held = 1, ""
    for record in stream:
        (role, text), *_ = record.values.items()
        *lines, held = (held + text).split("\n")
        for line in lines:
            yield Record({role: line}, number)
            number += 1
    if held:
        yield Record({"input": held}, number)


@dataclass
class Ledger:
    """Hashes and locations of a split's examples, to find duplicates, overlaps and rare labels.

    Each example has two 64-bit hashes, of its input and of the whole example. Among ten million lines, the
    probability that two different texts share a hash is about one in a million.
    """

    split: str
    scanned: Mapping[Path, ScannedFile]
    streams: list[Stream] = field(default_factory=list)
    inputs: array[int] = field(default_factory=lambda: array("q"))
    examples: array[int] = field(default_factory=lambda: array("q"))
    stream_numbers: array[int] = field(default_factory=lambda: array("i"))
    numbers: array[int] = field(default_factory=lambda: array("q"))
    excerpts: dict[int, str] = field(default_factory=dict)
    """Excerpts by row, only for files without byte offsets. Other lines are read again by their offsets."""
    labels: dict[str, array[int]] = field(default_factory=dict)
    """Row numbers of the examples with each label."""

    skipped: set[int] = field(default_factory=set)
    """Identities of the streams whose first row may be a header: it is neither a duplicate nor a leak.

    Training reads it as an example, so it counts in its class.
    """

    def __len__(self) -> int:
        return len(self.examples)

    def skip_header(self, stream: Stream) -> None:
        """Exclude the first row of a stream from the search for duplicates, if it may be a header."""
        layout = stream.layout()
        if layout is not None and layout.hint:
            self.skipped.add(id(stream))

    def is_other(self, known: Container[str]) -> bool:
        """Return True if examples with labels outside `known` are too many for training to leave out."""
        unknown = sum(len(rows) for label, rows in self.labels.items() if label not in known)
        return are_too_many(unknown, len(self))

    def class_counts(self, scope: str) -> list[ClassCount]:
        """Return the number of examples of each class, the most frequent class first."""
        counts = Counter({label: len(rows) for label, rows in self.labels.items()})
        total = max(1, counts.total())
        return [
            ClassCount(self.split, label, count, count / total, scope)
            for label, count in counts.most_common()
        ]

    def enter(self, batch: Batch, rows: Sequence[int], has_labels: bool) -> None:
        is_header = False
        if not self.streams or self.streams[-1] is not batch.stream:
            self.streams.append(batch.stream)
            is_header = id(batch.stream) in self.skipped and len(rows) > 0 and rows[0] == 0
        columns = [[column[row] for row in rows] for column in batch.columns]
        if has_labels:
            columns[1] = list(map(str.strip, columns[1]))  # as training does
            for number, label in enumerate(columns[1], start=len(self)):
                if len(self.labels) <= MAX_LABELS:
                    self.labels.setdefault(label, array("q")).append(number)
        if rows and _position(self.scanned, batch.stream, batch.numbers[rows[0]])[2] is None:
            self.excerpts.update((len(self) + n, excerpt(text)) for n, text in enumerate(columns[0]))
        header = len(self) if is_header else None
        self.inputs.extend(map(hash, columns[0]))
        self.examples.extend(map(hash, zip(*columns, strict=True)))
        if header is not None:  # a hash that no other example has
            self.inputs[header] = self.examples[header] = hash(batch.stream)
        self.stream_numbers.extend([len(self.streams) - 1] * len(rows))
        self.numbers.extend([batch.numbers[row] for row in rows])

    def name(self, row: int) -> str:
        file, line = self.streams[self.stream_numbers[row]].locate(self.numbers[row])
        return f"{file.path.name}:{line}"

    def locations(self, rows: list[int], details: Iterable[str]) -> list[Location]:
        """Return the locations of rows. Their lines are read again for the excerpts."""
        found = [
            _position(self.scanned, self.streams[self.stream_numbers[row]], self.numbers[row]) for row in rows
        ]
        shown = {
            path: self.scanned[path].excerpts(
                byte for each, _, byte in found if each == path and byte is not None
            )
            for path in {path for path, _, _ in found}
        }
        return [
            Location(str(path), line, byte, self.excerpts[row] if byte is None else shown[path][byte], detail)
            for row, (path, line, byte), detail in zip(rows, found, details, strict=False)
        ]


def _position(
    scanned: Mapping[Path, ScannedFile], stream: Stream, number: int, column: int = 0
) -> tuple[Path, int, int | None]:
    """Return the file, the line and the byte offset of one column of an example."""
    file, line = stream.locate(number, column)
    return file.path, line, scanned[file.path].offset(line) if stream.unit == "line" else None


def _first_rows(keys: array[int], among: array[int] | None = None) -> np.ndarray:
    """Return, for each key, the index of its first occurrence in `among` (default: `keys`), or -1."""
    wanted = np.asarray(keys, np.int64)
    values, first = np.unique(wanted if among is None else np.asarray(among, np.int64), return_index=True)
    if not len(values):
        return np.full(len(wanted), -1)
    nearest = np.minimum(np.searchsorted(values, wanted), len(values) - 1)
    return np.where(values[nearest] == wanted, first[nearest], -1)


def join_scope(part: str, split: str) -> str:
    return f"{part} {split}" if part else split
