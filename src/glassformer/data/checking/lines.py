"""The lines of a file, block by block in constant memory; what is wrong with its bytes is noted on the way.

Only a line feed ends a line. What a line means is the business of `rows`.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from glassformer.core.errors import near_match, user_error
from glassformer.data.checking.findings import FileSummary, Findings, Location, excerpt
from glassformer.data.text_files import MOST_LINE, too_long_a_line

BLOCK_LINES = 8192
BLOCK_BYTES = 4 << 20

SUSPECT = re.compile("[\0\x0b\x0c\r\x1c-\x1e\x85\u2028\u2029\ufeff]")
PATTERNS = {
    "nul": re.compile("\0"),
    "crlf": re.compile(r"\r\n?\Z"),
    "line-separator": re.compile("[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]|\r(?!\n?\\Z)"),
    "inner-byte-order-mark": re.compile("\ufeff"),
}
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class Block:
    """Consecutive lines without their ends, and the byte at which each begins."""

    first_line: int
    offsets: list[int]
    texts: list[str]

    def __len__(self) -> int:
        return len(self.texts)


class CheckedLines:
    """A file that is read once, forwards. A byte that is no UTF-8 becomes a lone surrogate in the text."""

    def __init__(
        self,
        path: Path,
        summary: FileSummary,
        findings: Findings,
        encoding: str = "utf-8",
        on_read: Callable[[int], None] = lambda size: None,
        *,
        may_be_long: bool = False,
    ) -> None:
        """`on_read` is told how many bytes of the file, packed or not, were read since it was told last.

        A line that is very long is an error, unless it may be: a document of JSON may be one line.
        """
        require_file(path)
        if not "a\n".encode(encoding).endswith(b"a\n"):
            raise user_error(
                f"{encoding} has no lines of bytes to check",
                path=str(path),
                hint=f"iconv -f {encoding} -t utf-8 FILE, and check that",
            )
        self.path = path
        self.summary = summary
        self.findings = findings
        self.encoding = encoding
        self.on_read = on_read
        self.may_be_long = may_be_long
        self._raw = self._raw_lines()
        self._position, self._told = 0, 0
        self._is_cut = False
        self._last = b"\n"

    @property
    def name(self) -> str:
        return self.summary.file

    def read(self, count: int | None = None) -> Block:
        """The next `count` lines, or as many as make a good block; fewer, at last none, at the end."""
        raw: list[bytes] = []
        size = 0
        most = BLOCK_LINES if count is None else count
        while len(raw) < most and (count is not None or size < BLOCK_BYTES):
            line = next(self._raw, None)
            if line is None:
                break
            raw.append(line)
            size += len(line)
        block = self._examine(raw)
        self.on_read(self._position - self._told)
        self._told = self._position
        self.summary.lines += len(raw)
        self.summary.bytes += size
        if raw:
            self._last = raw[-1]
        return block

    def blocks(self) -> Iterator[Block]:
        while len(block := self.read()):
            yield block

    def drain(self, *, may_be_empty: bool = False) -> None:
        """To the end, which is noted."""
        for _ in self.blocks():
            pass
        if self._is_cut:
            return
        if not self.summary.bytes and may_be_empty:
            return
        if not self.summary.bytes:
            self.findings.add_one("empty-file", Location(self.name, 1, 0))
        elif not self._last.endswith(b"\n"):
            shown = excerpt(self._last.decode(self.encoding, errors="surrogateescape"), len(self._last))
            place = Location(self.name, self.summary.lines, self.summary.bytes, shown)
            self.findings.add_one("no-final-newline", place)

    def excerpts(self, offsets: list[int]) -> dict[int, str]:
        """What stands at these bytes; for that the file is opened once more."""
        shown = {}
        with self.path.open("rb") as file:
            stream = gzip.GzipFile(fileobj=file) if self.path.name.endswith(".gz") else file
            for offset in sorted(set(offsets)):  # forwards: a packed file cannot go back cheaply
                stream.seek(offset)
                line = stream.readline(400).decode(self.encoding, errors="surrogateescape")
                shown[offset] = excerpt(line.rstrip("\r\n"))
        return shown

    def _raw_lines(self) -> Iterator[bytes]:
        lines, size = 0, 0
        try:
            with self.path.open("rb") as file:
                is_packed = self.path.name.endswith(".gz")
                stream = gzip.GzipFile(fileobj=file) if is_packed else file
                while line := stream.readline(-1 if self.may_be_long else MOST_LINE + 1):
                    lines, size = lines + 1, size + len(line)
                    if len(line) > MOST_LINE and not self.may_be_long:
                        raise too_long_a_line(lines, str(self.path))
                    self._position = file.tell() if is_packed else self._position + len(line)
                    yield line
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            self._is_cut = True
            place = Location(self.name, lines + 1, size, detail=str(error) or type(error).__name__)
            self.findings.add_one("damaged-gzip", place)
        except OSError as error:
            raise user_error(
                f"cannot be read: {error.strerror}", path=str(self.path), hint="check its permissions"
            ) from None

    def _examine(self, raw: list[bytes]) -> Block:
        ends = list(accumulate(map(len, raw), initial=self.summary.bytes))
        first = self.summary.lines + 1
        block = Block(first, ends[:-1], self._decode(raw, first, ends))
        if first == 1 and raw and block.texts[0].startswith("\ufeff"):
            block.texts[0] = block.texts[0][1:]
            block.offsets[0] += len("\ufeff".encode())
            place = Location(self.name, 1, 0, excerpt(block.texts[0].rstrip()))
            self.findings.add_one("byte-order-mark", place)
        if SUSPECT.search("".join(block.texts)):
            for kind, pattern in PATTERNS.items():
                self._search(kind, pattern, block)
            block.texts[:] = [text.removesuffix("\n").removesuffix("\r") for text in block.texts]
        else:
            block.texts[:] = [text.removesuffix("\n") for text in block.texts]
        return block

    def _decode(self, raw: list[bytes], first: int, ends: list[int]) -> list[str]:
        try:
            return [line.decode(self.encoding) for line in raw]
        except UnicodeDecodeError:
            pass
        texts = []
        for index, line in enumerate(raw):
            text = line.decode(self.encoding, errors="surrogateescape")
            texts.append(text)
            try:
                line.decode(self.encoding)
            except UnicodeDecodeError as error:
                is_utf16 = ends[index] == 0 and line.startswith(UTF16_MARKS)
                detail = "UTF-16?" if is_utf16 else f"byte 0x{line[error.start]:02x}"
                around = len(line[: error.start].decode(self.encoding, errors="surrogateescape"))
                shown = excerpt(text.rstrip("\r\n"), around)
                place = Location(self.name, first + index, ends[index] + error.start, shown, detail)
                self.findings.add_one("invalid-utf8", place)
        return texts

    def _search(self, kind: str, pattern: re.Pattern[str], block: Block) -> None:
        def place(index: int) -> Location:
            text = block.texts[index]
            found = pattern.search(text)
            start = found.start() if found else 0
            before = len(text[:start].encode(self.encoding, errors="surrogateescape"))
            detail = f"U+{ord(text[start]):04X}" if kind == "line-separator" else ""
            shown = excerpt(text.rstrip("\r\n"), start)
            return Location(self.name, block.first_line + index, block.offsets[index] + before, shown, detail)

        which = [index for index, text in enumerate(block.texts) if pattern.search(text)]
        self.findings.add(kind, which, place)


def require_file(path: Path) -> None:
    if path.is_file():
        return
    siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = near_match(path.name, [name for name in siblings if name != path.name])
    hint = str(path.parent / near) if near else "check the path"
    raise user_error("is no file" if path.exists() else "no such file", path=str(path), hint=hint)
