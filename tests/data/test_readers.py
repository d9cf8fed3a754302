"""Reading a user's files: every format, and every error in a file."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.core.config import validate
from glassformer.core.errors import UserError
from glassformer.data.readers import DataConfig, Rows
from glassformer.data.splits import split_off

ROLES = {"input": "input", "target": "target"}
Write = Callable[[str, str | bytes], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(name: str, content: str | bytes) -> str:
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return str(tmp_path / name)

    return write_file


def read(source: str | list[str], **options: Any) -> Rows:
    rows = validate(DataConfig, {"train": source, **options}).read("train", ROLES)
    assert rows is not None
    return rows


def pairs(rows: Rows) -> list[tuple[Any, Any]]:
    return list(zip(rows.values["input"], rows.values["target"], strict=True))


def error_of(source: str | list[str], **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        read(source, **options)
    text = str(caught.value)
    assert 2 <= len(text.split("\n")) <= 5
    return text


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "input\ttarget\na b\tx\nc\ty\n"),
        ("a.tsv", "target\tmore\tinput\nx\t\ta b\ny\t\tc\n"),
        ("a.tsv", "a b\tx\nc\ty"),
        ("a.tsv", "\ufeffinput\ttarget\r\na b\tx\r\n\r\nc\ty\r\n"),
        ("a.TSV", "a b\tx\nc\ty"),
        ("a.csv", 'input,target\n"a b",x\nc,"y"\n'),
        ("a.csv", "a b,x\nc,y\n"),
        ("a.jsonl", '{"input": "a b", "target": "x"}\n\n{"target": "y", "input": "c"}\n'),
        ("a.ndjson", '{"input": "a b", "target": "x"}\n{"target": "y", "input": "c"}'),
        ("a.json", '{"input": ["a b", "c"], "target": ["x", "y"]}'),
        ("a.json", '\ufeff\n [{"input": "a b", "target": "x"},{"target": "y", "input": "c"}]\n'),
        (
            "a.json",
            '[\r\n  {\r\n    "id": 7,\r\n    "Input": "a b",\r\n    "Target": "x"\r\n  },\r\n'
            '  {\r\n    "Target": "y",\r\n    "Input": "c"\r\n  }\r\n]',
        ),
    ],
)
@pytest.mark.parametrize("is_zipped", [False, True])
def test_formats_by_their_ending(write: Write, name: str, content: str, is_zipped: bool) -> None:
    path = write(f"{name}.gz", gzip.compress(content.encode())) if is_zipped else write(name, content)
    assert pairs(read(path)) == [("a b", "x"), ("c", "y")]


def test_aligned_files(write: Write) -> None:
    source = [write("s.en", "a b\n\nc\u2028d\x85e\x1cf\n"), write("s.fr", "x\r\ny\r\nz")]
    rows = read(source)
    assert pairs(rows) == [("a b", "x"), ("", "y"), ("c\u2028d\x85e\x1cf", "z")]
    assert rows.location(2) == f"{source[0]} + {source[1]}, line 3"
    write("s.fr", "x\ny\n")
    assert "s.fr: the file has 2 lines, but" in error_of(source)
    assert "1 file given where 2 are needed: input, target" in error_of(source[:1])


class TestColumns:
    TABLE = "id\ttext\tlabel\n1\ta b\tx\n2\tc\ty\n"

    @pytest.mark.parametrize(
        "options",
        [
            {"columns": {"input": "text", "target": "label"}},
            {"columns": {"input": "text", "target": 2}},
            {"columns": {"input": 1, "target": 2}, "header": True},
        ],
    )
    def test_by_name_and_number(self, write: Write, options: dict[str, Any]) -> None:
        assert pairs(read(write("a.tsv", self.TABLE), **options)) == [("a b", "x"), ("c", "y")]

    def test_a_known_header_is_not_an_example_even_if_columns_have_numbers(self, write: Write) -> None:
        rows = read(write("a.tsv", self.TABLE), columns={"input": 1, "target": 2})
        assert pairs(rows)[0] == ("a b", "x")
        assert "with a header line: input = 'text', target = 'label'; ignored: 'id'" in rows.notes[0]
        rows = read(write("a.tsv", self.TABLE), columns={"input": 0, "target": 2})
        assert pairs(rows)[0] == ("1", "x"), "the header names the target, and no row has the label 'label'"
        assert "with a header line: input = 'id', target = 'label'; ignored: 'text'" in rows.notes[0]

    def test_lists_in_json_lines(self, write: Write) -> None:
        path = write("a.jsonl", '["x", ["a", "b"]]\n["y", "c"]\n')
        assert pairs(read(path, columns={"input": 1, "target": 0})) == [(["a", "b"], "x"), ("c", "y")]
        assert "line 1: the row is a list, but the column 'input' is requested" in error_of(path)
        assert "line 1: no column 5" in error_of(path, columns={"input": 1, "target": 5})

    def test_a_missing_column_has_a_near_match(self, write: Write) -> None:
        message = error_of(write("a.tsv", self.TABLE), columns={"input": "txt", "target": "label"})
        assert "a.tsv, line 1: no column 'txt'" in message and "did you mean 'text'?" in message
        path = write("a.jsonl", '{"input": "a", "target": "x"}\n{"input": "a", "targets": "x"}\n')
        message = error_of(path)
        assert "a.jsonl, line 2: no column 'target'" in message and "did you mean 'targets'?" in message

    def test_other_errors(self, write: Write) -> None:
        path = write("a.tsv", self.TABLE)
        assert "no column 7: the first line has 3 columns" in error_of(
            path, columns={"input": 0, "target": 7}
        )
        assert "no column -1" in error_of(path, columns={"input": 0, "target": -1})
        assert "header is false" in error_of(path, columns={"input": "text", "target": 2}, header=False)
        message = error_of(path, columns={"imput": "text"})
        assert "task.data.columns" in message and "did you mean 'input'?" in message
        assert "no column 1: the first line has 1 column" in error_of(write("b.tsv", "a b\nc\n"))


class TestErrors:
    def test_missing_folder_ending(self, write: Write, tmp_path: Path) -> None:
        write("train.tsv", "a\tx\n")
        message = error_of(str(tmp_path / "trian.tsv"))
        assert (
            "task.data.train" in message
            and "no such file" in message
            and "train.tsv" in message.split("try:")[1]
        )
        assert "no such file" in error_of(str(tmp_path / "no" / "such.tsv"))
        assert "is a folder" in error_of(str(tmp_path), format="tsv")
        assert "the ending of 'a.xyz' does not match any known format" in error_of(write("a.xyz", "a\tx\n"))
        assert pairs(read(write("a.xyz", "a\tx\n"), format="tsv")) == [("a", "x")]
        assert "not one of the choices" in error_of(str(tmp_path / "train.tsv"), format="tvs")

    @pytest.mark.parametrize("content", [b"", b"\n \n\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\r\n"])
    @pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl", "a.json"])
    def test_empty(self, write: Write, name: str, content: bytes) -> None:
        assert "the file is empty" in error_of(write(name, content))

    def test_a_header_and_nothing_else(self, write: Write) -> None:
        assert "contains no example" in error_of(write("a.tsv", "input\ttarget\n"))
        assert "contains no example" in error_of(write("a.json", '{"input": [], "target": []}'))
        assert "contains no example" in error_of(write("a.json", "[]"))

    def test_not_utf8(self, write: Write) -> None:
        message = error_of(write("a.tsv", b"a\tx\nb\xc3\xa9\tx\ncaf\xe9\ty\n"))
        assert "not UTF-8 at line 3, byte 13 of the file (0xe9)" in message

    def test_ragged(self, write: Write) -> None:
        message = error_of(write("a.tsv", "input\ttarget\na\tx\n\nb\ty\tz\n"))
        assert "a.tsv, line 4: the line has 3 columns, but the first line has 2" in message
        assert "line 2: the line has 1 column," in error_of(write("a.csv", "a,x\nb\n"))

    def test_broken_csv(self, write: Write) -> None:
        assert "a.csv, line 2: not valid CSV" in error_of(write("a.csv", 'a,x\n"b,y\nc,z\n'))
        assert "a.csv, line 4: not valid CSV" in error_of(write("a.csv", '"a\nb",x\nc,y\n"d"e,z\n'))
        long = "a " * 100_000
        assert pairs(read(write("b.csv", f"{long},x\n"))) == [(long, "x")]

    def test_quoted_line_breaks_count(self, write: Write) -> None:
        rows = read(write("a.csv", 'input,target\n"a\nb",x\n\nc,y\n'))
        assert pairs(rows) == [("a\nb", "x"), ("c", "y")]
        assert [rows.location(index).split(", ")[1] for index in range(2)] == ["line 2", "line 5"]

    def test_broken_json(self, write: Write) -> None:
        good = '{"input": "a", "target": "x"}\n'
        assert "a.jsonl, line 3: not valid JSON" in error_of(write("a.jsonl", good * 2 + '{"input": \n'))
        assert "the row is one value" in error_of(write("a.jsonl", good + "7\n"))
        assert "nested too deeply" in error_of(write("a.jsonl", "[" * 100_000))
        assert "too many digits" in error_of(write("a.jsonl", f'{{"input": {"9" * 5000}, "target": 1}}'))
        assert "a.json, line 2: not valid JSON" in error_of(write("a.json", '{"input":\n[}'))
        assert "a.json, line 1: an object {...} or a list [...] is expected" in error_of(
            write("a.json", "[1, 2]")
        )
        assert "an array of objects, or an object of parallel lists" in error_of(write("a.json", "7"))
        assert "task.data.format=jsonl for one object per line" in error_of(write("a.json", good * 2))
        assert "'target' is not a list" in error_of(write("a.json", '{"input": [1], "target": 2}'))
        message = error_of(write("a.json", '{"input": [1], "target": [2, 3]}'))
        assert "differ in length: input 1, target 2" in message

    def test_broken_gzip(self, write: Write) -> None:
        whole = gzip.compress(b"a\tx\n" * 100)
        assert "the gzip file is damaged" in error_of(write("a.tsv.gz", whole[:-6]))
        assert "the gzip file is damaged" in error_of(write("a.tsv.gz", b"a\tx\n"))

    @pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
    def test_unreadable(self, write: Write) -> None:
        path = write("a.tsv", "a\tx\n")
        Path(path).chmod(0)
        assert "cannot be read: Permission denied" in error_of(path)


def test_absent_splits_are_none(write: Write) -> None:
    data = DataConfig(train=write("a.tsv", "a\tx\n"))
    assert data.read("validation", ROLES) is None and data.read("test", ROLES) is None


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=200), st.floats(0.01, 0.99), st.integers(0, 3))
def test_split_off_keeps_equal_rows_together(keys: list[int], fraction: float, seed: int) -> None:
    if len(set(keys)) < 2:
        with pytest.raises(UserError):
            split_off(keys, {"validation": fraction}, seed, "here")
        return
    parts = split_off(keys, {"validation": fraction}, seed, "here")
    again = split_off(keys, {"validation": fraction}, seed, "here")
    assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(len(keys)))
    assert all((parts[split] == again[split]).all() for split in parts)
    train, validation = ({keys[index] for index in parts[split]} for split in ("train", "validation"))
    assert train and validation and not train & validation


def test_a_config_can_be_saved_and_read_back(write: Write) -> None:
    tree = {"train": ["a", "b"], "columns": {"input": 1, "target": "x"}, "test": "c.tsv"}
    data = validate(DataConfig, tree)
    assert validate(DataConfig, json.loads(json.dumps(data.dump()))) == data
