"""Every benchmark on a tiny workload, and recorded results."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glassformer.bench import benchmarks, decode
from glassformer.bench.base import Result, record, regressions
from glassformer.cli import main
from glassformer.core.errors import UserError
from glassformer.core.system import machine
from glassformer.training.precision import bf16_speed

SMALL_MODEL = [
    "--layers=1",
    "--heads=2",
    "--width=16",
    "--feed-forward=32",
    "--vocabulary=300",
    "--threads=1",
]
DATA = """
task: {kind: translation, tokenizer: {kind: bpe}, examples: 300, max_length: 60}
training: {max_epochs: 1}
"""


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["bench", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.fixture
def pairs(tmp_path: Path) -> str:
    (tmp_path / "pairs.yaml").write_text(DATA)
    return str(tmp_path / "pairs.yaml")


def test_all_are_there() -> None:
    assert {"train", "language-model", "decode", "attention", "memory", "startup", "sweep"} <= set(
        benchmarks()
    )


def test_train(pairs: str, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = ["--batches", "2", "--batch-tokens", "200", "--batch-size", "8", "--repeats", "1"]
    code, document = bench(capsys, "train", "--source", pairs, *SMALL_MODEL, *tiny)
    assert code == 0
    in_bf16 = {"bf16", "wide_bf16", "huggingface_fp32_vs_bf16", "huggingface_bf16", "torch_nn_bf16"}
    has_bf16 = not bf16_speed().failure
    assert set(document["ratios"]) == {"torch_nn", "huggingface", "peak_share"} | (
        in_bf16 if has_bf16 else set()
    )
    assert 0 < document["ratios"]["peak_share"] < 1
    assert document["notes"]["our_steps"] == 2
    speeds = {row["form"]: row["target_tokens_per_second"] for row in document["rows"]}
    ratios = document["ratios"]
    assert speeds["glassformer"] / speeds["torch_nn"] == pytest.approx(ratios["torch_nn"])
    if has_bf16:
        assert speeds["glassformer_bf16"] / speeds["glassformer"] == pytest.approx(ratios["bf16"])
        assert speeds["glassformer_wide_bf16"] / speeds["glassformer_wide"] == pytest.approx(
            ratios["wide_bf16"]
        )
        mixed = speeds["glassformer_bf16"] / speeds["huggingface"]
        assert mixed == pytest.approx(ratios["huggingface_fp32_vs_bf16"])


def test_a_way_of_decoding_that_was_disturbed_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try the better form again when its first try was slower than the other."""
    now = 0.0

    def spend(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr("time.perf_counter", lambda: now)
    seconds = {
        ("ours", "a", 1): [3.0, 3.0],
        ("ours", "a", 2): [3.5, 2.0],
        ("ours", "a", 3): [20.0],
        ("other", "b", 4): [1.0, 1.0],
    }
    left = {form: iter(each) for form, each in seconds.items()}
    tried = {form: lambda form=form: spend(next(left[form])) for form in seconds}
    told: list[tuple[int, int]] = []
    assert decode._quickest(tried, lambda *given: told.append(given)) == {"ours": ("a", 2), "other": ("b", 4)}
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4), (1, 3), (2, 3), (3, 3)]
    assert not any(list(rest) for rest in left.values())


def test_decode_trains_once_and_compares(
    pairs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = ["--sentences", "6", "--training-steps", "3", "--repeats", "1", "--beam", "2"]
    options = ["decode", "--source", pairs, *SMALL_MODEL, *tiny, "--folder", str(tmp_path / "runs")]
    for _ in range(2):
        code, document = bench(capsys, *options)
        assert code == 0, document["error"]
    assert len(list((tmp_path / "runs").iterdir())) == 1
    assert {(row["form"], row["beam"]) for row in document["rows"]} == {
        (form, beam)
        for form in (
            "glassformer",
            "glassformer_int8",
            "huggingface",
            "ctranslate2",
            "ctranslate2_int8",
            "ctranslate2_as_it_comes",
        )
        for beam in (1, 2)
    }
    ratios = document["ratios"]
    assert set(ratios) == {
        f"{name}{search}" for name in decode.RATIOS for search in ("", "_greedy", "_beam_2")
    }
    for name in decode.RATIOS:
        assert ratios[name] == min(ratios[f"{name}_greedy"], ratios[f"{name}_beam_2"])
    speeds = {(row["form"], row["beam"]): row["sentences"] / row["seconds"] for row in document["rows"]}
    assert speeds["glassformer_int8", 1] / speeds["huggingface", 1] == pytest.approx(
        ratios["huggingface_int8_greedy"]
    )
    assert speeds["glassformer_int8", 2] / speeds["ctranslate2_int8", 2] == pytest.approx(
        ratios["ctranslate2_int8_beam_2"]
    )


def test_predict_compares_batches_with_single_lines(
    tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = ["--lines", "150", "--training-steps", "2", "--repeats", "1", "--threads", "1"]
    options = ["predict", "--source", str(tiny_file), *tiny, "--folder", str(tmp_path / "runs")]
    code, document = bench(capsys, *options)
    assert code == 0, document["error"]
    rows = {row["form"]: row for row in document["rows"]}
    assert set(rows) == {"batched", "one at a time"}  # its matrices are too small for int8
    assert (rows["batched"]["lines"], rows["one at a time"]["lines"]) == (150, 100)
    assert rows["one at a time"]["same_outputs"] == 1
    speeds = {name: row["lines_per_second"] for name, row in rows.items()}
    assert document["ratios"]["lines_per_second"] == speeds["batched"]
    assert document["ratios"]["batched"] == pytest.approx(speeds["batched"] / speeds["one at a time"])
    sizes = ["model.hidden_dim=128", "model.feed_forward_dim=128"]
    assert (
        main(["train", str(tiny_file), *sizes, "training.max_steps=1", "--run", str(tmp_path / "wide")]) == 0
    )
    capsys.readouterr()
    code, document = bench(capsys, "predict", "--source", str(tmp_path / "wide"), *tiny[:2], *tiny[4:])
    assert code == 0 and {row["form"] for row in document["rows"]} == {*rows, "batched_int8"}
    assert document["ratios"]["int8"] > 0


def test_memory_grows_with_the_length(capsys: pytest.CaptureFixture[str]) -> None:
    code, document = bench(capsys, "memory", "--longest", "4096", "--width", "32", "--layers", "1")
    assert code == 0, document["error"]
    assert document["ratios"]["linear"] > 0.8


@pytest.mark.long
def test_a_sweep_by_one_worker_and_by_two(capsys: pytest.CaptureFixture[str]) -> None:
    """Check the document only; the speed-up needs an idle machine."""
    _, document = bench(capsys, "sweep", "--seeds", "1", "--steps", "2", "--threads", "1")
    one, two = document["rows"]
    assert (one["workers"], one["trials"]) == (1, 3) and (two["workers"], two["trials"]) == (2, 3)
    assert one["threads_of_each"] == two["threads_of_each"] == 1
    share = two["seconds"] / one["seconds"]
    assert document["notes"]["share"] == pytest.approx(share) and bool(document["error"]) == (share > 0.6)


def result(ratio: float, cpu: str = "one") -> Result:
    rows = [{"form": "ours", "seconds": 1.5}]
    return Result("train", replace(machine(), cpu=cpu), rows, {"huggingface": ratio})


def test_a_recorded_result_is_compared(tmp_path: Path) -> None:
    path = tmp_path / "speed.json"
    page = record(path, result(3.0), "glassformer bench train")
    assert "huggingface 3.00" in page.read_text() and "`glassformer bench train`" in page.read_text()
    assert regressions(path, result(2.5)) == []
    assert regressions(path, result(2.3)) == ["huggingface 2.30, recorded 3.00"]
    record(path, result(4.0), "glassformer bench train")
    assert json.loads(path.read_text())["train"]["one"]["ratios"] == {"huggingface": 4.0}
    with pytest.raises(UserError, match="on this processor"):
        regressions(path, result(4.0, cpu="another"))
    record(path, result(1.0, cpu="another"), "glassformer bench train")
    assert regressions(path, result(1.0, cpu="another")) == [] and regressions(path, result(1.0)) != []


@pytest.mark.parametrize("content", [None, "no JSON", "[]", "{}", '{"train": []}'])
def test_nothing_to_compare_with(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "speed.json").write_text(content)
    with pytest.raises(UserError):
        regressions(tmp_path / "speed.json", result(1.0))


def test_a_regression_fails_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = tmp_path / "speed.json"
    tiny = ["attention", "--batch=1", "--heads=1", "--length=4", "--width=4", "--repeats=2", "--threads=1"]
    assert bench(capsys, *tiny, "--record", str(stored))[0] == 0
    tree = json.loads(stored.read_text())
    tree["attention"][machine().cpu]["ratios"]["fused"] = 1e9
    stored.write_text(json.dumps(tree))
    assert bench(capsys, *tiny, "--check", str(stored))[0] == 1
