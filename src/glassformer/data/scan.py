"""Byte-level scan of a file for `data check`: finds line offsets, and characters that are often mistakes.

The readers of training work on decoded text and do not know byte offsets. The scan supplies the offsets.
"""

from __future__ import annotations

import gzip
import re
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from glassformer.data.findings import FileSummary, Findings, Location, excerpt
from glassformer.data.text_files import MAX_LINE_CHARACTERS, TextFile, UnreadableFile

SUSPECT = re.compile("[\0\x0b\x0c\r\x1c-\x1e\x80-\x9f\u2028\u2029\ufeff\udc80-\udcff]")
PATTERNS = {
    "invalid-utf8": re.compile("[\udc80-\udcff]"),
    "nul": re.compile("\0"),
    "crlf": re.compile(r"\r\Z"),
    "line-separator": re.compile("[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]|\r(?!\\Z)"),
    "c1-control": re.compile("[\x80-\x84\x86-\x9f]"),
    "inner-byte-order-mark": re.compile("\ufeff"),
}
"""Characters to report, by kind of finding. Each line has at most one finding per kind."""
EXCERPT_BYTES = 400


@dataclass
class ScannedFile:
    """A file with its size and the byte offset of each line."""

    file: TextFile
    summary: FileSummary
    offsets: array[int] | None
    """Byte offset of each line; None for UTF-16 and UTF-32, in which a line feed is not one byte."""

    def offset(self, line: int) -> int | None:
        """Return the byte offset of a line, or the end of the file if the line does not exist."""
        if self.offsets is None:
            return None
        return self.offsets[line - 1] if line <= len(self.offsets) else self.summary.bytes

    def excerpts(self, offsets: Iterable[int]) -> dict[int, str]:
        """Read the lines at these byte offsets again, and return an excerpt of each by its offset."""
        shown = {}
        with self.file.path.open("rb") as raw:
            stream = gzip.GzipFile(fileobj=raw) if self.file.path.name.endswith(".gz") else raw
            for offset in sorted(set(offsets)):  # forwards: seeking back in a gzip file is slow
                stream.seek(offset)
                line = stream.readline(EXCERPT_BYTES).decode(self.file.encoding, errors="surrogateescape")
                shown[offset] = excerpt(line.rstrip("\r\n"))
        return shown


def scan(
    file: TextFile, summary: FileSummary, findings: Findings, *, has_long_lines: bool = False
) -> ScannedFile:
    """Read all bytes of a file, complete its summary, and report suspicious characters.

    Raises UserError at a line that is too long to be one example, unless `has_long_lines`.
    """
    is_bytewise = "a\n".encode(file.encoding).endswith(b"a\n")
    scanned = ScannedFile(file, summary, array("q") if is_bytewise else None)
    scanner = _Scanner(scanned, findings)
    held = b""
    try:
        for data in file.chunks():
            held += data
            # Whole lines, but for the end of the file and the pieces of a very long line.
            is_piece = not data or len(held) > MAX_LINE_CHARACTERS
            end = len(held) if is_piece else held.rfind(b"\n") + 1
            if is_piece and data and not has_long_lines and b"\n" not in held and is_bytewise:
                raise file.line_too_long(summary.lines + 1)
            if end or not data:
                scanner.scan(held[:end], is_last=not data)
                held = held[end:]
    except UnreadableFile as error:
        scanner.report_end(error.kind, error.details[0].message)
    except UnicodeError as error:  # UTF-16 and UTF-32: their bad bytes cannot be escaped
        scanner.report_end("invalid-utf8", str(error))
    return scanned


class _Scanner:
    """Scanner that reads a file piece by piece, to find its line offsets and suspicious characters."""

    def __init__(self, scanned: ScannedFile, findings: Findings) -> None:
        self.scanned, self.summary, self.findings = scanned, scanned.summary, findings
        self.encoding = scanned.file.encoding
        self.decoder = scanned.file.decoder()
        self.is_line_start = True

    @cached_property
    def has_few_bad_lines(self) -> bool:
        return bool(self.scanned.file.bad_lines())

    def scan(self, data: bytes, *, is_last: bool) -> None:
        text = self.decoder.decode(data, is_last)
        start, first = self.summary.bytes, self.summary.lines + self.is_line_start
        self._add_offsets(data)
        if start == 0 and text.startswith("\ufeff"):
            text, start = text[1:], len("\ufeff".encode())
            if self.scanned.offsets:
                self.scanned.offsets[0] = start
            self.findings.add_one("byte-order-mark", self._location(1, 0, text.partition("\n")[0].rstrip()))
        lines = text.split("\n")
        if SUSPECT.search(text):
            for kind in PATTERNS:
                self._report_characters(kind, lines, first, start)
        self.summary.bytes += len(data)
        if text:
            self.is_line_start = text.endswith("\n")
            self.summary.lines = first + len(lines) - 1 - self.is_line_start
        if is_last and not self.is_line_start:
            end = self._location(self.summary.lines, self.summary.bytes, lines[-1], position=len(lines[-1]))
            self.findings.add_one("no-final-newline", end)

    def report_end(self, kind: str, detail: str) -> None:
        """Report that the file cannot be read beyond its last whole line."""
        self.findings.add_one(kind, self._location(self.summary.lines + 1, self.summary.bytes, "", detail))

    def _add_offsets(self, data: bytes) -> None:
        offsets = self.scanned.offsets
        if offsets is None or not data:
            return
        ends = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord("\n")) + 1
        starts = ends[:-1] if data.endswith(b"\n") else ends
        if self.is_line_start:
            offsets.append(self.summary.bytes)
        offsets.frombytes((starts + self.summary.bytes).astype(np.int64).tobytes())

    def _report_characters(self, kind: str, lines: list[str], first: int, start: int) -> None:
        """Report lines with characters of a kind such as `nul`. `start` is the first line's byte offset."""
        matches = {index: match for index, line in enumerate(lines) if (match := PATTERNS[kind].search(line))}

        def location(index: int) -> Location:
            line, match = lines[index], matches[index]
            before = len(line[: match.start()].encode(self.encoding, errors="surrogateescape"))
            line_start = self.scanned.offset(first + index) if index else start
            byte = (line_start or 0) + before
            detail = f"U+{ord(match[0]):04X}" if kind in ("line-separator", "c1-control") else ""
            if kind == "invalid-utf8":
                is_utf16 = byte == 0 and line[:2] in ("\udcff\udcfe", "\udcfe\udcff")
                detail = "UTF-16?" if is_utf16 else f"byte 0x{ord(match[0]) - 0xDC00:02x}"
                detail += ", other lines are UTF-8" if self.has_few_bad_lines else ""
            return self._location(first + index, byte, line.rstrip("\r"), detail, match.start())

        self.findings.add(kind, list(matches), location)

    def _location(self, line: int, byte: int, shown: str, detail: str = "", position: int = 0) -> Location:
        known = None if self.scanned.offsets is None else byte
        return Location(self.summary.file, line, known, excerpt(shown, position), detail)
