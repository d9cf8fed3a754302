"""Memory of tasks on text files: it grows by a few bytes per line, because texts are not held in memory."""

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
from glassformer.core.config import validate
from glassformer.data.batching import plan_batches
from glassformer.tasks.base import TaskConfig

kind, folder = sys.argv[1:]
data = {
    # One splits off a validation set; the other compares its own with the training set.
    "translation": {"train": [f"{folder}/train.txt"] * 2, "validation_fraction": 0.02},
    "classification": {"train": f"{folder}/train.tsv", "validation": f"{folder}/few.tsv"},
}
config = {"kind": kind, "data": data[kind], "tokenizer": {"kind": "bytes"}, "max_length": 120}
task = validate(TaskConfig, config).build(0)
examples = task.splits["train"]
lengths = examples.lengths()
for budget in ({"batch_size": 8}, {"batch_tokens": 1000}):
    for indices in plan_batches(lengths, seed=0, split="train", epoch=0, **budget)[:100]:
        task.batch("train", indices)
(peak,) = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(int(peak) / 1024)
"""

LINES = 120_000
MAX_BYTES_PER_LINE = 32
"""Bytes per line, 9 of them permanent: 4 for its length, 4 for its position in an epoch, 1 for its split."""


def peak_megabytes(folder: Path, kind: str, lines: int) -> float:
    folder.mkdir()
    random = np.random.default_rng(0)
    texts = [bytes(random.integers(97, 123, size=92, dtype=np.uint8)).decode() for _ in range(10_000)]
    for name, count in (("train", lines), ("few", 20)):
        with open(folder / f"{name}.txt", "w") as text, open(folder / f"{name}.tsv", "w") as table:
            for number in range(count):
                line = f"{number:07} {texts[number % len(texts)]}"
                text.write(f"{line}\n")
                table.write(f"{line}\tclass {number % 2}\n")
    command = [sys.executable, "-c", BUILD, kind, str(folder)]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=1800).stdout
    return float(output.split()[-1])


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("kind", ["translation", "classification"])
def test_memory_grows_by_the_lines_not_by_the_text(tmp_path: Path, kind: str) -> None:
    """Compare N and 10 N lines of 100 bytes, from the files to the batches of an epoch.

    In memory, the text and the tokens of a line would take about 400 bytes per side.
    """
    small, large = (peak_megabytes(tmp_path / str(times), kind, times * LINES) for times in (1, 10))
    assert large - small < 9 * LINES * MAX_BYTES_PER_LINE / 2**20
