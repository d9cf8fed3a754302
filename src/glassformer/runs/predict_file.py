"""Prediction of a whole file: rows are read in blocks, predicted in batches, and keep their columns.

Only one block is in memory at a time. A row that cannot be read or predicted has an error of its own.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from glassformer.core.errors import UserError, shorten, user_error
from glassformer.data.catalogue import locate
from glassformer.data.columns import DELIMITERS, Column
from glassformer.data.findings import Issue, raise_error
from glassformer.data.formats import Record, Stream
from glassformer.data.readers import DataConfig, Format, file_ending
from glassformer.data.text_files import TextFile
from glassformer.evaluation.metrics import Progress
from glassformer.generation.predict import Prediction
from glassformer.storage.files import atomic_path, json_text
from glassformer.tasks.base import Task, TaskConfig

if TYPE_CHECKING:
    from glassformer.runs.run import Run

BLOCK_ROWS = 2048
"""Number of rows in memory at a time. A block is long enough to sort its rows by length into full batches."""
OUT_ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson")
ERRORS_KEPT = 5
"""Number of errors that the summary of a file lists."""
UNDECODED = re.compile("[\ud800-\udfff]")
"""Bytes that are not UTF-8, as the reader marks them, or half of a surrogate pair from a JSON escape."""
UNDECODED_BYTES = range(0xDC80, 0xDD00)
"""Characters that represent the bytes 0x80 to 0xff."""

OnRead = Callable[[int], None]
Show = Callable[[Prediction], str]


@dataclass(frozen=True)
class InputFile:
    """File of inputs to predict, and how to read it. Options that are None are those of the training data."""

    path: Path
    columns: Sequence[Column] | None = None
    """Columns of the input: names, or numbers from 0."""
    format: Format | None = None
    encoding: str | None = None
    header: bool | None = None


@dataclass(frozen=True)
class InputRow:
    """One row of an input file."""

    line: int
    """Line number from 1, or row number in a JSON document."""
    columns: Mapping[str, Any]
    """All columns of the row, by name; empty if the row cannot be read."""
    text: str = ""
    error: str | None = None
    """Reason why the row cannot be read; None if it can."""


@dataclass(frozen=True)
class PredictedText:
    """Predictions for one text, or the reason why there are none."""

    text: str
    tokens: np.ndarray | None
    """Token ids of the text; None if it cannot be read."""
    candidates: Sequence[Prediction]
    """Predictions, the most likely first; empty if there is an error."""
    error: str | None = None


class RowPrediction(NamedTuple):
    """One row of an input file with its prediction."""

    row: InputRow
    predicted: PredictedText


@dataclass
class FileSummary:
    """Result of the prediction of a file."""

    rows: int = 0
    failed: int = 0
    """Number of rows with an error."""
    errors: list[dict[str, Any]] = field(default_factory=list)
    """Line and error of the first rows that failed."""

    def count(self, line: int, error: str | None) -> None:
        self.rows += 1
        if error is None:
            return
        self.failed += 1
        if len(self.errors) < ERRORS_KEPT:
            self.errors.append({"line": line, "error": error})


class InputReader:
    """Reader of an input file: its column names, and its rows in blocks."""

    def __init__(self, file: InputFile, config: TaskConfig, on_read: OnRead | None = None) -> None:
        self.file = replace(file, path=locate(str(file.path)))
        self._issues: list[InputRow] = []
        trained: DataConfig | None = getattr(config, "data", None)
        roles: Mapping[str, str] = getattr(config, "roles", {})
        self._roles = {"input": roles.get("input", "input")}
        self._data = _data_config(self.file, trained)
        self._verify()
        self._separator: str = getattr(config, "separator", None) or " "
        self.stream = self._open(on_read)
        layout = self._layout()
        self.delimiter = "," if layout is None else DELIMITERS.get(layout.delimiter, ",")
        self._header = _unique(layout.first) if layout is not None and layout.has_header else None

    def _open(self, on_read: OnRead | None) -> Stream:
        try:
            return self._data.open(str(self.file.path), self._roles, "", self._on_finding, on_read)
        except UserError as error:
            raise _with_hint(error) from None

    def _layout(self) -> Any:
        try:
            return self._data.open(str(self.file.path), self._roles, "", _pass_over_rows).layout()
        except UserError as error:
            raise _with_hint(error) from None

    def _verify(self) -> None:
        """Raise UserError if the file is damaged, before anything is predicted.

        Bytes that are not UTF-8 are errors of their own rows. Other encodings cannot continue after an error.
        """
        file = TextFile(self.file.path, "", self._data.encoding)
        if self._data.encoding.lower().replace("_", "-") not in ("utf-8", "utf8"):
            for _ in file.lines():
                pass
        elif file.path.suffix == ".gz" or not file.path.is_file():
            for _ in file.chunks():
                pass

    def _on_finding(self, issue: Issue) -> None:
        _pass_over_rows(issue)
        if issue.error is not None:
            self._issues.append(InputRow(issue.line, {}, error=issue.error.details[0].message))

    def names(self) -> list[str]:
        """Return the names of all columns. Rows of JSON may differ, so that all of them are read."""
        if self._header is not None:
            return list(self._header)
        found: dict[str, None] = {}
        for record in self._data.open(str(self.file.path), self._roles, "", _pass_over_rows):
            found.update(dict.fromkeys(self._columns(record)))
            if not isinstance(record.row, (dict, list)) or not self._is_json():
                break
        return list(found)

    def _is_json(self) -> bool:
        return (self._data.format or file_ending(self.file.path).lstrip(".")) in ("json", "jsonl", "ndjson")

    def blocks(self) -> Iterator[list[InputRow]]:
        """Yield the rows in blocks of at most `BLOCK_ROWS`, in the order of the file."""
        rows = self.rows()
        while block := list(islice(rows, BLOCK_ROWS)):
            yield block

    def rows(self) -> Iterator[InputRow]:
        for record in self.stream:
            yield from self._take_issues()
            yield self._row(record)
        yield from self._take_issues()

    def _take_issues(self) -> list[InputRow]:
        """Return the rows that the stream could not read since the last call."""
        taken, self._issues = self._issues, []
        return taken

    def _row(self, record: Record) -> InputRow:
        value, columns = record.values["input"], self._columns(record)
        if isinstance(value, list):
            value = self._separator.join(map(str, value))
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            shown = shorten(json.dumps(value), 40)
            return InputRow(record.number, columns, error=f"expected text, not {shown}")
        return InputRow(record.number, columns, value)

    def _columns(self, record: Record) -> dict[str, Any]:
        if isinstance(record.row, dict):
            return dict(record.row)
        if not isinstance(record.row, list):
            return {"input": record.values["input"]}
        names = self._header or [f"column_{number}" for number in range(len(record.row))]
        return dict(zip(names, record.row, strict=False))


def _pass_over_rows(issue: Issue) -> None:
    """Raise the error of an issue, unless only one row is concerned."""
    if issue.kind != "bad-row":
        raise_error(issue)


def _data_config(file: InputFile, trained: DataConfig | None) -> DataConfig:
    """Return the config that reads an input file: as the training data, except for what the file decides."""
    options: dict[str, Any] = {"train": str(file.path), "format": file.format, "header": file.header}
    ending = file_ending(file.path)
    if trained is not None:
        options["encoding"] = trained.encoding
        if file.format is None and ending == ".csv" and str(trained.format).startswith("csv"):
            options["format"] = trained.format
        # Data in memory is stored with the name `input`, which no file of the user needs to have.
        if trained.columns.get("input") not in (None, "input") and file.columns is None:
            options["columns"] = {"input": trained.columns["input"]}
            options["header"] = trained.header if file.header is None else file.header
    if file.columns is not None:
        options["columns"] = {"input": file.columns[0]}
    if file.encoding is not None:
        options["encoding"] = file.encoding
    return DataConfig(**options)


def _unique(names: Sequence[str]) -> list[str]:
    """Return column names with a number after each name that repeats an earlier one."""
    found: dict[str, None] = {}
    for name in names:
        number = 1
        while (shown := name if number == 1 else f"{name}_{number}") in found:
            number += 1
        found[shown] = None
    return list(found)


def _with_hint(error: UserError) -> UserError:
    """Return an error about columns with the option of `predict` instead of the config's."""
    first, *_ = error.details
    is_about_columns = "column" in first.message or "task.data.columns" in first.hint
    hint = "--columns input=NAME, or a number from 0" if is_about_columns else first.hint
    return user_error(first.message, path=first.path, value=first.value, allowed=first.allowed, hint=hint)


def predict_rows(run: Run, reader: InputReader, decoding: Any = None) -> Iterator[list[RowPrediction]]:
    """Yield the predictions of a file block by block, in the order of the file."""
    for block in reader.blocks():
        texts = [row.text for row in block if row.error is None]
        predicted = iter(run.predict_texts(texts, decoding))
        yield [
            RowPrediction(
                row, next(predicted) if row.error is None else PredictedText("", None, [], row.error)
            )
            for row in block
        ]


def undecoded(text: str) -> str | None:
    """Return an error for a text with bytes that are not UTF-8; None if the text is valid."""
    found = None if text.isascii() else UNDECODED.search(text)
    if found is None:
        return None
    number, position = ord(found[0]), len(text[: found.start()].encode())
    if number in UNDECODED_BYTES:
        return f"not UTF-8: byte {position} of the text is 0x{number - 0xDC00:02x}"
    return f"not valid Unicode: U+{number:04X} at byte {position} of the text"


def printable(text: str) -> str:
    """Return a text in which each byte that is not UTF-8 is written as an escape such as `\\xff`."""
    return text if text.isascii() else UNDECODED.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number - 0xDC00:02x}" if number in UNDECODED_BYTES else f"\\u{number:04x}"


class PredictionWriter:
    """Writer of predictions to a table or to JSON lines, each row with its input columns."""

    def __init__(
        self, path: Path, reader: InputReader, show: Show, *, prefix: str = "", labels: Sequence[str] = ()
    ) -> None:
        """Write to `path` what `show` returns for each prediction, and the probability of each label."""
        self.ending = file_ending(path)
        self.show = show
        self.labels = list(labels)
        self.prefix = prefix
        self.reader = reader
        added = [f"{prefix}{name}" for name in ("output", "probability", "error")]
        self.added = [*added, *(f"{prefix}probability:{label}" for label in self.labels)]
        self.names = [] if self.is_json else reader.names()
        twice = [name for name in self.added if name in self.names]
        if twice:
            raise _collision(twice[0], reader.file.path)

    @property
    def is_json(self) -> bool:
        return self.ending in (".jsonl", ".ndjson")

    def beginning(self) -> str:
        """Return the header line of a table; empty for JSON lines."""
        return "" if self.is_json else self._table([[*self.names, *self.added]])

    def lines(self, block: Sequence[RowPrediction]) -> str:
        """Return the lines of a block."""
        if self.is_json:
            return "".join(f"{json_text(self._object(found))}\n" for found in block)
        return self._table([self._cells(found) for found in block])

    def _object(self, found: RowPrediction) -> dict[str, Any]:
        output, probability, every = self._values(found.predicted)
        columns = {name: _readable(value) for name, value in found.row.columns.items()}
        values: dict[str, Any] = {
            "output": output,
            "probability": probability,
            "error": found.predicted.error,
        }
        if self.labels:
            values["probabilities"] = None if every is None else dict(zip(self.labels, every, strict=True))
        added = {f"{self.prefix}{name}": value for name, value in values.items()}
        twice = [name for name in added if name in columns]
        if twice:
            raise _collision(twice[0], self.reader.file.path)
        return columns | ({} if columns else {"line": found.row.line}) | added

    def _values(self, predicted: PredictedText) -> tuple[str | None, float | None, list[float] | None]:
        """Return the output, its probability and the probability of every class, as far as they are known."""
        if not predicted.candidates:
            return None, None, None
        best = predicted.candidates[0]
        every = best.class_probabilities
        return self.show(best), best.probability, None if every is None else every.tolist()

    def _cells(self, found: RowPrediction) -> list[str]:
        output, probability, every = self._values(found.predicted)
        cells = [_cell(found.row.columns.get(name)) for name in self.names]
        cells += [_cell(output), _number(probability), found.predicted.error or ""]
        if self.labels:
            cells += [""] * len(self.labels) if every is None else map(_number, every)
        return cells if self.ending == ".csv" else self._tab_cells(cells)

    def _tab_cells(self, cells: list[str]) -> list[str]:
        """Empty the cells that a TSV file cannot hold, and name them in the error of the row."""
        bad = [index for index, cell in enumerate(cells) if re.search(r"[\t\r\n]", cell)]
        if bad:
            names = [*self.names, *self.added]
            left_out = ", ".join(repr(names[index]) for index in bad)
            for index in bad:
                cells[index] = ""
            cells[len(self.names) + 2] = (
                f"left out, because TSV has no tabs or line ends in a cell: {left_out}"
            )
        return cells

    def _table(self, rows: Sequence[Sequence[str]]) -> str:
        if self.ending == ".tsv":
            return "".join("\t".join(row) + "\n" for row in rows)
        text = io.StringIO()
        csv.writer(text, delimiter=self.reader.delimiter, lineterminator="\n").writerows(rows)
        return text.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return printable(value) if isinstance(value, str) else json_text(value)


def _readable(value: Any) -> Any:
    return printable(value) if isinstance(value, str) else value


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def class_labels(task: Task) -> list[str]:
    """Return the labels of a classifier; raise UserError if the task has none."""
    outputs = getattr(task.task_type, "outputs", 0)
    if not outputs or getattr(task.task_type, "is_regression", False):
        raise user_error(
            "this model does not predict one class per input",
            path="--probabilities",
            hint="leave the option out",
        )
    return [" ".join(task.output_symbols([number])) for number in range(outputs)]


def _collision(name: str, path: Path) -> UserError:
    message = f"the file has a column {name!r}, which would be added"
    return user_error(message, path=str(path), hint="name the added columns otherwise: --prefix predicted_")


def check_out(out: Path, source: Path) -> None:
    """Raise UserError if the ending of the output file is unknown, or if it is the input file itself."""
    if out.suffix.lower() not in OUT_ENDINGS:
        message = "the ending does not name a format for predictions"
        raise user_error(message, path=str(out), value=out.suffix, allowed=OUT_ENDINGS)
    if out.exists() and source.exists() and out.samefile(source):
        raise user_error("this is the input file", path=str(out), hint="choose another file for --out")


def bytes_progress(path: Path, progress: Progress | None) -> OnRead | None:
    """Return a callback that turns the bytes read from a file into progress."""
    if progress is None or not path.is_file():
        return None
    total, done = path.stat().st_size, 0

    def count(read: int) -> None:
        nonlocal done
        done = min(done + read, total)  # the beginning is read more than once
        progress("predicting", done, total)

    return count


def write_predictions(
    run: Run, reader: InputReader, writer: PredictionWriter, out: Path, decoding: Any = None
) -> FileSummary:
    """Predict a file and write the predictions to `out`, which is replaced only at the end."""
    summary = FileSummary()
    try:
        with replacing(out) as file:
            file.write(writer.beginning())
            for block in predict_rows(run, reader, decoding):
                for row, predicted in block:
                    summary.count(row.line, predicted.error)
                file.write(writer.lines(block))
    except KeyboardInterrupt as stop:
        stop.add_note(f"stopped after {summary.rows:,} rows; {out} was not written")
        raise
    return summary


@contextmanager
def replacing(path: Path) -> Iterator[io.TextIOWrapper]:
    """Open a temporary file that replaces `path` when the `with` block ends without an exception."""
    try:
        with (
            atomic_path(path, shared=True) as temporary,
            open(temporary, "w", encoding="utf-8", newline="") as file,
        ):
            yield file
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise user_error(
            f"the file cannot be written: {error.strerror or error}",
            path=str(path),
            hint="choose a file in an existing folder that you may write to, with enough space",
        ) from None
