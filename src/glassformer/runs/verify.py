"""Verify exact resume: an interrupted run must equal an uninterrupted one to the bit.

The same config is trained twice in child processes. One run is not interrupted. The other is killed with
SIGKILL several times, at random moments and during saves, and resumed each time. Then the two are compared.
"""

from __future__ import annotations

import hashlib
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glassformer.core.config import dump_yaml
from glassformer.core.errors import user_error
from glassformer.runs.experiment import ExperimentConfig
from glassformer.runs.folder import RunFolder
from glassformer.storage.files import file_sha256
from glassformer.training.checkpoints import SAVING, STATE
from glassformer.training.events import CLOCK_FIELDS

CHILD_SECONDS = 1800
"""Maximum time for one training in a child process, in seconds."""

MAX_DELAY_SECONDS = 0.2
"""Longest time between a checkpoint and a kill, if the steps between two checkpoints take longer."""

SAVE_SECONDS = 0.004
"""Longest time between the start of a save and a kill."""


@dataclass
class Proof:
    """Result of `prove_resume`: number of kills, and the comparison of the two runs."""

    kills: int = 0
    kills_during_save: int = 0
    compared: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Result of `compare_runs`: the SHA-256 digests of both runs by name, and if they are equal."""

    @property
    def passed(self) -> bool:
        """True if digests were compared and all of them are equal."""
        return bool(self.compared) and all(item["is_equal"] for item in self.compared.values())


def prove_resume(
    config: ExperimentConfig,
    folder: Path,
    *,
    kills: int,
    steps: int,
    seed: int = 0,
    plugins: tuple[Path, ...] = (),
    report: Callable[[str], None] = lambda text: None,
) -> Proof:
    """Train `steps` steps twice, once without interruption and once with `kills` kills, and compare the runs.

    The runs are `folder/uninterrupted` and `folder/interrupted`. `seed` determines when kills happen.
    `report` receives one line of text per event.
    """
    every = max(1, steps // (2 * kills + 2))
    config = config.with_overrides(
        {
            "training": {
                "max_steps": steps,
                "max_epochs": None,
                "max_minutes": None,
                "save_every": every,
                "validate_every": max(every, steps // 5),
                "log_every": 1,
                "stopping": {"target": None, "patience": None},
            }
        }
    )
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "proof.yaml"
    file.write_text(dump_yaml(config.dump()), encoding="utf-8")
    command = [sys.executable, "-m", "glassformer", "train", str(file), "--quiet", "--json", "--resume"]
    command += [argument for plugin in plugins for argument in ("--plugin", str(plugin))]

    def start(run: RunFolder) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen([*command, "--run", str(run.path)], stdout=pipe, stderr=pipe, text=True)

    report(f"training {steps} steps without interruption")
    uninterrupted = RunFolder(folder / "uninterrupted")
    _finish(start(uninterrupted), uninterrupted)
    between_saves = uninterrupted.results()["seconds"] * every / steps
    interrupted = RunFolder(folder / "interrupted")
    proof = Proof()
    dice = random.Random(seed)
    while proof.kills < kills:
        is_during_save = proof.kills % 2 == 1
        delay = dice.random() * min(SAVE_SECONDS if is_during_save else MAX_DELAY_SECONDS, between_saves)
        if not _kill(start(interrupted), interrupted, is_during_save, delay):
            break
        proof.kills += 1
        proof.kills_during_save += is_during_save
        step = interrupted.checkpoints().pointed("latest")
        during_save = " during a save" if is_during_save else ""
        report(f"kill {proof.kills}/{kills}{during_save}; resuming from {step}")
    _finish(start(interrupted), interrupted)
    proof.compared = compare_runs(uninterrupted, interrupted)
    return proof


def _finish(child: subprocess.Popen[str], folder: RunFolder) -> None:
    _, errors = child.communicate(timeout=CHILD_SECONDS)
    if child.returncode:
        raise user_error(
            f"training ended with exit code {child.returncode}: {errors.strip()[-300:]}",
            path=str(folder.path),
            hint="run glassformer train with the same options to see the whole error",
        )


def _kill(child: subprocess.Popen[str], folder: RunFolder, is_during_save: bool, delay: float) -> bool:
    """Kill the child process `delay` seconds after its next checkpoint, or after the following save begins.

    Return False if the child process ended before the kill.
    """
    store = folder.checkpoints()
    before = store.pointed("latest")
    while store.pointed("latest") == before:
        if child.poll() is not None:
            child.communicate()
            return False
        time.sleep(0.001)
    if is_during_save:
        while not any(store.folder.glob(f"{SAVING}*")) and child.poll() is None:
            pass
    time.sleep(delay)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    return child.returncode == -signal.SIGKILL


def compare_runs(left: RunFolder, right: RunFolder) -> dict[str, dict[str, Any]]:
    """Return the SHA-256 digests of state, order of examples, events and metrics of two runs, by name."""
    digests = [_digests(left), _digests(right)]
    return {
        name: {
            "uninterrupted": digests[0].get(name),
            "interrupted": digests[1].get(name),
            "is_equal": digests[0].get(name) == digests[1].get(name),
        }
        for name in {**digests[0], **digests[1]}
    }


def _digests(folder: RunFolder) -> dict[str, str]:
    """Return SHA-256 digests of weights, training state, order of examples, event log and metrics."""
    store = folder.checkpoints()
    newest = store.folder / (store.pointed("latest") or "")
    digests = {path.name: file_sha256(path) for path in sorted(newest.glob("*.safetensors"))}
    state = json.loads((newest / STATE).read_bytes())["training"]
    digests["order of examples"] = state["order"]
    digests["small state"] = _digest(without_clocks(state))
    events = [without_clocks(event) for event in folder.events]
    digests[f"{len(events)} events"] = _digest(events)
    digests["metrics"] = _digest(folder.results().get("metrics"))
    return digests


def without_clocks(value: Any) -> Any:
    """Return a copy of a mapping without time fields, because they differ between equal runs."""
    if isinstance(value, Mapping):
        return {key: without_clocks(item) for key, item in value.items() if key not in CLOCK_FIELDS}
    return value


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
