"""Test of a precision in a child process, whose crash does not end this process, and the choice by `auto`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer.cli import main
from glassformer.core.errors import UserError
from glassformer.generation import probes
from glassformer.runs.experiment import Experiment, ExperimentConfig
from glassformer.runs.folder import RunFolder
from glassformer.runs.session import open_session
from glassformer.training import precision
from glassformer.training.progress import Reporter

LARGE = {"model.hidden_dim": 128, "model.feed_forward_dim": 128}
"""Options of a model with matrices that are large enough for bf16."""


@pytest.fixture(autouse=True)
def _nothing_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GLASSFORMER_CACHE", str(tmp_path / "cache"))
    for function in (precision.probe, precision.bf16_speed):
        function.cache_clear()
    yield
    for function in (precision.probe, precision.bf16_speed):
        function.cache_clear()


ILLEGAL_INSTRUCTION = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (ILLEGAL_INSTRUCTION, "the test was stopped by signal 4"),
        ("raise SystemExit('bf16 is not for this machine')", "bf16 is not for this machine"),
        ("import sys; sys.exit(3)", "exit code 3"),
        ("import time; time.sleep(60)", "no result within 0.5 seconds"),
    ],
)
def test_an_unsupported_precision_is_an_error_of_a_few_lines(
    script: str,
    words: str,
    tiny_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(precision, "_SPEED", script)
    monkeypatch.setattr(probes, "PROBE_SECONDS", 0.5 if "sleep" in script else 60)
    run = tmp_path / "run"
    assert main(["train", str(tiny_file), "training.precision=bf16", "--run", str(run), "--quiet"]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == (
        f"glassformer: training.precision: this precision does not run on cpu: {words}\n"
        "  given:   'bf16'\n"
        "  try:     training.precision=fp32\n"
    )
    assert not run.exists()


def test_a_precision_is_tested_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log = tmp_path / "log"
    monkeypatch.setattr(precision, "_PROBE", f"open({str(log)!r}, 'a').write('x')")
    for _ in range(3):
        precision.check_precision("fp16", torch.device("cpu"))
        precision.check_precision("fp32", torch.device("cpu"))
    assert log.read_text() == "x"


def counted(ratio: str, log: Path) -> str:
    """Return a script that prints a ratio and counts its runs in a file."""
    return f"open({str(log)!r}, 'a').write('x')\nprint({ratio})"


def choice(tiny_config: Callable[..., ExperimentConfig], asked: str = "auto") -> precision.PrecisionChoice:
    model = Experiment(tiny_config(LARGE)).build_model()
    return precision.choose_precision(asked, torch.device("cpu"), model)


@pytest.mark.parametrize(("ratio", "expected"), [("2.1", "bf16"), ("1.3", "bf16"), ("1.29", "fp32")])
def test_auto_is_bf16_if_its_products_are_faster(
    ratio: str, expected: str, tiny_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "_SPEED", f"print({ratio})")
    chosen = choice(tiny_config)
    assert chosen.precision == expected
    assert f"{float(ratio):.1f} × as fast as in fp32 on this" in chosen.describe()


def test_the_speed_is_measured_once_per_processor_and_version(
    tiny_config: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    monkeypatch.setattr(precision, "_SPEED", counted("2.0", log))
    for _ in range(2):
        assert choice(tiny_config).precision == "bf16"
        precision.bf16_speed.cache_clear()  # as in a new process
    assert log.read_text() == "x"
    monkeypatch.setattr(probes, "cpu_name", lambda: "another processor")
    assert choice(tiny_config).precision == "bf16"
    assert log.read_text() == "xx"
    (tmp_path / "cache" / "precision.json").write_text("[1, ")
    precision.bf16_speed.cache_clear()
    assert choice(tiny_config).precision == "bf16"
    assert log.read_text() == "xxx"


def test_auto_survives_an_illegal_instruction_and_names_the_safe_ones(
    tiny_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        f"import os\nif 'ONEDNN_MAX_CPU_ISA' in os.environ: print(1.9)\nelse: exec({ILLEGAL_INSTRUCTION!r})"
    )
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setattr(precision, "_SPEED", script)
    chosen = choice(tiny_config)
    assert chosen.precision == "fp32"
    assert "stopped by signal 4" in chosen.reason
    assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16" in chosen.reason and "1.9 × as fast" in chosen.reason


def test_auto_is_fp32_for_small_models(make_trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_SPEED", "raise SystemExit('not needed')")
    trainer = make_trainer({"training.precision": "auto"})
    assert trainer.config.precision == "fp32"


class Lines(Reporter):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, text: str) -> None:
        self.lines.append(text)


def train(tiny_file: Path, run: Path, **options: Any) -> list[str]:
    reporter = Lines()
    overrides = {**LARGE, **{name.replace("__", "."): value for name, value in options.items()}}
    session = open_session(str(tiny_file), overrides, run=run, resume=True, reporter=reporter)
    session.run()
    return reporter.lines


def test_a_resumed_run_keeps_its_precision(
    tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    monkeypatch.setattr(precision, "_SPEED", "print(1.0)")
    lines = train(tiny_file, run, training__precision="auto", training__max_steps=2)
    assert any(line.startswith("precision fp32: matrix products") for line in lines)
    about = RunFolder(run).environment()["precision"]
    assert (about["asked"], about["precision"]) == ("auto", "fp32")
    assert json.loads((run / "results.json").read_text())["precision"] == "fp32"
    precision.bf16_speed.cache_clear()
    monkeypatch.setattr(precision, "_SPEED", "print(9.0)")  # bf16 is fast now, but the run began in fp32
    monkeypatch.setattr(probes, "processor_key", lambda: "another key")
    lines = train(tiny_file, run, training__precision="auto", training__max_steps=4)
    assert not any("this run began with" in line for line in lines)
    assert any(line.startswith("precision fp32") for line in lines)


def test_another_processor_or_precision_is_reported(
    tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    train(tiny_file, run, training__precision="fp16", training__max_steps=2)
    monkeypatch.setattr("glassformer.runs.session.cpu_name", lambda: "Abacus 9000")
    lines = train(tiny_file, run, training__precision="fp32", training__max_steps=4)
    assert any(
        "the precision fp16 and continues with fp32: its results will differ" in line for line in lines
    )
    assert any("continues with Abacus 9000" in line for line in lines)


def test_a_saved_precision_that_does_not_run_is_refused(
    tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    monkeypatch.setattr(precision, "_SPEED", "print(1.0)")
    train(tiny_file, run, training__precision="auto", training__max_steps=2)
    precision.bf16_speed.cache_clear()
    monkeypatch.setattr(probes, "processor_key", lambda: "another key")
    monkeypatch.setattr(precision, "_SPEED", ILLEGAL_INSTRUCTION)
    saved = {"asked": "auto", "precision": "bf16", "reason": "as on the first machine"}
    environment = RunFolder.environment
    monkeypatch.setattr(RunFolder, "environment", lambda self: environment(self) | {"precision": saved})
    with pytest.raises(UserError, match="does not run on cpu: the test was stopped by signal 4"):
        train(tiny_file, run, training__precision="auto", training__max_steps=4)
    train(tiny_file, run, training__precision="fp32", training__max_steps=4)  # if the user says so
    assert json.loads((run / "results.json").read_text())["steps"] == 4


def test_an_unknown_device_lists_the_available_ones() -> None:
    with pytest.raises(UserError, match="no such device on this machine") as caught:
        precision.choose_device("cuda:99")
    assert "allowed: auto, cpu" in str(caught.value)
    assert precision.choose_device("cpu") == torch.device("cpu")
