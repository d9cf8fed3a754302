"""Attention maps as one offline HTML page, and saving of maps as PNG, SVG, HTML or NPZ."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import zlib
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import IO, Any

import numpy as np

from glassformer.core.errors import user_error
from glassformer.inspection.maps import CAPTION, AttentionMaps, SiteMaps
from glassformer.inspection.statistics import head_statistics
from glassformer.plotting.attention import (
    BYTE_STEPS,
    DARK_MASKED,
    DARK_SCALE,
    MASKED,
    SCALE,
    colours,
    to_bytes,
    write_png,
    write_svg,
)
from glassformer.plotting.style import visible
from glassformer.storage.files import atomic_path

SHARED_SCRIPTS = ("painting.js", "overview.js", "axes.js", "viewer.js")
SHARED_STYLES = ("viewer.css",)
"""Files shared by every page that shows attention maps: the offline page, reports and the studio."""
IMPORT = re.compile(r'^import \{[^}]*\} from "\./[a-z]+\.js";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=async|class|const|function)", re.MULTILINE)

LARGEST_IN_NOTEBOOK = 4 << 20
"""Maximum number of attention weights that a notebook shows as an interactive page instead of a PNG."""


def page(maps: AttentionMaps) -> str:
    """Return a self-contained HTML page. Its content security policy blocks other scripts and requests."""
    script = joined([static(name) for name in (*SHARED_SCRIPTS, "page.js")])
    style = "".join(static(name) for name in ("page.css", *SHARED_STYLES))
    policy = f"default-src 'none'; script-src {content_hash(script)}; style-src {content_hash(style)}"
    # A "<" in a token must not end the script element that holds the data.
    data = json.dumps(page_data(maps), ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{html.escape(maps.title or "attention")}</title>
<style>{style}</style>
<main></main>
<noscript>This page needs JavaScript to unpack its maps.</noscript>
<script type="application/json" id="data">{data}</script>
<script type="module">{script}</script>
</html>
"""


def page_data(maps: AttentionMaps) -> dict[str, Any]:
    """Return the maps as the JSON-serialisable dict that `showMaps` in page.js reads."""
    data = describe(maps)
    data |= {"caption": CAPTION, "scales": scales()}
    for site, site_maps in maps.sites.items():
        data["sites"][site]["maps"] = [
            [
                _packed(to_bytes(weights, site_maps.allowed_at(row, column)))
                for column, weights in enumerate(heads)
            ]
            for row, heads in enumerate(site_maps.weights)
        ]
    return data


def scales() -> dict[str, dict[str, Any]]:
    """Return the colours of weights and of masked cells, for pages in light and in dark mode."""
    return {
        "light": {"colours": _packed(colours(SCALE)), "masked": MASKED.tolist()},
        "dark": {"colours": _packed(colours(DARK_SCALE)), "masked": DARK_MASKED.tolist()},
    }


def describe(maps: AttentionMaps) -> dict[str, Any]:
    """Return titles, checks and axis labels of the maps as a JSON-serialisable dict, without the weights."""
    return {
        "title": maps.title or "attention",
        "subtitle": maps.subtitle,
        "warning": maps.warning,
        "checks": maps.checks.lines(),
        "rounding": f"Weights on this page are rounded to 8 bits, by at most {1 / BYTE_STEPS:.3f}."
        " For exact weights, use --out map.npz.",
        "has_masked": any(site_maps.has_masked for site_maps in maps.sites.values()),
        "sites": {site: _describe_site(site_maps) for site, site_maps in maps.sites.items()},
    }


def _describe_site(maps: SiteMaps) -> dict[str, Any]:
    """Return labels and head statistics of one site (encoder, decoder or cross) for `page_data`."""
    document = maps.document()
    for axis in ("queries", "keys", "outputs"):
        document[axis] = document[axis] and [visible(token, 40) for token in document[axis]]
    document["largest"] = maps.largest
    document["statistics"] = head_statistics(maps).document()
    return document


def _packed(array: np.ndarray) -> str:
    """Return the bytes of an array, compressed with zlib and encoded as base64."""
    return base64.b64encode(zlib.compress(array.tobytes(), 9)).decode("ascii")


def static(name: str) -> str:
    """Return the text of a script or style sheet in this folder."""
    return (resources.files("glassformer.plotting") / name).read_text(encoding="utf-8")


def joined(modules: Sequence[str]) -> str:
    """Return JavaScript modules joined into one script, without `import` and `export`."""
    return EXPORT.sub("", IMPORT.sub("", "".join(modules)))


def content_hash(text: str) -> str:
    """Return the SHA-256 of a script or style sheet in the notation of a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"


def write_html(maps: AttentionMaps, file: IO[bytes]) -> None:
    """Write the maps as an offline HTML page."""
    file.write(page(maps).encode())


def notebook_frame(maps: AttentionMaps) -> str | None:
    """Return the HTML page in an iframe, or None if the maps are too large for a notebook."""
    if sum(site.weights.size for site in maps.sites.values()) > LARGEST_IN_NOTEBOOK:
        return None
    source = html.escape(page(maps), quote=True)
    return (
        f'<iframe srcdoc="{source}" style="width:100%;height:860px;border:0" title="attention maps"></iframe>'
    )


WRITERS: dict[str, Callable[[AttentionMaps, IO[bytes]], None]] = {
    ".png": write_png,
    ".svg": write_svg,
    ".html": write_html,
    ".npz": AttentionMaps.write_npz,
}
"""Function that writes each file format, by file extension."""


def check_extension(path: Path) -> None:
    """Raise a user error if maps cannot be saved with this file extension, before a long computation."""
    if path.suffix.lower() not in WRITERS:
        raise user_error("unknown file format", path=str(path), value=path.suffix, allowed=list(WRITERS))


def write(maps: AttentionMaps, path: Path) -> None:
    """Write the maps atomically, in the format of the file extension."""
    check_extension(path)
    try:
        with atomic_path(path, durable=False) as temporary, open(temporary, "wb") as file:
            WRITERS[path.suffix.lower()](maps, file)
    except OSError as error:
        raise user_error(
            f"cannot write the file: {error.strerror or error}",
            path=str(path),
            hint="check that the folder exists, that it is writable, and that the disk is not full",
        ) from None
