"""Examples read one at a time from a user's files: what each format makes of its lines.

A stream is read again with each `iter()`, and holds no more than one example at a time. What the values mean
is the task's business; where the files are, the config's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from glassformer.core.errors import UserError, user_error
from glassformer.data.columns import count
from glassformer.data.text_files import BLOCK_CHARACTERS, TextFile


class Record(NamedTuple):
    values: dict[str, Any]
    """By role."""
    number: int
    """The line (or, in a JSON list, the row) that it stands on, counted from 1; `Stream.place` names it."""


class Stream:
    """Examples in the order of their files; each `iter()` reads them again."""

    unit = "line"
    is_running = False
    """Whether the records are one text, to be joined as they are."""

    def __init__(self, sources: Sequence[TextFile]) -> None:
        self.sources = list(sources)

    @property
    def name(self) -> str:
        return " + ".join(str(path) for path in self.files)

    @property
    def files(self) -> list[Path]:
        """All that is read."""
        return [source.path for source in self.sources]

    @property
    def read_as(self) -> str:
        """What was found out from the files about how to read them, and so decides what they hold."""
        return ""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know about how the files were read."""
        return ()

    def place(self, number: int) -> str:
        return f"{self.name}, {self.unit} {number}"

    def records(self) -> Iterator[Record]:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Record]:
        record = None
        for record in self.records():
            yield record
        if record is None:
            raise self.nothing()

    def nothing(self) -> UserError:
        """What is said where there is no record."""
        return user_error("the file holds no example", path=self.sources[0].where, hint="one a line")


class AlignedLines(Stream):
    """A file a role, line by line."""

    def __init__(self, sources: Sequence[TextFile], roles: Sequence[str], setting: str) -> None:
        super().__init__(sources)
        self.roles = list(roles)
        if len(sources) != len(roles):
            needed = "1 is" if len(roles) == 1 else f"{len(roles)} are"
            files = ", ".join(roles)
            raise user_error(
                f"{count(len(sources), 'file')} given where {needed} needed: {files}",
                path=setting,
                hint=f"{setting}=[{files}]",
            )

    def records(self) -> Iterator[Record]:
        columns = [source.lines() for source in self.sources]
        for number, values in enumerate(zip_longest(*columns), start=1):
            if None in values:
                raise self._unequal(number - 1, values, columns)
            yield Record(dict(zip(self.roles, values, strict=True)), number)

    def _unequal(
        self, common: int, values: Sequence[str | None], columns: Sequence[Iterator[str]]
    ) -> UserError:
        totals = [
            common + (value is not None) + sum(1 for _ in rest)
            for value, rest in zip(values, columns, strict=True)
        ]
        other = next(place for place, total in enumerate(totals) if total != totals[0])
        return user_error(
            f"{count(totals[other], 'line')}, but {self.sources[0].path} has {totals[0]}",
            path=self.sources[other].where,
            hint="line-aligned files have equally many lines",
        )


class RunningText(Stream):
    """One text in blocks, cut at line ends and spaces where it can be: joined, they are the text again."""

    is_running = True

    def __init__(
        self,
        source: TextFile,
        roles: Sequence[str],
        *,
        characters: tuple[int, int | None] = (0, None),
        block_characters: int = BLOCK_CHARACTERS,
    ) -> None:
        super().__init__([source])
        if len(roles) != 1:
            raise user_error(
                f"a running text is one column, and {len(roles)} are needed: {', '.join(roles)}",
                path=source.where,
                hint="another task.data.format",
            )
        self.role = roles[0]
        self.characters = characters
        self.block_characters = block_characters

    def records(self) -> Iterator[Record]:
        start, stop = self.characters
        number, position = 1, 0
        for block in self.sources[0].blocks(self.block_characters):
            skipped = block[: max(0, start - position)]
            text = block[len(skipped) : None if stop is None else max(0, stop - position)]
            if text:
                yield Record({self.role: text}, number + skipped.count("\n"))
            number += block.count("\n")
            position += len(block)
            if stop is not None and position >= stop:
                return

    def split_at(self, fraction: float) -> tuple[RunningText, RunningText]:
        """The first part, so large a fraction of all characters, and the rest."""
        total = sum(len(block) for block in self.sources[0].blocks(self.block_characters))
        border = int(total * fraction)
        if not 0 < border < total:
            raise user_error(
                f"{count(total, 'character')} cannot be split",
                path=self.sources[0].where,
                hint="more text",
            )
        return self._part(0, border), self._part(border, None)

    def _part(self, start: int, stop: int | None) -> RunningText:
        return RunningText(
            self.sources[0], [self.role], characters=(start, stop), block_characters=self.block_characters
        )
