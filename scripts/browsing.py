"""Helpers of scripts that drive the studio in a real browser."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]

IS_READY = """() => !document.querySelector("main .working, main .skeleton")
  && [...document.querySelectorAll("main .chart")].every((chart) => chart.querySelector(".main-svg"))
  && [...document.querySelectorAll("main .map-canvas")].every((canvas) => canvas.dataset.map)"""


def train(folder: Path, runs: Mapping[str, Sequence[str]]) -> None:
    """Train the runs that do not exist yet."""
    for name, arguments in runs.items():
        if not (folder / name / "results.json").is_file():
            command = [sys.executable, "-m", "glassformer", "train", *arguments, "--run", str(folder / name)]
            subprocess.run(command, check=True)


@contextmanager
def studio(folder: Path) -> Iterator[dict[str, Any]]:
    """Context: a studio in its own process; yields the document of `glassformer studio --json`."""
    command = [sys.executable, "-m", "glassformer", "studio", "--runs", folder.name, "--port", "0"]
    process = subprocess.Popen(
        [*command, "--no-browser", "--json"], stdout=subprocess.PIPE, text=True, cwd=folder.parent
    )
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()


@contextmanager
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    found = subprocess.run(["sh", HERE / "find-browser"], stdout=subprocess.PIPE, text=True)
    if found.returncode:
        raise SystemExit(1)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found.stdout.strip(), args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


def wait_for(page: Any, script: str, seconds: float = 600) -> Any:
    """Evaluate a script until its result is truthy, and return it."""
    end = time.monotonic() + seconds
    while not (found := page.evaluate(script)):
        if time.monotonic() > end:
            raise SystemExit(f"{page.url}: not ready after {seconds:g} s")
        page.wait_for_timeout(20)
    return found


def wait_until_ready(page: Any) -> None:
    page.wait_for_timeout(300)
    wait_for(page, IS_READY)
    page.wait_for_timeout(500)
