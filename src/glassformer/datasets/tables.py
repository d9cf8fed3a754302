"""Reader of the word tables: TSV files beside the modules, one typed entry per line.

Entries keep the order of their file. A changed order changes the dataset, because words are drawn by index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import EnumType
from importlib.resources import files
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

Entry = TypeVar("Entry")

_YES_NO = {"yes": True, "no": False}


def read_table(
    name: str, entry: type[Entry], parse: Mapping[str, Callable[[str], object]] | None = None
) -> list[Entry]:
    """Return the rows of a TSV file as instances of the dataclass `entry`, whose fields are the columns.

    The type of a field determines how its cells are converted: str, bool (`yes` or `no`), Literal, Enum, or
    tuple of words. `parse` maps a column to another conversion. Cells may be empty, but not missing.
    """
    header, *lines = (files("glassformer.datasets") / name).read_text(encoding="utf-8").splitlines()
    columns = [field.name for field in fields(entry)]  # type: ignore[arg-type]  # a dataclass
    if header.split("\t") != columns:
        raise ValueError(f"{name}:1: the header must be {columns}, not {header.split()}")
    types = get_type_hints(entry)
    entries = []
    for number, line in enumerate(lines, 2):
        cells = line.split("\t")
        if len(cells) != len(columns):
            raise ValueError(f"{name}:{number}: {len(cells)} cells in a table of {len(columns)} columns")
        values = {}
        for column, cell in zip(columns, cells, strict=True):
            convert = (parse or {}).get(column) or _converter(types[column])
            try:
                values[column] = convert(cell)
            except (KeyError, ValueError) as error:
                raise ValueError(f"{name}:{number}: {column} cannot be {cell!r}: {error}") from error
        entries.append(entry(**values))
    return entries


def _converter(kind: Any) -> Callable[[str], object]:
    if kind is bool:
        return _YES_NO.__getitem__
    if isinstance(kind, EnumType):
        return kind
    if get_origin(kind) is Literal:
        return {choice: choice for choice in get_args(kind)}.__getitem__
    if get_origin(kind) is tuple:
        return lambda cell: tuple(cell.split())
    return str
