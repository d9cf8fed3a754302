"""Database of a sweep: an SQLite file on this machine, or a PostgreSQL server that many machines share.

Lost connections are opened again, and the interrupted query is repeated.
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

NETWORK_FILE_SYSTEMS = (
    "9p afs beegfs ceph cifs coda fuse.ceph fuse.glusterfs fuse.s3fs fuse.sshfs glusterfs gpfs lustre ncpfs"
    " nfs nfs4 ocfs2 orangefs panfs pvfs2 smb3 smbfs vboxsf virtiofs"
)
LOCKED_SECONDS = 60
"""Maximum time in seconds that SQLite waits for a lock and that a PostgreSQL transaction may be idle."""
RETRY_SECONDS = 600.0
"""Maximum time in seconds for which queries are retried while the database server is unreachable."""
HEARTBEAT_SECONDS = 5
MISSED_HEARTBEATS = 6
"""Number of missed heartbeats after which a worker is considered dead."""

Result = TypeVar("Result")


class SweepInterrupted(Exception):
    """Exception for a stop signal that arrives while the database is unreachable."""


class TrialLost(Exception):
    """Raised if a trial has ended or belongs to another worker now. Its results are then rejected."""


class Database:
    """Optuna's database storage with worker heartbeats and automatic reconnection.

    The constructor opens the first connection. It raises a user error if the database is unreachable.
    """

    def __init__(
        self,
        url: str,
        log: Callable[[str], None] = lambda text: None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.url = url
        self.log = log
        self.is_stopped = is_stopped
        self.disconnections = 0
        """Number of lost connections. Heartbeats of workers may be missing after a lost connection."""
        try:
            self.storage = _open(url)
        except Exception as error:
            if not is_connection_error(error) and not isinstance(error, ImportError):
                raise
            raise user_error(
                f"cannot connect to the database: {_reason(error)}",
                path=without_password(url),
                hint="check host, name and password; put the password into PGPASSWORD or ~/.pgpass",
            ) from None
        self._has_logged = False

    def query(self, call: Callable[[], Result], *, patience: float = RETRY_SECONDS) -> Result:
        """Return the result of `call`; after a connection error, retry for up to `patience` seconds.

        Raise `TrialLost` if the call tries to change a trial that has already ended.
        """
        from optuna.exceptions import UpdateFinishedTrialError

        began, pause = time.monotonic(), 0.1
        while True:
            try:
                result = call()
                self._has_logged = False
                return result
            except UpdateFinishedTrialError:
                raise TrialLost from None
            except Exception as error:
                if not is_connection_error(error):
                    raise
                self.disconnections += 1
                if time.monotonic() - began > patience:
                    raise user_error(
                        f"the database did not respond for {patience / 60:.0f} minutes: {_reason(error)}",
                        path=without_password(self.url),
                        hint="restart the database, then repeat the command; it continues the sweep",
                    ) from None
                if pause > 1 and not self._has_logged:
                    self._has_logged = True
                    self.log(f"the database does not respond ({_reason(error)}); retrying")
                if self.is_stopped():
                    raise SweepInterrupted from None
                time.sleep(pause)
                pause = min(pause * 1.6, 5.0)

    @property
    def heartbeat(self) -> int:
        """Interval between two heartbeats of a worker, in seconds."""
        return int(self.storage.heartbeat_interval)

    def set_heartbeat(self, seconds: int) -> None:
        """Set the heartbeat interval in seconds, and the time after which a silent worker counts as dead."""
        self.storage.heartbeat_interval = seconds
        self.storage.grace_period = MISSED_HEARTBEATS * seconds

    def close(self) -> None:
        """Close all connections to the database."""
        self.storage.remove_session()
        self.storage.engine.dispose()


def is_connection_error(error: BaseException) -> bool:
    """Return True if the error, or one of its causes, is a lost or refused database connection."""
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
    """Return the error message of the database server, or of its driver, as one line."""
    messages = [str(getattr(cause, "orig", "")) for cause in _causes(error) if getattr(cause, "orig", None)]
    return " ".join((messages or [str(error)])[0].split())[:200]


def _open(url: str) -> RDBStorage:
    import optuna
    from sqlalchemy import event

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    is_file = url.startswith("sqlite")
    options: dict[str, Any] = {"pool_pre_ping": True}
    # Without an explicit encoding, a server with SQL_ASCII returns bytes.
    server_options = {"connect_timeout": 10, "client_encoding": "utf8"}
    options["connect_args"] = {"timeout": LOCKED_SECONDS} if is_file else server_options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        storage = optuna.storages.RDBStorage(
            url,
            engine_kwargs=options,
            heartbeat_interval=HEARTBEAT_SECONDS,
            grace_period=MISSED_HEARTBEATS * HEARTBEAT_SECONDS,
        )
    storage.engine.dispose()
    if is_file:
        # By default the driver of SQLite begins a transaction at the first write. Between a read and the
        # write that depends on it, another worker could claim the same trial.
        event.listen(storage.engine, "connect", _disable_implicit_begin)
        event.listen(storage.engine, "begin", _begin_immediate)
    else:
        event.listen(storage.engine, "connect", _end_idle_transactions)
    return storage


def _end_idle_transactions(connection: Any, record: Any) -> None:
    """Make the PostgreSQL server end the session of a worker that is suspended while it holds a lock.

    Otherwise all other workers would wait for the lock. A worker that resumes opens another session.
    """
    connection.execute(f"SET idle_in_transaction_session_timeout = '{LOCKED_SECONDS}s'")
    connection.commit()


def _disable_implicit_begin(connection: Any, record: Any) -> None:
    connection.isolation_level = None


def _begin_immediate(connection: Any) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def storage_url(asked: str | None, folder: Path) -> str:
    """Return the SQLAlchemy URL for `--storage`. The default is an SQLite file in the sweep's folder."""
    if asked is None:
        return _file_url((folder / "sweep.db").absolute())
    scheme, found, rest = asked.partition("://")
    if scheme in ("postgresql", "postgres", "postgresql+psycopg") and rest:
        return f"postgresql+psycopg://{rest}"
    if scheme == "sqlite" and rest.startswith("/") and rest.strip("/"):
        return _file_url(Path(rest.removeprefix("/")).absolute())
    raise user_error(
        "unknown kind of database" if found else "not the URL of a database",
        path="--storage",
        value=without_password(asked) if found else asked,
        allowed=["postgresql://USER@HOST/DATABASE", "sqlite:///FILE"],
    )


def _file_url(path: Path) -> str:
    file_system = file_system_of(path)
    if file_system in NETWORK_FILE_SYSTEMS.split():
        raise user_error(
            f"SQLite loses data on a network folder ({file_system})",
            path=str(path),
            hint="--storage postgresql://USER@HOST/DATABASE, or --out on a disk of this machine",
        )
    return f"sqlite:///{path}"


def file_system_of(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str | None:
    """Return the file-system type of a path, such as `ext4`; None if the system does not report it."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    real, found = os.path.realpath(path), ("", "")
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        mounted = fields[1].replace("\\040", " ")
        is_above = real == mounted or real.startswith(mounted.rstrip("/") + "/")
        if is_above and len(mounted) >= len(found[0]):  # a later mount hides an earlier one
            found = (mounted, fields[2])
    return found[1] or None


def without_password(url: str) -> str:
    """Return a database URL with its password replaced by `***`."""
    scheme, separator, rest = url.partition("://")
    who, at, where = rest.rpartition("@")
    user, colon, _ = who.partition(":")
    return f"{scheme.removesuffix('+psycopg')}{separator}{user}{':***' if colon else ''}{at}{where}"
