"""JSON as a stream of rows: an object or a list a line, an array of them, or one object of parallel lists."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from glassformer.core.errors import user_error
from glassformer.data.columns import Column, Wanted, count, missing_column
from glassformer.data.json_arrays import ArrayRows, NotJson
from glassformer.data.streams import Record, Stream
from glassformer.data.text_files import TextFile


class JsonLines(Stream):
    """An object or a list a line."""

    def __init__(self, source: TextFile, wanted: Wanted) -> None:
        super().__init__([source])
        self.wanted = wanted

    def rows(self) -> Iterator[tuple[int, Any]]:
        for number, line in enumerate(self.sources[0].lines(), start=1):
            if line.strip():
                yield number, _parse_json(line, self.place(number))

    def records(self) -> Iterator[Record]:
        columns: dict[str, Column] = {}
        for number, row in self.rows():
            columns = columns or self.wanted.names(row)
            where = self.place(number)
            yield Record({role: pick(row, column, where) for role, column in columns.items()}, number)

    @property
    def notes(self) -> tuple[str, ...]:
        _, first = next(self.rows(), (0, {}))
        return _told_names(self.name, self.wanted, first)


class JsonDocument(Stream):
    """An array of objects or lists, or one object of parallel lists; only the latter is held as a whole."""

    unit = "row"

    def __init__(self, source: TextFile, wanted: Wanted) -> None:
        super().__init__([source])
        self.wanted = wanted

    def records(self) -> Iterator[Record]:
        return self._of_array() if self._is_array() else self._of_lists()

    @property
    def notes(self) -> tuple[str, ...]:
        first = next(self._rows(), {}) if self._is_array() else self._lists()
        return _told_names(self.name, self.wanted, first)

    def _is_array(self) -> bool:
        begins = (block.lstrip() for block in self.sources[0].blocks())
        return next(filter(None, begins), "").startswith("[")

    def _rows(self) -> Iterator[Any]:
        try:
            yield from ArrayRows(self.sources[0].blocks())
        except NotJson as error:
            raise user_error(
                f"{error.problem} (column {error.column:,})",
                path=f"{self.name}, line {error.line}",
                hint='[{"input": …, "target": …}, …]; task.data.format=jsonl, if it is one row a line',
            ) from None

    def _of_array(self) -> Iterator[Record]:
        columns: dict[str, Column] = {}
        for number, row in enumerate(self._rows(), start=1):
            columns = columns or self.wanted.names(row)
            where = self.place(number)
            yield Record({role: pick(row, column, where) for role, column in columns.items()}, number)

    def _of_lists(self) -> Iterator[Record]:
        tree = self._lists()
        columns = self.wanted.names(tree)
        lists = {role: pick(tree, column, self.name) for role, column in columns.items()}
        lengths = {}
        for role, column in columns.items():
            if not isinstance(lists[role], list):
                raise user_error(
                    f"{column!r} is not a list",
                    path=self.name,
                    hint="parallel lists; task.data.format=jsonl, if it is one object a line",
                )
            lengths[column] = len(lists[role])
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{column} {length:,}" for column, length in lengths.items())
            raise user_error(f"the lists differ in length: {told}", path=self.name, hint="two parallel lists")
        for number, values in enumerate(zip(*lists.values(), strict=True), start=1):
            yield Record(dict(zip(lists, values, strict=True)), number)

    def _lists(self) -> dict[str, Any]:
        tree = _parse_json("".join(self.sources[0].blocks()), self.name)
        if not isinstance(tree, dict):
            raise user_error(
                "an array of objects, or an object of parallel lists, belongs here",
                path=self.name,
                hint='[{"input": …, "target": …}, …], or task.data.format=jsonl for one object a line',
            )
        return tree


def _told_names(name: str, wanted: Wanted, first: Any) -> tuple[str, ...]:
    """Nothing, if it was read by the names that it was to be read by."""
    names = wanted.names(first)
    guessed = (role for role, column in wanted.asked.items() if column is None)
    if all(names[role] == wanted.default_names[role] for role in guessed):
        return ()
    return (f"{name} was read with {', '.join(f'{role} = {column!r}' for role, column in names.items())}",)


def pick(row: Any, column: Column, where: str) -> Any:
    if isinstance(row, dict) and isinstance(column, str):
        if column not in row:
            raise missing_column(column, list(row), where)
        return row[column]
    if isinstance(row, list) and isinstance(column, int):
        if not 0 <= column < len(row):
            raise user_error(
                f"no column {column}: the list has {count(len(row), 'value')}, numbered from 0",
                path=where,
                hint="equally many on each line",
            )
        return row[column]
    given = "an object" if isinstance(row, dict) else "a list" if isinstance(row, list) else "one value"
    raise user_error(
        f"{given} stands here, and the column {column!r} is asked for",
        path=where,
        hint="names for objects {...}, numbers for lists [...]",
    )


def _parse_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        at = f"{where}, line {error.lineno}" if "\n" in text else where
        follows = error.msg == "Extra data"
        raise user_error(
            f"not valid JSON: {error.msg} (column {error.colno})",
            path=at,
            hint="task.data.format=jsonl, if it is one object a line" if follows else "check it there",
        ) from None
    except (RecursionError, ValueError):
        raise user_error("nested too deeply, or too long a number", path=where, hint="simplify it") from None
