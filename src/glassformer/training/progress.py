"""Progress of a training run: a bar on a terminal or in a notebook, plain lines elsewhere, or nothing."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

SECONDS_BETWEEN_LINES = 5.0
"""Minimum number of seconds between two progress lines."""
SECONDS_BETWEEN_UPDATES = 0.5
"""Minimum number of seconds between two updates of the bar in a notebook."""
STATUS_DELAY_SECONDS = 2.0
"""Number of seconds that work must take before its status line is printed."""


class Reporter:
    """Progress reporter that prints nothing; base class of the other reporters."""

    is_active = False
    """False if the output is discarded, so that work done only for the output can be skipped."""

    def begin(self, step: int, total_steps: int | None) -> None: ...

    def step(self, step: int, loss: float, accuracy: float | None, tokens_per_second: float) -> None:
        """Report a training step. `accuracy` is None for a regression, which has none."""

    def progress(self, what: str, done: int, total: int) -> None:
        """Report the progress of a validation or a test as `done` of `total`."""

    def validated(self, step: int, metrics: Mapping[str, float], best_by: str) -> None:
        """Report a validation. `best_by` names the metric if this is the best validation so far, else ""."""

    def info(self, text: str) -> None:
        """Print one line of text for the user."""

    def end(self) -> None: ...

    @contextlib.contextmanager
    def status(self, what: str) -> Iterator[None]:
        """Context manager that prints a status line if the work inside takes longer than two seconds."""
        timer = threading.Timer(STATUS_DELAY_SECONDS, self.info, [f"{what} …"])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


class LineReporter(Reporter):
    """Reporter with one line per validation, and a progress line at most every five seconds."""

    is_active = True

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.total_steps: int | None = None
        self._last_line = 0.0

    def begin(self, step: int, total_steps: int | None) -> None:
        self.total_steps = total_steps

    def step(self, step: int, loss: float, accuracy: float | None, tokens_per_second: float) -> None:
        of = f"/{self.total_steps}" if self.total_steps else ""
        self._print_rarely(f"step {step}{of}  {_numbers(loss, accuracy)}  {tokens_per_second:,.0f} tokens/s")

    def progress(self, what: str, done: int, total: int) -> None:
        self._print_rarely(f"{what}: {_count(done, total)}" if total > 1 else what)

    def _print_rarely(self, text: str) -> None:
        if time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            self.info(text)

    def validated(self, step: int, metrics: Mapping[str, float], best_by: str) -> None:
        self.info(_validation_line(step, metrics, best_by))

    def info(self, text: str) -> None:
        print(text, file=self.stream, flush=True)


class BarReporter(Reporter):
    """Reporter with a Rich progress bar that shows loss, accuracy, speed and remaining time."""

    is_active = True

    def __init__(self) -> None:
        self._display: Progress | None = None
        self._bar: TaskID | None = None

    def begin(self, step: int, total_steps: int | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        steps = "step {task.completed:,.0f}/{task.total:,.0f}" if total_steps else "step {task.completed}"
        self._display = Progress(
            TextColumn(steps),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[numbers]}"),
            TextColumn("{task.fields[speed]}", style="dim"),
            TimeRemainingColumn(compact=True),
            console=Console(stderr=True, highlight=False),
            transient=True,
        )
        self._bar = self._display.add_task(
            "training", total=total_steps, completed=step, numbers="", speed=""
        )
        self._display.start()

    def _update(self, numbers: str, speed: str, step: int | None = None) -> None:
        if self._display is not None and self._bar is not None:
            self._display.update(self._bar, completed=step, numbers=numbers, speed=speed)

    def step(self, step: int, loss: float, accuracy: float | None, tokens_per_second: float) -> None:
        self._update(_numbers(loss, accuracy), f"{tokens_per_second:,.0f} tokens/s", step)

    def progress(self, what: str, done: int, total: int) -> None:
        self._update(what, _count(done, total) if total > 1 else "")

    def validated(self, step: int, metrics: Mapping[str, float], best_by: str) -> None:
        self._update("", "", step)
        self.info(_validation_line(step, metrics, best_by))

    def info(self, text: str) -> None:
        from rich.console import Console

        console = self._display.console if self._display else Console(stderr=True, highlight=False)
        style = "bold red" if text.startswith("WARNING") else None
        console.print(text, markup=False, style=style, soft_wrap=True)  # a wrapped command cannot be copied

    def end(self) -> None:
        if self._display is not None:
            self._display.stop()
            self._display = None


class NotebookReporter(LineReporter):
    """Reporter with a progress bar in a notebook cell, which is updated in place; other lines are printed."""

    def __init__(self) -> None:
        super().__init__(sys.stdout)
        self._display: Any = None

    def begin(self, step: int, total_steps: int | None) -> None:
        from IPython.display import HTML, display

        super().begin(step, total_steps)
        self._display = display(HTML(self._bar(step, "")), display_id=True)

    def step(self, step: int, loss: float, accuracy: float | None, tokens_per_second: float) -> None:
        self._update(step, f"{_numbers(loss, accuracy)}, {tokens_per_second:,.0f} tokens/s")

    def progress(self, what: str, done: int, total: int) -> None:
        if self._display is None:
            super().progress(what, done, total)

    def _update(self, step: int, text: str) -> None:
        from IPython.display import HTML

        if self._display is not None and time.monotonic() - self._last_line >= SECONDS_BETWEEN_UPDATES:
            self._last_line = time.monotonic()
            self._display.update(HTML(self._bar(step, text)))

    def _bar(self, step: int, text: str) -> str:
        of = f" of {self.total_steps:,}" if self.total_steps else ""
        value = f' value="{step}" max="{self.total_steps}"' if self.total_steps else ""
        return f"<progress{value}></progress> step {step:,}{of} {text}"


def reporter_for(stream: TextIO) -> Reporter:
    """Return a reporter with a progress bar for a notebook or a terminal, otherwise one that prints lines."""
    if "ipykernel" in sys.modules:
        return NotebookReporter()
    return BarReporter() if stream.isatty() else LineReporter(stream)


def _numbers(loss: float, accuracy: float | None) -> str:
    return f"loss {loss:.4f}" + ("" if accuracy is None else f"  accuracy {accuracy:.4f}")


def _count(done: int, total: int) -> str:
    return f"{done:,} of {total:,}"


def _validation_line(step: int, metrics: Mapping[str, float], best_by: str) -> str:
    numbers = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
    return f"step {step}: validation {numbers}{f'  (best so far by {best_by})' if best_by else ''}"
