"""Files fuzzed by coverage: a mutation that reaches new lines of the package is mutated further.

Needs atheris, which is no dependency of ours (`pip install atheris`, for Linux): else the row says so.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

from reliability.base import NotHere, Place, Tries, fault
from reliability.children import Child, wait_for_exit

AT_A_STRETCH = 500
KINDS = 23
"""Of files; each has its stretch in turn."""


@fault(
    "files fuzzed by coverage",
    "mutations that atheris chooses by the lines that they reach, in the same kinds of files",
    "read, or refused in a few words; never a traceback, never a hang",
    quick=0,
    full=AT_A_STRETCH * KINDS,
    part=AT_A_STRETCH,
)
def by_coverage(place: Place, numbers: range) -> Tries:
    if importlib.util.find_spec("atheris") is None:
        raise NotHere("atheris is not installed")
    folder, program = place.made("coverage"), Path(__file__).with_name("cover.py")
    arguments = [str(place.trained_on_text), str(numbers.start // AT_A_STRETCH), str(len(numbers))]
    seed = str(place.dice.randrange(1, 1 << 30))
    with open(folder / "said", "w") as said:
        process = subprocess.Popen(
            [sys.executable, str(program), *arguments, seed],
            cwd=folder,
            stdout=said,
            stderr=said,
            stdin=subprocess.DEVNULL,
        )
    child = Child(process.pid, folder, lambda seconds: wait_for_exit(process, seconds))
    code = place.zygote.adopt(child).wait(600 + 3 * len(numbers))
    outcomes = folder / "outcomes"
    yield from map(json.loads, outcomes.read_text().splitlines() if outcomes.exists() else [])
    if code:
        yield f"it ended with {code}: {(folder / 'said').read_text(errors='replace')[-1000:]}"
