"""One layout for all splits: decided on the training file, and required of every other file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from glassformer.core.config import validate
from glassformer.core.errors import UserError
from glassformer.data.columns import LABEL_ROLES, TableLayout
from glassformer.data.formats import Stream
from glassformer.data.readers import DataConfig

ROWS = [
    ("good", "a fine film"),
    ("bad", "a dull film"),
    ("good", "so much fun"),
    ("bad", "no fun at all"),
] * 3


def text(header: str, rows: list[tuple[str, ...]], sign: str = "\t") -> str:
    lines = [header, *(sign.join(row) for row in rows)] if header else [sign.join(row) for row in rows]
    return "".join(f"{line}\n" for line in lines)


def streams(
    folder: Path, train: str, other: str, name: str = "a.tsv", **options: Any
) -> tuple[Stream, Stream]:
    (folder / f"train-{name}").write_text(train, encoding="utf-8")
    (folder / f"test-{name}").write_text(other, encoding="utf-8")
    files = {"train": str(folder / f"train-{name}"), "test": str(folder / f"test-{name}")}
    data = validate(DataConfig, {**files, **options})
    found = [data.stream(split, LABEL_ROLES) for split in ("train", "test")]
    assert found[0] is not None and found[1] is not None
    return found[0], found[1]


def refusal(folder: Path, train: str, other: str, name: str = "a.tsv", **options: Any) -> str:
    stream, test = streams(folder, train, other, name, **options)
    assert list(stream)
    with pytest.raises(UserError) as error:
        list(test)
    return str(error.value)


def test_another_header_is_refused_with_both_layouts(tmp_path: Path) -> None:
    """`content` is not a known name: the file was once read without a header, with swapped columns."""
    train, other = text("label\tsentence", ROWS), text("label\tcontent", ROWS)
    message = refusal(tmp_path, train, other)
    assert "test-a.tsv, line 1: not the layout of the training file: no column 'sentence'" in message
    assert "'label | content'" in message and "'label | sentence'" in message
    assert "input = 'sentence', target = 'label'" in message
    assert "task.data.columns='{input: 1, target: 0}' task.data.header=true" in message
    _, test = streams(tmp_path, train, other, columns={"input": 1, "target": 0}, header=True)
    assert [record.values["target"] for record in test] == [label for label, _ in ROWS]


@pytest.mark.parametrize("options", [{}, {"columns": {"input": 1, "target": 0}}])
def test_a_header_in_one_file_only(tmp_path: Path, options: dict[str, Any]) -> None:
    with_header, without = text("label\tsentence", ROWS), text("", ROWS)
    message = refusal(tmp_path, with_header, without, **options)
    assert "'good | a fine film'" in message and "'label | sentence'" in message
    message = refusal(tmp_path, without, with_header, **options)
    assert "it has a header line" in message and "'good | a fine film'" in message


def test_an_example_is_not_a_header_because_header_is_true(tmp_path: Path) -> None:
    options = {"columns": {"input": 1, "target": 0}, "header": True}
    message = refusal(tmp_path, text("opinion\twords", ROWS), text("", ROWS), **options)
    assert "its first line is an example" in message


def test_another_number_of_columns(tmp_path: Path) -> None:
    three = [(label, "x", words) for label, words in ROWS]
    assert "3 columns instead of 2" in refusal(tmp_path, text("", ROWS), text("", three))
    message = refusal(tmp_path, text("label\ttext", ROWS), text("label\tid\ttext", three))
    assert "3 columns instead of 2" in message and "'label | id | text'" in message
    names = {"columns": {"input": "text", "target": "label"}}
    _, test = streams(tmp_path, text("label\ttext", ROWS), text("label\tid\ttext", three), **names)
    assert next(iter(test)).values == {"input": "a fine film", "target": "good"}


def test_the_same_names_in_another_order_are_read_by_name(tmp_path: Path) -> None:
    other = text("Text\tLabel", [(words, label) for label, words in ROWS])
    _, test = streams(tmp_path, text("label\ttext", ROWS), other)
    assert next(iter(test)).values == {"input": "a fine film", "target": "good"}


def test_labels_first_is_decided_on_train(tmp_path: Path) -> None:
    """One test row cannot show which column has the labels."""
    _, test = streams(tmp_path, text("", ROWS), text("", ROWS[:1]))
    assert next(iter(test)).values == {"input": "a fine film", "target": "good"}


def test_json_names_are_decided_on_train(tmp_path: Path) -> None:
    train, other = '{"sentence": "a", "label": "x"}\n', '{"content": "a", "label": "x"}\n'
    message = refusal(tmp_path, train, other, "a.jsonl")
    assert "no column 'sentence'" in message and "'content, label'" in message
    assert "as JSON objects: input = 'sentence', target = 'label'" in message


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl", "a.json"])
def test_several_columns_are_one_input(tmp_path: Path, name: str) -> None:
    contents = {
        "a.tsv": "kind\ttitle\tbody\nx\tOne\tTwo\ny\t\t\n",
        "a.csv": "kind,title,body\nx,One,Two\ny,,\n",
        "a.jsonl": '{"kind": "x", "title": "One", "body": "Two"}\n{"kind": "y", "title": "", "body": ""}\n',
        "a.json": '{"kind": ["x", "y"], "title": ["One", ""], "body": ["Two", ""]}',
    }
    options: dict[str, Any] = {"columns": {"input": ["title", "body"], "target": "kind"}}
    train, _ = streams(tmp_path, contents[name], contents[name], name, **options)
    assert [record.values["input"] for record in train] == ["One | Two", ""]
    assert "input = 'title' + 'body' joined by ' | ', target = 'kind'" in train.notes[0]
    train, _ = streams(tmp_path, contents[name], contents[name], name, separator="\n", **options)
    assert next(iter(train)).values["input"] == "One\nTwo"


def test_texts_that_are_ignored_are_suggested(tmp_path: Path) -> None:
    rows = [(str(n % 4), f"a title of words {n}", f"some more words in a text {n}") for n in range(40)]
    train, _ = streams(tmp_path, text("", rows, ","), text("", rows, ","), "a.csv")
    sentence, suggestion = train.notes
    assert "input = column 1, target = column 0; ignored: column 2; it begins with" in sentence
    assert suggestion.startswith("WARNING: ") and "2 columns may be the input" in suggestion
    assert suggestion.endswith("join all texts: task.data.columns='{input: [1, 2], target: 0}'")
    named = text("label,text,note", rows, ",")
    sentence, suggestion = streams(tmp_path, named, named, "b.csv")[0].notes
    assert suggestion.endswith("one input: task.data.columns='{input: [text, note], target: label}'")


@pytest.mark.parametrize(
    "columns", [{"input": 1.5}, {"input": []}, {"input": [True]}, {"input": ["a", "a"]}, "a"]
)
def test_wrong_columns_are_reported_without_the_names_of_types(columns: Any) -> None:
    with pytest.raises(UserError) as error:
        validate(DataConfig, {"train": "a.tsv", "columns": columns})
    (first, *_) = str(error.value).splitlines()
    assert first.startswith(("columns: ", "columns.input: ")), first


def test_texts_in_memory_get_the_call_that_takes_them() -> None:
    with pytest.raises(UserError) as error:
        validate(DataConfig, {"train": [("a text", "label")]})
    assert str(error.value).startswith("train: expected the path of a file")
    assert "gf.train(inputs=texts, targets=labels)" in str(error.value)


def test_a_layout_is_saved_and_read_back(tmp_path: Path) -> None:
    train, _ = streams(tmp_path, text("label\ttext", ROWS), text("label\ttext", ROWS))
    layout = train.layout()
    assert layout is not None
    saved = TableLayout.from_document(layout.document())
    assert saved.role_names() == {"input": ("text",), "target": ("label",)}
    assert "a fine film" not in str(layout.document())
