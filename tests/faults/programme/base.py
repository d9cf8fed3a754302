"""What a fault is: a registered generator of tries, and the place in which it does its harm."""

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

from glassformer.config import Tree, dump_yaml, read_yaml_file
from programme.children import Child, Zygote

TINY: Tree = read_yaml_file(Path(__file__).parents[2] / "tiny.yaml")
"""8 steps an epoch, 24 in all, in a fraction of a second."""

WORDS = ["the", "a", "room", "book", "was", "very", "not", "quite", "and", "or", "film", "long", "short"]

Outcome = str | None
Tries = Iterator[Outcome]


class NotHere(Exception):
    """This machine cannot do that harm; the reason is said."""


@dataclass
class Place:
    """Where a fault does its harm: a folder of its own, dice, and other processes."""

    folder: Path
    dice: random.Random
    zygote: Zygote
    _count: int = 0

    def new(self, name: str = "try") -> Path:
        """A path in which nothing is yet."""
        self._count += 1
        path = self.folder / f"{name}-{self._count}"
        shutil.rmtree(path, ignore_errors=True)
        return path

    def made(self, name: str) -> Path:
        """A new, empty folder."""
        path = self.new(name)
        path.mkdir()
        return path

    @cached_property
    def tiny_file(self) -> Path:
        path = self.folder / "tiny.yaml"
        path.write_text(dump_yaml(TINY), encoding="utf-8")
        return path

    @cached_property
    def text_file(self) -> Path:
        """A small classifier of texts from a file, with a tokenizer of its own."""
        lines = [
            f"{label}\t{' '.join(self.dice.choices(WORDS, k=8))} {word}"
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

    def start(self, *arguments: str | Path, **order: object) -> Child:
        """`glassformer` with these arguments, as a fork of a process that has imported everything."""
        folder = self.made("child")
        return self.zygote.start([str(argument) for argument in arguments], folder, **order)

    def do(self, job: str, *arguments: object, seconds: float) -> Tries:
        """The outcomes of a job in a process of its own, as they come; its death or standstill is one too."""
        folder = self.made("job")
        child = self.zygote.start(list(arguments), folder, job=job)
        told, end = 0, time.monotonic() + seconds
        while True:
            code = child.poll(0.05)
            lines = (folder / "outcomes").read_text().splitlines() if (folder / "outcomes").exists() else []
            for line in lines[told:] if code is not None else lines[told:-1]:
                yield json.loads(line)
                told += 1
            if code is not None:
                break
            if time.monotonic() > end:
                child.kill()
                yield f"no end within {seconds:g} s: {child.errors[-500:]}"
                return
        if code != 0:
            yield f"the process ended with {code}: {child.errors[-1500:]}"

    def train(self, path: Path, *options: str, what: Path | None = None) -> Path:
        """A run of the tiny config, or another, from its beginning to its end."""
        child = self.start("train", what or self.tiny_file, *options, "--run", path, "--quiet", "--resume")
        if child.wait() != 0:
            raise RuntimeError(child.errors)
        return path

    @cached_property
    def trained(self) -> Path:
        """A finished run that nobody may change."""
        return self.train(self.folder / "trained")

    @cached_property
    def trained_on_text(self) -> Path:
        return self.train(self.folder / "trained-on-text", what=self.text_file)


@dataclass(frozen=True)
class Fault:
    name: str
    what: str
    expected: str
    harm: Callable[[Place, int], Tries]
    quick: int
    full: int
    in_tests: int
    """How many times with the other tests; 0 if those do the same anyway."""
    unit: str

    def count(self, tier: str) -> int:
        return {"tests": self.in_tests, "quick": self.quick, "full": self.full}[tier]


@dataclass
class Row:
    """What came of a fault."""

    fault: Fault
    tried: int = 0
    held: int = 0
    failures: list[str] = field(default_factory=list)
    not_here: str | None = None
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return not self.failures and (self.tried > 0 or self.not_here is not None)


FAULTS: dict[str, Fault] = {}


def fault(
    name: str,
    what: str,
    expected: str,
    *,
    quick: int,
    full: int,
    in_tests: int | None = None,
    unit: str = "",
) -> Callable[[Callable[[Place, int], Tries]], Callable[[Place, int], Tries]]:
    def register(harm: Callable[[Place, int], Tries]) -> Callable[[Place, int], Tries]:
        if name in FAULTS:
            raise ValueError(f"two faults are called {name}")
        times = quick if in_tests is None else in_tests
        FAULTS[name] = Fault(name, what, expected, harm, quick, full, times, unit)
        return harm

    return register


def run_fault(chosen: Fault, place: Place, tier: str, tell: Callable[[Row], None] = lambda row: None) -> Row:
    row, began = Row(chosen), time.monotonic()
    try:
        for outcome in chosen.harm(place, chosen.count(tier)):
            row.tried += 1
            if outcome is None:
                row.held += 1
            else:
                row.failures.append(outcome)
            tell(row)
    except NotHere as reason:
        row.not_here = str(reason)
    except Exception:
        row.tried += 1
        row.failures.append(traceback.format_exc())
    row.seconds = time.monotonic() - began
    return row
