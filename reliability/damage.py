"""Damaged files: a flipped bit or a cut in every file of a run folder."""

from __future__ import annotations

import random
import shutil
from functools import partial
from pathlib import Path

import torch

from glassformer.core.errors import UserError
from glassformer.doctor.report import run_checks
from glassformer.doctor.runner import RUN_CHECKS
from glassformer.runs.folder import RunFolder
from glassformer.runs.run import Run
from reliability.base import Outcome, Tries, Workspace, fault
from reliability.kills import differences

NO_DATA = {"lock"}
"""Files without data: the lock holds the pid of the training process, which only a message shows."""

EVERY = 20
"""Every twentieth damaged run is also resumed."""


@fault(
    "damaged files",
    "a bit flipped in any file of a run folder, or its end cut off",
    "`doctor` names the file; the model is rejected or unchanged; a resumed run reports it, uses the last"
    " good checkpoint and ends like the undamaged run, or is rejected",
    quick=200,
    full=5000,
    part=250,
)
def damage(workspace: Workspace, numbers: range) -> Tries:
    targets = []
    for whole in (workspace.trained, workspace.trained_on_text):
        run = workspace.new("damaged")
        shutil.copytree(whole, run)
        files = (p for p in run.rglob("*") if p.is_file() and p.name not in NO_DATA and p.stat().st_size)
        targets += [(whole, run, weights_of(run), file) for file in sorted(files)]
    random.Random(0).shuffle(targets)  # the same order in every part, so that each file is chosen
    for number in numbers:
        whole, run, weights, file = targets[number % len(targets)]
        data = file.read_bytes()
        damaged, description = damage_bytes(workspace, data)
        file.write_bytes(damaged)
        outcome = check_detected(run, file) or check_model(run, weights)
        if outcome is None and number % EVERY == 0:
            outcome = check_resumed(workspace, whole, run, file)
        yield f"{file.relative_to(run)}, {description}: {outcome}" if outcome else None
        file.write_bytes(data)


def damage_bytes(workspace: Workspace, data: bytes) -> tuple[bytes, str]:
    """Flip a random bit or cut the data, and describe the damage."""
    if workspace.rng.random() < 0.25:
        length = workspace.rng.randrange(len(data))
        return data[:length], f"cut to {length} of {len(data)} bytes"
    position, bit = workspace.rng.randrange(len(data)), workspace.rng.randrange(8)
    damaged = bytearray(data)
    damaged[position] ^= 1 << bit
    return bytes(damaged), f"bit {bit} of byte {position}"


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    return Run(run).model.state_dict()


def check_detected(run: Path, file: Path) -> Outcome:
    """Check that `doctor` names the damaged file."""
    folder = RunFolder(run)
    checks = run_checks({name: partial(check, folder) for name, check in RUN_CHECKS.items()})
    details = " ".join(check.measurement.detail for check in checks if not check.passed)
    if str(file) not in details and str(file.parent) not in details:
        return f"not detected; the checks report {details!r}"
    return None


def check_model(run: Path, weights: dict[str, torch.Tensor]) -> Outcome:
    """Check that a damaged run is rejected or loads the same weights."""
    try:
        loaded = Run(run)
    except UserError:
        return None
    found = loaded.model.state_dict()
    if found.keys() != weights.keys() or not all(torch.equal(found[name], weights[name]) for name in found):
        return "another model was loaded without an error"
    return None


def check_resumed(workspace: Workspace, whole: Path, run: Path, file: Path) -> Outcome:
    """Check that a resumed copy ends like the undamaged run, or is rejected with the path."""
    copy = workspace.new("resumed")
    shutil.copytree(run, copy)
    for name in ("results.json", "status.json"):  # a killed run has neither
        if name != file.name:
            (copy / name).unlink()
    child = workspace.start("train", copy, "--resume")
    code = child.wait()
    if code == 2:
        return None if str(copy) in child.errors else f"rejected without a path: {child.errors}"
    if code != 0:
        return f"exit {code}: {child.errors[-300:]}"
    outcome = differences(whole, copy)
    if outcome and "events.jsonl" not in file.name:
        return outcome
    used = (whole / "checkpoints" / "latest").read_text().split()[0]
    is_reported = str(copy / file.relative_to(run).parent) in child.errors
    return None if is_reported or file.parent.name != used else "resumed without a message"
