"""Roles of columns: decided by names and contents together, with a warning if several columns fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from glassformer.cli import main
from glassformer.core.config import validate
from glassformer.core.errors import UserError
from glassformer.data.check import Corpus, check_corpora
from glassformer.data.columns import LABEL_ROLES, PAIR_ROLES
from glassformer.data.formats import Stream
from glassformer.data.readers import DataConfig
from glassformer.data.roles import ColumnContents

CELLS = {
    "source": ["ap", "reuters", "afp"],
    "date": [f"2004-08-{day:02d}" for day in range(1, 15)],
    "url": [f"https://news.example/{number}" for number in range(60)],
    "class": ["World", "Sports", "Business", "Sci/Tech"],
    "region": ["EU", "US"],
    "id": [str(number) for number in range(60)],
    "words": [f"the {number}th report on the state of oil prices" for number in range(60)],
    "titles": [f"Oil prices rise in week {number}" for number in range(60)],
    "film": [f"Film{number}" for number in range(60)],
    "wide": [f"これは{number}番目の長い文章です" for number in range(60)],
    "price": [f"{number}.5" for number in range(60)],
}
"""Values of columns by their contents."""


def rows_of(kinds: str, count: int = 60) -> list[list[str]]:
    columns = [CELLS[kind] for kind in kinds.split(",")]
    return [[values[number % len(values)] for values in columns] for number in range(count)]


def write_table(folder: Path, header: str, kinds: str, sign: str = ",") -> Path:
    lines = [header.split(",")] if header else []
    path = folder / ("a.csv" if sign == "," else "a.tsv")
    text = "".join(sign.join(row) + "\n" for row in lines + rows_of(kinds))
    path.write_text(text, encoding="utf-8")
    return path


def train_stream(path: Path, **options: Any) -> Stream:
    stream = validate(DataConfig, {"train": str(path), **options}).stream("train", LABEL_ROLES)
    assert stream is not None
    return stream


CLEAR = {
    # header; contents of each column; columns of input and target
    "source,description,class": ("source,words,class", "input = 'description', target = 'class'"),
    "date,url,headline,category": ("date,url,titles,class", "input = 'headline', target = 'category'"),
    "source,text,label": ("source,words,class", "input = 'text', target = 'label'"),
    "text,review,sentiment": ("region,words,class", "input = 'review', target = 'sentiment'"),
    "id,Article,Topic": ("id,words,class", "input = 'Article', target = 'Topic'"),
    "title,body,label": ("film,words,class", "input = 'body', target = 'label'"),
    "label,source": ("class,words", "input = 'source', target = 'label'"),
    "topic,content,section": ("titles,words,class", "input = 'content', target = 'section'"),
}


@pytest.mark.parametrize("header", CLEAR)
@pytest.mark.parametrize("has_task", [True, False])
def test_names_count_only_if_the_contents_fit(tmp_path: Path, header: str, has_task: bool) -> None:
    kinds, roles = CLEAR[header]
    path = write_table(tmp_path, header, kinds)
    stream = train_stream(path)
    assert f"with a header line: {roles}" in stream.read_as
    assert not any(note.startswith("WARNING") for note in stream.notes), stream.notes
    (file,) = check_corpora([Corpus({"train": [path]}, roles=LABEL_ROLES if has_task else None)]).files
    assert file.notes == list(stream.notes)


NO_HEADER = {
    "region,class,words": "input = column 2, target = column 0",
    "words,region,class": "input = column 0, target = column 2",
    "date,url,titles,class": "input = column 2, target = column 3",
    "class,date,id,words": "input = column 3, target = column 0",
    "id,words,price": "input = column 1, target = column 2",
    "price,words,class": "input = column 1, target = column 2",
    "wide,class": "input = column 0, target = column 1",
    "url,class,wide": "input = column 2, target = column 1",
}


@pytest.mark.parametrize("kinds", NO_HEADER)
def test_contents_decide_without_a_header(tmp_path: Path, kinds: str) -> None:
    stream = train_stream(write_table(tmp_path, "", kinds))
    assert f"without a header line: {NO_HEADER[kinds]}" in stream.read_as
    warnings = [note for note in stream.notes if note.startswith("WARNING")]
    assert bool(warnings) == ("region" in kinds), warnings


AMBIGUOUS = {
    ("", "region,class,words"): (
        "2 columns may be the target: column 0 (such as 'US'), column 1 (such as 'Sports'); "
        "column 0 is used; to use column 1: task.data.columns='{input: 2, target: 1}'"
    ),
    ("headline,category,sentiment", "titles,class,region"): (
        "2 columns may be the target: 'sentiment' (such as 'EU'), 'category' (such as 'World'); "
        "'sentiment' is used; to use 'category': task.data.columns='{input: headline, target: category}'"
    ),
    ("article,headline,class", "words,titles,class"): (
        "2 columns may be the input: 'article' (such as 'the 0th report on the state o…'), "
        "'headline' (such as 'Oil prices rise in week 0'); 'article' is used; "
        "to use 'headline': task.data.columns='{input: headline, target: class}'; "
        "to join all texts: task.data.columns='{input: [article, headline], target: class}'"
    ),
    ("Label,label,text", "class,region,words"): (
        "2 columns may be the target: 'Label' (such as 'World'), 'label' (such as 'EU'); 'Label' is used; "
        "to use 'label': task.data.columns='{input: text, target: label}'"
    ),
}


@pytest.mark.parametrize(("header", "kinds"), AMBIGUOUS)
def test_several_candidates_are_listed_with_the_option(
    tmp_path: Path, header: str, kinds: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_table(tmp_path, header, kinds)
    (warning,) = [note for note in train_stream(path).notes if note.startswith("WARNING")]
    assert warning.endswith(f"a.csv: {AMBIGUOUS[header, kinds]}")
    assert main(["data", "check", str(path), "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert warning in document["files"][0]["notes"]
    assert [finding["kind"] for finding in document["findings"]] == ["several-columns"]


def test_the_option_of_a_warning_is_accepted_and_ends_it(tmp_path: Path) -> None:
    path = write_table(tmp_path, "my text: 1,2019,class", "titles,words,class")
    (_, warning, *_) = train_stream(path, header=True).notes
    assert "columns='{input: \"2019\", target: class}'" in warning
    assert 'columns=\'{input: ["my text: 1", "2019"], target: class}\'' in warning
    stream = train_stream(path, columns={"input": "2019", "target": "class"})
    assert not any(note.startswith("WARNING") for note in stream.notes)


def test_an_unknown_header_gets_the_right_columns_in_its_hint(tmp_path: Path) -> None:
    path = write_table(tmp_path, "datum,adresse,kopf,rubrik", "date,url,titles,class")
    warning = train_stream(path).notes[-1]
    assert warning.endswith(
        "if it is a header: task.data.columns='{input: 2, target: 3}' task.data.header=true"
    )


@pytest.mark.parametrize("form", ["rows.jsonl", "rows.json", "lists.json"])
def test_json_columns_are_chosen_like_those_of_a_table(tmp_path: Path, form: str) -> None:
    names = ["source", "description", "class"]
    rows = rows_of("source,words,class")
    objects: Any = [dict(zip(names, row, strict=True)) for row in rows]
    if form == "lists.json":
        objects = {name: [row[name] for row in objects] for name in names}
    path = tmp_path / form
    is_lines = form.endswith("l")
    path.write_text("\n".join(map(json.dumps, objects)) if is_lines else json.dumps(objects))
    assert "input = 'description', target = 'class'; ignored: 'source'" in train_stream(path).read_as
    (file,) = check_corpora([Corpus({"train": [path]})]).files
    assert "input = 'description', target = 'class'" in file.read_as


def test_unknown_names_in_json_are_listed_in_the_option(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"kopf": text, "rubrik": label} for text, label in rows_of("titles,class")]
    path.write_text("\n".join(map(json.dumps, rows)))
    for setting, open_file in (
        ("task.data.columns=", lambda: list(train_stream(path))),
        ("--columns ", lambda: check_corpora([Corpus({"train": [path]})])),
    ):
        with pytest.raises(UserError) as error:
            open_file()
        assert "no column has a usual name for the input; its columns are: kopf, rubrik" in str(error.value)
        assert f"{setting}'{{input: kopf, target: rubrik}}'" in str(error.value)


def test_translations_keep_their_columns(tmp_path: Path) -> None:
    """The contents of pairs say nothing: `source` may hold single words."""
    path = write_table(tmp_path, "source,target,class", "region,words,class")
    stream = validate(DataConfig, {"train": str(path)}).stream("train", PAIR_ROLES)
    assert stream is not None
    assert "input = 'source', target = 'target'; ignored: 'class'" in stream.read_as


def test_a_domain_does_not_make_pairs_a_classification(tmp_path: Path) -> None:
    path = write_table(tmp_path, "source,target,domain", "words,titles,class")
    report = check_corpora([Corpus({"train": [path]})])
    assert report.source == "translation"
    assert "input = 'source', target = 'target'" in report.files[0].read_as


@pytest.mark.parametrize(
    ("kind", "is_labels", "is_text", "is_identifier"),
    [
        ("class", True, False, False),
        ("words", False, True, False),
        ("wide", False, True, False),
        ("date", True, False, True),
        ("url", False, False, True),
        ("id", True, False, True),
        ("price", True, False, False),
        ("film", False, False, False),
    ],
)
def test_contents(kind: str, is_labels: bool, is_text: bool, is_identifier: bool) -> None:
    found = ColumnContents([row[0] for row in rows_of(kind)])
    assert (found.is_labels, found.is_text, found.is_identifier) == (is_labels, is_text, is_identifier)
