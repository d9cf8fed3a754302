"""Bits flipped and files cut, in every file of a run's folder."""

from __future__ import annotations

import random
import shutil
from functools import partial
from pathlib import Path

import torch

from glassformer.core.errors import UserError
from glassformer.doctor.checks import run_checks
from glassformer.doctor.examination import RUN_CHECKS
from glassformer.runs.folder import RunFolder
from glassformer.runs.run import Run
from reliability.base import Outcome, Place, Tries, fault
from reliability.kills import differences

NO_DATA = {"lock"}
"""Holds the number of a process that trains, and nothing that is ever read again."""

EVERY = 20
"""One in so many damaged runs is also resumed."""


@fault(
    "damaged files",
    "a bit flipped in, or the end cut off, any file of a run's folder",
    "`doctor` names the file; the model is refused, or is the very same; a resumed run says so, uses the last"
    " good checkpoint and ends as the undamaged one, or is refused",
    quick=200,
    full=5000,
    part=250,
)
def damage(place: Place, numbers: range) -> Tries:
    targets = []
    for whole in (place.trained, place.trained_on_text):
        run = place.new("damaged")
        shutil.copytree(whole, run)
        files = (p for p in run.rglob("*") if p.is_file() and p.name not in NO_DATA and p.stat().st_size)
        targets += [(whole, run, weights_of(run), file) for file in sorted(files)]
    random.Random(0).shuffle(targets)  # the same order in every part, so that all files have their turn
    for number in numbers:
        whole, run, weights, file = targets[number % len(targets)]
        data = file.read_bytes()
        harmed, what = harm(place, data)
        file.write_bytes(harmed)
        outcome = check_seen(run, file) or check_model(run, weights)
        if outcome is None and number % EVERY == 0:
            outcome = check_resumed(place, whole, run, file)
        yield f"{file.relative_to(run)}, {what}: {outcome}" if outcome else None
        file.write_bytes(data)


def harm(place: Place, data: bytes) -> tuple[bytes, str]:
    if place.dice.random() < 0.25:
        length = place.dice.randrange(len(data))
        return data[:length], f"cut to {length} of {len(data)} bytes"
    position, bit = place.dice.randrange(len(data)), place.dice.randrange(8)
    harmed = bytearray(data)
    harmed[position] ^= 1 << bit
    return bytes(harmed), f"bit {bit} of byte {position}"


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    return Run(run).model.state_dict()


def check_seen(run: Path, file: Path) -> Outcome:
    folder = RunFolder(run)
    checks = run_checks({name: partial(check, folder) for name, check in RUN_CHECKS.items()})
    details = " ".join(check.measurement.detail for check in checks if not check.passed)
    if str(file) not in details and str(file.parent) not in details:
        return f"not seen; the checks say {details!r}"
    return None


def check_model(run: Path, weights: dict[str, torch.Tensor]) -> Outcome:
    """A model that loads must be the right one: weights, config and task."""
    try:
        loaded = Run(run)
    except UserError:
        return None
    found = loaded.model.state_dict()
    if found.keys() != weights.keys() or not all(torch.equal(found[name], weights[name]) for name in found):
        return "another model was loaded without a word"
    return None


def check_resumed(place: Place, whole: Path, run: Path, file: Path) -> Outcome:
    copy = place.new("resumed")
    shutil.copytree(run, copy)
    for name in ("results.json", "status.json"):  # as a run that was killed has none
        if name != file.name:
            (copy / name).unlink()
    child = place.start("train", copy, "--resume")
    code = child.wait()
    if code == 2:
        return None if str(copy) in child.errors else f"refused without a place: {child.errors}"
    if code != 0:
        return f"exit {code}: {child.errors[-300:]}"
    outcome = differences(whole, copy)
    if outcome and "events.jsonl" not in file.name:
        return outcome
    used = (whole / "checkpoints" / "latest").read_text().split()[0]
    is_told = str(copy / file.relative_to(run).parent) in child.errors
    return None if is_told or file.parent.name != used else "resumed without a word"
