"""`glassformer doctor`: the document, the table, the exit code; presets, runs and plug-ins."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from glassformer.cli import main
from glassformer.core.registry import kinds, unregister
from glassformer.doctor.report import Measurement
from glassformer.doctor.runner import MODEL_CHECKS
from glassformer.interchange.export import TARGETS
from glassformer.models.base import ModelConfig
from glassformer.runs.folder import RunFolder

CHECKSUMS = "checkpoint checksums match"
FILES = "checksums of the other run files match"


@pytest.fixture
def only_quick_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in set(MODEL_CHECKS) - {"padding does not affect outputs or loss", "initial loss is near ln V"}:
        monkeypatch.delitem(MODEL_CHECKS, name)


@pytest.fixture
def forget_plugins() -> Iterator[None]:
    """Unregister the kinds of a test's plug-in, which the contract tests must not see."""
    before = set(kinds(ModelConfig).values())
    yield
    for kind in set(kinds(ModelConfig).values()) - before:
        unregister(kind)


def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any], str]:
    code = main(["doctor", *arguments, "--json"])
    captured = capsys.readouterr()
    return code, json.loads(captured.out or "{}"), captured.err


def test_the_document(tiny_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, document, said = doctor(capsys, str(tiny_file), "model.num_layers=2")
    assert code == 0 and document["passed"] is True
    assert [check["name"] for check in document["checks"]] == list(MODEL_CHECKS)
    for check in document["checks"]:
        assert {"name", "passed", "value", "limit", "detail", "seconds"} <= set(check)
        assert check["passed"] is True and "\n" not in check["detail"]
    assert "✓" in said and "–" in said and "checks passed" in said
    assert [each["target"] for each in document["exports"]] == list(TARGETS)
    assert "  onnx: yes\n" in said and "  ctranslate2: no, task.kind: " in said


def test_a_failed_check(
    tiny_file: Path,
    only_quick_checks: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(
        MODEL_CHECKS, "always wrong", lambda context: Measurement("failed", 2.5, 1.0, "see [bold] here")
    )
    code, document, said = doctor(capsys, str(tiny_file))
    assert code == 1 and document["passed"] is False
    wrong = document["checks"][-1]
    assert (wrong["passed"], wrong["value"], wrong["limit"]) == (False, 2.5, 1.0)
    assert "✗" in said and "see [bold] here" in said and "FAILED 1 of 3 checks: always wrong" in said


def test_a_run(run_folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    code, document, _ = doctor(capsys, str(run_folder.path))
    assert code == 0
    assert [check["name"] for check in document["checks"]] == [CHECKSUMS, FILES, *MODEL_CHECKS]


def test_a_damaged_run(
    run_folder: RunFolder, only_quick_checks: None, capsys: pytest.CaptureFixture[str]
) -> None:
    store = run_folder.checkpoints()
    damaged, whole = store.find("best"), next(n for n in store.names() if n != store.find("best"))
    weights = store.folder / damaged / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    code, document, _ = doctor(capsys, str(run_folder.path))
    assert code == 1
    assert [check["name"] for check in document["checks"]] == [CHECKSUMS, FILES]
    assert damaged in document["checks"][0]["detail"]
    code, document, _ = doctor(capsys, str(run_folder.path), "--checkpoint", whole)
    assert code == 1 and len(document["checks"]) == 4
    assert [check["passed"] for check in document["checks"]] == [False, True, True, True]


@pytest.mark.parametrize(
    "name",
    [
        "config.yaml",
        "config.json",
        "task.json",
        "environment.json",
        "results.json",
        "status.json",
        "events.jsonl",
    ],
)
def test_one_bit_of_any_file_is_seen(
    name: str, run_folder: RunFolder, only_quick_checks: None, capsys: pytest.CaptureFixture[str]
) -> None:
    data = bytearray((run_folder.path / name).read_bytes())
    data[len(data) // 2] ^= 1
    (run_folder.path / name).write_bytes(data)
    code, document, _ = doctor(capsys, str(run_folder.path))
    assert code == 1 and not document["checks"][1]["passed"]
    assert str(run_folder.path / name) in document["checks"][1]["detail"]


def test_options_of_a_run_cannot_be_changed(
    run_folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, said = doctor(capsys, str(run_folder.path), "model.num_layers=2")
    assert code == 2 and "cannot be changed" in said


def test_an_invalid_config_is_a_user_error(tiny_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, said = doctor(capsys, str(tiny_file), "model.num_heads=3")
    assert code == 2 and "model.num_heads" in said


PLUGIN = """
from typing import Literal

from torch import nn

from glassformer.models.base import Model, ModelConfig
from glassformer.blocks.heads import ClassHead
from glassformer.core.registry import register


class Recurrent(Model):
    def __init__(self, shape):
        super().__init__(shape)
        self.is_causal = not {bidirectional}
        self.words = nn.Embedding(shape.vocabulary, 32)
        self.recurrent = nn.GRU(32, 32, batch_first=True, bidirectional={bidirectional})
        self.head = ClassHead({width}, shape.classes)

    def hidden(self, tokens, mask=None):
        return self.recurrent(self.words(tokens))[0]


@register
class RecurrentConfig(ModelConfig):
    kind: Literal["{name}"] = "{name}"

    def build(self, shape):
        return Recurrent(shape)
"""


@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_plug_ins_model(
    bidirectional: bool,
    tiny_file: Path,
    tmp_path: Path,
    forget_plugins: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Reading backwards meets padding first, the classic mistake with recurrent networks."""
    plugin = tmp_path / f"recurrent_{bidirectional}.py"
    name = f"recurrent-{bidirectional}".lower()
    plugin.write_text(
        PLUGIN.format(bidirectional=bidirectional, width=64 if bidirectional else 32, name=name)
    )
    text = tiny_file.read_text()
    task = text[: text.index("model:")]
    tiny_file.write_text(f"{task}model:\n  kind: {name}\n")
    code, document, _ = doctor(capsys, str(tiny_file), "--plugin", str(plugin))
    failed = {check["name"] for check in document["checks"] if not check["passed"]}
    expected = {"padding does not affect outputs or loss", "gradient accumulation equals one large batch"}
    assert failed == (expected if bidirectional else set())
    assert code == bool(failed)


def test_the_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, document, said = doctor(capsys, "--runs", str(tmp_path / "runs"))
    assert code == 0 and document["passed"] is True
    assert {
        "processor",
        "threads",
        "memory",
        "runs folder",
        "PyTorch",
        "GPU",
        "fp32 on cpu",
        "bf16 on cpu",
    } <= {check["name"] for check in document["checks"]}
    code, document, said = doctor(capsys, "--runs", "/proc/runs")
    assert code == 1 and "FAILED 1 of" in said
