"""`glassformer generate`: same text for the same seed, any length."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glassformer.cli import main
from glassformer.core.config import validate
from glassformer.runs.experiment import ExperimentConfig
from glassformer.runs.folder import RunFolder
from glassformer.runs.run import Run
from glassformer.runs.session import TrainingSession

LINES = ["the cat sat on the mat.", "the dog ate the bone, and slept.", "a bird sang in the tree."] * 20

Ask = Callable[..., Any]


def train(folder: Path, text: str, task: dict[str, Any], steps: int) -> Path:
    (folder / "data.txt").write_text(text, encoding="utf-8")
    path = str(folder / "data.txt")
    data = {"train": path, "validation": path, **task.pop("data", {})}
    tree = {
        "task": {"max_length": 8, "data": data, **task},
        "model": {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "feed_forward_dim": 16},
        "training": {
            "batch_size": 32,
            "max_steps": steps,
            "max_epochs": None,
            "optimizer": {"kind": "adam", "learning_rate": 0.01},
            "threads": 1,
            "device": "cpu",
        },
    }
    config = validate(ExperimentConfig, ExperimentConfig.fill_kinds(tree))
    TrainingSession(config, RunFolder(folder / "run")).run()
    return folder / "run"


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    task = {"kind": "language-model", "tokenizer": {"kind": "words"}}
    return train(tmp_path_factory.mktemp("writer"), "".join(f"{line}\n" for line in LINES), task, 40)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Path:
    task = {
        "kind": "language-model",
        "tokenizer": {"kind": "characters"},
        "data": {"format": "running-text"},
    }
    return train(tmp_path_factory.mktemp("running"), "".join(f"{line}\n" for line in LINES), task, 20)


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    def run(*arguments: object, code: int = 0) -> Any:
        capfd.readouterr()
        assert main(["generate", *map(str, arguments), "--json"]) == code
        out = capfd.readouterr().out
        assert out.count("\n") == 1
        return json.loads(out)

    return run


def test_the_document(ask: Ask, writer: Path) -> None:
    found = ask(writer, "the cat", "--count", 3, "--length", 5)
    assert found.keys() == {"run", "prompt", "warning", "texts"}
    assert found["run"] == str(writer) and found["prompt"] == "the cat"
    assert len(found["texts"]) == 3
    for text in found["texts"]:
        assert text["text"].startswith("the cat") and 0 <= text["tokens"] <= 5


def test_the_same_seed_generates_the_same_text(ask: Ask, writer: Path) -> None:
    options = (writer, "--count", 4, "--length", 30, "--temperature", 2)
    first, again, other = (ask(*options, "--seed", seed)["texts"] for seed in (1, 1, 2))
    assert first == again != other
    assert len({text["text"] for text in first}) > 1, "the texts of one call differ"
    # The first of several texts equals a single one.
    assert ask(writer, "--length", 30, "--temperature", 2, "--seed", 1)["texts"] == first[:1]


def test_longer_than_the_window(ask: Ask, running: Path) -> None:
    """Generate beyond the context of 8 characters; running text has no end token."""
    (text,) = ask(running, "the ", "--length", 60)["texts"]
    assert text["tokens"] == 60 and len(text["text"]) == 64 and text["text"].startswith("the ")
    shorter = ask(running, "the ", "--length", 20)["texts"][0]["text"]
    assert text["text"].startswith(shorter) and len(shorter) == 24
    prompt = "the dog ate the bone, and slept."
    (text,) = ask(running, prompt, "--length", 3)["texts"]
    assert len(text["text"]) == len(prompt) + 3 and text["text"].startswith(prompt)


@pytest.mark.parametrize("prompt", ["the", "a bird"])
def test_temperature_zero_equals_predict(ask: Ask, writer: Path, prompt: str) -> None:
    (text,) = ask(writer, prompt, "--temperature", 0, "--length", 50)["texts"]
    prediction = Run(writer).predict(prompt, {"kind": "greedy"})
    window = f"{prompt} {prediction['output']}"
    # `predict` stops at the model's context length.
    assert text["text"].replace(" ", "").startswith(window.replace(" ", ""))
    assert ask(writer, prompt, "--temperature", 0, "--seed", 9)["texts"][0]["text"] == text["text"]
    (likeliest,) = ask(writer, prompt, "--top-k", 1, "--length", 50)["texts"]
    assert likeliest == text


def test_nothing_to_begin_with(ask: Ask, writer: Path, running: Path) -> None:
    (text,) = ask(writer, "--length", 6)["texts"]
    assert 0 < text["tokens"] <= 6 and not text["text"].startswith(" ")
    (text,) = ask(running, "--length", 6)["texts"]
    assert text["tokens"] == 6 and text["text"].startswith("\n")


def test_for_a_person(writer: Path, capfd: pytest.CaptureFixture[str], ask: Ask) -> None:
    texts = ask(writer, "the", "--count", 2, "--length", 12)["texts"]
    assert main(["generate", str(writer), "the", "--count", "2", "--length", "12"]) == 0
    output = capfd.readouterr()
    assert output.out == "".join(f"{text['text']}\n" for text in texts) and output.err == ""


@pytest.mark.parametrize(
    ("options", "place"),
    [
        (["--length", "0"], "--length"),
        (["--count", "-1"], "--count"),
        (["--seed", "-1"], "--seed"),
        (["--temperature", "-1"], "--temperature"),
        (["--temperature", "nan"], "--temperature"),
        (["--top-k", "0"], "--top-k"),
        (["--top-p", "1.5"], "--top-p"),
    ],
)
def test_options_that_cannot_be(ask: Ask, writer: Path, options: list[str], place: str) -> None:
    (error,) = ask(writer, "the", *options, code=2)["errors"]
    assert error["path"] == place


def test_only_language_models_generate(ask: Ask, run_folder: RunFolder, tmp_path: Path) -> None:
    (error,) = ask(run_folder.path, "1 2", code=2)["errors"]
    assert error["path"] == str(run_folder.path) and "is not a text language model" in error["message"]
    assert error["hint"] == f"glassformer predict {run_folder.path} INPUT"
    assert ask(tmp_path / "none", code=2)["errors"]


def test_unknown_words_of_the_prompt_give_a_warning(ask: Ask, tmp_path: Path) -> None:
    folder = train(tmp_path, "\n".join(LINES), {"kind": "language-model", "tokenizer": {"kind": "words"}}, 2)
    assert "‹zebra›" in ask(folder, "the zebra", "--length", 2)["warning"]
    assert ask(folder, "the cat", "--length", 2)["warning"] is None
    with pytest.warns(UserWarning, match="the prompt: .*‹zebra›"):
        Run(folder).generate("the zebra", 2)


def test_a_temperature_between_zero_and_the_least_names_both(ask: Ask, writer: Path) -> None:
    (error,) = ask(writer, "the", "--temperature", "0.0001", code=2)["errors"]
    assert error["path"] == "--temperature" and error["message"] == "expected 0, or at least 0.001"
