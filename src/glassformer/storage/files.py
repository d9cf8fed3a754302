"""Atomic and durable writing, JSON without NaN or infinity, and folders with a checksum file."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassformer.core.errors import UserError, user_error
from glassformer.core.system import read_regular_file

MAX_NAME_BYTES = 255
ESCAPED = "backslashreplace"
"""Codec error handler. It writes a lone surrogate as an escape, which a JSON parser restores."""
SUMS = "SHA256SUMS"
_SUMS_LINE = re.compile(r"([0-9a-f]{64})  ([^/\\\n]+)\n")
_SURROGATES = re.compile("[\ud800-\udfff]")

Digests = dict[str, list[str]]
"""Accepted SHA-256 digests by file name. A file has two digests only while it is being replaced."""


@contextlib.contextmanager
def atomic_path(path: Path, *, durable: bool = True, shared: bool = False) -> Iterator[Path]:
    """Yield a temporary path. It replaces `path` when the `with` block ends, and is deleted on an exception.

    A reader sees the complete old file or the complete new one. With `durable`, the rename is on disk when
    the block ends. Otherwise a power failure may bring the old file back. With `shared`, each process uses
    its own temporary name, so that several processes can write the same file at the same time.
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
    """Replace the content of a file by `data` atomically. `atomic_path` explains the options."""
    with atomic_path(path, durable=durable, shared=shared) as temporary:
        if durable:
            write_durably(temporary, data)
        else:
            temporary.write_bytes(data)


def finite(value: Any) -> Any:
    """Return a copy that is valid JSON: NaN and infinity become None, lone surrogates become U+FFFD."""
    if isinstance(value, str):
        return readable(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {readable(str(key)): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def readable(text: str) -> str:
    """Return the text with lone surrogates (undecodable bytes in file names) replaced by U+FFFD."""
    return text if text.isascii() else _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", text)


def json_text(document: Any) -> str:
    """Return a value as compact JSON text without NaN, infinity or lone surrogates."""
    try:
        return readable(json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")))
    except ValueError:
        return json.dumps(finite(document), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def write_durably(path: Path, data: bytes) -> None:
    """Write `data` to a file and fsync the file."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Fsync a folder, so that new and renamed files in it survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """Return a mapping as indented UTF-8 JSON with a final newline."""
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=True) + "\n").encode(errors=ESCAPED)


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class ChecksumMismatch(ValueError):
    """Error for a file whose content differs from what was written."""

    def __init__(self, message: str = "the content is not what was written: its SHA-256 differs") -> None:
        super().__init__(message)


@dataclass(frozen=True)
class ChecksummedFolder:
    """Files of one folder, each verified against `SHA256SUMS` whenever it is read.

    Writing is crash-safe. `write` first adds the new checksum to `SHA256SUMS`, then replaces the file, then
    removes the old checksum. Each step is one atomic write, so the current file always has a listed checksum.
    A crash between the steps leaves two checksums for one file name, and `read` accepts either. The next
    `write` of the file removes the outdated checksum.
    """

    path: Path

    def read(self, name: str) -> bytes:
        """Return the bytes of a file. Raise ChecksumMismatch if its checksum is wrong or not listed."""
        for _ in range(2):  # a writer may have replaced the file between the two reads
            data = read_regular_file(self.path / name)
            if hashlib.sha256(data).hexdigest() in self._digests().get(name, []):
                return data
        raise ChecksumMismatch

    def write(self, files: Mapping[str, bytes]) -> None:
        """Write the files in the given order, with their checksums. Raise UserError if a write fails."""
        new: Digests = {name: [hashlib.sha256(data).hexdigest()] for name, data in files.items()}
        try:
            old = self._digests() if (self.path / SUMS).exists() else {}
            replaced = {name: old[name] for name in new if name in old and (self.path / name).exists()}
            self._write_digests(old | {name: replaced.get(name, []) + own for name, own in new.items()})
            for name, data in files.items():
                atomic_write(self.path / name, data)
            if replaced:
                self._write_digests(old | new)
        except OSError as error:
            raise storage_error(error, self.path / list(files)[-1], sum(map(len, files.values()))) from error
        except ChecksumMismatch as error:
            raise unreadable(self.path / SUMS, error) from None

    def _write_digests(self, digests: Digests) -> None:
        lines = (f"{digest}  {name}\n" for name, own in digests.items() for digest in dict.fromkeys(own))
        atomic_write(self.path / SUMS, "".join(lines).encode())

    def _digests(self) -> Digests:
        try:
            text = read_regular_file(self.path / SUMS).decode()
        except (OSError, ValueError) as error:
            raise ChecksumMismatch(f"{SUMS} cannot be read: {error}") from None
        found = _SUMS_LINE.findall(text)
        if "".join(f"{digest}  {name}\n" for digest, name in found) != text:
            raise ChecksumMismatch(f"{SUMS} is damaged")
        digests: Digests = {}
        for digest, name in found:
            digests.setdefault(name, []).append(digest)
        return digests


def unreadable(path: Path, error: Exception) -> UserError:
    """Return the UserError for a file of a run that is missing or damaged."""
    return user_error(
        f"the file cannot be read: {error}", path=str(path), hint="restore it from a copy of the run"
    )


RESUME = "free some space or check permissions, then resume with --resume; the last checkpoint is intact"


def storage_error(error: Exception, folder: Path, needed: int, hint: str = RESUME) -> UserError:
    """Return the UserError for a failed write, with the bytes needed and the bytes free on the disk."""
    existing = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    try:
        free = f"{shutil.disk_usage(existing).free:,}"
    except OSError:
        free = "an unknown number of"
    reason = getattr(error, "strerror", None) or error
    return user_error(
        f"the file cannot be written: {reason} ({needed:,} bytes needed, {free} bytes free)",
        path=str(folder),
        hint=hint,
    )
