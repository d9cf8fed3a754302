"""Terminal output of the verbs: text, tables, progress, and the JSON object of `--json`.

With `--json`, standard output is exactly one JSON object. All other output goes to standard error.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import stat
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
MOST_WIDTH = 10_000
"""Maximum number of characters of a line of a table."""
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

    def show_table(self, table: Table) -> None:
        """Print a table whose columns with `no_wrap` are never shortened; outside a terminal, none is."""
        from rich.measure import Measurement

        console = self.console
        size = Measurement.get(console, console.options.update(max_width=MOST_WIDTH), table)
        room = console.width if console.is_terminal else MOST_WIDTH
        table.width = min(size.maximum, max(room, size.minimum))
        console.print(table)

    def explain_sites(
        self, names: Mapping[str, Iterable[str]], explanations: Mapping[str, Mapping[str, str]]
    ) -> None:
        """Print one line per statistic, or one per meaning if it has another one at another attention site.

        `names` are the statistics shown for each site, `explanations` their meanings for each site.
        """
        found: dict[str, dict[str, list[str]]] = {}
        for site, shown in names.items():
            for name in shown:
                if name in explanations[site]:
                    found.setdefault(name, {}).setdefault(explanations[site][name], []).append(site)
        for name, meanings in found.items():
            for meaning, sites in meanings.items():
                where = f" ({', '.join(sites)})" if len(meanings) > 1 else ""
                self.print(f"{name}{where}: {meaning}", style="dim")

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
    """Return a table without rows and frame. Columns are right-aligned, and headings break into lines.

    Cells are never broken: `Output.show_table` gives the table the width that it needs.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0)
    for heading in headings:
        table.add_column(heading.replace(" ", "\n").replace("-", "-\n"), justify="right", no_wrap=True)
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


class _OpenEndedPipe(io.FileIO):
    """Pipe whose output is discarded once its reader has closed it."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream.fileno(), "w", closefd=False)
        self.stream = stream  # the stream would close the descriptor when it is no longer used

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except (BrokenPipeError, ConnectionResetError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())  # child processes that share the descriptor can also continue
            os.close(nowhere)
            return len(data)


def discard_unread_output() -> None:
    """Let a command finish its work without output if the reader of its output ends, as `head` does."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        with contextlib.suppress(AttributeError, OSError, ValueError):  # not a stream of the system
            mode = os.fstat(stream.fileno()).st_mode
            if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
                stream.flush()
                raw = io.BufferedWriter(_OpenEndedPipe(stream))
                wrapped = io.TextIOWrapper(raw, stream.encoding, stream.errors, line_buffering=True)
                setattr(sys, name, wrapped)


class DelayedProgress:
    """Context manager that shows progress on standard error once work takes longer than `PROGRESS_DELAY`.

    A terminal shows one bar per name. Otherwise one line is printed per name, and every `LINE_INTERVAL`
    seconds.
    """

    def __init__(self, name: str, *, delay: float | None = None, in_bytes: bool = False) -> None:
        """Show `name` until this object is called with progress. With `in_bytes`, counts are in megabytes."""
        self.in_bytes = in_bytes
        self._counts: dict[str, tuple[int, int]] = {}
        self._latest = name
        self._next_line = 0.0
        self._printed = ""
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

    def stage(self, name: str) -> None:
        """Show only `name`, for a stage of the work that has no count."""
        with self._lock:
            self._counts, self._latest = {name: (0, 0)}, name
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
        if now < self._next_line and self._latest == self._printed:
            return
        self._next_line, self._printed = now + LINE_INTERVAL, self._latest
        done, total = self._counts.get(self._latest, (0, 0))
        if self.in_bytes:
            counts = f": {done / 1e6:.1f}" + (f" of {total / 1e6:.1f}" if total else "") + " MB"
        else:
            counts = f": {done} of {total}" if total > 1 else ""
        print(f"{self._latest}{counts}", file=sys.stderr, flush=True)

    def __enter__(self) -> DelayedProgress:
        self._timer.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._timer.cancel()
        self._timer.join()
        if self._bars is not None:
            self._bars.stop()
