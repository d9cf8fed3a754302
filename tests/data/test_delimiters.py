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
        ("text\tlabel\nGood, really\tpos\nBad\tneg\n", "tab"),
        ("text\tlabel\nGood, really\tpos\nBad, no\tneg\n", "tab"),
        ("Good; really\tpos\nBad\tneg\n", "tab"),
        ('"Good\treally"\tpos\nBad\tneg\n', "tab"),
        ("text|label\nGood, really|pos\nBad|neg\n", "pipe"),
        ("Good, really|pos\nBad|neg\n", "pipe"),
        ("1|2|3,pos\n3|4|5,neg\n", "comma"),
    ],
)
def test_the_delimiter_is_detected(tmp_path: Path, content: str, delimiter: str) -> None:
    stream = table(tmp_path / "a.csv", content)
    assert stream.delimiter() == delimiter
    for roles in (ROLES, None):
        (file,) = check_corpora([Corpus({"train": [tmp_path / "a.csv"]}, roles=roles)]).files
        assert file.read_as == stream.layout().describe()
    names = {"comma": "commas", "semicolon": "semicolons", "tab": "tabs", "pipe": "pipes (|)"}
    assert f"with {names[delimiter]} between columns" in "".join(stream.notes)


def test_rows_and_line_numbers(tmp_path: Path) -> None:
    stream = table(tmp_path / "a.csv", 'text;label\n"Good; really";pos\n"a\nb, c";neg\nBad;neg\n')
    assert rows(stream) == [("Good; really", "pos"), ("a\nb, c", "neg"), ("Bad", "neg")]
    assert [record.number for record in stream] == [2, 3, 5]
    report = check_corpora([Corpus({"train": [tmp_path / "a.csv"]})])
    assert report.passed and report.files[0].words == 6


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_rows_of_empty_cells_are_skipped(tmp_path: Path, name: str) -> None:
    content = "text,label\nGood,pos\n,\n , \nBad,neg\n,,\n".replace(",", "\t" if name == "a.tsv" else ",")
    (tmp_path / name).write_text(content)
    report = check_corpora([Corpus({"train": [tmp_path / name]})])
    assert [(each.kind, each.count) for each in report.findings] == [("skipped-line", 3)]
    assert report.files[0].examples == 2


@pytest.mark.parametrize(("sign", "name"), [(",", "a.csv"), (";", "a.csv")])
def test_an_unclosed_quote(tmp_path: Path, sign: str, name: str) -> None:
    lines = [f"row {number}{sign}{('good', 'bad')[number % 2]}" for number in range(40)]
    lines[7] = '"' + lines[7]
    lines[20] = f'it ends here"{sign}good'
    stream = table(tmp_path / name, "\n".join([f"text{sign}label", *lines]) + "\n")
    assert len(rows(stream)) == 27
    assert stream.notes[-1] == "WARNING: a.csv, line 9: one quoted cell spans 14 lines: is a quote unclosed?"
    report = check_corpora([Corpus({"train": [tmp_path / name]})])
    (finding,) = [finding for finding in report.findings if finding.kind == "long-cell"]
    assert finding.locations[0].line == 9 and finding.locations[0].excerpt.startswith("14 lines: row 7")
    assert report.files[0].examples == 27 and report.files[0].lines == 41


def test_paragraphs_are_not_an_unclosed_quote(tmp_path: Path) -> None:
    paragraphs = '"' + "\n".join(["one", "two, or more", "three", "", "four", "five", "six"]) + '",good\n'
    stream = table(tmp_path / "a.csv", "text,label\n" + paragraphs + "plain,bad\n")
    assert len(rows(stream)) == 2 and not [note for note in stream.notes if "WARNING" in note]


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


def test_commas_and_tabs_may_be_ambiguous(tmp_path: Path) -> None:
    content = "one, two\tgood\nthree, four\tbad\n"
    with pytest.raises(UserError, match=r"task\.data\.format=csv-comma or task\.data\.format=tsv"):
        rows(table(tmp_path / "a.csv", content))
    roles = {"input": "text"}
    assert table(tmp_path / "a.csv", "one two\t1\nthree\t2\n", roles).delimiter() == "tab"
    assert table(tmp_path / "a.csv", "one | two\nthree | four\n", roles).delimiter() == "comma"


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


fields = st.text(st.sampled_from('ab ,;\t|"\n'), max_size=8)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(fields, fields), min_size=1, max_size=6), st.sampled_from(",;\t"))
def test_what_a_spreadsheet_wrote_is_read_as_it_was_or_not_at_all(
    written: list[tuple[str, str]], sign: str
) -> None:
    file = io.StringIO()
    csv.writer(file, delimiter=sign, lineterminator="\n").writerows(written)
    with tempfile.TemporaryDirectory() as folder:
        stream = table(Path(folder) / "a.csv", file.getvalue())
        not_blank = [row for row in written if "".join(row).strip()]
        try:
            assert rows(stream) == not_blank
        except UserError as error:
            is_empty = "file is empty" in str(error) or "no example" in str(error)
            assert "both ways" in str(error) or (is_empty and not not_blank)
