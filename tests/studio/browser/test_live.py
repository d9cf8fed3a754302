"""Page of a run that trains in its own process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from glassformer.core.config import dump_yaml
from glassformer.runs.folder import RunFolder

from ...conftest import TINY
from .conftest import PATIENCE_SECONDS, OpenPage, slowness

ENDLESS = ["training.max_epochs=100000", "training.log_every=40", "training.validate_every=100000"]


@pytest.fixture
def trainer(runs: Path, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    config = tmp_path / "tiny.yaml"
    config.write_text(dump_yaml(TINY), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "glassformer",
        "train",
        str(config),
        "--run",
        str(runs / "live"),
        *ENDLESS,
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    yield process
    process.kill()
    process.wait()
    RunFolder(runs / "live").remove()


def test_points_appear_live_and_a_killed_trainer_is_a_crash(
    open_page: OpenPage, runs: Path, trainer: subprocess.Popen[bytes]
) -> None:
    record = runs / "live" / "events.jsonl"
    _wait(lambda: record.exists() and b'"step"' in record.read_bytes())
    page = open_page("#/run/live")
    page.see(".status-running", "running")
    shown = "() => Number(document.querySelector('.chart')?.dataset.points ?? 0)"
    page.until(shown)
    delays = []
    for _ in range(3):
        written = record.read_bytes().count(b'"event": "step"')
        start = time.monotonic()
        page.until(f"() => Number(document.querySelector('.chart').dataset.points ?? 0) >= {written}")
        delays.append(time.monotonic() - start)
    assert min(delays) < 2 * slowness(), delays
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    page.see(".status-crashed", "crashed")


def test_a_run_is_started_from_the_form_and_stopped(open_page: OpenPage, runs: Path) -> None:
    values = {
        "task.length": 5,
        "task.train_examples": 64,
        "task.validation_examples": 8,
        "task.test_examples": 8,
        "training.batch_size": 8,
        "training.max_epochs": 100000,
        "training.max_steps": None,
        "training.threads": 1,
    }
    page = open_page()
    page.open(f"#/new?{urlencode({'source': 'copy', 'set': json.dumps(values)})}")
    page.see(".form-foot .command", "task.length=5")
    page.page.get_by_role("button", name="Start training").click()
    name = page.until("() => /^#.run.([^?]+)/.exec(location.hash)?.[1]")
    folder = RunFolder(runs / name)
    try:
        page.see(".status-running", "running")
        page.until("() => Number(document.querySelector('.chart')?.dataset.points ?? 0)")
        page.page.get_by_role("button", name="Stop").click()
        page.see(".status-stopped", "stopped")
        assert folder.checkpoints().names()  # it saved before it stopped
    finally:
        process = folder.status().pid
        if folder.is_locked() and process:
            os.kill(process, signal.SIGKILL)
        _wait(lambda: not folder.is_locked())
        folder.remove()


def _wait(condition: object) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.05)
