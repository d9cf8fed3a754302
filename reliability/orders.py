"""Harm that a child does to itself at an exact place: what an order asks for is prepared before the command.

A fork of the zygote prepares it, and so does a fresh process that finds an order in its environment.
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


def turns_missed(pid: int) -> dict[str, float]:
    """Seconds in which each thread of a process and of its descendants could have run, and others did."""
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
            found |= turns_missed(int(child))
    return found


class Patience:
    """So many seconds of waiting, looked at often.

    Those in which this process was stopped do not count, nor those in which the process that is waited for,
    or one that it waits for, was ready and others had the processor: a busy machine is no hang.
    """

    def __init__(self, seconds: float, pid: int | None = None) -> None:
        self.left, self.last = seconds, time.monotonic()
        self.pid = pid if seconds >= 1 else None  # shorter, it is only a look
        self.missed = {} if self.pid is None else turns_missed(self.pid)

    def is_over(self) -> bool:
        now = time.monotonic()
        self.left -= min(now - self.last, 1.0)
        self.last = now
        if self.left <= 0 and self.pid is not None:
            before, self.missed = self.missed, turns_missed(self.pid)
            self.left += max((late - before.get(name, 0.0) for name, late in self.missed.items()), default=0)
        return self.left <= 0


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


WRITES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate"}


class Operations:
    """Every operation on files below a folder: named in a file, or counted until one is the last."""

    def __init__(self, order: dict) -> None:
        self.below, self.last, self.count = order["below"], order.get("die_at"), 0
        self.names = open("operations", "w", buffering=1)  # noqa: SIM115  until it dies
        fsync = os.fsync
        os.fsync = lambda number: (
            self.happens("fsync", os.readlink(f"/proc/self/fd/{number}")),
            fsync(number),
        )[1]
        sys.addaudithook(self.hear)

    def hear(self, event: str, arguments: tuple) -> None:
        if event in WRITES or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            self.happens(event.removeprefix("os."), arguments[0])

    def happens(self, what: str, path: object) -> None:
        path = os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""
        if not str(path).startswith(self.below):
            return
        self.count += 1
        self.names.write(f"{what} {str(path).removeprefix(self.below)}\n")
        if self.count == self.last:
            die()


def die_at_event(order: dict) -> None:
    """Before the record's line of this kind and step is written."""
    from glassformer.training.events import EventLog

    append = EventLog.append

    def check(self: EventLog, kind: str, **fields: object) -> None:
        if (kind, fields.get("step")) == (order["kind"], order["step"]):
            die()
        append(self, kind, **fields)

    EventLog.append = check


def die_at_backward(order: dict) -> None:
    """After so many backward passes."""
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
    """Before the record's line of this step, until somebody removes the file that says so."""
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
    """The loss of one training step, times a factor."""
    from glassformer.models.base import Model
    from glassformer.training.trainer import Trainer

    score, step, now = Model.score, Trainer.step, [False]

    def watch(self: Trainer, *arguments: object) -> object:
        now[0] = self.state.step + 1 == order["step"]
        try:
            return step(self, *arguments)
        finally:
            now[0] = False

    def poisoned(self: Model, *arguments: object, **options: object) -> object:
        found = score(self, *arguments, **options)
        factor = float(order["factor"])
        return type(found)(found.loss * factor, found.correct, found.count) if now[0] else found

    Trainer.step, Model.score = watch, poisoned


def without_privileges(order: bool) -> None:
    """Root's word counts no more than anybody's where a file's permissions say no."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        nothing = (ctypes.c_uint32 * 6)()
        if libc.capset(header, nothing):
            raise OSError(ctypes.get_errno(), "capset")


def clock(order: dict) -> None:
    """Somebody sets the clock while the model trains."""
    from glassformer.training.trainer import Trainer

    now, step, shift = time.time, Trainer.step, [0]

    def watch(self: Trainer, *arguments: object) -> object:
        if self.state.step >= order["step"]:
            shift[0] = order["seconds"]
        return step(self, *arguments)

    Trainer.step = watch
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
    for name, preparation in PREPARATIONS.items():
        if name in order:
            preparation(order[name])
    if order.get("waits"):
        os.kill(os.getpid(), signal.SIGSTOP)
