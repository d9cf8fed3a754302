"""What programs read: JSON without the numbers that JSON does not know and without text that is none."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
from pathlib import Path
from typing import Any

MOST_BYTES = 64 << 20
"""Of a document: the largest tokenizers have half of that."""

MOST_NAME_BYTES = 255


def read_document(path: Path) -> bytes:
    """The bytes of a file that is a file and not too large: never one that has no end, or never begins."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is not a regular file")
        if found.st_size > MOST_BYTES:
            raise ValueError(f"it is too large: {found.st_size:,} bytes")
        return file.read(MOST_BYTES)


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
