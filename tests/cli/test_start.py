"""Imports of a command run with garbage collection off."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT_GC = """
import gc, sys
from glassformer.cli.arguments import import_without_gc

collections = []
gc.callbacks.append(lambda phase, info: collections.append(phase))
try:
    import_without_gc(sys.argv[1])
except ModuleNotFoundError as error:
    assert error.name == sys.argv[1]
assert not collections and gc.isenabled()
frozen = gc.get_freeze_count()
assert frozen > 0
import_without_gc("gc")
assert gc.get_freeze_count() == frozen, "a module that is loaded already is not imported again"
"""


@pytest.mark.parametrize("module", ["pydantic.types", "no_such_module"])
def test_nothing_is_collected_while_a_module_is_imported(module: str) -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_GC, module], check=True, timeout=60)
