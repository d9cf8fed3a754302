"""Full and read-only disks: one clear error, and the previous checkpoint is intact."""

from __future__ import annotations

import errno
import io
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from glassformer.cli import main
from glassformer.runs.folder import RunFolder
from glassformer.runs.session import TrainingSession
from glassformer.storage import files
from glassformer.training import checkpoints, events, trainer

LARGER = ["model.hidden_dim=64"]
"""Option of a larger model, whose checkpoint (0.3 MB) needs much more space than an event."""


@pytest.fixture
def train(tiny_file: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run `train … --resume`; return exit code and standard error."""

    def run(path: Path, *options: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(["train", str(tiny_file), *LARGER, *options, "--run", str(path), "--resume", "--quiet"])
        return code, capsys.readouterr().err

    return run


def stop_after_an_epoch(path: Path, tiny_config: Any) -> str:
    """Stop a run at step 8; return the SHA-256 of its weights."""
    training = TrainingSession(tiny_config({"model.hidden_dim": 64}), RunFolder(path))
    training.signals = trainer.StopSignals()
    training.signals.is_set = lambda: training.trainer.state.last_validation >= 8  # type: ignore[method-assign]
    assert training.run()["steps"] == 8
    return newest_weights(path)


def newest_weights(path: Path) -> str:
    store = RunFolder(path).checkpoints()
    newest = store.load_newest()
    assert newest is not None
    return files.file_sha256(store.folder / newest[0] / "model.safetensors")


def check_message(errors: str, path: Path, reason: str) -> tuple[int, int]:
    """Check that there is one short error with the path; return the bytes needed and free."""
    lines = errors.rstrip("\n").splitlines()
    assert 2 <= len(lines) <= 5, errors
    assert lines[0].startswith(f"glassformer: {path}") and reason in lines[0]
    assert "the last checkpoint is intact" in errors and "--resume" in errors
    numbers = re.search(r"\(([\d,]+) bytes needed, ([\d,]+) bytes free\)", lines[0])
    assert numbers is not None, errors
    needed, free = (int(number.replace(",", "")) for number in numbers.groups())
    return needed, free


def test_a_full_disk(small_disk: Any, train: Any, tiny_config: Any, tmp_path: Path) -> None:
    run = small_disk.path / "run"
    weights = stop_after_an_epoch(run, tiny_config)
    small_disk.fill(leaving=100_000)
    code, errors = train(run)
    assert code == 2
    needed, free = check_message(errors, run / "checkpoints" / "step-00000016", "No space left on device")
    assert needed > free and 200_000 < needed < 600_000
    assert newest_weights(run) == weights
    assert RunFolder(run).status().name == "crashed"
    assert not list((run / "checkpoints").glob(".saving*"))  # the incomplete checkpoint was deleted

    small_disk.empty()
    assert train(run)[0] == 0
    assert train(tmp_path / "alone")[0] == 0
    assert newest_weights(run) == newest_weights(tmp_path / "alone")


def test_a_disk_without_any_room(small_disk: Any, train: Any, tiny_config: Any) -> None:
    """Neither an event nor the heartbeat can be written."""
    run = small_disk.path / "run"
    weights = stop_after_an_epoch(run, tiny_config)
    small_disk.fill(leaving=0)
    code, errors = train(run)
    assert code == 2
    check_message(errors, run, "No space left on device")
    assert newest_weights(run) == weights


def test_a_disk_that_is_full_from_the_start(small_disk: Any, train: Any) -> None:
    small_disk.fill(leaving=0)
    code, errors = train(small_disk.path / "run")
    assert code == 2
    check_message(errors, small_disk.path / "run", "No space left on device")


def test_a_read_only_disk(
    small_disk: Any, train: Any, tiny_config: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run = small_disk.path / "run"
    weights = stop_after_an_epoch(run, tiny_config)
    small_disk.remount("ro")
    code, errors = train(run)
    assert code == 2
    check_message(errors, run, "Read-only file system")
    assert newest_weights(run) == weights
    # The model can still be evaluated and used.
    assert main(["evaluate", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["examples"] == 24
    assert main(["predict", str(run), "1 2 3"]) == 0
    assert main(["runs", "--runs", str(small_disk.path)]) == 0
    small_disk.remount("rw")
    assert train(run)[0] == 0


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("file", ["model.safetensors", "manifest.json", ".latest.saving", "results.json"])
def test_a_write_that_fails(
    file: str, number: int, train: Any, tiny_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulate the failure, for each file, so that the test needs no special disk."""
    run = tmp_path / "run"
    weights = stop_after_an_epoch(run, tiny_config)
    write = files.write_durably

    def fail(path: Path, data: bytes) -> None:
        if path.name == file or path.name == f".{file}.saving":
            path.write_bytes(data[:10])
            raise OSError(number, os.strerror(number))
        write(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_durably", fail)
        patch.setattr(checkpoints, "write_durably", fail)
        code, errors = train(run)
    assert code == 2
    needed, _ = check_message(errors, run, os.strerror(number))
    assert needed > 0
    if file != "results.json":  # the final checkpoint is already saved
        assert RunFolder(run).checkpoints().pointed("latest") == "step-00000008"
        RunFolder(run).checkpoints().load("step-00000008")
    if file == "model.safetensors":
        assert newest_weights(run) == weights
    assert train(run)[0] == 0
    assert RunFolder(run).status().name == "done"


def test_a_record_that_cannot_be_written(
    train: Any, tiny_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    weights = stop_after_an_epoch(run, tiny_config)

    class Full(io.BytesIO):
        def close(self) -> None:
            """Fail on close, when the buffered line is written."""
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def open_full(path: Path, mode: str) -> IO[bytes]:
        return Full() if mode == "ab" else path.open("rb")

    with monkeypatch.context() as patch:
        patch.setattr(events, "open", open_full, raising=False)
        code, errors = train(run)
    assert code == 2
    check_message(errors, run / "events.jsonl", "No space left on device")
    assert newest_weights(run) == weights


def test_a_file_where_the_folder_should_be(train: Any, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    code, errors = train(tmp_path / "run")
    assert code == 2 and "File exists" in errors and "Traceback" not in errors
    code, errors = train(tmp_path / "run" / "below")
    assert code == 2 and "Not a directory" in errors
    assert (tmp_path / "run").read_text() == "mine"
