"""`--json`: standard output is exactly one JSON document with the documented keys."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glassformer.cli import VERBS, main
from glassformer.core.config import dump_yaml
from glassformer.runs.folder import RunFolder

Ask = Callable[..., dict[str, Any]]

TESTED = {
    "train",
    "evaluate",
    "predict",
    "generate",
    "attention",
    "trace",
    "heads",
    "intervene",
    "patch",
    "attribute",
    "probe",
    "align",
    "params",
    "doctor",
    "bench",
    "prove-resume",
    "runs",
    "data",
}
TESTED_ELSEWHERE = {"export", "models", "options", "report", "reproduce", "serve", "studio", "sweep"}


def test_no_verb_is_forgotten() -> None:
    assert set(VERBS) == TESTED | TESTED_ELSEWHERE


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    """Run a command and return its JSON document; other output must be on standard error."""

    def run(*arguments: object, code: int = 0, says: str = "") -> dict[str, Any]:
        capfd.readouterr()
        assert main([*map(str, arguments), "--json"]) == code
        output = capfd.readouterr()
        assert says in output.err
        assert output.out.count("\n") == 1 and output.out.endswith("\n")
        document = json.loads(output.out, parse_constant=_no_constant)
        assert isinstance(document, dict)
        return document

    return run


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def test_train(ask: Ask, tiny_file: Path, tmp_path: Path) -> None:
    document = ask("train", tiny_file, "seed=3", "--run", tmp_path / "run", says="test accuracy")
    assert document["run"] == str(tmp_path / "run")
    assert (document["seed"], document["steps"], document["epochs"]) == (3, 24, 3)
    assert is_number(document["seconds"]) and document["tokens_per_second"] > 0
    assert document["parameters"] == 1860
    assert document["metrics"].keys() == {"validation", "test"}
    for metrics in document["metrics"].values():
        assert {"loss", "accuracy", "exact_match"} <= metrics.keys()
        assert all(map(is_number, metrics.values()))
        assert 0 <= metrics["accuracy"] <= 1
    assert len(document.pop("next")) == 3 and document.pop("resumed_from") is None
    assert {**RunFolder(tmp_path / "run").results(), "run": str(tmp_path / "run")} == document


def test_train_presets(ask: Ask) -> None:
    document = ask("train", "--presets")
    assert "counting-classifier" in document["presets"]


def test_evaluate(ask: Ask, run_folder: RunFolder) -> None:
    document = ask("evaluate", run_folder.path, says="accuracy")
    assert (document["run"], document["split"], document["examples"]) == (str(run_folder.path), "test", 24)
    assert document["metrics"] == run_folder.results()["metrics"]["test"]
    protocol = document["protocol"]
    assert {"checkpoint", "seed", "config", "data_sha256", "decoding"} <= protocol.keys()
    assert len(protocol["config"]) == len(protocol["data_sha256"]) == 64
    few = ask("evaluate", run_folder.path, "evaluation.max_examples=5", "--split", "validation")
    assert (few["split"], few["examples"]) == ("validation", 5)


def test_predict(ask: Ask, run_folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    document = ask("predict", run_folder.path, "1 2 3", "", "1 x", "0 1 2 3 0 1 2", says="error", code=2)
    assert document["run"] == str(run_folder.path)
    predictions = document["predictions"]
    assert [prediction["input"] for prediction in predictions] == ["1 2 3", "", "1 x", "0 1 2 3 0 1 2"]
    assert all({"output", "probability", "error"} <= prediction.keys() for prediction in predictions)
    answered, *refused = predictions
    assert answered["error"] is None and len(answered["output"].split()) == 3
    assert 0 < answered["probability"] <= 1
    for prediction in refused:  # one error per line; the other lines have predictions
        assert prediction["output"] is None and prediction["error"] and "\n" not in prediction["error"]

    class Stdin:
        isatty = staticmethod(lambda: False)
        buffer = io.BytesIO("1 2 3\r\n\n\u2028\n".encode())

    monkeypatch.setattr(sys, "stdin", Stdin())
    lines = ask("predict", run_folder.path, code=2)["predictions"]
    assert [line["input"] for line in lines] == ["1 2 3", "", "\u2028"]
    assert lines[0] == answered


def test_predict_many_lines_in_order(
    ask: Ask, run_folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Predict in groups: the order and the errors are those of single lines."""
    lines = ["1 2 3", "0 x", "3", "", "2 2 2 1", "1 0", "x", "3 1 2"]
    single = [ask("predict", run_folder.path, line, "--keep-going")["predictions"][0] for line in lines]

    class Stdin:
        isatty = staticmethod(lambda: False)
        buffer = io.BytesIO("\n".join(lines).encode())

    monkeypatch.setattr(sys, "stdin", Stdin())
    monkeypatch.setattr("glassformer.cli.predict.GROUP_LINES", 3)
    predictions = ask("predict", run_folder.path, "-", code=2)["predictions"]
    for key in ("input", "output", "error"):
        assert [each[key] for each in predictions] == [each[key] for each in single]
    for each, alone in zip(predictions, single, strict=True):
        if alone["error"] is None:
            assert each["probability"] == pytest.approx(alone["probability"], rel=1e-5)


def test_predict_replies_to_each_line_that_arrives(
    run_folder: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Print a prediction before waiting for more input: a program may write one line at a time."""
    arriving = [b"1 2 3\n3 2", b" 1\n", b"0 0"]
    printed = []

    class Stdin:
        isatty = staticmethod(lambda: False)

        class buffer:
            @staticmethod
            def read1(size: int) -> bytes:
                printed.append(capsys.readouterr().out.count("→"))
                return arriving.pop(0) if arriving else b""

    monkeypatch.setattr(sys, "stdin", Stdin())
    assert main(["predict", str(run_folder.path)]) == 0
    assert printed == [0, 1, 1, 0] and capsys.readouterr().out.count("→") == 1


def test_generate(ask: Ask, tmp_path: Path) -> None:
    tree = {
        "task": {"kind": "language-model", "examples": 20, "max_length": 8},
        "model": {"num_layers": 1, "num_heads": 1, "hidden_dim": 8, "feed_forward_dim": 8},
        "training": {"max_steps": 1, "threads": 1, "device": "cpu"},
    }
    (tmp_path / "writer.yaml").write_text(dump_yaml(tree), encoding="utf-8")
    ask("train", tmp_path / "writer.yaml", "--run", tmp_path / "run", "--quiet")
    document = ask("generate", tmp_path / "run", "the", "--length", 20, "--count", 2, says="the")
    assert document["run"] == str(tmp_path / "run") and document["prompt"] == "the"
    assert len(document["texts"]) == 2
    for text in document["texts"]:
        assert isinstance(text["text"], str) and is_number(text["tokens"])


def test_data(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLASSFORMER_DATA", str(tmp_path / "data"))
    sets = ask("data", "list", says="multi30k")["sets"]
    assert {"name", "licence", "files", "state"} <= sets[0].keys()
    (tmp_path / "mine.txt").write_bytes(b"one\ntwo\nt\xffree\n")
    document = ask("data", "check", tmp_path / "mine.txt", code=2, says="mine.txt")
    assert document["findings"] and document["passed"] is False


def test_params(ask: Ask, tiny_file: Path) -> None:
    document = ask("params", tiny_file, says="parameters")
    assert document["total"] == sum(document["by_module"].values()) == 1860
    assert document["flops_per_token"].keys() == {"forward", "training"}
    assert document["flops_per_token"]["training"] == 3 * document["flops_per_token"]["forward"]
    assert {"weights", "gradients", "optimizer"} <= document["memory_bytes"].keys()


def test_doctor(ask: Ask, tiny_file: Path) -> None:
    document = ask("doctor", tiny_file, says="checks")
    assert document["passed"] is True and len(document["checks"]) >= 8
    for check in document["checks"]:
        assert {"name", "passed", "value", "limit", "detail"} <= check.keys()


def test_bench(ask: Ask) -> None:
    document = ask("bench", "attention", "--batch", 1, "--heads", 1, "--length", 4, "--width", 4)
    assert document["name"] == "attention"
    assert document["machine"] and document["ratios"]
    assert len(document["rows"]) == 4
    assert all(map(is_number, document["ratios"].values()))


def test_runs(ask: Ask, run_folder: RunFolder, trained_once: Path) -> None:
    assert ask("runs", "--runs", run_folder.path / "none", says="no runs in") == {"runs": [], "groups": []}
    (row,) = ask("runs", "--runs", run_folder.path.parent, says="done")["runs"]
    assert row["run"] == str(run_folder.path) and (row["status"], row["step"]) == ("done", 24)
    assert row["primary_metric"] == "accuracy" and is_number(row["value"])
    assert row["ended"] == "max_epochs"
    assert row["ended_because"] == "the limit of 3 epochs is reached (training.max_epochs)"
    assert ask("runs", "compare", run_folder.path, trained_once) == {"differences": {}}
    assert ask("runs", "remove", run_folder.path) == {"removed": [str(run_folder.path)]}
    assert not run_folder.path.exists()


@pytest.mark.long
def test_prove_resume(ask: Ask, tiny_file: Path) -> None:
    document = ask("prove-resume", tiny_file, "--kills", 2, "--steps", 300)
    assert document["passed"] is True and document["kills"] == 2
    assert all(item["is_equal"] for item in document["compared"].values())


@pytest.mark.parametrize("suffix", ["svg", "npz"])
def test_attention(suffix: str, ask: Ask, run_folder: RunFolder, tmp_path: Path) -> None:
    out = tmp_path / f"map.{suffix}"
    document = ask("attention", run_folder.path, "1 2 3", "--out", out)
    assert out.stat().st_size > 100
    assert str(out) in json.dumps(document)


def test_trace(ask: Ask, run_folder: RunFolder) -> None:
    document = ask("trace", run_folder.path, "1 2 3", "--alternatives", 2, "--lens", says="→")
    assert document["input"] == ["1", "2", "3"] and document["tree"] is None
    assert [len(step["alternatives"]) for step in document["steps"]] == [2, 2, 2]
    assert document["trust"] == "fact" and document["logit_lens"]["trust"] == "hint"


def test_heads(ask: Ask, run_folder: RunFolder) -> None:
    document = ask("heads", run_folder.path, "--examples", 4, "--ablate", says="anti")
    assert (document["examples"], document["split"], document["trust"]) == (4, "test", "fact")
    assert document["sites"].keys() == document["untrained"].keys() == {"encoder"}
    assert [(row["layer"], row["head"]) for row in document["ablated"]] == [(0, 0), (0, 1)]


def test_patch_and_attribute(ask: Ask, run_folder: RunFolder) -> None:
    document = ask("patch", run_folder.path, says="everything patched")
    assert {"sites", "grid", "everything", "nothing", "clean", "corrupted"} <= set(document)
    document = ask("attribute", run_folder.path, "1 2 3", says="faithfulness")
    keys = {"method", "tokens", "values", "sum", "target_difference", "completeness_error"}
    assert keys | {"comprehensiveness", "random_comprehensiveness", "sufficiency"} <= set(document)


def test_probe_and_align(ask: Ask, run_folder: RunFolder) -> None:
    document = ask("probe", run_folder.path, "token", "--examples", 20, "--seeds", 1, says="fact")
    assert document["label"] == "token" and document["removals"][0]["trust"] == "cause"
    keys = {"site", "position", "accuracy", "control", "selectivity", "untrained", "interval"}
    assert keys <= set(document["rows"][0])
    (error,) = ask("align", run_folder.path, code=2, says="only an encoder-decoder")["errors"]
    assert error["path"] == "task" and "attention" in error["hint"]


def test_intervene(ask: Ask, run_folder: RunFolder) -> None:
    document = ask("intervene", run_folder.path, "1 2 3", "--edge", "encoder:0:1:0:2", says="before")
    assert document["trust"] == "cause" and document["examples"] == 1
    assert document["output"].keys() == {"before", "after"}
    assert document["metrics"]["loss"].keys() == {"before", "after", "change", "interval"}
    for options in (("--head", "encoder:0:0", "--ablation", "zero"), ("--token", "1")):
        assert ask("intervene", run_folder.path, "1 2 3", *options, "--examples", 5)["examples"] > 1


def test_a_refusal_is_a_document_too(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["evaluate", str(tmp_path), "--json"]) == 2
    (error,) = json.loads(capfd.readouterr().out)["errors"]
    assert error["path"] == str(tmp_path) and error["message"] and error["hint"]


def test_numbers_that_json_does_not_know(capfd: pytest.CaptureFixture[str]) -> None:
    from glassformer.cli.output import Output

    assert Output(is_json=True).finish({"a": [float("nan"), 1.5], 2: float("inf")}) == 0
    assert json.loads(capfd.readouterr().out, parse_constant=_no_constant) == {"a": [None, 1.5], "2": None}
