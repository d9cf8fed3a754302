"""Columns of a table: detects the delimiter, the header, and which columns are input and target."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from glassformer.core.errors import UserError, shorten, user_error
from glassformer.data.roles import (
    CLASSIFIER_NAMES,
    MIN_CONTENT_ROWS,
    USUAL_NAMES,
    Choice,
    ColumnContents,
    candidates,
    choose_roles,
    column_contents,
    comma_number,
    is_number,
    text_columns,
)

Column = str | int
"""Name of a column, or its number from 0."""
Columns = Mapping[str, tuple[Column, ...] | None]
"""Columns of each role, such as `input` and `target`; None if they are to be detected."""

LABEL_ROLES = {"input": "text", "target": "label"}
"""Roles of a task with one label per text, each with its default column name."""
PAIR_ROLES = {"input": "source", "target": "target"}
"""Roles of a task that generates one text from another."""
TEXT_ROLES = {"input": "text"}
"""Role of a task that has texts alone."""

SAMPLE_ROWS = 1000
"""Number of rows below the first that decide which columns are labels, and whether there is a header."""
SEPARATOR = " | "
"""Default text between the columns that are joined into one input. It can be typed in one line."""
TRAINING = "task.data"
"""Setting that makes `options_hint` return options for training."""
MAX_NAMES = 8
"""Maximum number of ignored columns that a description lists."""
HEADER_ROWS = 20
"""Minimum number of rows that show that the first line has another label than all of them."""
DELIMITER_NAMES = {"tab": "tabs", "comma": "commas", "semicolon": "semicolons", "pipe": "pipes (|)"}


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
    """Delimiter of a table: `tab`, `comma`, `semicolon` or `pipe`; empty for JSON."""
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
    candidates: Mapping[str, Mapping[Column, str]] = field(default_factory=dict)
    """Columns that may have a role, with an example of each, for the roles with more than one candidate."""

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
        return self._columns_option({"input": (*self.columns["input"], *self.more_text)})

    def warnings(self) -> list[str]:
        """Return a warning for each role that another column may have, with the option that chooses it."""
        return [self._warning(role, examples) for role, examples in self.candidates.items()]

    def _warning(self, role: str, examples: Mapping[Column, str]) -> str:
        shown = ", ".join(f"{self.name(column)} (such as {text!r})" for column, text in examples.items())
        chosen = self.columns[role][0]
        other = next(column for column in examples if column != chosen)
        option = options_hint(TRAINING, columns=f"'{self._columns_option({role: (other,)})}'")
        choices = f"{self.name(chosen)} is used; to use {self.name(other)}: {option}"
        if role == "input" and self.more_text:
            choices += f"; to join all texts: {options_hint(TRAINING, columns=repr(self.option()))}"
        return f"{len(examples)} columns may be the {role}: {shown}; {choices}"

    def chosen_columns(self) -> str:
        """Return the `task.data.columns` value that requests the columns that are used."""
        return self._columns_option({})

    def _columns_option(self, changed: Mapping[str, tuple[Column, ...]]) -> str:
        wanted = {**self.columns, **changed}
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
        f"{role}: {_yaml(each[0])}" if len(each) == 1 else f"{role}: [{', '.join(map(_yaml, each))}]"
        for role, each in columns.items()
    )
    return f"{{{', '.join(parts)}}}"


def _yaml(column: Column) -> str:
    """Return a column as YAML: a name in quotes, if it would not be read as text without them."""
    if isinstance(column, int) or re.fullmatch(
        r"(?!(y|n|yes|no|on|off|true|false|null)$)[^\W\d][\w-]*", column, re.I
    ):
        return str(column)
    return json.dumps(column, ensure_ascii=False)


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
        names = CLASSIFIER_NAMES if self.expects_labels else USUAL_NAMES
        return (self.default_names[role].casefold(), *names.get(role, ()))

    def name_in(self, role: str, present: Iterable[str]) -> str | None:
        """Return the name in `present` for a role: the task's default name or a usual one; None if absent."""
        plain: dict[str, str] = {}
        for name in present:
            plain.setdefault(name.strip().casefold(), name)
        return next((plain[name] for name in self.usual_names(role) if name in plain), None)

    def object_layout(self, row: object, path: str, rows: Iterable[object] = ()) -> TableLayout:
        """Return the layout of JSON rows. `row` is the first of them, `rows` are the first `SAMPLE_ROWS`."""
        reference = self.reference
        width = len(row) if isinstance(row, list) else 0
        names = tuple(row) if isinstance(row, dict) else ()
        if reference is not None:
            columns = self._columns_of_reference(reference, row, path)
            return TableLayout(columns, names, width, separator=self.separator)
        if not names:
            columns = {role: each or (self.default_names[role],) for role, each in self.requested.items()}
            return TableLayout(columns, names, width, separator=self.separator)
        chosen: dict[str, Choice] = {}
        contents: list[ColumnContents] = []
        if self.expects_labels and not self.is_requested:
            contents = column_contents([each for each in rows if isinstance(each, dict)], names)
            requested = {
                role: [names.index(column) for column in each if column in names]
                for role, each in self.requested.items()
                if each is not None
            }
            chosen = choose_roles(names, contents, requested)
        columns = {}
        for role, each in self.requested.items():
            if role in chosen:
                name = names[chosen[role].column] if chosen[role].is_named else None
            else:
                name = self.name_in(role, names)
            found = each if each is not None else None if name is None else (name,)
            if found is None:
                raise self._no_usual_name(role, names, chosen, path)
            columns[role] = found
        examples = {
            role: {names[int(column)]: text for column, text in each.items()}
            for role, each in candidates(chosen, contents).items()
        }
        return TableLayout(columns, names, width, separator=self.separator, candidates=examples)

    def _no_usual_name(
        self, role: str, names: Sequence[str], chosen: Mapping[str, Choice], path: str
    ) -> UserError:
        """Return an error with an option that requests columns, filled in as far as they are known."""
        known = {
            each: columns or ((names[chosen[each].column],) if each in chosen else ("NAME",))
            for each, columns in self.requested.items()
        }
        free = [name for name in names if (name,) not in known.values()]
        if len(free) == 1 and list(known.values()).count(("NAME",)) == 1:
            known = {each: (free[0],) if columns == ("NAME",) else columns for each, columns in known.items()}
        listed = shorten(", ".join(names), 80)
        hint = options_hint(self.setting, columns=f"'{format_columns(known)}'")
        return user_error(
            f"no column has a usual name for the {role}; its columns are: {listed}", path=path, hint=hint
        )

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

        Two columns may be a pair of words, such as `text, texte`. They are a header only if labels repeat or
        are numbers.
        """
        roles = [role for role in self.requested if self.name_in(role, first) is not None]
        if not roles or len(self.requested) < 2 or not rows:
            return False
        below = [set(column) for column in zip(*rows, strict=True)]
        if any(name in values for name, values in zip(first, below, strict=True)):
            return False
        has_labels = self.expects_labels and any(len(values) <= len(rows) // 2 for values in below)
        is_enough = len(rows) >= MIN_CONTENT_ROWS
        has_numbers = self.expects_labels and is_enough and _is_word_above_numbers(first, rows[:HEADER_ROWS])
        return has_labels or has_numbers or ("target" in roles and len(first) > 2)

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
        contents = column_contents(
            rows if len(rows) >= MIN_CONTENT_ROWS else [first, *rows], range(len(first))
        )
        chosen: dict[str, Choice] = {}
        if self.reference is None:
            has_header = self.has_header(first, rows)
            requested = {
                role: tuple(self._position(role, column, first, has_header, path) for column in columns)
                for role, columns in self.requested.items()
                if columns is not None
            }
            if self.expects_labels:
                chosen = choose_roles(first if has_header else (), contents, requested)
            columns = self._detect(first, requested, chosen, has_header, path)
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
            found = replace(found, unnamed=self._unnamed(first, chosen))
        if self.expects_labels:
            more_text = text_columns(map(int, found.ignored), contents)
            found = replace(found, more_text=tuple(more_text), candidates=candidates(chosen, contents))
        return found

    def _detect(
        self,
        first: Sequence[str],
        requested: Mapping[str, tuple[int, ...]],
        chosen: Mapping[str, Choice],
        has_header: bool,
        path: str,
    ) -> dict[str, tuple[Column, ...]]:
        """Return the columns of each role in a training file.

        The first that applies decides: the user's request, names and contents, order of columns.
        """
        found: dict[str, tuple[Column, ...]] = dict(requested)
        for role in self.requested:
            name = self.name_in(role, first) if has_header and not self.expects_labels else None
            if role in chosen and chosen[role].is_named:
                name = first[chosen[role].column]
            if role in found:
                continue
            if name is not None:
                found[role] = (self._position(role, name, first, has_header, path),)
            elif role in chosen:
                found[role] = (chosen[role].column,)
        for number, role in enumerate(self.requested):
            if role not in found:
                # The column with the role's number, or the first free one.
                taken = {column for columns in found.values() for column in columns}
                free = next(
                    (index for index in (number, *range(len(first))) if index not in taken), len(first)
                )
                found[role] = (self._position(role, free, first, has_header, path),)
        return {role: found[role] for role in self.requested}

    def _unnamed(self, header: Sequence[str], chosen: Mapping[str, Choice]) -> tuple[str, ...]:
        """Return the roles that are not requested, and whose columns were not found by usual names."""

        def is_named(role: str) -> bool:
            if self.expects_labels:
                return role in chosen and chosen[role].is_named
            return self.name_in(role, header) is not None

        return tuple(
            role for role, columns in self.requested.items() if columns is None and not is_named(role)
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
            if list(first).count(column) > 1:
                raise self._repeated(role, column, first, path)
            return list(first).index(column)
        if not 0 <= column < len(first):
            message = f"no column {column}: the first line has {count(len(first), 'column')}, numbered from 0"
            hint = f"task.data.columns={{{role}: {len(first) - 1}}}, or another task.data.format"
            raise user_error(message, path=path, hint=hint)
        return column

    def _repeated(self, role: str, name: str, header: Sequence[str], path: str) -> UserError:
        """Return an error: several columns have the name that decides a role."""
        numbers = [number for number, each in enumerate(header) if each == name]
        options = options_hint(self.setting, columns=f"'{{{role}: {numbers[0]}}}'", header="true")
        listed = " and ".join(map(str, numbers))
        message = f"{len(numbers)} columns have the name {name!r}: {listed}, numbered from 0"
        return user_error(message, path=path, hint=f"rename one of them, or choose by number: {options}")

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
        not is_number(word) and all(is_number(other) or comma_number(other) for other in below)
        for word, *below in zip(first, *rows, strict=True)
    )


def looks_like_header(first: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Return True if no field of `first` occurs below, and one is a usual name or a word above numbers."""
    usual = {name for table in (USUAL_NAMES, CLASSIFIER_NAMES) for names in table.values() for name in names}
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


def describe_row(row: object) -> str:
    """Return the type of a JSON row for an error message."""
    return "an object" if isinstance(row, dict) else "a list" if isinstance(row, list) else "one value"


def missing_column(name: str, present: Sequence[str], path: str) -> UserError:
    hint = "task.data.columns={input: NAME, target: NAME}"
    return user_error(f"no column {name!r}", path=path, value=name, allowed=present, hint=hint)


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
