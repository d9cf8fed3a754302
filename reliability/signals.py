"""SIGTERM and SIGINT, once and again: saved, said, and gone on from."""

from __future__ import annotations

import json
import signal

from glassformer.runs.folder import RunFolder
from reliability.base import Place, Tries, fault, is_fresh
from reliability.kills import OFTEN, goes_on

CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}


@fault(
    "signals",
    "SIGTERM or SIGINT, and then both again",
    "saved; exit 143 or 130; a second signal is harmless; resumed to the bit",
    quick=5,
    full=50,
    part=10,
)
def stop(place: Place, numbers: range) -> Tries:
    alone = place.train(place.new("alone"), *OFTEN)
    for number in numbers:
        first = (signal.SIGTERM, signal.SIGINT)[number % 2]
        run = place.new("run")
        # Held for a moment inside a step, so that it cannot be over before the signal comes.
        child = place.start(
            "train",
            place.tiny_file,
            *OFTEN,
            "--run",
            run,
            "--json",
            is_fresh=is_fresh(number),
            pause_at_step=place.dice.randrange(2, 20),
        )
        child.wait_until(lambda child=child: (child.folder / "paused").exists(), "it is paused")
        child.send(first)
        child.wait_for_words(f"{first.name}: finishing this step and saving")
        child.send(signal.SIGINT)
        child.send(signal.SIGTERM)
        (child.folder / "paused").unlink()
        code = child.wait()
        if code != CODES[first] or "Traceback" in child.errors:
            yield f"exit {code} after {first.name}: {child.errors[-300:]}"
            continue
        result = json.loads(child.output)
        steps = result["steps"]
        words = [f"stopped at step {steps} and saved", f"glassformer train {run} --resume"]
        missing = [text for text in words if text not in child.errors]
        if missing or result["ended"] != "signal":
            yield f"ended by {result['ended']}; nothing is said of {missing}: {child.errors[-300:]}"
            continue
        status = RunFolder(run).status()
        if (status.name, status.step) != ("stopped", steps):
            yield f"{status} after {steps} steps"
            continue
        yield goes_on(place, run, alone, OFTEN, number)
