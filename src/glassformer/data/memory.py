"""Data in memory: lists, arrays, tensors and DataFrames as plain Python values, and as examples of a task."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from glassformer.core.errors import UserError, user_error
from glassformer.data.columns import SEPARATOR
from glassformer.data.formats import Record, Stream
from glassformer.data.roles import is_number

Column = Iterable[Any]

NUMBER_TARGETS = 20
"""Number of distinct integer targets from which a note mentions regression, if each has few rows."""

ROWS_PER_LABEL = 20
"""Mean number of rows per distinct integer target from which they are labels without doubt."""

LABEL_REPEATS = 2
"""Minimum mean number of rows per distinct text target for which targets are labels, not translations."""

WHOLE_VALUES = 10
"""Maximum number of distinct whole floats for which a note mentions classification."""

SWAPPED_REPEATS = 10
"""Mean number of rows per distinct input from which inputs look like labels, if the targets hardly repeat."""


def plain_list(values: Any, path: str) -> list[Any]:
    """Convert a list, array, tensor, column or DataFrame to a list with one plain value per row.

    The columns of a DataFrame are joined as `task.data.columns` joins those of a file: see `_table_row`.
    """
    values = plain(values) if getattr(values, "ndim", None) == 0 else values  # an array of one value
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise user_error(
            "this is not a list or a column of values", path=path, value=values, hint="pass a list"
        )
    table = _table_rows(values)
    if table is not None:
        return [_table_row(row) for row in table]
    rows = (plain(value) for value in plain(values))
    return [[plain(item) for item in row] if isinstance(row, (list, tuple)) else row for row in rows]


def _table_rows(values: Any) -> list[tuple[Any, ...]] | None:
    """Return the rows of a DataFrame of pandas or polars; None for other data."""
    if hasattr(values, "columns"):
        if hasattr(values, "itertuples"):  # pandas
            return list(values.itertuples(index=False, name=None))
        if hasattr(values, "rows"):  # polars
            return list(values.rows())
    return None


def column_names(values: Any) -> list[str] | None:
    """Return the names of a DataFrame's columns, or the name of a column as the only one; None for others."""
    if hasattr(values, "columns"):
        return [str(name) for name in values.columns]
    name = getattr(values, "name", None) if hasattr(values, "to_list") else None  # pandas and polars
    return None if name in (None, "") else [str(name)]


def is_table(values: Any) -> bool:
    return hasattr(values, "columns")


def select_columns(values: Any, trained: Sequence[str] | None, path: str, *, is_text: bool) -> Any:
    """Return the columns of a DataFrame that a model was trained on, by name and in the order of training.

    `trained` are their names; None if the training data had none. A row of a pandas DataFrame becomes a table
    of one row. Other data are returned as they are. Raise UserError if the columns do not fit.
    """
    names = column_names(values)
    if trained and hasattr(values, "to_frame") and {*trained} <= {*map(str, getattr(values, "index", ()))}:
        values = values.to_frame().T  # a row: its index has the names of the columns
        names = column_names(values)
    if names is None or (names == trained and is_table(values)):
        return values
    if not is_table(values):
        if trained is not None and len(trained) > 1 and names[0] in trained:
            raise _other_columns(trained, names, path)
        return values
    if trained is None:
        if is_text and len(names) > 1:
            raise user_error(
                f"the model was trained on one text per row, and this table has the columns {names}",
                path=path,
                hint=f"pass the column of the texts, such as df[{names[0]!r}]",
            )
        return values
    if any(names.count(name) != 1 for name in trained):
        raise _other_columns(trained, names, path)
    return values[[values.columns[names.index(name)] for name in trained]]


def _other_columns(trained: Sequence[str], names: Sequence[str], path: str) -> UserError:
    hint = f"pass a table that has them: df[{list(trained)}]"
    if len(trained) == 1:
        hint = f"rename the column to {trained[0]!r}, or pass one column alone, such as df[{names[0]!r}]"
    return user_error(
        f"the model was trained on the columns {list(trained)}, and these data have {list(names)}",
        path=path,
        hint=hint,
    )


def describe_columns(names: Sequence[str], *, is_text: bool) -> str:
    """Return which columns of a table are read, and how several are joined."""
    shown = " + ".join(map(repr, names))
    joined = f" joined by {SEPARATOR!r}" if is_text else ", one token each"
    return f"inputs are read from {shown}" + (joined if len(names) > 1 else "")


def plain(value: Any) -> Any:
    """Convert an array, a tensor or a scalar of NumPy, PyTorch, pandas or polars to plain Python values."""
    for method in ("tolist", "to_list"):  # NumPy, PyTorch and pandas; polars
        if hasattr(value, method):
            return getattr(value, method)()
    return value


def is_missing(value: Any) -> bool:
    """Return True for None, NaN, infinity and the missing value of pandas."""
    is_number = isinstance(value, float)
    return value is None or (is_number and not math.isfinite(value)) or type(value).__name__ == "NAType"


def _table_row(row: tuple[Any, ...]) -> Any:
    """Return one text for cells of which any is a text, a list of tokens for others, None if one is missing.

    A single cell is returned as it is.
    """
    cells = [plain(cell) for cell in row]
    if len(cells) == 1:
        return cells[0]
    if any(map(is_missing, cells)):
        return None
    return SEPARATOR.join(map(str, cells)) if any(isinstance(cell, str) for cell in cells) else cells


class MemoryRows:
    """Validated inputs and targets of one split, as plain Python values."""

    def __init__(self, name: str, inputs: Column, targets: Column | None) -> None:
        prefix = f"{name}." if name else ""
        self.warnings = _compare_indexes(inputs, targets, prefix)
        """Warnings about inputs and targets that may not belong together."""
        self.columns = column_names(inputs)
        """Names of the columns of the inputs; None if they have none."""
        self.is_table = is_table(inputs)
        self.inputs = _values(inputs, f"{prefix}inputs")
        self.targets = None if targets is None else _values(targets, f"{prefix}targets")
        if not self.inputs:
            raise user_error("no examples", path=f"{prefix}inputs", hint="pass at least a few examples")
        if self.targets is not None and len(self.targets) != len(self.inputs):
            raise user_error(
                f"there are {len(self.inputs):,} inputs and {len(self.targets):,} targets",
                path=f"{prefix}targets",
                hint="pass one target per input",
            )
        self.warnings += self._compare_columns(inputs, prefix)
        self.is_text = isinstance(self.inputs[0], str)
        if self.is_text:
            self._reject_list_targets(prefix)
        for index, value in enumerate(self.inputs):
            if isinstance(value, str) != self.is_text or not isinstance(value, (str, list)):
                raise user_error(
                    "inputs must all be texts, or all be sequences of tokens",
                    path=f"{prefix}inputs[{index}]",
                    value=value,
                    hint="pass texts only, or sequences of tokens only" + self._swapped_hint(),
                )

    def __len__(self) -> int:
        return len(self.inputs)

    def _reject_list_targets(self, prefix: str) -> None:
        """Raise a UserError if the target of a text is a list."""
        for index, target in enumerate(self.targets or ()):
            if isinstance(target, list):
                raise user_error(
                    "the target of a text is a list, but a text has one label",
                    path=f"{prefix}targets[{index}]",
                    value=target,
                    hint="for an array of one column: targets.ravel(); for one label per token, pass inputs"
                    " that are lists of tokens; for several labels per text, train one model per label"
                    + self._swapped_hint(),
                )

    def _is_swapped(self) -> bool:
        """Return True if the inputs repeat like labels, and the targets are texts or lists that do not."""
        targets = self.targets or []
        distinct = len({repr(value) for value in self.inputs})
        if not all(isinstance(target, (str, list)) for target in targets):
            return False
        return distinct * SWAPPED_REPEATS <= len(self) < LABEL_REPEATS * len({*map(repr, targets)})

    def _swapped_hint(self) -> str:
        return "; inputs and targets may be swapped" if self._is_swapped() else ""

    def reject_swapped(self) -> None:
        """Raise a UserError if inputs and targets look swapped."""
        if self._is_swapped():
            distinct = len({*map(repr, self.targets or ())})
            raise user_error(
                f"the inputs have {len(set(self.inputs)):,} distinct values and the targets {distinct:,}:"
                " inputs and targets may be swapped",
                path="inputs",
                hint='swap them, or pass task="translation" to generate the targets',
            )

    def reject_numeric_texts(self) -> None:
        """Raise a UserError if the targets are numbers written as text that hardly repeat."""
        targets = self.targets or []
        is_numeric = all(isinstance(target, str) and is_number(target) for target in targets)
        distinct = len(set(targets)) if is_numeric else 0
        if is_numeric and len(targets) < LABEL_REPEATS * distinct:
            raise user_error(
                f"the targets are texts, but all are numbers, with {distinct:,} distinct values",
                path="targets",
                value=targets[0],
                hint="pass floats, targets=[float(target) for target in targets], or choose task=",
            )

    def reject_single_label(self) -> None:
        """Raise a UserError if all labels are equal."""
        targets = self.targets or []
        if len(set(map(str, targets))) == 1:
            raise user_error(
                f"all {len(targets):,} targets are {targets[0]!r}: nothing to classify",
                path="targets",
                hint="is your subset sorted by label? shuffle the rows before you take a part of them",
            )

    def _compare_columns(self, inputs: Column, prefix: str) -> list[str]:
        """Return a warning for a column of the inputs that determines the targets.

        Raise a UserError if a column equals the targets: the model would read its answer.
        """
        table = _table_rows(inputs)
        columns: Sequence[Any] = getattr(inputs, "columns", ())
        if table is None or len(columns) < 2 or self.targets is None:
            return []
        targets, warnings = list(map(str, self.targets)), []
        classes = len(set(targets))
        for name, cells in zip(columns, zip(*table, strict=True), strict=True):
            values = [str(plain(cell)) for cell in cells]
            if values == targets:
                others = [str(other) for other in columns if other != name]
                raise user_error(
                    f"the column {str(name)!r} equals the targets, so that the model would read its answer",
                    path=f"{prefix}inputs",
                    hint=f"leave it out: inputs=df[{others}]",
                )
            is_one_to_one = len(set(zip(values, targets, strict=True))) == classes == len(set(values))
            if is_one_to_one and 1 < classes <= len(targets) / LABEL_REPEATS:
                warnings.append(
                    f"{prefix}inputs: the column {str(name)!r} determines the targets one to one; if it is"
                    " made from them, leave it out"
                )
        return warnings

    def reject_texts_as_tokens(self) -> None:
        """Raise a UserError if the inputs look like rows of several text columns instead of tokens."""
        width = len(self.inputs[0])
        symbols = [symbol for row in self.inputs for symbol in row]
        with_spaces = sum(isinstance(symbol, str) and " " in symbol.strip() for symbol in symbols)
        if all(len(row) == width for row in self.inputs) and 2 * with_spaces > len(symbols):
            raise user_error(
                f"each input is a sequence of {width:,} texts, and each text would be read as one token",
                path="inputs[0]",
                value=self.inputs[0],
                hint='join the columns: inputs=[" | ".join(row) for row in rows], or pass a DataFrame; if'
                ' these are tokens, pass task="sequence-classification" or another task',
            )

    def has_many_integers(self) -> bool:
        """Return True if the targets are integers that may be numbers instead of labels."""
        targets = self.targets or []
        if not all(isinstance(target, int) and not isinstance(target, bool) for target in targets):
            return False
        distinct = len(set(targets))
        return distinct > NUMBER_TARGETS and len(targets) < ROWS_PER_LABEL * distinct

    def type_warnings(self, task: str) -> list[str]:
        """Return a warning if an inferred task may have taken the targets as something that they are not."""
        if self.targets and all(isinstance(target, list) for target in self.targets):
            return self._list_warnings()
        if task == "classification" and self._may_be_tags():
            return [
                "each target has as many words as its input, taken as one label; if they are labels of the"
                " words, pass lists: inputs=[text.split() for text in inputs], and the targets likewise"
            ]
        if self.has_many_integers():
            values, taken, other = "integers with", "labels; if they are numbers", "regression"
        elif self._has_whole_floats():
            values, taken, other = "whole floats with only", "numbers; if they are labels", "classification"
        else:
            return []
        distinct, name = len(set(self.targets or ())), task.rpartition("-")[0]
        instead = f"{name}-{other}" if name else other
        return [
            f'the targets are {values} {distinct:,} distinct values, taken as {taken}, pass task="{instead}"'
        ]

    def _list_warnings(self) -> list[str]:
        """Return a warning if the targets are lists that may mean one label each."""
        targets = self.targets or []
        if all(len(target) == 1 for target in targets) and any(len(row) > 1 for row in self.inputs):
            return ["each target is a list of one value, taken as a sequence; for labels, targets.ravel()"]
        one_hot = [*"0" * (len(targets[0]) - 1), "1"]
        if len(one_hot) > 1 and all(sorted(map(str, target)) == one_hot for target in targets):
            return ["the targets look one-hot, taken as sequences; for labels, pass targets.argmax(1)"]
        return []

    def _may_be_tags(self) -> bool:
        """Return True if each target is a text with as many words as its input, and most have several."""
        targets = self.targets or []
        if not self.is_text or not all(isinstance(target, str) for target in targets):
            return False
        lengths = [len(target.split()) for target in targets]
        return sum(length > 1 for length in lengths) * 2 > len(lengths) and lengths == [
            len(text.split()) for text in self.inputs
        ]

    def hints(self, task: str) -> list[str]:
        """Return a note if the labels of a token classifier may be sequences to generate."""
        if task != "token-classification":
            return []
        sides = (self.inputs, self.targets or ())
        symbols, labels = ({str(each) for row in rows for each in row} for rows in sides)
        if symbols != labels:
            return []
        return [
            "the targets have the tokens of the inputs, taken as one label per token; if the output is a"
            ' sequence to generate, pass task="sequence-to-sequence"'
        ]

    def contradictions(self) -> list[str]:
        """Return a warning if equal inputs have different labels."""
        labels: dict[str, set[str]] = {}
        keys = list(map(repr, self.inputs))
        for key, target in zip(keys, self.targets or (), strict=True):
            labels.setdefault(key, set()).add(str(target))
        found = sum(len(labels[key]) > 1 for key in keys)
        message = f"inputs: {found:,} of {len(self):,} rows have the input of a row with another label"
        return [message] if found else []

    def _has_whole_floats(self) -> bool:
        """Return True if the targets are floats such as 0.0 and 1.0 that may be labels."""
        targets = self.targets or []
        if not targets or not all(isinstance(target, float) and target.is_integer() for target in targets):
            return False
        return len(set(targets)) <= WHOLE_VALUES and len(targets) >= LABEL_REPEATS * len(set(targets))

    def json_lines(self) -> bytes:
        """Return the examples as the content of a file, one JSON object per line."""
        targets: Sequence[Any] = [None] * len(self) if self.targets is None else self.targets
        lines = [
            json.dumps({"input": value} if self.targets is None else {"input": value, "target": target})
            for value, target in zip(self.inputs, targets, strict=True)
        ]
        return ("\n".join(lines) + "\n").encode()


def _values(column: Column, path: str) -> list[Any]:
    """Convert a list, array, tensor, column or DataFrame to a list of texts, numbers and token lists."""
    return [_value(value, f"{path}[{index}]") for index, value in enumerate(plain_list(column, path))]


def _compare_indexes(inputs: Any, targets: Any, prefix: str) -> list[str]:
    """Return a warning if two pandas columns have different indexes, because rows are paired by position.

    Raise a UserError if one index is the other in another order.
    """
    indexes = [getattr(side, "index", None) for side in (inputs, targets)]
    first, second = (index if hasattr(index, "equals") else None for index in indexes)
    if first is None or second is None or first.equals(second):
        return []
    if len(first) == len(second) and sorted(map(str, first)) == sorted(map(str, second)):
        raise user_error(
            "inputs and targets have the same index in different orders, and rows are paired by position",
            path=f"{prefix}targets",
            hint="order them alike: targets=targets.loc[inputs.index]; or pass targets.to_list()",
        )
    return [f"{prefix}inputs and {prefix}targets have different indexes; rows are paired by position"]


def reject_file(values: Any, path: str, hint: str) -> None:
    """Raise a UserError with this hint if data in memory are the name of an existing file instead."""
    if isinstance(values, (str, Path)) and len(str(values)) < 1000 and Path(values).is_file():
        raise user_error("this is a file, not data", path=path, value=str(values), hint=hint)


def _value(value: Any, path: str) -> Any:
    if isinstance(value, float) and math.isinf(value):
        raise user_error("the value is infinite", path=path, value=value, hint="drop the row, or correct it")
    if is_missing(value):
        raise user_error("a value is missing", path=path, value=value, hint="drop the row, or fill it in")
    if isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, list) and all(isinstance(item, (str, int)) for item in value):
        return value
    hint = "convert it: to a text with str(value), to a number with float(value)"
    if isinstance(value, (bytes, bytearray)):
        hint = "decode it: value.decode()"
    elif isinstance(value, list) and all(isinstance(item, float) and item.is_integer() for item in value):
        hint = "tokens are integers or texts: array.astype(int)"
    elif isinstance(value, list):
        hint = "tokens are integers or texts; for several target values per row, train one run per value"
    message = "this is not a text, a number or a sequence of tokens"
    raise user_error(message, path=path, value=value, hint=hint)


class MemoryStream(Stream):
    """Stream of examples in memory, with the roles `input` and, if there are targets, `target`."""

    def __init__(self, rows: MemoryRows) -> None:
        super().__init__([])
        self.rows = rows

    @property
    def name(self) -> str:
        return "inputs"

    def location(self, number: int) -> str:
        return f"inputs[{number - 1}]"

    def records(self) -> Iterator[Record]:
        targets = self.rows.targets
        for index, value in enumerate(self.rows.inputs):
            target = {} if targets is None else {"target": targets[index]}
            yield Record({"input": value, **target}, index + 1)
