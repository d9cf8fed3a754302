"""Loss that becomes NaN or infinite, or jumps."""

from __future__ import annotations

import json
from pathlib import Path

from glassformer.runs.folder import RunFolder
from reliability.base import Outcome, Tries, Workspace, fault, is_fresh

FACTORS = {"nan": "the loss is nan", "inf": "the loss is inf", "10": "the loss jumped from about"}


@fault(
    "poisoned loss",
    "NaN, infinity or a tenfold spike in the loss of a step",
    "stopped before the update; the weights on disk are those of the step before; never saved as best",
    quick=5,
    full=50,
    part=25,
)
def poison(workspace: Workspace, numbers: range) -> Tries:
    for number in numbers:
        factor = list(FACTORS)[number % len(FACTORS)]
        step = workspace.rng.randrange(10, 24)
        run = workspace.new("run")
        order = {"factor": factor, "step": step}
        options = ["training.save_every=1", "training.keep_checkpoints=30"]
        command = ["train", workspace.tiny_file, *options, "--run", run, "--quiet"]
        child = workspace.start(*command, is_fresh=is_fresh(number), poison=order)
        yield check(child.wait(), child.errors, run, step, factor)


def check(code: int, errors: str, run: Path, step: int, factor: str) -> Outcome:
    """Check that the training stopped with an error and that no checkpoint has seen the loss."""
    if code != 2 or f"at step {step}" not in errors or FACTORS[factor] not in errors or "Traceback" in errors:
        return f"exit {code} for {factor} at step {step}: {errors[-400:]}"
    folder = RunFolder(run)
    store = folder.checkpoints()
    if folder.status().name != "diverged":
        return f"its status is {folder.status().name}"
    if store.find("latest") != f"step-{step - 1:08d}":
        return f"the newest checkpoint is {store.find('latest')}, and the step was {step}"
    state = json.dumps(store.load(store.find("best")).state)
    if "NaN" in state or "Infinity" in state:
        return "the best checkpoint has seen it"
    for name in ("model", "optimizer"):
        for tensor in store.load(store.find("latest")).tensors[name].values():
            if not tensor.isfinite().all():
                return f"the {name} of the newest checkpoint is not finite"
    return None
