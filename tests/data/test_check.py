"""`data check`: each kind of finding in a file of its own, with its line and its byte."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.cli import main
from glassformer.core.errors import ErrorDetail, UserError
from glassformer.data import check as check_module
from glassformer.data import text_files
from glassformer.data.check import Corpus, Limits, check_corpora
from glassformer.data.findings import Findings, Location, Report, excerpt
from glassformer.data.labels import label_warnings
from glassformer.data.roles import comma_number
from glassformer.tasks.base import parse_number

Write = Callable[[str, str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(name: str, content: str | bytes) -> Path:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return tmp_path / name

    return write_file


def check(splits: Mapping[str, Sequence[Path]], *options: Any, **named: Any) -> Report:
    return check_corpora([Corpus(splits)], *options, **named)


def counts(report: Report) -> dict[str, int]:
    return {finding.kind: finding.count for finding in report.findings}


def locations(report: Report, kind: str) -> list[Location]:
    (finding,) = [finding for finding in report.findings if finding.kind == kind]
    return finding.locations


@pytest.mark.parametrize(
    ("content", "kind", "line", "byte", "shown"),
    [
        (b"one\ncaf\xe9 noir\n", "invalid-utf8", 2, 7, "caf\\xe9 noir"),
        (b"\xff\xfeo\0", "invalid-utf8", 1, 0, ""),
        ("\ufeffone\ntwo\n", "byte-order-mark", 1, 0, "one"),
        ("one\ntwo\ufeff\n", "inner-byte-order-mark", 2, 7, "two\\ufeff"),
        ("one\nté\0wo\n", "nul", 2, 7, "té\\x00wo"),
        ("one\ntwo\r\n", "crlf", 2, 7, "two"),
        ("one\ntwo\r", "crlf", 2, 7, "two"),
        ("one\nt\rwo\n", "line-separator", 2, 5, "t\\rwo"),
        ("é\nt\u2028wo\n", "line-separator", 2, 4, "t\\u2028wo"),
        ("one\nt\u2029wo\n", "line-separator", 2, 5, "t\\u2029wo"),
        ("one\nt\x85wo\n", "line-separator", 2, 5, "t\\x85wo"),
        ("one\nt\x80wo\n", "c1-control", 2, 5, "t\\x80wo"),
        ("one\nt\x0bwo\n", "line-separator", 2, 5, "t\\x0bwo"),
        ("one\nt\x0cwo\n", "line-separator", 2, 5, "t\\x0cwo"),
        ("one\n\nthree\n", "empty-line", 2, 4, ""),
        ("one\n \t\u00a0\nthree\n", "empty-line", 2, 4, " \\t "),
        ("one\ntwo", "no-final-newline", 2, 7, "two"),
        ("one\ntwo\none\n", "duplicate", 3, 8, "one"),
        ("one\na b c d e f\n", "too-long", 2, 4, "a b c d e f"),
        (b"", "empty-file", 1, 0, ""),
    ],
)
def test_a_finding_and_its_location(
    content: str | bytes, kind: str, line: int, byte: int, shown: str, write: Write
) -> None:
    path = write("a.txt", content)
    report = check({"train": [path]}, Limits(max_words=5))
    (location,) = locations(report, kind)
    assert (location.file, location.line, location.byte, location.excerpt) == (str(path), line, byte, shown)
    others = set(counts(report)) - {kind, "no-final-newline", "nul"}
    assert not others


@pytest.mark.parametrize(("euro", "encoding"), [(b"", "latin-1"), (b" \x80", "cp1252")])
def test_the_likely_encoding_is_suggested(euro: bytes, encoding: str, write: Write) -> None:
    path = write("a.txt", b"".join(b"caf\xe9 %d%b\n" % (number, euro) for number in range(20)))
    assert check({"train": [path]}).encoding == encoding
    corpus = Corpus({"train": [path]}, encoding="latin-1")
    assert bool(counts(check_corpora([corpus])).get("c1-control")) == bool(euro)


def quoted_tsv(rows: int, is_multiline: bool = False) -> str:
    """Return a table with quotes around all fields, or only around texts of two lines."""
    lines = [f'"a text {row}"\t"{("bad", "good")[row % 2]}"' for row in range(rows)]
    if is_multiline:
        lines[1::2] = [f'"a text\n of two lines {row}"\tgood' for row in range(1, rows, 2)]
    return "\n".join(["text\tlabel" if is_multiline else '"text"\t"label"', *lines]) + "\n"


@pytest.mark.parametrize("is_multiline", [False, True])
def test_quotes_around_the_fields_of_a_tsv_file(
    is_multiline: bool, write: Write, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write("a.tsv", quoted_tsv(40, is_multiline))
    report = check({"train": [path]})
    assert report.count("quoted-fields") == 1 and report.passed != is_multiline
    assert "task.data.format=csv" in "".join(report.files[0].notes)
    if is_multiline:
        assert main(["train", "classification", f"task.data.train={path}", "--quiet"]) == 2
        assert "quotes enclose the fields: task.data.format=csv" in capfd.readouterr().err
    assert check_corpora([Corpus({"train": [path]}, format="csv")]).passed


def test_quotes_inside_texts_are_ordinary_in_a_tsv_file(write: Write) -> None:
    texts = ['"Great," she said', "no quote", '"quoted"', 'a "word"', "last", "and", "more"]
    path = write("a.tsv", "".join(f"{text}\t{'ab'[row % 2]}\n" for row, text in enumerate(texts * 3)))
    assert check({"train": [path]}).count("quoted-fields") == 0


def test_classes_add_up_to_the_examples(write: Write) -> None:
    """A first line that may be a header is read as an example, and its label is a class."""
    report = check({"train": [write("a.tsv", quoted_tsv(40))]})
    assert report.count("maybe-header") == 1 and report.files[0].examples == 41
    assert {each.label: each.count for each in report.classes} == {
        '"bad"': 20,
        '"good"': 20,
        '"label"': 1,
    }


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        ("14,7", "decimal comma? write 14.7"),
        ("1.200,5", "decimal comma? write 1200.5"),
        ("1,200,300", "thousands separators? write 1200300"),
        ("-1,200.5", "thousands separators? write -1200.5"),
        ("1,200", "thousands separator? write 1200; decimal comma? write 1.200"),
    ],
)
def test_numbers_with_a_comma(number: str, advice: str, write: Write) -> None:
    rows = [f"a text of row {row};{number if row % 2 else row}" for row in range(20)]
    path = write("a.csv", "\n".join(["text;hours", *rows]) + "\n")
    for corpus in (
        Corpus({"train": [path]}),
        Corpus({"train": [path]}, roles={"input": "text", "target": "hours"}, has_classes=False),
    ):
        report = check_corpora([corpus])
        assert report.count("comma-number") == 10 and not report.passed
        assert locations(report, "comma-number")[0].detail == advice
    assert check({"train": [path]}).source == "classification task.target=number"
    with pytest.raises(ErrorDetail) as error:
        parse_number(number)
    assert error.value.hint == advice
    labels = Corpus({"train": [path]}, roles={"input": "text", "target": "hours"}, has_classes=True)
    assert check_corpora([labels]).count("comma-number") == 0
    (warning,) = label_warnings({number: 3, "2": 4})
    assert advice in warning and "task.target=number" in warning


@pytest.mark.parametrize("text", ["", "a,b", "1, 2", "14.7", "1,2,3", "12,34,5", "2024-01-01"])
def test_other_texts_with_commas_are_not_numbers(text: str) -> None:
    assert comma_number(text) == ""


def test_labels_are_compared_without_the_spaces_around_them(write: Write) -> None:
    rows = ["a\tgood", "b\tbad", "a\tgood ", "b\tgood", "c\tbad"] + [f"{row}\tbad" for row in range(9)]
    report = check({"train": [write("a.tsv", "\n".join(rows) + "\n")]})
    assert counts(report) == {"duplicate": 1, "two-labels": 1, "label-spaces": 1}
    (spaces,) = locations(report, "label-spaces")
    assert (spaces.line, spaces.detail, spaces.excerpt) == (3, "'good '", "a")
    assert {each.label: each.count for each in report.classes} == {"bad": 11, "good": 3}


def test_good_files_have_no_findings(write: Write) -> None:
    texts = "One line.\nÉté, naïve — 日本語 text.\n"
    assert counts(check({"train": [write("a.txt", texts)]})) == {}
    packed = check({"train": [write("a.txt.gz", gzip.compress(texts.encode()))]})
    assert counts(packed) == {} and packed.files[0].lines == 2 and packed.files[0].words == 7


def test_byte_offsets_after_a_byte_order_mark(write: Write) -> None:
    report = check({"train": [write("a.txt", "\ufeffo\u2028ne\ntwo\u2028\n")]})
    assert [location.byte for location in locations(report, "line-separator")] == [4, 13]


def test_aligned_files(write: Write) -> None:
    source = write("a.en", "one two\n\nthree four\nsame\nfive six\nsame\nseven\n" + "x" * 61 + "\n")
    target = write("a.fr", "un deux\n\n\nmême\ncinq six\nmême\nsept\n" + "y" * 20 + "\n")
    report = check({"train": [source, target]})
    assert counts(report) == {"duplicate": 1, "empty-side": 1, "empty-line": 1, "length-ratio": 1}
    (half,) = locations(report, "empty-side")
    assert (half.file, half.line, half.byte, half.excerpt) == (str(target), 3, 9, "three four")
    (twice,) = locations(report, "duplicate")
    assert (twice.file, twice.line, twice.detail) == (str(source), 6, "as a.en:4")
    (far,) = locations(report, "length-ratio")
    assert (far.line, far.detail) == (8, "61 and 20 characters")
    assert report.passed


@pytest.mark.parametrize("longer", [0, 1])
def test_unequal_numbers_of_lines(longer: int, write: Write) -> None:
    contents = ["one\ntwo\nthree\n", "un\ndeux\n"]
    files = [write("a.en", contents[longer]), write("a.fr", contents[1 - longer])]
    report = check({"train": files})
    (location,) = locations(report, "unequal-lines")
    assert (location.file, location.line) == (str(files[1]), 3)
    assert f"{[2, 3][longer]} lines, but {files[0]} has {[3, 2][longer]}" in location.detail
    assert not report.passed
    assert [file.lines for file in report.files] == [
        len(c.split("\n")) - 1 for c in (contents[longer], contents[1 - longer])
    ]


def test_short_sides_have_no_ratio(write: Write) -> None:
    files = [write("a.en", "Go\nRun fast\nStay\n"), write("a.fr", "Va-t'en donc !\nCours\nReste\n")]
    assert counts(check({"train": files})) == {}


def test_lines_in_two_splits(write: Write) -> None:
    train = [write("a.en", "one\ntwo\nthree\nfour\n"), write("a.fr", "un\ndeux\ntrois\nquatre\n")]
    validation = [write("b.en", "two\nnew\n"), write("b.fr", "deux\nneuf\n")]
    test = [write("c.en", "fresh\nfour\nthree\nnew\n"), write("c.fr", "frais\nquatre\nTROIS\nneuf\n")]
    report = check({"train": train, "validation": validation, "test": test})
    assert report.count("in-two-splits", "test in train") == 1
    assert report.count("in-two-splits", "validation in train") == 1
    assert report.count("in-two-splits", "test in validation") == 1
    assert report.count("input-in-two-splits", "test in train") == 1
    first = locations(report, "in-two-splits")[0]
    assert (Path(first.file).name, first.line, first.excerpt, first.detail) == (
        "c.en",
        2,
        "four",
        "as a.en:4",
    )
    assert [(leak.split, leak.other, leak.same, leak.same_input, leak.of) for leak in report.leaks] == [
        ("test", "train", 1, 1, 4),
        ("validation", "train", 1, 0, 2),
        ("test", "validation", 1, 0, 4),
    ]
    assert report.passed, "a leak is a warning, not an error"


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from("xyz")), min_size=1, max_size=30),
    test=st.lists(st.tuples(st.sampled_from("abcdefg"), st.sampled_from("xyz")), min_size=1, max_size=10),
)
def test_repeats_are_counted_as_sets_count_them(
    rows: list[tuple[str, str]], test: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    for name, pairs in (("train", rows), ("test", test)):
        for column in (0, 1):
            text = "".join(pair[column] + "\n" for pair in pairs)
            (folder / f"{name}.{column}").write_text(text, encoding="utf-8")
    report = check({name: [folder / f"{name}.0", folder / f"{name}.1"] for name in ("train", "test")})
    assert report.count("duplicate", "train") == len(rows) - len(set(rows))
    assert report.count("in-two-splits") == sum(pair in set(rows) for pair in test)
    seen = {pair[0] for pair in rows}
    assert report.count("input-in-two-splits") == sum(
        pair[0] in seen and pair not in set(rows) for pair in test
    )


@pytest.mark.parametrize("block_lines", [1, 2, 7])
def test_findings_do_not_depend_on_block_sizes(
    block_lines: int, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    chooser = random.Random(0)
    words = ["one", "two", "", "bad\u2028", "nul\0", "é", "end\r"]
    text = "".join(" ".join(chooser.choices(words, k=3)) + "\n" for _ in range(50)).encode()
    longer = text.replace(b"two", b"two, or rather three")
    files = [write("a.en", text + b"\xe9\n"), write("a.fr", b"a b c d\n" + longer + b"more\n")]
    whole = check({"train": files}, Limits(max_locations=None))
    monkeypatch.setattr(check_module, "BATCH_ROWS", block_lines)
    monkeypatch.setattr(text_files, "CHUNK_BYTES", 40)
    in_blocks = check({"train": files}, Limits(max_locations=None))
    assert counts(in_blocks) == counts(whole) and in_blocks.files == whole.files
    for kind in counts(whole):
        assert sorted(locations(in_blocks, kind), key=repr) == sorted(locations(whole, kind), key=repr)


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.999])
def test_a_cut_gzip_file(keep: float, write: Write) -> None:
    chooser = random.Random(0)
    text = "".join(f"{chooser.random()} {chooser.random()}\n" for _ in range(20_000))
    packed = gzip.compress(text.encode())
    report = check({"train": [write("a.txt.gz", packed[: int(keep * len(packed))] or packed[:5])]})
    (location,) = locations(report, "damaged-gzip")
    assert not report.passed
    assert location.line == report.files[0].lines + 1 and location.byte == report.files[0].bytes
    assert text.encode()[: report.files[0].bytes].count(b"\n") == report.files[0].lines


def test_a_file_that_is_not_gzip(write: Write) -> None:
    assert counts(check({"train": [write("a.txt.gz", "plain text\n")]})) == {"damaged-gzip": 1}


def labelled(labels: Mapping[str, int]) -> list[tuple[str, str]]:
    counted = [label for label, number in labels.items() for _ in range(number)]
    return [(f"review number {number} is fine", label) for number, label in enumerate(counted)]


@pytest.mark.parametrize("kind", ["tsv", "swapped.tsv", "csv", "jsonl", "jsonl.gz", "json", "array.json"])
def test_every_table_format(kind: str, write: Write) -> None:
    rows = [
        *labelled({"good": 10, "bad": 10}),
        ("review number 3 is fine", "good"),
        ("review number 4 is fine", "bad"),
    ]
    content = {
        "tsv": "".join(f"{text}\t{label}\n" for text, label in rows),
        "swapped.tsv": "".join(f"{label}\t{text}\n" for text, label in rows),
        "csv": "text,label\n" + "".join(f'"{text}",{label}\n' for text, label in rows),
        "json": json.dumps({"text": [text for text, _ in rows], "label": [label for _, label in rows]})
        + "\n",
    }
    content["array.json"] = json.dumps([{"text": text, "label": label} for text, label in rows]) + "\n"
    content["jsonl"] = "".join(
        json.dumps({"id": number, "text": text, "label": label}) + "\n"
        for number, (text, label) in enumerate(rows)
    )
    data = content[kind.removesuffix(".gz")].encode()
    path = write(f"a.{kind}", gzip.compress(data) if kind.endswith(".gz") else data)
    report = check({"train": [path]})
    assert counts(report) == {"duplicate": 1, "two-labels": 1}
    (location,) = locations(report, "two-labels")
    line = len(rows) + (kind == "csv")
    assert location.line == line and "review number 4 is fine" in location.excerpt
    if kind.endswith("json"):
        assert location.byte is None
    else:
        assert data[location.byte or 0 :].startswith(data.split(b"\n")[line - 1])
    assert report.files[0].longest == 5, "labels are not words"


def test_rows_that_cannot_be_read(write: Write) -> None:
    report = check({"train": [write("a.tsv", "one\tx\ntwo\n\nthree\ty\tz\nfour\ty\n")]})
    assert [(location.line, location.byte, location.detail) for location in locations(report, "bad-row")] == [
        (2, 6, "the line has 1 column, but the first line has 2"),
        (4, 11, "the line has 3 columns, but the first line has 2"),
    ]
    assert [location.line for location in locations(report, "skipped-line")] == [3]
    report = check({"train": [write("a.jsonl", '{"text": "a"}\n{"text"}\n{"txt": "b"}\n[1]\n')]})
    assert [(location.line, location.detail[:8]) for location in locations(report, "bad-row")] == [
        (2, "not vali"),
        (3, "no colum"),
        (4, "the row "),
    ]
    report = check({"train": [write("a.csv", 'text,label\n"a\nb",x\n"oops" c,x\nd,y\n"open,x\n')]})
    assert [
        (location.line, location.byte, location.excerpt) for location in locations(report, "bad-row")
    ] == [
        (4, 19, '"oops" c,x'),
        (6, 34, '"open,x'),
    ]
    assert report.files[0].lines == 6
    assert not report.passed


def test_rows_that_training_rejects_are_errors(write: Write) -> None:
    """A line of spaces is not empty, a line of tabs is; a label is required, and null is not a text."""
    rows = "one of them\tgood\nanother one\tbad\n" * 3
    report = check({"train": [write("a.tsv", f"{rows}  \n\t\n\n")]})
    assert [(location.line, location.detail) for location in locations(report, "bad-row")] == [
        (7, "the line has 1 column, but the first line has 2")
    ]
    assert [location.line for location in locations(report, "skipped-line")] == [8, 9]
    report = check({"train": [write("b.tsv", f"{rows}text without one\t\n\tgood\n")]})
    (location,) = locations(report, "empty-label")
    assert (location.line, location.byte, location.excerpt) == (7, len(rows), "text without one")
    assert [location.line for location in locations(report, "empty-side")] == [8] and not report.passed
    pair = [write("a.en", "yes\nno\nwell\n"), write("a.fr", "oui\nnon\n\n")]
    assert counts(check({"train": pair})) == {"empty-side": 1}, "few short texts are not labels for sure"
    report = check(
        {"train": [write("c.jsonl", '{"text": "a", "label": "x"}\n{"text": null, "label": "x"}\n')]}
    )
    assert [(location.line, location.detail) for location in locations(report, "bad-row")] == [
        (2, "the input is null")
    ]


def test_a_header_above_numbers(write: Write) -> None:
    rows = [f"a text of words {number},{number / 7:.2f}\n" for number in range(40)]
    report = check({"train": [write("a.csv", "review,score\n" + "".join(rows))]})
    assert (report.source, counts(report)) == ("classification task.target=number", {})
    assert report.files[0].read_as.endswith("with a header line: input = 'review', target = 'score'")


def test_real_values_are_not_labels(write: Write) -> None:
    train = write("a.tsv", "".join(f"text number {n}\t{n / 7:.3f}\n" for n in range(9)))
    test = write("b.tsv", "".join(f"other number {n}\t{n / 11:.3f}\n" for n in range(9)))
    assert counts(check({"train": [train], "test": [test]})) == {}
    stars = write("c.tsv", "".join(f"review number {n}\t{n % 5}\n" for n in range(50)))
    other = write("d.tsv", "the best of all\t9\n")
    assert counts(check({"train": [stars], "test": [other]})) == {"new-label": 1}


def test_damaged_json_lists(write: Write) -> None:
    for content in ('{"input": [1, 2], "target": [1]}', '{"input": 3}', "[1]", '{"input": ['):
        assert set(counts(check({"train": [write("a.json", content + "\n")]}))) == {"bad-row"}


def test_damaged_json_arrays(write: Write) -> None:
    rows = '[{"text": "a", "label": "x"},\n {"text": "b"},\n {"text": null, "label": "y"},\n [1],\n'
    report = check({"train": [write("a.json", f'{rows} {{"text": "c", "label": "x"}},\n {{"text": ]\n')]})
    found = [
        (location.line, location.byte, location.detail[:16]) for location in locations(report, "bad-row")
    ]
    assert sorted(found) == [
        (2, None, "no column 'label"),
        (3, None, "the input is nul"),
        (4, None, "the row is a lis"),
        (6, None, "not valid JSON: "),
    ]
    assert report.files[0].lines == 6 and report.files[0].words == 2, "what comes before is read"


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.tsv", "text\tlabel\n"), ("a.json", "[]\n"), ("a.json", '{"text": [], "label": []}\n')],
)
def test_a_whole_file_without_an_example(write: Write, name: str, content: str) -> None:
    report = check({"train": [write(name, content)]})
    assert counts(report) == {"no-example": 1} and not report.passed


def test_json_lines_by_another_name(write: Write) -> None:
    report = check({"train": [write("a.json", '{"text": "a", "label": "x"}\n' * 2)]})
    assert "jsonl" in locations(report, "bad-row")[0].detail


@pytest.mark.parametrize(
    ("labels", "typos"),
    [
        ({"positive": 30, "negative": 30}, {}),
        ({"positive": 30, "negative": 30, "postive": 1}, {"postive": "positive"}),
        (
            {"positive": 30, "Positive": 20, "positive ": 2, "negative": 5},  # training strips spaces
            {"Positive": "positive"},
        ),
        ({"positive": 30, "negative": 1}, {}),
        ({"1": 40, "2": 40, "11": 1}, {}),
        ({"sport": 40, "sports": 30}, {}),
        ({"sport": 80, "sports": 4}, {"sports": "sport"}),
        ({"yes": 20, "Yes": 20, "no": 20}, {"Yes": "yes"}),
        ({"1": 40, "2": 40, "01": 10, "1.0": 5}, {"01": "1", "1.0": "1"}),
        ({"priv\u00e9": 30, "prive\u0301": 20, "public": 30}, {"prive\u0301": "priv\u00e9"}),
    ],
)
def test_label_typos(labels: dict[str, int], typos: dict[str, str], write: Write) -> None:
    rows = labelled(labels)
    random.Random(0).shuffle(rows)
    path = write("a.tsv", "".join(f"{text}\t{label}\n" for text, label in rows))
    report = check({"train": [path]}, Limits(max_locations=None))
    assert report.count("label-typo") == sum(labels[typo] for typo in typos)
    found = {location.detail for location in locations(report, "label-typo")} if typos else set()
    assert found == {f"{typo!a}: {meant!a}?" for typo, meant in typos.items()}


@pytest.mark.parametrize("missing", ["NA", "N/A", "null", "NaN", "none", "-", "?"])
def test_missing_labels(missing: str, write: Write) -> None:
    rows = labelled({"good": 20, "bad": 20, missing: 3})
    path = write("a.tsv", "".join(f"{text}\t{label}\n" for text, label in rows))
    report = check({"train": [path]})
    assert counts(report) == {"missing-label": 3}
    assert {each.detail for each in locations(report, "missing-label")} == {repr(missing)}


def test_lists_of_labels(write: Write) -> None:
    labels = {"bug": 20, "billing": 20, "billing;bug": 3, "bug, ui": 3, "ui / bug": 2, "and/or": 9, "a+": 9}
    path = write("a.tsv", "".join(f"{text}\t{label}\n" for text, label in labelled(labels)))
    report = check({"train": [path]})
    assert counts(report) == {"label-list": 8}
    details = {each.detail for each in locations(report, "label-list")}
    assert details <= {"'billing;bug'", "'bug, ui'", "'ui / bug'"}


def test_a_label_that_is_not_in_train(write: Write) -> None:
    train = write("a.tsv", "".join(f"{text}\t{label}\n" for text, label in labelled({"good": 9, "bad": 9})))
    test = write("b.tsv", "quite other text\tgood\nsome more of it\tneutral\n")
    report = check({"train": [train], "test": [test]})
    (location,) = locations(report, "new-label")
    assert (Path(location.file).name, location.line, location.detail) == ("b.tsv", 2, "'neutral'")


def test_a_folder_with_one_file_per_class(write: Write) -> None:
    write("data/bad.txt", "awful\nboring\n")
    write("data/good.txt", "great\nboring\ngreat\n")
    folder = write("data/.hidden", b"\xff").parent
    report = check({"train": [folder]})
    assert counts(report) == {"duplicate": 1, "two-labels": 1}
    assert {Path(file.file).name for file in report.files} == {"bad.txt", "good.txt"}
    named = Corpus({"train": [folder]}, classes={"bad": "bad.txt"})
    assert counts(check_corpora([named])) == {}


def test_a_folder_with_one_folder_per_class(write: Write) -> None:
    write("data/bad/1.txt", "awful\n\nfrom end to end\n")
    write("data/good/1.txt", "great\n")
    folder = write("data/good/2.txt", "awful\n\nfrom end to end\n").parent.parent
    report = check({"train": [folder]})
    assert counts(report) == {"two-labels": 1}
    assert Path(locations(report, "two-labels")[0].file).parent.name == "good"


def test_an_empty_file_may_be_one_example(write: Write) -> None:
    write("data/bad/1.txt", "awful\n")
    folder = write("data/good/1.txt", "").parent.parent
    report = check({"train": [folder]})
    assert counts(report) == {"empty-side": 1} and report.passed
    write("lines/bad.txt", "awful\n")
    folder = write("lines/good.txt", "").parent
    assert counts(check({"train": [folder]})) == {"empty-file": 1}


def test_running_text_has_no_examples(write: Write) -> None:
    path = write("a.txt", "Sir!\n\nSir!\n\n\nbad\0\n" + "The same line of some words.\n" * 2)
    assert counts(check_corpora([Corpus({"train": [path]}, "running-text")])) == {"nul": 1}


def test_lines_of_a_running_text_in_two_splits(write: Write) -> None:
    """Short lines, such as the name of a speaker, repeat and are not compared."""
    line = "It was the best of times\n"
    train = write("a.txt", f"Who?\n{line}One more line of five words\n")
    test = write("b.txt", f"Who?\nThese are words never read before\n{line}")
    report = check_corpora([Corpus({"train": [train], "test": [test]}, "running-text")])
    (location,) = locations(report, "in-two-splits")
    assert (location.file, location.line, location.detail) == (str(test), 3, "as a.txt:2")
    (leak,) = report.leaks
    assert (leak.same, leak.of, leak.unit) == (1, 2, "lines of 5 words or more")


def test_other_encodings(write: Write) -> None:
    path = write("a.txt", "one\ncafé\x85\n".encode("cp1252", errors="replace") + "naïve\n".encode("cp1252"))
    assert counts(check({"train": [path]})) == {"invalid-utf8": 2}
    assert counts(check_corpora([Corpus({"train": [path]}, encoding="cp1252")])) == {}
    assert counts(check_corpora([Corpus({"train": [path]}, encoding="utf-16")])) == {"invalid-utf8": 1}
    wide = write("b.tsv", "one\tx\ntwo\n\nthree\tx\nthree\tx\n".encode("utf-16"))
    report = check_corpora([Corpus({"train": [wide]}, encoding="utf-16")])
    assert counts(report) == {"bad-row": 1, "duplicate": 1, "skipped-line": 1}
    (location,) = locations(report, "duplicate")
    assert (location.line, location.byte, location.excerpt) == (5, None, "three")


def test_parts_of_a_set_share_files_but_not_counts(write: Write) -> None:
    english = write("a.en", "one\n\nthree and more\r\n")
    parts = [
        Corpus({"train": [english, write(f"a.{name}", f"un\n\n{name * 30}\n")]}, part=name)
        for name in ("fr", "de")
    ]
    report = check_corpora(parts)
    assert report.count("crlf") == 1, "a finding of a shared file is counted once"
    assert report.count("empty-line", "fr train") == report.count("empty-line", "de train") == 1
    assert Counter(Path(file.file).name for file in report.files) == {"a.en": 1, "a.fr": 1, "a.de": 1}


def test_locations_are_limited_and_counts_are_not(write: Write) -> None:
    path = write("a.txt", "same\n" * 10 + "x\r\n" * 10)
    few, every = (
        check({"train": [path]}, Limits(max_locations=2)),
        check({"train": [path]}, Limits(max_locations=None)),
    )
    assert counts(few) == counts(every) == {"duplicate": 18, "crlf": 10}
    assert [len(finding.locations) for finding in few.findings] == [2, 2]
    assert [len(finding.locations) for finding in every.findings] == [18, 10]
    assert every.findings[0].locations[:2] == few.findings[0].locations


def test_progress_ends_at_the_total(write: Write) -> None:
    seen: list[tuple[int, int]] = []
    text = "".join(f"line {number}\n" for number in range(20_000))
    files = [write("a.en", text), write("a.fr.gz", gzip.compress(text.encode()))]
    size = sum(file.stat().st_size for file in files)
    check({"train": files}, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (size, size) and [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_an_absent_file_and_an_empty_folder(tmp_path: Path, write: Write) -> None:
    write("train.en", "one\n")
    with pytest.raises(UserError, match=r"no such file\n.*train\.en"):
        check({"train": [tmp_path / "trian.en"]})
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="the folder is empty"):
        check({"train": [tmp_path / "empty"]})
    with pytest.raises(UserError, match="files of several formats"):
        check({"train": [write("a.tsv", "a\tb\n"), write("a.txt", "a\n")]})


@given(text=st.text(max_size=200), around=st.integers(0, 200))
def test_excerpts_are_short_and_printable(text: str, around: int) -> None:
    shown = excerpt(text, around, width=20)
    assert shown.isprintable()
    assert len(shown) <= 20 * len("\\U0010ffff") + 2
    if 0 <= around < len(text) and text[around].isprintable():
        assert text[around] in shown


def test_memory_does_not_grow_with_the_findings(write: Write) -> None:
    findings = Findings(3)
    findings.add("crlf", range(1_000_000), lambda index: Location("a", index, 0))
    (finding,) = findings.in_order()
    assert (finding.count, len(finding.locations)) == (1_000_000, 3)
