"""Probes: short scripts in a child process that test the processor, with their results cached in a file.

A processor may list an instruction and still stop the process that uses it. So new kernels run in a child
process first.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from glassformer.core.system import cpu_name
from glassformer.data.token_store import cache_folder
from glassformer.storage.files import atomic_write, json_bytes

PROBE_SECONDS = 120
"""Time limit of a probe in seconds."""


def run_child(script: str, *arguments: str, **variables: str) -> tuple[str, str | None]:
    """Run a Python script in a child process. Return its output, and None or the reason of its failure."""
    command = [sys.executable, "-c", script, *arguments]
    try:
        child = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=False,
            env={**os.environ, **variables},
        )
    except subprocess.TimeoutExpired:
        return "", f"no result within {PROBE_SECONDS} seconds"
    if child.returncode == 0:
        return child.stdout, None
    if child.returncode < 0:
        return "", f"the test was stopped by signal {-child.returncode}"
    lines = child.stderr.strip().splitlines()
    return "", lines[-1] if lines else f"exit code {child.returncode}"


def cached(name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what `measure` returned on this processor, from the cache file `name` or by a call."""
    path, key = cache_folder() / f"{name}.json", processor_key()
    stored = _read_cache(path)
    found = stored.get(key)
    if isinstance(found, dict):
        return found
    found = measure()
    with suppress(OSError):  # without a cache, the next process measures again
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, json_bytes({**stored, key: found}))
    return found


def processor_key() -> str:
    """Return processor, its instructions, the version of PyTorch and variables that limit instructions."""
    lines: list[str] = []
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(errors="replace")
        lines = [line for line in text.splitlines() if line.startswith(("flags", "Features"))][:1]
    flags = hashlib.sha256("".join(lines).encode()).hexdigest()[:12]
    limits = [f"{name}={os.environ[name]}" for name in ("ONEDNN_MAX_CPU_ISA",) if name in os.environ]
    return ", ".join([cpu_name(), f"flags {flags}", f"torch {torch.__version__}", *limits])


def _read_cache(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
