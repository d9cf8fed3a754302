"""Streams of text files: lines, running text, folders of classes, and every format."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.core.config import validate
from glassformer.core.errors import UserError
from glassformer.data import text_files
from glassformer.data.formats import Record, RunningText, Stream
from glassformer.data.readers import DataConfig
from glassformer.data.splits import is_split_off, split_stream
from glassformer.data.text_files import MAX_LINE_CHARACTERS, TextFile

HARD = "a\u2028b\x85c\x1cd\x0be\x00f\rg 🙂\ufeff é e\u0301"
"""One line, though other line splitters would split it."""
PAIRS = {"source": "source", "target": "target"}
LABELLED = {"text": "text", "label": "label"}
ONLY_TEXT = {"text": "text"}


def stream(source: str | list[str] | Path, roles: dict[str, str], **options: Any) -> Stream:
    given = source if isinstance(source, list) else str(source)
    found = validate(DataConfig, {"train": given, **options}).stream("train", roles)
    assert found is not None
    return found


def values(found: Stream) -> list[tuple[Any, ...]]:
    return [tuple(record.values.values()) for record in found]


def error_of(source: str | list[str] | Path, roles: dict[str, str], **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        list(stream(source, roles, **options))
    text = str(caught.value)
    assert 2 <= len(text.split("\n")) <= 5
    return text


@pytest.fixture(params=[1, 2, 3, 7, 1 << 16])
def bytes_at_a_time(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(text_files, "CHUNK_BYTES", request.param)
    return int(request.param)


class TestLines:
    @settings(max_examples=200, deadline=None)
    @given(st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]))))
    def test_only_a_line_feed_ends_a_line(
        self, tmp_path_factory: pytest.TempPathFactory, lines: list[str]
    ) -> None:
        kept = ["begin", *(line.removesuffix("\r") for line in lines)]
        path = tmp_path_factory.mktemp("lines") / "a.txt"
        for end in ("\n", "\r\n"):
            path.write_bytes("".join(line + end for line in kept).encode())
            expected = kept if end == "\r\n" else [line.removesuffix("\r") for line in kept]
            assert list(TextFile(path, "here").lines()) == expected

    @pytest.mark.usefixtures("bytes_at_a_time")
    @pytest.mark.parametrize("is_zipped", [False, True])
    def test_wherever_the_pieces_end(self, tmp_path: Path, is_zipped: bool) -> None:
        data = f"\ufeffone\r\n\r\n{HARD}\n last".encode()
        path = tmp_path / ("a.txt.gz" if is_zipped else "a.txt")
        path.write_bytes(gzip.compress(data) if is_zipped else data)
        assert list(TextFile(path, "here").lines()) == ["one", "", HARD, " last"]
        assert "".join(TextFile(path, "here").blocks(5)) == f"one\n\n{HARD}\n last"

    @pytest.mark.usefixtures("bytes_at_a_time")
    @pytest.mark.parametrize(
        ("data", "line", "byte", "value"),
        [
            (b"a\nb\xc3\xa9\ncaf\xe9\ny\n", 3, 9, "e9"),
            (b"\xff\n", 1, 0, "ff"),
            ("é\n\n🙂".encode()[:-1], 3, 4, "f0"),
            (b"\xef\xbb\xbfab\n\xed\xa0\x80", 2, 6, "ed"),
        ],
    )
    def test_invalid_utf8(self, tmp_path: Path, data: bytes, line: int, byte: int, value: str) -> None:
        (tmp_path / "a.txt").write_bytes(data)
        message = error_of(tmp_path / "a.txt", ONLY_TEXT)
        assert f"a.txt: not UTF-8 at line {line}, byte {byte} of the file (0x{value})" in message
        likely = "cp1252" if any(0x80 <= byte < 0xA0 for byte in data.split(b"\n")[line - 1]) else "latin-1"
        assert f"task.data.encoding={likely}" in message

    @pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "cp1252", "utf-16-le", "shift_jis"])
    def test_other_encodings(self, tmp_path: Path, encoding: str) -> None:
        text = "café" if encoding != "shift_jis" else "日本"
        (tmp_path / "a.txt").write_bytes(f"{text}\r\nb\n".encode(encoding))
        assert values(stream(tmp_path / "a.txt", ONLY_TEXT, encoding=encoding)) == [(text,), ("b",)]

    def test_errors(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_bytes(b"a\x80\n")
        assert "not shift_jis at line 1, byte 1" in error_of(
            tmp_path / "a.txt", ONLY_TEXT, encoding="shift_jis"
        )
        message = error_of(tmp_path / "a.txt", ONLY_TEXT, encoding="utf-88")
        assert "task.data.encoding: unknown text encoding" in message and "did you mean 'utf-8'?" in message
        assert "unknown text encoding" in error_of(tmp_path / "a.txt", ONLY_TEXT, encoding="hex")
        (tmp_path / "b.txt").write_bytes(b" \r\n" * 100_000)
        assert "b.txt: the file is empty" in error_of(tmp_path / "b.txt", ONLY_TEXT)
        assert "no such file" in error_of(tmp_path / "c.txt", ONLY_TEXT)

    def test_a_long_line_takes_linear_time_and_a_longer_one_is_rejected(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_bytes(b"x" * MAX_LINE_CHARACTERS + b"\ny")
        assert [len(text) for (text,) in values(stream(tmp_path / "a.txt", ONLY_TEXT))] == [
            MAX_LINE_CHARACTERS,
            1,
        ]
        (tmp_path / "a.txt").write_bytes(b"y\n" + b"x" * (MAX_LINE_CHARACTERS + 100_000))
        with pytest.raises(UserError, match="line 2 has more than"):
            values(stream(tmp_path / "a.txt", ONLY_TEXT))

    def test_other_encodings_are_named(self, tmp_path: Path) -> None:
        for encoding, words in (
            ("utf-16", "encoding=utf-16"),
            ("utf-16-le", "utf-16-le"),
            ("utf-32", "utf-32"),
        ):
            (tmp_path / "a.txt").write_text("one\ntwo\n", encoding=encoding)
            with pytest.raises(UserError, match=words):
                values(stream(tmp_path / "a.txt", ONLY_TEXT))

    def test_a_fifo_is_rejected(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "a.txt")
        with pytest.raises(UserError, match="not a regular file"):
            values(stream(tmp_path / "a.txt", ONLY_TEXT))

    def test_carriage_returns_alone(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_bytes(b"one\rtwo\rthree\r")
        with pytest.raises(UserError, match="carriage returns alone"):
            values(stream(tmp_path / "a.txt", ONLY_TEXT))


class TestFormats:
    CONTENT = {  # noqa: RUF012
        "tsv": f"x\t{HARD}\ny\t \n",
        "csv": f'x,"{HARD}"\ny, \n',
        "jsonl": json.dumps({"label": "x", "text": HARD}) + "\n\n" + json.dumps({"text": " ", "label": "y"}),
        "json": json.dumps({"text": [HARD, " "], "label": ["x", "y"]}),
    }

    @pytest.mark.parametrize("is_zipped", [False, True])
    @pytest.mark.parametrize("kind", list(CONTENT))
    def test_streams_are_read_again(self, tmp_path: Path, kind: str, is_zipped: bool) -> None:
        data = self.CONTENT[kind].encode()
        path = tmp_path / f"a.{kind}{'.gz' if is_zipped else ''}"
        path.write_bytes(gzip.compress(data) if is_zipped else data)
        columns = {"text": 1, "label": 0} if kind in ("tsv", "csv") else {}
        found = stream(path, LABELLED, columns=columns)
        assert values(found) == values(found) == [(HARD, "x"), (" ", "y")]
        assert found.files == [path] and found.name == str(path)
        last = list(found)[-1].number
        assert last == (3 if kind == "jsonl" else 2)
        assert found.location(last) == f"{path}, {'row' if kind == 'json' else 'line'} {last}"
        assert len(found.notes) == 1

    @pytest.mark.parametrize("name", ["a.txt", "train.en", "corpus", "a.txt.gz", "rt-polarity.neg"])
    def test_only_texts_may_have_any_ending(self, tmp_path: Path, name: str) -> None:
        data = f"{HARD}\n\nb".encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        assert values(stream(tmp_path / name, ONLY_TEXT)) == [(HARD,), ("",), ("b",)]
        assert "does not match any known format" in error_of(tmp_path / name, PAIRS)
        assert "1 file given where 2 are needed: source, target" in error_of(
            tmp_path / name, PAIRS, format="text"
        )

    def test_one_column_of_a_table(self, tmp_path: Path) -> None:
        (tmp_path / "a.tsv").write_text("english\tfrench\nGo.\tVa !\n", encoding="utf-8")
        assert values(stream(tmp_path / "a.tsv", ONLY_TEXT, columns={"text": "french"})) == [("Va !",)]

    def test_aligned_files(self, tmp_path: Path) -> None:
        paths = [str(tmp_path / name) for name in ("a.en", "a.fr")]
        Path(paths[0]).write_text(f"{HARD}\nb\n", encoding="utf-8")
        Path(paths[1]).write_text("x\ny", encoding="utf-8")
        found = stream(paths, PAIRS)
        assert values(found) == [(HARD, "x"), ("b", "y")]
        assert [str(path) for path in found.files] == paths
        Path(paths[1]).write_text("x\ny\nz\nz\n", encoding="utf-8")
        message = error_of(paths, PAIRS)
        assert f"{paths[1]}: the file has 4 lines, but {paths[0]} has 2" in message
        assert "2 files given where 1 is needed: text" in error_of(paths, ONLY_TEXT)
        assert "0 files given where 2 are needed" in error_of([], PAIRS)

    def test_a_stream_does_not_read_ahead(self, tmp_path: Path) -> None:
        """An error far down is raised there, not before."""
        (tmp_path / "a.jsonl").write_text('{"text": "a"}\n' * 50_000 + "{", encoding="utf-8")
        records = iter(stream(tmp_path / "a.jsonl", ONLY_TEXT))
        assert next(records) == Record({"text": "a"}, 1, {"text": "a"})
        with pytest.raises(UserError, match="line 50001: not valid JSON"):
            list(records)


class TestRunningText:
    @settings(max_examples=200, deadline=None)
    @given(
        st.text(st.sampled_from(" \n\r\tab🙂é\u2028"), min_size=1).filter(str.strip),
        st.integers(1, 12),
        st.integers(0, 100),
    )
    def test_blocks_joined_are_the_text(
        self, tmp_path_factory: pytest.TempPathFactory, text: str, size: int, percent: int
    ) -> None:
        path = tmp_path_factory.mktemp("running") / "a.txt"
        path.write_bytes(text.encode())
        found = RunningText(TextFile(path, "here"), ["text"], block_characters=size)
        whole = text.replace("\r\n", "\n")
        records = list(found)
        assert "".join(record.values["text"] for record in records) == whole
        assert all(1 <= len(record.values["text"]) <= size for record in records)
        self._check_numbers(records, whole, 0)
        border = int(len(whole) * percent / 100)
        if 0 < border < len(whole):
            first, second = found.split_at(percent / 100)
            assert "".join(record.values["text"] for record in first) == whole[:border]
            assert "".join(record.values["text"] for record in second) == whole[border:]
            self._check_numbers(list(second), whole, border)

    @staticmethod
    def _check_numbers(records: list[Record], whole: str, position: int) -> None:
        for record in records:
            assert record.number == whole.count("\n", 0, position) + 1
            position += len(record.values["text"])

    def test_where_blocks_end(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("one two\nthree four fiiiiiiiiiiiiiive", encoding="utf-8")
        blocks = list(TextFile(tmp_path / "a.txt", "here").blocks(10))
        assert blocks == ["one two\n", "three", " four", " fiiiiiiii", "iiiiiive"]

    def test_in_the_config(self, tmp_path: Path) -> None:
        text = "".join(f"line {number}\n" for number in range(20_000))
        (tmp_path / "a.txt").write_text(text, encoding="utf-8")
        found = stream(tmp_path / "a.txt", ONLY_TEXT, format="running-text")
        assert found.is_running and not stream(tmp_path / "a.txt", ONLY_TEXT).is_running
        assert 1 < len(values(found)) < 10 and "".join(text for (text,) in values(found)) == text
        parts = split_stream(found, "text", 0.1, 0)
        train, validation = ("".join(t for (t,) in values(parts[name])) for name in ("train", "validation"))
        assert train + validation == text and len(train) == int(len(text) * 0.9)
        assert "a running text has one column, but 2 are needed" in error_of(
            tmp_path / "a.txt", PAIRS, format="running-text"
        )

    def test_too_little_to_split(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("a", encoding="utf-8")
        with pytest.raises(UserError, match="1 character cannot be split"):
            split_stream(stream(tmp_path / "a.txt", ONLY_TEXT, format="running-text"), "text", 0.1, 0)


class TestFolders:
    @pytest.fixture
    def files(self, tmp_path: Path) -> Path:
        """One file per class."""
        (tmp_path / "neg.txt").write_text(f"bad\n\n{HARD}\n", encoding="utf-8")
        (tmp_path / "pos.txt.gz").write_bytes(gzip.compress(b"good\r\nfine"))
        (tmp_path / ".hidden").write_text("no class", encoding="utf-8")
        return tmp_path

    @pytest.fixture
    def folders(self, tmp_path: Path) -> Path:
        """One folder per class."""
        for label, name, text in [("pos", "1.txt", "good\r\nfine\n"), ("neg", "2", HARD), ("neg", "1", "")]:
            (tmp_path / label).mkdir(exist_ok=True)
            (tmp_path / label / name).write_bytes(text.encode())
        return tmp_path

    def test_one_file_per_class(self, files: Path) -> None:
        found = stream(files, LABELLED)
        expected = [("bad", "neg"), ("", "neg"), (HARD, "neg"), ("good", "pos"), ("fine", "pos")]
        assert values(found) == values(found) == expected
        assert found.files == [files / "neg.txt", files / "pos.txt.gz"]
        places = [found.location(record.number) for record in found]
        assert places[2:4] == [f"{files / 'neg.txt'}, line 3", f"{files / 'pos.txt.gz'}, line 1"]
        assert values(stream(files, ONLY_TEXT)) == [(text,) for text, _ in expected]

    def test_one_folder_per_class(self, folders: Path) -> None:
        found = stream(folders, LABELLED)
        assert values(found) == [("", "neg"), (HARD, "neg"), ("good\nfine", "pos")]
        assert [found.location(record.number) for record in found] == [str(path) for path in found.files]

    def test_rows_have_locations(self, files: Path) -> None:
        rows = DataConfig(train=str(files)).read("train", LABELLED)
        assert rows is not None and rows.name == str(files)
        assert rows.take([3, 1]).location(0) == f"{files / 'pos.txt.gz'}, line 1"

    def test_named_classes(self, tmp_path: Path) -> None:
        (tmp_path / "README.txt").write_text("about", encoding="utf-8")
        (tmp_path / "rt.neg").write_bytes("mal formé\n".encode("latin-1"))
        (tmp_path / "rt.pos").mkdir()
        (tmp_path / "rt.pos" / "1").write_bytes(b"bien")
        classes = {"positive": "rt.pos", "negative": "rt.neg"}
        found = stream(tmp_path, LABELLED, classes=classes, encoding="latin-1")
        assert values(found) == [("bien", "positive"), ("mal formé", "negative")]
        assert "rt.neg: not UTF-8 at line 1, byte 8" in error_of(tmp_path, LABELLED, classes=classes)
        message = error_of(tmp_path, LABELLED, classes={"a": "rt.negg", "b": "rt.pos"})
        assert "task.data.classes.a" in message and "did you mean 'rt.neg'?" in message
        assert "contains both files and folders" in error_of(tmp_path, LABELLED)

    def test_errors(self, tmp_path: Path, files: Path) -> None:
        assert "is not a folder" in error_of(files / "neg.txt", ONLY_TEXT, classes={"a": "b"})
        assert "is a file, not a folder" in error_of(files / "neg.txt", LABELLED, format="folder")
        assert "no such folder" in error_of(files / "nag", LABELLED, format="folder")
        roles = {name: name for name in "abc"}
        assert "texts and labels, but 3 columns are needed" in error_of(files, roles)
        (files / "pos.csv").write_text("x", encoding="utf-8")
        message = error_of(files, LABELLED)
        assert "two files have the name 'pos'" in message and "task.data.classes=" in message

    def test_too_few_classes(self, tmp_path: Path) -> None:
        assert "the folder is empty" in error_of(tmp_path, LABELLED)
        assert "the folder is empty" in error_of(tmp_path, ONLY_TEXT)
        (tmp_path / "pos").mkdir()
        assert "contains only one class" in error_of(tmp_path, LABELLED)
        (tmp_path / "neg").mkdir()
        assert "neg: the folder is empty" in error_of(tmp_path, LABELLED)
        (tmp_path / "neg" / "more").mkdir()
        assert "neg: the folder contains another folder, 'more'" in error_of(tmp_path, LABELLED)


class TestSplitOff:
    def test_a_fraction_of_different_keys(self) -> None:
        keys = [f"key {number}" for number in range(20_000)]
        share = sum(is_split_off(key, 0.1, 0) for key in keys) / len(keys)
        assert 0.09 < share < 0.11
        assert all(is_split_off(key, 0.3, 0) for key in keys if is_split_off(key, 0.1, 0))
        assert {is_split_off(key, 0.1, 0) == is_split_off(key, 0.1, 1) for key in keys} == {True, False}

    def test_the_same_on_every_machine(self) -> None:
        """Recorded result: a change would move examples between the splits of existing runs."""
        chosen = [number for number in range(60) if is_split_off(str(number), 0.1, 7)]
        assert chosen == [23, 55]

    def test_parts_of_a_stream(self, tmp_path: Path) -> None:
        lines = [f"{number % 700}\t{number}" for number in range(2000)]
        (tmp_path / "a.tsv").write_text("\n".join(lines), encoding="utf-8")
        whole = stream(tmp_path / "a.tsv", LABELLED)
        parts = split_stream(whole, "text", 0.2, 0)
        train, validation = values(parts["train"]), values(parts["validation"])
        assert sorted(train + validation) == sorted(values(whole))
        assert not {text for text, _ in train} & {text for text, _ in validation}
        assert 0.15 < len(validation) / 2000 < 0.25
        assert train == values(parts["train"])
        assert parts["train"].files == whole.files and parts["validation"].notes == whole.notes
        assert all(parts["validation"].location(n).endswith(f"line {n}") for _, n, _ in parts["validation"])

    def test_too_few(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("a\na\n", encoding="utf-8")
        parts = split_stream(stream(tmp_path / "a.txt", ONLY_TEXT), "text", 0.5, 0)

        def read_all() -> Iterator[Record]:
            for part in parts.values():
                yield from part

        with pytest.raises(UserError, match="too few different examples to split"):
            list(read_all())


@pytest.mark.parametrize(
    ("beginning", "name"),
    [
        (b"PK\x03\x04\x14\0\x06\0", "an Excel, OpenDocument or ZIP file"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Excel or Word file"),
        (b"%PDF-1.7\n%\xe2\xe3", "a PDF file"),
        (b"PAR1\x15\x04", "a Parquet file"),
        (b"\x1f\x8b\x08\0", "a gzip file"),
    ],
)
def test_files_that_are_not_text_are_named(
    tmp_path: Path, beginning: bytes, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """An Excel file called .csv was once to be read as latin-1, then as UTF-16, then quoted."""
    from glassformer.cli import main

    path = tmp_path / "a.csv"
    path.write_bytes(beginning + bytes(range(256)) * 4)
    with pytest.raises(UserError, match=f"this is {name}, not a text file"):
        list(TextFile(path, "task.data.train").lines())
    assert main(["data", "check", str(path)]) == 2
    error = capfd.readouterr().err
    assert name in error and "latin-1" not in error and len(error.splitlines()) <= 3


@pytest.mark.parametrize(
    ("data", "likely"),
    [
        (b"caf\xe9\n", "latin-1"),
        (b"\x93caf\xe9\x94\n", "cp1252"),
        (b"7 \x80\n", "cp1252"),
        ("déjà 7 €\n".encode() + b"7 \x80\n", "cp1252"),
        (b"\x81\x8d\n", "NAME"),
    ],
)
def test_bytes_of_windows_1252_are_not_latin_1(tmp_path: Path, data: bytes, likely: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    with pytest.raises(UserError, match=rf"task\.data\.encoding={likely}, "):
        list(TextFile(path, "task.data.train").lines())


@pytest.mark.parametrize(
    ("encoding", "advice"), [("latin-1", "task.data.encoding=cp1252"), ("utf-8", "decoded as latin-1 before")]
)
def test_control_characters_are_a_warning_of_training(tmp_path: Path, encoding: str, advice: str) -> None:
    path = tmp_path / "a.tsv"
    path.write_bytes("one\tfine\ntwo\t7 \x80\n".encode(encoding))
    found = stream(path, LABELLED, encoding=encoding)
    assert len(list(found)) == 2
    (warning,) = [note for note in found.notes if "WARNING" in note]
    assert "a.tsv, line 2: the text has the control character U+0080" in warning and advice in warning
    path.write_bytes("one\tfiné\ntwo\t7 €\n".encode())
    found = stream(path, LABELLED)
    assert len(list(found)) == 2 and not any("WARNING" in note for note in found.notes)


def test_a_few_bad_bytes_in_utf8_are_lines_to_repair(tmp_path: Path) -> None:
    lines = [f"un café numéro {number}".encode() for number in range(1000)]
    lines[6], lines[501] = b"caf\xe9", b"\xff"
    path = tmp_path / "a.txt"
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(UserError) as error:
        list(TextFile(path, "task.data.train").lines())
    assert "the other lines are UTF-8: repair lines 7, 502" in str(error.value)
    assert "latin-1" not in str(error.value)
    path.write_bytes(b"plain\ncaf\xe9\n")
    with pytest.raises(UserError, match=r"task\.data\.encoding=latin-1"):
        list(TextFile(path, "task.data.train").lines())
