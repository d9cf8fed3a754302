"""PostgreSQL server on its own port and in its own folder, for faults of the database.

PostgreSQL refuses to run as root. If the tests run as root, the user `nobody` runs it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from reliability.base import Unsupported


class Server:
    """Server with a new database; `start` and `stop` may be called repeatedly."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.programs, self.folder = programs, folder
        self.user = "nobody" if os.geteuid() == 0 else None
        if self.user is not None:
            shutil.chown(folder, self.user)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"postgresql://sweeper@127.0.0.1:{self.port}/postgres"
        self._run("initdb", "-U", "sweeper", "--auth=trust", "--no-sync", "--no-instructions")

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self.programs / program, "-D", self.folder / "data", *arguments],
            user=self.user,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if program == "initdb" else subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
            timeout=120,
        )
        assert done.returncode == 0, f"{program}: {done.stdout!r}"

    def start(self) -> None:
        options = f"-c port={self.port} -c listen_addresses=127.0.0.1 -c fsync=off -k {self.folder}"
        self._run("pg_ctl", "-w", "-t", "90", "-l", str(self.folder / "log"), "-o", options, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-w", "-m", "immediate", "stop")


def find_programs() -> Path | None:
    """Find the folder of `initdb` and `pg_ctl`, or return None."""
    found = shutil.which("initdb")
    if found and shutil.which("pg_ctl"):
        return Path(found).parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parent.name))
    return next((folder for folder in reversed(folders) if (folder / "initdb").exists()), None)


@contextlib.contextmanager
def a_server() -> Iterator[Server]:
    """Context: run a server; stop and delete it at the end."""
    programs = find_programs()
    if programs is None:
        raise Unsupported(
            "PostgreSQL is not installed: no initdb on the path or in /usr/lib/postgresql/*/bin"
        )
    folder = Path(tempfile.mkdtemp(prefix="sweep-"))  # readable for the user that runs the server
    server = Server(programs, folder)
    server.start()
    try:
        yield server
    finally:
        with contextlib.suppress(AssertionError):
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)
