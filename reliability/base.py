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
from typing import Any

from glassformer.core.config import Tree, dump_yaml, read_yaml_file
from reliability.children import Child, Zygote, start_fresh
from reliability.orders import Patience

TINY: Tree = read_yaml_file(Path(__file__).parents[1] / "tests" / "tiny.yaml")
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
    notes: list[str] = field(default_factory=list)
    """What a reader of the counts should know of how they came about."""
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

    def with_cache(self, order: dict[str, Any]) -> dict[str, Any]:
        """An order whose child keeps tokens in this place, as a person who has none yet."""
        environment = {"GLASSFORMER_CACHE": str(self.folder / "cache"), **order.get("environment", {})}
        return {**order, "environment": environment}

    def start(self, *arguments: str | Path, is_fresh: bool = False, **order: Any) -> Child:
        """`glassformer` with these arguments, as a fork of a process that has imported everything; or the
        command itself, as a person types it."""
        words, folder = [str(argument) for argument in arguments], self.made("child")
        order = self.with_cache(order)
        if is_fresh:
            return self.zygote.adopt(start_fresh(words, folder, order=order))
        return self.zygote.start(words, folder, **order)

    def do(self, job: str, *arguments: object, seconds: float) -> Tries:
        """The outcomes of a job in a process of its own, as they come; its death or standstill is one too."""
        folder = self.made("job")
        child = self.zygote.start(list(arguments), folder, **self.with_cache({"job": job}))
        told, patience = 0, Patience(seconds, child.pid)
        while True:
            code = child.poll(0.05)
            lines = (folder / "outcomes").read_text().splitlines() if (folder / "outcomes").exists() else []
            for line in lines[told:] if code is not None else lines[told:-1]:
                yield json.loads(line)
                told += 1
            if code is not None:
                break
            if patience.is_over():
                child.kill()
                yield f"no end within {seconds:g} s: {child.errors[-500:]}"
                return
        if code != 0:
            yield f"the process ended with {code}: {child.errors[-1500:]}"

    def train(self, path: Path, *options: str, what: Path | None = None, is_fresh: bool = False) -> Path:
        """A run of the tiny config, or another, from its beginning to its end."""
        command = ["train", what or self.tiny_file, *options, "--run", path, "--quiet", "--resume"]
        child = self.start(*command, is_fresh=is_fresh)
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


EVERY_FRESH = 10
"""One try in so many goes through the command as a person starts it, and not through a fork."""


def is_fresh(number: int) -> bool:
    return number % EVERY_FRESH == 0


Harm = Callable[[Place, range], Tries]
"""Does harm once for each of these numbers, and tells each time what came of it."""


@dataclass(frozen=True)
class Fault:
    name: str
    what: str
    expected: str
    harm: Harm
    quick: int
    full: int
    unit: str
    part: int
    """So many tries are made at a stretch, in a place of their own."""
    is_alone: bool
    """Measures the machine too: nothing else is done meanwhile."""
    is_of_tests: bool
    """Counts cases of the ordinary tests, which `make test` runs anyway."""

    def count(self, tier: str) -> int:
        return {"quick": self.quick, "full": self.full}[tier]

    def parts(self, tier: str) -> list[range]:
        count = self.count(tier)
        return [range(first, min(first + self.part, count)) for first in range(0, count, self.part)]


@dataclass
class Row:
    """What came of a fault, or of a part of it."""

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

    def add(self, part: Row) -> None:
        self.tried += part.tried
        self.held += part.held
        self.failures += part.failures
        self.not_here = self.not_here or part.not_here
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
    is_of_tests: bool = False,
) -> Callable[[Harm], Harm]:
    def register(harm: Harm) -> Harm:
        if name in FAULTS:
            raise ValueError(f"two faults are called {name}")
        FAULTS[name] = Fault(name, what, expected, harm, quick, full, unit, part, is_alone, is_of_tests)
        return harm

    return register


def run_part(chosen: Fault, place: Place, numbers: range) -> Row:
    row, began = Row(chosen), time.monotonic()
    try:
        for outcome in chosen.harm(place, numbers):
            row.tried += 1
            if outcome is None:
                row.held += 1
            else:
                row.failures.append(outcome)
    except NotHere as reason:
        row.not_here = str(reason)
    except Exception:
        row.tried += 1
        row.failures.append(traceback.format_exc())
    row.seconds, row.notes = time.monotonic() - began, place.notes
    return row
