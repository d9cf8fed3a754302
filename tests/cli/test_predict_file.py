"""`predict --file`: rows of a file are predicted in batches, and written with their columns."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glassformer.cli import main
from glassformer.core.config import validate
from glassformer.runs import predict_file
from glassformer.runs.experiment import ExperimentConfig
from glassformer.runs.folder import RunFolder
from glassformer.runs.run import Run
from glassformer.runs.session import TrainingSession

Said = tuple[int, str, str]
Say = Callable[..., Said]
WORDS = ["film", "book", "actor", "really", "this"]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a text classifier on a table with the columns id, text and label."""
    folder = tmp_path_factory.mktemp("classifier")
    os.environ["GLASSFORMER_CACHE"] = str(folder / "cache")
    rows = [["id", "text", "label"]]
    for i in range(120):
        around = [WORDS[i % 5], WORDS[i % 3], WORDS[i % 4]]
        around.insert(i % 4, "good" if i % 2 else "bad")
        rows.append([str(i), " ".join(around), "liked" if i % 2 else "disliked"])
    with open(folder / "data.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
    tree = {
        "task": {"kind": "classification", "data": {"train": str(folder / "data.csv")}, "max_length": 16},
        "model": {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "feed_forward_dim": 16},
        "training": {
            "batch_size": 20,
            "max_steps": 60,
            "max_epochs": None,
            "validate_every": 60,
            "optimizer": {"kind": "adam", "learning_rate": 0.01},
            "threads": 1,
            "device": "cpu",
        },
    }
    config = validate(ExperimentConfig, ExperimentConfig.fill_kinds(tree))
    TrainingSession(config, RunFolder(folder / "run")).run()
    del os.environ["GLASSFORMER_CACHE"]
    return folder / "run"


@pytest.fixture
def say(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Say:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Said:
        capfd.readouterr()
        code = main([*map(str, arguments)])
        output = capfd.readouterr()
        return code, output.out, output.err

    return run


def table(path: Path, delimiter: str = ",") -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")), delimiter=delimiter))


def objects(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_table_keeps_its_columns(say: Say, run_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(
        'number,text,note\n1,this good film,"a, b"\n2,bad book,"two\nlines"\n', encoding="utf-8"
    )
    code, out, err = say("predict", run_folder, "--file", "in.csv", "--out", "out.csv")
    assert (code, err) == (0, "") and "wrote out.csv: 2 rows" in out and "input = 'text'" in out
    first, second = table(tmp_path / "out.csv")
    assert list(first) == ["number", "text", "note", "output", "probability", "error", "warning"]
    assert (first["number"], first["note"], first["output"]) == ("1", "a, b", "liked")
    assert (second["note"], second["output"], second["error"]) == ("two\nlines", "disliked", "")
    expected = Run(run_folder).predict("bad book")["probability"]
    assert float(second["probability"]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("ending", ["txt", "tsv", "jsonl", "json", "txt.gz"])
def test_every_format_gives_the_same_predictions(
    say: Say, run_folder: Path, tmp_path: Path, ending: str
) -> None:
    texts = [f"{WORDS[i % 5]} {'good' if i % 3 else 'bad'}" for i in range(40)]
    contents = {
        "txt": "\n".join(texts),
        "tsv": "text\tx\n" + "".join(f"{text}\t1\n" for text in texts),
        "jsonl": "".join(json.dumps({"text": text, "x": [1]}) + "\n" for text in texts),
        "json": json.dumps([{"text": text, "x": None} for text in texts]),
    }
    data = contents[ending.removesuffix(".gz")].encode()
    path = tmp_path / f"in.{ending}"
    path.write_bytes(gzip.compress(data) if ending.endswith(".gz") else data)
    outputs = [found["output"] for found in Run(run_folder).predict(texts)]
    for out in ("out.csv", "out.tsv", "out.jsonl"):
        assert say("predict", run_folder, "--file", path, "--out", out)[0] == 0
    assert [row["output"] for row in table(tmp_path / "out.csv")] == outputs
    assert [row["output"] for row in table(tmp_path / "out.tsv", "\t")] == outputs
    found = objects(tmp_path / "out.jsonl")
    assert [row["output"] for row in found] == outputs
    assert [row["input" if "txt" in ending else "text"] for row in found] == texts
    if ending == "jsonl":
        assert found[0]["x"] == [1] and table(tmp_path / "out.csv")[0]["x"] == "[1]"


def test_each_bad_row_has_its_own_error(say: Say, run_folder: Path, tmp_path: Path) -> None:
    lines = [b"text,n", b"this good film,1", b"only one", b"bad \xff book,2", b",3", b"bad book,4"]
    (tmp_path / "in.csv").write_bytes(b"\n".join(lines))
    code, _, err = say("predict", run_folder, "--file", "in.csv", "--out", "out.csv")
    rows = table(tmp_path / "out.csv")
    assert [row["output"] for row in rows] == ["liked", "", "", "", "disliked"]
    assert [row["n"] for row in rows] == ["1", "", "2", "3", "4"]
    errors = [row["error"] for row in rows]
    assert "1 column, but the first line has 2" in errors[1] and "byte 4 of the text is 0xff" in errors[2]
    assert "empty" in errors[3] and errors[0] == errors[4] == ""
    assert rows[2]["text"] == r"bad \xff book"
    assert code == 2 and "3 of 5 inputs" in err and "line 4: not UTF-8" in err
    assert say("predict", run_folder, "--file", "in.csv", "--out", "out.csv", "--keep-going")[0] == 0


def test_inputs_and_standard_input_follow_the_same_rule(
    say: Say, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = say("predict", run_folder, "good film", " ", "bad film")
    assert code == 2 and out.count("→") == 3 and "input 2: the line is empty" in err
    assert say("predict", run_folder, "good film", " ", "--keep-going")[0] == 0
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"good film\nbad \xe9\n\nbad film")))
    code, out, err = say("predict", run_folder, "--json")
    predictions = json.loads(out)["predictions"]
    assert code == 2 and [found["output"] for found in predictions] == ["liked", None, None, "disliked"]
    assert predictions[1]["error"] == "not UTF-8: byte 4 of the text is 0xe9"
    assert predictions[1]["input"] == r"bad \xe9" and predictions[1]["line"] == 2
    assert "\ufffd" not in out and "→" not in err


def test_the_name_of_a_file_is_recognised(say: Say, run_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "lines 5.txt").write_text("good film\n", encoding="utf-8")
    code, out, err = say("predict", run_folder, "lines 5.txt")
    assert code == 2 and not out
    assert "this is the name of a file" in err and "--file 'lines 5.txt'" in err and "echo" in err
    code, out, _ = say("predict", run_folder, "--file", "lines 5.txt")
    assert code == 0 and out.startswith("good film  →  liked")


def test_many_inputs_take_one_line_each(say: Say, run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"this good unheardof film\n" * 300
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    code, out, err = say("predict", run_folder)
    assert code == 0 and len(out.splitlines()) == 300
    assert err.splitlines() == ["300 of 300 inputs have a warning, which --json lists"]
    assert len(say("predict", run_folder, "good film")[1].splitlines()) > 1


def test_a_terminal_gets_a_prompt(say: Say, run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal(io.BytesIO(b"good film\n")))
    code, out, err = say("predict", run_folder)
    assert code == 0 and out.startswith("good film  →  liked")
    assert err == "type one input per line; Ctrl-D ends\n"


def test_the_input_column(say: Say, run_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("a,comment\n1,good film\n", encoding="utf-8")
    code, _, err = say("predict", run_folder, "--file", "in.csv", "--out", "out.csv")
    assert code == 2 and "no column 'text'" in err and "--columns" in err and "'a | comment'" in err
    assert (
        say("predict", run_folder, "--file", "in.csv", "--columns", "input=comment", "--out", "o.csv")[0] == 0
    )
    assert table(tmp_path / "o.csv")[0]["output"] == "liked"
    code, _, err = say(
        "predict", run_folder, "--file", "in.csv", "--columns", "input=coment", "--out", "o.csv"
    )
    assert code == 2 and "comment" in err
    assert say("predict", run_folder, "--file", "in.csv", "--columns", "target=a", "--out", "o.csv")[0] == 2


def test_two_columns_are_joined(say: Say, run_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in.tsv").write_text("a\tb\nbad\tbook\n", encoding="utf-8")
    columns = ("--columns", "{input: [a, b]}")
    assert say("predict", run_folder, "--file", "in.tsv", *columns, "--out", "out.tsv")[0] == 0
    (row,) = table(tmp_path / "out.tsv", "\t")
    assert (row["a"], row["b"], row["output"]) == ("bad", "book", "disliked")


def test_class_probabilities_and_a_prefix(say: Say, run_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text,output\ngood film,x\n", encoding="utf-8")
    asked = ("predict", run_folder, "--file", "in.csv", "--probabilities")
    for out in ("out.csv", "out.jsonl"):
        code, _, err = say(*asked, "--out", out)
        assert code == 2 and "--prefix" in err and not (tmp_path / out).exists()
        assert say(*asked, "--out", out, "--prefix", "my_")[0] == 0
    (row,) = table(tmp_path / "out.csv")
    assert row["output"] == "x" and row["my_output"] == "liked"
    both = [float(row[f"my_probability:{label}"]) for label in ("disliked", "liked")]
    assert sum(both) == pytest.approx(1, abs=1e-5)
    (found,) = objects(tmp_path / "out.jsonl")
    assert list(found["my_probabilities"].values()) == pytest.approx(both, abs=1e-5)


def test_nothing_is_half_written(
    say: Say, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.txt").write_text("good film\n" * 10, encoding="utf-8")
    (tmp_path / "out.csv").write_text("before", encoding="utf-8")
    asked = ("predict", run_folder, "--file", "in.txt", "--out")
    monkeypatch.setattr(predict_file, "BLOCK_ROWS", 4)
    seen = []

    def stop(run: Run, *arguments: Any) -> Any:
        seen.append(1)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return predict(run, *arguments)

    predict = Run.predict_texts
    monkeypatch.setattr(Run, "predict_texts", stop)
    code, _, err = say(*asked, "out.csv")
    assert code == 130 and "stopped after 8 rows; out.csv was not written" in err
    assert (tmp_path / "out.csv").read_text(encoding="utf-8") == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.csv"]
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert "this is the input file" in say("predict", run_folder, "--file", "out.csv", "--out", "out.csv")[2]
    assert "cannot be written" in say(*asked, "none/out.csv")[2]
    assert "allowed: .csv" in say(*asked, "out.xlsx")[2]
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(b"good film\n" * 5000)[:-20])
    code, _, err = say("predict", run_folder, "--file", "cut.txt.gz", "--out", "new.csv")
    assert code == 2 and "gzip file is damaged" in err and not (tmp_path / "new.csv").exists()


def test_sigterm_leaves_nothing_behind(run_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("good film\n" * 400_000, encoding="utf-8")
    command = [sys.executable, "-m", "glassformer", "predict", str(run_folder), "--file", "in.txt"]
    process = subprocess.Popen(
        [*command, "--out", "out.csv"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".out.csv*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143 and "out.csv was not written" in err
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


def test_only_one_block_is_in_memory(run_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("good film\n" * 10_000, encoding="utf-8")
    found = Run(run_folder).predict_each(tmp_path / "in.txt")
    assert next(found)["line"] == 1
    sizes = []
    run = Run(run_folder)
    predict = run.predict_texts
    run.predict_texts = lambda texts, decoding=None: sizes.append(len(texts)) or predict(texts, decoding)  # type: ignore
    summary = run.predict_file(tmp_path / "in.txt", tmp_path / "out.jsonl")
    assert (summary.rows, summary.failed) == (10_000, 0)
    assert max(sizes) == predict_file.BLOCK_ROWS and sum(sizes) == 10_000


def test_options_that_contradict(say: Say, run_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("good film\n", encoding="utf-8")
    for arguments in (
        ("text", "--out", "out.csv"),
        ("text", "--file", "in.txt"),
        ("--file", "in.txt", "--why"),
        ("--file", "in.txt", "--prefix", "x"),
        ("--file", "none.txt", "--out", "out.csv"),
    ):
        code, out, err = say("predict", run_folder, *arguments)
        assert code == 2 and not out and err, arguments


def test_a_bad_row_keeps_its_cells_and_has_its_line(say: Say, run_folder: Path, tmp_path: Path) -> None:
    """All cells were once empty, so that the row could not be found again."""
    path, out = tmp_path / "a.csv", tmp_path / "out.csv"
    path.write_text("id,text,note\n7,a fine film,x\n8,dull\n9,good,y,z\n")
    _, _, errors = say("predict", str(run_folder), "--file", str(path), "--out", str(out))
    assert "  line 3: the line has 2 columns" in errors
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert (rows[1]["id"], rows[1]["text"], rows[1]["note"]) == ("8", "dull", "")
    assert (rows[2]["text"], rows[2]["note"], rows[2]["output"]) == ("good", "y,z", "")
    assert rows[1]["error"].startswith("line 3: the line has 2 columns") and rows[1]["output"] == ""


def test_the_case_of_a_column_name_does_not_matter(say: Say, run_folder: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "a.csv", tmp_path / "out.csv"
    path.write_text("ID,Text\n7,a fine film\n")
    assert say("predict", str(run_folder), "--file", str(path), "--out", str(out))[0] == 0
    assert out.read_text().startswith("ID,Text,output,")
