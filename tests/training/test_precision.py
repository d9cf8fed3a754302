"""Test of a precision in a child process, whose crash does not end this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from glassformer.cli import main
from glassformer.core.errors import UserError
from glassformer.training import precision


@pytest.fixture(autouse=True)
def _nothing_remembered() -> Iterator[None]:
    precision.probe.cache_clear()
    yield
    precision.probe.cache_clear()


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
    monkeypatch.setattr(precision, "_PROBE", script)
    monkeypatch.setattr(precision, "PROBE_SECONDS", 0.5 if "sleep" in script else 60)
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
        precision.check_precision("bf16", torch.device("cpu"))
        precision.check_precision("fp32", torch.device("cpu"))
    assert log.read_text() == "x"


def test_an_unknown_device_lists_the_available_ones() -> None:
    with pytest.raises(UserError, match="no such device on this machine") as caught:
        precision.choose_device("cuda:99")
    assert "allowed: auto, cpu" in str(caught.value)
    assert precision.choose_device("cpu") == torch.device("cpu")


@pytest.mark.long
def test_bf16_if_supported(make_trainer) -> None:  # type: ignore[no-untyped-def]
    failure = precision.probe("bf16")
    if failure:
        pytest.skip(f"bf16 does not run here: {failure}")
    trainer = make_trainer({"training.precision": "bf16", "training.max_steps": 5})
    assert trainer.fit().step == 5
    assert all(parameter.dtype == torch.float32 for parameter in trainer.model.parameters())
