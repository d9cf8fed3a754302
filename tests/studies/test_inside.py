"""Studies inside trained models: pairs that differ in the carry alone, and each study on tiny models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glassformer as gf
from glassformer.runs.experiment import Experiment, resolve
from glassformer.studies import inside_arithmetic, inside_language_model, inside_reversal
from glassformer.studies.inside import InsideStudy, first_step, rows_of
from glassformer.studies.inside_arithmetic import INSIDE_ARITHMETIC, KINDS, carry_pairs, has_carry
from glassformer.studies.inside_language_model import INSIDE_LANGUAGE_MODEL
from glassformer.studies.inside_reversal import INSIDE_REVERSAL, token_pairs
from glassformer.studies.study import reproduce
from glassformer.tasks.arithmetic import ArithmeticTask


@pytest.fixture(scope="module")
def task() -> ArithmeticTask:
    found = Experiment(resolve("arithmetic")).task
    assert isinstance(found, ArithmeticTask)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_differ_in_the_carry_alone(kind: str, task: ArithmeticTask) -> None:
    pairs = carry_pairs(task, kind, 60)
    base, donor = (np.asarray(each["tokens"]) for each in (pairs.base, pairs.donor))
    for tokens, expected in ((base, False), (donor, True)):
        is_sum, carries = has_carry(tokens)
        assert is_sum.all() and (carries == expected).all()
    differing = {int(column) for column in np.nonzero((base != donor).any(0))[0]}
    ones = {3: KINDS[kind][0], 7: KINDS[kind][1]}
    assert differing == {column for column, differs in ones.items() if differs}
    for row, other in zip(base, donor, strict=True):
        first, second = task.solve(row.tolist()), task.solve(other.tolist())
        assert second[1] == first[1] + 1 and second[0] == first[0]
        if kind == "carry":  # neither of the two digits alone gives a carry
            for column in (3, 7):
                mixed = row.copy()
                mixed[column] = other[column]
                assert task.solve(mixed.tolist())[1] == first[1]
    assert pairs.answer.tolist() == (pairs.other + 1).tolist()
    prefix = pairs.base["target"]
    assert prefix is not None and (prefix[:, 0] == task.begin).all()
    assert prefix[:, 1].tolist() == [task.solve(row.tolist())[0] for row in base]


def test_pairs_of_sequences_differ_in_one_token() -> None:
    built = Experiment(resolve("reversal", {"task.length": 12}))
    pairs, at = token_pairs(built.task, 20)
    base, donor = (np.asarray(each["tokens"]) for each in (pairs.base, pairs.donor))
    np.testing.assert_array_equal((base != donor).sum(1), 1)
    np.testing.assert_array_equal((base != donor).argmax(1), at)
    for row, output, answer in zip(donor, pairs.output, pairs.answer, strict=True):
        assert row[::-1][output] == answer


def test_rows_have_an_interval_over_seeds() -> None:
    found: list[dict[str, Any]] = [
        {"setting": "a", "seed": seed, "numbers": {"heads": 3 + seed, "step": step}}
        for seed, step in enumerate((50, None, 70))
    ]
    heads, step = rows_of(found)
    assert (heads["setting"], heads["ours"], heads["seeds"]) == ("a: heads", 4, [0, 1, 2])
    assert heads["interval"] == pytest.approx([4 - 2.484, 4 + 2.484], abs=1e-3)
    assert (step["ours"], step["values"], step["seeds"]) == (60, [50, 70], [0, 2])
    assert first_step([0, 10, 20], [0.1, 0.95, 0.2]) == 10 and first_step([0, 10], [0.1, 0.2]) is None


TINY = {
    "model.num_layers": 1,
    "model.num_heads": 2,
    "model.hidden_dim": 16,
    "model.feed_forward_dim": 8,
    "training.max_steps": 4,
    "training.max_epochs": None,
    "training.validate_every": None,
    "training.threads": 1,
    "inspection.every": 2,
    "evaluation.max_examples": 20,
}
SMALL: dict[str, dict[str, Any]] = {
    "inside-arithmetic": {},
    "inside-reversal": {"task.length": 12},
    "inside-language-model": {
        "task.length": 16,
        "task.shortest_period": 4,
        "task.categories": 12,
        "task.train_examples": 300,
        "task.test_examples": 20,
    },
}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "study", [INSIDE_ARITHMETIC, INSIDE_REVERSAL, INSIDE_LANGUAGE_MODEL], ids=lambda study: study.name
)
def test_each_study_looks_inside_all_its_runs(
    study: InsideStudy, trained: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inside_language_model, "is_fetched", lambda model: False)
    monkeypatch.setattr(inside_arithmetic, "EXAMPLES", 40)
    monkeypatch.setattr(inside_arithmetic, "PAIRS", 8)
    monkeypatch.setattr(inside_reversal, "PAIRS", 8)
    tiny = [replace(each, quick={**TINY, **SMALL[study.name]}) for each in study.settings]
    logged: list[str] = []
    options: dict[str, Any] = {"is_quick": True, "seeds": 2, "log": logged.append}
    document = reproduce(replace(study, settings=tiny), tmp_path / "study", **options)
    assert len(trained) == 2 * len(tiny) and not document["missing"]
    assert {each["setting"] for each in document["inside"]} == {each.name for each in tiny}
    for row in document["rows"]:
        assert {"setting", "published", "theirs", "ours", "interval", "seeds"} <= row.keys()
    table = (tmp_path / "study" / "table.md").read_text(encoding="utf-8")
    for name in document["plot"]:
        assert (tmp_path / "study" / name).stat().st_size > 1000
        assert not name.endswith(".png") or f"({name})" in table
    again = reproduce(replace(study, settings=tiny), tmp_path / "study", **options, trains=False)
    assert again["rows"] == document["rows"] and len(trained) == 2 * len(tiny)
    gf.report(tmp_path / "study", tmp_path / "report.html", samples=0, maps=0)
    assert document["title"] in (tmp_path / "report.html").read_text(encoding="utf-8")
    if study is INSIDE_LANGUAGE_MODEL:
        assert any("glassformer models fetch stories15m" in line for line in logged)
