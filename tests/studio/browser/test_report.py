"""A report file in a real browser: no requests, keyboard control, layouts for phone and paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import glassformer as gf

PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def report_file(trained_once: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    gf.report(trained_once, path, samples=3)
    return path


def test_a_report_from_disk(browser: Any, report_file: Path) -> None:
    context = browser.new_context(viewport=PHONE)
    page = context.new_page()
    requests: list[str] = []
    console: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: console.append(message.text))
    page.on("pageerror", lambda error: console.append(str(error)))
    page.goto(report_file.as_uri())
    page.locator("figure.maps.is-live .map-canvas").wait_for()
    assert requests == [report_file.as_uri()] and console == []
    assert page.evaluate("() => document.documentElement.scrollWidth") <= PHONE["width"]

    page.locator(".map-canvas").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".map-readout strong").inner_text().startswith("≈ 0.")
    assert not page.locator("figure.maps img").is_visible()

    page.emulate_media(media="print")
    page.evaluate("() => window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator("figure.maps img").is_visible() and not page.locator("nav").is_visible()
    assert page.evaluate("() => [...document.querySelectorAll('details')].every((details) => details.open)")
    assert page.evaluate("() => document.querySelector('figure.maps img').naturalWidth") > 100
    assert requests == [report_file.as_uri()] and console == []
    context.close()


def test_a_report_without_scripts(browser: Any, report_file: Path) -> None:
    """Check that the map images are visible from the start."""
    context = browser.new_context(java_script_enabled=False, viewport=PHONE)
    page = context.new_page()
    page.goto(report_file.as_uri())
    assert page.locator("figure.maps img").is_visible() and page.locator("svg.chart").first.is_visible()
    context.close()
