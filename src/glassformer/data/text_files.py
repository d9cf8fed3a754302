"""Text files, plain or gzipped, read in chunks: bytes, lines, and blocks of running text.

Only a line feed, or carriage return and line feed, ends a line. Every error names the file, and the line and
byte where they are known. Each reading starts at the beginning of the file again.
"""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

from glassformer.core.errors import UserError, near_file, user_error
from glassformer.data.findings import Issue, OnFinding, raise_error

CHUNK_BYTES = 1 << 16
BLOCK_CHARACTERS = 1 << 16
"""Default size of a block of running text, in characters."""

UNICODE_MARKS = {
    b"\xff\xfe\0\0": "utf-32",
    b"\0\0\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}
BINARY_MARKS = {
    b"PK\x03\x04": (
        "an Excel, OpenDocument or ZIP file",
        "save the sheet as CSV in UTF-8, or unpack the file",
    ),
    b"\xd0\xcf\x11\xe0": ("an old Excel or Word file", "save it as CSV in UTF-8"),
    b"%PDF-": ("a PDF file", "save its text in a text file"),
    b"PAR1": ("a Parquet file", "convert it: pandas.read_parquet(FILE).to_csv(NEW, index=False)"),
    b"ARROW1": ("an Arrow file", "convert it: pandas.read_feather(FILE).to_csv(NEW, index=False)"),
    b"SQLite format 3\0": ("an SQLite database", "export the table as CSV"),
    b"\x1f\x8b": ("a gzip file", "let its name end in .gz"),
    b"BZh": ("a bzip2 file", "unpack it"),
    b"\xfd7zXZ": ("an xz file", "unpack it"),
    b"7z\xbc\xaf": ("a 7z file", "unpack it"),
}
"""First bytes of files that are not text: what they are, and what to do."""
C1_CONTROLS = re.compile("[\x80-\x84\x86-\x9f]")
"""Control characters that texts do not contain. They appear if Windows-1252 is decoded as Latin-1.

U+0085 is left out, because it ends lines in some texts.
"""
MAX_BAD_LINES = 10
"""Maximum number of lines with undecodable bytes that an error lists."""
MAX_LINE_CHARACTERS = 4 << 20
"""Maximum number of characters per line. Longer lines are rejected, because a line is held in memory."""


class UnreadableFile(UserError):
    """Error: a file cannot be read to its end, because of damaged gzip data or undecodable bytes."""

    def __init__(self, kind: str, error: UserError) -> None:
        self.kind = kind
        super().__init__(*error.details)


@dataclass(frozen=True)
class TextFile:
    """A file that can be read repeatedly, each time from its beginning.

    With the default `on_finding` the first error is raised. With any other callback, reading continues: bytes
    that cannot be decoded become lone surrogates, and a damaged file ends after its last whole line.
    """

    path: Path
    setting: str
    """Config path that names the file, such as task.data.train; empty if no config does."""
    encoding: str = "utf-8"
    on_finding: OnFinding = raise_error
    on_read: Callable[[int], None] | None = None
    """Progress callback: receives the number of bytes read from disk since the last call."""
    controls: dict[str, int] = field(init=False, default_factory=dict, compare=False)
    """First C1 control character that was read, such as U+0080, with its line. Reading fills it in."""

    @property
    def is_strict(self) -> bool:
        return self.on_finding is raise_error

    @property
    def error_path(self) -> str:
        return f"{self.setting}: {self.path}" if self.setting else str(self.path)

    def line_too_long(self, number: int) -> UserError:
        hint = "write one example per line, or set task.data.format=running-text if the file is one text"
        return self.error(f"line {number} has more than {MAX_LINE_CHARACTERS:,} characters", hint)

    def error(self, message: str, hint: str) -> UserError:
        """Return an error with the path of this file."""
        return user_error(message, path=self.error_path, hint=hint)

    def report(
        self,
        kind: str,
        line: int,
        error: UserError | None = None,
        *,
        shown: str = "",
        unit: str = "line",
        row: Any = None,
    ) -> None:
        self.on_finding(Issue(kind, self.path, line, error, shown, unit, row))

    def lines(self) -> Iterator[str]:
        """Yield the lines without their line ends.

        `str.splitlines` would also split at U+2028, U+0085 and others, and so misalign files.
        """
        self._require_text()
        pending: list[str] = []
        number, length = 1, 0
        try:
            for piece in self._pieces():
                first, *others = piece.split("\n")
                pending.append(first)
                length += len(first)
                for part in others:
                    yield "".join(pending).removesuffix("\r")
                    pending, number, length = [part], number + 1, len(part)
                if length > MAX_LINE_CHARACTERS:
                    raise self.line_too_long(number)
        except UnreadableFile:
            if self.is_strict:
                raise
            return
        last = "".join(pending)
        if number == 1 and "\r" in last.rstrip("\r"):
            message = "the file is one line: its lines end with carriage returns alone"
            hint = "convert them to line feeds: tr '\\r' '\\n' < FILE"
            self.report("carriage-returns", 1, self.error(message, hint), shown=last)
        if last:
            yield last.removesuffix("\r")

    def blocks(self, characters: int = BLOCK_CHARACTERS) -> Iterator[str]:
        """Yield the whole text in blocks of at most `characters`; all lines end with a line feed.

        A block ends after a line if one ends in its second half, else before a space if it has one.
        """
        self._require_text()
        rest = ""
        for piece in self._with_line_feeds():
            rest += piece
            while len(rest) > characters:
                block = rest[: _block_end(rest, characters)]
                rest = rest[len(block) :]
                yield block
        if rest:
            yield rest

    def whole(self) -> str:
        """Return the whole text of the file. An empty file gives an empty text."""
        return "".join(self._with_line_feeds())

    def chunks(self) -> Iterator[bytes]:
        """Yield the uncompressed bytes. A last, empty chunk lets a decoder detect an incomplete character."""
        if self.path.is_dir():
            raise self.error("this is a folder, not a file", "name the file in it")
        # A pipe or a device may never end, or block for ever.
        if self.path.exists() and not self.path.is_file():
            raise self.error("this is not a regular file", "save its output to a file")
        try:
            with open(self.path, "rb") as raw:
                is_packed = self.path.name.endswith(".gz")
                file = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if is_packed else raw
                position = 0
                while data := file.read(CHUNK_BYTES):
                    if self.on_read is not None:
                        self.on_read(raw.tell() - position)
                        position = raw.tell()
                    yield data
                yield b""
        except FileNotFoundError:
            raise self._missing() from None
        except (gzip.BadGzipFile, EOFError, zlib.error):
            damage = self.error("the gzip file is damaged or cut", "check it with gzip -t FILE")
            raise UnreadableFile("damaged-gzip", damage) from None
        except OSError as error:
            raise self.error(f"the file cannot be read: {error.strerror}", "check its permissions") from None

    def decoder(self) -> codecs.IncrementalDecoder:
        return codecs.getincrementaldecoder(self.encoding)("strict" if self.is_strict else "surrogateescape")

    def marked_encoding(self) -> str | None:
        """Return UTF-16 or UTF-32 if a file that is read as UTF-8 begins with its byte order mark."""
        if codecs.lookup(self.encoding).name != "utf-8" or not self.path.is_file():
            return None
        try:
            beginning = next(replace(self, on_read=None).chunks(), b"")
        except UserError:  # reading reports it
            return None
        return next((name for mark, name in UNICODE_MARKS.items() if beginning.startswith(mark)), None)

    def _require_text(self) -> None:
        try:
            has_text = any(piece.strip() for piece in self._pieces())
        except UnreadableFile:
            if self.is_strict:
                raise
            return  # unreadable is reported, empty is not known
        if not has_text:
            self.report("empty-file", 1, self.error("the file is empty", "write one example per line"))

    def _with_line_feeds(self) -> Iterator[str]:
        held = ""
        try:
            for piece in self._pieces():
                piece = held + piece
                held = "\r" if piece.endswith("\r") else ""  # its line feed may come with the next piece
                yield piece.removesuffix(held).replace("\r\n", "\n")
        except UnreadableFile:
            if self.is_strict:
                raise
        if held:
            yield held

    def _pieces(self) -> Iterator[str]:
        """Yield the decoded text as it is read, without a byte order mark."""
        decoder = self.decoder()
        position, line_feeds, is_first = 0, 0, True
        for data in self.chunks():
            if position == 0:
                self._reject_binary(data)
            before = len(decoder.getstate()[0])
            try:
                text = decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                line = line_feeds + error.object.count(b"\n", 0, error.start) + 1
                raise self._not_decodable(error, line, position - before + error.start) from None
            except UnicodeError as error:  # a byte order mark is missing
                reason = self.error(str(error), "set task.data.encoding=utf-16-le")
                raise UnreadableFile("invalid-utf8", reason) from None
            position += len(data)
            if not self.controls and not text.isascii() and (found := C1_CONTROLS.search(text)):
                self.controls[found[0]] = line_feeds + text.count("\n", 0, found.start()) + 1
            line_feeds += text.count("\n")
            if is_first and text:
                text, is_first = text.removeprefix("\ufeff"), False
                if text.count("\0") > len(text) // 4:
                    message = "from line 1 on, over a quarter is zero bytes: not text, or another encoding"
                    hint = "set task.data.encoding=utf-16-le, or the file's encoding"
                    self.report("zero-bytes", 1, self.error(message, hint), shown=text)
            if text:
                yield text

    def _reject_binary(self, beginning: bytes) -> None:
        """Raise UserError if the first bytes are those of a known file type that is not text."""
        is_text = b"\0" not in beginning and not beginning.startswith(b"%PDF-")
        for mark, (name, hint) in BINARY_MARKS.items():
            if beginning.startswith(mark) and not is_text:
                raise self.error(f"this is {name}, not a text file", hint)

    def _missing(self) -> UserError:
        folder = self.path.parent
        siblings = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
        near = near_file(self.path.name, siblings)
        return self.error("no such file", f"use {folder / near}" if near else "check the path")

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warning about a C1 control character in the text that was read; empty if there is none."""
        is_latin = codecs.lookup(self.encoding).name.startswith("iso8859")
        option = "task.data.encoding=cp1252" if self.setting else "--encoding cp1252"
        cause = f"if the file is Windows-1252: {option}" if is_latin else "was it decoded as latin-1 before?"
        return tuple(
            f"WARNING: {self.path.name}, line {line}: the text has the control character"
            f" U+{ord(character):04X}; {cause}"
            for character, line in self.controls.items()
        )

    def _not_decodable(self, error: UnicodeDecodeError, line: int, byte: int) -> UnreadableFile:
        name = "UTF-8" if codecs.lookup(self.encoding).name == "utf-8" else self.encoding
        mark = next((mark for mark in UNICODE_MARKS if byte == 0 and error.object.startswith(mark)), None)
        guess = self.likely_encoding() if mark is None else UNICODE_MARKS[mark]
        beginning = f"; it begins like {guess.upper()}" if mark else ""
        message = f"not {name} at line {line}, byte {byte} of the file (0x{error.object[error.start]:02x})"
        choice = f"{guess}, or" if guess else "NAME,"
        hint = f"set task.data.encoding={choice} the file's encoding"
        if name == "UTF-8" and mark is None:
            lines = self.bad_lines()
            hint = f"the other lines are UTF-8: repair {_line_list(lines)}" if lines else hint
        return UnreadableFile("invalid-utf8", self.error(message + beginning, hint))

    def bad_lines(self) -> list[int]:
        """Return the lines that are not UTF-8, if they are few; else [].

        More than `MAX_BAD_LINES`, or few lines that are UTF-8 beyond ASCII, suggest another encoding.
        """
        bad: list[int] = []
        others = 0
        for number, _, is_utf8 in self._lines_beyond_ascii():
            others += is_utf8
            if not is_utf8:
                bad.append(number)
            if len(bad) > MAX_BAD_LINES:
                return []
        return bad if others >= 3 * max(1, len(bad)) else []

    def likely_encoding(self) -> str:
        """Return the likely encoding of a file of bytes, by its lines that are not UTF-8; "" if none fits.

        The bytes 0x80 to 0x9f are control characters in Latin-1, and quotes, dashes and the euro sign in
        Windows-1252.
        """
        found = {byte for _, line, is_utf8 in self._lines_beyond_ascii() if not is_utf8 for byte in set(line)}
        beyond = bytes(sorted(byte for byte in found if byte > 127))
        if not beyond:
            return "utf-8"
        if min(beyond) >= 0xA0:
            return "latin-1"
        try:
            beyond.decode("cp1252")
        except UnicodeDecodeError:
            return ""
        return "cp1252"

    def _lines_beyond_ascii(self) -> Iterator[tuple[int, bytes, bool]]:
        """Yield the number and the bytes of each line that is not ASCII, and True if it is UTF-8."""
        held, number = b"", 0
        for data in self.chunks():
            *lines, held = (held + data).split(b"\n") if data else (held, b"")
            for line in lines:
                number += 1
                if line.isascii():
                    continue
                try:
                    line.decode()
                    yield number, line, True
                except UnicodeDecodeError:
                    yield number, line, False


def _line_list(lines: Sequence[int]) -> str:
    return f"line {lines[0]}" if len(lines) == 1 else f"lines {', '.join(map(str, lines))}"


def _block_end(text: str, limit: int) -> int:
    after_line = text.rfind("\n", limit // 2, limit) + 1
    before_space = text.rfind(" ", 1, limit)
    return after_line or (before_space if before_space > 0 else limit)


def check_encoding(encoding: str, setting: str) -> None:
    """Raise UserError if Python does not know the text encoding."""
    try:
        b"a".decode(encoding)
    except UnicodeDecodeError:
        return  # one byte is not a whole character of UTF-16
    except (LookupError, ValueError):
        known = ["utf-8", "utf-16", "latin-1", "cp1252", "iso8859-15", "shift_jis", "gb18030", "koi8-r"]
        raise user_error(
            "unknown text encoding", path=setting, value=encoding, allowed=known, hint="use utf-8"
        ) from None


# ---------------------------------------------------------------- text that is not UTF-8

UNDECODED = re.compile("[\ud800-\udfff]")
"""Bytes that are not UTF-8, as the reader marks them, or half of a surrogate pair from a JSON escape."""
UNDECODED_BYTES = range(0xDC80, 0xDD00)
"""Characters that represent the bytes 0x80 to 0xff."""


def undecoded(text: str) -> str | None:
    """Return an error for a text with bytes that are not UTF-8; None if the text is valid."""
    found = None if text.isascii() else UNDECODED.search(text)
    if found is None:
        return None
    number, position = ord(found[0]), len(text[: found.start()].encode())
    if number in UNDECODED_BYTES:
        return f"not UTF-8: byte {position} of the text is 0x{number - 0xDC00:02x}"
    return f"not valid Unicode: U+{number:04X} at byte {position} of the text"


def printable(text: str) -> str:
    """Return a text in which each byte that is not UTF-8 is written as an escape such as `\\xff`."""
    return text if text.isascii() else UNDECODED.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number - 0xDC00:02x}" if number in UNDECODED_BYTES else f"\\u{number:04x}"
