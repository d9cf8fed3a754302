"""A loss that is no number, or that jumps."""

from __future__ import annotations

import json

from glassformer.runs.folder import RunFolder
from reliability.base import Outcome, Place, Tries, fault, is_fresh

FACTORS = {"nan": "the loss is nan", "inf": "the loss is inf", "10": "the loss jumped from about"}


@fault(
    "poisoned loss",
    "NaN, infinity or a tenfold spike in the loss of a step",
    "stopped before the update; the weights on disk are those from before; never saved as best",
    quick=5,
    full=50,
    part=25,
)
def poison(place: Place, numbers: range) -> Tries:
    for number in numbers:
        factor = list(FACTORS)[number % len(FACTORS)]
        step = place.dice.randrange(10, 24)
        run = place.new("run")
        order = {"factor": factor, "step": step}
        options = ["training.save_every=1", "training.keep_checkpoints=30"]
        command = ["train", place.tiny_file, *options, "--run", run, "--quiet"]
        child = place.start(*command, is_fresh=is_fresh(number), poison=order)
        yield check(child.wait(), child.errors, run, step, factor)


def check(code: int, said: str, run: object, step: int, factor: str) -> Outcome:
    if code != 2 or f"at step {step}" not in said or FACTORS[factor] not in said or "Traceback" in said:
        return f"exit {code} for {factor} at step {step}: {said[-400:]}"
    folder = RunFolder(run)  # type: ignore[arg-type]
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
