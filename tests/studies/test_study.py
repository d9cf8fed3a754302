"""A study runs what is missing, once, and its table has the numbers of its runs."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from glassformer.core.errors import UserError
from glassformer.evaluation.intervals import student_interval
from glassformer.runs.folder import RunFolder, differences
from glassformer.storage.files import ChecksummedFolder, json_bytes
from glassformer.studies import STUDIES, find
from glassformer.studies.recipes import RecipeStudy, Setting
from glassformer.studies.study import reproduce

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
STUDY = RecipeStudy(
    name="tiny",
    title="A tiny table",
    metric="accuracy",
    about="For the test.",
    settings=[Setting("4×3", 0.5, "reversal", TINY)],
    seeds=2,
)


def test_a_study_runs_once_and_reports_its_runs(tmp_path: Path) -> None:
    document = reproduce(STUDY, tmp_path, workers=2)
    (row,) = document["rows"]
    runs = [RunFolder(path) for path in sorted((tmp_path / "runs").iterdir())]
    values = [run.results()["metrics"]["test"]["accuracy"] for run in runs]
    assert [run.config()["seed"] for run in runs] == row["seeds"] == [0, 1]
    assert row["ours"] == statistics.fmean(values) and row["lowest"] == min(values)
    assert row["published"] == 0.5 and row["theirs"] is None and document["missing"] == []
    table = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert f"{row['ours']:.5f}" in table and "`glassformer reproduce tiny --workers 2`" in table
    assert json.loads((tmp_path / "results.json").read_bytes()) == document

    before = [(run.path / "results.json").stat().st_mtime_ns for run in runs]
    assert reproduce(STUDY, tmp_path, workers=2) == document
    assert [(run.path / "results.json").stat().st_mtime_ns for run in runs] == before


THEIRS = Setting("4×3", 0.5, "reversal", TINY, theirs={"model.norm_placement": "post"})


def test_their_recipe_differs_in_its_overrides_only(trained: list[str], tmp_path: Path) -> None:
    study = replace(STUDY, settings=[THEIRS], theirs_seeds=1)
    (row,) = reproduce(study, tmp_path)["rows"]
    assert trained == ["4×3, ours, seed 0", "4×3, ours, seed 1", "4×3, theirs, seed 0"]
    assert row["theirs_seeds"] == [0] and row["seeds"] == [0, 1]
    runs = {
        path.name.rpartition("-")[0]: RunFolder(path) for path in (tmp_path / "runs").glob("4*-*-?-????????")
    }
    changed = differences(runs["4×3-ours-0"].config(), runs["4×3-theirs-0"].config())
    assert changed == {"model.norm_placement": ("pre", "post")}
    assert row["theirs"] == runs["4×3-theirs-0"].results()["metrics"]["test"]["accuracy"]
    table = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "model.norm_placement=post" in table and f"| {row['theirs']:.5f} |" in table


def test_a_changed_option_is_another_run_and_an_added_one_is_not(trained: list[str], tmp_path: Path) -> None:
    study = replace(STUDY, seeds=1)
    reproduce(study, tmp_path)
    (path,) = [path for path in (tmp_path / "runs").iterdir() if path.is_dir()]
    config = RunFolder(path).config()
    del config["training"]["tensorboard"]  # as if the run and its name were older than this option
    ChecksummedFolder(path).write({"config.json": json_bytes(config)})
    path.rename(path.with_name(f"{path.name[:-8]}01234567"))
    trained.clear()
    reproduce(study, tmp_path)
    assert trained == []
    longer = Setting("4×3", 0.5, "reversal", {**TINY, "training.max_steps": 4})
    reproduce(replace(study, settings=[longer]), tmp_path)
    assert trained == ["4×3, ours, seed 0"]


def test_finished_runs_can_be_reported_before_the_rest(trained: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run of this table is finished"):
        reproduce(STUDY, tmp_path / "nothing", trains=False)
    assert not (tmp_path / "nothing").exists()
    reproduce(replace(STUDY, seeds=1), tmp_path)
    trained.clear()
    document = reproduce(replace(STUDY, settings=[THEIRS]), tmp_path, trains=False)
    assert trained == []
    assert document["missing"] == ["4×3, ours, seed 1", "4×3, theirs, seed 0", "4×3, theirs, seed 1"]
    (row,) = document["rows"]
    assert row["seeds"] == [0] and row["theirs"] is None
    table = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "**Not finished:** 3 runs" in table and " --finished`" in table


def test_earlier_measurements_are_reused_and_reported(trained: list[str], tmp_path: Path) -> None:
    earlier = reproduce(STUDY, tmp_path / "earlier")
    trained.clear()
    study = replace(STUDY, settings=[THEIRS])
    keep = tmp_path / "earlier" / "results.json"
    (row,) = reproduce(study, tmp_path / "later", keep=keep)["rows"]
    assert trained == ["4×3, theirs, seed 0", "4×3, theirs, seed 1"]
    kept = ("ours", "interval", "lowest", "seeds", "steps", "seconds", "config")
    assert {name: row[name] for name in kept} == {name: earlier["rows"][0][name] for name in kept}
    assert row["kept"] == ["ours"]
    table = (tmp_path / "later" / "table.md").read_text(encoding="utf-8")
    assert "Reused from an earlier measurement: ours of 4×3." in table
    assert f"Written by `glassformer reproduce tiny --keep {keep}`." in table
    with pytest.raises(UserError, match="not a full measurement of other"):
        reproduce(replace(study, name="other"), tmp_path / "other", keep=keep)
    with pytest.raises(UserError, match="measured as a whole"):
        reproduce(STUDIES["parameter-counts"], tmp_path / "counts", trains=False)


def test_new_settings_may_precede_reused_ones(trained: list[str], tmp_path: Path) -> None:
    reproduce(STUDY, tmp_path / "earlier", seeds=1)
    trained.clear()
    study = replace(STUDY, settings=[replace(STUDY.settings[0], name="new"), *STUDY.settings])
    reproduce(study, tmp_path / "later", seeds=1, keep=tmp_path / "earlier" / "results.json")
    assert trained == ["new, ours, seed 0"]
    table = (tmp_path / "later" / "table.md").read_text(encoding="utf-8")
    assert "Reused from an earlier measurement: ours of 4×3." in table


def test_the_interval_is_students() -> None:
    assert student_interval([0.5]) is None
    low, high = student_interval([1.0, 2.0, 3.0]) or (0, 0)
    assert (low + high) / 2 == pytest.approx(2.0)
    assert (high - low) / 2 == pytest.approx(4.303 / 3**0.5, rel=1e-3)
    # Beyond the table: 2.228 for 11 values, 1.984 for 101.
    for count, quantile in ((11, 2.228), (101, 1.984)):
        values = [float(number % 2) for number in range(count)]
        low, high = student_interval(values) or (0, 0)
        half = quantile * statistics.stdev(values) / math.sqrt(count)
        assert (high - low) / 2 == pytest.approx(half, rel=0.002)


def test_an_unknown_table_has_a_near_match() -> None:
    with pytest.raises(UserError, match="did you mean 'reversal-table'"):
        find("reversal-tabel")
    assert "reversal-table" in STUDIES
