"""`evaluate` and `predict` for classifiers and for generating models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glassformer.cli import main
from glassformer.cli.predict import BAR_WIDTH
from glassformer.core.config import validate
from glassformer.runs.experiment import ExperimentConfig
from glassformer.runs.folder import RunFolder
from glassformer.runs.prediction import BATCH_ROWS
from glassformer.runs.run import Run
from glassformer.runs.session import TrainingSession

Said = tuple[int, str, str]
Say = Callable[..., Said]


def train(folder: Path, lines: list[str], answer: str, steps: int) -> Path:
    (folder / "data.tsv").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    data = {
        "train": str(folder / "data.tsv"),
        "test": str(folder / "data.tsv"),
        "columns": {"input": 0, "target": 1},
    }
    tree = {
        "task": {"kind": "tokens", "target": answer, "data": data},
        "model": {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "feed_forward_dim": 16},
        "training": {
            "batch_size": 20,
            "max_steps": steps,
            "max_epochs": None,
            "validate_every": steps,
            "optimizer": {"kind": "adam", "learning_rate": 0.01},
            "threads": 1,
            "device": "cpu",
        },
    }
    config = validate(ExperimentConfig, ExperimentConfig.fill_kinds(tree))
    TrainingSession(config, RunFolder(folder / "run")).run()
    return folder / "run"


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a classifier that detects `good` or `bad` among other words."""
    words = ["film", "book", "actor", "really", "this"]
    lines = []
    for i in range(120):
        around = [words[i % 5], words[i % 3], words[i % 4]]
        around.insert(i % 4, "good" if i % 2 else "bad")
        lines.append(f"{' '.join(around)}\t{'liked' if i % 2 else 'disliked'}")
    return train(tmp_path_factory.mktemp("classifier"), lines, "label", 60)


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train on rows of mixed lengths whose target is their first two tokens."""
    rows = [[str((i * 7 + k) % 6) for k in range(1 + (i * 5) % 7)] for i in range(40)]
    lines = [f"{' '.join(row)}\t{' '.join(row[:2])}" for row in rows]
    return train(tmp_path_factory.mktemp("writer"), lines, "sequence", 80)


@pytest.fixture
def say(capfd: pytest.CaptureFixture[str]) -> Say:
    def run(*arguments: object) -> Said:
        capfd.readouterr()
        code = main([*map(str, arguments)])
        output = capfd.readouterr()
        return code, output.out, output.err

    return run


def document(say: Say, *arguments: object) -> dict[str, Any]:
    code, out, _ = say(*arguments, "--json")
    assert code == 0
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


def test_evaluate_a_classifier(say: Say, classifier: Path) -> None:
    found = document(say, "evaluate", classifier)
    assert found["metrics"].keys() == {"loss", "accuracy", "macro_f1", "ece"}
    assert found["metrics"]["accuracy"] == 1  # so all bootstrap resamples have a macro-F1 of 1
    assert found["intervals"].keys() == {"loss", "accuracy"}
    assert "none if all resamples have the same value" in found["protocol"]["intervals"]
    assert found["metrics"] == json.loads((classifier / "results.json").read_text())["metrics"]["test"]
    details = found["details"]
    assert details["classes"] == ["disliked", "liked"]
    assert sum(map(sum, details["confusion"])) == found["examples"] == 120
    right = details["confusion"][0][0] + details["confusion"][1][1]
    assert right / 120 == pytest.approx(found["metrics"]["accuracy"]) and right > 110
    assert sum(place["examples"] for place in details["calibration"]["bins"]) == 120
    _, out, _ = say("evaluate", classifier)
    for text in ("95 % confidence interval", "macro_f1", "predicted", "disliked", "precision", "calibration"):
        assert text in out
    assert "\nece: expected calibration error" in out
    assert all(f"\n{name}: " in out for name in found["metrics"])


def test_a_score_on_training_data_has_a_warning(say: Say, classifier: Path, tmp_path: Path) -> None:
    """Repeat the leak warning with every score: here the test file is the training file."""
    (warning,) = document(say, "evaluate", classifier)["warnings"]
    assert warning.startswith("WARNING: test") and "train" in warning
    assert warning in say("evaluate", classifier)[1]
    assert document(say, "evaluate", classifier, "--split", "validation")["warnings"] == []
    again = (
        "train",
        classifier / "config.yaml",
        "training.max_steps=1",
        "training.validate_every=1",
        "--quiet",
    )
    code, out, _ = say(*again, "--run", tmp_path / "a")
    assert code == 0 and out.index("accuracy") < out.index(warning) < out.index("next:")
    assert document(say, *again, "--run", tmp_path / "b")["warnings"][:1] == [warning]
    assert json.loads((tmp_path / "b" / "results.json").read_text())["warnings"][:1] == [warning]


def test_predict_shows_the_effect_of_each_word(say: Say, classifier: Path) -> None:
    (prediction,) = document(say, "predict", classifier, "this actor good film", "--why")["predictions"]
    assert prediction["output"] == "liked"
    probabilities = prediction["probabilities"]
    assert list(probabilities) == ["liked", "disliked"]
    assert sum(probabilities.values()) == pytest.approx(1)
    assert probabilities["liked"] == pytest.approx(prediction["probability"], abs=1e-6)
    effects = {word["word"]: word["effect"] for word in prediction["words"]}
    assert list(effects) == ["this", "actor", "good", "film"]
    assert max(effects, key=lambda word: effects[word]) == "good" and effects["good"] > 0.3
    code, out, _ = say("predict", classifier, "this actor good film", " ", "--why")
    assert code == 2 and "disliked 0." in out and "█" in out and "error" in out
    assert "what each word adds to the probability of liked (a full bar is 1):" in out
    lines = {line.split()[0]: line for line in out.splitlines() if line.startswith("    ")}
    for word in prediction["words"]:
        assert lines[word["word"]].count("█") == max(0, round(BAR_WIDTH * word["probability_effect"]))
    out = say("predict", classifier, "good", "--why")[1]
    assert "no word can be left out" in out and "█" not in out
    (plain,) = document(say, "predict", classifier, "good")["predictions"]
    assert "words" not in plain and plain["probabilities"].keys() == {"liked", "disliked"}


def test_a_classifier_runs_once_per_batch(classifier: Path) -> None:
    """Class probabilities come from the same forward pass as the class itself."""
    run = Run(classifier)
    passes = []
    run.model.register_forward_hook(lambda *_: passes.append(1))
    texts = ["this good film", "bad book", "really good actor"] * 50
    predictions = run.predict(texts)
    assert len(passes) == -(-len(texts) // BATCH_ROWS)
    for text, prediction in zip(texts, predictions, strict=True):
        assert prediction["probabilities"][prediction["output"]] == prediction["probability"]
        assert run.predict(text)["probabilities"] == pytest.approx(prediction["probabilities"], abs=1e-5)


def test_words_beyond_the_maximum_length_are_named(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Truncate a long text for a text classifier, whatever its tokenizer does with the rest."""
    monkeypatch.setenv("GLASSFORMER_CACHE", str(tmp_path))
    tiny = ["model.num_layers=1", "model.num_heads=2", "model.hidden_dim=8", "model.feed_forward_dim=8"]
    few = ["task.examples=30", "task.max_length=6", "training.max_steps=1"]
    assert say("train", "classification", *tiny, *few, "--quiet", "--run", tmp_path / "run")[0] == 0
    text = "The soup was not good at all , but many"
    (prediction,) = document(say, "predict", tmp_path / "run", text, "--why")["predictions"]
    read = [word["word"] for word in prediction["words"] if word["is_read"]]
    assert read == text.split()[:5]
    assert all((word["effect"] is not None) == word["is_read"] for word in prediction["words"])
    out = say("predict", tmp_path / "run", text, "--why")[1]
    assert "not read, because the text is too long for the model: 'at' and the 4 words after it" in out
    many = " ".join(["same"] * 40)
    out = say("predict", tmp_path / "run", "x" * 100, many, "--why")[1]
    assert out.count(" x ") <= 30, "equally weak characters are not all shown"


def test_sentences_are_named_by_the_lines_of_the_file(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Name sentences by file and line, not by their number in a split of a file with a header and gaps."""
    monkeypatch.setenv("GLASSFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{'' if n % 3 else chr(10)}word{n} a;mot{n} un\n" for n in range(40))
    (tmp_path / "a.csv").write_text(f"source;target\n{rows}", encoding="utf-8")
    tiny = ["model.num_layers=1", "model.num_heads=2", "model.hidden_dim=8", "model.feed_forward_dim=8"]
    data = ["task.data.train=a.csv", "task.data.validation_fraction=0.3", "task.tokenizer.kind=characters"]
    assert (
        say("train", "translation", *tiny, *data, "training.max_steps=1", "--quiet", "--run", "run")[0] == 0
    )
    asked = ("evaluate", "run", "--split", "validation")
    lines = (tmp_path / "a.csv").read_text(encoding="utf-8").split("\n")
    sentences = document(say, *asked)["details"]["sentences"]
    shown = [sentence for which in ("best", "typical", "worst") for sentence in sentences[which]]
    assert len(shown) == 9
    for sentence in shown:
        name, line = sentence["location"].split(", line ")
        assert name == "a.csv"
        assert lines[int(line) - 1] == f"{sentence['source']};{sentence['reference']}"
    assert f"best: {sentences['best'][0]['location']}, BLEU" in say(*asked)[1]
    made = ["task.examples=20", "task.tokenizer.kind=characters", "training.max_steps=1"]
    assert say("train", "translation", *tiny, *made, "--quiet", "--run", "made")[0] == 0
    assert "best: example " in say("evaluate", "made")[1]


def test_hypotheses_stand_in_the_order_of_the_file(say: Say, writer: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    found = document(say, "evaluate", writer, "--hypotheses", out)
    assert found["hypotheses"] == str(out) and "exact_match" in found["intervals"]
    lines = out.read_bytes().decode().split("\n")
    assert len(lines) == 41 and lines[-1] == ""
    sources = [line.split("\t")[0] for line in (writer.parent / "data.tsv").read_text().splitlines()]
    predictions = document(say, "predict", writer, *sources)["predictions"]
    assert lines[:-1] == [prediction["output"] for prediction in predictions]
    assert len(set(lines)) > 5


def test_an_unusable_hypotheses_file_is_reported_first(
    say: Say, writer: Path, classifier: Path, tmp_path: Path
) -> None:
    for place in (tmp_path / "none" / "out.txt", tmp_path):
        code, out, err = say("evaluate", writer, "--hypotheses", place)
        assert code == 2 and not out and str(place) in err and "cannot be written" in err
    kept = tmp_path / "kept.txt"
    kept.write_text("before", encoding="utf-8")
    assert say("evaluate", writer, "evaluation.nothing=1", "--hypotheses", kept)[0] == 2
    code, _, err = say("evaluate", classifier, "--hypotheses", kept)
    assert code == 2 and "does not generate outputs" in err
    assert kept.read_text(encoding="utf-8") == "before"


def test_why_needs_a_classifier(say: Say, writer: Path) -> None:
    code, _, err = say("predict", writer, "1 2", "--why")
    assert code == 2 and "--why" in err
    assert say("evaluate", writer, "--samples", "-1")[0] == 2


def test_ctranslate2_evaluates_with_the_same_keys_and_values(writer: Path, say: Say) -> None:
    pytest.importorskip("ctranslate2")
    results = []
    for engine in ("glassformer", "ctranslate2"):
        code, out, err = say("evaluate", writer, f"evaluation.engine={engine}", "--json")
        assert code == 0, err
        results.append(json.loads(out))
    ours, theirs = results
    assert ours["metrics"] == theirs["metrics"] and ours["intervals"] == theirs["intervals"]
    assert theirs["protocol"].pop("engine").startswith("ctranslate2 ")
    assert ours["protocol"] == theirs["protocol"]


def test_ctranslate2_predicts_with_the_same_keys(writer: Path, say: Say) -> None:
    pytest.importorskip("ctranslate2")
    inputs = ["1 2 3", "5 4", "unknown", "0"]
    ours, theirs = (
        json.loads(say("predict", writer, *inputs, "--json", "--engine", engine, "--keep-going")[1])
        for engine in ("glassformer", "ctranslate2")
    )
    for mine, other in zip(ours["predictions"], theirs["predictions"], strict=True):
        assert mine.keys() == other.keys()
        assert (mine["output"], mine["error"]) == (other["output"], other["error"])
        assert other["probability"] == pytest.approx(mine["probability"], abs=1e-5)


def test_an_engine_that_cannot_run_the_model_is_an_error(classifier: Path, say: Say) -> None:
    pytest.importorskip("ctranslate2")
    code, _, err = say("predict", classifier, "good", "--engine", "ctranslate2")
    assert code == 2 and "evaluation.engine: CTranslate2 cannot run this model" in err and "task.kind" in err
    code, _, err = say("predict", classifier, "good", "--engine", "ctranslate")
    assert code == 2 and "did you mean 'ctranslate2'?" in err


def test_weights_in_int8_are_named_in_the_protocol(writer: Path, say: Say) -> None:
    """The matrices of this model are too small for int8, so all numbers are equal."""
    results = []
    for weights in ("fp32", "int8"):
        code, out, err = say("evaluate", writer, f"evaluation.weights={weights}", "--json")
        assert code == 0, err
        results.append(json.loads(out))
    exact, found = results
    assert exact["metrics"] == found["metrics"]
    assert (exact["protocol"].pop("weights"), found["protocol"].pop("weights")) == ("fp32", "int8")
    assert exact["protocol"] == found["protocol"]
    assert document(say, "predict", writer, "1 2 3", "--weights", "int8")["predictions"][0]["error"] is None


def test_weights_in_int8_with_another_engine_are_an_error(writer: Path, say: Say) -> None:
    for arguments in (
        ("evaluate", writer, "evaluation.weights=int8", "evaluation.engine=ctranslate2"),
        ("predict", writer, "1 2", "--weights", "int8", "--engine", "ctranslate2"),
    ):
        code, out, err = say(*arguments)
        assert code == 2 and not out and "another engine decodes with its own copy of the weights" in err
        assert "evaluation.engine=glassformer" in err
