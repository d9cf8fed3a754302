"""HTML page: its embedded data, and its display in a browser."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassformer.plotting.attention import colours, to_bytes
from glassformer.plotting.page import LARGEST_IN_NOTEBOOK, notebook_frame, page

from ..inspection.conftest import make_maps


def random_weights(*shape: int) -> np.ndarray:
    scores = np.random.default_rng(0).normal(size=shape)
    weights = np.exp(scores)
    return weights / weights.sum(-1, keepdims=True)


def data_of(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return dict(json.loads(found[1]))


def test_the_weights_travel_as_bytes() -> None:
    allowed = np.tril(np.ones((5, 5), dtype=bool))
    weights = random_weights(2, 3, 5, 5) * allowed
    site = data_of(page(make_maps(weights, allowed)))["sites"]["encoder"]
    for layer, head in np.ndindex(2, 3):
        sent = zlib.decompress(base64.b64decode(site["maps"][layer][head]))
        np.testing.assert_array_equal(
            np.frombuffer(sent, np.uint8).reshape(5, 5), to_bytes(weights[layer, head], allowed)
        )
    assert site["statistics"]["patterns"]["previous token"]["mass"][1][2] is not None


def test_a_thousand_tokens_travel_in_well_under_a_megabyte() -> None:
    """Noise is the worst case for compression."""
    assert len(page(make_maps(random_weights(1000, 1000)))) < 800_000


def test_nothing_is_fetched_and_text_is_never_markup() -> None:
    maps = make_maps(random_weights(3, 3), run="</script><img src=x>", input="<b>", output="</title>&")
    maps["encoder"].keys[0] = "</script><script>alert(1)</script>"
    text = page(maps)
    assert text.count("</script>") == 2 and "<img" not in text and "<b>" not in text
    assert "http" not in text.replace("http-equiv", "")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert "default-src 'none'" in policy[1] and "unsafe" not in policy[1]
    assert data_of(text)["sites"]["encoder"]["keys"][0] == "</script><script>alert(1)</script>"


def test_a_notebook_gets_a_frame_or_if_that_were_too_large_a_picture() -> None:
    small = make_maps(random_weights(4, 4))
    frame = small._repr_html_()
    assert frame is not None and frame.startswith("<iframe srcdoc=") and frame.count("<") == 2
    assert small._repr_png_().startswith(b"\x89PNG")
    side = int(LARGEST_IN_NOTEBOOK**0.5) + 1
    assert notebook_frame(make_maps(np.zeros((side, side)))) is None


HOVER = """
<script type="module">
const waiting = setInterval(() => {
  const canvas = document.querySelector(".map-canvas");
  if (!document.querySelector(".map-readout")?.textContent) return;
  clearInterval(waiting);
  const results = {};
  const detail = document.querySelector(".map-readout"), bounds = canvas.getBoundingClientRect();
  const colourAt = (x, y) => Array.from(canvas.getContext("2d").getImageData(x, y, 1, 1).data.slice(0, 3));
  const ratio = canvas.width / bounds.width;
  results.colours = [];
  for (const [x, y] of POINTS) results.colours.push(colourAt(Math.round(x * ratio), Math.round(y * ratio)));
  const [x, y] = POINTS[0];
  canvas.dispatchEvent(
    new PointerEvent("pointermove", { clientX: bounds.left + x, clientY: bounds.top + y })
  );
  results.hover = detail.textContent;
  canvas.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
  results.moved = detail.textContent;
  results.requests = performance.getEntriesByType("resource").map((entry) => entry.name);
  document.title = "done";
  const node = document.createElement("script");
  node.type = "application/json";
  node.id = "results";
  node.textContent = JSON.stringify(results);
  document.body.append(node);
}, 20);
</script>
"""


@pytest.mark.thorough
def test_a_browser_shows_the_weights_in_their_colours(tmp_path: Path, chromium: Path) -> None:
    weights = np.array([[0.75, 0.25, 0.0], [0.0, 1.0, 0.0], [0.5, 0.0, 0.5]])
    allowed = np.array([[True, True, True], [False, True, False], [True, True, True]])
    # A map of 3 × 3 cells of 120 pixels, 42 pixels from the left and 6 from the top.
    centres = [[42 + 120 * column + 60, 6 + 120 * row + 60] for row in (0, 2) for column in (0, 1, 2)]
    text = page(make_maps(weights, allowed, run="<i>a run</i>"))
    text = re.sub(r"<meta http-equiv[^>]*>", "", text)  # the policy would reject the test's script
    test_page = tmp_path / "page.html"
    test_page.write_text(text.replace("</html>", HOVER.replace("POINTS", json.dumps(centres)) + "</html>"))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    flags += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    flags += ["--virtual-time-budget=10000", "--dump-dom"]
    done = subprocess.run(
        [chromium, *flags, f"--user-data-dir={tmp_path / 'profile'}", test_page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    found = re.search(r'id="results">(.*?)</script>', done.stdout, re.DOTALL)
    assert found is not None, done.stderr[-2000:]
    results = json.loads(found[1])
    levels = np.rint(weights[[0, 2]].reshape(-1) * 255).astype(int)
    shown = np.array(results["colours"], dtype=int)
    assert np.abs(shown - colours()[levels].astype(int)).max() <= 4  # rounding to 8 bits
    assert results["hover"].startswith("≈ 0.75")
    assert "“q0” → key token 0: “k0”" in results["hover"]
    assert results["moved"].startswith("≈ 0.2") and "“k1”" in results["moved"]
    assert results["requests"] == []
    assert "&lt;i&gt;a run" in done.stdout
