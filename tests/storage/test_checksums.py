"""SHA256SUMS: every damage of a covered file is detected, and a crash at any moment is not damage."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from glassformer.core.errors import UserError
from glassformer.runs.folder import RunFolder
from glassformer.storage import files
from glassformer.storage.files import SUMS, ChecksummedFolder, ChecksumMismatch

FILES = {"config.json": b'{"seed": 0}\n', "results.json": b'{"metrics": {}}\n'}


@pytest.fixture
def folder(tmp_path: Path) -> ChecksummedFolder:
    folder = ChecksummedFolder(tmp_path)
    folder.write(FILES)
    return folder


def damages(data: bytes) -> Iterator[bytes]:
    """Yield the data with each bit flipped, and with the end cut off at each byte."""
    for index in range(len(data)):
        for bit in range(8):
            yield data[:index] + bytes([data[index] ^ (1 << bit)]) + data[index + 1 :]
        yield data[:index]


def test_files_are_read_back(folder: ChecksummedFolder) -> None:
    assert {name: folder.read(name) for name in FILES} == FILES
    folder.write({"results.json": b"new"})
    assert folder.read("results.json") == b"new" and folder.read("config.json") == FILES["config.json"]


def test_sha256sum_checks_the_same_file(folder: ChecksummedFolder) -> None:
    command = ["sha256sum", "--check", "--strict", SUMS]
    assert subprocess.run(command, cwd=folder.path, capture_output=True).returncode == 0
    (folder.path / "config.json").write_bytes(b"{}")
    assert subprocess.run(command, cwd=folder.path, capture_output=True).returncode == 1


@pytest.mark.parametrize("name", FILES)
def test_every_bit_of_a_file_counts(name: str, folder: ChecksummedFolder) -> None:
    for damaged in damages(FILES[name]):
        (folder.path / name).write_bytes(damaged)
        with pytest.raises(ChecksumMismatch):
            folder.read(name)


def test_every_bit_of_the_checksums_counts(folder: ChecksummedFolder) -> None:
    for damaged in damages((folder.path / SUMS).read_bytes()):
        (folder.path / SUMS).write_bytes(damaged)
        with pytest.raises(ChecksumMismatch):
            _ = [folder.read(name) for name in FILES]


def test_a_file_that_is_not_listed_is_a_mismatch(folder: ChecksummedFolder) -> None:
    (folder.path / "task.json").write_bytes(b"{}")
    with pytest.raises(ChecksumMismatch):
        folder.read("task.json")
    (folder.path / SUMS).unlink()
    with pytest.raises(ChecksumMismatch, match="SHA256SUMS cannot be read"):
        folder.read("config.json")


@pytest.mark.parametrize("writes", range(4))
def test_a_crash_between_two_writes_leaves_the_old_or_the_new_file(
    writes: int, folder: ChecksummedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`write` needs three atomic writes to replace a file; it is stopped before each of them."""
    write, left = files.atomic_write, writes

    def crash(path: Path, data: bytes, **options: Any) -> None:
        nonlocal left
        if not left:
            raise KeyboardInterrupt
        left -= 1
        write(path, data, **options)

    monkeypatch.setattr(files, "atomic_write", crash)
    try:
        folder.write({"results.json": b"new"})
        assert writes == 3
    except KeyboardInterrupt:
        assert writes < 3
    assert folder.read("results.json") == (FILES["results.json"] if writes < 2 else b"new")
    assert folder.read("config.json") == FILES["config.json"]
    monkeypatch.undo()
    folder.write({"results.json": b"newer"})
    assert folder.read("results.json") == b"newer"
    assert (folder.path / SUMS).read_text().count("results.json") == 1


def test_a_reader_that_meets_a_writer_tries_again(
    folder: ChecksummedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer replaces the file, and drops the old checksum, between the reader's two reads."""
    digests, calls = ChecksummedFolder._digests, 0

    def replaced_meanwhile(self: ChecksummedFolder) -> files.Digests:
        nonlocal calls
        calls += 1
        if calls == 1:
            monkeypatch.setattr(ChecksummedFolder, "_digests", digests)
            folder.write({"results.json": b"new"})
        return digests(self)

    monkeypatch.setattr(ChecksummedFolder, "_digests", replaced_meanwhile)
    assert folder.read("results.json") == b"new"


def test_every_bit_of_a_status_counts(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.write_status({"state": "stopped", "step": 7, "total_steps": None, "pid": os.getpid(), "time": 1.5})
    assert (run.status().name, run.status().step) == ("stopped", 7)
    for damaged in damages((tmp_path / "status.json").read_bytes()):
        (tmp_path / "status.json").write_bytes(damaged)
        with pytest.raises(UserError, match="cannot be read"):
            run.status()
