"""How long the fault programme waits: neither a paused nor a busy machine is a hang, and a hang is one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from reliability import orders
from reliability.children import wait_for_exit

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The programme's clock, and how long the process that it waits for was ready and did not run."""
    now = SimpleNamespace(seconds=0.0, missed={"main": 0.0, "other": 7.0})
    monkeypatch.setattr(orders, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    monkeypatch.setattr(orders, "turns_missed", lambda pid: dict(now.missed))
    return now


def waited(patience: orders.Patience, clock: SimpleNamespace, share_missed: float) -> float:
    """Seconds until it is over, or 1,000, while the process has no turn for so much of them."""
    began = clock.seconds
    while clock.seconds < began + 1000:
        clock.seconds += 0.5
        clock.missed["main"] += 0.5 * share_missed
        if patience.is_over():
            break
    return clock.seconds - began


def test_a_process_that_only_waits_or_only_runs_hangs(clock: SimpleNamespace) -> None:
    assert waited(orders.Patience(30, pid=1), clock, share_missed=0) == 30


def test_a_process_without_a_turn_is_waited_for(clock: SimpleNamespace) -> None:
    assert waited(orders.Patience(30, pid=1), clock, share_missed=1) == 1000
    assert 55 < waited(orders.Patience(30, pid=1), clock, share_missed=0.5) <= 60
    assert waited(orders.Patience(30), clock, share_missed=1) == 30  # of nobody it is not known


def test_a_pause_of_everything_does_not_count(clock: SimpleNamespace) -> None:
    patience = orders.Patience(30, pid=1)
    clock.seconds += 10_000
    assert not patience.is_over()
    assert 28 <= waited(patience, clock, share_missed=0) <= 30


def test_a_fresh_process_is_waited_for_across_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    leaps = iter([0.0, 10_000.0])
    monkeypatch.setattr(orders, "time", SimpleNamespace(monotonic=lambda: next(leaps, 10_000.0)))
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.2)"])
    assert wait_for_exit(process, 300) == 0


@needs_linux
def test_descendants_are_seen() -> None:
    command = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    parent = subprocess.Popen([sys.executable, "-c", command], stdin=subprocess.PIPE)
    try:
        end = time.monotonic() + 60
        while len(orders.turns_missed(parent.pid)) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        assert len(orders.turns_missed(parent.pid)) == 2
        assert f"/proc/{parent.pid}/task/{parent.pid}" in orders.turns_missed(os.getpid())
    finally:
        parent.communicate(b"\n", timeout=60)
    assert orders.turns_missed(parent.pid) == {}
