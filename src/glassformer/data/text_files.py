"""Text files, plain or gzipped, read a piece at a time, however large they are.

Only a line feed, or carriage return and line feed, ends a line. What cannot be read is said with the file,
the line and the byte. What stands on a line is not this module's business.
"""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from glassformer.core.errors import UserError, near_match, user_error

BYTES_AT_A_TIME = 1 << 16
BLOCK_CHARACTERS = 1 << 16
"""How much of a running text is one piece."""


UNICODE_MARKS = {
    b"\xff\xfe\0\0": "utf-32",
    b"\0\0\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}
MOST_LINE = 4 << 20
"""No example is so long, and whoever reads lines holds one at a time."""


def too_long_a_line(number: int, place: str) -> UserError:
    return user_error(
        f"line {number} has more than {MOST_LINE:,} characters",
        path=place,
        hint="one example a line; task.data.format=running-text, if it is one text",
    )


@dataclass(frozen=True)
class TextFile:
    """A file that may be read again and again, each time from its beginning."""

    path: Path
    setting: str
    """Which part of the config names it, such as task.data.train."""
    encoding: str = "utf-8"

    @property
    def where(self) -> str:
        return f"{self.setting}: {self.path}"

    def lines(self) -> Iterator[str]:
        """Not `str.splitlines`, which also splits at U+2028, U+0085 and others and so misaligns files."""
        self._refuse_empty()
        pending: list[str] = []
        number, length = 1, 0
        for piece in self._pieces():
            first, *others = piece.split("\n")
            pending.append(first)
            length += len(first)
            for part in others:
                yield "".join(pending).removesuffix("\r")
                pending, number, length = [part], number + 1, len(part)
            if length > MOST_LINE:
                raise too_long_a_line(number, self.where)
        last = "".join(pending)
        if number == 1 and "\r" in last.rstrip("\r"):
            raise user_error(
                "is one line: its lines end with carriage returns alone",
                path=self.where,
                hint="tr '\\r' '\\n' < FILE writes it as other programs do",
            )
        if last:
            yield last.removesuffix("\r")

    def blocks(self, characters: int = BLOCK_CHARACTERS) -> Iterator[str]:
        """The whole text in blocks of at most so many characters; a line ends with a line feed.

        A block ends after a line if one ends in its second half, else before a space if it has one.
        """
        self._refuse_empty()
        rest = ""
        for piece in self._with_line_feeds():
            rest += piece
            while len(rest) > characters:
                block = rest[: _cut(rest, characters)]
                rest = rest[len(block) :]
                yield block
        if rest:
            yield rest

    def whole(self) -> str:
        """For one example or one document; nothing in it is an empty text."""
        return "".join(self._with_line_feeds())

    def _refuse_empty(self) -> None:
        if not any(piece.strip() for piece in self._pieces()):
            raise user_error("the file is empty", path=self.where, hint="one example a line")

    def _with_line_feeds(self) -> Iterator[str]:
        held = ""
        for piece in self._pieces():
            piece = held + piece
            held = "\r" if piece.endswith("\r") else ""  # its line feed may be yet to come
            yield piece.removesuffix(held).replace("\r\n", "\n")
        if held:
            yield held

    def _pieces(self) -> Iterator[str]:
        """The decoded text as it is read, without a byte order mark."""
        decoder = codecs.getincrementaldecoder(self.encoding)()
        position, line_feeds, is_first = 0, 0, True
        for data in self._bytes():
            before = len(decoder.getstate()[0])
            try:
                text = decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                line = line_feeds + error.object.count(b"\n", 0, error.start) + 1
                raise self._not_decodable(error, line, position - before + error.start) from None
            position += len(data)
            line_feeds += text.count("\n")
            if is_first and text:
                text, is_first = text.removeprefix("\ufeff"), False
                if text.count("\0") > len(text) // 4:
                    raise user_error(
                        "line 1 is a quarter zero bytes: no text, or one in another encoding",
                        path=self.where,
                        hint="task.data.encoding=utf-16-le, or whichever encoding it has",
                    )
            if text:
                yield text

    def _bytes(self) -> Iterator[bytes]:
        """Ends with no bytes, so that a last character that is not whole is noticed."""
        if self.path.is_dir():
            raise user_error("is a folder, not a file", path=self.where, hint="name the file in it")
        if self.path.exists() and not self.path.is_file():  # a pipe or a device may never end, or never begin
            raise user_error("is no regular file", path=self.where, hint="save what comes out of it in one")
        try:
            with self._open() as file:
                while data := file.read(BYTES_AT_A_TIME):
                    yield data
                yield b""
        except FileNotFoundError:
            raise self._missing() from None
        except (gzip.BadGzipFile, EOFError, zlib.error):
            hint = "gzip -t FILE checks it"
            raise user_error("not a whole gzip file", path=self.where, hint=hint) from None
        except OSError as error:
            hint = "check its permissions"
            raise user_error(f"cannot be read: {error.strerror}", path=self.where, hint=hint) from None

    def _open(self) -> BinaryIO:
        is_zipped = self.path.name.endswith(".gz")
        return cast(BinaryIO, gzip.open(self.path)) if is_zipped else open(self.path, "rb")

    def _missing(self) -> UserError:
        folder = self.path.parent
        siblings = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
        near = near_match(self.path.name, siblings)
        return user_error(
            "no such file", path=self.where, hint=str(folder / near) if near else "check the path"
        )

    def _not_decodable(self, error: UnicodeDecodeError, line: int, byte: int) -> UserError:
        name = "UTF-8" if codecs.lookup(self.encoding).name == "utf-8" else self.encoding
        mark = next((mark for mark in UNICODE_MARKS if byte == 0 and error.object.startswith(mark)), None)
        guess = "latin-1" if mark is None else UNICODE_MARKS[mark]
        return user_error(
            f"not {name} at line {line}, byte {byte} of the file (0x{error.object[error.start]:02x})"
            + (f"; it begins as {guess.upper()} does" if mark else ""),
            path=self.where,
            hint=f"task.data.encoding={guess}, or whichever encoding it has",
        )


def _cut(text: str, most: int) -> int:
    after_line = text.rfind("\n", most // 2, most) + 1
    before_space = text.rfind(" ", 1, most)
    return after_line or (before_space if before_space > 0 else most)


def refuse_unknown_encoding(encoding: str, setting: str) -> None:
    try:
        b"a".decode(encoding)
    except UnicodeDecodeError:
        return  # one byte is not a whole character of UTF-16
    except (LookupError, ValueError):
        known = ["utf-8", "utf-16", "latin-1", "cp1252", "iso8859-15", "shift_jis", "gb18030", "koi8-r"]
        raise user_error(
            "no such encoding of text", path=setting, value=encoding, allowed=known, hint="utf-8"
        ) from None
