"""Safe file reading, atomic and durable writing, and JSON without NaN, infinity or invalid Unicode."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from glassformer.core.errors import UserError, user_error

MAX_NAME_BYTES = 255


@contextlib.contextmanager
def atomic_path(path: Path, *, durable: bool = True, shared: bool = False) -> Iterator[Path]:
    """Yield a temporary path next to `path`, which replaces `path` at the end and is deleted on failure.

    A reader sees the old file or the new one, never a part of it. `durable`: the new name is on the disk when
    the block has ended; without it, a power failure may bring the old file back. `shared`: several processes
    may write this file at the same time, so each uses a temporary name of its own.
    """
    ending = f".{os.getpid()}.saving" if shared else ".saving"
    name = f".{path.name}{ending}"
    if len(os.fsencode(name)) > MAX_NAME_BYTES:
        name = f".{hashlib.sha256(os.fsencode(path.name)).hexdigest()[:32]}{ending}"
    temporary = path.with_name(name)
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        sync_folder(path.parent)


def atomic_write(path: Path, data: bytes, *, durable: bool = True, shared: bool = False) -> None:
    """Replace a file by these bytes; see `atomic_path`."""
    with atomic_path(path, durable=durable, shared=shared) as temporary:
        if durable:
            write_durably(temporary, data)
        else:
            temporary.write_bytes(data)


def finite(value: Any) -> Any:
    """Make a value valid for JSON: NaN and infinity become null, lone surrogates become U+FFFD."""
    if isinstance(value, str):
        return readable(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {readable(str(key)): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


_SURROGATES = re.compile("[\ud800-\udfff]")


def readable(text: str) -> str:
    """Replace lone surrogates, which represent undecodable bytes of file names, by U+FFFD."""
    return text if text.isascii() else _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", text)


def json_text(document: Any) -> str:
    """Encode a document as compact JSON that every parser accepts; see `finite`."""
    try:
        return readable(json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")))
    except ValueError:
        return json.dumps(finite(document), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


ESCAPED = "backslashreplace"
"""Encoding error handler: writes a lone surrogate as an escape, which JSON reads back as the same."""


def write_durably(path: Path, data: bytes) -> None:
    """Create a file and fsync it."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Fsync a folder, which makes new and renamed files in it durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """Encode a JSON file of a run: indented, UTF-8, with a final newline."""
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=True) + "\n").encode(errors=ESCAPED)


def file_sha256(path: Path) -> str:
    """Compute the SHA-256 of a file, as hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def storage_error(error: Exception, folder: Path, needed: int) -> UserError:
    """Make the error for a failed write, with the path, the bytes needed and the bytes free."""
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
