"""SHA256SUMS: one checksum file for the files of a folder, which `sha256sum -c SHA256SUMS` can check too."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from glassformer.core.system import read_regular_file
from glassformer.storage.files import atomic_write

SUMS = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64})  ([^/\\\n]+)\n")

Digests = dict[str, list[str]]
"""Accepted SHA-256 per file name: one, or two while a file is being replaced."""


class ChecksumMismatch(ValueError):
    """The content of a file is not what was written."""

    def __init__(self, message: str = "it is not what was written: its SHA-256 differs") -> None:
        super().__init__(message)


class ChecksummedFolder:
    """Files of one folder, each verified against `SHA256SUMS` whenever it is read.

    Writing is crash-safe. `write` first lists the new checksum beside the one of the file that is there, then
    replaces the file, then drops the old checksum. Each step is one atomic write, so at every moment the file
    that is there has a listed checksum. A crash in between leaves two lines for one name, and the reader
    accepts either. The next `write` of that file drops the line that is no longer true.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, name: str) -> bytes:
        """Read a file. Raises ChecksumMismatch if it is damaged or not listed, OSError if it is missing."""
        for _ in range(2):  # a writer may have replaced the file between the two reads
            data = read_regular_file(self.path / name)
            if hashlib.sha256(data).hexdigest() in self._digests().get(name, []):
                return data
        raise ChecksumMismatch

    def write(self, files: Mapping[str, bytes]) -> None:
        """Write files in this order, and their checksums."""
        new: Digests = {name: [hashlib.sha256(data).hexdigest()] for name, data in files.items()}
        old = self._digests() if (self.path / SUMS).exists() else {}
        replaced = {name: old[name] for name in new if name in old and (self.path / name).exists()}
        self._write_digests(old | {name: replaced.get(name, []) + own for name, own in new.items()})
        for name, data in files.items():
            atomic_write(self.path / name, data)
        if replaced:
            self._write_digests(old | new)

    def _write_digests(self, digests: Digests) -> None:
        lines = (f"{digest}  {name}\n" for name, own in digests.items() for digest in dict.fromkeys(own))
        atomic_write(self.path / SUMS, "".join(lines).encode())

    def _digests(self) -> Digests:
        try:
            text = read_regular_file(self.path / SUMS).decode()
        except (OSError, ValueError) as error:
            raise ChecksumMismatch(f"{SUMS} cannot be read: {error}") from None
        digests: Digests = {}
        end = 0
        for line in _LINE.finditer(text):
            if line.start() != end:
                break
            end = line.end()
            digests.setdefault(line[2], []).append(line[1])
        if end != len(text):
            raise ChecksumMismatch(f"{SUMS} is damaged")
        return digests
