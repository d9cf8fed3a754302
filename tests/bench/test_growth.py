"""Benchmark of growth: fitted exponents, failures, and a run with small sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from glassformer.bench import growth
from glassformer.bench.growth import AXES, EXAMPLES, GrowthBenchmark, exponent
from glassformer.cli import main


def test_the_exponent_of_a_power_law_is_found() -> None:
    sizes = [100, 200, 400, 800]
    assert exponent(sizes, [3 * size**1.7 for size in sizes]) == pytest.approx(1.7)
    constant_at_first = [500, 3 * 200**2, 3 * 400**2, 3 * 800**2]
    assert exponent(sizes, constant_at_first) == pytest.approx(2)


def rows(power: float) -> list[dict[str, Any]]:
    """Return rows as they would be measured if all quantities grew with this power of the size."""
    found: list[dict[str, Any]] = []
    for name, axis in [*AXES.items(), ("examples", EXAMPLES)]:
        found += [
            {"axis": name, "size": size, **{key: 1e-3 * size**power for key in axis.limits}}
            for size in axis.sizes
        ]
    alone = {"axis": "tokenizers alone", "size": EXAMPLES.sizes[-2], "tokenising": 1.0}
    return [*found, alone, {"axis": "processes", "size": 1, "tokens_per_second": 5.0}]


@pytest.mark.parametrize(("power", "failures"), [(0.9, 0), (1.4, 9), (2.4, 12)])
def test_growth_above_the_theory_fails(
    power: float, failures: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GrowthBenchmark, "_rows", lambda self, *sizes: iter(rows(power)))
    progress: list[tuple[int, int]] = []
    benchmark = GrowthBenchmark(kind="growth", plot=str(tmp_path / "plot" / "growth"))
    result = benchmark.measure(lambda done, total: progress.append((done, total)))
    assert len([part for part in result.error.split("; ") if part]) == failures, result.error
    assert result.ratios["length_seconds"] == pytest.approx(power)
    assert {path.name for path in (tmp_path / "plot").iterdir()} == {"growth.png", "growth.svg"}
    assert all(done <= total for done, total in progress)


@pytest.mark.long
def test_small_sizes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "AXES", {"vocabulary": AXES["vocabulary"]})
    assert main(["bench", "growth", "--quick", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {row["axis"] for row in document["rows"]} == {
        "vocabulary",
        "examples",
        "tokenizers alone",
        "processes",
    }
    assert {"vocabulary_seconds", "examples_opening", "processes_tokens_per_second", "tokenizers"} <= set(
        document["ratios"]
    )
