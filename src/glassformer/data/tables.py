"""Tables as streams: lines with equally many fields, of which the first may name the columns."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import replace

from glassformer.core.errors import user_error
from glassformer.data.columns import Reading, Wanted, count
from glassformer.data.delimiters import SIGNS, Delimiter, find_delimiter, is_declaration
from glassformer.data.streams import Record, Stream
from glassformer.data.text_files import TextFile

Fields = Iterator[tuple[int, list[str]]]


class Table(Stream):
    """Equally many fields on each line; the first may name them."""

    hint = "equally many on each line"

    def __init__(self, source: TextFile, wanted: Wanted) -> None:
        super().__init__([source])
        self.wanted = wanted

    def fields(self) -> Fields:
        """Of each line that is not empty, with its number."""
        raise NotImplementedError

    def records(self) -> Iterator[Record]:
        lines = self.fields()
        first_number, first = next(lines)
        reading = self.wanted.reading(first, self.place(first_number))
        positions = reading.positions
        if not reading.has_header:
            yield Record({role: first[position] for role, position in positions.items()}, first_number)
        for number, fields in lines:
            if len(fields) != len(first):
                raise user_error(
                    f"{count(len(fields), 'column')}, but the first line has {len(first)}",
                    path=self.place(number),
                    hint=self.hint,
                )
            yield Record({role: fields[position] for role, position in positions.items()}, number)

    def reading(self) -> Reading:
        lines = self.fields()
        number, first = next(lines)
        return self.wanted.reading(first, self.place(number), (fields for _, fields in lines))

    @property
    def read_as(self) -> str:
        return self.reading().told()

    @property
    def notes(self) -> tuple[str, ...]:
        """Nothing, if it was read by the names that it was to be read by."""
        reading = self.reading()
        return () if reading.is_as_asked else (f"{self.name} was read {reading.told()}",)


class TabTable(Table):
    """In which a quote is a quote."""

    def fields(self) -> Fields:
        for number, line in enumerate(self.sources[0].lines(), start=1):
            if line:
                yield number, line.split("\t")


class CommaTable(Table):
    """CSV, with commas or with semicolons."""

    hint = 'equally many on each line; "quotes, like these", round a text with such signs in it'

    def __init__(self, source: TextFile, wanted: Wanted, delimiter: Delimiter | None = None) -> None:
        super().__init__(source, wanted)
        self.asked_delimiter = delimiter

    def delimiter(self) -> Delimiter:
        if self.asked_delimiter is not None:
            return self.asked_delimiter
        source = self.sources[0]
        setting = "task.data.format="
        return find_delimiter(source.lines(), self.wanted, place=source.where, setting=setting)

    def reading(self) -> Reading:
        delimiter = self.delimiter()
        is_as_asked = delimiter == (self.asked_delimiter or "comma")
        reading = super().reading()
        return replace(reading, delimiter=delimiter, is_as_asked=reading.is_as_asked and is_as_asked)

    def fields(self) -> Fields:
        source = self.sources[0]
        # The reader itself joins the lines of a quoted field.
        lines = (line + "\n" for line in source.lines())
        reader = csv.reader(lines, delimiter=SIGNS[self.delimiter()], strict=True)
        number = 1
        try:
            for fields in reader:
                if fields and not is_declaration(number, fields):
                    yield number, fields
                number = reader.line_num + 1
        except csv.Error as error:
            raise user_error(
                f"not valid CSV: {error}",
                path=f"{source.path}, line {number}",
                hint='quote "fields, like this"',
            ) from None
