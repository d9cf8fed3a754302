"""Serving with CTranslate2: the same replies, a comparison before the first request, and refusals."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from glassformer.cli import main
from glassformer.core.config import validate
from glassformer.core.errors import UserError
from glassformer.runs.experiment import ExperimentConfig
from glassformer.runs.folder import RunFolder
from glassformer.runs.run import Run
from glassformer.runs.session import TrainingSession
from glassformer.serving import served
from glassformer.serving.app import Server

from .conftest import MODEL, TASKS, TRAINING, Running, serving
from .test_predict import close

pytest.importorskip("ctranslate2")


@pytest.mark.parametrize("name", ["translation", "arithmetic", "language-model"])
def test_the_replies_are_those_of_our_own_decoding(
    server: Running, trained: dict[str, Path], name: str
) -> None:
    inputs = [*server.run(name).examples, ""]
    expected = server.post("/v1/predict", {"run": name, "inputs": inputs})["predictions"]
    with serving({name: trained[name]}, engine="ctranslate2") as running:
        assert running.run(name).run.has_engine
        found = running.post("/v1/predict", {"inputs": inputs})["predictions"]
        assert close(found, expected)
        assert running.post("/v1/attention", {"input": inputs[0]})["checks"]["passed"]
        sampling = {"inputs": inputs[0], "decoding": {"kind": "sample"}}
        status, error = running.refused("/v1/predict", sampling)
        assert (status, error["path"], error["allowed"]) == (400, "decoding.kind", ["beam", "greedy"])


def test_the_config_of_the_run_chooses_the_engine(tmp_path: Path) -> None:
    path = tmp_path / "arithmetic"
    tree = {"task": TASKS["arithmetic"], "model": MODEL, "training": TRAINING}
    tree["evaluation"] = {"engine": "ctranslate2", "max_examples": 4}
    config = validate(ExperimentConfig, ExperimentConfig.fill_kinds(tree))
    TrainingSession(config, RunFolder(path)).run()
    for engine, is_used in ((None, True), ("glassformer", False)):
        with serving({"arithmetic": path}, engine=engine) as running:
            assert running.run("arithmetic").run.has_engine == is_used


class Wrong:
    """Translator with weights that were damaged after the conversion."""

    def __init__(self, translator: Any) -> None:
        self.translator = translator

    def translate_batch(self, *arguments: Any, **options: Any) -> Any:
        found = self.translator.translate_batch(*arguments, **options)
        return [
            SimpleNamespace(hypotheses=[["8", *words[1:]] for words in each.hypotheses]) for each in found
        ]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.translator, name)


@pytest.fixture
def damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    from glassformer.generation.ctranslate2_engine import CTranslate2Engine

    prepare = CTranslate2Engine._prepare

    def wrong(self: Any, begin: int | None, end: int | None) -> None:
        prepare(self, begin, end)
        if not isinstance(self._runner, Wrong):
            self._runner = Wrong(self._runner)

    monkeypatch.setattr(CTranslate2Engine, "_prepare", wrong)


@pytest.mark.usefixtures("damaged")
def test_different_outputs_are_an_error_before_the_server_listens(
    trained: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Server, "serve", lambda self: pytest.fail("it must not serve"))
    assert main(["serve", str(trained["arithmetic"]), "--engine", "ctranslate2", "--port", "0"]) == 2
    error = capsys.readouterr().err
    assert "of the first 11 outputs differently" in error and "--engine glassformer" in error


@pytest.mark.usefixtures("damaged")
def test_without_data_the_first_request_is_compared(
    trained: dict[str, Path], monkeypatch: pytest.MonkeyPatch, server: Running
) -> None:
    monkeypatch.setattr(served, "example_inputs", lambda task, count: [])
    with serving({"arithmetic": trained["arithmetic"]}, engine="ctranslate2") as running:
        for _ in range(2):
            status, error = running.refused("/v1/predict", {"inputs": server.run("arithmetic").examples[0]})
            assert status == 500 and "of the first 1 outputs differently" in error["message"]
        assert running.get("/health")["status"] == "ok"


def test_a_model_that_the_engine_cannot_run_is_refused(trained: dict[str, Path]) -> None:
    runs = {"classification": trained["classification"]}
    with (
        pytest.raises(UserError, match="CTranslate2 cannot run this model") as refused,
        serving(runs, engine="ctranslate2"),
    ):
        pass
    assert any(detail.path == "task.kind" for detail in refused.value.details)


def test_an_engine_may_be_for_one_run(
    trained: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engines: dict[str, bool] = {}

    def serve(self: Server) -> None:
        engines.update({name: each.run.has_engine for name, each in self.service.runs.items()})
        self.service.stop()
        self.socket.close()

    monkeypatch.setattr(Server, "serve", serve)
    runs = [str(trained[name]) for name in ("arithmetic", "reversal")]
    assert main(["serve", *runs, "--engine", "arithmetic=ctranslate2", "--port", "0", "--json"]) == 0
    assert engines == {"arithmetic": True, "reversal": False}
    capsys.readouterr()


def test_threads_of_pytorch_stay_as_they_were(trained: dict[str, Path]) -> None:
    threads = torch.get_num_threads()
    Run(trained["arithmetic"], device="cpu", engine="ctranslate2").predict("1 + 1")
    assert torch.get_num_threads() == threads
