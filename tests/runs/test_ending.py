"""End of a training: the reason, the best checkpoint, and next commands that run for every kind of task."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassformer.cli import main
from glassformer.core.config import Tree, dump_yaml
from glassformer.core.registry import kinds
from glassformer.data.batching import Examples
from glassformer.models.task_types import SequenceClassification
from glassformer.runs.ending import (
    _quote,
    closing_lines,
    example_input,
    explain_end,
    next_commands,
    resume_command,
)
from glassformer.runs.folder import RunFolder
from glassformer.runs.session import TrainingSession, open_session, train
from glassformer.tasks.base import SequenceClassificationTask, TaskConfig
from glassformer.training.progress import Reporter
from glassformer.training.trainer import Trainer

MODEL = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "feed_forward_dim": 8}
TRAINING = {"max_steps": 1, "batch_size": 8, "threads": 1, "device": "cpu"}
FEW = {"length": 6, "train_examples": 20, "validation_examples": 6, "test_examples": 6}
WORDS = {"kind": "words"}

TASKS: dict[str, Tree] = {
    "arithmetic": {"kind": "arithmetic", "digits": 1, "max_examples": 60},
    "classification": {"kind": "classification", "examples": 40},
    "regression": {"kind": "classification", "target": "number", "data": {"train": "ratings.tsv"}},
    "copy": {"kind": "copy", **FEW},
    "language-model": {"kind": "language-model", "examples": 40},
    "running text": {
        "kind": "language-model",
        "data": {"train": "play.txt", "format": "running-text"},
        "tokenizer": {"kind": "characters"},
        "max_length": 16,
    },
    "masked-language-model": {"kind": "masked-language-model", "examples": 40},
    "translation": {"kind": "translation", "examples": 40, "tokenizer": WORDS},
    "palindrome": {"kind": "palindrome", **FEW},
    "random-tokens": {"kind": "random-tokens", **FEW},
    "random-tokens, next": {"kind": "random-tokens", "target": "next", **FEW},
    "rest-of-text": {"kind": "rest-of-text", "examples": 40},
    "reversal": {"kind": "reversal", **FEW},
    "reversal of long sequences": {"kind": "reversal", **FEW, "length": 60},
    "shift": {"kind": "shift", **FEW},
    "sort": {"kind": "sort", **FEW},
    "tokens, a label per token": {"kind": "tokens", "data": {"train": "tokens.tsv"}},
    "tokens, a label": {"kind": "tokens", "target": "label", "data": {"train": "labels.tsv"}},
    "tokens, a number": {"kind": "tokens", "target": "number", "data": {"train": "numbers.tsv"}},
    "tokens, one per character": {
        "kind": "tokens",
        "target": "label",
        "separator": "",
        "data": {"train": "genes.tsv"},
    },
    "tokens, a sequence": {"kind": "tokens", "target": "sequence", "data": {"train": "tokens.tsv"}},
}

VERBS = {
    "classification": ["predict", "evaluate", "attention"],
    "running text": ["generate", "attention", "evaluate"],
    "translation": ["predict", "trace", "attention"],
    "reversal": ["predict", "attention", "evaluate"],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with small data files."""
    monkeypatch.chdir(tmp_path)

    def write(name: str, row: Callable[[int], tuple[object, object]]) -> None:
        rows = ["input\ttarget", *("\t".join(map(str, row(number))) for number in range(60))]
        Path(name).write_text("\n".join(rows) + "\n", encoding="utf-8")

    write("ratings.tsv", lambda n: (f"it's a {'good' if n % 2 else 'bad'} book, no. {n}: $5!", n % 5 / 2))
    write("tokens.tsv", lambda n: (f"{n % 3} {n % 5} {n % 7}", f"{n % 2} {n % 3} {n % 2}"))
    write("labels.tsv", lambda n: (f"{n % 3} {n % 5} {n % 7}", "odd" if n % 2 else "even"))
    write("numbers.tsv", lambda n: (f"{n % 3} {n % 5} {n % 7}", n % 7 / 2))
    write("genes.tsv", lambda n: ("".join("ACGT"[n // 4**k % 4] for k in range(4)), "ab"[n % 2]))
    speech = "".join(f'ROMEO:\nI take thee at word {n}, and "all" of it.\n\n' for n in range(60))
    Path("play.txt").write_text(speech, encoding="utf-8")
    return tmp_path


def test_every_kind_is_tested() -> None:
    assert {task["kind"] for task in TASKS.values()} == set(kinds(TaskConfig))


@pytest.mark.parametrize("name", TASKS)
def test_every_next_command_runs(name: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tree = {"task": TASKS[name], "model": MODEL, "training": TRAINING}
    Path("config.yaml").write_text(dump_yaml(tree), encoding="utf-8")
    assert main(["train", "config.yaml", "--run", "the run", "--json"]) == 0
    output = capfd.readouterr()
    commands = json.loads(output.out)["next"]
    assert len(commands) == 3 and all(f"  {command}\n" in output.err for command in commands)
    words = [shlex.split(command) for command in commands]
    if name in VERBS:
        assert [verb for _, verb, *_ in words] == VERBS[name]
    for program, *arguments in words:
        assert program == "glassformer" and "the run" in arguments
        assert main([*arguments, "--json"]) == 0, arguments
        document = json.loads(capfd.readouterr().out)
        assert all(prediction["error"] is None for prediction in document.get("predictions", []))
    if words[0][1] == "generate":  # a finished sentence would be returned as it is
        assert 1 <= len(words[0][3].split()) <= 3
    assert any(len(arguments) > 3 for arguments in words)  # an input of the data is filled in


def test_the_next_commands_load_the_same_plugins(
    tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my plugin.py").write_text("", encoding="utf-8")
    assert main(["train", str(tiny_file), "--plugin", "my plugin.py", "--run", "run", "--json"]) == 0
    for line in json.loads(capfd.readouterr().out)["next"]:
        assert line.endswith(" --plugin 'my plugin.py'")
        assert main(shlex.split(line)[1:]) == 0


def test_the_input_is_as_the_user_wrote_it(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The words tokenizer separates punctuation, and the data file may have gone at the end."""
    tree = {"task": TASKS["regression"], "model": MODEL, "training": TRAINING}
    Path("config.yaml").write_text(dump_yaml(tree), encoding="utf-8")
    session = open_session("config.yaml", run="run")
    session.run()
    predict, *_ = session.next_commands()
    assert shlex.split(predict)[3] in Path("ratings.tsv").read_text(encoding="utf-8")
    Path("ratings.tsv").unlink()
    assert len(session.next_commands()) == 3


@pytest.mark.parametrize(
    "text", ["good", "it's good", 'a "good" book', "costs $5 `now`", "back\\slash", "wow!", 'it\'s "5" $']
)
def test_an_input_is_quoted_for_the_shell(text: str) -> None:
    shown = subprocess.run(["sh", "-c", f"printf %s {_quote(text)}"], capture_output=True, text=True)
    assert shown.stdout == text
    assert shlex.split(_quote(text)) == [text]


class Texts(SequenceClassificationTask):
    """Classify texts, character by character."""

    def __init__(self, texts: list[str]) -> None:
        rows = [np.array([ord(character) for character in text]) for text in texts]
        splits = {name: Examples(rows, np.zeros(len(rows), dtype=int)) for name in ("train", "validation")}
        super().__init__(SequenceClassification(1000, 1000, outputs=2), splits)

    def parse(self, text: str) -> np.ndarray:
        return np.array([ord(character) for character in text])

    def show_input(self, tokens: Any) -> str:
        return "".join(map(chr, tokens))

    def warning(self, tokens: Any, text: str = "") -> str | None:
        return "a question" if "?" in text else None


@pytest.mark.parametrize(
    ("texts", "chosen"),
    [
        (["one", "two"], "one"),
        (["-v", "two"], "two"),  # would be read as an option
        (["long " * 30, "two\n lines"], "two lines"),
        (["is it?", "it is"], "it is"),
        (["long " * 30], "long " * 11 + "long"),
        (["b" * 90], "b" * 60),
        (["A room. A view! But " + "then " * 20], "A room. A view!"),
        (["one two? " + "three " * 30], "three " * 9 + "three"),  # the first words that give no warning
        (["long? " * 30], ("long? " * 30).strip()),
        (["long? " * 99], None),
        (["\x1b[31m"], None),
    ],
)
def test_the_example_is_short_and_trusted(texts: list[str], chosen: str | None) -> None:
    assert example_input(Texts(texts)) == chosen


def test_a_long_input_is_shown_once() -> None:
    text = ("long? " * 30).strip()
    assert next_commands(Path("runs/mine"), Texts([text])) == [
        f'glassformer predict runs/mine "{text}" --why',
        "glassformer evaluate runs/mine",
        "glassformer attention runs/mine --out map.png",
    ]


def test_a_task_without_typed_inputs_has_commands_too() -> None:
    commands = next_commands(Path("runs/mine"), Texts(["\x1b[31m"]))
    assert commands == [
        "glassformer evaluate runs/mine",
        "glassformer attention runs/mine --out map.png",
        "glassformer heads runs/mine",
    ]


def test_the_command_that_resumes_is_the_shortest() -> None:
    assert resume_command(Path("runs/x-1")) == "glassformer train runs/x-1 --resume"
    assert resume_command(Path("my runs/x")) == "glassformer train 'my runs/x' --resume"
    assert resume_command(Path("reversal")) == "glassformer train ./reversal --resume"


# ---------------------------------------------------------------- reasons

PATIENT = {"training.stopping.patience": 2, "training.max_epochs": 9}


@pytest.mark.parametrize(
    ("options", "scores", "reason", "best"),
    [
        (
            {"training.stopping.target": 0.9, "training.stopping.consecutive": 2},
            [0.2, 0.95, 0.96],
            "ended at step 24 of 24: validation accuracy reached the target 0.9 in 2 consecutive validations"
            " (0.9600 at step 24)",
            "best checkpoint: step 24, by validation accuracy 0.9600",
        ),
        (
            PATIENT,
            [0.2, 0.7959, 0.3, 0.7],
            "ended at step 32 of 72: validation accuracy did not improve in 2 validations"
            " (training.stopping.patience)",
            "best checkpoint: step 16, by validation accuracy 0.7959",
        ),
        (
            {"training.max_steps": 5},
            [0.5],
            "ended at step 5 of 5: the limit of 5 steps is reached (training.max_steps)",
            "best checkpoint: step 5, by validation accuracy 0.5000",
        ),
        (
            {"training.max_epochs": 2},
            [0.5, 0.4],
            "ended at step 16 of 16: the limit of 2 epochs is reached (training.max_epochs)",
            "best checkpoint: step 8, by validation accuracy 0.5000",
        ),
        (
            {"training.max_minutes": 1e-9},
            [0.5],
            "ended at step 1 of 24: the limit of 1e-09 minutes is reached (training.max_minutes)",
            "best checkpoint: step 1, by validation accuracy 0.5000",
        ),
    ],
)
def test_the_end_has_a_reason_and_a_metric(
    options: dict[str, Any],
    scores: list[float],
    reason: str,
    best: str,
    tiny_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    rest = iter(scores)
    monkeypatch.setattr(
        "glassformer.training.trainer.evaluate", lambda *a, **k: {"loss": 1.0, "accuracy": next(rest)}
    )
    arguments = [f"{path}={value}" for path, value in options.items()]
    assert main(["train", str(tiny_file), *arguments, "--run", str(tmp_path / "run")]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert reason in lines and best in lines
    results = RunFolder(tmp_path / "run").results()
    assert reason.endswith(f": {results['ended_because']}")
    assert (results["best_metric"], results["best_value"]) == ("accuracy", max(scores))
    assert "next" not in results and str(tmp_path) not in json.dumps(results)


def test_a_validation_line_names_the_metric(
    tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The loss rises at step 16, and falls at step 24 at equal accuracy."""
    scores = iter([(0.8, 0.5), (0.9, 0.6), (0.7, 0.6)])

    def evaluate(*arguments: Any, **options: Any) -> dict[str, float]:
        loss, accuracy = next(scores)
        return {"loss": loss, "accuracy": accuracy}

    monkeypatch.setattr("glassformer.training.trainer.evaluate", evaluate)
    assert main(["train", str(tiny_file), "--run", str(tmp_path / "run")]) == 0
    errors = capfd.readouterr().err
    assert "step 16: validation loss 0.9000  accuracy 0.6000  (best so far by accuracy)" in errors
    assert (
        "step 24: validation loss 0.7000  accuracy 0.6000  (best so far by loss at equal accuracy)" in errors
    )


class Lines(Reporter):
    """Reporter that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, text: str) -> None:
        self.lines.append(text)


def test_a_script_prints_a_short_end(tiny_file: Path, tmp_path: Path) -> None:
    reporter = Lines()
    train(str(tiny_file), run=tmp_path / "run", reporter=reporter)
    ended, best, metric = reporter.lines[-3:]
    assert ended == "ended at step 24 of 24: the limit of 3 epochs is reached (training.max_epochs)"
    assert best.startswith("best checkpoint: step ") and "by validation accuracy 0." in best
    assert metric.startswith("test accuracy 0.") and metric.endswith(f"the run is in {tmp_path / 'run'}")


@pytest.mark.parametrize(
    ("metrics", "changes", "is_noted"),
    [
        ({"validation": {}}, {}, True),
        ({"validation": {}, "test": {}}, {}, False),
        ({"validation": {}}, {"uses_last": True}, False),
        ({"validation": {}}, {"best_step": None}, False),
    ],
)
def test_a_score_on_the_examples_that_chose_the_checkpoint_is_noted(
    metrics: dict[str, Any], changes: dict[str, Any], is_noted: bool
) -> None:
    results = {
        "total_steps": 9,
        "steps": 9,
        "ended_because": "",
        "uses_last": False,
        "best_step": 5,
        "best_metric": "accuracy",
        "best_value": 1.0,
        "baselines": {},
        "metrics": metrics,
    }
    notes = [line for line in closing_lines(results | changes) if "no test set: the checkpoint was" in line]
    assert bool(notes) is is_noted
    assert all("task.data.test=FILE" in note for note in notes)


def test_evaluate_notes_that_validation_chose_the_checkpoint(
    trained_once: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "the checkpoint was chosen on the validation examples"
    for arguments, is_noted in (["--split", "validation"], True), (["--split", "test"], False):
        assert main(["evaluate", str(trained_once), *arguments]) == 0
        assert (words in capsys.readouterr().out) is is_noted


def test_a_kept_average_does_not_undo_the_end_by_patience(
    tiny_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The average is the best model of all. A resumed run must not train on."""
    scores = iter([0.6, 0.5, 0.4, 0.9])
    monkeypatch.setattr(
        "glassformer.training.trainer.evaluate", lambda *a, **k: {"loss": 1.0, "accuracy": next(scores)}
    )
    config = tiny_config({**PATIENT, "training.average_last": 2})
    results = TrainingSession(config, RunFolder(tmp_path)).run()
    assert (results["ended"], results["steps"], results["best_value"]) == ("patience", 24, 0.9)
    assert "did not improve in 2 validations" in results["ended_because"]
    monkeypatch.setattr(Trainer, "step", None)
    again = TrainingSession(config, RunFolder(tmp_path)).run()
    assert again["ended_because"] == results["ended_because"]


def test_a_limit_that_is_no_longer_set_is_explained(tmp_path: Path) -> None:
    """Resume a run that `max_epochs` ended with `max_steps`, which replaces it."""
    first, run = {"training.max_epochs": 1, "task.max_examples": 300}, tmp_path / "run"
    open_session("arithmetic", first, run=run).run()
    session = open_session(str(run), {"training.max_steps": 1}, run=run, resume=True)
    assert session.run()["ended_because"]
    session.trainer.state.ended = "max_epochs"
    assert "training.max_epochs" in explain_end(session.trainer)
