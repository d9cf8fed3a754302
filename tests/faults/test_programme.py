"""The fault programme in small numbers; `make prove` runs it in large ones and publishes what held."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import programme  # noqa: F401  all faults
from programme.base import FAULTS, run_fault
from programme.children import Zygote
from programme.runner import a_place


@pytest.mark.parametrize("name", [fault.name for fault in FAULTS.values() if fault.in_tests])
def test_it_holds(name: str, zygote: Zygote) -> None:
    with a_place(0, zygote) as place:
        row = run_fault(FAULTS[name], place, "tests")
    # Continuous integration may lack the right to mount a disk, but not a program that can be installed.
    if row.not_here and not ("installed" in row.not_here and os.environ.get("CI") == "true"):
        pytest.skip(row.not_here)
    assert not row.not_here and not row.failures, "\n".join([row.not_here or "", *row.failures])
    assert row.held == row.tried > 0
