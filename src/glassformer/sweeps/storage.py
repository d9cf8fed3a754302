"""The database of a sweep: a file on this machine, or a PostgreSQL server that many machines share.

A connection that drops is made again: whoever asks waits, and asks again.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from glassformer.core.errors import user_error

if TYPE_CHECKING:
    from optuna.storages import RDBStorage

NETWORK_FILE_SYSTEMS = frozenset(
    (
        *(
            "9p",
            "afs",
            "beegfs",
            "ceph",
            "cifs",
            "coda",
            "fuse.ceph",
            "fuse.glusterfs",
            "fuse.s3fs",
            "fuse.sshfs",
        ),
        *("glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2"),
        *("fuse.s3fs", "smb3", "smbfs", "vboxsf", "virtiofs"),
    )
)
LOCKED_SECONDS = 60
"""How long a writer waits for another one of the same SQLite file, and a server for one who holds a lock."""
PATIENCE_SECONDS = 600.0
"""How long a server may be away."""
HEARTBEAT_SECONDS = 5
SILENT_HEARTBEATS = 6
"""A worker that has missed so many is taken for dead."""

Prediction = TypeVar("Prediction")


class Interrupted(Exception):
    """Asked to stop while the database was away."""


class Database:
    def __init__(
        self,
        url: str,
        say: Callable[[str], None] = lambda text: None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.url = url
        self.say = say
        self.is_stopped = is_stopped
        self.drops = 0
        """How often the connection was lost: what was seen before may be old news."""
        self.storage = _open(url)
        self._has_told = False

    def ask(self, question: Callable[[], Prediction], *, patience: float = PATIENCE_SECONDS) -> Prediction:
        """The answer, however often the connection must be made again for it."""
        began, pause = time.monotonic(), 0.1
        while True:
            try:
                answer = question()
                self._has_told = False
                return answer
            except Exception as error:
                if not is_connection_error(error):
                    raise
                self.drops += 1
                if time.monotonic() - began > patience:
                    raise user_error(
                        f"the database has not answered for {patience / 60:.0f} minutes: {_reason(error)}",
                        path=shown(self.url),
                        hint="start it again; the same command then goes on",
                    ) from None
                if pause > 1 and not self._has_told:
                    self._has_told = True
                    self.say(f"the database does not answer ({_reason(error)}); asking again")
                if self.is_stopped():
                    raise Interrupted from None
                time.sleep(pause)
                pause = min(pause * 1.6, 5.0)

    @property
    def heartbeat(self) -> int:
        """Seconds between two signs of life."""
        return int(self.storage.heartbeat_interval)

    def set_heartbeat(self, seconds: int) -> None:
        self.storage.heartbeat_interval = seconds
        self.storage.grace_period = SILENT_HEARTBEATS * seconds

    def close(self) -> None:
        self.storage.remove_session()
        self.storage.engine.dispose()


def is_connection_error(error: BaseException) -> bool:
    from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

    return any(
        isinstance(cause, (InterfaceError, OperationalError))
        or (isinstance(cause, DBAPIError) and cause.connection_invalidated)
        for cause in _causes(error)
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _reason(error: BaseException) -> str:
    """What the server or its driver said, in a line."""
    said = [str(getattr(cause, "orig", "")) for cause in _causes(error) if getattr(cause, "orig", None)]
    return " ".join((said or [str(error)])[0].split())[:200]


def connect(
    url: str,
    say: Callable[[str], None] = lambda text: None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Database:
    """The first connection: what cannot be reached now is a mistake, and said at once."""
    try:
        return Database(url, say, is_stopped)
    except Exception as error:
        if not is_connection_error(error) and not isinstance(error, ImportError):
            raise
        raise user_error(
            f"no database there: {_reason(error)}",
            path=shown(url),
            hint="check host, name and password; PGPASSWORD or ~/.pgpass keep the password off the command",
        ) from None


def _open(url: str) -> RDBStorage:
    import optuna
    from sqlalchemy import event

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    is_file = url.startswith("sqlite")
    options: dict[str, Any] = {"pool_pre_ping": True}
    # Without an encoding of its own, a server of plain ASCII answers with bytes.
    to_server = {"connect_timeout": 10, "client_encoding": "utf8"}
    options["connect_args"] = {"timeout": LOCKED_SECONDS} if is_file else to_server
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        storage = optuna.storages.RDBStorage(
            url,
            engine_kwargs=options,
            heartbeat_interval=HEARTBEAT_SECONDS,
            grace_period=SILENT_HEARTBEATS * HEARTBEAT_SECONDS,
        )
    if is_file:
        # By itself, SQLite's driver begins a transaction only with its first write: between a look and
        # the write that follows from it, another worker could take the same trial.
        storage.engine.dispose()
        event.listen(storage.engine, "connect", _begin_by_hand)
        event.listen(storage.engine, "begin", _begin_at_once)
    else:
        storage.engine.dispose()
        event.listen(storage.engine, "connect", _let_go_when_silent)
    return storage


def _let_go_when_silent(connection: Any, record: Any) -> None:
    """A worker that is frozen between a lock and what it is for would keep all others waiting, for as long as
    it sleeps: the server ends its session, and when it wakes it makes another one."""
    connection.execute(f"SET idle_in_transaction_session_timeout = '{LOCKED_SECONDS}s'")
    connection.commit()


def _begin_by_hand(connection: Any, record: Any) -> None:
    connection.isolation_level = None


def _begin_at_once(connection: Any) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def storage_url(asked: str | None, folder: Path) -> str:
    """What `--storage` means; a file in the sweep's folder without it."""
    if asked is None:
        return _file_url((folder / "sweep.db").absolute())
    scheme, found, rest = asked.partition("://")
    if scheme in ("postgresql", "postgres", "postgresql+psycopg") and rest:
        return f"postgresql+psycopg://{rest}"
    if scheme == "sqlite" and rest.startswith("/") and rest.strip("/"):
        return _file_url(Path(rest.removeprefix("/")).absolute())
    raise user_error(
        "no database that is known here" if found else "not the address of a database",
        path="--storage",
        value=shown(asked) if found else asked,
        allowed=["postgresql://USER@HOST/DATABASE", "sqlite:///FILE"],
    )


def _file_url(path: Path) -> str:
    file_system = file_system_of(path)
    if file_system in NETWORK_FILE_SYSTEMS:
        raise user_error(
            f"SQLite loses data on a network folder ({file_system})",
            path=str(path),
            hint="--storage postgresql://USER@HOST/DATABASE, or --out on a disk of this machine",
        )
    return f"sqlite:///{path}"


def file_system_of(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str | None:
    """The kind of file system that a path lies on; None where the machine does not tell."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    place, found = os.path.realpath(path), ("", "")
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        mounted = fields[1].replace("\\040", " ")
        is_above = place == mounted or place.startswith(mounted.rstrip("/") + "/")
        if is_above and len(mounted) >= len(found[0]):  # a later mount hides an earlier one
            found = (mounted, fields[2])
    return found[1] or None


def shown(url: str) -> str:
    """Without the password."""
    scheme, separator, rest = url.partition("://")
    who, at, where = rest.rpartition("@")
    user, colon, _ = who.partition(":")
    return f"{scheme.removesuffix('+psycopg')}{separator}{user}{':***' if colon else ''}{at}{where}"
