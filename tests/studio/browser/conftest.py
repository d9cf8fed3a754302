"""Fixtures: one real browser and one real studio for all tests, without any other host."""

from __future__ import annotations

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
from glassformer.studio.app import DEFAULT_PORT, Studio, create_app
from glassformer.studio.runs import RunsFolder
from glassformer.web.gate import Admission, Connection
from glassformer.web.listening import listen

from ...conftest import TinyConfig

TOKEN = "a-token-of-this-test"
PATIENCE_SECONDS = 180.0
"""Timeout in seconds for steps without a limit of their own; a busy machine may be slow."""


def slowness() -> float:
    """Measure the slowdown of this machine by other work: time limits are for an idle machine."""
    shares = []
    for _ in range(5):
        start, start_of_work = time.perf_counter(), time.thread_time()
        while time.thread_time() - start_of_work < 0.02:
            pass
        shares.append((time.perf_counter() - start) / (time.thread_time() - start_of_work))
    return max(1.0, sorted(shares)[2])


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny_config: TinyConfig) -> Path:
    """Train three runs: two token classifiers, one with snapshots, and a sequence-to-sequence model."""
    folder = tmp_path_factory.mktemp("studio") / "runs"
    watched = {
        "inspection.probe_heads": True,
        "inspection.every": 8,
        "inspection.examples": 4,
        "inspection.keep_snapshots": True,
        "model.num_layers": 2,
    }
    writing = {"task": {"kind": "arithmetic", "digits": 1, "max_examples": 60}, "training.max_epochs": 1}
    other = {
        "model.position.kind": "rotary",
        "training.max_epochs": 1,
        "training.label_smoothing": 0.1,
    }
    for name, overrides in (("watched", watched), ("other", other), ("writing", writing)):
        TrainingSession(tiny_config(overrides), RunFolder(folder / name)).run()
    return folder


@pytest.fixture(scope="session")
def studio(runs: Path) -> Iterator[Studio]:
    """Serve a studio from a thread of this process, so that a test can replace its maps."""
    studio = Studio(RunsFolder(runs))
    socket = listen("127.0.0.1", 0, DEFAULT_PORT)
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


@dataclass
class Page:
    """A page of the studio, with its requests, errors and console messages."""

    page: Any
    address: str
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    console: list[str] = field(default_factory=list)
    """Messages in the browser's console."""
    may_be_refused: bool = False
    """True if console messages about refused requests are expected."""

    def open(self, route: str) -> None:
        self.page.goto(f"{self.address}/{route}")

    def until(self, script: str, seconds: float = PATIENCE_SECONDS) -> Any:
        """Evaluate a script until its result is truthy. Playwright's own waiting needs eval, which our
        content policy forbids."""
        end = time.monotonic() + seconds
        while not (found := self.page.evaluate(script)):
            assert time.monotonic() < end, f"{script}\n{self.text()[-2000:]}\n{self.errors}"
            self.page.wait_for_timeout(20)
        return found

    def see(self, selector: str, text: str = "") -> Any:
        """Wait for the first matching element that contains the text."""
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
    """Open pages that can reach only this machine. A test fails if a page tried another host, had an error,
    or logged to the console."""
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
        page.page.on("console", lambda message: page.console.append(message.text))
        page.page.on("pageerror", lambda error: page.errors.append(str(error)))
        page.page.goto(f"{address}/#token={TOKEN}" if knows_token else f"{address}/")
        if route:
            page.open(route)
        return page

    yield open_it
    for context, page in opened:
        beyond = [url for url in page.requests if urlsplit(url).hostname not in ("127.0.0.1", None)]
        refused = [text for text in page.console if text.startswith("Failed to load resource")]
        console = [text for text in page.console if not (page.may_be_refused and text in refused)]
        assert not beyond and not page.errors and not console
        context.close()
