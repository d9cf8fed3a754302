"""Files to predict from: read with the layout of the training file, one item per row."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from glassformer.core.config import validate
from glassformer.core.errors import UserError
from glassformer.data.columns import LABEL_ROLES
from glassformer.data.input_files import InputFile
from glassformer.data.readers import DataConfig


def layout(folder: Path, content: str, name: str = "train.csv", **options: Any) -> dict[str, Any]:
    (folder / name).write_text(content, encoding="utf-8")
    stream = validate(DataConfig, {"train": str(folder / name), **options}).stream("train", LABEL_ROLES)
    assert stream is not None
    found = stream.layout()
    assert found is not None
    return found.document()


def items(
    folder: Path, name: str, content: str | bytes, *given: Any, **options: Any
) -> list[tuple[Any, ...]]:
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return [tuple(row)[1:] for row in InputFile.open(folder / name, *given, **options)]


def test_columns_by_name(tmp_path: Path) -> None:
    train = layout(
        tmp_path, "kind,title,body\nx,One,Two\n", columns={"input": ["title", "body"], "target": "kind"}
    )
    assert items(tmp_path, "a.csv", "id,body,title\n7,b,a\n", train) == [("a | b", ["7", "b", "a"], None)]
    row = {"title": "a", "body": "b", "id": 7}
    assert items(tmp_path, "a.jsonl", '{"title": "a", "body": "b", "id": 7}\n', train) == [
        ("a | b", row, None)
    ]
    assert items(tmp_path, "a.txt", "a | b\n\n", train) == [("a | b", "a | b", None), ("", "", None)]
    assert InputFile.open(tmp_path / "a.csv", train).names == ["id", "body", "title"]
    assert (
        "input = 'title' + 'body' joined by ' | '; ignored: 'id'"
        in InputFile.open(tmp_path / "a.csv", train).notes[0]
    )


def test_columns_by_number(tmp_path: Path) -> None:
    train = layout(tmp_path, "x,One\ny,Two\n", columns={"input": 1, "target": 0})
    assert items(tmp_path, "a.csv", "?,a\n?,b\n", train) == [("a", ["?", "a"], None), ("b", ["?", "b"], None)]
    assert items(tmp_path, "a.csv", "a\nb\n", train) == [("a", ["a"], None), ("b", ["b"], None)]
    assert items(tmp_path, "a.csv", "id,text\n1,a\n", train) == [("a", ["1", "a"], None)]
    with pytest.raises(UserError, match="3 columns instead of 2"):
        items(tmp_path, "a.csv", "a,b,c\n", train)
    assert items(tmp_path, "a.csv", "a,b,c\n", train, columns=[2]) == [("c", ["a", "b", "c"], None)]


def test_a_file_without_the_names_is_asked_about(tmp_path: Path) -> None:
    train = layout(tmp_path, "text,label\nOne,x\n")
    with pytest.raises(UserError) as error:
        items(tmp_path, "a.csv", "content,label\na,x\n", train)
    assert "no column 'text'" in str(error.value) and "'content | label'" in str(error.value)
    assert "--columns" in str(error.value) and "--header false" in str(error.value)
    assert items(tmp_path, "a.csv", "a,x\nb,y\n", train, header=False)[0][0] == "a"
    assert items(tmp_path, "a.csv", "content,label\na,x\n", train, columns=["content"])[0][0] == "a"


def test_a_file_without_a_header_is_advised_to_be_read_without_one(tmp_path: Path) -> None:
    train = layout(tmp_path, "text,label\nOne,x\n")
    rows = "".join(f"some words of row {number},{'ab'[number % 2]}\n" for number in range(20))
    with pytest.raises(UserError) as error:
        items(tmp_path, "a.csv", rows, train)
    hint = error.value.details[0].hint
    assert hint.startswith("--header false, if the file has no header line; name the input's column")


def test_the_columns_that_are_suggested_can_be_the_input(tmp_path: Path) -> None:
    train = layout(tmp_path, "text,label\nOne,x\n")
    rows = "".join(f"{number},some words of it,{'ab'[number % 2]}\n" for number in range(20))
    with pytest.raises(UserError, match=r"such as --columns input=summary; --header false"):
        items(tmp_path, "a.csv", "id,summary,sentiment\n" + rows, train)
    objects = "".join(f'{{"label": "a", "body text": "words {number} here"}}\n' for number in range(9))
    with pytest.raises(UserError, match=r"such as --columns 'input=body text'; --header false"):
        items(tmp_path, "a.jsonl", objects, train)
    both = layout(
        tmp_path, "title,body,label\nOne,Two,x\n", columns={"input": ["title", "body"], "target": "label"}
    )
    rows = "".join(f"{number},a title of words,some words of it,{'ab'[number % 2]}\n" for number in range(20))
    with pytest.raises(UserError, match=r"such as --columns 'input=\[head,text\]'; --header"):
        items(tmp_path, "a.csv", "id,head,text,class\n" + rows, both)


def test_the_first_of_several_columns_is_never_assumed(tmp_path: Path) -> None:
    """A header was read as a row, and the first column (here the class) as the input."""
    content = "cls,title,desc\n1,One,Two\n2,Three,Four\n"
    for options in ({}, {"header": True}, {"header": False}):
        with pytest.raises(UserError) as error:
            items(tmp_path, "a.csv", content, None, **options)
        assert "which column is the input? The first line is 'cls | title | desc'" in str(error.value)
        assert "--columns" in str(error.value) and "columns=" in str(error.value)
        assert "0: cls, 1: title, 2: desc" in str(error.value)
    assert [row[0] for row in items(tmp_path, "a.csv", content, None, columns=["title"])] == ["One", "Three"]
    assert [row[0] for row in items(tmp_path, "a.csv", "id,text\n1,a\n", None)] == ["a"]
    assert [row[0] for row in items(tmp_path, "a.csv", "a\nb\n", None)] == ["a", "b"]
    train = layout(tmp_path, "1,One,Two\n2,Three,Four\n", columns={"input": 1, "target": 0})
    with pytest.raises(UserError, match="is the first line a header"):
        items(tmp_path, "a.csv", content, train)
    assert [row[0] for row in items(tmp_path, "a.csv", content, train, header=True)] == ["One", "Three"]
    assert [row[0] for row in items(tmp_path, "a.csv", "1,One,Two\n", train)] == ["One"]


def test_a_row_that_cannot_be_read_has_its_own_error(tmp_path: Path) -> None:
    train = layout(tmp_path, "text,label\nOne,x\n")
    found = items(tmp_path, "a.csv", b"text,id\na,1\nb\n\xff\xfe,3\nd,4\n", train)
    assert [item[0] for item in found] == ["a", None, None, "d"]
    assert "the line has 1 column" in found[1][2] and found[2][2] == "not UTF-8: byte 0 of the text is 0xff"
    found = items(tmp_path, "a.jsonl", '{"text": "a"}\n{\n{"id": 1}\n{"text": "d"}\n', train)
    assert [item[0] for item in found] == ["a", None, None, "d"]
    assert "not valid JSON" in found[1][2] and "no column 'text'" in found[2][2]
    first, second = items(tmp_path, "a.txt", b"a\nb\xff\n", None)
    assert first == ("a", "a", None)
    assert second == (None, "b\udcff", "not UTF-8: byte 1 of the text is 0xff")


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    for name, data, message in (
        ("empty.txt", b"", "the file is empty"),
        ("cut.txt.gz", gzip.compress(b"a\n" * 5000)[:-20], "damaged or cut"),
        ("one.txt", b"a\rb\rc", "carriage returns"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UserError, match=message):
            list(InputFile.open(tmp_path / name, None))
    path = tmp_path / "cp1252.txt"
    path.write_bytes(b"7 \x80\n" * 20)
    file = InputFile.open(path, None)
    assert all(row.error for row in file)
    assert file.warnings == ("WARNING: cp1252.txt: if the file is cp1252: --encoding cp1252",)
    file = InputFile.open(path, None, encoding="latin-1")
    assert [row.error for row in file] == [None] * 20
    assert (
        len(file.warnings) == 1 and "U+0080" in file.warnings[0] and "--encoding cp1252" in file.warnings[0]
    )
    (tmp_path / "latin.txt").write_bytes("é\n".encode("latin-1"))
    assert [row.input for row in InputFile.open(tmp_path / "latin.txt", None, encoding="latin-1")] == ["é"]
    (tmp_path / "odd.txt").write_bytes("é\n".encode("utf-16") + b"x")
    with pytest.raises(UserError, match="not utf-16 at line 2"):
        InputFile.open(tmp_path / "odd.txt", None, encoding="utf-16")


def test_a_file_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\nb\n")
    file = InputFile.open(tmp_path / "a.txt", None)
    assert [row.number for row in file] == [row.number for row in file] == [1, 2]
    with pytest.raises(UserError, match="folder"):
        InputFile.open(tmp_path, None)
