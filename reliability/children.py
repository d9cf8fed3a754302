"""Child processes for fault injection: forks of a process that has imported everything, or fresh ones."""

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

from reliability.injections import VARIABLE, Patience
from reliability.injections import __file__ as injections_file

PATIENCE = 300.0
"""Default timeout in seconds, generous enough for a busy machine."""
INJECTIONS = Path(injections_file)


def _with_root(environment: Mapping[str, str]) -> str:
    """Return a PYTHONPATH that contains `reliability`, for any working directory."""
    return os.pathsep.join(filter(None, [str(INJECTIONS.parents[1]), environment.get("PYTHONPATH", "")]))


@dataclass
class Child:
    """`glassformer` command that runs in its own process and folder."""

    pid: int
    folder: Path
    wait_for_exit: Callable[[float], int | None]
    _code: int | None = None

    def send(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    @property
    def has_ended(self) -> bool:
        """True once the exit code was read; before that, the system cannot reuse the pid."""
        return self._code is not None

    def poll(self, seconds: float = 0.01) -> int | None:
        """Wait up to some seconds and return the exit code, or None if the child still runs."""
        if self._code is None:
            self._code = self.wait_for_exit(seconds)
        return self._code

    def wait_until(self, condition: Callable[[], bool], description: str, seconds: float = PATIENCE) -> None:
        """Wait for a condition; raise TimeoutError with the child's output if it does not become true."""
        patience = Patience(seconds, self.pid)
        while not condition():
            if patience.is_over():
                raise TimeoutError(f"timeout: waited until {description}; stderr:\n{self.errors}")
            time.sleep(0.002)

    def wait_for_text(self, text: str) -> None:
        """Wait until the child has printed a text to stderr."""
        self.wait_until(lambda: text in self.errors, f"it prints {text!r}")

    def wait_for_step(self, run: Path, step: int, seconds: float = PATIENCE) -> None:
        """Wait until a run has logged a step."""
        events = run / "events.jsonl"
        self.wait_until(
            lambda: events.exists() and f'"step": {step},' in events.read_text(),
            f"{run} reaches step {step}",
            seconds,
        )

    def wait(self, seconds: float = PATIENCE) -> int:
        """Wait for the end and return the exit code; kill the child and raise on timeout."""
        code = self.poll(seconds)
        if code is None:
            self.kill()
            raise TimeoutError(f"did not end within {seconds:g} s; stderr:\n{self.errors}")
        return code

    def kill(self) -> None:
        """Kill the child if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self.poll(PATIENCE)

    @property
    def output(self) -> str:
        """Standard output so far."""
        return self._read("out")

    @property
    def errors(self) -> str:
        """Standard error so far."""
        return self._read("err")

    def _read(self, name: str) -> str:
        """Read an output file; empty if the child has not created it yet."""
        path = self.folder / name
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def report(self) -> dict[str, Any]:
        """Resources used: CPU seconds, and bytes of memory beyond those of the parent process."""
        return dict(json.loads((self.folder / "used").read_text()))


@dataclass
class Zygote:
    """Client of the fork server in `reliability.zygote`, with the children that it started."""

    _process: subprocess.Popen[str] | None = None
    _children: list[Child] = field(default_factory=list)

    def ask(self, order: dict[str, Any]) -> Any:
        """Send one request to the fork server, which is started at the first one, and return its reply."""
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
            raise BrokenPipeError("the fork server has ended")
        return json.loads(answer)

    def start(self, arguments: list[str], folder: Path, **order: object) -> Child:
        """Fork a child that runs `glassformer` with these arguments, or a job, in a folder."""
        pid = self.ask({"arguments": arguments, "folder": str(folder), **order})
        return self.adopt(Child(pid, folder, lambda seconds: self.ask({"wait": pid, "seconds": seconds})))

    def adopt(self, child: Child) -> Child:
        """Register a child that was started in another way, so that it is killed with the others."""
        self._children.append(child)
        return child

    def kill_children(self) -> None:
        """Kill all children."""
        with contextlib.suppress(BrokenPipeError):  # the fork server was killed, after its children
            for child in self._children:
                child.kill()
        self._children.clear()

    def kill(self) -> None:
        """Kill the fork server and all children, from any thread; later requests fail."""
        children, self._children = self._children, []  # only once: the system may reuse a pid
        for child in children:
            if not child.has_ended:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    def close(self) -> None:
        """Kill everything and wait for the fork server."""
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
    """Start the command in a new interpreter, as a user would; `order` may ask it to inject faults."""
    given = {**os.environ, "OMP_NUM_THREADS": "1"} if environment is None else dict(environment)
    if order:
        given |= order.get("environment", {})
        paths = [str(INJECTIONS.parent / "at_start"), given.get("PYTHONPATH", "")]
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
    """Wait up to some seconds and return the exit code, or None."""
    patience = Patience(seconds, process.pid)
    while process.poll() is None and not patience.is_over():
        time.sleep(0.005)
    return process.returncode
