"""Ordinary tests as tries: run some test files with pytest and count their cases."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from reliability.base import Tries

ROOT = Path(__file__).resolve().parents[1]


def cases(*files: str) -> Tries:
    """Run test files and yield the outcome of each case."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={results}"]
        done = subprocess.run(
            [*command, *files],
            cwd=ROOT,
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        if not results.exists():
            yield f"pytest ended with {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}"
            return
        for case in ElementTree.parse(results).iter("testcase"):
            name = f"{case.get('classname')}::{case.get('name')}"
            if case.find("skipped") is not None:
                continue
            failure = case.find("failure") if case.find("failure") is not None else case.find("error")
            yield None if failure is None else f"{name}: {(failure.get('message') or '')[:300]}"
