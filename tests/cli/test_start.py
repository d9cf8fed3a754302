"""What a command imports stays; only while it imports, nobody looks for garbage."""

from __future__ import annotations

import subprocess
import sys

import pytest

CALM = """
import gc, sys
from glassformer.cli.what import import_calmly

looked = []
gc.callbacks.append(lambda phase, info: looked.append(phase))
try:
    import_calmly(sys.argv[1])
except ModuleNotFoundError as error:
    assert error.name == sys.argv[1]
assert not looked and gc.isenabled()
frozen = gc.get_freeze_count()
assert frozen > 0
import_calmly("gc")
assert gc.get_freeze_count() == frozen, "what is there already has not been imported"
"""


@pytest.mark.parametrize("module", ["pydantic.types", "no_such_module"])
def test_nothing_is_collected_while_a_module_is_imported(module: str) -> None:
    subprocess.run([sys.executable, "-c", CALM, module], check=True, timeout=60)
