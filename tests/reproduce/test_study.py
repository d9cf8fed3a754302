"""A study runs what is missing, once, and its table says what the runs say."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import pytest

from glassformer.errors import UserError
from glassformer.reproduce import STUDIES, find
from glassformer.reproduce.study import Setting, Study, interval, reproduce
from glassformer.runs import RunFolder

TINY = {
    "task.length": 4,
    "task.categories": 3,
    "task.train_examples": 64,
    "task.validation_examples": 8,
    "task.test_examples": 8,
    "model.hidden_dim": 8,
    "model.feed_forward_dim": 8,
    "training.max_steps": 3,
}
STUDY = Study(
    "tiny", "A tiny table", "accuracy", [Setting("4×3", 0.5, "reversal", TINY)], "For the test.", seeds=2
)


def test_a_study_is_run_once_and_told_truly(tmp_path: Path) -> None:
    document = reproduce(STUDY, tmp_path, workers=2)
    (row,) = document["rows"]
    runs = [RunFolder(path) for path in sorted((tmp_path / "runs").iterdir())]
    values = [run.results()["metrics"]["test"]["accuracy"] for run in runs]
    assert [run.config()["seed"] for run in runs] == row["seeds"] == [0, 1]
    assert row["ours"] == statistics.fmean(values) and row["lowest"] == min(values)
    assert row["published"] == 0.5 and row["theirs"] is None
    assert f"{row['ours']:.5f}" in (tmp_path / "table.md").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "results.json").read_bytes()) == document

    before = [(run.path / "results.json").stat().st_mtime_ns for run in runs]
    assert reproduce(STUDY, tmp_path, workers=2) == document
    assert [(run.path / "results.json").stat().st_mtime_ns for run in runs] == before


def test_the_interval_is_students() -> None:
    assert interval([0.5]) is None
    low, high = interval([1.0, 2.0, 3.0]) or (0, 0)
    assert (low + high) / 2 == pytest.approx(2.0)
    assert (high - low) / 2 == pytest.approx(4.303 / 3**0.5, rel=1e-3)
    # Beyond the table: 2.228 for 11 values, 1.984 for 101.
    for count, quantile in ((11, 2.228), (101, 1.984)):
        values = [float(number % 2) for number in range(count)]
        low, high = interval(values) or (0, 0)
        half = quantile * statistics.stdev(values) / math.sqrt(count)
        assert (high - low) / 2 == pytest.approx(half, rel=0.002)


def test_an_unknown_table_has_a_near_match() -> None:
    with pytest.raises(UserError, match="did you mean 'reversal-table'"):
        find("reversal-tabel")
    assert "reversal-table" in STUDIES
