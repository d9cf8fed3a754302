"""Reports on folders of `reproduce` and `sweep`: table, pictures and runs."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

import glassformer as gf
from glassformer.core.errors import UserError
from glassformer.reports.study_folder import study_tables
from glassformer.reports.tables import plain
from glassformer.runs.folder import RunFolder
from glassformer.runs.session import TrainingSession

from .conftest import TASKS, read_page, small_config

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
ROW = {
    "setting": "100×10 <b>",
    "published": 0.8527,
    "theirs": None,
    "ours": 0.98765432,
    "interval": [0.9801, 0.9952],
    "lowest": 0.9803,
    "seeds": [0, 1, 2],
    "seconds": [1.5, 2.5, 3.5],
    "config": "b142341535b940725bc1df31bb58e1eb7458ef7d1751c03b7d58f655ff086fdc",
    "by_epoch": [[1, 2], [3]],
}
REPRODUCED = {
    "name": "tiny",
    "title": "A tiny table",
    "metric": "accuracy",
    "command": [
        "glassformer",
        "reproduce",
        "tiny",
        "--quick",
        "--ours-only",
        "--seeds",
        "3",
        "--workers",
        "2",
    ],
    "is_quick": True,
    "with_theirs": False,
    "workers": 2,
    "rows": [ROW],
}
SWEPT = {
    "study": "reversal-12ab",
    "storage": "postgresql://me:secret@example/x",
    "metric": "accuracy",
    "best": {
        "params": {"training.optimizer.learning_rate": 1e-3},
        "metrics": {"validation": {"accuracy": 0.75}},
    },
    "settings": [
        {
            "trial": 0,
            "params": {"training.optimizer.learning_rate": 1e-3},
            "state": "complete",
            "seeds": [0, 1],
            "value": 0.75,
            "interval": [0.7, 0.8],
            "metrics": {"validation": {"accuracy": 0.75, "loss": 0.5, "exact_match": 0.125}},
            "intervals": {"validation": {"accuracy": [0.7, 0.8], "loss": None}},
        }
    ],
    "trials": [
        {
            "params": {"training.optimizer.learning_rate": 1e-3},
            "state": "diverged",
            "run": "runs/x/runs/0-0",
            "metrics": {},
            "explanation": "loss <i>grew</i>",
        }
    ],
}


def write_study(folder: Path, document: dict[str, Any]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "results.json").write_text(json.dumps(document), encoding="utf-8")


def test_a_reproduction(tmp_path: Path) -> None:
    study = tmp_path / "study"
    write_study(study, REPRODUCED)
    table = "# A tiny table\n\nFor <the> test.\n\nWritten by `x`.\n\n"
    table += "| setting |\n|---|\n| 100 |\n\nMetric: test.\n"
    (study / "table.md").write_text(table, encoding="utf-8")
    (study / "curves.png").write_bytes(PIXEL)
    (study / "fake.png").write_bytes(b"<html>")
    for seed in (0, 1):
        config = small_config({"task": TASKS["reversal"]}, seed=seed)
        TrainingSession(config, RunFolder(study / "runs" / f"100-ours-{seed}")).run()
    document = gf.report(study, tmp_path / "report.html", markdown=tmp_path / "table.md", samples=2, maps=1)
    assert document["title"] == "A tiny table" and len(document["runs"]) == 2
    page = read_page(tmp_path / "report.html")
    page.assert_offline()
    assert {0.8527, 0.98765432, 0.9801, 0.9952, 0.9803} <= set(page.numbers)
    assert "For <the> test." in page.text and "100×10 <b>" in page.text and "Metric: test." in page.text
    assert "glassformer reproduce tiny --quick --ours-only --seeds 3" in page.text
    pictures = [image["src"] or "" for image in page.all("img")]
    assert f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}" in pictures
    assert "fake.png is too large, or not a valid picture" in page.text
    assert "Samples" in page.headings and "Curves" in page.headings
    assert r"0.98765 \[0.9801 – 0.9952\]" in (tmp_path / "table.md").read_text(encoding="utf-8")


def test_the_table_has_the_columns_that_can_be_shown() -> None:
    front, aside = study_tables(REPRODUCED)
    assert list(front.headings) == ["setting", "published", "ours, mean", "lowest seed"]
    assert list(aside.headings) == ["setting", "seeds", "seconds", "config"] and aside.is_aside
    assert [plain(cell) for cell in aside.rows[0]] == [
        "100×10 <b>",
        "0, 1, 2",
        "1.5, 2.5, 3.5",
        "b142341535b9",
    ]
    assert front.notes[-1].startswith("Intervals") and not aside.notes


def test_a_sweep(tmp_path: Path) -> None:
    write_study(tmp_path / "sweep", SWEPT)
    (tmp_path / "sweep" / "best.yaml").write_text("task: {kind: reversal}\n", encoding="utf-8")
    document = gf.report(tmp_path / "sweep", tmp_path / "report.html")
    assert document["title"] == "reversal-12ab"
    page = read_page(tmp_path / "report.html")
    page.assert_offline()
    assert {0.75, 0.7, 0.8, 0.5, 1e-3} <= set(page.numbers) and 0.125 not in page.numbers
    assert "loss <i>grew</i>" in page.text and "diverged" in page.text
    assert "secret" not in page.source
    assert f"glassformer train {tmp_path / 'sweep' / 'best.yaml'}" in page.text


@pytest.mark.parametrize("content", ["{", "[]", '{"rows": 5}', "{}"])
def test_a_folder_without_a_study_is_rejected(content: str, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=r"cannot be read|contains neither rows nor trials"):
        gf.report(tmp_path, tmp_path / "report.html")
