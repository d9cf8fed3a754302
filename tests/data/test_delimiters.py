"""Delimiter of a CSV file: detected where it is certain, requested where it is not, and reported."""

from __future__ import annotations

import csv
import io
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.core.config import validate
from glassformer.core.errors import UserError
from glassformer.data.check import Corpus, check_corpora
from glassformer.data.formats import CommaTable
from glassformer.data.readers import DataConfig

ROLES = {"input": "text", "target": "label"}


def table(path: Path, content: str, roles: dict[str, str] | None = None, **options: Any) -> CommaTable:
    path.write_text(content, encoding="utf-8", newline="")
    found = validate(DataConfig, {"train": str(path), **options}).stream("train", roles or ROLES)
    assert isinstance(found, CommaTable)
    return found


def rows(stream: CommaTable) -> list[tuple[Any, ...]]:
    return [tuple(record.values.values()) for record in stream]


@pytest.mark.parametrize(
    ("content", "delimiter"),
    [
        ("text;label\nGood, really;pos\nBad;neg\n", "semicolon"),
        ("text;label\nGood, really;pos\n", "semicolon"),
        ("\ufefftext;label\r\n\r\nGood, really;pos\r\nBad;neg\r\n", "semicolon"),
        ('text;label\n"Good; really";pos\nBad;neg\n', "semicolon"),
        ('"Good, really";"pos"\n"Bad, no";"neg"\n', "semicolon"),
        ("Good film;pos\nBad one;neg\n", "semicolon"),
        ("Good, really;pos\nBad;neg\n", "semicolon"),
        ("words;opinion\nGood, really;pos\nBad, no;neg\n", "semicolon"),
        ('"one\ntwo";pos\nBad;neg\n', "semicolon"),
        ("text,label\nGood; really,pos\nBad; no,neg\n", "comma"),
        ("text,label\nGood,pos\n", "comma"),
        ('"Good; really",pos\n"Bad; no",neg\n', "comma"),
        ("Good; really,pos\nBad,neg\n", "comma"),
        ("Good,pos\nBad,neg\n", "comma"),
        ("sep=;\ntext;label\nGood, really;pos\n", "semicolon"),
        ("sep=;\r\nnice;0,5\r\nbad;0,1\r\n", "semicolon"),
        ("sep=,\nnice;0,5\nbad;0,1\n", "comma"),
        ("Good,pos\nBad\n", "comma"),  # invalid either way
    ],
)
def test_the_delimiter_is_detected(tmp_path: Path, content: str, delimiter: str) -> None:
    stream = table(tmp_path / "a.csv", content)
    assert stream.delimiter() == delimiter
    for roles in (ROLES, None):
        (file,) = check_corpora([Corpus({"train": [tmp_path / "a.csv"]}, roles=roles)]).files
        assert file.read_as == stream.layout().describe()
    assert ("semicolons between columns" in "".join(stream.notes)) == (delimiter == "semicolon")


def test_rows_and_line_numbers(tmp_path: Path) -> None:
    stream = table(tmp_path / "a.csv", 'text;label\n"Good; really";pos\n"a\nb, c";neg\nBad;neg\n')
    assert rows(stream) == [("Good; really", "pos"), ("a\nb, c", "neg"), ("Bad", "neg")]
    assert [record.number for record in stream] == [2, 3, 5]
    report = check_corpora([Corpus({"train": [tmp_path / "a.csv"]})])
    assert report.passed and report.files[0].words == 6


def test_the_declaration_is_not_an_example(tmp_path: Path) -> None:
    stream = table(tmp_path / "a.csv", "sep=;\ntext;label\nGood;pos\nBad;neg\n")
    assert rows(stream) == [("Good", "pos"), ("Bad", "neg")]
    assert [record.number for record in stream] == [3, 4]
    assert check_corpora([Corpus({"train": [tmp_path / "a.csv"]})]).findings == []


AMBIGUOUS = "nice film;0,5\nbad film;0,1\n"


def test_an_ambiguous_file_is_an_error(tmp_path: Path) -> None:
    stream = table(tmp_path / "a.csv", AMBIGUOUS)
    with pytest.raises(UserError) as caught:
        rows(stream)
    assert "can be read both ways, 2 columns by ',', 2 columns by ';'" in str(caught.value)
    assert "task.data.format=csv-comma or task.data.format=csv-semicolon" in str(caught.value)
    with pytest.raises(UserError, match="--format csv-comma or --format csv-semicolon"):
        check_corpora([Corpus({"train": [tmp_path / "a.csv"]})])
    asked = table(tmp_path / "a.csv", AMBIGUOUS, format="csv-semicolon")
    assert rows(asked)[0] == ("nice film", "0,5")
    assert rows(table(tmp_path / "a.csv", AMBIGUOUS, format="csv-comma"))[0] == ("nice film;0", "5")
    (file,) = check_corpora([Corpus({"train": [tmp_path / "a.csv"]}, format="csv-semicolon")]).files
    assert file.read_as.startswith("with semicolons between columns, without a header line")


def test_requested_columns_decide_the_delimiter(tmp_path: Path) -> None:
    content = "id;body;stars\n1;one, two;0,5\n2;three, four;0,1\n"
    stream = table(tmp_path / "a.csv", content, columns={"input": "body", "target": "stars"})
    assert rows(stream)[0] == ("one, two", "0,5")
    only = table(tmp_path / "a.csv", content, {"input": "text"}, columns={"input": "body"})
    assert rows(only) == [("one, two",), ("three, four",)]
    numbers = table(tmp_path / "a.csv", "a,b;c;d\n" * 3, columns={"input": 1, "target": 2})
    assert numbers.delimiter() == "semicolon", "by commas there is no third column"


def test_a_single_column_is_not_split_at_semicolons(tmp_path: Path) -> None:
    roles = {"input": "text"}
    assert rows(table(tmp_path / "a.csv", "text\nI came; I saw\nhe; she\n", roles)) == [
        ("I came; I saw",),
        ("he; she",),
    ]
    assert rows(table(tmp_path / "a.csv", "I came; I saw\nnothing\n", roles))[0] == ("I came; I saw",)


def test_only_the_beginning_is_read(tmp_path: Path) -> None:
    """An unclosed quote does not make the detection read a large file to its end."""
    lines = ['"open;x\n' if number == 99 else f"text {number};x\n" for number in range(100_000)]
    stream = table(tmp_path / "a.csv", "".join(lines))
    assert stream.delimiter() == "semicolon"


fields = st.text(st.sampled_from('ab ,;"\n'), max_size=8)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(fields, fields), min_size=1, max_size=6), st.sampled_from(",;"))
def test_what_a_spreadsheet_wrote_is_read_as_it_was_or_not_at_all(
    written: list[tuple[str, str]], sign: str
) -> None:
    file = io.StringIO()
    csv.writer(file, delimiter=sign, lineterminator="\n").writerows(written)
    with tempfile.TemporaryDirectory() as folder:
        stream = table(Path(folder) / "a.csv", file.getvalue())
        try:
            assert rows(stream) == written
        except UserError as error:
            assert "both ways" in str(error) or "file is empty" in str(error)
