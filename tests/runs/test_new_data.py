"""Evaluation on new labelled data: it equals the evaluation of a test split with the same examples."""

from __future__ import annotations

import csv
import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

import glassformer as gf
from glassformer.cli import main
from glassformer.core.config import unflatten, validate
from glassformer.core.errors import UserError
from glassformer.runs.experiment import ExperimentConfig
from glassformer.runs.folder import RunFolder
from glassformer.runs.run import Run
from glassformer.runs.session import TrainingSession

Row = tuple[str, Any]
NOUNS = ("film", "plot", "song", "day", "meal", "room", "book")
WORDS = {"pos": ("great", "superb", "warm"), "neg": ("awful", "dull", "grim")}
SMALL = {
    "model.num_layers": 1,
    "model.num_heads": 2,
    "model.hidden_dim": 16,
    "model.feed_forward_dim": 16,
    "training.batch_size": 16,
    "training.max_steps": 3,
    "training.validate_every": 3,
    "training.threads": 1,
    "training.device": "cpu",
}


def rows(kind: str, count: int, seed: int) -> list[Row]:
    """Make examples of a kind of task: `label`, `number`, `translation`, `text` or `tags`."""
    draw = random.Random(seed)
    found: list[Row] = []
    for _ in range(count):
        label = draw.choice(("pos", "neg"))
        text = f"the {draw.choice(NOUNS)} was {draw.choice(WORDS[label])} in {draw.choice(NOUNS)}"
        tags = " ".join("N" if word in NOUNS else "O" for word in text.split())
        value = {"label": label, "number": draw.gauss(10, 3), "translation": text.upper(), "tags": tags}
        found.append((text, value.get(kind)))
    return found


TASKS: dict[str, dict[str, Any]] = {
    "label": {"task.kind": "classification"},
    "number": {"task.kind": "classification", "task.target": "number"},
    "translation": {"task.kind": "translation", "task.tokenizer.kind": "words", "task.max_length": 16},
    "text": {"task.kind": "language-model", "task.max_length": 16},
    "masked text": {"task.kind": "masked-language-model", "task.max_length": 16},
    "tags": {"task.kind": "tokens", "task.target": "token-labels"},
}


def write(path: Path, examples: list[Row], names: tuple[str, str] = ("text", "target")) -> Path:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        has_target = examples[0][1] is not None
        writer.writerow(names if has_target else names[:1])
        writer.writerows(row if has_target else row[:1] for row in examples)
    return path


def train(folder: Path, kind: str, test: Path | None = None) -> Run:
    file = write(folder / "train.csv", rows(kind.removeprefix("masked "), 80, 1))
    columns = {"input": "text"} | ({} if "text" in kind else {"target": "target"})
    data = {"task.data": {"train": str(file), "columns": columns, "test": test and str(test)}}
    tree = ExperimentConfig.fill_kinds(unflatten({**TASKS[kind], **SMALL, **data}))
    TrainingSession(validate(ExperimentConfig, tree), RunFolder(folder / "run")).run()
    return Run(folder / "run")


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(tmp_path_factory.mktemp("classifier"), "label")


def comparable(found: dict[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in ("examples", "metrics", "intervals")}


@pytest.mark.parametrize("kind", TASKS)
def test_new_data_are_measured_as_a_test_split(kind: str, tmp_path: Path) -> None:
    examples = rows(kind.removeprefix("masked "), 30, 2)
    file = write(tmp_path / "new.csv", examples)
    run = train(tmp_path, kind, test=file)
    wanted, found = run.evaluate("test"), run.evaluate(file=file)
    if kind != "masked text":  # which tokens are masked depends on the name of the split
        assert comparable(found) == comparable(wanted)
    assert found.keys() >= wanted.keys() and found["protocol"].keys() >= wanted["protocol"].keys()
    inputs, targets = zip(*examples, strict=True)
    in_memory = run.evaluate(inputs=inputs, targets=None if targets[0] is None else targets)
    assert comparable(in_memory) == comparable(found)
    assert found["protocol"]["data"] == found["data"] == "new.csv" and in_memory["data"] == "inputs"
    assert found["protocol"]["files"] == {"new.csv": hashlib.sha256(file.read_bytes()).hexdigest()}
    assert found["protocol"]["data_sha256"] == in_memory["protocol"]["data_sha256"]
    assert found["protocol"]["data_sha256"] != wanted["protocol"]["data_sha256"]
    assert bool(found["baselines"]) is (kind in ("label", "number", "tags"))
    assert run.evaluate("test") == wanted  # the run itself has its own data still


def test_formats_and_layouts(classifier: Run, tmp_path: Path) -> None:
    """A file is read by the names of the training columns; `columns` and `header` change that."""
    examples = rows("label", 20, 3)
    wanted = comparable(classifier.evaluate(file=write(tmp_path / "a.csv", examples)))
    swapped = write(tmp_path / "b.csv", [(str(b), a) for a, b in examples], ("target", "text"))
    assert comparable(classifier.evaluate(file=swapped)) == wanted
    lines = [json.dumps({"id": 1, "text": text, "target": label}) for text, label in examples]
    (tmp_path / "c.jsonl").write_text("\n".join(lines) + "\n")
    assert comparable(classifier.evaluate(file=str(tmp_path / "c.jsonl"))) == wanted
    other = write(tmp_path / "d.csv", examples, ("review", "verdict"))
    with pytest.raises(UserError, match="not the layout of the training file") as error:
        classifier.evaluate(file=other)
    assert "--columns '{input: review, target: verdict}'" in str(error.value)
    columns = {"input": "review", "target": "verdict"}
    assert comparable(classifier.evaluate(file=other, columns=columns)) == wanted
    plain = tmp_path / "e.tsv"
    plain.write_text("".join(f"{text}\t{label}\n" for text, label in examples), encoding="utf-16")
    found = classifier.evaluate(file=plain, header=False, encoding="utf-16")
    assert comparable(found) == wanted


def test_aligned_files(tmp_path: Path) -> None:
    run = train(tmp_path, "translation")
    examples = rows("translation", 12, 4)
    for number, name in enumerate(("new.en", "new.fr")):
        (tmp_path / name).write_text("".join(f"{row[number]}\n" for row in examples))
    found = run.evaluate(file=[tmp_path / "new.en", tmp_path / "new.fr"])
    assert found["examples"] == 12 and list(found["protocol"]["files"]) == ["new.en", "new.fr"]
    assert "new.en" in found["details"]["sentences"]["best"][0]["location"]
    with pytest.raises(UserError, match="does not name a format"):
        run.evaluate(file=tmp_path / "new.en")


def test_data_frames(classifier: Run) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(rows("label", 20, 3), columns=["text", "label"])
    assert classifier.evaluate(inputs=frame["text"], targets=frame["label"])["examples"] == 20


def test_unknown_labels_are_left_out_or_rejected(classifier: Run, tmp_path: Path) -> None:
    examples = rows("label", 20, 3)
    found = classifier.evaluate(file=write(tmp_path / "few.csv", [*examples, ("a film", "odd")]))
    assert found["examples"] == 20 and "left out" in found["warnings"][0] and "'odd'" in found["warnings"][0]
    many = [*examples, *[("a film", "odd")] * 9]
    with pytest.raises(UserError, match="9 of 29 rows have labels that train does not have"):
        classifier.evaluate(file=write(tmp_path / "many.csv", many))


def test_examples_of_training_give_a_warning(classifier: Run, tmp_path: Path) -> None:
    file = write(tmp_path / "again.csv", rows("label", 80, 1))
    (warning,) = classifier.evaluate(file=file)["warnings"]
    assert "also appear in train" in warning
    assert classifier.evaluate(file=write(tmp_path / "b.csv", [("a b c", "pos")]))["warnings"] == []


def test_training_data_need_not_be_there(tmp_path: Path) -> None:
    run = train(tmp_path, "label")
    (tmp_path / "train.csv").unlink()
    found = Run(run.path).evaluate(file=write(tmp_path / "new.csv", rows("label", 20, 3)))
    assert found["examples"] == 20 and found["baselines"] == {}
    assert "not compared" in found["notes"][-1]


def test_a_long_row_of_tokens_is_an_error(tmp_path: Path) -> None:
    run = train(tmp_path, "tags")
    with pytest.raises(UserError, match=r"inputs\[0\].*7 tokens, and the model reads at most 6"):
        run.evaluate(inputs=[["the"] * 7], targets=[["O"] * 7])


def test_wrong_calls(classifier: Run, tmp_path: Path) -> None:
    texts, labels = map(list, zip(*rows("label", 5, 3), strict=True))
    for match, options in {
        "by name: run.evaluate": {"split": (texts, labels)},
        "no targets": {"inputs": texts},
        "without inputs": {"targets": labels},
        "cannot be combined with split": {"split": "test", "file": "new.csv"},
        "needs a file": {"columns": {"input": "text"}},
        "5 inputs and 4 targets": {"inputs": texts, "targets": labels[:4]},
    }.items():
        with pytest.raises(UserError, match=match):
            classifier.evaluate(**options)


def test_generated_examples_have_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"task.length": 4, "task.train_examples": 50, "training.max_steps": 1}
    run = gf.train("reversal", options, progress=False)
    with pytest.raises(UserError, match="generates its examples"):
        run.evaluate(file="new.csv")


def test_the_command(classifier: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(write(tmp_path / "new.csv", rows("label", 20, 3), ("review", "verdict")))
    ask = ["evaluate", str(classifier.path)]
    columns = ["--columns", "{input: review, target: verdict}"]
    assert main([*ask, "--file", file, *columns, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["examples"] == 20
    assert main([*ask, "--file", file, *columns]) == 0
    out = capsys.readouterr().out
    assert "new.csv, 20 examples" in out and "for comparison, accuracy" in out and ".cache" not in out
    assert main([*ask, f"task.data.test={file}"]) == 2
    assert f"evaluate {classifier.path} --file {file}" in capsys.readouterr().err
    assert main([*ask, "--header", "true"]) == 2 and "needs --file" in capsys.readouterr().err
    assert main([*ask, "--file", file, "--columns", "text"]) == 2
    assert "{input: text, target: label}" in capsys.readouterr().err
    assert main([*ask, "--file", str(tmp_path / "none.csv")]) == 2
