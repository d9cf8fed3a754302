"""Maps to a file, in the format that its name ends in."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO

from glassformer.documents import unfinished
from glassformer.errors import user_error
from glassformer.inspection.html import write_html
from glassformer.inspection.maps import AttentionMaps
from glassformer.inspection.plots import write_png, write_svg

WRITERS: dict[str, Callable[[AttentionMaps, IO[bytes]], None]] = {
    ".png": write_png,
    ".svg": write_svg,
    ".html": write_html,
    ".npz": AttentionMaps.write_npz,
}


def check_ending(path: Path) -> None:
    """Before the work is done."""
    if path.suffix.lower() not in WRITERS:
        raise user_error(
            "the ending says what to write", place=str(path), value=path.suffix, allowed=list(WRITERS)
        )


def write(maps: AttentionMaps, path: Path) -> None:
    """To a new file first, so that none is ever half written."""
    check_ending(path)
    temporary = unfinished(path)
    try:
        with open(temporary, "wb") as file:
            WRITERS[path.suffix.lower()](maps, file)
        os.replace(temporary, path)
    except OSError as error:
        raise user_error(
            f"cannot be written: {error.strerror or error}",
            place=str(path),
            remedy="check that the folder exists, its permissions and the space left",
        ) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
