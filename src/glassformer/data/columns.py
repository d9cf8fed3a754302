"""Columns of a table: detects the delimiter, the header, and which columns are input and target."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal

from glassformer.core.errors import UserError, shorten, user_error

Column = str | int
"""Name of a column, or its number from 0."""
Columns = Mapping[str, tuple[Column, ...] | None]
"""Columns of each role, such as `input` and `target`; None if they are to be detected."""

USUAL_NAMES = {
    "input": ("input", "text", "sentence", "review", "source", "inp_expression"),
    "target": ("target", "label", "class", "sentiment", "out_expression"),
}
"""Column names to try for each role, if none is requested and the task's own name is absent."""

LABEL_ROLES = {"input": "text", "target": "label"}
"""Roles of a task with one label per text, each with its default column name."""
PAIR_ROLES = {"input": "source", "target": "target"}
"""Roles of a task that generates one text from another."""
TEXT_ROLES = {"input": "text"}
"""Role of a task that has texts alone."""

SAMPLE_ROWS = 1000
"""Number of rows below the first that decide which columns are labels, and whether there is a header."""
MIN_CONTENT_ROWS = 8
"""Minimum number of rows whose contents show which columns are labels. Fewer may repeat by chance."""
SEPARATOR = " | "
"""Default text between the columns that are joined into one input. It can be typed in one line."""
TRAINING = "task.data"
"""Setting that makes `options_hint` return options for training."""
MAX_NAMES = 8
"""Maximum number of ignored columns that a description lists."""
HEADER_ROWS = 20
"""Minimum number of rows that show that the first line has another label than all of them."""
DELIMITER_NAMES = {"tab": "tabs", "comma": "commas", "semicolon": "semicolons"}


@dataclass(frozen=True)
class TableLayout:
    """Header, columns and delimiter of a table, or the names in a JSON object."""

    columns: Mapping[str, tuple[Column, ...]]
    """Columns of each role: numbers from 0, or names in a JSON object. Several columns are joined."""
    names: tuple[str, ...] = ()
    """All column names: the header line of a table, or the keys of a JSON object; empty if there are none."""
    width: int = 0
    """Number of columns of a table or of a JSON list; 0 for JSON objects."""
    has_header: bool = False
    delimiter: str = ""
    """Delimiter of a table: `tab`, `comma` or `semicolon`; empty for JSON."""
    separator: str = SEPARATOR
    """Text between the columns that are joined into one input."""
    first: tuple[str, ...] = ()
    """Fields of the first line of a table."""
    hint: str = ""
    """Advice if the first line may be a header but is read as an example; else empty."""
    more_text: tuple[Column, ...] = ()
    """Columns that are ignored although they contain texts."""
    unnamed: tuple[str, ...] = ()
    """Roles whose usual names the header does not have, so that their columns were chosen by contents."""

    @property
    def ignored(self) -> list[Column]:
        used = {column for columns in self.columns.values() for column in columns}
        present: Iterable[Column] = range(self.width) if self.width else self.names
        return [column for column in present if column not in used]

    def name(self, column: Column) -> str:
        """Return a column for display: its name in quotes, or `column` and its number."""
        named = self._by_name([column])[0]
        return repr(named) if isinstance(named, str) else f"column {named}"

    def role_names(self) -> dict[str, tuple[str, ...]] | None:
        """Return the names of each role's columns, or None if the columns have no names."""
        if not self.names:
            return None
        return {role: tuple(map(str, self._by_name(columns))) for role, columns in self.columns.items()}

    def describe_roles(self) -> str:
        return ", ".join(f"{role} = {self._joined(columns)}" for role, columns in self.columns.items())

    def _joined(self, columns: Sequence[Column]) -> str:
        names = " + ".join(map(self.name, columns))
        return f"{names} joined by {self.separator!r}" if len(columns) > 1 else names

    def describe(self) -> str:
        """Return how the file is read: delimiter, header, the column of each role, and ignored columns."""
        found = self.describe_form() + self.describe_roles()
        ignored = self.ignored
        if ignored:
            more = f" and {len(ignored) - MAX_NAMES} more" if len(ignored) > MAX_NAMES else ""
            found += f"; ignored: {', '.join(map(self.name, ignored[:MAX_NAMES]))}{more}"
        if self.first and not self.has_header:
            found += f"; it begins with {self.beginning()!r}"
        return found

    def describe_form(self) -> str:
        if not self.delimiter:
            return "as JSON lists: " if self.width else "as JSON objects: "
        header = "with" if self.has_header else "without"
        return f"with {DELIMITER_NAMES[self.delimiter]} between columns, {header} a header line: "

    def beginning(self) -> str:
        return shorten(" | ".join(self.first), 60)

    def option(self) -> str:
        """Return a `task.data.columns` value that adds ignored text columns to the input; empty if none."""
        if not self.more_text:
            return ""
        wanted = {**self.columns, "input": (*self.columns["input"], *self.more_text)}
        return format_columns({role: self._by_name(columns) for role, columns in wanted.items()})

    def _by_name(self, columns: Sequence[Column]) -> list[Column]:
        return [
            self.names[column] if isinstance(column, int) and self.names else column for column in columns
        ]

    def columns_hint(self) -> str:
        """Return a hint on how to choose other columns: the option to set, and the columns of this file."""
        word = "NAME" if self.names else "NUMBER"
        present = ", ".join(self.names) if self.names else ", ".join(map(str, range(self.width)))
        form = ", ".join(f"{role}: {word}" for role in self.columns)
        return f"task.data.columns='{{{form}}}'; its columns are {shorten(present, 60)}"

    def document(self) -> dict[str, Any]:
        """Return what prediction needs to read other files in the same way, as a JSON value."""
        return {
            "columns": {role: list(columns) for role, columns in self.columns.items()},
            "names": list(self.names),
            "width": self.width,
            "has_header": self.has_header,
            "delimiter": self.delimiter,
            "separator": self.separator,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> TableLayout:
        columns = {role: tuple(columns) for role, columns in document["columns"].items()}
        return cls(**{**document, "columns": columns, "names": tuple(document["names"])})


def format_columns(columns: Mapping[str, Sequence[Column]]) -> str:
    """Return columns in the form of `task.data.columns`, such as `{input: [1, 2], target: 0}`."""
    parts = (
        f"{role}: {each[0]}" if len(each) == 1 else f"{role}: [{', '.join(map(str, each))}]"
        for role, each in columns.items()
    )
    return f"{{{', '.join(parts)}}}"


def options_hint(setting: str, **options: str) -> str:
    """Return options as typed: `task.data.NAME=VALUE`, or `--NAME VALUE` if `setting` is empty."""
    pairs = options.items()
    if setting:
        return " ".join(f"task.data.{name}={value}" for name, value in pairs)
    return " ".join(f"--{name} {value}" for name, value in pairs)


class LayoutMismatch(UserError):
    """Error: a file does not have the layout that was decided on the training file."""


@dataclass(frozen=True)
class Reference:
    """Layout that was decided on the training file, with which every other file is read."""

    layout: TableLayout
    name: str
    """Name of the training file, for messages."""

    def mismatch(self, problem: str, beginning: str, *, path: str, hint: str) -> LayoutMismatch:
        """Return an error that shows the training file's layout and the beginning of the other file."""
        train = self.layout
        begins = shorten(" | ".join(train.names), 60) if train.names else train.beginning()
        first = f"begins with {begins!r} and " if begins else ""
        message = (
            f"not the layout of the training file: {problem}. "
            f"This file begins with {shorten(beginning, 60)!r}; "
            f"{self.name} {first}is read {train.describe_form()}{train.describe_roles()}"
        )
        return LayoutMismatch(*user_error(message, path=path, hint=hint).details)


@dataclass(frozen=True)
class ColumnSpec:
    """Columns that a task needs: requested by name or number, or detected by their usual names."""

    requested: Columns
    default_names: Mapping[str, str]
    header: bool | None = None
    separator: str = SEPARATOR
    reference: Reference | None = None
    """Layout of the training file, which a file of another split must have; None for the training file."""
    setting: str = ""
    """Config path that names the file, such as task.data.train; empty if no config does."""

    @property
    def expects_labels(self) -> bool:
        """True if targets are labels: texts and labels can then be told apart by the contents of a column."""
        return self.default_names.get("target") == LABEL_ROLES["target"]

    @property
    def is_requested(self) -> bool:
        """True if the user has requested columns for every role, such as `input` and `target`."""
        return all(self.requested.values())

    def _requests(self, kind: type) -> bool:
        """Return True if the user has requested all columns by name (`kind` is str) or by number (int)."""
        return all(
            columns and all(isinstance(column, kind) for column in columns)
            for columns in self.requested.values()
        )

    def usual_names(self, role: str) -> tuple[str, ...]:
        return (self.default_names[role].casefold(), *USUAL_NAMES.get(role, ()))

    def name_in(self, role: str, present: Iterable[str]) -> str | None:
        """Return the name in `present` for a role: the task's default name or a usual one; None if absent."""
        plain: dict[str, str] = {}
        for name in present:
            plain.setdefault(name.strip().casefold(), name)
        return next((plain[name] for name in self.usual_names(role) if name in plain), None)

    def object_layout(self, row: object, path: str) -> TableLayout:
        """Return the layout of JSON rows, detected from `row`, the first of them."""
        reference = self.reference
        width = len(row) if isinstance(row, list) else 0
        names = tuple(row) if isinstance(row, dict) else ()
        if reference is not None:
            columns = self._columns_of_reference(reference, row, path)
        else:
            columns = {
                role: ((self.name_in(role, names) or self.default_names[role]),) if each is None else each
                for role, each in self.requested.items()
            }
        return TableLayout(columns, names, width, separator=self.separator)

    def _columns_of_reference(
        self, reference: Reference, row: object, path: str
    ) -> dict[str, tuple[Column, ...]]:
        names, layout = reference.layout.role_names(), reference.layout
        wanted: dict[str, tuple[Column, ...]] = dict(layout.columns if names is None else names)
        beginning = ", ".join(map(str, row)) if isinstance(row, (dict, list)) else str(row)
        hint = "give the files the same columns"
        if names is None or not isinstance(row, dict):
            if names is not None or not isinstance(row, list) or len(row) != layout.width:
                given = (
                    "an object"
                    if isinstance(row, dict)
                    else "a list"
                    if isinstance(row, list)
                    else "one value"
                )
                raise reference.mismatch(f"the row is {given}", beginning, path=path, hint=hint)
            return wanted
        for name in (name for columns in names.values() for name in columns):
            if name not in row:
                raise reference.mismatch(f"no column {name!r}", beginning, path=path, hint=hint)
        return wanted

    def has_header(self, first: Sequence[str], rows: Sequence[Sequence[str]] = ()) -> bool:
        """Return True if the first line is a header. `rows` are the lines below it.

        A header names every role, because a single match may be a word of the first example. If it names only
        some roles, the contents of `rows` must also show that it is not an example.
        """
        if self.header is not None:
            return self.header
        given = [column for columns in self.requested.values() for column in columns or ()]
        if any(isinstance(column, str) for column in given):
            return True
        if given and self._requests(int):
            return self._is_partly_named(first, rows) or all(
                int(column) < len(first) and first[int(column)].strip().casefold() in self.usual_names(role)
                for role, columns in self.requested.items()
                for column in (columns or ())[:1]
            )
        return not given and (self.is_named_in(first) or self._is_partly_named(first, rows))

    def _is_partly_named(self, first: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
        """Return True if the first line names a role and none of its fields occurs below: `title,body,label`.

        Two columns may be a pair of words, such as `text, texte`. They are a header only if labels repeat.
        """
        roles = [role for role in self.requested if self.name_in(role, first) is not None]
        if not roles or len(self.requested) < 2 or not rows:
            return False
        below = [set(column) for column in zip(*rows, strict=True)]
        if any(name in values for name, values in zip(first, below, strict=True)):
            return False
        has_labels = self.expects_labels and any(len(values) <= len(rows) // 2 for values in below)
        return has_labels or ("target" in roles and len(first) > 2)

    def is_named_in(self, first: Sequence[str]) -> bool:
        """Return True if a line contains the column name of each role that is not requested by number."""
        named = {
            role: columns
            for role, columns in self.requested.items()
            if columns is None or isinstance(columns[0], str)
        }
        return bool(named) and all(
            self.name_in(role, first) is not None
            if columns is None
            else all(column in first for column in columns)
            for role, columns in named.items()
        )

    @property
    def min_columns(self) -> int:
        numbers = [
            column + 1
            for columns in self.requested.values()
            for column in columns or ()
            if isinstance(column, int)
        ]
        return max(len(self.requested), *numbers, 1)

    def layout(
        self, first: Sequence[str], path: str, others: Iterable[Sequence[str]], delimiter: str
    ) -> TableLayout:
        """Return the layout of a table whose first line is `first`. `others` are the lines below it."""
        rows = [row for row in islice(others, SAMPLE_ROWS) if len(row) == len(first)]
        if self.reference is None:
            has_header = self.has_header(first, rows)
            columns = self._detect(first, rows, has_header, path)
        else:
            columns = self._fit(self.reference, first, rows, path)
            has_header = bool(self.reference.layout.names) if self.header is None else self.header
        names = tuple(first) if has_header else ()
        found = TableLayout(
            columns, names, len(first), has_header, delimiter, self.separator, first=tuple(first)
        )
        if not has_header:
            found = replace(found, hint=self._hint(found, rows))
        elif self.header is None and self.reference is None:
            found = replace(found, unnamed=self._unnamed(first))
        if self.expects_labels:
            found = replace(found, more_text=_text_columns(found.ignored, rows))
        return found

    def _detect(
        self, first: Sequence[str], rows: Sequence[Sequence[str]], has_header: bool, path: str
    ) -> dict[str, tuple[Column, ...]]:
        """Return the columns of each role in a training file.

        The first that applies decides: the user's request, names in the header, contents, order of columns.
        """
        found: dict[str, tuple[Column, ...]] = {}
        for role, requested in self.requested.items():
            name = self.name_in(role, first) if has_header else None
            columns = (name,) if requested is None and name is not None else requested
            if columns is not None:
                found[role] = tuple(
                    self._position(role, column, first, has_header, path) for column in columns
                )
        if not found and self.expects_labels and len(self.requested) == 2:
            found = _columns_by_content(rows if has_header else [first, *rows])
        for number, role in enumerate(self.requested):
            if role not in found:
                # A column with fitting contents, the column with the role's number, or the first free one.
                taken = {column for columns in found.values() for column in columns}
                fitting = self._fitting(role, set(range(len(first))) - taken, rows) if has_header else []
                free = next(
                    (index for index in (*fitting, number, *range(len(first))) if index not in taken),
                    len(first),
                )
                found[role] = (self._position(role, free, first, has_header, path),)
        return {role: found[role] for role in self.requested}

    def _fitting(self, role: str, free: Iterable[int], rows: Sequence[Sequence[str]]) -> list[int]:
        """Return the free columns whose contents fit a role: texts for the input, labels for the target."""
        if not self.expects_labels or not rows:
            return []
        if role == "input":
            return [int(column) for column in _text_columns(sorted(free), rows)]
        values = {number: [row[number] for row in rows] for number in sorted(free)}
        labels = [number for number in values if looks_like_labels(values[number])]
        return [number for number in labels if not _are_row_numbers(values[number])]

    def _unnamed(self, header: Sequence[str]) -> tuple[str, ...]:
        """Return the roles that are not requested and whose usual names the header does not have."""
        return tuple(
            role
            for role, columns in self.requested.items()
            if columns is None and self.name_in(role, header) is None
        )

    def _fit(
        self, reference: Reference, first: Sequence[str], rows: Sequence[Sequence[str]], path: str
    ) -> dict[str, tuple[Column, ...]]:
        """Find the training file's columns in a file of another split, or raise LayoutMismatch."""
        train, names = reference.layout, reference.layout.role_names()
        numbers = f"'{format_columns(train.columns)}'"
        options = options_hint(self.setting, columns=numbers, header="true")
        same_meaning = f"if the columns mean the same: {options}"

        def mismatch(problem: str, hint: str) -> LayoutMismatch:
            return reference.mismatch(problem, " | ".join(first), path=path, hint=hint)

        if train.width and len(first) != train.width and not self._requests(str):
            problem = f"{count(len(first), 'column')} instead of {train.width}"
            raise mismatch(problem, "give all files the same columns, or request columns by name")
        if names is None:
            if self.header is None and self.has_header(first, rows):
                raise mismatch("it has a header line", "add a header line to all files, or to none")
            return dict(train.columns)
        is_example = len(first) == train.width and looks_like_example(first, rows, train.columns)
        if tuple(first) != train.names and is_example:
            raise mismatch("its first line is an example", f"add the header line, {', '.join(train.names)}")
        if self._requests(int):
            if self.header is None and not self.has_header(first, rows):
                raise mismatch("its first line is not a known header line", same_meaning)
            return dict(train.columns)
        found: dict[str, tuple[Column, ...]] = {}
        for role, wanted in names.items():
            positions = [_position_of(name, first) for name in wanted]
            if None in positions:
                hint = same_meaning if train.width else "use the same column names"
                raise mismatch(f"no column {wanted[positions.index(None)]!r}", hint)
            found[role] = tuple(position for position in positions if position is not None)
        return found

    def _position(self, role: str, column: Column, first: Sequence[str], has_header: bool, path: str) -> int:
        if isinstance(column, str):
            if not has_header:
                message = f"the column {column!r} is requested by name, but header is false"
                hint = f"use numbers from 0, or {options_hint(self.setting, header='true')}"
                raise user_error(message, path=path, hint=hint)
            if column not in first:
                raise missing_column(column, first, path)
            return list(first).index(column)
        if not 0 <= column < len(first):
            message = f"no column {column}: the first line has {count(len(first), 'column')}, numbered from 0"
            hint = f"task.data.columns={{{role}: {len(first) - 1}}}, or another task.data.format"
            raise user_error(message, path=path, hint=hint)
        return column

    def _hint(self, layout: TableLayout, rows: Sequence[Sequence[str]]) -> str:
        """Return advice for a first line that looks like a header but is read as an example, or ""."""
        first = layout.first
        has_name = any(self.name_in(role, first) is not None for role in self.requested)
        target = layout.columns.get("target", ())
        is_known = not self.expects_labels or not target or not _is_new_label(first, rows, int(target[0]))
        if self.header is not None or (
            not has_name and is_known and not _is_word_above_numbers(first, rows[:HEADER_ROWS])
        ):
            return ""
        numbers = f"'{format_columns(layout.columns)}'"
        options = {"header": "true"} if self.is_requested else {"columns": numbers, "header": "true"}
        return f"if it is a header: {options_hint(TRAINING, **options)}"


def _position_of(name: str, header: Sequence[str]) -> int | None:
    """Return the index of a column name in the header: the exact name, or else ignoring case and spaces."""
    plain = [each.strip().casefold() for each in header]
    for names, wanted in ((list(header), name), (plain, name.strip().casefold())):
        if wanted in names:
            return names.index(wanted)
    return None


def _is_word_above_numbers(first: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Return True if a column is not a number in `first`, but is one, such as 0.5 or 0,5, in all `rows`."""
    return len(rows) > 1 and any(
        not is_number(word) and all(is_number(other.replace(",", ".")) for other in below)
        for word, *below in zip(first, *rows, strict=True)
    )


def looks_like_header(first: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Return True if no field of `first` occurs below, and one is a usual name or a word above numbers."""
    usual = {name for names in USUAL_NAMES.values() for name in names}
    recurs = any(word in below for word, *below in zip(first, *rows, strict=True))
    is_named = any(word.strip().casefold() in usual for word in first)
    return not recurs and (is_named or _is_word_above_numbers(first, rows))


def _is_new_label(first: Sequence[str], rows: Sequence[Sequence[str]], target: int) -> bool:
    """Return True if `rows` repeat a few labels, and the label of `first` is not one of them."""
    labels = {row[target] for row in rows}
    return len(rows) >= HEADER_ROWS and len(labels) <= len(rows) // 4 and first[target] not in labels


def looks_like_example(
    first: Sequence[str], rows: Sequence[Sequence[str]], columns: Mapping[str, tuple[Column, ...]]
) -> bool:
    """Return True if the target of `first` also occurs below it: then `first` is not a header."""
    return any(
        first[int(column)].strip() in {row[int(column)].strip() for row in rows}
        for column in columns.get("target", ())
    )


def _columns_by_content(rows: Sequence[Sequence[str]]) -> dict[str, tuple[Column, ...]]:
    """Return the first column of texts as input, and the first column of labels as target; {} if unclear."""
    if len(rows) < MIN_CONTENT_ROWS:
        return {}
    columns = list(zip(*rows, strict=True))
    labels = [number for number, column in enumerate(columns) if looks_like_labels(column)]
    texts = [number for number in range(len(columns)) if number not in labels]
    if len(labels) > 1:
        labels = [number for number in labels if not _are_row_numbers(columns[number])]
    labels = [number for number in labels if len(set(columns[number]) - {""}) > 1]
    return {"input": (texts[0],), "target": (labels[0],)} if texts and labels else {}


def _are_row_numbers(values: Sequence[str]) -> bool:
    return len(set(values)) == len(values) and all(value.strip().isdecimal() for value in values)


def _text_columns(columns: Iterable[Column], rows: Sequence[Sequence[str]]) -> tuple[Column, ...]:
    """Return those columns that contain texts: on average three words or more, and not labels."""
    found = []
    for column in columns:
        values = [row[int(column)] for row in rows]
        words = sum(len(value.split()) for value in values)
        if words >= 3 * len(values) > 0 and not looks_like_labels(values):
            found.append(column)
    return tuple(found)


def looks_like_labels(values: Sequence[str]) -> bool:
    """Return True if all values are numbers, or all are short and few are distinct. Ignores empty values."""
    distinct = set(values) - {""}
    if all(map(is_number, distinct)):
        return True
    is_short = all(len(value) <= 40 and len(value.split()) <= 3 for value in distinct)
    return is_short and len(distinct) <= max(2, len(values) // 3)


def join_columns(values: Sequence[Any], separator: str) -> Any:
    """Return the values of one role as one value: texts joined by the separator, lists as one list."""
    if len(values) == 1:
        return values[0]
    if all(isinstance(value, list) for value in values):
        return [item for value in values for item in value]
    for value in values:
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            return value  # not a text: the task reports it
    texts = list(map(str, values))
    return separator.join(texts) if any(map(str.strip, texts)) else ""


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def describe_row(row: object) -> str:
    """Return the type of a JSON row for an error message."""
    return "an object" if isinstance(row, dict) else "a list" if isinstance(row, list) else "one value"


def missing_column(name: str, present: Sequence[str], path: str) -> UserError:
    hint = "task.data.columns={input: NAME, target: NAME}"
    return user_error(f"no column {name!r}", path=path, value=name, allowed=present, hint=hint)


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


Delimiter = Literal["comma", "semicolon"]
DELIMITERS: dict[Delimiter, str] = {"comma": ",", "semicolon": ";"}
DELIMITER_LINES = 100
"""Number of lines at the beginning of a file from which the delimiter is detected."""
DELIMITER_CHARACTERS = 1 << 20

csv.field_size_limit(1 << 30)  # the default rejects long sequences


def find_delimiter(lines: Iterator[str], columns: ColumnSpec, *, path: str, option: str) -> Delimiter:
    """Return the delimiter of a CSV file, detected from its first lines; raise UserError if it is ambiguous.

    A first line `sep=;` declares the delimiter. A header with the expected names decides it. Otherwise it is
    the delimiter that splits all lines into the same number of columns, at least as many as the task needs.
    Commas or semicolons inside texts would vary in number. The error advises the user to set `option`.
    """
    sample = list(_beginning(lines))
    for name, sign in DELIMITERS.items():
        if sample and sample[0] == f"sep={sign}":
            return name
    is_whole = next(lines, None) is None
    tables = {name: _rows(sample, sign, is_whole) for name, sign in DELIMITERS.items()}
    named = [name for name, rows in tables.items() if rows and columns.is_named_in(rows[0])]
    if len(named) == 1:
        return named[0]
    widths = {name: _width(rows) for name, rows in tables.items()}
    is_comma = widths["comma"] >= columns.min_columns
    is_semicolon = widths["semicolon"] >= max(2, columns.min_columns)
    if is_comma and is_semicolon:
        both = ", ".join(f"{count(widths[name], 'column')} by {sign!r}" for name, sign in DELIMITERS.items())
        message = f"the delimiter is ambiguous: the first lines can be read both ways, {both}"
        raise user_error(message, path=path, hint=f"use {option}csv-comma or {option}csv-semicolon")
    return "semicolon" if is_semicolon else "comma"


def is_declaration(line: int, fields: Sequence[str]) -> bool:
    """Return True for the line `sep=;`, with which some programs declare the delimiter."""
    return line == 1 and list(fields) == ["sep=", ""]


def _beginning(lines: Iterator[str]) -> Iterator[str]:
    characters = 0
    for line in islice(lines, DELIMITER_LINES):
        yield line
        characters += len(line)
        if characters > DELIMITER_CHARACTERS:
            return


def _rows(lines: Sequence[str], sign: str, is_whole: bool) -> list[list[str]]:
    """Parse sample lines as CSV; return [] if they are invalid. An incomplete last row is left out."""
    reader = csv.reader((line + "\n" for line in lines), delimiter=sign, strict=True)
    rows = []
    try:
        for fields in reader:
            if fields:
                rows.append(fields)
    except csv.Error:
        if is_whole or reader.line_num < len(lines):
            return []
    return rows


def _width(rows: Sequence[Sequence[str]]) -> int:
    """Return the number of columns that all rows have; 0 if they differ."""
    widths = {len(row) for row in rows}
    return widths.pop() if len(widths) == 1 else 0
