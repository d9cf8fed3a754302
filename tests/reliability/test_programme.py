"""The quick tier of the fault programme; `make prove` runs it, or the full one, and publishes what held.

What is chosen is begun at the first of these tests, two at a time, and each test waits for its own.
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

CHOSEN = [fault for fault in FAULTS.values() if fault.quick and not fault.is_of_tests]
CHOSEN.sort(key=lambda fault: fault.is_alone)  # as they are done


@pytest.fixture(scope="module")
def row_of(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Row]]:
    """What came of a fault, when it is done."""
    asked = [item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")]
    plan = Plan([fault for fault in CHOSEN if fault.name in asked], "quick")
    begun = threading.Thread(target=plan.run, args=(min(2, usable_cores()),))
    begun.start()

    def wait(name: str) -> Row:
        while not plan.is_done(name) and begun.is_alive():
            time.sleep(0.05)
        return plan.rows[name]

    yield wait
    plan.stop()
    begun.join()


@pytest.mark.parametrize("name", [fault.name for fault in CHOSEN])
def test_it_holds(name: str, row_of: Callable[[str], Row]) -> None:
    row = row_of(name)
    # Continuous integration may lack the right to mount a disk, but not a program that can be installed.
    if row.not_here and not ("installed" in row.not_here and os.environ.get("CI") == "true"):
        pytest.skip(row.not_here)
    assert not row.not_here and not row.failures, "\n".join([row.not_here or "", *row.failures])
    assert row.held == row.tried > 0
