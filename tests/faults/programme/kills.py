"""SIGKILL: at random moments, before each operation of a save, many times, and where it hurts most."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from pathlib import Path

from glassformer.proofs import compare_runs
from glassformer.runs import RunFolder
from programme.base import Outcome, Place, Tries, fault

IDENTICAL = (
    "resumed by the same command; weights, optimizer, random state, order of examples, events and metrics are"
    " those of the uninterrupted run, to the bit"
)
OFTEN = ["training.save_every=3", "training.validate_every=6"]
ACCUMULATING = ["training.accumulation=4", "training.batch_size=4", "training.save_every=2"]


def differences(left: Path, right: Path) -> Outcome:
    compared = compare_runs(RunFolder(left), RunFolder(right))
    different = [name for name, item in compared.items() if not item["is_equal"]]
    return f"{right} differs in {', '.join(different)}" if different else None


def killed(place: Place, run: Path, options: Sequence[str], **order: object) -> bool:
    """Whether a training came to its end by SIGKILL."""
    child = place.start("train", place.tiny_file, *options, "--run", run, "--resume", "--quiet", **order)
    return child.wait() == -signal.SIGKILL


@fault("kill at random", "SIGKILL at a random moment", IDENTICAL, quick=20, full=200, in_tests=5)
def at_random(place: Place, count: int) -> Tries:
    alone = place.train(place.new("alone"), *OFTEN)
    done = 0
    while done < count:
        run = place.new("run")
        command = ["train", place.tiny_file, *OFTEN, "--run", run, "--resume", "--quiet"]
        child = place.start(*command)
        last = place.dice.randrange(1, 24)
        child.wait_until(lambda run=run, last=last: has_step(run, last), "there is a step")
        child.poll(place.dice.random() * 0.03 + 1e-4)
        child.kill()
        if child.wait() != -signal.SIGKILL:
            continue  # it was done before
        done += 1
        place.train(run, *OFTEN)
        yield differences(alone, run)


def has_step(run: Path, step: int) -> bool:
    record = run / "events.jsonl"
    return record.exists() and f'"step": {step},' in record.read_text()


@fault(
    "kill in a save",
    "SIGKILL before each operation of saves that replace others: mkdir, open, fsync, rename, unlink",
    IDENTICAL,
    quick=30,
    full=200,
    in_tests=8,
    unit="operations",
)
def in_a_save(place: Place, count: int) -> Tries:
    alone, listing = place.train(place.new("alone"), *OFTEN), place.new("listing")
    below = {"below": f"{listing}/checkpoints"}
    child = place.start(
        "train", place.tiny_file, *OFTEN, "--run", listing, "--resume", "--quiet", operations=below
    )
    assert child.wait() == 0, child.errors
    names = (child.folder / "operations").read_text().splitlines()
    # From the fourth save on, each one moves `latest` and removes an older one.
    saves = [number for number, name in enumerate(names, 1) if re.search(r"mkdir .*saving-step", name)]
    wanted = range(saves[3], saves[5] if count > 30 and len(saves) > 5 else saves[4])
    chosen = sorted(place.dice.sample(wanted, min(count, len(wanted))))
    for number in chosen:
        run = place.new("run")
        order = {"below": f"{run}/checkpoints", "die_at": number}
        if not killed(place, run, OFTEN, operations=order):
            yield f"operation {number} ({names[number - 1]}) did not come"
            continue
        place.train(run, *OFTEN)
        outcome = differences(alone, run)
        yield f"killed before '{names[number - 1]}': {outcome}" if outcome else None


@fault("five kills", "five SIGKILLs in one run", IDENTICAL, quick=3, full=20, in_tests=1)
def five(place: Place, count: int) -> Tries:
    alone = place.train(place.new("alone"), *OFTEN)
    for _ in range(count):
        run = place.new("run")
        for step in sorted(place.dice.sample(range(2, 24), 5)):
            if not killed(place, run, OFTEN, die_at_event={"kind": "step", "step": step}):
                yield f"no kill at step {step}"
        place.train(run, *OFTEN)
        yield differences(alone, run)


@fault("kill at an epoch's end", "SIGKILL around the end of an epoch", IDENTICAL, quick=3, full=20)
def at_an_epochs_end(place: Place, count: int) -> Tries:
    alone = place.train(place.new("alone"))
    moments = [{"kind": kind, "step": step} for step in (8, 16, 24) for kind in ("step", "validation")] + [
        {"kind": "step", "step": 9},
        {"kind": "step", "step": 17},
        {"kind": "end", "step": 24},
    ]
    for number in range(count):
        run = place.new("run")
        if not killed(place, run, [], die_at_event=moments[number % len(moments)]):
            yield f"no kill at {moments[number % len(moments)]}"
            continue
        place.train(run)
        yield differences(alone, run)


@fault(
    "kill inside accumulation",
    "SIGKILL between the backward passes of one step",
    IDENTICAL,
    quick=3,
    full=20,
)
def inside_accumulation(place: Place, count: int) -> Tries:
    alone = place.train(place.new("alone"), *ACCUMULATING)
    for _ in range(count):
        run = place.new("run")
        passes = 4 * place.dice.randrange(1, 22) + place.dice.choice([1, 2, 3])
        if not killed(place, run, ACCUMULATING, die_at_backward={"count": passes}):
            yield f"no kill after {passes} backward passes"
            continue
        place.train(run, *ACCUMULATING)
        yield differences(alone, run)
