"""Each published table: differences between its recipes, and the whole pipeline on tiny models."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glassformer as gf
from glassformer.blocks.positions import PositionConfig
from glassformer.cli import main
from glassformer.core.registry import kinds
from glassformer.doctor.checks import CheckContext, future
from glassformer.runs.experiment import Experiment, resolve
from glassformer.runs.folder import differences
from glassformer.studies import STUDIES, positions, translation_sets
from glassformer.studies.arithmetic import (
    ARITHMETIC_HONEST,
    ARITHMETIC_LEAK,
    ARITHMETIC_RATES,
    NO_CAUSAL_MASK,
    OVERFIT,
    PUBLISHED,
    PUBLISHED_FILE,
)
from glassformer.studies.attention_forms import ATTENTION_FORMS
from glassformer.studies.parameter_counts import PARAMETER_COUNTS
from glassformer.studies.positions import (
    POSITIONS,
    THEORY,
    Draw,
    LengthData,
    LengthTask,
    Measure,
    digits,
    draw_reversals,
    draw_sentences,
    draw_sums,
    words,
)
from glassformer.studies.recipes import RecipeStudy, Setting
from glassformer.studies.reversal import REVERSAL_TABLE, ReversalStudy
from glassformer.studies.study import Results, StudyContext, reproduce
from glassformer.studies.translation_sets import TRANSLATION_SETS

TINY_MODEL = {"model.hidden_dim": 16, "model.feed_forward_dim": 8}
TINY_TRAINING = {"training.max_steps": 2, "training.validate_every": None}
STAGED: Any = {"name": "staged", "title": "Staged", "metric": "accuracy", "about": "For the test."}
STUDIES_OF_RUNS = [study for study in STUDIES.values() if isinstance(study, RecipeStudy)]


def context_of(folder: Path, is_quick: bool) -> StudyContext:
    return StudyContext(folder, is_quick, 1, 1, 1, True, lambda text: None)


def table_of(folder: Path) -> str:
    return (folder / "table.md").read_text(encoding="utf-8")


def is_picture(file: Path) -> bool:
    return file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("study", STUDIES_OF_RUNS, ids=lambda study: study.name)
def test_every_study_has_a_quick_version(
    study: RecipeStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if study is POSITIONS:  # it writes its data before it lists its runs
        monkeypatch.setattr(LengthData, "write", lambda self, parent: None)
    quick = study.runs(context_of(tmp_path, is_quick=True))
    assert quick and all(run.job.config for run in quick)
    assert len({run.job.path for run in quick}) == len(quick)


def test_the_recipes_of_the_learning_rates_differ_in_two_options(tmp_path: Path) -> None:
    runs = ARITHMETIC_RATES.runs(context_of(tmp_path, is_quick=False))
    by_rate = {(run.setting.name, run.recipe): run.job.config for run in runs}
    for rate in PUBLISHED:
        ours, theirs = by_rate[rate, "ours"].dump(), by_rate[rate, "theirs"].dump()
        assert differences(theirs, ours).keys() == {"model.norm_placement", "training.schedule.warmup_steps"}
        assert theirs["training"]["optimizer"]["learning_rate"] == float(rate)
        assert (theirs["training"]["batch_size"], theirs["training"]["max_epochs"]) == (256, 10)
        assert theirs["model"]["dropout"] == 0.2


def test_the_leak_is_the_published_recipe_without_a_mask(tmp_path: Path) -> None:
    rates = ARITHMETIC_RATES.runs(context_of(tmp_path, is_quick=False))
    published = {run.setting.name: run.job.config for run in rates if run.recipe == "theirs"}
    runs = ARITHMETIC_LEAK.runs(context_of(tmp_path, is_quick=False))
    assert {run.setting.name for run in runs} == set(PUBLISHED)
    for run in runs:
        found = differences(published[run.setting.name].dump(), run.job.config.dump())
        assert found.keys() == ({"model.kind"} if run.recipe == "theirs" else set())


def test_the_leaky_model_sees_the_next_token(tmp_path: Path) -> None:
    gf.load_plugin(NO_CAUSAL_MASK)
    options = {"task.digits": 1, "task.max_examples": 60}
    for kind, passes in (("no-causal-mask", False), ("transformer", True)):
        config = resolve("arithmetic", {**options, "model": {"kind": kind, "hidden_dim": 16}})
        measured = future(CheckContext(Experiment(config)))
        assert (measured.value < 1e-6) is passes, kind


def test_both_recipes_of_the_honest_task_have_the_same_epochs_and_examples(tmp_path: Path) -> None:
    runs = ARITHMETIC_HONEST.runs(context_of(tmp_path, is_quick=False))
    for run in runs:
        assert not run.job.config.dump()["task"]["leaky"]
        assert run.job.config.training.max_epochs == 100
        assert run.job.config.training.optimizer.learning_rate == float(run.setting.name)


def test_learning_rates(trained: list[str], tmp_path: Path) -> None:
    settings = []
    for setting in ARITHMETIC_RATES.settings:
        if setting.name in ("1e-2", "1e-7", OVERFIT):
            task = {"task.max_examples": 30}
            kept = {path: value for path, value in setting.overrides.items() if path not in PUBLISHED_FILE}
            settings.append(replace(setting, overrides={**kept, **task, **TINY_MODEL, **TINY_TRAINING}))
    study = replace(ARITHMETIC_RATES, settings=settings)
    document = reproduce(study, tmp_path, seeds=1)
    assert len(trained) == 6
    high, low, overfit = document["rows"]
    assert (high["published"], low["published"], overfit["published"]) == (0.25, 0.05, None)
    for row in document["rows"]:
        for recipe in ("theirs", "ours"):
            assert len(row[f"{recipe}_says"]) == len(row[f"{recipe}_exact_match"]) == 1
    best = max(high["ours"], low["ours"])
    working = [row["setting"] for row in (high, low) if row["ours"] >= 0.9 * best]
    assert document["range"]["ours"] == {"best": best, "rates": working}
    assert document["range"]["published"] == {"best": 0.25, "rates": ["1e-2"]}
    assert is_picture(tmp_path / "rates.png") and f"{high['theirs']:.5f}" in table_of(tmp_path)
    assert json.loads((tmp_path / "results.json").read_bytes()) == document


def test_parameter_counts(tmp_path: Path) -> None:
    document = reproduce(PARAMETER_COUNTS, tmp_path)
    assert [row["ours"] for row in document["rows"]] == [988_402, 1_008_100] and not document["error"]
    for row in document["rows"]:
        assert row["published"] == row["theirs"] == sum(term["counted"] for term in row["terms"])
    assert "| `head` | outputs × hidden_dim + outputs | 2 × 200 + 2 | 402 | 402 |" in table_of(tmp_path)
    wrong = replace(PARAMETER_COUNTS, published={"counting-classifier": 988_403})
    assert "counting-classifier" in reproduce(wrong, tmp_path / "wrong")["error"]


def test_attention_forms(tmp_path: Path) -> None:
    document = reproduce(replace(ATTENTION_FORMS, lengths=(2, 3)), tmp_path)
    assert len(document["rows"]) == 2 * 2 * 4 and not document["error"]
    for row in document["rows"]:
        assert 0 <= row["largest_error"] < 1e-5 and row["ours"] > 0 and row["interval"] is None
    assert is_picture(tmp_path / "times.png") and "| fused |" in table_of(tmp_path)


@pytest.mark.parametrize(
    ("draw", "measure"),
    [(draw_reversals, words), (draw_sums, digits), (draw_sentences, words)],
    ids=["reversal", "sums", "sentences"],
)
def test_lengths_of_splits_do_not_overlap(
    draw: Draw, measure: Measure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(positions, "GRAMMAR_PAIRS", 200)
    data = LengthData("data", draw, 2, 4, 40, 20, measure)
    for folder in ("one", "two"):
        data.write(tmp_path / folder)
    rows = {}
    for split, name in data.files().items():
        text = (tmp_path / "one" / name).read_text(encoding="utf-8")
        assert text == (tmp_path / "two" / name).read_text(encoding="utf-8")
        rows[split] = [line.split("\t") for line in text.splitlines()]
    lengths = {split: set(data.lengths(tmp_path / "one" / name)) for split, name in data.files().items()}
    assert lengths["train"] | lengths["validation"] <= {2, 3, 4} and lengths["test"] <= {5, 6, 7, 8}
    sources = [source for pairs in rows.values() for source, _ in pairs]
    assert len(set(sources)) == len(sources) == 80
    if draw is draw_sums:
        assert digits("12+345") == 2 and words("a b c") == 3
        assert all(eval(source) == int(target) for pairs in rows.values() for source, target in pairs)
    if draw is draw_reversals:
        assert all(source == target[::-1] for pairs in rows.values() for source, target in pairs)


def shrunk(task: LengthTask, draw: Draw, longest: int = 3) -> LengthTask:
    data = LengthData(task.data.name, draw, 2, longest, 30, 16, task.data.measure)
    return replace(task, data=data, options={**task.options, **TINY_MODEL, **TINY_TRAINING})


def test_positions_on_reversal(trained: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert THEORY.keys() == kinds(PositionConfig).keys()
    monkeypatch.setattr(positions, "MIN_EXAMPLES", 1)
    (task,) = POSITIONS.quick_tasks
    document = reproduce(replace(POSITIONS, tasks=[shrunk(task, draw_reversals)]), tmp_path)
    assert [row["position"] for row in document["rows"]] == sorted(kinds(PositionConfig))
    for row in document["rows"]:
        assert row["by_length"].keys() <= {"2", "3", "4", "5", "6"}
        assert 0 <= row["ours"] <= 1 and 0 <= row["beyond"] <= 1 and row["theory"] in table_of(tmp_path)
    assert is_picture(tmp_path / "lengths-plot.png") and str(tmp_path) not in table_of(tmp_path)
    by_length = document["rows"][0]["by_length"]
    trained.clear()
    study = replace(POSITIONS, tasks=[shrunk(task, draw_reversals)])
    again = reproduce(study, tmp_path)
    assert trained == [] and again["rows"][0]["by_length"] == by_length
    kept = reproduce(study, tmp_path / "other", keep=tmp_path / "results.json")
    assert trained == [] and kept["rows"][0] == {**again["rows"][0], "kept": ["ours"]}


def test_positions_with_generated_outputs(
    trained: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(positions, "GRAMMAR_PAIRS", 50)
    monkeypatch.setattr(positions, "kinds", lambda family: {"rotary": None})
    _, arithmetic, translation = POSITIONS.tasks
    tasks = [shrunk(arithmetic, draw_sums), shrunk(translation, draw_sentences, longest=6)]
    sums, sentences = reproduce(replace(POSITIONS, tasks=tasks), tmp_path)["rows"]
    assert (sums["decoded"], sums["decoded_beyond"]) == (0.0, 0.0)
    assert sentences["decoded"] is not None and 0 <= sentences["beyond"] < 1
    assert "exact_match, beyond" in table_of(tmp_path) and "bleu, beyond" in table_of(tmp_path)


def test_reversal_shows_a_model_of_each_state(trained: list[str], tmp_path: Path) -> None:
    reached = {0: 1.0, 1: 0.55, 2: 0.1, 3: 0.3}

    class Staged(ReversalStudy):
        def value(self, results: Results) -> float:
            return reached[results["seed"]]

    tiny = {"task.length": 4, "task.categories": 10, "task.train_examples": 64, "task.test_examples": 8}
    setting = Setting("4×10", None, "reversal", {**tiny, **TINY_MODEL, **TINY_TRAINING})
    study = Staged(**STAGED, settings=[setting])
    document = reproduce(study, tmp_path, seeds=4)
    assert [shown["state"] for shown in document["maps"]] == ["solved", "half-solved", "unsolved"]
    assert [shown["accuracy"] for shown in document["maps"]] == [1.0, 0.55, 0.1]
    for shown in document["maps"]:
        assert is_picture(tmp_path / shown["file"]) and shown["file"] in table_of(tmp_path)
    del reached[1], reached[3]
    (tmp_path / "few").mkdir()
    context = context_of(tmp_path, False)
    runs = [run for run in study.runs(context) if run.seed == 0]
    assert "No measured model is unsolved." in study.sections(study.extra_results(runs, [], context))


def test_reversal_stops_a_run_halfway_if_none_ended_half_solved(trained: list[str], tmp_path: Path) -> None:
    class Staged(ReversalStudy):
        def value(self, results: Results) -> float:
            return 0.6 if results["steps"] == 1 else 1.0

    tiny = {"task.categories": 10, "task.train_examples": 64, "task.test_examples": 8}
    setting = Setting("4×10", None, "reversal", {**tiny, "task.length": 4, **TINY_MODEL, **TINY_TRAINING})
    halfway = replace(setting, name="halfway", overrides={**setting.overrides, "training.max_steps": 1})
    study = Staged(**STAGED, settings=[setting], halfway=halfway)
    document = reproduce(study, tmp_path, seeds=1)
    assert [shown["setting"] for shown in document["maps"]] == ["4×10", "halfway"]
    assert [row["setting"] for row in document["rows"]] == ["4×10"]
    trained.clear()
    again = reproduce(study, tmp_path, seeds=1, keep=tmp_path / "results.json")
    assert trained == [] and again["maps"] == document["maps"] and again["commands"] == document["commands"]
    assert reproduce(study, tmp_path, seeds=1, trains=False)["maps"] == document["maps"]
    alone = reproduce(study, tmp_path / "ours", seeds=1, with_theirs=False)
    assert [shown["setting"] for shown in alone["maps"]] == ["4×10"]
    third = reproduce(study, tmp_path, seeds=1, keep=tmp_path / "results.json")
    assert third["rows"][0]["kept"] == again["rows"][0]["kept"] == ["ours"]


def test_their_recipe_of_reversal_is_the_published_one(tmp_path: Path) -> None:
    runs = REVERSAL_TABLE.runs(context_of(tmp_path, is_quick=False))
    theirs = {run.setting.name: run.job.config.dump() for run in runs if run.recipe == "theirs"}
    assert len(theirs) == 8
    for config in theirs.values():
        model, training = config["model"], config["training"]
        assert (model["hidden_dim"], model["num_layers"], model["num_heads"]) == (32, 1, 1)
        assert model["norm_placement"] == "post" and training["schedule"]["kind"] == "warmup-cosine"
        assert training["optimizer"] | {"kind": "adam", "learning_rate": 5e-4} == training["optimizer"]
        assert training["batch_tokens"] is None and training["batch_size"] == 128


@pytest.fixture
def talks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few lines in place of the TED set, some of them long."""
    folder = tmp_path / "data" / "ted_enfr"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for split in ("train", "dev", "test"):
        for language in ("en", "fr"):
            lines = [" ".join(rng.choice(list("abcdefgh"), count)) for count in [4, 6, 30, 5] * 5]
            (folder / f"{split}.{language}").write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.setenv("GLASSFORMER_DATA", str(tmp_path / "data"))


def shrunk_sets() -> list[Setting]:
    tiny = {**TINY_TRAINING, "model.num_heads": 2, "task.examples": 20, "training.max_steps": None}
    tiny |= {"training.max_epochs": 1}
    setting = TRANSLATION_SETS.settings[0]
    full = {path: value for path, value in setting.overrides.items() if path != "task.tokenizer"}
    full |= {**TINY_MODEL, **tiny, "task.tokenizer.vocabulary_size": 300}
    return [replace(setting, overrides=full, quick={**(setting.quick or {}), **TINY_MODEL, **tiny})]


def shrunk_full_size(steps: int) -> list[Setting]:
    setting = TRANSLATION_SETS.full_size[0]
    small = {"model.hidden_dim": 64, "model.feed_forward_dim": 64, "training.optimizer.learning_rate": 6e-3}
    small |= {"training.max_steps": steps, "training.validate_every": steps, "model.dropout": 0.0}
    return [replace(setting, overrides={**setting.overrides, **small}, theirs=None)]


@pytest.mark.usefixtures("talks")
@pytest.mark.parametrize("is_quick", [False, True])
def test_translation_sets(is_quick: bool, trained: list[str], tmp_path: Path) -> None:
    out = tmp_path / "study"
    study = replace(TRANSLATION_SETS, settings=shrunk_sets(), full_size=shrunk_full_size(steps=1))
    document = reproduce(study, out, is_quick=is_quick)
    row, *others = document["rows"]
    assert (row["setting"], row["published"], len(trained)) == ("ted-set-1", 37.45, 2 if is_quick else 3)
    (signature,) = document["signatures"]
    assert signature.startswith("BLEU|nrefs:1|") and signature in table_of(out)
    for recipe in ("theirs", "ours"):
        (points,) = row[f"{recipe}_validations"]
        assert points and all(point.keys() == {"epoch", "step", "loss", "bleu"} for point in points)
    assert 0 < row["commonest"] < 1 and is_picture(out / "training.png")
    assert ("No model was run at its full size." in table_of(out)) == is_quick
    if is_quick:
        assert not others and not document["error"]
    else:
        assert [other["setting"] for other in others] == ["ted-set-1, full size"]
        assert document["error"] == "our recipe did not memorise the pairs: ted-set-1, full size"
        assert "*did not train*" in table_of(out) and "Full size, memorised" in table_of(out)
        kept = (out / "data" / "short" / "train.en").read_text(encoding="utf-8").splitlines()
        assert len(kept) == 15 and max(len(line.split()) for line in kept) == 6
    page = gf.report(out, tmp_path / "report.html", samples=0, maps=0)
    assert page["title"] == study.title


@pytest.mark.usefixtures("talks")
def test_a_full_size_model_memorises_the_pairs(trained: list[str], tmp_path: Path) -> None:
    study = replace(TRANSLATION_SETS, settings=[], full_size=shrunk_full_size(steps=80))
    document = reproduce(study, tmp_path / "study")
    (row,) = document["rows"]
    assert row["ours_accuracy"][0] > 0.95 and not document["error"] and document["plot"] == []
    line = next(
        line for line in table_of(tmp_path / "study").splitlines() if line.startswith("| ted-set-1 | ")
    )
    assert f"{100 * row['ours_accuracy'][0]:.1f} % |" in line and "did not train" not in line


def test_the_full_size_is_the_published_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation_sets, "_write_short_pairs", lambda folder: None)
    runs = TRANSLATION_SETS.runs(context_of(tmp_path, is_quick=False))
    models = {(run.setting.name, run.recipe): run.job.config.dump()["model"] for run in runs}
    published = [(2, 8, 512, 0.1), (4, 8, 512, 0.2), (4, 12, 768, 0.2), (6, 12, 768, 0.1)]
    for number, (layers, heads, width, dropout) in enumerate(published, start=1):
        for recipe in ("ours", "theirs"):
            for name, divisor in ((f"ted-set-{number}", 4), (f"ted-set-{number}, full size", 1)):
                model = models[name, recipe]
                assert (model["num_layers"], model["num_heads"], model["dropout"]) == (layers, heads, dropout)
                assert model["hidden_dim"] == width // divisor


def document_of(output: str) -> dict[str, Any]:
    return dict(json.loads(output))


@pytest.mark.long
@pytest.mark.parametrize("name", STUDIES)
def test_every_quick_version_finishes(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = main(["reproduce", name, "--quick", "--out", str(tmp_path / "study"), "--json"])
    output = capfd.readouterr()
    if code == 2 and "not on this machine" in output.err:
        pytest.skip(f"{name} needs a data set: {output.err.strip().splitlines()[0]}")
    assert code == 0, output.err
    document = document_of(output.out)
    assert document["name"] == name and document["is_quick"] and document["rows"]
    assert all(
        {"setting", "published", "theirs", "ours", "interval", "seeds"} <= row.keys()
        for row in document["rows"]
    )
    gf.report(tmp_path / "study", tmp_path / "report.html", samples=0, maps=0)
    assert document["title"] in (tmp_path / "report.html").read_text(encoding="utf-8")
