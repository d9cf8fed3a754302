"""SIGTERM and SIGINT, once and repeatedly: the run saves, reports it and can be resumed."""

from __future__ import annotations

import json
import signal

from glassformer.runs.folder import RunFolder
from reliability.base import Tries, Workspace, fault, is_fresh
from reliability.kills import OFTEN, resumes

CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}


@fault(
    "signals",
    "SIGTERM or SIGINT, and then both again",
    "saved; exit 143 or 130; a second signal is harmless; resumed to the bit",
    quick=5,
    full=50,
    part=10,
)
def stop(workspace: Workspace, numbers: range) -> Tries:
    alone = workspace.train(workspace.new("alone"), *OFTEN)
    for number in numbers:
        first = (signal.SIGTERM, signal.SIGINT)[number % 2]
        run = workspace.new("run")
        # Paused inside a step, so that the run cannot end before the signal.
        child = workspace.start(
            "train",
            workspace.tiny_file,
            *OFTEN,
            "--run",
            run,
            "--json",
            is_fresh=is_fresh(number),
            pause_at_step=workspace.rng.randrange(2, 20),
        )
        child.wait_until(lambda child=child: (child.folder / "paused").exists(), "it is paused")
        child.send(first)
        child.wait_for_text(f"{first.name}: finishing this step and saving")
        child.send(signal.SIGINT)
        child.send(signal.SIGTERM)
        (child.folder / "paused").unlink()
        code = child.wait()
        if code != CODES[first] or "Traceback" in child.errors:
            yield f"exit {code} after {first.name}: {child.errors[-300:]}"
            continue
        result = json.loads(child.output)
        steps = result["steps"]
        expected = [f"at step {steps}, after saving a checkpoint", f"glassformer train {run} --resume"]
        missing = [text for text in expected if text not in child.errors]
        if missing or result["ended"] != "signal":
            yield f"ended by {result['ended']}; missing: {missing}: {child.errors[-300:]}"
            continue
        status = RunFolder(run).status()
        if (status.name, status.step) != ("stopped", steps):
            yield f"{status} after {steps} steps"
            continue
        yield resumes(workspace, run, alone, OFTEN, number)
