"""Streaming reader of a JSON array: the same rows as `json.loads`, for any division into pieces."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.core.config import validate
from glassformer.core.errors import UserError
from glassformer.data.check import Corpus, check_corpora
from glassformer.data.json_rows import ArrayRows, InvalidJson
from glassformer.data.readers import DataConfig

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
rows = st.lists(
    st.dictionaries(st.text(max_size=3), values, max_size=3) | st.lists(values, max_size=3), max_size=5
)


def pieces(text: str, size: int) -> Iterator[str]:
    return (text[start : start + size] for start in range(0, len(text), size))


@settings(max_examples=200, deadline=None)
@given(rows, st.sampled_from([None, 0, 2]), st.integers(1, 40), st.booleans())
def test_rows_equal_those_of_json_loads(
    written: list[Any], indent: int | None, size: int, is_ascii: bool
) -> None:
    text = f" \n{json.dumps(written, indent=indent, ensure_ascii=is_ascii)}\n\n"
    assert list(ArrayRows(pieces(text, size))) == written


@settings(max_examples=200, deadline=None)
@given(rows.filter(bool), st.integers(1, 40), st.data())
def test_a_truncated_array_is_invalid(written: list[Any], size: int, data: st.DataObject) -> None:
    text = json.dumps(written)
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    found = []
    with pytest.raises(InvalidJson):
        for row in ArrayRows(pieces(cut, size)):
            found.append(row)
    assert found == written[: len(found)]


@pytest.mark.parametrize(
    ("text", "message", "line", "column"),
    [
        ('[{"a": 1}\n {"b": 2}]', "',' or ']' is expected", 2, 2),
        ('[{"a": 1},\n]', "an object {...} or a list [...] is expected", 2, 1),
        ('[{"a": 1},\n  "text"]', "an object {...} or a list [...] is expected", 2, 3),
        ('[{"a": 1}]\n[', "text after the end of the array", 2, 1),
        ('[{"a": 1},\n {"b": x}]', "Expecting value", 2, 8),
        ("[" * 100_000, "nested too deeply", 1, 2),
        (f'[{{"a": {"9" * 5000}}}]', "too many digits", 1, 2),
        ("", "'[' is expected", 1, 1),
    ],
)
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_errors_have_line_and_column(text: str, message: str, line: int, column: int, size: int) -> None:
    if len(text) > 1000 and size < 10:
        size = 1000
    with pytest.raises(InvalidJson) as caught:
        list(ArrayRows(pieces(text, size)))
    assert message in caught.value.message
    assert (caught.value.line, caught.value.column) == (line, column)


def test_a_large_array_is_not_held_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with path.open("w", encoding="utf-8") as file:
        row = json.dumps({"text": "some words " * 20, "label": "x"})
        file.write("[" + ", ".join([row] * 40_000) + "]")
    data = validate(DataConfig, {"train": str(path)})
    stream = data.stream("train", {"input": "text", "target": "label"})
    assert stream is not None
    tracemalloc.start()
    try:
        assert sum(1 for _ in stream) == 40_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert path.stat().st_size > 9_000_000 and peak < 2_000_000


def test_names_are_those_of_all_first_rows(tmp_path: Path) -> None:
    labels = [None if number % 10 == 0 else ("good", "bad")[number % 2] for number in range(60)]
    objects = [
        {"text": f"text {number}"} | ({"label": label} if label else {})
        for number, label in enumerate(labels)
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in objects))
    report = check_corpora([Corpus({"train": [path]})])
    assert [(each.kind, each.count) for each in report.findings] == [("bad-row", 6)]
    assert report.files[0].read_as == "as JSON objects: input = 'text', target = 'label'"
    stream = validate(DataConfig, {"train": str(path)}).stream("train", {"input": "text", "target": "label"})
    assert stream is not None
    with pytest.raises(UserError, match="no column 'label'; 6 of the first 60 rows have none"):
        list(stream)


def test_examples_below_a_name_are_pointed_out(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"version": 1, "data": [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]}')
    with pytest.raises(UserError, match="the list of examples is under 'data'"):
        list(DataConfig(train=str(path)).stream("train", {"input": "text", "target": "label"}) or ())
