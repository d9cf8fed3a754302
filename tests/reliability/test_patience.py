"""Timeouts of the fault programme: a paused or busy machine is not a hang, and a hang is detected."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from reliability import injections
from reliability.children import wait_for_exit

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Fake clock, and fake seconds that the awaited process waited for a processor."""
    now = SimpleNamespace(seconds=0.0, missed={"main": 0.0, "other": 7.0})
    monkeypatch.setattr(injections, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    monkeypatch.setattr(injections, "seconds_waiting", lambda pid: dict(now.missed))
    return now


def waited(patience: injections.Patience, clock: SimpleNamespace, share_missed: float) -> float:
    """Return the seconds until the timeout, at most 1,000, if the process waits for this share of them."""
    start = clock.seconds
    while clock.seconds < start + 1000:
        clock.seconds += 0.5
        clock.missed["main"] += 0.5 * share_missed
        if patience.is_over():
            break
    return clock.seconds - start


def test_a_process_that_only_waits_or_only_runs_hangs(clock: SimpleNamespace) -> None:
    assert waited(injections.Patience(30, pid=1), clock, share_missed=0) == 30


def test_a_process_without_a_turn_is_waited_for(clock: SimpleNamespace) -> None:
    assert waited(injections.Patience(30, pid=1), clock, share_missed=1) == 1000
    assert 55 < waited(injections.Patience(30, pid=1), clock, share_missed=0.5) <= 60
    assert waited(injections.Patience(30), clock, share_missed=1) == 30  # without a pid, waiting is not known


def test_a_pause_of_everything_does_not_count(clock: SimpleNamespace) -> None:
    patience = injections.Patience(30, pid=1)
    clock.seconds += 10_000
    assert not patience.is_over()
    assert 28 <= waited(patience, clock, share_missed=0) <= 30


def test_a_fresh_process_is_waited_for_across_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    leaps = iter([0.0, 10_000.0])
    monkeypatch.setattr(injections, "time", SimpleNamespace(monotonic=lambda: next(leaps, 10_000.0)))
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.2)"])
    assert wait_for_exit(process, 300) == 0


@needs_linux
def test_descendants_are_seen() -> None:
    command = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    parent = subprocess.Popen([sys.executable, "-c", command], stdin=subprocess.PIPE)
    try:
        end = time.monotonic() + 60
        while len(injections.seconds_waiting(parent.pid)) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        assert len(injections.seconds_waiting(parent.pid)) == 2
        assert f"/proc/{parent.pid}/task/{parent.pid}" in injections.seconds_waiting(os.getpid())
    finally:
        parent.communicate(b"\n", timeout=60)
    assert injections.seconds_waiting(parent.pid) == {}
