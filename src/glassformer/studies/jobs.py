"""The runs of a study, each a `glassformer train` of its own: finished ones are kept, stopped ones resumed.

It knows runs and processes, nothing of tables.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any

import yaml

from glassformer.core.errors import UserError, user_error
from glassformer.runs.experiment import ExperimentConfig, resolve
from glassformer.runs.folder import RunFolder
from glassformer.training.context import StopSignals

Say = Callable[[str], None]
Results = Mapping[str, Any]

POLL_SECONDS = 0.5
SILENT_SECONDS = 30.0
"""After so long without an end, a run says how far it is."""


@dataclass(frozen=True)
class Job:
    name: str
    """As a person is told."""
    config: ExperimentConfig
    path: Path

    def results(self) -> dict[str, Any]:
        """What its end measured; empty while there is no end."""
        folder = RunFolder(self.path)
        return folder.results() if folder.exists() else {}


def key_of(config: ExperimentConfig, *others: str) -> str:
    """Of all that decides what a run gives. In its name it keeps runs with other options apart."""
    return hashlib.sha256(json.dumps([config.fingerprint(), *others]).encode()).hexdigest()[:8]


def run_path(folder: Path, name: str, config: ExperimentConfig, key: str) -> Path:
    """A run's place by its name and its key, or where the same run was begun before an option was added."""
    path = folder / f"{name}-{key}"
    if RunFolder(path).exists():
        return path
    earlier = (other for other in sorted(folder.glob(f"{escape(name)}-*")) if _is_of(other, config))
    return next(earlier, path)


def _is_of(path: Path, config: ExperimentConfig) -> bool:
    try:
        return RunFolder(path).exists() and resolve(str(path)).identity() == config.identity()
    except UserError:  # of another version, or with kinds of a plug-in that is not there
        return False


def threads_for(workers: int) -> int:
    """What the user has set, or an equal share of the cores."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdecimal() and int(asked) else max(1, (os.cpu_count() or 1) // workers)


def run_all(
    jobs: Sequence[Job], *, workers: int, threads: int, describe: Callable[[Results], str], say: Say
) -> None:
    """`describe` says in a few words what a run has reached. A signal goes on to the runs, which save."""
    done = 0

    def run(job: Job) -> None:
        nonlocal done
        if signals.is_set():
            return
        results = job.results() or _train(job, threads, say, signals)
        if results:
            done += 1
            say(f"{done}/{len(jobs)}  {job.name}: {describe(results)}")

    with StopSignals(say) as signals, ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(run, jobs):
            pass
    if signals.is_set():
        raise SystemExit(signals.exit_code)


def _train(job: Job, threads: int, say: Say, signals: StopSignals) -> dict[str, Any]:
    """What `train --json` prints; nothing if it was stopped."""
    job.path.mkdir(parents=True, exist_ok=True)
    file = job.path / "asked.yaml"
    file.write_text(yaml.safe_dump(job.config.dump(), sort_keys=False), encoding="utf-8")
    command = [sys.executable, "-m", "glassformer", "train", str(file), "--run", str(job.path), "--resume"]
    child = subprocess.Popen(
        [*command, "--quiet", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
    )
    output, errors = _wait(child, job, say, signals)
    if signals.is_set():
        return {}
    if child.returncode:
        raise user_error(
            f"training failed: {errors.strip()[-300:]}", path=str(job.path), hint=" ".join(command[2:])
        )
    return dict(json.loads(output))


def _wait(child: subprocess.Popen[str], job: Job, say: Say, signals: StopSignals) -> tuple[str, str]:
    last_said = time.monotonic()
    while True:
        try:
            return child.communicate(timeout=POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if signals.is_set():
                child.terminate()
                return child.communicate()
        if time.monotonic() - last_said > SILENT_SECONDS:
            last_said = time.monotonic()
            status = RunFolder(job.path).status()
            if status.total_steps:
                say(f"{job.name}: step {status.step:,} of {status.total_steps:,}")
