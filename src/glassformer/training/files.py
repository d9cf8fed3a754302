"""Writing files so that a crash at any moment leaves the old state or the new one, never half of one."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glassformer.documents import unfinished
from glassformer.errors import UserError, user_error

ESCAPED = "backslashreplace"
"""How JSON holds what is no Unicode in the name of a file: as an escape that is read as the same."""


def write_durably(path: Path, data: bytes) -> None:
    """Create a file and see it through to the disk."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make renames and new names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Write, fsync, rename over the old one, fsync the folder."""
    temporary = unfinished(path)
    write_durably(temporary, data)
    os.replace(temporary, path)
    sync_folder(path.parent)


def json_bytes(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=True) + "\n").encode(errors=ESCAPED)


def file_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def storage_error(error: Exception, folder: Path, needed: int) -> UserError:
    """A full or closed disk, said with the path, the bytes needed and the bytes free."""
    try:
        free = f"{shutil.disk_usage(_existing(folder)).free:,}"
    except OSError:
        free = "an unknown number of"
    reason = getattr(error, "strerror", None) or error
    return user_error(
        f"cannot be written: {reason} ({needed:,} bytes needed, {free} bytes free)",
        place=str(folder),
        remedy="free some space or check permissions, then add --resume: the last checkpoint is intact",
    )


def _existing(folder: Path) -> Path:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
