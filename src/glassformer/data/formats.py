"""File formats as streams of examples: aligned lines, running text, tables, folders of classes.

JSON is in `json_rows`. A stream is read again with each `iter()` and holds one example at a time. An error
goes to the `on_finding` of its file: training raises it, `data check` records it and the stream continues
with the next row.
"""

from __future__ import annotations

import csv
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from glassformer.core.errors import UserError, user_error
from glassformer.data.columns import (
    TRAINING,
    ColumnSpec,
    LayoutMismatch,
    TableLayout,
    count,
    join_columns,
    options_hint,
)
from glassformer.data.delimiters import (
    DELIMITERS,
    Delimiter,
    are_fields_quoted,
    find_delimiter,
    is_declaration,
)
from glassformer.data.findings import Issue
from glassformer.data.text_files import BLOCK_CHARACTERS, TextFile

LONG_CELL_LINES = 5
"""Number of lines from which a quoted cell is suspicious if most of its lines look like rows."""
VERY_LONG_CELL_LINES = 100
"""Number of lines above which every quoted cell is suspicious."""
MAX_NOTED = 3
"""Maximum number of suspicious cells, or of files with control characters, that training warns of."""
MORE_DATA = "add more data, or name one file per split"


class Record(NamedTuple):
    """One example of a stream."""

    values: dict[str, Any]
    """Value of each role, such as `input` and `target`."""
    number: int
    """Line number from 1, or row number in a JSON document; `Stream.location` formats it."""
    row: Any = None
    """Complete row that the values are from: fields of a table, or a JSON value; None for other formats."""


class Stream:
    """Base class for file formats: iterable of examples. Each iteration reads the files again."""

    unit = "line"
    is_running = False
    """True if the records are pieces of one text, to be joined as they are."""
    has_long_lines = False
    """True if a line may have any length, because examples are not separated by lines."""
    condition: Callable[[Record], bool] | None = None
    """Function that returns True for each record to yield; None yields all records."""

    def __init__(self, sources: Sequence[TextFile]) -> None:
        self.sources = list(sources)

    @property
    def name(self) -> str:
        return " + ".join(str(path) for path in self.files)

    @property
    def files(self) -> list[Path]:
        return [source.path for source in self.sources]

    @property
    def read_as(self) -> str:
        """Description of how a table or JSON rows are read: header, columns, delimiter; else empty."""
        layout = self.layout()
        return "" if layout is None else layout.describe()

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentence on how a table or JSON rows are read, and warnings about its header and its columns."""
        from glassformer.data.catalogue import short_name  # the catalogue is slow to read

        layout = self.layout()
        notes = self.warnings()
        if layout is None:
            return tuple(notes)
        name = short_name(self.sources[0].path)
        notes = [f"{name} is read {layout.describe()}", *notes]
        notes += [f"WARNING: {name}: {warning}" for warning in layout.warnings()]
        if layout.more_text and "input" not in layout.candidates:
            option = options_hint(TRAINING, columns=f"'{layout.option()}'")
            notes.append(f"{name}: to read all texts as one input: {option}")
        if layout.hint:
            notes.append(f"WARNING: {name}: the first line is read as an example; {layout.hint}")
        if layout.unnamed:
            chosen = " and ".join(f"the {role}" for role in layout.unnamed)
            option = options_hint(TRAINING, columns=f"'{layout.chosen_columns()}'")
            advice = f"{option} (as now); if the first line is an example: task.data.header=false"
            notes.append(f"WARNING: {name}: the header does not name {chosen}; to choose: {advice}")
        return tuple(notes)

    def warnings(self) -> list[str]:
        """Return warnings about the characters of the texts that were read."""
        found = (warning for source in self.sources for warning in source.warnings)
        return list(islice(found, MAX_NOTED))

    def layout(self) -> TableLayout | None:
        """Return the columns of a table or of JSON rows; None for other formats."""
        return None

    def first_row(self) -> Any:
        """Return the first raw row of a table or of JSON; None for other formats."""
        return None

    def location(self, number: int) -> str:
        return f"{self.name}, {self.unit} {number}"

    def locate(self, number: int, column: int = 0) -> tuple[TextFile, int]:
        """Return the file and line number of a record. With aligned files, each column has its own file."""
        return self.sources[0], number

    def records(self) -> Iterator[Record]:
        raise NotImplementedError

    def where(self, condition: Callable[[Record], bool]) -> Stream:
        """Return a stream of the records that satisfy a condition."""
        part = copy(self)
        part.condition = condition
        return part

    def __iter__(self) -> Iterator[Record]:
        record = chosen = None
        for record in self.records():
            if self.condition is None or self.condition(record):
                chosen = record
                yield record
        if record is None:
            error = self.sources[0].error("the file contains no example", "write one per line")
            self.report("no-example", 1, error)
        elif chosen is None:
            message = "too few different examples to split"
            self.report("too-few", 1, user_error(message, path=self.name, hint=MORE_DATA))

    def report(
        self, kind: str, number: int, error: UserError | None = None, shown: str = "", row: Any = None
    ) -> None:
        source, line = self.locate(number)
        source.report(kind, line, error, shown=shown, unit=self.unit, row=row)


class AlignedLines(Stream):
    """Stream of examples from line-aligned files, one file per role, such as `input` and `target`."""

    def __init__(self, sources: Sequence[TextFile], roles: Sequence[str], setting: str) -> None:
        super().__init__(sources)
        self.roles = list(roles)
        if len(sources) != len(roles):
            needed = "1 is" if len(roles) == 1 else f"{len(roles)} are"
            files = ", ".join(roles)
            raise user_error(
                f"{count(len(sources), 'file')} given where {needed} needed: {files}",
                path=setting,
                hint=f"{setting}=[{files}]",
            )

    def locate(self, number: int, column: int = 0) -> tuple[TextFile, int]:
        return self.sources[min(column, len(self.sources) - 1)], number

    def records(self) -> Iterator[Record]:
        columns = [source.lines() for source in self.sources]
        for number, values in enumerate(zip_longest(*columns), start=1):
            if None in values:
                self._report_unequal(number - 1, values, columns)
                return
            yield Record(dict(zip(self.roles, values, strict=True)), number)

    def _report_unequal(
        self, common: int, values: Sequence[str | None], columns: Sequence[Iterator[str]]
    ) -> None:
        totals = [
            common + (value is not None) + sum(1 for _ in rest)
            for value, rest in zip(values, columns, strict=True)
        ]
        other = next(index for index, total in enumerate(totals) if total != totals[0])
        message = f"the file has {count(totals[other], 'line')}, but {self.sources[0].path} has {totals[0]}"
        error = self.sources[other].error(message, "give all files the same number of lines")
        self.sources[other].report("unequal-lines", common + 1, error, shown=values[other] or "")


class RunningText(Stream):
    """Stream of blocks of one long text. Blocks end at line ends or spaces where possible."""

    is_running = True
    has_long_lines = True

    characters: tuple[int, int | None] = (0, None)
    """Range of characters of the file to read: start, and end or None."""

    def __init__(
        self, source: TextFile, roles: Sequence[str], block_characters: int = BLOCK_CHARACTERS
    ) -> None:
        super().__init__([source])
        if len(roles) != 1:
            message = f"a running text has one column, but {len(roles)} are needed: {', '.join(roles)}"
            raise source.error(message, "choose another task.data.format")
        self.role = roles[0]
        self.block_characters = block_characters

    def records(self) -> Iterator[Record]:
        start, stop = self.characters
        number, position = 1, 0
        for block in self.sources[0].blocks(self.block_characters):
            skipped = block[: max(0, start - position)]
            text = block[len(skipped) : None if stop is None else max(0, stop - position)]
            if text:
                yield Record({self.role: text}, number + skipped.count("\n"))
            number += block.count("\n")
            position += len(block)
            if stop is not None and position >= stop:
                return

    def split_at(self, fraction: float) -> tuple[RunningText, RunningText]:
        """Split the text after this fraction of its characters, and return both parts."""
        total = sum(len(block) for block in self.sources[0].blocks(self.block_characters))
        border = int(total * fraction)
        if not 0 < border < total:
            raise self.sources[0].error(f"{count(total, 'character')} cannot be split", "use a longer text")
        train, rest = copy(self), copy(self)
        train.characters, rest.characters = (0, border), (border, None)
        return train, rest


def _ignore(issue: Issue) -> None:
    """Ignore an issue of a sample. The file is read again, and reports the issue then."""


Fields = Iterator[tuple[int, list[str]]]


def is_blank(fields: Sequence[str]) -> bool:
    """Return True for a row of several cells that are all empty, as spreadsheets write below a table."""
    return len(fields) > 1 and not any(map(str.strip, fields))


class Table(Stream):
    """Stream of examples from a table. All lines have the same number of fields."""

    def __init__(self, source: TextFile, columns: ColumnSpec) -> None:
        super().__init__([source])
        self.columns = columns
        self._layout: TableLayout | None = None

    def fields(self) -> Fields:
        """Yield the line number and the fields of each line that is not empty."""
        raise NotImplementedError

    def records(self) -> Iterator[Record]:
        layout = self.layout()
        if layout is None:
            return
        roles = {role: [int(column) for column in columns] for role, columns in layout.columns.items()}
        width = layout.width
        for number, fields in islice(self.fields(), int(layout.has_header), None):
            if len(fields) != width:
                message = f"the line has {count(len(fields), 'column')}, but the first line has {width}"
                error = user_error(message, path=self.location(number), hint=self.width_hint())
                self.report("bad-row", number, error, " ".join(fields), fields)
                continue
            values = {
                role: join_columns([fields[index] for index in indices], layout.separator)
                for role, indices in roles.items()
            }
            yield Record(values, number, fields)

    def layout(self) -> TableLayout | None:
        """Return the header, the columns and the delimiter; None if the file is empty or does not fit."""
        if self._layout is None:
            lines = self.fields()
            number, first = next(lines, (0, []))
            if not number:
                return None
            try:
                self._layout = self.columns.layout(
                    first, self.location(number), (fields for _, fields in lines), self.delimiter()
                )
            except LayoutMismatch as error:
                self.report("other-layout", number, error, " | ".join(first))
                return None
            if self._layout.hint:
                self.report("maybe-header", number, shown=" | ".join(first))
            if self._layout.unnamed:
                self.report("unnamed-column", number, shown=" | ".join(first))
            if self._layout.candidates:
                self.report("several-columns", number, shown=" | ".join(first))
        return self._layout

    def delimiter(self) -> str:
        raise NotImplementedError

    def width_hint(self) -> str:
        """Return advice for a line with another number of fields than the first."""
        return "write the same number on each line"

    def first_row(self) -> list[str] | None:
        return next((fields for _, fields in self.fields()), None)


class TabTable(Table):
    """Stream of examples from a TSV file. A quote is an ordinary character."""

    @cached_property
    def is_quoted(self) -> bool:
        """True if quotes seem to enclose the fields."""
        quiet = replace(self.sources[0], on_finding=_ignore, on_read=None)
        return are_fields_quoted(quiet.lines())

    @property
    def notes(self) -> tuple[str, ...]:
        name, option = self.sources[0].path.name, options_hint(TRAINING, format="csv")
        warning = f"WARNING: {name}: quotes enclose the fields, and stay in the texts; without them: {option}"
        return (*super().notes, *([warning] if self.is_quoted else []))

    def layout(self) -> TableLayout | None:
        is_first = self._layout is None
        found = super().layout()
        if is_first and found is not None and self.is_quoted:
            self.report("quoted-fields", 1, shown=" | ".join(found.first))
        return found

    def width_hint(self) -> str:
        option = options_hint(self.sources[0].setting and TRAINING, format="csv")
        return f"quotes enclose the fields: {option}" if self.is_quoted else super().width_hint()

    def delimiter(self) -> str:
        return "tab"

    def fields(self) -> Fields:
        for number, line in enumerate(self.sources[0].lines(), start=1):
            fields = line.split("\t")
            if line and not is_blank(fields):
                yield number, fields
            else:
                self.report("skipped-line", number)


class CommaTable(Table):
    """Stream of examples from a CSV file, with commas, semicolons, tabs or pipes between columns."""

    def __init__(self, source: TextFile, columns: ColumnSpec, delimiter: Delimiter | None = None) -> None:
        super().__init__(source, columns)
        self.requested_delimiter = delimiter
        self._long_cells: dict[int, int] = {}
        """Number of lines of each suspicious quoted cell that was read, by the first line of its row."""

    @property
    def notes(self) -> tuple[str, ...]:
        name = self.sources[0].path.name
        return (
            *super().notes,
            *(
                f"WARNING: {name}, line {number}: one quoted cell spans {lines:,} lines: is a quote unclosed?"
                for number, lines in islice(sorted(self._long_cells.items()), MAX_NOTED)
            ),
        )

    def width_hint(self) -> str:
        return f'{super().width_hint()}, and "quotes, like these" around texts with delimiters'

    def _check_cells(self, number: int, lines: int, fields: Sequence[str]) -> None:
        """Report a quoted cell that is very long, or most of whose lines look like rows of the table."""
        if lines < LONG_CELL_LINES:
            return
        cell = max(fields, key=lambda field: field.count("\n"))
        inner, sign = cell.split("\n")[1:-1], DELIMITERS[self.delimiter()]
        rows = sum(line.count(sign) == len(fields) - 1 for line in inner) if len(fields) > 1 else 0
        if lines > VERY_LONG_CELL_LINES or 5 * rows >= 4 * len(inner):
            self._long_cells[number] = lines
            self.report("long-cell", number, shown=f"{lines:,} lines: {cell}")

    def delimiter(self) -> Delimiter:
        if self.requested_delimiter is not None:
            return self.requested_delimiter
        source = self.sources[0]
        option = "task.data.format=" if source.setting else "--format "
        return find_delimiter(source.lines(), self.columns, path=source.error_path, option=option)

    def fields(self) -> Fields:
        line = ""

        def lines() -> Iterator[str]:
            # The reader itself joins the lines of a quoted field.
            nonlocal line
            for line in self.sources[0].lines():
                yield line + "\n"

        reader = csv.reader(lines(), delimiter=DELIMITERS[self.delimiter()], strict=True)
        number = 1
        while True:
            try:
                for fields in reader:
                    if not fields or is_blank(fields):
                        self.report("skipped-line", number)
                    elif not is_declaration(number, fields):
                        self._check_cells(number, reader.line_num - number + 1, fields)
                        yield number, fields
                    number = reader.line_num + 1
                return
            except csv.Error as error:
                message, hint = f"not valid CSV: {error}", 'quote "fields, like this"'
                invalid = user_error(message, path=self.location(number), hint=hint)
                self.report("bad-row", number, invalid, line)
                number = reader.line_num + 1


NOT_CLASSES = ("readme", "license", "licence", "copying", "changelog", "citation", "index", "metadata")
"""Names, without endings and case, of files that are usually not classes."""
NOT_TEXTS = (".md", ".rst", ".xml", ".json", ".html", ".yaml", ".yml", ".py", ".sh", ".pdf", ".png")
"""Endings of files that are usually not classes, in a folder of other files or of folders."""
CLASSES_HINT = "task.data.classes={NAME: FILE OR FOLDER, NAME: FILE OR FOLDER}"


@dataclass(frozen=True)
class _ClassFile:
    """File of one class, with one example per line or with a single example."""

    label: str
    file: TextFile
    is_lines: bool

    def texts(self) -> Iterator[str]:
        return self.file.lines() if self.is_lines else iter([self.file.whole().removesuffix("\n")])


class ClassFolder(Stream):
    """Folder of classes: one file per class with lines, or one folder per class with one file per example.

    The name of the file, without its ending, or of the folder is the label. The first role is the text, the
    second the label. If only texts are requested, labels are ignored.
    """

    def __init__(self, folder: TextFile, roles: Sequence[str], classes: Mapping[str, str]) -> None:
        if not folder.path.is_dir():
            problem = "this is a file, not a folder" if folder.path.exists() else "no such folder"
            raise folder.error(problem, "name a folder with one file or folder per class")
        if len(roles) > 2:
            message = f"a folder of classes has texts and labels, but {len(roles)} columns are needed"
            raise folder.error(message, "choose another task.data.format")
        self.folder = folder
        self.roles = list(roles)
        entries, self.left_out = _class_entries(folder.path)
        found = (
            _named_classes(folder, classes) if classes else _find_classes(folder, entries, len(roles) == 2)
        )
        self.left_out = [] if classes else self.left_out
        self.parts = [part for label, path in found for part in _class_files(label, path, folder)]
        self._starts: list[int] = []
        """Number of the first record of each file, for the files that have been read."""
        self._reached = 0
        super().__init__([part.file for part in self.parts])

    @property
    def name(self) -> str:
        return str(self.folder.path)

    @property
    def notes(self) -> tuple[str, ...]:
        if not self.left_out:
            return tuple(self.warnings())
        names = ", ".join(entry.name for entry in self.left_out)
        return (
            f"{self.folder.path.name}: not read as classes: {names}; to read them: {CLASSES_HINT}",
            *self.warnings(),
        )

    def records(self) -> Iterator[Record]:
        number = 0
        for index, part in enumerate(self.parts):
            if index == len(self._starts):
                self._starts.append(number + 1)
            for text in part.texts():
                number += 1
                self._reached = max(self._reached, number)
                yield Record(dict(zip(self.roles, (text, part.label), strict=False)), number)

    def location(self, number: int) -> str:
        part, line = self._find(number)
        return f"{part.file.path}, line {line}" if part.is_lines else str(part.file.path)

    def locate(self, number: int, column: int = 0) -> tuple[TextFile, int]:
        part, line = self._find(number)
        return part.file, line

    def _find(self, number: int) -> tuple[_ClassFile, int]:
        if number > self._reached:
            for _ in self.records():
                pass
        index = bisect_right(self._starts, number) - 1
        return self.parts[index], number - self._starts[index] + 1


def _entries(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))


def _class_entries(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the files or folders that may be classes, and files such as README.txt that are left out.

    Nothing is left out unless two entries remain.
    """
    entries = _entries(folder)
    others = [
        entry
        for entry in entries
        if not entry.is_dir()
        and (_label(entry).casefold() in NOT_CLASSES or entry.suffix.casefold() in NOT_TEXTS)
    ]
    found = [entry for entry in entries if entry not in others]
    return (found, others) if len(found) >= 2 else (entries, [])


def _find_classes(folder: TextFile, entries: Sequence[Path], with_labels: bool) -> list[tuple[str, Path]]:
    if len({entry.is_dir() for entry in entries}) > 1:
        raise folder.error("the folder contains both files and folders", CLASSES_HINT)
    found = [(_label(entry), entry) for entry in entries]
    if not with_labels and found:
        return found
    if len(found) < 2:
        problem = "the folder contains only one class" if found else "the folder is empty"
        raise folder.error(problem, "add one file or one folder per class")
    labels = [label for label, _ in found]
    twice = [label for label in labels if labels.count(label) > 1]
    if twice:
        names = [entry.name for entry in entries]
        each = ", ".join(
            f"{Path(name.removesuffix('.gz')).suffix[1:] or name}: {name}" for name in names[:10]
        )
        option = f"'task.data.classes={{{each}}}'"
        command = f"glassformer data check classification task.data.train={folder.path} {option}"
        raise folder.error(f"two files have the name {twice[0]!r} with different endings", command)
    return found


def _label(entry: Path) -> str:
    return entry.name if entry.is_dir() else Path(entry.name.removesuffix(".gz")).stem


def _named_classes(folder: TextFile, classes: Mapping[str, str]) -> list[tuple[str, Path]]:
    present = [entry.name for entry in _entries(folder.path)]
    for label, name in classes.items():
        if not (folder.path / name).exists():
            path = f"task.data.classes.{label}: {folder.path}"
            raise user_error("the folder has no such file or folder", path=path, value=name, allowed=present)
    return [(label, folder.path / name) for label, name in classes.items()]


def _class_files(label: str, path: Path, folder: TextFile) -> list[_ClassFile]:
    if not path.is_dir():
        return [_ClassFile(label, replace(folder, path=path), is_lines=True)]
    files = _entries(path)
    inner = [file.name for file in files if file.is_dir()]
    if inner or not files:
        problem = f"the folder contains another folder, {inner[0]!r}" if inner else "the folder is empty"
        raise replace(folder, path=path).error(problem, "keep one file per example, and no folders")
    return [_ClassFile(label, replace(folder, path=file), is_lines=False) for file in files]
