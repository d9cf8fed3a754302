"""Folders that appear whole or not at all: written beside their final path, then renamed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError

from glassformer.core.errors import UserError
from glassformer.storage.files import storage_error, sync_folder

UNFINISHED = ".exporting-"
"""Part of the name of a hidden folder in which an export is being written."""


@contextlib.contextmanager
def temporary_folder(out: Path, needed: int) -> Iterator[Path]:
    """Yield a new, hidden folder beside `out`. It is deleted in the end, unless it was renamed.

    A lock on it marks it as in use. What a killed export left has no lock, and is deleted.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _remove_unfinished(out)
        folder = Path(tempfile.mkdtemp(prefix=_unfinished(out), dir=out.parent))
        lock = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise _cannot_write(error, out, needed) from error
    try:
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    except OSError as error:
        raise _cannot_write(error, out, needed) from error
    except SafetensorError as error:
        full = os.strerror(errno.ENOSPC)
        if full not in str(error):
            raise
        raise _cannot_write(OSError(errno.ENOSPC, full), out, needed) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _unfinished(out: Path) -> str:
    """Return the beginning of the name of a hidden folder in which `out` is being written."""
    return f".{out.name[:100]}{UNFINISHED}"


def _remove_unfinished(out: Path) -> None:
    """Delete the hidden folders of exports to `out` that were killed."""
    for path in out.parent.glob(f"{glob.escape(_unfinished(out))}*"):
        with contextlib.suppress(OSError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
            finally:
                os.close(lock)


def _cannot_write(error: OSError, out: Path, needed: int) -> UserError:
    hint = "free some space or check permissions, then export again; nothing was written"
    return storage_error(error, out, needed, hint)


def put_in_place(folder: Path, out: Path) -> None:
    """Rename the finished folder to `out`, after all its files are on disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
    folder.chmod(0o755)
    os.replace(folder, out)  # replaces an empty folder
    sync_folder(out.parent)
