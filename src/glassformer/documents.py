"""What programs read: JSON without the numbers that JSON does not know and without text that is none."""

from __future__ import annotations

import json
import math
import re
from typing import Any


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
