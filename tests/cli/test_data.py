"""`glassformer data`: list, fetch and check, their printed text and exit codes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from glassformer.cli import main
from glassformer.data import catalogue
from glassformer.data.catalogue import CatalogueFile, DataSet, Part
from glassformer.data.findings import KINDS

Ask = Callable[..., dict[str, Any]]
TRAIN = "one\ntwo\nthree\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in an empty working folder, with no data anywhere else."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GLASSFORMER_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    def run(*arguments: str, code: int = 0, says: str = "") -> dict[str, Any]:
        capfd.readouterr()
        assert main(["data", *arguments, "--json"]) == code
        output = capfd.readouterr()
        assert says in output.err
        assert output.out.count("\n") == 1
        document = json.loads(output.out)
        assert isinstance(document, dict)
        return document

    return run


def see(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    capfd.readouterr()
    main(["data", *arguments])
    return capfd.readouterr().out


@pytest.fixture
def small_set(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Add a small set to the catalogue, published in a local folder."""
    published = folder / "published.txt"
    published.write_text(TRAIN, encoding="utf-8")
    file = CatalogueFile("a.txt", len(TRAIN), hashlib.sha256(TRAIN.encode()).hexdigest(), published.as_uri())
    small = DataSet(
        "small", "three numbers", "free", "https://example.org", (file,), (Part({"train": ("a.txt",)}),)
    )
    monkeypatch.setitem(catalogue.CATALOGUE, "small", small)
    return published


def test_list(ask: Ask, small_set: Path, folder: Path) -> None:
    document = ask("list", says="multi30k")
    rows = {row["name"]: row for row in document["sets"]}
    assert document["folder"] == str(folder / "data")
    assert {"multi30k", "ted_enfr", "scan", "small"} <= rows.keys()
    assert rows["small"]["state"] == "absent" and rows["small"]["licence"] == "free"
    assert rows["small"]["files"][0].keys() == {"path", "size", "sha256", "address"}


def test_a_set_in_full(ask: Ask, small_set: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Print address and checksum of each file."""
    (row,) = ask("list", "small")["sets"]
    seen = see(capfd, "list", "small")
    for text in ("small", "free", "https://example.org", small_set.as_uri(), row["files"][0]["sha256"]):
        assert text in seen
    assert "multi30k" not in seen
    seen = see(capfd, "list", "cls_books_fr")
    assert "manual download" in seen and "1,600 / 400 / 2,000" in seen


def test_a_manual_download_is_not_fetched(ask: Ask) -> None:
    (error,) = ask("check", "cls_books_fr", code=2)["errors"]
    assert error["hint"] == "set GLASSFORMER_DATA; glassformer data list cls_books_fr explains how to get it"


def test_fetch_then_list_then_check(ask: Ask, small_set: Path, folder: Path) -> None:
    assert ask("check", "small", code=2)["errors"][0]["hint"].startswith("glassformer data fetch small")
    (row,) = ask("fetch", "small", says="checksums are correct")["sets"]
    assert row["fetched"] == [str(folder / "data" / "small" / "a.txt")]
    assert {row["name"]: row["state"] for row in ask("list")["sets"]}["small"] == "whole"
    assert ask("fetch", "small", says="already here and complete")["sets"][0]["fetched"] == []
    assert ask("check", "small", says="ready for training")["passed"]
    (folder / "data" / "small" / "a.txt").write_text(TRAIN.upper(), encoding="utf-8")
    document = ask("check", "small", code=2)
    assert [finding["kind"] for finding in document["findings"]] == ["wrong-checksum"]
    assert ask("list")["sets"][-1]["state"] == "changed"


def test_fetch_to_a_folder(ask: Ask, small_set: Path, folder: Path) -> None:
    ask("fetch", "small", "--to", "elsewhere")
    assert (folder / "elsewhere" / "small" / "a.txt").read_text(encoding="utf-8") == TRAIN


def test_a_refused_file_and_a_set_by_hand(ask: Ask, small_set: Path) -> None:
    small_set.write_text(TRAIN.upper(), encoding="utf-8")
    (error,) = ask("fetch", "small", code=2, says="rejected")["errors"]
    assert error["path"].startswith("a.txt from file:")
    (error,) = ask("fetch", "ted_enfr", code=2)["errors"]
    assert error["path"] == "ted_enfr" and "wit3.fbk.eu" in error["message"]


def test_check_files(ask: Ask, folder: Path) -> None:
    for name, content in {
        "a.en": TRAIN,
        "a.fr": "un\ndeux\ntrois\n",
        "b.en": "two\n",
        "b.fr": "deux\n",
    }.items():
        (folder / name).write_text(content, encoding="utf-8")
    document = ask("check", "a.en", "a.fr", "--test", "b.en", "b.fr", says="THE SPLITS OVERLAP")
    assert [file["lines"] for file in document["files"]] == [3, 3, 1, 1]
    (finding,) = document["findings"]
    assert (finding["kind"], finding["severity"], finding["count"]) == ("in-two-splits", "warning", 1)
    (place,) = finding["locations"]
    assert {"file": "b.en", "line": 1, "byte": 0, "excerpt": "two"}.items() <= place.items()
    assert document["passed"] is True

    (folder / "a.fr").write_bytes(b"un\nd\xe9\n")
    document = ask("check", "a.en", "a.fr", code=2, says="not usable for training")
    assert [finding["kind"] for finding in document["findings"]] == ["invalid-utf8", "unequal-lines"]
    assert document["passed"] is False
    assert ask("check", "a.en", "b.en", "--separate")["passed"]


def test_options_of_check(ask: Ask, folder: Path) -> None:
    rows = "".join(f"{number % 2}\tsome words here {number}\n" for number in range(20))
    (folder / "a.txt").write_text(rows + "same\t\n" * 3, encoding="utf-8")
    columns = ("--format", "tsv", "--columns", "{input: 1, target: 0}")
    document = ask("check", "a.txt", *columns, "--max-words", "3", "--locations", "1")
    found = {finding["kind"]: finding for finding in document["findings"]}
    assert found["too-long"]["count"] == 20 and len(found["too-long"]["locations"]) == 1
    assert found["empty-side"]["count"] == 3
    every = ask("check", "a.txt", *columns, "--max-words", "3", "--all")
    assert {len(finding["locations"]) for finding in every["findings"]} == {20, 3}


def test_check_the_files_of_a_config(ask: Ask, folder: Path, small_set: Path) -> None:
    (folder / "a.tsv").write_text("1 2\t2 1\n3 4\t4 3\n1 2\t2 1\n", encoding="utf-8")
    (folder / "mine.yaml").write_text("task: {kind: tokens, data: {train: a.tsv}}\n", encoding="utf-8")
    assert [finding["count"] for finding in ask("check", "mine.yaml")["findings"]] == [1]
    (folder / "data" / "small").mkdir(parents=True)
    (folder / "data" / "small" / "a.txt").write_text("5\t6\n7\t8\n", encoding="utf-8")
    changed = ask("check", "mine.yaml", "task.data.train=small/a.txt", "task.data.format=tsv")
    assert [Path(file["file"]).parts[-2:] for file in changed["files"]] == [("small", "a.txt")]
    document = ask("check", "reversal", says="no file to check")
    assert document == {"files": [], "findings": [], "leaks": [], "passed": True}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["lsit"], "did you mean 'list'"),
        (["check"], "check needs a name or a file"),
        (["fetch"], "fetch needs a name or a file"),
        (["list", "multi30"], "did you mean 'multi30k'"),
        (["fetch", "multi30"], "did you mean 'multi30k'"),
        (["check", "multi30"], "did you mean 'multi30k'"),
        (["check", "reversl"], "did you mean 'reversal'"),
        (["check", "review.txt"], "use reviews.txt"),
        (["check", "none/b.txt"], "no such file"),
        (["check", "multi30k/train.en"], "glassformer data fetch multi30k"),
        (["check", "a.txt", "--format", "tvs"], "did you mean 'tsv'"),
        (["check", "a.txt", "--format", "csv-semicolons"], "did you mean 'csv-semicolon'"),
        (["check", "a.txt", "--encoding", "utf-9"], "did you mean 'utf-8'"),
        (["check", "a.txt", "--columns", "[1"], "not valid YAML"),
        (["check", "a.txt", "--columns", "{inptu: 1}"], "did you mean 'input'"),
        (["check", "a.txt", "--max-words", "0"], "must be at least 1"),
        (["check", "a.txt", "--max-ratio", "0.5"], "must be at least 1"),
        (["check", "reversal", "--test", "a.txt"], "reversal has its own"),
        (["check", "a.txt", "--format", "tsv", "--columns", "{input: 7}"], "no column 7"),
    ],
)
def test_wrong_input(
    arguments: list[str], says: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.txt", "reviews.txt"):
        (folder / name).write_text("one\ntwo\n", encoding="utf-8")
    assert main(["data", *arguments]) == 2
    output = capfd.readouterr()
    assert says in output.err and "Traceback" not in output.err and output.out == ""
    assert len(output.err.strip().split("\n")) <= 4


def test_files_without_the_columns_of_the_task(ask: Ask, folder: Path) -> None:
    """Fail for a valid file that lacks the columns of the task."""
    (folder / "a.csv").write_text("text/label\n" + "one/x\ntwo/y\n" * 4, encoding="utf-8")
    (folder / "b.csv").write_text("text,label\none,x\ntwo,y\n", encoding="utf-8")
    train = ("check", "classification", "task.data.train=b.csv")
    assert ask(*train)["passed"]
    (error,) = ask("check", "classification", "task.data.train=a.csv", code=2)["errors"]
    assert "no column 1" in error["message"]
    (finding,) = ask(*train, "task.data.test=a.csv", code=2)["findings"]
    assert finding["kind"] == "other-layout"
    assert "1 column instead of 2" in finding["locations"][0]["detail"]


@pytest.mark.parametrize("width", [80, 120, 200])
def test_nothing_is_wider_than_the_terminal(
    width: int, folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    line = "a rather long line with [brackets] and 日本語, " * 4
    (folder / "long name [1] of a file.txt").write_text(f"{line}\n{line}\nbad\0\n" * 3, encoding="utf-8")
    text = see(capfd, "check", "long name [1] of a file.txt", "--max-words", "5")
    *lines, command, _ = text.split("\n")  # a command is not wrapped, so that it can be copied
    assert all(cell_len(shown) <= width for shown in lines) and command.startswith("train on it: glassformer")
    assert "[1]" in text and "[brackets]" in text
    assert "duplicate example" in text and "long name" in text


def test_every_kind_is_described_on_one_line() -> None:
    assert [
        name for name, kind in KINDS.items() if len(f"{kind.severity}: {kind.title} · {kind.advice}") > 80
    ] == []


SMALL = ["model.num_layers=1", "model.num_heads=2", "model.hidden_dim=8", "model.feed_forward_dim=8"]
TABLES = {
    "a header with known names": ("a.tsv", "label\tid\tsentence\n", "{}\t{}\ta text of words {}\n", []),
    "a header with other names": (
        "a.csv",
        "kind,title,body\n",
        "{},title {},a text of words {}\n",
        ["columns={input: [title, body], target: kind}", "separator=/"],
    ),
    "labels first": ("a.csv", "", "{},title of {},a text of words {}\n", []),
    "semicolons": ("a.csv", "text;label\n", "a text of words {1}, and {2};{0}\n", []),
    "numbers": ("a.tsv", "", "{1}\t{0}\ttext {2}\n", ["columns={input: 2, target: 1}"]),
    "json": ("a.jsonl", "", '{{"label": "{}", "id": {}, "review": "text {}"}}\n', []),
}


@pytest.mark.parametrize("name", TABLES)
def test_the_check_and_training_print_the_same_sentence(
    ask: Ask, capfd: pytest.CaptureFixture[str], folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLASSFORMER_CACHE", str(folder / "cache"))
    file, header, line, options = TABLES[name]
    (folder / file).write_text(header + "".join(line.format("xy"[n % 2], n, n) for n in range(40)))
    settings = [f"task.data.train={file}", *(f"task.data.{option}" for option in options)]
    flags = [
        part for option in options for part in (f"--{option.partition('=')[0]}", option.partition("=")[2])
    ]
    by_files, by_task = ask("check", file, *flags), ask("check", "classification", *settings)
    sentence, *others = by_files["files"][0]["notes"]
    assert sentence.startswith(f"{file} is read ") and [sentence, *others] == by_task["files"][0]["notes"]
    capfd.readouterr()
    assert main(["train", "classification", *settings, *SMALL, "training.max_steps=1", "--run", "run"]) == 0
    assert {sentence, *others} <= set(capfd.readouterr().err.splitlines())
    monkeypatch.setenv("COLUMNS", "300")
    assert sentence in see(capfd, "check", file, *flags)


def test_columns_and_classes_are_shown(ask: Ask, capfd: pytest.CaptureFixture[str], folder: Path) -> None:
    rows = "".join(f'"{min(n % 5, 2)}","A title of {n}","Some words of a text, {n}"\n' for n in range(50))
    (folder / "ag.csv").write_text(rows)
    document = ask("check", "ag.csv")
    (file,) = document["files"]
    assert [(each["column"], each["role"], each["example"]) for each in file["columns"]] == [
        (0, "target", "0"),
        (1, "input", "A title of 0"),
        (2, "", "Some words of a text, 0"),
    ]
    assert [(each["label"], each["count"], each["share"]) for each in document["classes"]] == [
        ("2", 30, 0.6),
        ("0", 10, 0.2),
        ("1", 10, 0.2),
    ]
    assert document["command"] == "glassformer train classification task.data.train=ag.csv"
    shown = see(capfd, "check", "ag.csv")
    assert "ignored   Some words of a text, 0" in shown
    assert "always '2' is right for 60.0 % of train" in shown and "30   60.0 %" in shown
    assert "task.data.columns='{input: [1, 2], target: 0}'" in shown
    columns = "{input: [1, 2], target: 0}"
    assert ask("check", "ag.csv", "--columns", columns)["command"].endswith(f"'task.data.columns={columns}'")


def test_a_header_is_not_an_overlap(ask: Ask, folder: Path) -> None:
    """The header of the test file was compared with the examples of train."""
    rows = "".join(f"text {n}\t{'xy'[n % 2]}\n" for n in range(30))
    (folder / "train.tsv").write_text(f"{rows}content\tx\n")
    (folder / "test.tsv").write_text("content\tlabel\n" + "".join(f"other {n}\tx\n" for n in range(30)))
    document = ask("check", "train.tsv", "--test", "test.tsv", code=2)
    assert document["leaks"] == []
    assert [finding["kind"] for finding in document["findings"]] == ["other-layout"]
    (folder / "train.tsv").write_text(f"text\tlabel\n{rows}content\tx\n")
    (finding,) = ask("check", "train.tsv", "--test", "test.tsv", code=2)["findings"]
    assert finding["kind"] == "other-layout"
    assert "if the columns mean the same: --columns '{" in finding["locations"][0]["detail"]


def test_labels_that_train_does_not_have(ask: Ask, folder: Path) -> None:
    (folder / "train.tsv").write_text("".join(f"text {n}\t{'xy'[n % 2]}\n" for n in range(30)))
    for unknown, kind, code in ((3, "new-label", 0), (4, "other-labels", 2)):
        rows = [f"other {n}\t{'z' if n < unknown else 'x'}\n" for n in range(20)]
        (folder / "test.tsv").write_text("".join(rows))
        (finding,) = ask("check", "train.tsv", "--test", "test.tsv", code=code)["findings"]
        assert (finding["kind"], finding["count"]) == (kind, unknown)
        options = ["task.data.train=train.tsv", "task.data.test=test.tsv"]
        (finding,) = ask("check", "classification", *options, code=code)["findings"]
        assert finding["kind"] == kind


def test_the_table_of_classes_is_short(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.tsv"
    rows = [f"some words {n}\t{'x' * 36} label {n % 30}\n" for n in range(200)]
    path.write_text("text\tlabel\n" + "".join(rows))
    main(["data", "check", "classification", f"task.data.train={path}"])
    out = capfd.readouterr().out
    assert "and 20 more" in out and "x" * 36 + " la… " in out.partition("class  ")[2]


def test_two_files_of_one_name_get_the_whole_command(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for ending in ("neg", "pos"):
        (tmp_path / f"polarity.{ending}").write_text("one\ntwo\n")
    assert main(["data", "check", str(tmp_path)]) == 2
    command = f"glassformer data check classification task.data.train={tmp_path} 'task.data.classes="
    assert command + "{neg: polarity.neg, pos: polarity.pos}'" in capfd.readouterr().err


def test_another_encoding_has_its_command(
    ask: Ask, capfd: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = "text;label\n" + "".join(f"un caf\u00e9 {number};{'xy'[number % 2]}\n" for number in range(40))
    for encoding in ("utf-16", "latin-1"):
        (folder / "a.csv").write_bytes(text.encode(encoding))
        document = ask("check", "a.csv", code=2)
        assert [finding["kind"] for finding in document["findings"]] == ["invalid-utf8"]
        command = f"glassformer data check a.csv --encoding {encoding}"
        assert f"if the files are {encoding}: {command}" in see(capfd, "check", "a.csv")
        assert ask(*command.split()[2:])["passed"]
        (finding,) = ask("check", "classification", "task.data.train=a.csv", code=2)["findings"]
        assert finding["kind"] == "invalid-utf8"


def test_files_that_are_not_classes_are_left_out(ask: Ask, folder: Path) -> None:
    (folder / "own").mkdir()
    for name in ("good", "bad"):
        (folder / "own" / f"{name}.txt").write_text(
            "".join(f"{name} text {number}\n" for number in range(20))
        )
    for name in ("README.txt", "notes.md", "meta.xml"):
        (folder / "own" / name).write_text("one\ntwo\n")
    document = ask("check", "own")
    assert {each["label"] for each in document["classes"]} == {"good", "bad"}
    (note,) = [note for file in document["files"] for note in file["notes"]]
    assert note.startswith(
        "own: not read as classes: README.txt, meta.xml, notes.md; to read them: task.data"
    )


def test_a_harmless_note_takes_one_line(capfd: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "a.csv").write_bytes(
        b"text,label\r\n" + b"".join(b"row %d,%d\r\n" % (n, n % 2) for n in range(20))
    )
    lines = see(capfd, "check", "a.csv").splitlines()
    start = lines.index("note: lines end in CR LF \u00b7 fine: read as LF")
    assert lines[start + 1 : start + 3] == ["", "usable for training; 1 kind of note"]


def test_a_folder_of_many_files_has_one_row_per_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(60):
        path = Path("mail") / ("ham", "spam")[number % 2] / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"a mail, number {number}\n")
    assert main(["data", "check", "mail"]) == 0
    table = capfd.readouterr().out.partition("class  ")[0]
    assert table.count("(30 files)") == 2 and ".txt" not in table and "more" not in table
