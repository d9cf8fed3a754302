"""Export: the common flow, from the refusal of a model to the verified folder."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

from glassformer.cli import main, output
from glassformer.core.errors import UserError
from glassformer.interchange import export as flow
from glassformer.interchange import model_card
from glassformer.interchange.export import EXAMPLES, Exported, ExportSource, Verification, VerificationFailed
from glassformer.interchange.huggingface_export import HuggingFaceTarget
from glassformer.runs.run import Run
from glassformer.storage.folders import UNFINISHED
from tests.interchange.small_runs import LLAMA, random_run, small_run

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return small_run(tmp_path_factory.mktemp("llama") / "run", LLAMA)


@pytest.fixture(scope="module")
def exported(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return run.export("huggingface", tmp_path_factory.mktemp("exported") / "out")


def test_folder_is_verified_with_the_engine_of_its_target(exported: Exported) -> None:
    verification = json.loads((exported.folder / flow.VERIFICATION).read_text())
    assert verification["engine"] == "transformers" and verification["examples"] == 64
    assert verification["passed"] and verification["same_outputs"] == 1
    assert verification["largest_difference"] < 1e-4
    assert {"config.json", "model.safetensors", "tokenizer.json"} < set(exported.files)
    assert {"README.md", "attention.png"} < set(exported.files)


def test_a_small_split_is_followed_by_the_next_one() -> None:
    """A run on a small file of labels was verified with its few validation examples alone."""
    sizes = {"task.train_examples": 90, "task.validation_examples": 10, "task.test_examples": 20}
    source = ExportSource.of(random_run({"task.kind": "reversal", "task.length": 8, **sizes}))
    splits = [example.split for example in source.examples()]
    assert splits == ["test"] * 20 + ["validation"] * 10 + ["train"] * (EXAMPLES - 30)
    assert {example.split for example in source.examples(16)} == {"test"}
    assert len(source.examples(1000)) == 120


def test_nothing_else_is_left_beside_the_folder(exported: Exported) -> None:
    assert list(exported.folder.parent.iterdir()) == [exported.folder]


def test_existing_folder_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="not an empty folder"):
        run.export("huggingface", tmp_path)
    with pytest.raises(UserError, match="belongs to the run"):
        run.export("huggingface", run.path / "exported")


def test_model_that_the_target_cannot_represent_is_refused(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", {**LLAMA, "model.output_bias": True, "model.position.kind": "alibi"})
    with pytest.raises(UserError, match=r"model\.position\.kind.*rotary") as caught:
        run.export("huggingface", tmp_path / "out")
    assert [detail.path for detail in caught.value.details] == ["model.position.kind", "model.output_bias"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("stage", ["write", "verify", "card"])
def test_interrupted_export_leaves_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, error: type[BaseException]
) -> None:
    def interrupted(*arguments: Any) -> None:
        (folder,) = [each for each in arguments if isinstance(each, Path)]
        (folder / "half").touch()
        raise error

    replace_stages(monkeypatch, stage, interrupted)
    with pytest.raises(error):
        run.export("huggingface", tmp_path / "out")
    assert not list(tmp_path.iterdir())


def replace_stages(monkeypatch: pytest.MonkeyPatch, stage: str, action: Any) -> None:
    """Replace one stage of an export by an action, and those before it by nothing."""
    passed = Verification(1, 0.0, 1.0, 1.0, "engine", "1", "test")
    results = {"write": None, "verify": passed, "card": None}
    actions = {name: lambda *arguments, result=result: result for name, result in results.items()}
    actions[stage] = action
    monkeypatch.setattr(HuggingFaceTarget, "write", actions["write"])
    monkeypatch.setattr(flow, "verify", actions["verify"])
    monkeypatch.setattr(model_card, "write_card", actions["card"])


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EROFS, "Read-only file system"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_full_or_read_only_disk_is_a_short_error(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def write(*arguments: Any) -> None:
        raise error

    replace_stages(monkeypatch, "write", write)
    with pytest.raises(UserError, match=r"(No space|Read-only).*bytes needed") as caught:
        run.export("huggingface", tmp_path / "out")
    (detail,) = caught.value.details
    assert detail.path == str(tmp_path / "out") and "then export again" in detail.hint
    assert not list(tmp_path.iterdir())


def test_remains_of_a_killed_export_are_removed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed, running = (tmp_path / f".out{UNFINISHED}{name}" for name in ("killed", "running"))
    for folder in (killed, running):
        folder.mkdir()
        (folder / "half").touch()
    (tmp_path / f".out{UNFINISHED}link").symlink_to(run.path)
    lock = os.open(running, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    replace_stages(monkeypatch, "card", lambda *arguments: None)
    try:
        run.export("huggingface", tmp_path / "out")
    finally:
        os.close(lock)
    assert not killed.exists() and (running / "half").exists() and (run.path / "config.yaml").exists()


def test_stages_are_printed_if_they_take_long(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "PROGRESS_DELAY", 0.0)
    replace_stages(monkeypatch, "write", lambda *arguments: time.sleep(0.3))
    out = tmp_path / "out"
    assert main(["export", str(run.path), "--to", "huggingface", "--out", str(out), "--json"]) == 0
    captured = capsys.readouterr()
    json.loads(captured.out)
    lines = captured.err.splitlines()
    assert lines.index(f"writing {out}") < lines.index("verifying with transformers, 64 examples")
    assert "writing the model card" in lines


@pytest.mark.thorough
def test_changed_weights_fail_the_verification(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = HuggingFaceTarget.write

    def scaled(self: HuggingFaceTarget, source: Any, folder: Path) -> None:
        write(self, source, folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.5}))

    monkeypatch.setattr(HuggingFaceTarget, "write", scaled)
    with pytest.raises(VerificationFailed, match="largest difference"):
        run.export("huggingface", tmp_path / "out")
    assert main(["export", str(run.path), "--to", "huggingface", "--out", str(tmp_path / "out")]) == 1
    assert "FAILED" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
def test_command_prints_one_json_document(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    shutil.rmtree(out, ignore_errors=True)
    assert main(["export", str(run.path), "--to", "huggingface", "--out", str(out), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["target"] == "huggingface" and document["folder"] == str(out)
    assert document["verified"]["same_outputs"] == 1 and "config.json" in document["files"]
    assert main(["export", str(run.path), "--to", "hugingface", "--out", str(out)]) == 2
    assert "did you mean 'huggingface'?" in capsys.readouterr().err
