"""Faults that a child process injects into itself at an exact point, such as a kill at step 9.

An order names them. `prepare` installs them before the command runs, in a fork of the zygote or in a fresh
process that finds the order in its environment.
"""

from __future__ import annotations

import ctypes
import glob
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

VARIABLE = "GLASSFORMER_FAULT_ORDER"


def seconds_waiting(pid: int) -> dict[str, float]:
    """Return the seconds that each thread of a process and its descendants waited for a processor."""
    found: dict[str, float] = {}
    for thread in glob.glob(f"/proc/{pid}/task/*"):
        try:
            with open(f"{thread}/schedstat") as file:
                found[thread] = int(file.read().split()[1]) / 1e9
            with open(f"{thread}/children") as file:
                children = file.read().split()
        except (OSError, ValueError, IndexError):
            continue
        for child in children:
            found |= seconds_waiting(int(child))
    return found


class Patience:
    """Timeout that a busy machine does not trigger; poll it often.

    Time does not count while this process was stopped, or while the awaited process or one of its descendants
    was ready to run and waited for a processor.
    """

    def __init__(self, seconds: float, pid: int | None = None) -> None:
        self.left, self.last = seconds, time.monotonic()
        self.pid = pid if seconds >= 1 else None  # too short to be worth reading /proc
        self.missed = {} if self.pid is None else seconds_waiting(self.pid)

    def is_over(self) -> bool:
        """Return True when the time is used up."""
        now = time.monotonic()
        self.left -= min(now - self.last, 1.0)
        self.last = now
        if self.left <= 0 and self.pid is not None:
            before, self.missed = self.missed, seconds_waiting(self.pid)
            self.left += max((late - before.get(name, 0.0) for name, late in self.missed.items()), default=0)
        return self.left <= 0


def die() -> None:
    """Kill this process with SIGKILL."""
    os.kill(os.getpid(), signal.SIGKILL)


WRITES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate"}


class Operations:
    """Log every file operation below a folder; kill the process before the operation number `die_at`."""

    def __init__(self, order: dict) -> None:
        self.below, self.last, self.count = order["below"], order.get("die_at"), 0
        self.names = open("operations", "w", buffering=1)  # noqa: SIM115  open until the process dies
        fsync = os.fsync
        os.fsync = lambda number: (
            self.note("fsync", os.readlink(f"/proc/self/fd/{number}")),
            fsync(number),
        )[1]
        sys.addaudithook(self.audit)

    def audit(self, event: str, arguments: tuple) -> None:
        if event in WRITES or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            self.note(event.removeprefix("os."), arguments[0])

    def note(self, operation: str, path: object) -> None:
        path = os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""
        if not str(path).startswith(self.below):
            return
        self.count += 1
        self.names.write(f"{operation} {str(path).removeprefix(self.below)}\n")
        if self.count == self.last:
            die()


def die_at_event(order: dict) -> None:
    """Kill the process before the event of this kind and step is logged."""
    from glassformer.training.events import EventLog

    append = EventLog.append

    def check(self: EventLog, kind: str, **fields: object) -> None:
        if (kind, fields.get("step")) == (order["kind"], order["step"]):
            die()
        append(self, kind, **fields)

    EventLog.append = check


def die_at_backward(order: dict) -> None:
    """Kill the process after a number of backward passes."""
    import torch

    backward, done = torch.Tensor.backward, 0

    def count(self: torch.Tensor, *arguments: object, **options: object) -> None:
        nonlocal done
        backward(self, *arguments, **options)
        done += 1
        if done == order["count"]:
            die()

    torch.Tensor.backward = count


def pause_at_step(step: int) -> None:
    """Pause before the event of this step is logged, until the file `paused` is removed."""
    from glassformer.training.events import EventLog

    append = EventLog.append

    def check(self: EventLog, kind: str, **fields: object) -> None:
        if (kind, fields.get("step")) == ("step", step):
            open("paused", "w").close()
            while os.path.exists("paused"):
                time.sleep(0.002)
        append(self, kind, **fields)

    EventLog.append = check


def poison(order: dict) -> None:
    """Multiply the loss of one training step by a factor."""
    from glassformer.models.base import Model
    from glassformer.training.trainer import Trainer

    compute_loss, step, now = Model.compute_loss, Trainer.step, [False]

    def mark_step(self: Trainer, *arguments: object) -> object:
        now[0] = self.state.step + 1 == order["step"]
        try:
            return step(self, *arguments)
        finally:
            now[0] = False

    def poisoned(self: Model, *arguments: object, **options: object) -> object:
        found = compute_loss(self, *arguments, **options)
        factor = float(order["factor"])
        return type(found)(found.loss * factor, found.correct, found.count) if now[0] else found

    Trainer.step, Model.compute_loss = mark_step, poisoned


def without_privileges(order: bool) -> None:
    """Drop root's capabilities, so that file permissions apply."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        nothing = (ctypes.c_uint32 * 6)()
        if libc.capset(header, nothing):
            raise OSError(ctypes.get_errno(), "capset")


def clock(order: dict) -> None:
    """Shift the clock while the model trains."""
    from glassformer.training.trainer import Trainer

    now, step, shift = time.time, Trainer.step, [0]

    def shift_clock(self: Trainer, *arguments: object) -> object:
        if self.state.step >= order["step"]:
            shift[0] = order["seconds"]
        return step(self, *arguments)

    Trainer.step = shift_clock
    time.time = lambda: now() + shift[0]


PREPARATIONS = {
    "clock": clock,
    "poison": poison,
    "without_privileges": without_privileges,
    "operations": Operations,
    "die_at_event": die_at_event,
    "die_at_backward": die_at_backward,
    "pause_at_step": pause_at_step,
}


def prepare(order: Mapping[str, Any]) -> None:
    """Install the faults that an order names; with `waits`, stop until SIGCONT."""
    for name, preparation in PREPARATIONS.items():
        if name in order:
            preparation(order[name])
    if order.get("waits"):
        os.kill(os.getpid(), signal.SIGSTOP)
