"""Where a sweep keeps its trials: which addresses are taken, and what happens when nobody answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from glassformer.core.errors import UserError
from glassformer.sweeps import storage
from glassformer.sweeps.storage import Database, connect, file_system_of, shown, storage_url

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


def test_addresses(tmp_path: Path) -> None:
    assert storage_url("postgres://me:secret@host:5433/base", tmp_path) == (
        "postgresql+psycopg://me:secret@host:5433/base"
    )
    assert shown("postgresql+psycopg://me:secret@host:5433/base") == "postgresql://me:***@host:5433/base"
    for wrong in ("mysql://me@host/base", "sweep.db", "sqlite://", "postgresql://"):
        with pytest.raises(UserError, match="--storage"):
            storage_url(wrong, tmp_path)


def test_a_server_that_is_not_there_is_said_at_once_and_without_the_password() -> None:
    with pytest.raises(UserError) as error:
        connect("postgresql+psycopg://me:secret@127.0.0.1:1/base")
    assert "no database there" in str(error.value) and "secret" not in str(error.value)


def test_a_question_is_asked_again_until_it_is_answered(tmp_path: Path) -> None:
    from sqlalchemy.exc import OperationalError

    database = Database(f"sqlite:///{tmp_path}/x.db")
    answers = [OperationalError("", {}, Exception("gone")), OperationalError("", {}, Exception("gone")), 7]

    def question() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert database.ask(question) == 7 and database.drops == 2

    def never() -> None:
        raise OperationalError("", {}, Exception("the server closed the connection"))

    with pytest.raises(UserError, match=r"has not answered.*the server closed the connection"):
        database.ask(never, patience=0)

    def ours() -> None:
        raise KeyError("a mistake of ours is not asked twice")

    with pytest.raises(KeyError):
        database.ask(ours)
    database.close()
