"""A real PostgreSQL server on a port and in a folder of its own, to be stopped and cut off.

It does not run as root; where the tests do, another user runs it.
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

from reliability.base import NotHere


class Server:
    """On a port and in a folder of its own."""

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
    found = shutil.which("initdb")
    if found and shutil.which("pg_ctl"):
        return Path(found).parent
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda place: int(place.parent.name))
    return next((place for place in reversed(places) if (place / "initdb").exists()), None)


@contextlib.contextmanager
def a_server() -> Iterator[Server]:
    """Started, and gone afterwards."""
    programs = find_programs()
    if programs is None:
        raise NotHere("PostgreSQL is not installed: no initdb on the path or in /usr/lib/postgresql/*/bin")
    folder = Path(tempfile.mkdtemp(prefix="sweep-"))  # where another user may look
    server = Server(programs, folder)
    server.start()
    try:
        yield server
    finally:
        with contextlib.suppress(AssertionError):
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)
