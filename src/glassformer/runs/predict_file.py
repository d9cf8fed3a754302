"""Prediction of a whole file: rows are read in blocks, predicted in batches, and keep their columns.

Only one block is in memory at a time. A row that cannot be read or predicted gets an error message, and the
other rows are still predicted.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from glassformer.core.errors import UserError, shorten, user_error
from glassformer.data.columns import Column
from glassformer.data.delimiters import DELIMITERS
from glassformer.data.formats import CommaTable
from glassformer.data.input_files import InputFile, InputRow
from glassformer.data.readers import DataConfig, Format, file_ending
from glassformer.data.text_files import printable
from glassformer.evaluation.metrics import Progress
from glassformer.generation.predict import PredictedText, Prediction
from glassformer.storage.files import atomic_path, json_text
from glassformer.tasks.base import Task, TaskConfig

if TYPE_CHECKING:
    from glassformer.runs.run import Run

BLOCK_ROWS = 2048
"""Number of rows in memory at a time. A block is long enough to sort its rows by length into full batches."""
OUT_ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson")
ERRORS_KEPT = 5
"""Number of errors that the summary of a file lists."""

OnRead = Callable[[int], None]
Show = Callable[[Prediction], str]


@dataclass(frozen=True)
class FileRow:
    """One row of an input file."""

    line: int
    """Line number from 1, or row number in a JSON document."""
    columns: Mapping[str, Any]
    """All columns of the row, by name; empty if the row cannot be read."""
    text: str = ""
    error: str | None = None
    """Reason why the row cannot be read; None if it can."""


class RowPrediction(NamedTuple):
    """One row of an input file with its prediction."""

    row: FileRow
    predicted: PredictedText
    warning: str | None = None
    """Reason to doubt the prediction, such as unknown words."""


@dataclass
class FileSummary:
    """Result of the prediction of a file."""

    rows: int = 0
    failed: int = 0
    """Number of rows with an error."""
    warnings: int = 0
    """Number of rows with a prediction and a warning."""
    errors: list[dict[str, Any]] = field(default_factory=list)
    """Line and error of the first rows that failed."""
    notes: list[str] = field(default_factory=list)
    """Sentences on how the file is read."""

    def count(self, line: int, error: str | None) -> None:
        self.rows += 1
        if error is None:
            return
        self.failed += 1
        if len(self.errors) < ERRORS_KEPT:
            self.errors.append({"line": line, "error": error})


def source_path(source: Any) -> Path:
    """Return the path of an input file. Raise UserError for data in memory."""
    if isinstance(source, (str, Path)):
        return Path(source)
    raise user_error(
        f"expected the path of a file, not {type(source).__name__}",
        path="source",
        hint="run.predict(column) predicts data in memory",
    )


class InputReader:
    """Reader of an input file: its column names, and its rows in blocks."""

    def __init__(
        self,
        path: Path,
        config: TaskConfig,
        task: Task,
        *,
        columns: Sequence[Column] | None = None,
        format: Format | None = None,
        header: bool | None = None,
        encoding: str | None = None,
        on_read: OnRead | None = None,
    ) -> None:
        """Open a file. For each option that is None, the value used for the training data applies."""
        trained: DataConfig | None = getattr(config, "data", None)
        if format is None and trained is not None and file_ending(path) == ".csv":
            format = trained.format if str(trained.format).startswith("csv") else None
        options: dict[str, Any] = {"columns": columns, "format": format, "header": header}
        options["encoding"] = encoding or ("utf-8" if trained is None else trained.encoding)
        self.path = path
        self.file = InputFile.open(path, training_layout(task), **options, on_read=on_read)
        self._open_again = partial(InputFile.open, path, training_layout(task), **options)
        self._separator: str = getattr(config, "separator", None) or " "
        layout = self.file.stream.layout()
        self.delimiter = ","
        if layout is not None and isinstance(self.file.stream, CommaTable):
            self.delimiter = DELIMITERS[self.file.stream.delimiter()]
        self._header = _unique(layout.names) if layout is not None and layout.has_header else None

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on how the file is read."""
        return self.file.notes

    def names(self) -> list[str]:
        """Return the names of all columns. For JSON, read all rows, because their keys may differ."""
        if self._header is not None:
            return list(self._header)
        found: dict[str, None] = {}
        for row in self._open_again():
            found.update(dict.fromkeys(self._columns(row.row)))
            if row.row is not None and not isinstance(row.row, dict):
                break
        return list(found)

    def blocks(self) -> Iterator[list[FileRow]]:
        """Yield the rows in blocks of at most `BLOCK_ROWS`, in the order of the file."""
        rows = map(self._row, self.file)
        while block := list(islice(rows, BLOCK_ROWS)):
            yield block

    def _row(self, row: InputRow) -> FileRow:
        value, columns = row.input, self._columns(row.row)
        if row.error is not None:
            return FileRow(row.number, columns, error=row.error)
        if isinstance(value, list):
            value = self._separator.join(map(str, value))
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            shown = shorten(json.dumps(value), 40)
            return FileRow(row.number, columns, error=f"expected text, not {shown}")
        return FileRow(row.number, columns, value)

    def _columns(self, row: Any) -> dict[str, Any]:
        """Return a row of the input file as a dict from column name to value."""
        if isinstance(row, dict):
            return row
        if not isinstance(row, list):
            return {} if row is None else {"input": row}
        names = self._header or [f"column_{number}" for number in range(len(row))]
        if len(row) > len(names):  # the last column keeps the cells that have no name
            last = len(names) - 1
            row = [*row[:last], self.delimiter.join(row[last:])]
        return dict(zip(names, row, strict=False))


def training_layout(task: Task) -> Mapping[str, Any] | None:
    """Return the column layout of the training file, or None if the file had no columns.

    Also return None if the model was trained on data in memory. Their only input column is named `input`, and
    a file to predict need not have a column of that name.
    """
    layout: Mapping[str, Any] | None = task.state().get("layout")
    is_in_memory = layout is not None and layout["columns"].get("input") == ["input"]
    return None if is_in_memory else layout


def _unique(names: Sequence[str]) -> list[str]:
    """Return column names with a number after each name that repeats an earlier one."""
    found: dict[str, None] = {}
    for name in names:
        number = 1
        while (shown := name if number == 1 else f"{name}_{number}") in found:
            number += 1
        found[shown] = None
    return list(found)


def predict_rows(run: Run, reader: InputReader, decoding: Any = None) -> Iterator[list[RowPrediction]]:
    """Yield the predictions of a file block by block, in the order of the file."""
    for block in reader.blocks():
        texts = [row.text for row in block if row.error is None]
        predicted = iter(run.predict_texts(texts, decoding))
        found = []
        for row in block:
            own = next(predicted) if row.error is None else PredictedText("", None, [], row.error)
            warning = None if own.tokens is None else run.task.warning(own.tokens.tolist(), own.text)
            found.append(RowPrediction(row, own, warning))
        yield found


class PredictionWriter:
    """Writer of predictions to a table or to JSON lines, each row with its input columns."""

    def __init__(
        self, path: Path, reader: InputReader, show: Show, *, prefix: str = "", labels: Sequence[str] = ()
    ) -> None:
        """Prepare to write to `path`. The column `output` contains `show(prediction)`.

        Each of `labels` gets a column with its probability. `prefix` precedes the names of all added columns.
        """
        self.ending = file_ending(path)
        self.show = show
        self.labels = list(labels)
        self.prefix = prefix
        self.reader = reader
        added = [f"{prefix}{name}" for name in ("output", "probability", "error", "warning")]
        self.added = [*added, *(f"{prefix}probability:{label}" for label in self.labels)]
        self.names = [] if self.is_json else reader.names()
        twice = [name for name in self.added if name in self.names]
        if twice:
            raise _collision(twice[0], reader.path)

    @property
    def is_json(self) -> bool:
        return self.ending in (".jsonl", ".ndjson")

    def beginning(self) -> str:
        """Return the header line of a table; empty for JSON lines."""
        return "" if self.is_json else self._table([[*self.names, *self.added]])

    def lines(self, block: Sequence[RowPrediction]) -> str:
        """Return a block of predicted rows as lines of text to append to the output file."""
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
            "warning": found.warning,
        }
        if self.labels:
            values["probabilities"] = None if every is None else dict(zip(self.labels, every, strict=True))
        added = {f"{self.prefix}{name}": value for name, value in values.items()}
        twice = [name for name in added if name in columns]
        if twice:
            raise _collision(twice[0], self.reader.path)
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
        cells += [_cell(output), _number(probability), found.predicted.error or "", found.warning or ""]
        if self.labels:
            cells += [""] * len(self.labels) if every is None else map(_number, every)
        return cells if self.ending == ".csv" else self._tab_cells(cells)

    def _tab_cells(self, cells: list[str]) -> list[str]:
        """Empty the cells that contain a tab or a line end, which TSV does not allow.

        The `error` cell of the row then names these columns.
        """
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
    """Raise UserError if the output file has an unknown ending or is the same file as the input file."""
    if out.suffix.lower() not in OUT_ENDINGS:
        message = "the ending does not name a format for predictions"
        raise user_error(message, path=str(out), value=out.suffix, allowed=OUT_ENDINGS)
    if out.exists() and source.exists() and out.samefile(source):
        raise user_error("this is the input file", path=str(out), hint="choose another file for --out")


def bytes_progress(path: Path, progress: Progress | None) -> OnRead | None:
    """Return a callback that takes the number of bytes just read and reports how much of a file is done."""
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
    summary = FileSummary(notes=list(reader.notes[:1]))
    try:
        with replacing(out) as file:
            file.write(writer.beginning())
            for block in predict_rows(run, reader, decoding):
                for row, predicted, warning in block:
                    summary.count(row.line, predicted.error)
                    summary.warnings += warning is not None
                file.write(writer.lines(block))
        summary.notes += reader.file.warnings
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
