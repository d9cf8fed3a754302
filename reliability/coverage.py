"""Coverage-guided fuzzing of files: a mutation that reaches new lines of the package is mutated further.

Needs atheris (`pip install atheris`, Linux only), which is not a dependency; without it the fault is not run.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

from reliability.base import Tries, Unsupported, Workspace, fault
from reliability.children import Child, wait_for_exit

PART = 500
KINDS = 25
"""Number of kinds of files; each part fuzzes one kind."""


@fault(
    "files fuzzed by coverage",
    "mutations that atheris chooses by coverage, in the same kinds of files",
    "read, or rejected with a short error; no traceback, no hang",
    quick=0,
    full=PART * KINDS,
    part=PART,
)
def by_coverage(workspace: Workspace, numbers: range) -> Tries:
    if importlib.util.find_spec("atheris") is None:
        raise Unsupported("atheris is not installed")
    folder, program = workspace.made("coverage"), Path(__file__).with_name("cover.py")
    arguments = [str(workspace.trained_on_text), str(numbers.start // PART), str(len(numbers))]
    seed = str(workspace.rng.randrange(1, 1 << 30))
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(
            [sys.executable, str(program), *arguments, seed],
            cwd=folder,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
    child = Child(process.pid, folder, lambda seconds: wait_for_exit(process, seconds))
    code = workspace.zygote.adopt(child).wait(600 + 3 * len(numbers))
    outcomes = folder / "outcomes"
    yield from map(json.loads, outcomes.read_text().splitlines() if outcomes.exists() else [])
    if code:
        yield f"the fuzzer ended with {code}: {(folder / 'log').read_text(errors='replace')[-1000:]}"
