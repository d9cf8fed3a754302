"""Texts from files are read as often as needed and never held: what grows is a few numbers a line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BUILD = """
import sys
import numpy as np
import glassformer.tasks
from glassformer.config import validate
from glassformer.tasks.base import TaskConfig

kind, folder = sys.argv[1:]
sources = {
    "translation": [f"{folder}/train.txt", f"{folder}/train.txt"],
    "classification": f"{folder}/train.tsv",
}
few = {
    "translation": [f"{folder}/few.txt", f"{folder}/few.txt"],
    "classification": f"{folder}/few.tsv",
}
data = {"train": sources[kind], "validation": few[kind]}
config = {"kind": kind, "data": data, "tokenizer": {"kind": "bytes"}, "max_length": 120}
task = validate(TaskConfig, config).build(0)
examples = task.splits["train"]
assert len(examples.lengths()) == len(examples)
for index in np.random.default_rng(0).integers(len(examples), size=(100, 8)):
    task.batch("train", index)
(peak,) = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(int(peak) / 1024)
"""


def peak_megabytes(folder: Path, kind: str, megabytes: int) -> float:
    folder.mkdir()
    random = np.random.default_rng(0)
    lines = [bytes(random.integers(97, 123, size=96, dtype=np.uint8)).decode() for _ in range(10_000)]
    for name, repeats in (("train", megabytes), ("few", 0)):
        with open(folder / f"{name}.txt", "w") as text, open(folder / f"{name}.tsv", "w") as table:
            for block in range(repeats or 1):
                for number, line in enumerate(lines if repeats else lines[:20]):
                    text.write(f"{block:03} {line}\n")
                    table.write(f"{block:03} {line}\tclass {number % 2}\n")
    command = [sys.executable, "-c", BUILD, kind, str(folder)]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
    return float(said.split()[-1])


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("kind", ["translation", "classification"])
def test_memory_grows_by_the_lines_not_by_the_text(tmp_path: Path, kind: str) -> None:
    """1.2 million lines: some 32 MB of what is mapped count as memory, and numbers of each line do.

    In memory, a line's text and its tokens would take some 400 bytes a side.
    """
    grown = peak_megabytes(tmp_path / "large", kind, 120) - peak_megabytes(tmp_path / "small", kind, 1)
    assert grown < 40 + 120 * 1.2
