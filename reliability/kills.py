"""SIGKILL: at random moments, before each operation of a save, many times, and where it hurts most."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glassformer.runs.folder import RunFolder
from glassformer.runs.verify import compare_runs
from reliability.base import Outcome, Place, Tries, fault, is_fresh

IDENTICAL = (
    "resumed by the same command; weights, optimizer, random state, order of examples, events and metrics are"
    " those of the uninterrupted run, to the bit"
)
OFTEN = ["training.save_every=3", "training.validate_every=6"]
ACCUMULATING = ["training.gradient_accumulation=4", "training.batch_size=4", "training.save_every=2"]


def differences(left: Path, right: Path) -> Outcome:
    compared = compare_runs(RunFolder(left), RunFolder(right))
    different = [name for name, item in compared.items() if not item["is_equal"]]
    return f"{right} differs in {', '.join(different)}" if different else None


def killed(place: Place, run: Path, options: Sequence[str], **order: Any) -> bool:
    """Whether a training came to its end by SIGKILL."""
    child = place.start("train", place.tiny_file, *options, "--run", run, "--resume", "--quiet", **order)
    return child.wait() == -signal.SIGKILL


def goes_on(place: Place, run: Path, alone: Path, options: Sequence[str], number: int) -> Outcome:
    """By the same command, to the end of the run that nobody has killed."""
    place.train(run, *options, is_fresh=is_fresh(number))
    return differences(alone, run)


@fault("kill at random", "SIGKILL at a random moment", IDENTICAL, quick=20, full=200, part=10)
def at_random(place: Place, numbers: range) -> Tries:
    alone = place.train(place.new("alone"), *OFTEN)
    for number in numbers:
        run = place.new("run")
        while not killed_at_random(place, run, number):
            run = place.new("run")
        yield goes_on(place, run, alone, OFTEN, number)


def killed_at_random(place: Place, run: Path, number: int) -> bool:
    """Not if it was done before."""
    command = ["train", place.tiny_file, *OFTEN, "--run", run, "--resume", "--quiet"]
    child = place.start(*command, is_fresh=is_fresh(number))
    step = place.dice.randrange(1, 24)
    child.wait_until(lambda: has_step(run, step), f"there is step {step}")
    child.poll(place.dice.random() * 0.03 + 1e-4)
    child.kill()
    return child.wait() == -signal.SIGKILL


def has_step(run: Path, step: int) -> bool:
    record = run / "events.jsonl"
    return record.exists() and f'"step": {step},' in record.read_text()


IN_ONE_SAVE = 24
"""At least as many as a save has operations."""


@fault(
    "kill in a save",
    "SIGKILL before each operation of a save that replaces another, then of all saves of a run: mkdir, open,"
    " fsync, rename, unlink",
    IDENTICAL,
    quick=IN_ONE_SAVE,
    full=160,
    unit="operations",
    part=12,
)
def in_a_save(place: Place, numbers: range) -> Tries:
    alone, listing = place.train(place.new("alone"), *OFTEN), place.new("listing")
    below = {"below": f"{listing}/checkpoints"}
    child = place.start(
        "train", place.tiny_file, *OFTEN, "--run", listing, "--resume", "--quiet", operations=below
    )
    assert child.wait() == 0, child.errors
    names = (child.folder / "operations").read_text().splitlines()
    # From the fourth save on, each one moves `latest` and removes an older one.
    saves = [number for number, name in enumerate(names, 1) if re.search(r"mkdir .*saving-step", name)]
    one = range(saves[3], saves[4])
    assert len(one) <= IN_ONE_SAVE, f"a save has {len(one)} operations"
    points = [*one, *(number for number in range(1, len(names) + 1) if number not in one)]
    for number, point in zip(numbers, points[numbers.start : numbers.stop], strict=False):
        run = place.new("run")
        order = {"below": f"{run}/checkpoints", "die_at": point}
        if not killed(place, run, OFTEN, is_fresh=is_fresh(number), operations=order):
            yield f"operation {point} ({names[point - 1]}) did not come"
            continue
        outcome = goes_on(place, run, alone, OFTEN, number)
        yield f"killed before '{names[point - 1]}': {outcome}" if outcome else None


@fault("five kills", "five SIGKILLs in one run", IDENTICAL, quick=3, full=20, part=3)
def five(place: Place, numbers: range) -> Tries:
    alone = place.train(place.new("alone"), *OFTEN)
    for number in numbers:
        run = place.new("run")
        for kill, step in enumerate(sorted(place.dice.sample(range(2, 24), 5))):
            order = {"kind": "step", "step": step}
            if not killed(place, run, OFTEN, is_fresh=is_fresh(number) and kill == 2, die_at_event=order):
                yield f"no kill at step {step}"
        yield goes_on(place, run, alone, OFTEN, number)


MOMENTS = [{"kind": kind, "step": step} for step in (8, 16, 24) for kind in ("step", "validation")] + [
    {"kind": "step", "step": 9},
    {"kind": "step", "step": 17},
    {"kind": "end", "step": 24},
]


@fault("kill at an epoch's end", "SIGKILL around the end of an epoch", IDENTICAL, quick=3, full=20)
def at_an_epochs_end(place: Place, numbers: range) -> Tries:
    alone = place.train(place.new("alone"))
    for number in numbers:
        run, moment = place.new("run"), MOMENTS[number % len(MOMENTS)]
        if not killed(place, run, [], is_fresh=is_fresh(number), die_at_event=moment):
            yield f"no kill at {moment}"
            continue
        yield goes_on(place, run, alone, [], number)


@fault(
    "kill inside accumulation",
    "SIGKILL between the backward passes of one step",
    IDENTICAL,
    quick=3,
    full=20,
)
def inside_accumulation(place: Place, numbers: range) -> Tries:
    alone = place.train(place.new("alone"), *ACCUMULATING)
    for number in numbers:
        run = place.new("run")
        passes = {"count": 4 * place.dice.randrange(1, 22) + place.dice.choice([1, 2, 3])}
        if not killed(place, run, ACCUMULATING, is_fresh=is_fresh(number), die_at_backward=passes):
            yield f"no kill after {passes} backward passes"
            continue
        yield goes_on(place, run, alone, ACCUMULATING, number)
