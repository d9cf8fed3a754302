"""Terminal output of the verbs: text, tables, progress, and the JSON object of `--json`.

With `--json`, standard output is exactly one JSON object. All other output goes to standard error.
"""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from glassformer.core.errors import UserError
from glassformer.storage.files import finite

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress
    from rich.table import Table

PROGRESS_DELAY = 2.0
"""Seconds that work must take before its progress is shown."""
LINE_INTERVAL = 10.0
"""Seconds between two progress lines if standard error is not a terminal."""


class Output:
    """Output of one verb: text for people, one JSON object for programs, and the exit code."""

    def __init__(self, is_json: bool) -> None:
        self.is_json = is_json
        self.exit_code = 0
        self._is_given = False
        self._is_muted = False
        self._console: Console | None = None

    @property
    def console(self) -> Console:
        if self._console is None:
            from rich.console import Console

            self._console = Console(stderr=self.is_json, highlight=False, soft_wrap=True)
        return self._console

    def mute(self) -> None:
        """Suppress all output except errors. Use it in all but one of the processes of a command."""
        self._is_muted = True

    def print(self, text: str = "", style: str = "") -> None:
        """Print a line of text, in a style if the output is a terminal. Brackets are not markup."""
        if self._is_muted:
            return
        stream = sys.stderr if self.is_json else sys.stdout
        if style and stream.isatty():
            self.console.print(text, style=style, markup=False)
        else:
            print(text, file=stream, flush=True)

    def show(self, *renderables: RenderableType) -> None:
        """Print rich objects such as tables, trees and panels."""
        for renderable in renderables:
            self.console.print(renderable)

    def explain(self, names: Iterable[str], explanations: Mapping[str, str]) -> None:
        """Print one line per name that has an explanation, as the legend of a table."""
        for name in names:
            if name in explanations:
                self.print(f"{name}: {explanations[name]}", style="dim")

    def error(self, error: UserError) -> None:
        """Print an error on standard error; with `--json`, also print its details as the JSON object."""
        self._is_given = True
        print(f"glassformer: {error}", file=sys.stderr, flush=True)
        if self.is_json and not self._is_muted:
            errors = [
                {"path": detail.path, "message": detail.message, "hint": detail.hint}
                for detail in error.details
            ]
            _print_json({"errors": errors})

    def give(self, document: dict[str, Any]) -> None:
        """Print the JSON object at once instead of at the end, for commands that keep running."""
        self._is_given = True
        if self.is_json and not self._is_muted:
            _print_json(document)

    def give_list(self, document: dict[str, Any], name: str, items: Iterable[str]) -> None:
        """Print the JSON object `document` with the list `name` added.

        The items are JSON texts. They are printed one by one, so the list need not fit into memory.
        """
        self._is_given = True
        if not self.is_json or self._is_muted:
            return
        print(f'{json_line(document).rstrip()[:-1]}, "{name}": [', end="")
        for number, item in enumerate(items):
            print(", " * bool(number) + item.rstrip("\n"), end="")
        print("]}", flush=True)

    def finish(self, result: dict[str, Any] | None) -> int:
        if not self._is_given:
            self.give(result or {})
        return self.exit_code


def plain_table(title: str, headings: Iterable[str]) -> Table:
    """Return a table without rows and frame. Columns are right-aligned, and headings break into lines."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in headings:
        table.add_column(heading.replace(" ", "\n").replace("-", "-\n"), justify="right", overflow="fold")
    return table


def three_decimals(value: float | None) -> str:
    """Format a number with three decimals, and a missing number or NaN as a dash."""
    return "–" if value is None or math.isnan(value) else f"{value:.3f}"


def _print_json(document: dict[str, Any]) -> None:
    print(json_line(document), end="", flush=True)


def json_line(document: dict[str, Any]) -> str:
    """Return a JSON object as one line that standard output can encode."""
    is_unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    return json.dumps(finite(document), ensure_ascii=not is_unicode) + "\n"


class DelayedProgress:
    """Context manager that shows progress on standard error once work takes longer than `PROGRESS_DELAY`.

    A terminal shows one bar per name. Otherwise one line is printed every `LINE_INTERVAL` seconds.
    """

    def __init__(self, name: str, *, delay: float | None = None, in_bytes: bool = False) -> None:
        """Show `name` until this object is called with progress. With `in_bytes`, counts are in megabytes."""
        self.in_bytes = in_bytes
        self._counts: dict[str, tuple[int, int]] = {}
        self._latest = name
        self._next_line = 0.0
        self._bars: Progress | None = None
        self._lock = threading.Lock()
        # A thread of its own: the first call may come long after the delay.
        self._timer = threading.Timer(PROGRESS_DELAY if delay is None else delay, self._appear)
        self._timer.daemon = True

    def __call__(self, name: str, done: int, total: int) -> None:
        with self._lock:
            self._counts[name] = (done, total)
            self._latest = name
            if self._timer.finished.is_set():
                self._draw()

    def _appear(self) -> None:
        with self._lock:
            if sys.stderr.isatty():
                self._bars = self._make_bars()
                self._bars.start()
            self._draw()

    def _make_bars(self) -> Progress:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        counts = DownloadColumn() if self.in_bytes else MofNCompleteColumn()
        columns = (TextColumn("{task.description}"), BarColumn(), counts, TimeElapsedColumn())
        return Progress(*columns, console=Console(stderr=True), transient=True)

    def _draw(self) -> None:
        if self._bars is None:
            self._print_line()
            return
        known = {bar.description: bar.id for bar in self._bars.tasks}
        counts = self._counts or {self._latest: (0, 0)}
        for name, (done, total) in counts.items():
            number = known.pop(name) if name in known else self._bars.add_task(name)
            self._bars.update(number, completed=done, total=total or None)
        for number in known.values():
            self._bars.remove_task(number)

    def _print_line(self) -> None:
        now = time.monotonic()
        if now < self._next_line:
            return
        self._next_line = now + LINE_INTERVAL
        done, total = self._counts.get(self._latest, (0, 0))
        if self.in_bytes:
            counts = f": {done / 1e6:.1f}" + (f" of {total / 1e6:.1f}" if total else "") + " MB"
        else:
            counts = f": {done} of {total}" if total else ""
        print(f"{self._latest}{counts}", file=sys.stderr, flush=True)

    def __enter__(self) -> DelayedProgress:
        self._timer.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._timer.cancel()
        self._timer.join()
        if self._bars is not None:
            self._bars.stop()
