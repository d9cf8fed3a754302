"""Training and `data check` agree: the check passes exactly if training can read the file.

Both use the same readers. This test guards it over generated files of every format, with every error.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glassformer.cli import main
from glassformer.core.errors import UserError
from glassformer.data.check import Corpus, check_corpora
from glassformer.data.readers import DataConfig
from glassformer.runs.experiment import resolve

ROLES = {"input": "text", "target": "label"}
WORDS = [
    "one",
    "two",
    "café",
    "日本",
    '"quoted"',
    "a,b",
    "c;d",
    "\u2028",
    "\0",
    "\ufeff",
    "",
    "1",
    "0,5",
    "{",
    "[",
]
FORMATS = [
    "tsv",
    "csv",
    "csv-comma",
    "csv-semicolon",
    "jsonl",
    "json",
    "lists.json",
    "text",
    "folder",
    "running",
]
FILES_PER_FORMAT = 60


def field(chooser: random.Random) -> str:
    return " ".join(chooser.choices(WORDS, k=chooser.randrange(4)))


def content(kind: str, chooser: random.Random, number: int) -> str:
    """Write `number` examples in a format."""
    rows = [(field(chooser), chooser.choice(["x", "y", "z"])) for _ in range(number)]
    header = [ROLES["input"], ROLES["target"]]
    names = chooser.random() < 0.5
    if kind == "tsv":
        return "".join("\t".join(row) + "\n" for row in ([tuple(header)] if names else []) + rows)
    if kind.startswith("csv"):
        sign = ";" if kind == "csv-semicolon" or (kind == "csv" and chooser.random() < 0.5) else ","
        file = io.StringIO()
        csv.writer(file, delimiter=sign, lineterminator="\n").writerows(([header] if names else []) + rows)
        return file.getvalue()
    objects = [dict(zip(header, row, strict=True)) for row in rows]
    if kind == "jsonl":
        return "".join(json.dumps(row) + "\n" for row in objects)
    if kind == "json":
        return json.dumps(objects, indent=chooser.choice([None, 1]))
    if kind == "lists.json":
        return json.dumps({name: [row[name] for row in objects] for name in header})
    return "".join(text.replace("\n", " ") + "\n" for text, _ in rows)


def damage(data: bytes, chooser: random.Random) -> bytes:
    """Apply a random error, or none."""
    position = chooser.randrange(len(data) + 1)
    errors: list[Callable[[], bytes]] = [
        lambda: data,
        lambda: data,
        lambda: data[:position],
        lambda: data[:position] + bytes([chooser.randrange(256)]) + data[position:],
        lambda: data.replace(b"\n", b"\r\n"),
        lambda: data.replace(b"\n", b"\r"),
        lambda: data.replace(b"\n", b"\n\n"),
        lambda: b"\xef\xbb\xbf" + data,
        lambda: data + b"more\n",
        lambda: data + b"\0" * len(data),
        lambda: data.decode(errors="replace").encode("utf-16"),
        lambda: b" \n" * 3,
        lambda: data.replace(b"text", b"txet").replace(b"x", b'"', 1),
        lambda: b"sep=;\n" + data,
    ]
    return chooser.choice(errors)()


def write(path: Path, data: bytes, chooser: random.Random) -> Path:
    if chooser.random() < 0.2:
        path = path.with_name(path.name + ".gz")
        data = gzip.compress(data)
        data = data[: chooser.choice([len(data), len(data), len(data) // 2])]
    path.write_bytes(data)
    return path


def make(
    kind: str, folder: Path, chooser: random.Random
) -> tuple[list[Path], dict[str, Any], dict[str, str]]:
    """Write a data set; return its files, its options, and the roles that a task asks for."""
    folder.mkdir()
    number = chooser.randrange(6)

    def one(name: str) -> Path:
        (folder / name).parent.mkdir(exist_ok=True)
        return write(folder / name, damage(content(kind, chooser, number).encode(), chooser), chooser)

    if kind == "text":
        return [one("a.en"), one("a.fr")], {"format": "text"}, ROLES
    if kind == "running":
        return [one("a.txt")], {"format": "running-text"}, {"input": "text"}
    if kind == "folder":
        form = chooser.choice(["{}.txt", "{}/1"])
        for label in ("good", "bad", "fine"):
            one(form.format(label))
        if chooser.random() < 0.1:
            one("more/1")
        return [folder], {}, ROLES
    format = kind.removeprefix("lists.")
    columns = chooser.choice([{}, {}, {}, {"input": 0, "target": 1}, {"input": "text", "target": "label"}])
    return [one(f"a.{format}")], {"format": format, "columns": columns}, ROLES


def training_accepts(files: list[Path], options: dict[str, Any], roles: dict[str, str]) -> bool:
    is_aligned = options.get("format") == "text"
    source = [str(path) for path in files] if is_aligned else str(files[0])
    try:
        stream = DataConfig(train=source, **options).stream("train", roles)
        assert stream is not None and list(stream)
    except UserError:
        return False
    return True


def check_passes(files: list[Path], options: dict[str, Any], roles: dict[str, str] | None) -> bool:
    try:
        report = check_corpora([Corpus({"train": files}, roles=roles, fractions={}, **options)])
    except UserError:
        return False
    # Missing labels, or a single one, do not make a file unreadable: only a classifier rejects them.
    of_labels = ("empty-label", "one-label")
    return not any(f.severity == "error" and f.kind not in of_labels for f in report.findings)


@pytest.mark.parametrize("kind", FORMATS)
def test_the_check_passes_exactly_if_training_can_read_the_file(tmp_path: Path, kind: str) -> None:
    chooser = random.Random(kind)
    outcomes: Counter[bool] = Counter()
    for number in range(FILES_PER_FORMAT):
        files, options, roles = make(kind, tmp_path / str(number), chooser)
        accepts = training_accepts(files, options, roles)
        assert check_passes(files, options, roles) == accepts, [file.name for file in files]
        outcomes[accepts] += 1
    assert min(outcomes[True], outcomes[False]) >= FILES_PER_FORMAT // 20, outcomes


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind != "running"])
def test_without_a_task_the_check_rejects_what_no_task_could_read(tmp_path: Path, kind: str) -> None:
    """Without a task the check may read one column where a task needs two; it never rejects more."""
    chooser = random.Random(kind)
    for number in range(FILES_PER_FORMAT):
        files, options, roles = make(kind, tmp_path / str(number), chooser)
        if training_accepts(files, options, roles):
            assert check_passes(files, options, None), [file.name for file in files]


TOO_FEW: dict[str, tuple[str, str, list[str], int]] = {
    "classification": ("classification", "text{0}\tlabel{2}\n", [], 1),
    "three ways": ("classification", "text{0}\tlabel{2}\n", ["task.data.test_fraction=0.2"], 2),
    "translation": ("translation", "text{0}\tlabel{0}\n", [], 1),
    "arithmetic": ("arithmetic", "{0} + 1\t{1}\n", [], 2),
    "language-model": ("language-model", "text{0}\n", ["task.data.format=text"], 1),
    "running-text": ("language-model", "x", ["task.data.format=running-text"], 1),
}


@pytest.mark.parametrize("name", TOO_FEW)
def test_too_few_examples_to_split(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GLASSFORMER_CACHE", str(tmp_path / "cache"))
    preset, line, options, too_few = TOO_FEW[name]
    path = tmp_path / "a.tsv"
    settings = [f"task.data.train={path}", *options]
    for number in (too_few, 40):
        path.write_text("".join(line.format(index, index + 1, index % 2) for index in range(number)))
        code = main(["data", "check", preset, *settings, "--json"])
        found = [finding["kind"] for finding in json.loads(capfd.readouterr().out)["findings"]]
        assert ("too-few" in found, code) == ((True, 2) if number == too_few else (False, 0))
        task = resolve(preset, settings).task
        if number == too_few:
            with pytest.raises(UserError, match="split"):
                task.build(seed=0)
        else:
            assert "validation" in task.build(seed=0).splits


def test_files_without_a_task_may_be_too_few(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\n")
    (finding,) = check_corpora([Corpus({"train": [path]})]).findings
    assert finding.kind == "too-few"
    assert check_corpora([Corpus({"train": [path], "validation": [path]})]).passed


NOT_CLASSES = {
    "one label": (["text,label"], ["{0} words,x"], None, "only one label"),
    "a name twice": (
        ["text,label,label"],
        ["{0} words,{1},{2}"],
        None,
        "2 columns have the name 'label': 1 and 2",
    ),
    "a requested name twice": (
        ["text,label,label"],
        ["{0} words,{1},{2}"],
        "label",
        "2 columns have the name",
    ),
    "numbers": (
        ["text,label"],
        ["{0} words,{1}", "{0} words more,{1}.0"],
        None,
        "'0.0' is '0' written differently",
    ),
    "spaces": (["text,label"], ["{0} words,{1}", "{0} words more,{1} "], None, ""),
}


@pytest.mark.parametrize("name", NOT_CLASSES)
@pytest.mark.parametrize("has_task", [True, False])
def test_labels_that_training_refuses_fail_the_check(
    tmp_path: Path,
    name: str,
    has_task: bool,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The check once called such files ready for training."""
    monkeypatch.setenv("GLASSFORMER_CACHE", str(tmp_path / "cache"))
    header, lines, target, message = NOT_CLASSES[name]
    files = {"train": tmp_path / "train.csv", "test": tmp_path / "test.csv"}
    settings = [f"task.data.{split}={path}" for split, path in files.items()]
    options = []
    if target is not None:
        settings.append(f"task.data.columns={{input: text, target: {target}}}")
        options = ["--columns", f"{{input: text, target: {target}}}"]
    for path, line in zip(files.values(), [lines[0], lines[-1]], strict=True):
        rows = [line.format(f"{path.stem} {number}", number % 2, "ab"[number % 2]) for number in range(40)]
        path.write_text("\n".join([*header, *rows]) + "\n")
    if has_task:
        code = main(["data", "check", "classification", *settings])
    else:
        code = main(["data", "check", str(files["train"]), "--test", str(files["test"]), *options])
    shown = capfd.readouterr()
    task = resolve("classification", settings).task
    if not message:
        assert code == 0 and len(task.build(seed=0).labels.symbols) == 2
        return
    with pytest.raises(UserError) as error:
        task.build(seed=0)
    assert code == 2 and message in str(error.value)
    if name == "numbers":
        assert "'0.0': train has '0'" in shown.out
    else:
        assert message in " ".join((shown.out + shown.err).split())
