"""Headers and columns: `data check` and training find the same ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from glassformer.core.config import validate
from glassformer.data.check import Corpus, check_corpora
from glassformer.data.formats import Table
from glassformer.data.readers import DataConfig

TASKS = {
    "classification": {"input": "text", "target": "label"},
    "translation": {"input": "source", "target": "target"},
    "tokens": {"input": "input", "target": "target"},
    "language": {"input": "text"},
}


def write(folder: Path, name: str, content: str) -> Path:
    (folder / name).write_text(content, encoding="utf-8")
    return folder / name


def table(path: Path, roles: dict[str, str], **options: Any) -> Table:
    found = validate(DataConfig, {"train": str(path), **options}).stream("train", roles)
    assert isinstance(found, Table)
    return found


def words_of(path: Path, roles: dict[str, str], **options: Any) -> int:
    return sum(
        len(str(record.values[role]).split()) for record in table(path, roles, **options) for role in roles
    )


@pytest.mark.parametrize(
    ("first", "has_header"),
    [
        ("text\tlabel", True),
        ("label\tid\ttext", True),
        ("Sentence\t Label ", True),
        ("review\tsentiment", True),
        ("source\ttarget", True),
        ("input\ttarget", True),
        ("text\ttexte", False),  # a first pair of words
        ("source\tsource", False),
        ("en\tfr", False),
        ("some words\tgood", False),
    ],
)
@pytest.mark.parametrize("task", ["classification", "translation", "tokens", None])
def test_check_and_training_agree_on_a_header(
    tmp_path: Path, first: str, has_header: bool, task: str | None
) -> None:
    width = first.count("\t") + 1
    rows = "".join("\t".join([f"a{n} b c", f"d{n} e", f"f{n}"][:width]) + "\n" for n in range(9))
    path = write(tmp_path, "a.tsv", f"{first}\n{rows}")
    roles = None if task is None else TASKS[task]
    (file,) = check_corpora([Corpus({"train": [path]}, roles=roles)]).files
    stream = table(path, TASKS[task or "classification"])
    assert stream.layout().has_header == has_header
    assert file.read_as == stream.layout().describe()
    assert len(list(stream)) == 9 + (not has_header)


@pytest.mark.parametrize("first", ["text\tid", "id\ttext", "id\tname", "review\tid"])
def test_a_language_model_reads_one_column(tmp_path: Path, first: str) -> None:
    path = write(tmp_path, "a.tsv", f"{first}\none two\tthree\nfour\tfive\n")
    (file,) = check_corpora([Corpus({"train": [path]}, roles=TASKS["language"])]).files
    assert file.words == words_of(path, TASKS["language"])
    assert file.read_as == table(path, TASKS["language"]).layout().describe()


@pytest.mark.parametrize(
    "options",
    [
        {"columns": {"input": "b", "target": "a"}},
        {"columns": {"input": 1, "target": 0}},
        {"columns": {"input": 1}},
        {"columns": {"input": 1}, "header": True},
        {"header": True},
        {"header": False},
    ],
)
def test_check_and_training_agree_on_options(tmp_path: Path, options: dict[str, Any]) -> None:
    path = write(tmp_path, "a.tsv", "a\tb\nx\tone two three\ny\tfour five\n" + "y\tsix seven\n" * 3)
    roles = TASKS["classification"]
    (file,) = check_corpora([Corpus({"train": [path]}, roles=roles, **options)]).files
    assert file.read_as == table(path, roles, **options).layout().describe()


def test_two_roles_do_not_share_a_column(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", "x\tone\ny\ttwo\n")
    stream = table(path, TASKS["classification"], columns={"input": 1})
    assert next(iter(stream)).values == {"input": "one", "target": "x"}
    assert "input = column 1, target = column 0" in stream.notes[0]


def test_every_table_is_described(tmp_path: Path) -> None:
    roles = TASKS["classification"]
    (note,) = table(write(tmp_path, "b.tsv", "sentence\tid\tlabel\na\t1\tx\n"), roles).notes
    assert note.endswith(
        "b.tsv is read with tabs between columns, with a header line: "
        "input = 'sentence', target = 'label'; ignored: 'id'"
    )
    path = write(tmp_path, "c.tsv", "text\topinion\na\tx\n")
    note, warning = table(path, roles).notes
    assert note.endswith("input = column 0, target = column 1; it begins with 'text | opinion'")
    assert warning.startswith("WARNING: ") and warning.endswith(
        "if it is a header: task.data.columns='{input: 0, target: 1}' task.data.header=true"
    )
    assert [record.values for record in table(path, roles, header=True)] == [{"input": "a", "target": "x"}]


def test_a_word_above_numbers_may_be_a_header(tmp_path: Path) -> None:
    """The names are unknown: the first line is read as an example, with a warning."""
    path = write(tmp_path, "a.csv", 'id,comment,rude\n1,"hello, you",0\n2,bad words,1\n3,fine,0\n')
    roles = TASKS["classification"]
    _, note = table(path, roles).notes
    assert "if it is a header: task.data.columns='{input: 0, target: 1}' task.data.header=true" in note
    _, note = table(path, roles, columns={"input": 1, "target": 2}).notes
    assert note.endswith("if it is a header: task.data.header=true")
    for asked in (None, roles):
        report = check_corpora([Corpus({"train": [path]}, roles=asked)])
        assert report.count("maybe-header") == 1 and report.passed
    named = Corpus({"train": [path]}, columns={"input": "comment", "target": "rude"})
    assert check_corpora([named]).findings == []
    decimals = write(tmp_path, "d.csv", "film;stars\none;0,5\ntwo;1,5\nthree;2,5\n")
    assert check_corpora([Corpus({"train": [decimals]})]).count("maybe-header") == 1
    plain = write(tmp_path, "b.csv", "good film,pos\n42,neg\n7,pos\n")
    assert check_corpora([Corpus({"train": [plain]})]).count("maybe-header") == 1, "it may be"
    assert check_corpora([Corpus({"train": [write(tmp_path, "c.csv", "a,1\nb,0\nc,1\n")]})]).findings == []


def test_labels_before_texts_are_found_by_the_check_and_by_training(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", "".join(f"{'xy'[n % 2]}\tsome words {n}\n" for n in range(9)))
    for roles in (None, TASKS["classification"]):
        (file,) = check_corpora([Corpus({"train": [path]}, roles=roles)]).files
        assert "input = column 1, target = column 0" in file.read_as
        assert file.notes == list(table(path, TASKS["classification"]).notes)
    (file,) = check_corpora([Corpus({"train": [path]}, roles=TASKS["translation"])]).files
    assert "input = column 0, target = column 1" in file.read_as, "a translation may have any contents"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", '{"sentence": "a b", "label": 1}\n{"sentence": "c", "label": 0}\n'),
        ("a.json", '{"Review": ["a b", "c"], "Sentiment": [1, 0]}'),
    ],
)
def test_names_in_json(tmp_path: Path, name: str, content: str) -> None:
    path = write(tmp_path, name, content)
    stream = validate(DataConfig, {"train": str(path)}).stream("train", TASKS["classification"])
    assert stream is not None
    assert [record.values for record in stream] == [
        {"input": "a b", "target": 1},
        {"input": "c", "target": 0},
    ]
    (file,) = check_corpora([Corpus({"train": [path]})]).files
    assert file.read_as and any(note.endswith(f"is read {file.read_as}") for note in stream.notes)


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        ("title,words,label", "input = 'words', target = 'label'; ignored: 'title'"),
        ("label,id,words", "input = 'words', target = 'label'; ignored: 'id'"),
        ("id,text,grade", "input = 'text', target = 'grade'; ignored: 'id'"),
    ],
)
def test_a_header_that_names_one_role_is_not_an_example(tmp_path: Path, header: str, columns: str) -> None:
    """It was read as the first example, so that `label` became a class with one example."""
    cells = {"title": "News", "words": "one two three", "label": "xy", "id": "", "grade": "12"}
    cells |= {"text": cells["words"]}
    names = header.split(",")
    rows = [
        ",".join(cells[name][n % 2] if len(cells[name]) == 2 else f"{cells[name]}{n}" for name in names)
        for n in range(9)
    ]
    path = write(tmp_path, "a.csv", "\n".join([header, *rows]) + "\n")
    stream = table(path, TASKS["classification"])
    assert len(list(stream)) == 9
    (description, *_, warning) = stream.notes
    assert description.endswith(f"with a header line: {columns}")
    assert warning.startswith("WARNING: ") and "to choose: task.data.columns='{input: " in warning
    assert "task.data.header=false" in warning and "NAME" not in warning
    assert check_corpora([Corpus({"train": [path]})]).count("unnamed-column") == 1
    assert len(list(table(path, TASKS["classification"], header=False))) == 10
    numbers = {"input": names.index(columns.split("'")[1]), "target": names.index(columns.split("'")[3])}
    assert len(list(table(path, TASKS["classification"], columns=numbers))) == 9
