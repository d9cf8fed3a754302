"""A real browser over a real studio: one of each for all tests, and nothing beyond this machine."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn

from glassformer.runs.folder import RunFolder
from glassformer.runs.session import TrainingSession
from glassformer.studio.app import Studio, create_app
from glassformer.studio.gate import Admission, Connection
from glassformer.studio.runs import RunsFolder
from glassformer.studio.server import listen

from ...conftest import TinyConfig

if os.environ.get("CI"):  # there, a missing browser or driver is a failure
    import playwright.sync_api as sync_api
else:
    sync_api = pytest.importorskip("playwright.sync_api")

TOKEN = "a-token-of-this-test"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE_SECONDS = 180.0
"""For what takes as long as the machine is busy; what must be quick has limits of its own."""


def slowness() -> float:
    """How much longer than alone anything takes here now: times are promised for a machine that has time."""
    shares = []
    for _ in range(5):
        start, start_of_work = time.perf_counter(), time.thread_time()
        while time.thread_time() - start_of_work < 0.02:
            pass
        shares.append((time.perf_counter() - start) / (time.thread_time() - start_of_work))
    return max(1.0, sorted(shares)[2])


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny_config: TinyConfig) -> Path:
    """Two runs: one that labels tokens and was watched, one that reads and writes."""
    folder = tmp_path_factory.mktemp("studio") / "runs"
    watched = {
        "inspection.probe_heads": True,
        "inspection.every": 8,
        "inspection.examples": 4,
        "inspection.keep_snapshots": True,
        "model.num_layers": 2,
    }
    writing = {"task": {"kind": "arithmetic", "digits": 1, "max_examples": 60}, "training.max_epochs": 1}
    for name, overrides in (("watched", watched), ("writing", writing)):
        TrainingSession(tiny_config(overrides), RunFolder(folder / name)).run()
    return folder


@pytest.fixture(scope="session")
def studio(runs: Path) -> Iterator[Studio]:
    """Served from a thread of this process, so that a test can give it maps of its own."""
    studio = Studio(RunsFolder(runs))
    socket = listen("127.0.0.1", 0)
    config = uvicorn.Config(
        create_app(studio, Admission(TOKEN)), http=Connection, ws="none", lifespan="off", log_config=None
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]}, daemon=True)
    thread.start()
    studio.address = f"http://127.0.0.1:{socket.getsockname()[1]}"  # type: ignore[attr-defined]
    yield studio
    server.should_exit = True
    thread.join(10)
    studio.worker.stop()


@pytest.fixture(scope="session")
def browser(chromium: Path) -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        # Playwright gives each launch a fresh profile.
        browser = playwright.chromium.launch(executable_path=str(chromium), args=FLAGS, headless=True)
        yield browser
        browser.close()


@dataclass
class Page:
    """A page of the studio, and everything that it did besides what was asked."""

    page: Any
    address: str
    requests: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    """In the browser's console."""
    may_be_refused: bool = False
    """Whether a browser's word of an answer that is an error is expected."""

    def open(self, route: str) -> None:
        self.page.goto(f"{self.address}/{route}")

    def until(self, script: str, seconds: float = PATIENCE_SECONDS) -> Any:
        """What the script gives, once that is something. (Playwright's own waiting needs eval, which our
        policy forbids.)"""
        end = time.monotonic() + seconds
        while not (found := self.page.evaluate(script)):
            assert time.monotonic() < end, f"{script}\n{self.text()[-2000:]}\n{self.problems}"
            self.page.wait_for_timeout(20)
        return found

    def see(self, selector: str, text: str = "") -> Any:
        """The first element there that has the text."""
        found = self.page.locator(selector, has_text=text).first
        found.wait_for(timeout=1000 * PATIENCE_SECONDS)
        return found

    def text(self) -> str:
        return str(self.page.evaluate("() => document.body.innerText"))

    def readout(self) -> str:
        return str(self.page.locator(".map-readout").first.inner_text())


OpenPage = Callable[..., Page]


@pytest.fixture
def open_page(browser: Any, studio: Studio) -> Iterator[OpenPage]:
    """Pages that may ask this machine only; a test fails if one tried to ask another, had an error, or left
    a word in the console."""
    opened: list[tuple[Any, Page]] = []

    def open_it(
        route: str = "",
        *,
        color_scheme: str = "light",
        knows_token: bool = True,
        may_be_refused: bool = False,
    ) -> Page:
        context = browser.new_context(
            viewport={"width": 1440, "height": 900}, color_scheme=color_scheme, accept_downloads=True
        )
        address: str = studio.address  # type: ignore[attr-defined]
        context.set_default_timeout(1000 * PATIENCE_SECONDS)
        page = Page(context.new_page(), address, may_be_refused=may_be_refused or not knows_token)
        opened.append((context, page))

        def decide(route: Any) -> None:
            url = route.request.url
            page.requests.append(url)
            if url.startswith(("data:", "blob:")) or urlsplit(url).hostname == "127.0.0.1":
                route.continue_()
            else:
                route.abort()

        context.route("**/*", decide)
        page.page.on("console", lambda message: page.said.append(message.text))
        page.page.on("pageerror", lambda error: page.problems.append(str(error)))
        page.page.goto(f"{address}/#token={TOKEN}" if knows_token else f"{address}/")
        if route:
            page.open(route)
        return page

    yield open_it
    for context, page in opened:
        beyond = [url for url in page.requests if urlsplit(url).hostname not in ("127.0.0.1", None)]
        refused = [text for text in page.said if text.startswith("Failed to load resource")]
        said = [text for text in page.said if not (page.may_be_refused and text in refused)]
        assert not beyond and not page.problems and not said
        context.close()
