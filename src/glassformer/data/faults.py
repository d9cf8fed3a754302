"""The check of text data before training: each fault with its file, line, byte and an excerpt.

Everything is read once, in constant memory but for some 40 bytes an example, by which duplicates are found.
It knows files and columns, not what a task makes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from glassformer.core.errors import user_error
from glassformer.data.checking.findings import FileSummary, Findings, Leak, Location, Report
from glassformer.data.checking.lines import CheckedLines, require_file
from glassformer.data.checking.records import Columns
from glassformer.data.checking.repeats import Ledger, check_labels, find_duplicates, find_overlap, join_scope
from glassformer.data.checking.rows import (
    Batch,
    looks_like_labels,
    read_aligned,
    read_class,
    read_json,
    read_table,
)
from glassformer.data.columns import Column
from glassformer.data.readers import ENDINGS

Progress = Callable[[int, int], None]
"""How many bytes are read, and of how many."""


WITHOUT_LINES = {"json", "running-text", "folder"}
"""Formats in which a line means nothing, and may be the whole file."""


@dataclass(frozen=True)
class Limits:
    max_words: int = 200
    """A longer text is reported."""
    max_ratio: float = 3.0
    """Of the characters of two sides; a higher one is reported."""
    min_characters: int = 20
    """Of the longer side, below which a ratio says nothing."""
    most_places: int | None = 5
    """Kept of each kind; all are counted."""
    min_words: int = 5
    """Of a line of a running text, below which it may well be in another one too."""


@dataclass(frozen=True)
class SplitFile:
    path: Path
    label: str
    """Of its examples, where a file or a folder is a class."""
    is_one_example: bool = False


@dataclass(frozen=True)
class Corpus:
    """Files that belong together, and how they hold examples."""

    splits: Mapping[str, Sequence[Path]]
    format: str | None = None
    """This and the next four as in `task.data`."""
    columns: Mapping[str, Column] = field(default_factory=dict)
    header: bool | None = None
    classes: Mapping[str, str] = field(default_factory=dict)
    encoding: str = "utf-8"
    part: str = ""
    """Of a set that has several."""
    roles: Mapping[str, str] | None = None
    """What the task asks for, and by which names; none: no task is known."""
    is_aligned: bool = True
    """Whether two text files are the two sides of the examples, line by line."""

    def format_of(self, split: str) -> str:
        if self.format is not None:
            return self.format
        formats = {path: _format_of(path) for path in self.splits[split]}
        if len(set(formats.values())) > 1:
            told = ", ".join(f"{path.name} is {format}" for path, format in formats.items())
            raise user_error(f"files of several formats: {told}", path=split, hint="--format says which")
        return next(iter(formats.values()))

    def files_of(self, split: str) -> list[SplitFile]:
        """A folder stands for the files in it: one a class, or one an example in a folder a class."""
        found = []
        for path in self.splits[split]:
            for label, entry in self._classes_of(path) if path.is_dir() else [(path.name, path)]:
                inner = _entries(entry) if entry.is_dir() else [entry]
                found += [SplitFile(file, label, entry.is_dir()) for file in inner]
        for file in found:
            require_file(file.path)
        return found

    def _classes_of(self, folder: Path) -> list[tuple[str, Path]]:
        if self.classes:
            return [(label, folder / name) for label, name in self.classes.items()]
        found = [(entry.name, entry) for entry in _entries(folder)]
        if not found:
            raise user_error("the folder is empty", path=str(folder), hint="a file or a folder a class")
        return found


def _format_of(path: Path) -> str:
    if path.is_dir():
        return "folder"
    return ENDINGS.get(Path(path.name.removesuffix(".gz")).suffix.lower(), "text")


def _entries(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))


def check(
    sources: Mapping[str, Sequence[Path]], limits: Limits | None = None, progress: Progress | None = None
) -> Report:
    """`sources` are the files of each split: a table, two line-aligned texts or a folder of classes."""
    return check_corpora([Corpus(sources)], limits, progress)


def check_corpora(
    corpora: Sequence[Corpus], limits: Limits | None = None, progress: Progress | None = None
) -> Report:
    return _Check(limits or Limits(), progress or (lambda done, total: None)).run(corpora)


class _Check:
    def __init__(self, limits: Limits, progress: Progress) -> None:
        self.limits = limits
        self.progress = progress
        self.findings = Findings(limits.most_places)
        self.summaries: dict[str, FileSummary] = {}
        self.leaks: list[Leak] = []
        self.done, self.total = 0, 0

    def run(self, corpora: Sequence[Corpus]) -> Report:
        files = [file for corpus in corpora for split in corpus.splits for file in corpus.files_of(split)]
        self.total = sum(file.path.stat().st_size for file in files)
        for corpus in corpora:
            self._check_corpus(corpus)
        return Report(list(self.summaries.values()), self.findings.in_order(), self.leaks)

    def _check_corpus(self, corpus: Corpus) -> None:
        ledgers: dict[str, Ledger] = {}
        has_labels: bool | None = None
        for split in corpus.splits:
            ledger = ledgers[split] = Ledger(split)
            scope = join_scope(corpus.part, split)
            examples = 0
            for batch in self._batches(corpus, split, ledger):
                examples += len(batch)
                if has_labels is None and len(batch):
                    has_labels = len(batch.columns) == 2 and looks_like_labels(batch.columns[1])
                self._examine(batch, ledger, bool(has_labels) and len(batch.columns) == 2, scope)
            self._require_examples(corpus, split, examples)
        is_running = corpus.format == "running-text"
        unit = f"lines of {self.limits.min_words} words or more" if is_running else "examples"
        for ledger in ledgers.values():
            if not is_running:
                find_duplicates(ledger, bool(has_labels), self.findings, corpus.part)
        for split, other in (("test", "train"), ("validation", "train"), ("test", "validation")):
            if split in ledgers and other in ledgers:
                leak = find_overlap(ledgers[split], ledgers[other], self.findings, corpus.part, unit)
                if leak.same or leak.same_input:
                    self.leaks.append(leak)
        if has_labels and "folder" not in map(corpus.format_of, corpus.splits):
            check_labels(ledgers, self.findings, corpus.part)

    def _require_examples(self, corpus: Corpus, split: str, examples: int) -> None:
        """A file that is whole may hold none all the same: a header alone, or an empty array."""
        is_told = any(finding.severity == "error" for finding in self.findings.in_order())
        if not examples and not is_told and corpus.format != "running-text":
            for file in corpus.files_of(split)[:1]:
                self.findings.add_one("no-example", Location(str(file.path), 1, 0))

    def _batches(self, corpus: Corpus, split: str, ledger: Ledger) -> Iterator[Batch]:
        format, files = corpus.format_of(split), corpus.files_of(split)
        columns = Columns(corpus.columns, corpus.header, corpus.roles)
        may_be_long = format in WITHOUT_LINES
        opened = [self._open(file.path, split, corpus.encoding, may_be_long) for file in files]
        if format == "text" and corpus.is_aligned:
            yield from read_aligned(opened, self.findings)
            return
        for file, lines in zip(files, opened, strict=True):
            if format == "folder":
                yield from read_class(lines, file.label, file.is_one_example)
            elif format == "running-text":
                self._read_running(lines, ledger)
            elif format == "text":
                yield from read_aligned([lines], self.findings)
            elif format == "json":
                yield from read_json(lines, columns, self.findings)
            else:
                yield from read_table(lines, format, columns, self.findings)

    def _open(self, path: Path, split: str, encoding: str, may_be_long: bool) -> CheckedLines:
        """A file that was read before, in another part of a set, is not reported once more."""
        is_known = str(path) in self.summaries
        findings = Findings(0) if is_known else self.findings
        summary = FileSummary(str(path), split)
        self.summaries.setdefault(summary.file, summary)
        return CheckedLines(path, summary, findings, encoding, self._on_read, may_be_long=may_be_long)

    def _on_read(self, size: int) -> None:
        self.done += size
        self.progress(self.done, self.total)

    def _read_running(self, lines: CheckedLines, ledger: Ledger) -> None:
        """It has no examples; that lines of it stand in another split must be known all the same."""
        for block in lines.blocks():
            words = [len(text.split()) for text in block.texts]
            numbers = range(block.first_line, block.first_line + len(block))
            batch = Batch([block.texts], [lines], numbers, [block.offsets])
            long = [row for row, count in enumerate(words) if count >= self.limits.min_words]
            ledger.enter(batch, long, has_labels=False)
            lines.summary.words += sum(words)
            lines.summary.longest = max(lines.summary.longest, *words)
        lines.drain()

    def _examine(self, batch: Batch, ledger: Ledger, has_labels: bool, scope: str) -> None:
        words = np.array([[len(text.split()) for text in column] for column in batch.columns])
        if not words.size:
            return
        for file, counts in zip(batch.files, words[:1] if has_labels else words, strict=False):
            file.summary.words += int(counts.sum())
            file.summary.longest = max(file.summary.longest, int(counts.max()))
        empty = (words == 0).sum(0)
        is_empty, is_half = empty == len(words), (empty > 0) & (empty < len(words))
        if has_labels and batch.files[0] is batch.files[1]:  # of two aligned files, it may be a short text
            is_unlabelled = words[1] == 0
            is_empty, is_half = is_empty & ~is_unlabelled, is_half & ~is_unlabelled
            which = np.nonzero(is_unlabelled)[0].tolist()
            self.findings.add("empty-label", which, lambda row: batch.place(row, 1, shown=0), scope)
        self.findings.add("empty-line", np.nonzero(is_empty)[0].tolist(), batch.place, scope)

        def half(row: int) -> Location:
            side = int(words[:, row].argmin())
            return batch.place(row, side, shown=int(words[:, row].argmax()))

        self.findings.add("empty-side", np.nonzero(is_half)[0].tolist(), half, scope)
        ledger.enter(batch, np.nonzero(empty == 0)[0].tolist(), has_labels)
        self._examine_lengths(batch, words, has_labels, scope)

    def _examine_lengths(self, batch: Batch, words: np.ndarray, has_labels: bool, scope: str) -> None:
        def long(row: int) -> Location:
            side = int(words[:, row].argmax())
            return batch.place(row, side, f"{words[side, row]:,} words")

        is_long = (words > self.limits.max_words).any(0)
        self.findings.add("too-long", np.nonzero(is_long)[0].tolist(), long, scope)
        if len(words) != 2 or has_labels:
            return
        characters = np.array([[len(text) for text in column] for column in batch.columns])
        shorter, longer = characters.min(0), characters.max(0)
        is_far = (
            (words.min(0) > 0)
            & (longer > self.limits.max_ratio * shorter)
            & (longer >= self.limits.min_characters)
        )

        def far(row: int) -> Location:
            side = int(characters[:, row].argmax())
            return batch.place(row, side, f"{characters[0, row]:,} and {characters[1, row]:,} characters")

        self.findings.add("length-ratio", np.nonzero(is_far)[0].tolist(), far, scope)
