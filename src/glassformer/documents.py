"""What programs read: JSON without the numbers that JSON does not know."""

from __future__ import annotations

import json
import math
from typing import Any


def finite(value: Any) -> Any:
    """JSON knows no NaN and no infinity: they become null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def json_text(document: Any) -> str:
    try:
        return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(finite(document), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
