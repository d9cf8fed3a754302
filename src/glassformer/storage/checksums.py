"""Files that carry their own SHA-256, so that damage is detected before they are used."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

KEY = "sha256"
_JSON_HEAD = b'{\n "sha256": "'
_BLANK = b"0" * 64
_TEXT_HEAD = re.compile(rb"# sha256 of all that follows: ([0-9a-f]{64})\n")


class BrokenSeal(ValueError):
    """The content is not what was sealed."""

    def __init__(self) -> None:
        super().__init__("it is not what was written: its SHA-256 differs")


def seal_json(value: Mapping[str, Any]) -> bytes:
    """A JSON document with its own checksum, taken while zeros stood in its place, as the first entry."""
    rest = {key: item for key, item in value.items() if key != KEY}
    text = json.dumps({KEY: _BLANK.decode(), **rest}, indent=1, ensure_ascii=False)
    blank = text.encode(errors="backslashreplace") + b"\n"  # names of files may hold what is no Unicode
    digest = hashlib.sha256(blank).hexdigest().encode()
    start = len(_JSON_HEAD)
    return blank[:start] + digest + blank[start + len(digest) :]


def open_json(data: bytes, *, must_be_sealed: bool) -> dict[str, Any]:
    """The value of a sealed document; a ValueError or RecursionError if it is none."""
    is_sealed = data.startswith(_JSON_HEAD)
    if is_sealed:
        start, end = len(_JSON_HEAD), len(_JSON_HEAD) + len(_BLANK)
        digest = hashlib.sha256(data[:start] + _BLANK + data[end:]).hexdigest()
        if digest.encode() != data[start:end]:
            raise BrokenSeal
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    if must_be_sealed and not is_sealed:
        raise BrokenSeal
    return {key: item for key, item in value.items() if key != KEY} if is_sealed else value


def seal_text(text: str) -> bytes:
    """A text under a line of comment with its checksum."""
    data = text.encode()
    return b"# sha256 of all that follows: " + hashlib.sha256(data).hexdigest().encode() + b"\n" + data


def is_sealed_text(data: bytes) -> bool:
    """Whether a text is sealed: one that begins with another comment or half a seal is broken."""
    head = _TEXT_HEAD.match(data)
    if head is None:
        if data.startswith(b"#") or b"sha256" in data.split(b"\n", 1)[0]:
            raise BrokenSeal
        return False
    if hashlib.sha256(data[head.end() :]).hexdigest().encode() != head[1]:
        raise BrokenSeal
    return True
