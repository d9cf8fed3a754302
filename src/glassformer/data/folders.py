"""A folder of classes as a stream: a file a class with an example a line, or a folder a class with a file
an example. The name of the file, without its ending, or of the folder is the label.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from glassformer.core.errors import user_error
from glassformer.data.streams import Record, Stream
from glassformer.data.text_files import TextFile

CLASSES_REMEDY = "task.data.classes={NAME: FILE OR FOLDER, NAME: FILE OR FOLDER}"


@dataclass(frozen=True)
class _Part:
    """A file with the examples, or the one example, of a class."""

    label: str
    file: TextFile
    is_lines: bool

    def texts(self) -> Iterator[str]:
        return self.file.lines() if self.is_lines else iter([self.file.whole().removesuffix("\n")])


class ClassFolder(Stream):
    """The first role is the text, the second the label. Where only texts are asked for, classes are none."""

    def __init__(self, folder: TextFile, roles: Sequence[str], classes: Mapping[str, str]) -> None:
        if not folder.path.is_dir():
            problem = "is a file, not a folder" if folder.path.exists() else "no such folder"
            raise user_error(problem, path=folder.where, hint="a folder with a file or folder a class")
        if len(roles) > 2:
            raise user_error(
                f"a folder of classes has texts and labels, and {len(roles)} columns are needed",
                path=folder.where,
                hint="another task.data.format",
            )
        self.folder = folder
        self.roles = list(roles)
        found = _named(folder, classes) if classes else _found(folder, with_labels=len(roles) == 2)
        self.parts = [part for label, path in found for part in _parts(label, path, folder)]
        super().__init__([part.file for part in self.parts])

    @property
    def name(self) -> str:
        return str(self.folder.path)

    def records(self) -> Iterator[Record]:
        number = 0
        for part in self.parts:
            for text in part.texts():
                number += 1
                yield Record(dict(zip(self.roles, (text, part.label), strict=False)), number)

    def place(self, number: int) -> str:
        index = bisect_right(self._first_numbers, number) - 1
        part = self.parts[index]
        line = f", line {number - self._first_numbers[index] + 1}" if part.is_lines else ""
        return f"{part.file.path}{line}"

    @cached_property
    def _first_numbers(self) -> list[int]:
        """Examples are counted through the files; which one each begins with."""
        numbers = [1]
        for part in self.parts:
            numbers.append(numbers[-1] + (sum(1 for _ in part.texts()) if part.is_lines else 1))
        return numbers[:-1]


def _entries(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))


def _found(folder: TextFile, *, with_labels: bool) -> list[tuple[str, Path]]:
    entries = _entries(folder.path)
    if len({entry.is_dir() for entry in entries}) > 1:
        raise user_error(
            "holds files and folders: which are classes?", path=folder.where, hint=CLASSES_REMEDY
        )
    found = [(_label(entry), entry) for entry in entries]
    if not with_labels and found:
        return found
    if len(found) < 2:
        problem = "holds one class only" if found else "the folder is empty"
        raise user_error(problem, path=folder.where, hint="a file or a folder for each class")
    labels = [label for label, _ in found]
    twice = [label for label in labels if labels.count(label) > 1]
    if twice:
        raise user_error(
            f"two files are named {twice[0]!r}, but for their endings",
            path=folder.where,
            hint=CLASSES_REMEDY,
        )
    return found


def _label(entry: Path) -> str:
    return entry.name if entry.is_dir() else Path(entry.name.removesuffix(".gz")).stem


def _named(folder: TextFile, classes: Mapping[str, str]) -> list[tuple[str, Path]]:
    present = [entry.name for entry in _entries(folder.path)]
    for label, name in classes.items():
        if not (folder.path / name).exists():
            place = f"task.data.classes.{label}: {folder.path}"
            raise user_error("no such file or folder in it", path=place, value=name, allowed=present)
    return [(label, folder.path / name) for label, name in classes.items()]


def _parts(label: str, path: Path, folder: TextFile) -> list[_Part]:
    if not path.is_dir():
        return [_Part(label, replace(folder, path=path), is_lines=True)]
    files = _entries(path)
    inner = [file.name for file in files if file.is_dir()]
    if inner or not files:
        problem = f"holds another folder, {inner[0]!r}" if inner else "the folder is empty"
        raise user_error(
            problem, path=f"{folder.setting}: {path}", hint="a file an example, and nothing else"
        )
    return [_Part(label, replace(folder, path=file), is_lines=False) for file in files]
