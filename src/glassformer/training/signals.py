"""SIGINT and SIGTERM ask the loop to stop after its step, or in a validation; it saves, and the process exits
130 or 143."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self


class Interrupted(Exception):
    """Of something long that can be done anew, since somebody asked to stop."""


class StopSignals:
    """While entered, remembers the first signal. More of them change nothing."""

    def __init__(self, say: Callable[[str], None] = lambda text: None) -> None:
        self.number: int | None = None
        self.say = say
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self.number is None:
            self.number = number
            with contextlib.suppress(RuntimeError):  # it came in the middle of another line
                self.say(f"{signal.Signals(number).name}: finishing this step and saving")

    def is_set(self) -> bool:
        return self.number is not None

    @property
    def exit_code(self) -> int:
        return 0 if self.number is None else 128 + self.number
