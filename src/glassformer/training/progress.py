"""What a person sees while a model trains: a bar on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

SECONDS_BETWEEN_LINES = 5.0
SECONDS_OF_SILENCE = 2.0


class Reporter:
    """Says nothing. The others say the same things, each in its own way."""

    is_heard = False
    """Whether somebody listens: what is said to people only costs time."""

    def begin(self, step: int, total_steps: int | None) -> None: ...

    def step(self, step: int, loss: float, accuracy: float, tokens_per_second: float) -> None: ...

    def measuring(self, what: str, done: int, total: int) -> None: ...

    def validated(self, step: int, metrics: Mapping[str, float], is_best: bool) -> None: ...

    def note(self, text: str) -> None: ...

    def end(self) -> None: ...

    @contextlib.contextmanager
    def telling(self, what: str) -> Iterator[None]:
        """Say what is being done, if it takes a while."""
        timer = threading.Timer(SECONDS_OF_SILENCE, self.note, [f"{what} …"])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


class LineReporter(Reporter):
    is_heard = True

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.total_steps: int | None = None
        self.last = 0.0

    def begin(self, step: int, total_steps: int | None) -> None:
        self.total_steps = total_steps

    def step(self, step: int, loss: float, accuracy: float, tokens_per_second: float) -> None:
        of = f"/{self.total_steps}" if self.total_steps else ""
        self._say_now_and_then(
            f"step {step}{of}  {_numbers(loss, accuracy)}  {tokens_per_second:,.0f} tokens/s"
        )

    def measuring(self, what: str, done: int, total: int) -> None:
        self._say_now_and_then(f"{what}: {done:,} of {total:,}")

    def _say_now_and_then(self, text: str) -> None:
        if time.monotonic() - self.last >= SECONDS_BETWEEN_LINES:
            self.last = time.monotonic()
            self.note(text)

    def validated(self, step: int, metrics: Mapping[str, float], is_best: bool) -> None:
        self.note(_validation_line(step, metrics, is_best))

    def note(self, text: str) -> None:
        print(text, file=self.stream, flush=True)


class BarReporter(Reporter):
    """A rich progress bar with loss, accuracy, speed and the time left."""

    is_heard = True

    def __init__(self) -> None:
        self.progress: Progress | None = None
        self.bar: TaskID | None = None

    def begin(self, step: int, total_steps: int | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.progress = Progress(
            TextColumn(
                "step {task.completed:,.0f}/{task.total:,.0f}" if total_steps else "step {task.completed}"
            ),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[numbers]}"),
            TextColumn("{task.fields[speed]}", style="dim"),
            TimeRemainingColumn(compact=True),
            console=Console(stderr=True, highlight=False),
            transient=True,
        )
        self.bar = self.progress.add_task("training", total=total_steps, completed=step, numbers="", speed="")
        self.progress.start()

    def step(self, step: int, loss: float, accuracy: float, tokens_per_second: float) -> None:
        if self.progress is not None and self.bar is not None:
            self.progress.update(
                self.bar,
                completed=step,
                numbers=_numbers(loss, accuracy),
                speed=f"{tokens_per_second:,.0f} tokens/s",
            )

    def measuring(self, what: str, done: int, total: int) -> None:
        if self.progress is not None and self.bar is not None:
            self.progress.update(self.bar, numbers=what, speed=f"{done:,} of {total:,}")

    def validated(self, step: int, metrics: Mapping[str, float], is_best: bool) -> None:
        if self.progress is not None and self.bar is not None:
            self.progress.update(self.bar, completed=step, numbers="", speed="")
        self.note(_validation_line(step, metrics, is_best))

    def note(self, text: str) -> None:
        from rich.console import Console

        console = self.progress.console if self.progress else Console(stderr=True, highlight=False)
        console.print(text, markup=False, style="bold red" if text.startswith("WARNING") else None)

    def end(self) -> None:
        if self.progress is not None:
            self.progress.stop()
            self.progress = None


def reporter_for(stream: TextIO) -> Reporter:
    return BarReporter() if stream.isatty() else LineReporter(stream)


def _numbers(loss: float, accuracy: float) -> str:
    return f"loss {loss:.4f}  accuracy {accuracy:.4f}"


def _validation_line(step: int, metrics: Mapping[str, float], is_best: bool) -> str:
    numbers = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
    return f"step {step}: validation {numbers}{'  (best so far)' if is_best else ''}"
