"""Config for a user's own data files: paths, formats and columns, and the reading of each split.

Formats (any file may be gzipped):
- `tsv`, `csv`: tables. `csv-comma` and `csv-semicolon` set a delimiter that cannot be detected.
- `jsonl`: one JSON object or list per line. `json`: an array of them, or one object of parallel lists.
- `text`: one example per line. Several line-aligned files are the columns of a table.
- `running-text`: one continuous text.
- `folder`: a folder with one file or folder per class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from glassformer.core.config import Node
from glassformer.core.errors import ErrorDetail, user_error
from glassformer.data.columns import SEPARATOR, Column, ColumnSpec, Reference
from glassformer.data.findings import OnFinding, raise_error
from glassformer.data.formats import AlignedLines, ClassFolder, CommaTable, RunningText, Stream, TabTable
from glassformer.data.json_rows import JsonDocument, JsonLines
from glassformer.data.text_files import TextFile, check_encoding

Source = str | list[str]
Format = Literal[
    "tsv", "csv", "csv-comma", "csv-semicolon", "jsonl", "json", "text", "running-text", "folder"
]

ENDINGS: dict[str, Format] = {
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
}


class DataConfig(Node):
    """Files with a user's own examples."""

    train: Source = Field(
        description="a file, a list of line-aligned files, such as [source, target], or a folder of classes"
    )
    validation: Source | None = Field(None, description="validation file; none: split off from train")
    test: Source | None = Field(None, description="test file; none: no test result is reported")
    format: Format | None = Field(None, description="file format; none: by the file name's ending")
    columns: dict[str, Column | list[Column]] = Field(
        {},
        description="column names, or numbers from 0, such as {input: text, target: label}; "
        "several columns are joined into one text: {input: [title, body], target: label}",
        json_schema_extra={"keys_in": "roles"},  # attribute of the task's config with the possible keys
    )
    separator: str = Field(SEPARATOR, description="text between columns that are joined into one")
    header: bool | None = Field(
        None,
        description="true if a table's first line names its columns; none: detected by known names",
    )
    classes: dict[str, str] = Field(
        {}, description="file of each class in a folder, such as {bad: a.neg, good: a.pos}; none: all of them"
    )
    encoding: str = Field("utf-8", description="encoding of the text in all files")
    validation_fraction: float = Field(
        0.1, gt=0, lt=1, description="fraction of train that is split off if no validation set is given"
    )
    test_fraction: float | None = Field(
        None, gt=0, lt=1, description="fraction of train that is split off as a test set; none: no test set"
    )

    @field_validator("train", "validation", "test", mode="before")
    @classmethod
    def _check_source(cls, value: Any) -> Any:
        paths = value if isinstance(value, list) else [value]
        if value is None or all(isinstance(path, str) for path in paths):
            return value
        raise ErrorDetail(
            "expected the path of a file, or a list of paths",
            value=value,
            hint="texts in memory: gf.train(inputs=texts, targets=labels)",
        )

    @field_validator("columns", mode="before")
    @classmethod
    def _check_columns(cls, value: Any) -> Any:
        example = "task.data.columns='{input: text, target: label}', or '{input: [1, 2], target: 0}'"
        if not isinstance(value, Mapping):
            raise ErrorDetail("expected one or more columns per role", value=value, hint=example)
        for role, given in value.items():
            columns = given if isinstance(given, list) else [given]
            if not columns or not all(type(column) in (str, int) for column in columns):
                message = "expected a column name, a number from 0, or a list of them"
                raise ErrorDetail(message, path=str(role), value=given, hint=example)
            if len(set(columns)) < len(columns):
                raise ErrorDetail("a column is listed twice", path=str(role), value=given, hint=example)
        return value

    def source(self, split: str) -> Source | None:
        return {"train": self.train, "validation": self.validation, "test": self.test}[split]

    @property
    def fractions(self) -> dict[str, float]:
        """Fraction of the training examples to split off for each split that has no file of its own."""
        wanted = {"validation": self.validation_fraction, "test": self.test_fraction}
        return {split: part for split, part in wanted.items() if part and self.source(split) is None}

    def stream(
        self, split: str, roles: Mapping[str, str], on_read: Callable[[int], None] | None = None
    ) -> Stream | None:
        """Return the examples of a split, or None if no data are given for it.

        `roles` maps each role, such as input or target, to its default column name. The training file
        decides the layout; a file of another split that does not have it is an error.
        """
        source = self.source(split)
        if source is None:
            return None
        reference = None if split == "train" else self.reference(self.train, roles, "task.data.train")
        return self.open(source, roles, f"task.data.{split}", on_read=on_read, reference=reference)

    def reference(
        self, source: Source, roles: Mapping[str, str], setting: str, on_finding: OnFinding = raise_error
    ) -> Reference | None:
        """Return the layout of a training file for the other splits; None if its format has no columns."""
        stream = self.open(source, roles, setting, on_finding)
        layout = stream.layout()
        return None if layout is None else Reference(layout, stream.files[0].name)

    def open(
        self,
        source: Source,
        roles: Mapping[str, str],
        setting: str,
        on_finding: OnFinding = raise_error,
        on_read: Callable[[int], None] | None = None,
        reference: Reference | None = None,
    ) -> Stream:
        """Open a source, which is a path or a list of paths, as a stream of examples.

        `setting` is the config path that names the source, such as `task.data.train`; empty if none does.
        `reference` is the layout of the training file; None if this is the training file.
        """
        from glassformer.data.catalogue import locate

        unknown = [role for role in self.columns if role not in roles]
        if unknown:
            path, allowed = "task.data.columns", list(roles)
            raise user_error("this task has no such column", path=path, value=unknown[0], allowed=allowed)
        check_encoding(self.encoding, "task.data.encoding")
        paths = source if isinstance(source, list) else [source]
        files = [TextFile(locate(path), setting, self.encoding, on_finding, on_read) for path in paths]
        if isinstance(source, list):
            self._reject_classes(setting)
            return AlignedLines(files, list(roles), setting)
        requested = {role: self.requested(role) for role in roles}
        columns = ColumnSpec(requested, dict(roles), self.header, self.separator, reference, setting)
        found = self._format_of(files[0], columns)
        if found != "folder":
            self._reject_classes(files[0].error_path)
        return _STREAMS[found](files[0], columns, self.classes)

    def requested(self, role: str) -> tuple[Column, ...] | None:
        """Return the columns that are requested for a role, or None if they are to be detected."""
        columns = self.columns.get(role)
        return tuple(columns) if isinstance(columns, list) else None if columns is None else (columns,)

    def _reject_classes(self, path: str) -> None:
        if self.classes:
            raise user_error("this is not a folder, but task.data.classes is set", path=path, hint="unset it")

    def _format_of(self, file: TextFile, columns: ColumnSpec) -> Format:
        """Return the format: the configured one, or the one of the file name's ending.

        If the task needs only one column, a file with an unknown ending is read as text.
        """
        if self.format is not None:
            return self.format
        if file.path.is_dir():
            return "folder"
        ending = file_ending(file.path)
        if ending in ENDINGS:
            return ENDINGS[ending]
        if len(columns.requested) == 1:
            return "text"
        raise user_error(
            f"the ending of {file.path.name!r} does not match any known format",
            path=file.setting,
            hint=f"set task.data.format=tsv, csv, jsonl or json; or name aligned files: {file.setting}"
            f"=[{', '.join(columns.requested)}]",
        )

    def read(self, split: str, roles: Mapping[str, str]) -> Rows | None:
        """Read all examples of a split into memory, one column per role, such as `input` and `target`."""
        stream = self.stream(split, roles)
        return None if stream is None else Rows.collect(stream, list(roles))


def file_ending(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).suffix.lower()


_STREAMS: dict[Format, Callable[[TextFile, ColumnSpec, Mapping[str, str]], Stream]] = {
    "tsv": lambda file, columns, classes: TabTable(file, columns),
    "csv": lambda file, columns, classes: CommaTable(file, columns),
    "csv-comma": lambda file, columns, classes: CommaTable(file, columns, "comma"),
    "csv-semicolon": lambda file, columns, classes: CommaTable(file, columns, "semicolon"),
    "jsonl": lambda file, columns, classes: JsonLines(file, columns),
    "json": lambda file, columns, classes: JsonDocument(file, columns),
    "text": lambda file, columns, classes: AlignedLines([file], list(columns.requested), file.setting),
    "running-text": lambda file, columns, classes: RunningText(file, list(columns.requested)),
    "folder": lambda file, columns, classes: ClassFolder(file, list(columns.requested), classes),
}


@dataclass(frozen=True)
class Rows:
    """Examples in memory: one column of values per role, and the line number of each example."""

    stream: Stream
    values: dict[str, list[Any]]
    numbers: Sequence[int]
    """Line or row number of each example, from 1."""
    notes: tuple[str, ...]

    @classmethod
    def collect(cls, stream: Stream, roles: Sequence[str]) -> Rows:
        values: dict[str, list[Any]] = {role: [] for role in roles}
        numbers = []
        for record in stream:
            numbers.append(record.number)
            for role, value in record.values.items():
                values[role].append(value)
        return cls(stream, values, numbers, stream.notes)

    @property
    def name(self) -> str:
        return self.stream.name

    def __len__(self) -> int:
        return len(self.numbers)

    def location(self, index: int) -> str:
        return self.stream.location(self.numbers[index])

    def take(self, indices: Iterable[int]) -> Rows:
        kept = list(indices)
        values = {role: [column[index] for index in kept] for role, column in self.values.items()}
        return replace(self, values=values, numbers=[self.numbers[index] for index in kept])
