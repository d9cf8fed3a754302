"""Quick tier of the fault programme; `make prove` runs it too, and publishes the counts.

The first test starts all chosen faults, two at a time; each test waits for its own.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

import reliability.all_faults  # noqa: F401  registers every fault
from glassformer.core.system import usable_cores
from reliability.base import FAULTS, Row
from reliability.runner import Plan

CHOSEN = [fault for fault in FAULTS.values() if fault.quick and not fault.counts_tests]
CHOSEN.sort(key=lambda fault: fault.is_alone)  # the order in which they run


@pytest.fixture(scope="module")
def row_of(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Row]]:
    """Return the result of a fault when it is done."""
    chosen = [item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")]
    plan = Plan([fault for fault in CHOSEN if fault.name in chosen], "quick")
    runner = threading.Thread(target=plan.run, args=(min(2, usable_cores()),))
    runner.start()

    def wait(name: str) -> Row:
        while not plan.is_done(name) and runner.is_alive():
            time.sleep(0.05)
        return plan.rows[name]

    yield wait
    plan.stop()
    runner.join()


@pytest.mark.parametrize("name", [fault.name for fault in CHOSEN])
def test_it_holds(name: str, row_of: Callable[[str], Row]) -> None:
    row = row_of(name)
    # In CI, a missing mount permission is accepted; a program that could be installed is not.
    if row.unsupported and not ("installed" in row.unsupported and os.environ.get("CI") == "true"):
        pytest.skip(row.unsupported)
    assert not row.unsupported and not row.failures, "\n".join([row.unsupported or "", *row.failures])
    assert row.held == row.tried > 0
