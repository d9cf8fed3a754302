"""Code of docs/python.md and of examples/: it runs."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def code_blocks(page: Path) -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S))


def test_the_python_page_runs(tmp_path: Path) -> None:
    code = code_blocks(ROOT / "docs" / "python.md")
    assert code.count("gf.train(") >= 3
    # As in a notebook: without a main module that the workers of a sweep would import again.
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "did you mean 'num_layers'?" in done.stdout


def test_there_are_five_examples() -> None:
    assert len(EXAMPLES) == 5


@pytest.mark.thorough
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if path.stem == "own_dataframe":
        pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    if path.stem == "own_sweep":  # its workers are forks of a fresh process
        done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
    else:
        runpy.run_path(str(path), run_name="__main__")
