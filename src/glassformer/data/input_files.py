"""Files to predict from: reads the inputs of a user's file with the layout of a run's training file.

An unreadable row is an item with an error, so that all other rows of the file can be predicted.
"""

from __future__ import annotations

import codecs
import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from glassformer.core.errors import UserError, shorten, user_error
from glassformer.data.catalogue import locate
from glassformer.data.columns import (
    HEADER_ROWS,
    SAMPLE_ROWS,
    SEPARATOR,
    TEXT_ROLES,
    Column,
    Reference,
    TableLayout,
    looks_like_header,
)
from glassformer.data.findings import Issue, raise_error
from glassformer.data.formats import Stream, Table
from glassformer.data.json_rows import JsonLines
from glassformer.data.readers import ENDINGS, DataConfig, Format, file_ending
from glassformer.data.roles import CLASSIFIER_NAMES, column_contents
from glassformer.data.text_files import MAX_BAD_LINES, TextFile, check_encoding, undecoded


class InputRow(NamedTuple):
    """One row of a file to predict from: its input, or the reason why it cannot be read."""

    number: int
    """Line number from 1, or row number in a JSON document."""
    input: Any
    """Input of the task: a text, or a JSON list for a task on tokens; None if the row has an error."""
    row: Any
    """Original row: a list of fields, a JSON value, or the line itself; None if nothing of it can be read."""
    error: str | None = None


@dataclass(frozen=True)
class InputFile:
    """File to predict from. Its layout is that of the training file, without the target."""

    stream: Stream
    issues: list[Issue]
    """Issues that reading has found since the last row."""
    undecoded: list[int] = field(default_factory=list)
    """Numbers of the rows read so far whose text is not UTF-8."""

    @classmethod
    def open(
        cls,
        path: Path | str,
        layout: Mapping[str, Any] | None,
        *,
        format: Format | None = None,
        columns: Sequence[Column] | None = None,
        header: bool | None = None,
        encoding: str = "utf-8",
        on_read: Callable[[int], None] | None = None,
    ) -> InputFile:
        """Open a file. `layout` is `task.state()["layout"]` of a run; None if its data had no columns.

        `columns` (names or numbers of the input's columns) and `header` take precedence over the layout.
        """
        path = locate(str(path))
        if path.is_dir():
            raise user_error("this is a folder", path=str(path), hint="name a file")
        _verify(TextFile(path, "", encoding))
        train = TableLayout.from_document(layout) if layout is not None else None
        issues: list[Issue] = []

        def on_finding(issue: Issue) -> None:
            if issue.kind != "bad-row":
                raise_error(issue)
            issues.append(issue)

        found = format or ENDINGS.get(file_ending(path), "text")

        def opened(columns: Sequence[Column] | None, header: bool | None) -> Stream:
            data = DataConfig(
                train=str(path),
                format=found,
                columns={} if columns is None else {"input": list(columns)},
                header=header,
                encoding=encoding,
                separator=SEPARATOR if train is None else train.separator,
            )
            return data.open(str(path), TEXT_ROLES, "", on_finding, on_read)

        stream = opened(columns, header)
        if columns is None and found not in ("text", "running-text"):
            if train is not None:
                stream = opened(*_columns_for(stream, train, header))
            elif isinstance(stream, Table):
                _require_one_column(stream, header)
        stream.layout()  # reports a missing column now
        issues.clear()  # the rows are read again, and report their issues then
        return cls(stream, issues)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentence on how the file is read; empty for one input per line."""
        return self.stream.notes

    @property
    def names(self) -> list[str]:
        """Names of the original columns; empty if they have none."""
        layout = self.stream.layout()
        return list(layout.names) if layout is not None else []

    def __iter__(self) -> Iterator[InputRow]:
        for record in self.stream.records():
            yield from self._errors()
            value = record.values["input"]
            row = value if record.row is None else record.row
            error = undecoded(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
            self.undecoded.extend([record.number] if error else ())
            yield InputRow(record.number, value if error is None else None, row, error)
        yield from self._errors()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the characters of the rows read so far."""
        (source,) = self.stream.sources
        found = [*source.warnings]
        if len(self.undecoded) > MAX_BAD_LINES and (likely := source.likely_encoding()):
            found.append(f"WARNING: {source.path.name}: if the file is {likely}: --encoding {likely}")
        return tuple(found)

    def _errors(self) -> list[InputRow]:
        """Return an `InputRow` with an error for each row that could not be read since the last call."""
        found = list(self.issues)
        self.issues.clear()
        return [
            InputRow(
                issue.line, None, issue.row, f"{issue.unit} {issue.line}: {issue.error.details[0].message}"
            )
            for issue in found
            if issue.error
        ]


def _verify(file: TextFile) -> None:
    """Raise UserError if a file cannot be read to its end.

    In UTF-8, an invalid byte affects only its own row. In other encodings, reading stops at an invalid byte.
    """
    check_encoding(file.encoding, "--encoding")
    is_utf8 = codecs.lookup(file.encoding).name == "utf-8"
    if not is_utf8:
        for _ in file.lines():
            pass
    elif file.path.suffix == ".gz" or not file.path.is_file():
        for _ in file.chunks():
            pass


def _columns_for(
    stream: Stream, train: TableLayout, header: bool | None
) -> tuple[Sequence[Column] | None, bool | None]:
    """Find the input's columns by the names or numbers of the training file. Return them and `header`."""
    first = stream.first_row()
    if first is None:
        return None, header
    names, numbers = train.role_names(), train.columns["input"]
    if isinstance(first, dict) or (isinstance(stream, Table) and names is not None and header is not False):
        return _by_name(first, None if names is None else names["input"], stream, train, header)
    if not isinstance(first, list):
        return None, header
    if isinstance(stream, Table) and header is None:
        if stream.columns.has_header(first):
            return None, True  # a column with a usual name
        if len(first) == train.width > 1:
            _reject_header(stream, first)
        header = False
    if len(first) == train.width:
        return numbers, header
    if len(first) == len(numbers):  # the inputs alone
        return range(len(numbers)), header
    raise _mismatch(f"{len(first)} columns instead of {train.width}", first, stream, train)


def _require_one_column(stream: Table, header: bool | None) -> None:
    """Raise UserError if a table has several columns, and no header line that names the input."""
    first = stream.first_row()
    if first is None or len(first) < 2:
        return
    if header is False or stream.columns.name_in("input", first) is None:
        raise _ambiguous("which column is the input?", first, stream)


def _reject_header(stream: Table, first: Sequence[str]) -> None:
    """Raise UserError if the first line looks like a header, but the training file had none."""
    if _has_header(stream, first):
        raise _ambiguous("is the first line a header? The training file has none.", first, stream)


def _has_header(stream: Table, first: Sequence[str]) -> bool:
    rows = [fields for _, fields in islice(stream.fields(), 1, HEADER_ROWS) if len(fields) == len(first)]
    return looks_like_header(first, rows)


def _ambiguous(problem: str, first: Sequence[str], stream: Table) -> UserError:
    shown = shorten(" | ".join(first), 60)
    names = shorten(", ".join(f"{number}: {name}" for number, name in enumerate(first)), 80)
    (likely,) = _likely_inputs(first, stream, 1)
    return user_error(
        f"{problem} The first line is {shown!r}",
        path=stream.name,
        hint=f"name the input's column, such as {_columns_option([likely])} (in Python: columns={likely!r}), "
        f"or its number: {names}; with numbers, set --header true or false (header=)",
    )


def _likely_inputs(first: Iterable[str], stream: Stream, count: int) -> list[str]:
    """Return the names of the columns that are likely the input: usual names, then texts, then others."""
    names = list(first)
    if isinstance(stream, Table):
        rows: list[Any] = [
            row for _, row in islice(stream.fields(), 1, SAMPLE_ROWS) if len(row) == len(names)
        ]
        contents = column_contents(rows, range(len(names)))
    else:
        sample = stream.sample() if isinstance(stream, JsonLines) else ()
        contents = column_contents([row for row in sample if isinstance(row, dict)], names)
    usual = {role: [name.casefold() for name in CLASSIFIER_NAMES[role]] for role in ("input", "target")}

    def doubt(column: int) -> tuple[bool, bool, bool, int]:
        name, found = names[column].strip().casefold(), contents[column]
        is_other = name in usual["target"] or found.is_identifier
        return is_other, name not in usual["input"], not found.is_text, column

    return [names[column] for column in sorted(sorted(range(len(names)), key=doubt)[:count])]


def _columns_option(names: Sequence[str]) -> str:
    """Return the option of `predict` that names the columns of the input."""
    value = names[0] if len(names) == 1 else f"[{','.join(names)}]"
    return f"--columns {shlex.quote(f'input={value}')}"


def _by_name(
    first: Any, names: Sequence[str] | None, stream: Stream, train: TableLayout, header: bool | None
) -> tuple[Sequence[Column] | None, bool | None]:
    plain = {name.strip().casefold(): name for name in reversed(list(first))}
    found = [name if name in first else plain.get(name.strip().casefold()) for name in names or ()]
    if None not in found:
        columns = None if names is None else [name for name in found if name is not None]
        return columns, header if isinstance(first, dict) else True
    assert names is not None
    if header and len(first) in (train.width, len(names)):
        return (train.columns["input"] if len(first) == train.width else range(len(names))), True
    missing = next(name for name in names if name not in first)
    raise _mismatch(f"no column {missing!r}", list(first), stream, train)


def _mismatch(problem: str, first: Sequence[Any], stream: Stream, train: TableLayout) -> Exception:
    likely = _likely_inputs(map(str, first), stream, len(train.columns["input"]))
    name = "name the input's column" + ("s" if len(likely) > 1 else "")
    choices = [f"{name}, such as {_columns_option(likely)}", "--header false, if the file has no header line"]
    if isinstance(stream, Table) and len(first) == train.width and not _has_header(stream, first):
        choices.reverse()  # the first line is an example
    hint = "; ".join(choices)
    beginning = " | ".join(map(str, first))
    return Reference(train, "train").mismatch(problem, beginning, path=stream.name, hint=hint)
