"""Maps in a real browser: colours of known weights, a thousand tokens, many maps."""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from glassformer.inspection.maps import AttentionMaps
from glassformer.inspection.statistics import head_statistics
from glassformer.plotting.attention import (
    DARK_MASKED,
    DARK_SCALE,
    MASKED,
    SCALE,
    colours,
    from_bytes,
    to_bytes,
)
from glassformer.runs.run import Run

from ...inspection.conftest import make_maps
from .conftest import PATIENCE_SECONDS, OpenPage, Page, slowness

GIGABYTE = 1 << 30
FRAME_MILLISECONDS = 1000 / 60

ShowMaps = Callable[[AttentionMaps], None]


def test_axes_with_positions_say_so(open_page: OpenPage) -> None:
    """The numbers 0, 5, 10 beside the map of a sequence of digits looked like tokens."""
    page = open_page("#/runs")
    draw = """async ([count, pixels]) => {
      const { drawAxes } = await import("/static/axes.js");
      const texts = [];
      const context = new Proxy({}, { get: (_, name) => (...values) =>
        name === "fillText" ? texts.push(values[0]) : { width: 7 } });
      const tokens = Array.from({ length: count }, (_, index) => `t${index}`);
      const box = { left: 42, top: 6, mapWidth: pixels, mapHeight: pixels };
      const view = { row: 0, rows: count, column: 0, columns: count };
      drawAxes(context, box, view, { queries: tokens, keys: tokens, first_query: 0 }, {});
      return texts;
    }"""
    small, large = (page.page.evaluate(draw, [24, pixels]) for pixels in (264, 480))
    assert "position" in small and {"0", "5", "10"} <= set(small) and "t5" not in small
    assert "position" not in large and "t5" in large


@pytest.fixture
def look_at(monkeypatch: pytest.MonkeyPatch) -> ShowMaps:
    """Make the studio return the given weights."""

    def prepare(maps: AttentionMaps) -> None:
        monkeypatch.setattr(Run, "attention", lambda self, *arguments, **options: maps)

    return prepare


def picture(page: Page, selector: str) -> np.ndarray:
    """Read the pixels of a canvas."""
    address = page.page.evaluate("(selector) => document.querySelector(selector).toDataURL()", selector)
    image = Image.open(io.BytesIO(base64.b64decode(address.split(",")[1])))
    return np.asarray(image.convert("RGB"))


def expected_colours(weights: np.ndarray, scale: tuple[str, ...] = SCALE) -> np.ndarray:
    """Colour of a weight that was sent as a byte."""
    return colours(scale)[np.rint(from_bytes(to_bytes(weights, None)) * 255).astype(int)]


def box_of_map(page: Page) -> tuple[float, float, float, float]:
    """Return left, top, width and height of the large map within its canvas."""
    script = "() => document.querySelector('.map-canvas')?.dataset.map"
    left, top, width, height = map(float, page.until(script).split())
    return left, top, width, height


@pytest.mark.parametrize(
    ("theme", "scale", "striped"), [("light", SCALE, MASKED), ("dark", DARK_SCALE, DARK_MASKED)]
)
def test_every_pixel_has_the_colour_of_its_weight(
    open_page: OpenPage, look_at: ShowMaps, theme: str, scale: tuple[str, ...], striped: np.ndarray
) -> None:
    weights = np.random.default_rng(0).dirichlet(np.full(4, 0.5), size=4).astype(np.float32)
    allowed = np.ones((4, 4), dtype=bool)
    allowed[2, 3] = False
    look_at(make_maps(np.stack([np.where(allowed, weights, 0)] * 2), allowed))  # two heads
    page = open_page("#/inspect/watched", color_scheme=theme)
    page.until("() => document.querySelector('.map-grid canvas')?.dataset.painted")
    small = picture(page, ".map-grid canvas")
    shown = page.page.evaluate("() => document.querySelector('.map-grid canvas').clientHeight")
    assert abs(len(small) - shown) <= 1  # the browser does not scale it down
    rows, columns = (np.floor(np.arange(side) * 4 / side + 1e-9).astype(int) for side in small.shape[:2])
    is_allowed, wanted = allowed[rows][:, columns], expected_colours(weights, scale)[rows][:, columns]
    np.testing.assert_array_equal(small[is_allowed], wanted[is_allowed])
    assert {tuple(pixel) for pixel in small[~is_allowed].tolist()} == {tuple(row) for row in striped.tolist()}

    left, top, width, height = box_of_map(page)
    large = picture(page, ".map-canvas")
    for row, column in np.argwhere(allowed):
        y, x = round(top + (row + 0.5) * height / 4), round(left + (column + 0.5) * width / 4)
        np.testing.assert_array_equal(large[y, x], expected_colours(weights, scale)[row, column])

    # The other theme repaints both maps; in dark mode, no map is glaring.
    page.page.locator("#theme").click()
    for selector in (".map-grid canvas", ".map-canvas"):
        end = time.monotonic() + PATIENCE_SECONDS
        while (_brightness(page, selector) < 128) == (theme == "dark"):
            assert time.monotonic() < end, selector
            page.page.wait_for_timeout(50)


def _brightness(page: Page, selector: str) -> float:
    """Median brightness of a map, without the margin of a large map."""
    shown = picture(page, selector)
    if selector == ".map-canvas":
        left, top, width, height = map(round, box_of_map(page))
        shown = shown[top : top + height, left : left + width]
    return float(np.median(shown))


def test_a_small_map_uses_its_card_and_no_column_stays_empty(open_page: OpenPage, look_at: ShowMaps) -> None:
    look_at(make_maps(np.full((6, 6), 1 / 6, dtype=np.float32)))
    page = open_page("#/inspect/watched")
    _, _, width, _ = box_of_map(page)
    card = page.page.locator(".map-detail").bounding_box()
    assert width > 0.6 * card["width"]
    for layers, heads in ((1, 1), (1, 4), (6, 4)):
        look_at(make_maps(np.full((layers, heads, 6, 6), 1 / 6, dtype=np.float32)))
        page.page.reload()
        box_of_map(page)
        assert page.page.locator(".overview").count() == (layers * heads > 1)  # one map needs no overview
        page.see(".statistic")
        lows = page.page.evaluate(
            "() => [...document.querySelector('.inspector').children].map((column) =>"
            " column.lastElementChild.getBoundingClientRect().bottom)"
        )
        assert len(lows) == 2 and min(lows) > 0.6 * max(lows), (layers, heads)


def test_a_thousand_tokens_open_and_respond_within_a_frame(open_page: OpenPage, look_at: ShowMaps) -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(1000), size=1000).astype(np.float32)
    weights[777] = 0
    weights[777, 333] = 1
    look_at(make_maps(np.stack([weights, weights])))
    page = open_page("#/runs")
    page.see("table.runs")
    page.open("#/inspect/watched")  # loads the model, which is not part of the measurement
    box_of_map(page)
    page.open("#/probe/watched")
    page.see(".output")
    start = time.perf_counter()
    page.open("#/inspect/watched?query=777&key=333")
    box_of_map(page)
    seconds = time.perf_counter() - start
    assert seconds < 2 * slowness(), f"{seconds:.2f} s"

    page.until("() => document.querySelector('.map-grid canvas')?.dataset.painted")
    needle = colours()[255].tolist()
    assert needle in picture(page, ".map-grid canvas").reshape(-1, 3).tolist()  # a maximum, not a mean
    # The exact weight replaces the rounded one.
    page.until("() => document.querySelector('.map-readout').innerText.startsWith('1.00000')")
    assert "1000.0 × uniform · rank 1 of 1000" in page.readout()

    times = page.page.evaluate(
        """() => {
          const canvas = document.querySelector(".map-canvas"), bounds = canvas.getBoundingClientRect();
          const [left, top, width, height] = canvas.dataset.map.split(" ").map(Number), times = [];
          for (let step = 1; step <= 60; step++) {
            const clientX = bounds.left + left + width * step / 61;
            const clientY = bounds.top + top + height * step / 61;
            const start = performance.now();
            canvas.dispatchEvent(new PointerEvent("pointermove", { clientX, clientY }));
            times.push(performance.now() - start);
          }
          return times;
        }"""
    )
    assert np.median(times) < FRAME_MILLISECONDS * slowness(), times
    assert page.readout().startswith("≈")


def test_forty_eight_maps_of_a_thousand_tokens_stay_below_a_gigabyte(
    open_page: OpenPage, look_at: ShowMaps, browser: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = np.random.default_rng(0).dirichlet(np.ones(1000), size=1000).astype(np.float32)
    weights = np.stack([np.roll(base, shift, axis=1) for shift in range(48)]).reshape(6, 8, 1000, 1000)
    look_at(make_maps(weights))
    # The server's statistics are slow and not part of the measurement.
    few = head_statistics(make_maps(weights[..., :4, :4])["encoder"])
    monkeypatch.setattr("glassformer.plotting.page.head_statistics", lambda maps: few)
    page = open_page("#/inspect/watched")
    page.until("() => document.querySelectorAll('.map-grid canvas').length === 48")
    for number in range(48):
        page.page.evaluate(
            "(number) => document.querySelectorAll('.map-grid canvas')[number].scrollIntoView()", number
        )
        page.until(f"() => document.querySelectorAll('.map-grid canvas')[{number}].dataset.painted")
    session = browser.new_browser_cdp_session()
    processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    renderers = [int(process["id"]) for process in processes if process["type"] == "renderer"]
    used = max(_proportional_bytes(process) for process in renderers)
    assert 0 < used < GIGABYTE, f"{used / GIGABYTE:.2f} GB"


def _proportional_bytes(process: int) -> int:
    """Return the proportional set size of a process."""
    for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def test_keys_move_the_cell_and_the_head_and_the_address_keeps_them(
    open_page: OpenPage, look_at: ShowMaps
) -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(5), size=(2, 3, 5)).astype(np.float32)
    look_at(make_maps(weights))
    page = open_page("#/inspect/watched?query=2&key=2")
    page.until("() => document.querySelector('.map-readout')?.innerText.includes('“q2”')")
    page.page.keyboard.press("ArrowRight")
    page.page.keyboard.press("ArrowUp")
    assert "“q1”" in page.readout() and "“k3”" in page.readout()
    page.page.keyboard.press("]")
    page.page.keyboard.press("}")
    page.until("() => document.querySelector('.map-detail h2').innerText.includes('layer 1, head 1')")
    page.page.keyboard.press("[")
    page.until("() => document.querySelector('.map-detail h2').innerText.includes('layer 1, head 0')")
    page.until("() => location.hash.endsWith('query=1&key=3&site=encoder&layer=1&head=0')")
    page.page.reload()
    page.until("() => document.querySelector('.map-readout')?.innerText.includes('“q1”')")
    assert "layer 1, head 0" in page.see(".map-detail h2").inner_text()
    exact = weights[1, 0, 1, 3]
    page.until(f"() => document.querySelector('.map-readout').innerText.startsWith('{exact:.5f}')")
    # Screen readers get the text that is shown.
    page.until("() => document.querySelector('.map-detail [role=status]').textContent.includes('“k3”')")


def test_a_click_chooses_a_cell_and_pointing_only_looks(open_page: OpenPage, look_at: ShowMaps) -> None:
    look_at(make_maps(np.full((8, 8), 1 / 8, dtype=np.float32)))
    page = open_page("#/inspect/watched")
    left, top, width, height = box_of_map(page)
    bounds = page.page.locator(".map-canvas").bounding_box()

    def point_at(row: int, column: int) -> None:
        x, y = left + (column + 0.5) * width / 8, top + (row + 0.5) * height / 8
        page.page.mouse.move(bounds["x"] + x, bounds["y"] + y)

    point_at(1, 6)
    assert "“q1”" in page.readout() and "“k6”" in page.readout()
    page.page.mouse.down()
    page.page.mouse.up()
    point_at(4, 4)
    assert "“q4”" in page.readout()
    page.page.mouse.move(5, 5)
    assert "“q1”" in page.readout() and "“k6”" in page.readout()
    page.see("[data-test=edge]", "Ablate “q1” → “k6”")
    # The wheel zooms at the pointer, and 0 shows everything again.
    point_at(0, 0)
    for _ in range(4):
        page.page.mouse.wheel(0, -100)
    page.page.mouse.move(bounds["x"] + left + width - 4, bounds["y"] + top + height - 4)
    page.until("() => !document.querySelector('.map-readout').innerText.includes('“q7”')")
    assert "“q1”" not in page.readout()
    page.page.keyboard.press("0")
    page.page.mouse.move(bounds["x"] + left + width - 5, bounds["y"] + top + height - 5)
    page.until("() => document.querySelector('.map-readout').innerText.includes('“q7”')")
