"""`glassformer bench attention`: four equal forms, plausible timings, validated options."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import torch

from glassformer.bench import benchmarks
from glassformer.bench.attention import BASELINE, AttentionBenchmark
from glassformer.bench.base import time_alternately
from glassformer.cli import main
from glassformer.core.system import machine, threads_set_to, usable_cores

TINY = ["--batch", "2", "--heads", "2", "--length", "6", "--width", "4", "--repeats", "3", "--threads", "1"]
FORMS = ["loop, one sequence", "loop, batch", "no loop", "fused"]


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["bench", "attention", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("mask", [[], ["--causal"]])
def test_the_document(mask: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, document = bench(capsys, *TINY, *mask)
    assert code == 0 and document["name"] == "attention" and document["error"] == ""
    assert [row["form"] for row in document["rows"]] == list(document["ratios"]) == FORMS
    for row in document["rows"]:
        low, high = row["seconds_quartiles"]
        assert 0 < low <= row["seconds"] <= high
        assert row["samples"] == 3 and row["calls_per_sample"] >= 1
        assert row["largest_difference"] < 1e-5
        assert row["speed_up"] == pytest.approx(document["rows"][0]["seconds"] / row["seconds"])
    assert document["ratios"][BASELINE] == 1 < document["ratios"]["fused"]
    assert {"cpu", "cores", "threads", "torch", "python", "glassformer"} <= set(document["machine"])


def test_a_person_sees_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "attention", *TINY, "--causal"]) == 0
    shown = capsys.readouterr().out
    assert all(form in shown for form in FORMS)
    assert "2 × 2 heads × length 6 × width 4, causal" in shown


def test_a_causal_mask_reaches_every_form() -> None:
    benchmark = AttentionBenchmark(batch=1, heads=1, length=5, width=3, causal=True)
    q, k, v = torch.randn(3, 1, 1, 5, 3)
    later = v.clone()
    later[..., -1, :] += 100
    for name, form in benchmark.forms(q, k, v).items():
        changed = benchmark.forms(q, k, later)[name]()
        torch.testing.assert_close(form()[..., :-1, :], changed[..., :-1, :], msg=name)
        assert not torch.allclose(form()[..., -1, :], changed[..., -1, :]), name


def test_a_form_that_is_wrong_fails_the_benchmark(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("glassformer.blocks.attention.fused_kernel", lambda q, k, v, *rest: v)
    code, document = bench(capsys, *TINY)
    assert code == 1 and "fused" in document["error"]


def test_no_number_is_wrong_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("glassformer.blocks.attention.fused_kernel", lambda q, k, v, *rest: v * torch.nan)
    assert bench(capsys, *TINY)[0] == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["attenton"], "did you mean 'attention'?"),
        (["attention", "--length", "0"], "greater than or equal to 1"),
        (["attention", "--length", "long"], "a whole number"),
        (["attention", "--lenght", "3"], "unrecognized arguments"),
        ([], "NAME"),
    ],
)
def test_wrong_input_is_exit_2(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == 2
    captured = capsys.readouterr()
    assert said in captured.err and "Traceback" not in captured.err and not captured.out


def test_every_option_is_described() -> None:
    for name, benchmark in benchmarks().items():
        assert benchmark.__doc__, name
        for option, field in benchmark.model_fields.items():
            assert option == "kind" or field.description, f"{name} --{option}"


def test_forms_take_turns_and_slow_ones_are_called_once_a_sample() -> None:
    calls: list[str] = []
    forms = {"slow": lambda: (calls.append("slow"), time.sleep(0.02)), "fast": lambda: calls.append("fast")}
    seen: list[tuple[int, int]] = []
    timings = time_alternately(forms, 3, lambda done, total: seen.append((done, total)))
    assert seen == [(done, 6) for done in range(1, 7)]
    assert timings["slow"].calls_per_sample == 1 < timings["fast"].calls_per_sample
    assert 0.02 <= timings["slow"].median < 0.5 and timings["fast"].median < 0.001
    first_fast = calls.index("fast")
    assert "slow" in calls[first_fast:], "the forms are timed in turns"


def test_threads_are_set_inside_and_restored() -> None:
    before = torch.get_num_threads()
    with threads_set_to(1):
        assert machine().threads == 1
    assert torch.get_num_threads() == before
    assert machine().cores == usable_cores() >= 1 and machine().cpu


def test_progress_appears_only_after_the_delay(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "attention", *TINY]) == 0
    assert "samples" not in capsys.readouterr().err
    monkeypatch.setattr("glassformer.cli.output.PROGRESS_DELAY", 0.0)
    assert main(["bench", "attention", *TINY, "--json"]) == 0
    captured = capsys.readouterr()
    assert "samples" in captured.err and json.loads(captured.out)
