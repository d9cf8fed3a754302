"""Databases of sweeps: accepted URLs, and behaviour when the server does not respond."""

from __future__ import annotations

from pathlib import Path

import pytest

from glassformer.core.errors import UserError
from glassformer.sweeps import storage
from glassformer.sweeps.storage import Database, file_system_of, storage_url, without_password

MOUNTS = """/dev/sda1 / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
/dev/sdb1 /home/local ext4 rw 0 0
//server/share /mnt/my\\040share cifs rw 0 0
tmpfs /home/later tmpfs rw 0 0
"""


def test_the_file_system_of_a_path_is_that_of_the_mount_below_it(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS, encoding="utf-8")
    found = {
        path: file_system_of(Path(path), mounts)
        for path in ("/home/a/b.db", "/home/local/b.db", "/homes", "/mnt/my share/x", "/home/later/x")
    }
    assert list(found.values()) == ["nfs4", "ext4", "ext4", "cifs", "tmpfs"]
    assert file_system_of(Path("/"), tmp_path / "nothing") is None


def test_sqlite_on_a_network_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert storage_url(None, tmp_path) == f"sqlite:///{tmp_path}/sweep.db"
    monkeypatch.setattr(storage, "file_system_of", lambda path: "nfs4")
    with pytest.raises(UserError, match=r"SQLite loses data on a network folder \(nfs4\)"):
        storage_url(None, tmp_path)
    with pytest.raises(UserError, match="network folder"):
        storage_url(f"sqlite:///{tmp_path}/mine.db", tmp_path)
    assert storage_url("postgresql://me@host/base", tmp_path)


def test_urls(tmp_path: Path) -> None:
    assert storage_url("postgres://me:secret@host:5433/base", tmp_path) == (
        "postgresql+psycopg://me:secret@host:5433/base"
    )
    assert (
        without_password("postgresql+psycopg://me:secret@host:5433/base")
        == "postgresql://me:***@host:5433/base"
    )
    for wrong in ("mysql://me@host/base", "sweep.db", "sqlite://", "postgresql://"):
        with pytest.raises(UserError, match="--storage"):
            storage_url(wrong, tmp_path)


def test_an_unreachable_server_is_reported_without_the_password() -> None:
    with pytest.raises(UserError) as error:
        Database("postgresql+psycopg://me:secret@127.0.0.1:1/base")
    assert "cannot connect to the database" in str(error.value) and "secret" not in str(error.value)


def test_a_query_is_repeated_after_connection_errors(tmp_path: Path) -> None:
    from sqlalchemy.exc import OperationalError

    database = Database(f"sqlite:///{tmp_path}/x.db")
    results = [OperationalError("", {}, Exception("gone")), OperationalError("", {}, Exception("gone")), 7]

    def call() -> int:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    assert database.query(call) == 7 and database.disconnections == 2

    def never() -> None:
        raise OperationalError("", {}, Exception("the server closed the connection"))

    with pytest.raises(UserError, match=r"did not respond.*the server closed the connection"):
        database.query(never, patience=0)

    def ours() -> None:
        raise KeyError("a programming error is not retried")

    with pytest.raises(KeyError):
        database.query(ours)
    database.close()
