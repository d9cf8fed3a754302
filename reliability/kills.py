"""SIGKILL at random moments, before each file operation of a save, several times, and at delicate moments."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glassformer.runs.folder import RunFolder
from glassformer.runs.verify import compare_runs
from reliability.base import Outcome, Tries, Workspace, fault, is_fresh

IDENTICAL = (
    "resumed by the same command; weights, optimizer, random state, order of examples, events and metrics"
    " equal those of the uninterrupted run to the bit"
)
OFTEN = ["training.save_every=3", "training.validate_every=6"]
ACCUMULATING = ["training.gradient_accumulation=4", "training.batch_size=4", "training.save_every=2"]


def differences(left: Path, right: Path) -> Outcome:
    """Check that two runs are equal to the bit."""
    compared = compare_runs(RunFolder(left), RunFolder(right))
    different = [name for name, item in compared.items() if not item["is_equal"]]
    return f"{right} differs in {', '.join(different)}" if different else None


def killed(workspace: Workspace, run: Path, options: Sequence[str], **order: Any) -> bool:
    """Train with injected faults; return True if SIGKILL ended the training."""
    child = workspace.start(
        "train", workspace.tiny_file, *options, "--run", run, "--resume", "--quiet", **order
    )
    return child.wait() == -signal.SIGKILL


def resumes(workspace: Workspace, run: Path, alone: Path, options: Sequence[str], number: int) -> Outcome:
    """Resume with the same command, and compare with the uninterrupted run."""
    workspace.train(run, *options, is_fresh=is_fresh(number))
    return differences(alone, run)


@fault("kill at random", "SIGKILL at a random moment", IDENTICAL, quick=20, full=200, part=10)
def at_random(workspace: Workspace, numbers: range) -> Tries:
    alone = workspace.train(workspace.new("alone"), *OFTEN)
    for number in numbers:
        run = workspace.new("run")
        while not killed_at_random(workspace, run, number):
            run = workspace.new("run")
        yield resumes(workspace, run, alone, OFTEN, number)


def killed_at_random(workspace: Workspace, run: Path, number: int) -> bool:
    """Kill a training at a random moment; return False if it had already finished."""
    command = ["train", workspace.tiny_file, *OFTEN, "--run", run, "--resume", "--quiet"]
    child = workspace.start(*command, is_fresh=is_fresh(number))
    step = workspace.rng.randrange(1, 24)
    child.wait_until(lambda: has_step(run, step), f"it logs step {step}")
    child.poll(workspace.rng.random() * 0.03 + 1e-4)
    child.kill()
    return child.wait() == -signal.SIGKILL


def has_step(run: Path, step: int) -> bool:
    """Return True if a run has logged a step."""
    events = run / "events.jsonl"
    return events.exists() and f'"step": {step},' in events.read_text()


IN_ONE_SAVE = 24
"""Upper limit of the number of operations of one save."""


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
def in_a_save(workspace: Workspace, numbers: range) -> Tries:
    alone, listing = workspace.train(workspace.new("alone"), *OFTEN), workspace.new("listing")
    below = {"below": f"{listing}/checkpoints"}
    child = workspace.start(
        "train", workspace.tiny_file, *OFTEN, "--run", listing, "--resume", "--quiet", operations=below
    )
    assert child.wait() == 0, child.errors
    names = (child.folder / "operations").read_text().splitlines()
    # From the fourth save on, each save moves `latest` and deletes an older checkpoint.
    saves = [number for number, name in enumerate(names, 1) if re.search(r"mkdir .*saving-step", name)]
    one = range(saves[3], saves[4])
    assert len(one) <= IN_ONE_SAVE, f"a save has {len(one)} operations"
    points = [*one, *(number for number in range(1, len(names) + 1) if number not in one)]
    for number, point in zip(numbers, points[numbers.start : numbers.stop], strict=False):
        run = workspace.new("run")
        order = {"below": f"{run}/checkpoints", "die_at": point}
        if not killed(workspace, run, OFTEN, is_fresh=is_fresh(number), operations=order):
            yield f"operation {point} ({names[point - 1]}) did not happen"
            continue
        outcome = resumes(workspace, run, alone, OFTEN, number)
        yield f"killed before '{names[point - 1]}': {outcome}" if outcome else None


@fault("five kills", "five SIGKILLs in one run", IDENTICAL, quick=3, full=20, part=3)
def five(workspace: Workspace, numbers: range) -> Tries:
    alone = workspace.train(workspace.new("alone"), *OFTEN)
    for number in numbers:
        run = workspace.new("run")
        for kill, step in enumerate(sorted(workspace.rng.sample(range(2, 24), 5))):
            order = {"kind": "step", "step": step}
            if not killed(workspace, run, OFTEN, is_fresh=is_fresh(number) and kill == 2, die_at_event=order):
                yield f"no kill at step {step}"
        yield resumes(workspace, run, alone, OFTEN, number)


MOMENTS = [{"kind": kind, "step": step} for step in (8, 16, 24) for kind in ("step", "validation")] + [
    {"kind": "step", "step": 9},
    {"kind": "step", "step": 17},
    {"kind": "end", "step": 24},
]


@fault("kill at an epoch's end", "SIGKILL around the end of an epoch", IDENTICAL, quick=3, full=20)
def at_an_epochs_end(workspace: Workspace, numbers: range) -> Tries:
    alone = workspace.train(workspace.new("alone"))
    for number in numbers:
        run, moment = workspace.new("run"), MOMENTS[number % len(MOMENTS)]
        if not killed(workspace, run, [], is_fresh=is_fresh(number), die_at_event=moment):
            yield f"no kill at {moment}"
            continue
        yield resumes(workspace, run, alone, [], number)


@fault(
    "kill inside accumulation",
    "SIGKILL between the backward passes of one step",
    IDENTICAL,
    quick=3,
    full=20,
)
def inside_accumulation(workspace: Workspace, numbers: range) -> Tries:
    alone = workspace.train(workspace.new("alone"), *ACCUMULATING)
    for number in numbers:
        run = workspace.new("run")
        passes = {"count": 4 * workspace.rng.randrange(1, 22) + workspace.rng.choice([1, 2, 3])}
        if not killed(workspace, run, ACCUMULATING, is_fresh=is_fresh(number), die_at_backward=passes):
            yield f"no kill after {passes} backward passes"
            continue
        yield resumes(workspace, run, alone, ACCUMULATING, number)
