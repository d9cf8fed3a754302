"""Safe file reading, atomic and durable writing, and JSON without NaN, infinity or invalid Unicode."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glassformer.core.errors import UserError, user_error

MOST_NAME_BYTES = 255


def unfinished(path: Path) -> Path:
    """Where a file is written before it gets its name: beside it, however long its name is."""
    name = f".{path.name}.saving"
    if len(os.fsencode(name)) > MOST_NAME_BYTES:
        name = f".{hashlib.sha256(os.fsencode(path.name)).hexdigest()[:32]}.saving"
    return path.with_name(name)


def finite(value: Any) -> Any:
    """JSON knows no NaN and no infinity: they become null. What is no Unicode in a file's name becomes �."""
    if isinstance(value, str):
        return readable(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {readable(str(key)): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


_NO_TEXT = re.compile("[\ud800-\udfff]")


def readable(text: str) -> str:
    return text if text.isascii() else _NO_TEXT.sub("\N{REPLACEMENT CHARACTER}", text)


def json_text(document: Any) -> str:
    try:
        return readable(json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")))
    except ValueError:
        return json.dumps(finite(document), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


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
        path=str(folder),
        hint="free some space or check permissions, then add --resume: the last checkpoint is intact",
    )


def _existing(folder: Path) -> Path:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
