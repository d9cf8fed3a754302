"""Faults and workspaces: a fault is a registered generator of tries, which runs in a workspace."""

from __future__ import annotations

import json
import random
import shutil
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from glassformer.core.config import Tree, dump_yaml, read_yaml_file
from reliability.children import Child, Zygote, start_fresh
from reliability.injections import Patience

TINY: Tree = read_yaml_file(Path(__file__).parents[1] / "tests" / "tiny.yaml")
"""Config of 8 steps per epoch and 24 steps in all, which trains in a fraction of a second."""

WORDS = ["the", "a", "room", "book", "was", "very", "not", "quite", "and", "or", "film", "long", "short"]

Outcome = str | None
"""Result of one try: None if the promise held, else a description of the failure."""
Tries = Iterator[Outcome]


class Unsupported(Exception):
    """This machine cannot inject the fault; the message is the reason."""


@dataclass
class Workspace:
    """Environment of a fault: a folder, a random generator, and child processes."""

    folder: Path
    rng: random.Random
    zygote: Zygote
    notes: list[str] = field(default_factory=list)
    """Remarks that are published with the counts."""
    _count: int = 0

    def new(self, name: str = "try") -> Path:
        """Return a path that does not exist yet."""
        self._count += 1
        path = self.folder / f"{name}-{self._count}"
        shutil.rmtree(path, ignore_errors=True)
        return path

    def made(self, name: str) -> Path:
        """Create an empty folder."""
        path = self.new(name)
        path.mkdir()
        return path

    @cached_property
    def tiny_file(self) -> Path:
        """YAML file of the TINY config."""
        path = self.folder / "tiny.yaml"
        path.write_text(dump_yaml(TINY), encoding="utf-8")
        return path

    @cached_property
    def text_file(self) -> Path:
        """YAML file of a small text classifier, whose data are a file and which trains a tokenizer."""
        lines = [
            f"{label}\t{' '.join(self.rng.choices(WORDS, k=8))} {word}"
            for _ in range(30)
            for label, word in (("yes", "good"), ("no", "bad"))
        ]
        data = self.folder / "texts.tsv"
        data.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        columns = {"target": 0, "input": 1}
        task = {"kind": "classification", "max_length": 16, "data": {"train": str(data), "columns": columns}}
        path = self.folder / "text.yaml"
        training = {**TINY["training"], "max_epochs": 2}
        path.write_text(dump_yaml({**TINY, "task": task, "training": training}), encoding="utf-8")
        return path

    def with_cache(self, order: dict[str, Any]) -> dict[str, Any]:
        """Add an environment in which the child caches tokens in this workspace, which starts empty."""
        environment = {"GLASSFORMER_CACHE": str(self.folder / "cache"), **order.get("environment", {})}
        return {**order, "environment": environment}

    def start(self, *arguments: str | Path, is_fresh: bool = False, **order: Any) -> Child:
        """Start `glassformer` with these arguments.

        The child is a fork of a process that has imported everything; with `is_fresh`, a new interpreter, as
        a user would start it. `order` holds the faults that the child injects into itself; see `injections`.
        """
        words, folder = [str(argument) for argument in arguments], self.made("child")
        order = self.with_cache(order)
        if is_fresh:
            return self.zygote.adopt(start_fresh(words, folder, order=order))
        return self.zygote.start(words, folder, **order)

    def do(self, job: str, *arguments: object, seconds: float) -> Tries:
        """Run a job in a child process and yield its outcomes; a crash or a hang is a failure too."""
        folder = self.made("job")
        child = self.zygote.start(list(arguments), folder, **self.with_cache({"job": job}))
        count, patience = 0, Patience(seconds, child.pid)
        while True:
            code = child.poll(0.05)
            lines = (folder / "outcomes").read_text().splitlines() if (folder / "outcomes").exists() else []
            for line in lines[count:] if code is not None else lines[count:-1]:
                yield json.loads(line)
                count += 1
            if code is not None:
                break
            if patience.is_over():
                child.kill()
                yield f"did not end within {seconds:g} s: {child.errors[-500:]}"
                return
        if code != 0:
            yield f"the process ended with {code}: {child.errors[-1500:]}"

    def train(self, path: Path, *options: str, source: Path | None = None, is_fresh: bool = False) -> Path:
        """Train a config (default: the tiny one) to its end, resuming if the run exists."""
        command = ["train", source or self.tiny_file, *options, "--run", path, "--quiet", "--resume"]
        child = self.start(*command, is_fresh=is_fresh)
        if child.wait() != 0:
            raise RuntimeError(child.errors)
        return path

    @cached_property
    def trained(self) -> Path:
        """Finished run of the tiny config; copy it before changing it."""
        return self.train(self.folder / "trained")

    @cached_property
    def trained_on_text(self) -> Path:
        """Finished run of the text classifier; copy it before changing it."""
        return self.train(self.folder / "trained-on-text", source=self.text_file)


EVERY_FRESH = 10
"""Every tenth try starts a new interpreter instead of a fork."""


def is_fresh(number: int) -> bool:
    """Return True if the try with this number starts a new interpreter."""
    return number % EVERY_FRESH == 0


Injection = Callable[[Workspace, range], Tries]
"""Function that injects a fault once per number, and yields the outcome of each try."""


@dataclass(frozen=True)
class Fault:
    """Registered fault: its description, its promise, and how often each tier tries it."""

    name: str
    what: str
    """Description of the fault, as published."""
    expected: str
    """Promise that must hold, as published."""
    inject: Injection
    quick: int
    full: int
    unit: str
    part: int
    """Number of tries per part; each part has its own workspace."""
    is_alone: bool
    """True if the fault measures time, so that no other part may run beside it."""
    counts_tests: bool
    """True if the tries are cases of the ordinary tests, which `make test` runs anyway."""

    def count(self, tier: str) -> int:
        """Number of tries in a tier."""
        return {"quick": self.quick, "full": self.full}[tier]

    def parts(self, tier: str) -> list[range]:
        """Split the tries of a tier into parts."""
        count = self.count(tier)
        return [range(first, min(first + self.part, count)) for first in range(0, count, self.part)]


@dataclass
class Row:
    """Counts and failures of a fault, or of a part of it."""

    fault: Fault
    tried: int = 0
    held: int = 0
    failures: list[str] = field(default_factory=list)
    unsupported: str | None = None
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """True if all tries held, or the machine cannot inject the fault."""
        return not self.failures and (self.tried > 0 or self.unsupported is not None)

    def add(self, part: Row) -> None:
        """Add the counts of a part."""
        self.tried += part.tried
        self.held += part.held
        self.failures += part.failures
        self.unsupported = self.unsupported or part.unsupported
        self.seconds += part.seconds
        self.notes += [note for note in part.notes if note not in self.notes]


FAULTS: dict[str, Fault] = {}


def fault(
    name: str,
    what: str,
    expected: str,
    *,
    quick: int,
    full: int,
    unit: str = "",
    part: int = 50,
    is_alone: bool = False,
    counts_tests: bool = False,
) -> Callable[[Injection], Injection]:
    """Decorator: register a fault; see `Fault` for the arguments."""

    def register(inject: Injection) -> Injection:
        if name in FAULTS:
            raise ValueError(f"two faults are called {name}")
        FAULTS[name] = Fault(name, what, expected, inject, quick, full, unit, part, is_alone, counts_tests)
        return inject

    return register


def run_part(chosen: Fault, workspace: Workspace, numbers: range) -> Row:
    """Run one part of a fault; an exception in it counts as a failed try."""
    row, start = Row(chosen), time.monotonic()
    try:
        for outcome in chosen.inject(workspace, numbers):
            row.tried += 1
            if outcome is None:
                row.held += 1
            else:
                row.failures.append(outcome)
    except Unsupported as reason:
        row.unsupported = str(reason)
    except Exception:
        row.tried += 1
        row.failures.append(traceback.format_exc())
    row.seconds, row.notes = time.monotonic() - start, workspace.notes
    return row
