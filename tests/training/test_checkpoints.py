"""Checkpoint store: the order of a save, crashes at any moment, and detection of damage."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer.core.errors import UserError
from glassformer.storage import files
from glassformer.training import checkpoints
from glassformer.training.checkpoints import (
    EXTRA,
    MANIFEST,
    STATE,
    Checkpoint,
    CheckpointStore,
    DamagedCheckpoint,
    checkpoint_name,
)


def some(number: int) -> Checkpoint:
    tensors = {"model": {"weight": torch.full((300,), float(number))}, "random": {"cpu": torch.arange(9)}}
    return Checkpoint(tensors, {"training": {"step": number}})


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    for number in (10, 20, 30):
        store.save(checkpoint_name(number), some(number), is_best=number == 10)
    return store


def test_the_newest_and_the_best_are_kept(store: CheckpointStore) -> None:
    assert store.names() == ["step-00000010", "step-00000020", "step-00000030"]
    store.save("step-00000040", some(40), is_best=True)
    assert store.names() == ["step-00000030", "step-00000040"]
    assert (store.pointed("best"), store.pointed("latest")) == ("step-00000040", "step-00000040")


def test_extra_checkpoints_replace_no_regular_ones(store: CheckpointStore) -> None:
    store.save(checkpoint_name(33, is_extra=True), some(33))
    store.save(checkpoint_name(36, is_extra=True), some(36))
    assert store.names()[1:] == ["step-00000020", "step-00000030", f"step-00000036{EXTRA}"]
    store.save(checkpoint_name(40), some(40))
    assert store.names() == ["step-00000010", "step-00000030", "step-00000040"]


def test_what_is_loaded_is_what_was_saved(store: CheckpointStore) -> None:
    loaded = store.load("step-00000020")
    assert torch.equal(loaded.tensors["model"]["weight"], torch.full((300,), 20.0))
    assert loaded.state == {"training": {"step": 20}}
    assert store.load("step-00000020", ["random"]).tensors.keys() == {"random"}


def test_names(store: CheckpointStore) -> None:
    store.save(checkpoint_name(30, 1), some(30))
    assert store.find("30") == "step-00000030-rollback-1"
    assert store.find("step-00000030") == "step-00000030"
    assert store.find("best") == "step-00000010"
    assert store.find("latest") == "step-00000030-rollback-1"
    for wrong in ("31", "step-3", "²", "../step-00000030", ""):
        with pytest.raises(UserError, match="no such checkpoint"):
            store.find(wrong)
    with pytest.raises(UserError, match="no checkpoint yet"):
        CheckpointStore(store.folder / "none").find("best")


def test_no_pickle(store: CheckpointStore) -> None:
    """Reading a checkpoint cannot run code."""
    suffixes = {file.suffix for file in store.folder.rglob("*") if file.is_file()}
    assert suffixes == {".safetensors", ".json", ""}  # "" are the pointers
    for file in store.folder.rglob("*.safetensors"):
        header = int.from_bytes(file.read_bytes()[:8], "little")
        json.loads(file.read_bytes()[8 : 8 + header])


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def remove(file: Path) -> None:
    file.unlink()


def make_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def write(content: bytes) -> Callable[[Path], None]:
    return lambda file: file.write_bytes(content) and None


LEADS_AWAY = files.json_bytes({"format": 1, "files": {"../../best": {"bytes": 14, "sha256": "0"}}})
DAMAGE: list[tuple[str, Callable[[Path], None]]] = [
    *((file, harm) for file in ("model.safetensors", STATE, MANIFEST) for harm in (flip, truncate, remove)),
    ("model.safetensors", make_folder),
    *(
        (MANIFEST, write(text))
        for text in (b'{"files": {}}', b"[]", b"{", b"\xff\x00", b"[" * 9999, LEADS_AWAY)
    ),
]


@pytest.mark.parametrize(("file", "harm"), DAMAGE)
def test_damage_is_detected_reported_and_skipped(
    file: str, harm: Callable[[Path], None], store: CheckpointStore
) -> None:
    harm(store.folder / "step-00000030" / file)
    with pytest.raises(DamagedCheckpoint):
        store.load("step-00000030")
    messages: list[str] = []
    newest = store.load_newest(messages.append)
    assert newest is not None and newest[0] == "step-00000020"
    assert len(messages) == 1 and "step-00000030" in messages[0] and "\n" not in messages[0]
    assert messages[0].endswith("using the previous checkpoint")
    # A run that reaches the step again replaces the damaged checkpoint.
    store.save("step-00000030", some(30))
    assert store.load("step-00000030").state == {"training": {"step": 30}}


def test_if_every_checkpoint_is_damaged_none_is_used(store: CheckpointStore) -> None:
    for name in store.names():
        flip(store.folder / name / "model.safetensors")
    with pytest.raises(UserError, match="every checkpoint here is damaged"):
        store.load_newest()


@pytest.mark.parametrize("content", [b"", b"step-00000099\n", b"../../etc\n", b"\xff\xfe"])
def test_a_broken_pointer_is_not_followed(content: bytes, store: CheckpointStore) -> None:
    (store.folder / "latest").write_bytes(content)
    assert store.pointed("latest") is None
    newest = store.load_newest()
    assert newest is not None and newest[0] == "step-00000030"


def test_the_order_of_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sync files and folder, rename, move `latest`, and only then delete old checkpoints."""
    log: list[str] = []

    def name_of(descriptor: int) -> str:
        return Path(os.readlink(f"/proc/self/fd/{descriptor}")).name

    def spy(module: Any, function: str, describe: Callable[..., str]) -> None:
        original = getattr(module, function)

        def recorded(*arguments: Any, **options: Any) -> Any:
            log.append(describe(*arguments))
            return original(*arguments, **options)

        monkeypatch.setattr(module, function, recorded)

    store = CheckpointStore(tmp_path / "store", keep=1)
    store.save("step-00000001", some(1))
    spy(files.os, "fsync", lambda descriptor: f"sync {name_of(descriptor)}")
    spy(files.os, "replace", lambda old, new: f"point {Path(new).name}")
    spy(checkpoints.os, "rename", lambda old, new: f"name {Path(new).name}")
    spy(checkpoints.shutil, "rmtree", lambda path, **options: f"remove {Path(path).name}")
    store.save("step-00000002", some(2), is_best=True)
    assert log == [
        f"sync {tmp_path.name}",
        "sync model.safetensors",
        "sync random.safetensors",
        "sync state.json",
        "sync manifest.json",
        "sync .saving-step-00000002",
        "name step-00000002",
        "sync store",
        "sync .best.saving",
        "point best",
        "sync store",
        "sync .latest.saving",
        "point latest",
        "sync store",
        "remove step-00000001",
    ]


class Power(BaseException):
    """Simulated loss of power."""


@pytest.mark.parametrize("moment", range(14))
def test_a_crash_at_any_moment_leaves_an_intact_checkpoint(
    moment: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path / "store", keep=1)
    store.save("step-00000001", some(1), is_best=True)
    left = moment

    def failing(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            if left == 0:
                raise Power
            left -= 1
            return original(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for module, name in ((os, "fsync"), (os, "replace"), (os, "rename")):
            patch.setattr(module, name, failing(getattr(module, name)))
        with pytest.raises(Power):
            store.save("step-00000002", some(2), is_best=True)
    again = CheckpointStore(store.folder, keep=1)
    newest = again.load_newest()
    assert newest is not None
    number = newest[1].state["training"]["step"]
    assert newest[0] == checkpoint_name(number) and number in (1, 2)
    # The next save succeeds and cleans up.
    again.save("step-00000003", some(3), is_best=True)
    assert again.names() == ["step-00000003"]
    assert sorted(path.name for path in store.folder.iterdir()) == ["best", "latest", "step-00000003"]


def test_written_files_are_read_back_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Detect a disk that returns other bytes than were written, and keep the old checkpoint."""
    store = CheckpointStore(tmp_path / "store")
    store.save("step-00000001", some(1))
    write = files.write_durably

    def lossy(path: Path, data: bytes) -> None:
        write(path, data[:-1] + b"\0" if path.name == "model.safetensors" else data)

    monkeypatch.setattr(checkpoints, "write_durably", lossy)
    with pytest.raises(UserError, match="was changed after it was written"):
        store.save("step-00000002", some(2))
    assert [path.name for path in store.folder.iterdir() if path.is_dir()] == ["step-00000001"]
    assert store.pointed("latest") == "step-00000001"


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux lists the mapped files")
def test_a_restored_trainer_does_not_map_the_files(make_trainer: Any, tmp_path: Path) -> None:
    """Otherwise a deleted checkpoint still occupies the disk, and a lost network disk ends the run."""
    trainer = make_trainer({"training.ema_decay": 0.9})
    trainer.step(next(trainer.step_batches()))
    store = CheckpointStore(tmp_path / "store")
    store.save("step-00000001", trainer.checkpoint())
    trainer.restore(store.load("step-00000001"))
    assert str(store.folder) not in Path("/proc/self/maps").read_text()
