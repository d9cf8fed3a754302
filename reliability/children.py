"""Processes to do harm to: forks of one that has imported everything, so that none waits for PyTorch."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reliability.orders import VARIABLE, Patience
from reliability.orders import __file__ as orders_file

PATIENCE = 300.0
"""A machine may be busy: this is far beyond what anything takes on a quiet one."""
ORDERS = Path(orders_file)


def _with_root(environment: Mapping[str, str]) -> str:
    """PYTHONPATH on which `reliability` is found, whatever the working directory is."""
    return os.pathsep.join(filter(None, [str(ORDERS.parents[1]), environment.get("PYTHONPATH", "")]))


@dataclass
class Child:
    """A `glassformer` command that runs in its own process and folder."""

    pid: int
    folder: Path
    wait_for_exit: Callable[[float], int | None]
    _code: int | None = None

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    @property
    def has_ended(self) -> bool:
        """As far as it was asked: until then its number is nobody else's."""
        return self._code is not None

    def poll(self, seconds: float = 0.01) -> int | None:
        if self._code is None:
            self._code = self.wait_for_exit(seconds)
        return self._code

    def wait_until(self, is_so: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
        patience = Patience(seconds, self.pid)
        while not is_so():
            if patience.is_over():
                raise TimeoutError(f"waited in vain until {what}; it said:\n{self.errors}")
            time.sleep(0.002)

    def wait_for_words(self, words: str) -> None:
        self.wait_until(lambda: words in self.errors, f"it says {words!r}")

    def wait_for_step(self, run: Path, step: int, seconds: float = PATIENCE) -> None:
        record = run / "events.jsonl"
        self.wait_until(
            lambda: record.exists() and f'"step": {step},' in record.read_text(),
            f"{run} reaches step {step}",
            seconds,
        )

    def wait(self, seconds: float = PATIENCE) -> int:
        code = self.poll(seconds)
        if code is None:
            self.kill()
            raise TimeoutError(f"no end within {seconds:g} s; it said:\n{self.errors}")
        return code

    def kill(self) -> None:
        """Whatever state it is in; nothing if it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self.poll(PATIENCE)

    @property
    def output(self) -> str:
        return self._said("out")

    @property
    def errors(self) -> str:
        return self._said("err")

    def _said(self, name: str) -> str:
        """Nothing, while it is just being born."""
        path = self.folder / name
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def report(self) -> dict[str, Any]:
        """What it used: CPU seconds, and bytes of memory beyond those of the process it came from."""
        return dict(json.loads((self.folder / "used").read_text()))


@dataclass
class Zygote:
    _process: subprocess.Popen[str] | None = None
    _children: list[Child] = field(default_factory=list)

    def ask(self, order: dict[str, Any]) -> Any:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "reliability.zygote"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": _with_root(os.environ)},
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise BrokenPipeError("the process that forks is gone")
        return json.loads(answer)

    def start(self, arguments: list[str], folder: Path, **order: object) -> Child:
        pid = self.ask({"arguments": arguments, "folder": str(folder), **order})
        return self.adopt(Child(pid, folder, lambda seconds: self.ask({"wait": pid, "seconds": seconds})))

    def adopt(self, child: Child) -> Child:
        """One that it did not fork goes with the others."""
        self._children.append(child)
        return child

    def kill_children(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # it was killed, and they before it
            for child in self._children:
                child.kill()
        self._children.clear()

    def kill(self) -> None:
        """From any thread: whoever asks it afterwards fails."""
        children, self._children = self._children, []  # once: a number may be another's later
        for child in children:
            if not child.has_ended:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    def close(self) -> None:
        self.kill()
        if self._process is not None:
            self._process.communicate()
            self._process = None
        self._children.clear()


def start_fresh(
    words: list[str],
    folder: Path,
    environment: dict[str, str] | None = None,
    order: Mapping[str, Any] | None = None,
) -> Child:
    """The command as a person starts it, in a process that imports everything itself; it may be ordered to
    do harm to itself."""
    given = {**os.environ, "OMP_NUM_THREADS": "1"} if environment is None else dict(environment)
    if order:
        given |= order.get("environment", {})
        paths = [str(ORDERS.parent / "at_start"), given.get("PYTHONPATH", "")]
        given |= {"PYTHONPATH": os.pathsep.join(filter(None, paths)), VARIABLE: json.dumps(order)}
    with open(folder / "out", "wb") as out, open(folder / "err", "wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "glassformer", *words],
            cwd=folder,
            stdout=out,
            stderr=err,
            stdin=subprocess.DEVNULL,
            env=given,
        )
    return Child(process.pid, folder, lambda seconds: wait_for_exit(process, seconds))


def wait_for_exit(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    patience = Patience(seconds, process.pid)
    while process.poll() is None and not patience.is_over():
        time.sleep(0.005)
    return process.returncode
