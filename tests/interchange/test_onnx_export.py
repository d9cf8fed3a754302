"""Target `onnx`: whole folders, and their `run.py` without Glassformer."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glassformer.interchange import export
from glassformer.interchange.export import ExportSource, Verification, make_target
from glassformer.interchange.onnx_export import shipped
from glassformer.runs.run import Run
from glassformer.tasks.base import show_numbers
from tests.interchange.small_runs import LANGUAGE, LLAMA, random_run, small_run

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")

WITHOUT_OTHERS = """
import runpy, sys
folder, *sys.argv[1:] = sys.argv[1:]
for name in ("glassformer", "torch", "tokenizers", "transformers", "onnx"):
    sys.modules[name] = None
sys.path.insert(0, folder)
runpy.run_path(folder + "/run.py", run_name="__main__")
"""
"""Program that runs a folder's `run.py` where no other package than numpy and onnxruntime is found."""

SEQUENCES = {"task.length": 9, "task.train_examples": 200, "task.validation_examples": 20}
TEXT = {"task.examples": 1300, "task.max_length": 24}


def tokens_file(folder: Path) -> Path:
    """Write a table of symbols with a label, a number, labels of tokens and another sequence per row."""
    lines = ["input,label,number,labels,sequence"]
    for row in range(120):
        symbols = [("do", "re", "mi", "fa")[(row * 7 + index * index) % 4] for index in range(3 + row % 5)]
        marks = ["high" if symbol in ("mi", "fa") else "low" for symbol in symbols]
        label, number = marks[0], symbols.count("re") / 2
        cells = [" ".join(symbols), label, str(number), " ".join(marks), " ".join(symbols[::-1])]
        lines.append(",".join(cells))
    (folder / "songs.csv").write_text("\n".join(lines), encoding="utf-8")
    return folder / "songs.csv"


RUNS: dict[str, dict[str, Any]] = {
    "labels of tokens": {"task.kind": "reversal", **SEQUENCES, "task.test_examples": 100},
    "classes of sequences": {"task.kind": "palindrome", **SEQUENCES, "task.test_examples": 100},
    "repetition": {"task.kind": "random-tokens", "task.target": "next", **SEQUENCES},
    "llama": LLAMA,
    "learned positions, characters": {
        **LANGUAGE,
        "model.position.kind": "learned",
        "task.tokenizer.kind": "characters",
    },
    "t5 positions, unigram, masked": {
        **LANGUAGE,
        "task.kind": "masked-language-model",
        "model.position.kind": "t5",
        "task.tokenizer": {"kind": "unigram", "vocabulary_size": 400},
        "model.tied_output": True,
    },
    "rest of text": {**LANGUAGE, "task.kind": "rest-of-text"},
    "classification": {"task.kind": "classification", **TEXT, "task.tokenizer.marks_spaces": False},
    "translation": {
        "task.kind": "translation",
        **TEXT,
        "task.tokenizer.vocabulary_size": 400,
        "model.position.kind": "rotary",
    },
    "two vocabularies": {
        "task.kind": "translation",
        **TEXT,
        "task.tokenizer.kind": "words",
        "task.shared_vocabulary": False,
        "model.norm_placement": "post",
    },
    "arithmetic": {"task.kind": "arithmetic", "task.operations": ["add", "multiply"]},
}
TARGETS = {"label": "label", "number": "number", "token-labels": "labels", "sequence": "sequence"}


def token_options(folder: Path, target: str) -> dict[str, Any]:
    return {
        "task.kind": "tokens",
        "task.data.train": str(tokens_file(folder)),
        "task.data.columns": {"input": "input", "target": TARGETS[target]},
        "task.target": target,
    }


def answers(folder: Path, *texts: str) -> list[str]:
    """Run `run.py` in a process without Glassformer, and return the lines that it prints."""
    process = subprocess.run(
        [sys.executable, "-c", WITHOUT_OTHERS, str(folder), *texts], capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()


def check(run: Run, out: Path) -> None:
    """Export a run, and compare what `run.py` prints with the predictions of the run."""
    exported = run.export("onnx", out)
    assert exported.verification.passed and exported.verification.largest_difference < 1e-5
    texts = [example.text for example in ExportSource.of(run).examples(3)]
    ours = run.predict(texts, decoding={"kind": "greedy"})
    for line, prediction in zip(answers(out, *texts), ours, strict=True):
        shown = prediction["output"]
        expected = f"{shown:.6g}" if isinstance(shown, float) else " ".join(str(shown).split())
        assert " ".join(line.split()).startswith(expected)


def test_program_is_short() -> None:
    assert len(shipped("onnx_folder", "run.py").splitlines()) <= 100


def test_a_bad_input_does_not_stop_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    shared: dict[str, Any] = {}
    exec(shipped("onnx_folder", "text.py"), shared)

    def predict(texts: list[str]) -> list[dict[str, Any]]:
        if not texts[0]:
            raise ValueError("the input is empty")
        return [{"output": text.upper(), "tokens": [], "probability": 0.5} for text in texts]

    assert shared["print_answers"](predict, ["a", "", "b"]) == 1
    assert capsys.readouterr().out.splitlines() == ["A (50.0%)", "error: the input is empty", "B (50.0%)"]
    assert shared["print_answers"](predict, ["a"]) == 0


def test_help_is_not_an_input(tmp_path: Path) -> None:
    for name in ("run.py", "text.py"):
        (tmp_path / name).write_bytes(shipped("onnx_folder", name))
    command = [sys.executable, str(tmp_path / "run.py"), "--help"]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0 and 'python run.py "input"' in process.stdout, process.stderr


@pytest.mark.parametrize("target", ["onnx", "web"])
def test_numbers_of_a_regression_are_compared_in_the_unit_of_their_targets(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"{'very ' * (row % 7)}late,{48.5 * (row % 7) + row / 100}" for row in range(80)]
    (tmp_path / "hours.csv").write_text("\n".join(["text,label", *lines]), encoding="utf-8")
    options = {
        "task.kind": "classification",
        "task.target": "number",
        "task.data.train": str(tmp_path / "hours.csv"),
    }
    run = random_run(options)
    source, kind = ExportSource.of(run), make_target(target)
    assert run.model.task_type.target_scale > 48
    examples = source.examples(8)
    monkeypatch.setattr(kind, "request", lambda *_: {})

    def verify_with(difference: float) -> Verification:
        """Verify with an engine whose logits differ by this part of the scale."""
        ours = kind.reference(source, examples, 1)
        shift = difference * run.model.task_type.target_scale
        logits = [row + shift for row in ours.logits]
        texts = show_numbers(run.task.task_type, [float(row[0]) for row in logits])
        theirs = replace(ours, logits=logits, texts=texts)
        document = {"engine": "other", "version": "1"}
        monkeypatch.setattr(export, "run_engine", lambda *_: (theirs, document))
        return export.verify(kind, source, tmp_path, examples)

    near = verify_with(0.9 * kind.tolerance)
    assert near.passed and near.same_outputs == 1, near.describe()
    far = verify_with(20 * kind.tolerance)
    assert not far.passed and far.same_outputs < 1, far.describe()


@pytest.mark.thorough
def test_the_program_exits_with_1_after_a_bad_input(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", RUNS["labels of tokens"])
    run.export("onnx", tmp_path / "out")
    command = [sys.executable, "-c", WITHOUT_OTHERS, str(tmp_path / "out"), "0 x", "0 1 2"]
    process = subprocess.run(command, capture_output=True, text=True)
    first, second = process.stdout.splitlines()
    assert process.returncode == 1 and first.startswith("error: ") and not second.startswith("error")


@pytest.mark.thorough
@pytest.mark.parametrize("name", RUNS)
def test_program_answers_as_the_run(name: str, tmp_path: Path) -> None:
    check(small_run(tmp_path / "run", RUNS[name]), tmp_path / "out")


@pytest.mark.thorough
@pytest.mark.parametrize("target", TARGETS)
def test_symbols_of_files(target: str, tmp_path: Path) -> None:
    check(small_run(tmp_path / "run", token_options(tmp_path, target)), tmp_path / "out")
