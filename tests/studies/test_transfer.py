"""Transfer studies: the arms differ in their options only, and no arm sees a test text."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file
from transformers import BertConfig, BertModel

from glassformer.core.errors import UserError
from glassformer.data.catalogue import CatalogueFile
from glassformer.data.package_index import Package
from glassformer.datasets.reviews import review_texts, reviews
from glassformer.evaluation.intervals import student_interval
from glassformer.interchange.model_catalogue import MODELS, CatalogueModel
from glassformer.runs.experiment import resolve
from glassformer.runs.folder import RunFolder, differences
from glassformer.runs.transfer import MAY_DIFFER
from glassformer.storage.files import file_sha256
from glassformer.studies import STUDIES, transfer
from glassformer.studies import study as jobs
from glassformer.studies.study import Job, Log, StudyContext, reproduce
from glassformer.studies.transfer import (
    ARMS,
    FROZEN,
    SCRATCH,
    TransferOptions,
    TransferStudy,
    accuracy_chart,
)
from glassformer.studies.transfer_data import (
    BASELINE,
    PretrainingText,
    TestTexts,
    TextPlan,
    TextSource,
    gather_text,
    measure_baseline,
)
from glassformer.studies.transfer_imported import ImportedArm
from glassformer.tasks.classification import ClassificationConfig
from glassformer.training.trainer import StopSignals
from tests.interchange.foreign_models import BERT_SPECIAL, BERT_VOCABULARY, bert_tokenizer, save

TINY_MODEL = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "feed_forward_dim": 8}
TRANSFERS = [study for study in STUDIES.values() if isinstance(study, TransferStudy)]


@pytest.fixture
def study(tmp_path: Path) -> TransferStudy:
    """Reviews in files; the pre-training text contains two test reviews, one verbatim and one disguised."""
    data = {}
    for split, count in (("train", 40), ("validation", 20), ("test", 30)):
        data[split] = reviews(count, 0, split)
        lines = (f"{label}\t{text}\n" for text, label in data[split])
        (tmp_path / f"{split}.tsv").write_text("".join(lines), encoding="utf-8")
    texts = review_texts(60, 0)
    leaks = [data["test"][3][0], f"He said: «{data['test'][5][0].upper()}» and left."]
    (tmp_path / "more.txt").write_text("\n".join([*texts, *leaks, texts[0], ""]), encoding="utf-8")
    options = {
        "task": {
            "kind": "classification",
            "data": {split: str(tmp_path / f"{split}.tsv") for split in data}
            | {"columns": {"input": 1, "target": 0}},
            "max_length": 64,
        },
        "model": {"kind": "transformer", **TINY_MODEL},
        "training": {"batch_size": 10, "max_epochs": 3},
    }
    (tmp_path / "classifier.yaml").write_text(yaml.safe_dump(options), encoding="utf-8")
    return TransferStudy(
        name="tiny",
        title="Tiny",
        about="For the test.",
        classifier=str(tmp_path / "classifier.yaml"),
        pretraining="masked-language-model",
        labels=(10, None),
        options=TransferOptions(pretraining={"training.max_steps": 4}),
        text=TextPlan([TextSource({"train": str(tmp_path / "more.txt")})], ("train", "validation")),
        published={10: {SCRATCH.name: 0.75}},
        seeds=2,
    )


def backbone(run: Path) -> dict[str, Any]:
    store = RunFolder(run).checkpoints()
    tensors = load_file(store.folder / store.find("best") / "model.safetensors")
    return {name: tensor for name, tensor in tensors.items() if not name.startswith("head")}


def runs_of(folder: Path, row: dict[str, Any]) -> Iterator[RunFolder]:
    return (RunFolder(folder / "runs" / name) for name in row["runs"])


def test_the_arms_differ_in_their_options_only(
    study: TransferStudy, trained: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "study"
    document = reproduce(study, folder)
    rows = {(row["arm"], row["labels"]): row for row in document["rows"]}
    assert set(rows) == {(arm, n) for arm in [*(a.name for a in ARMS), BASELINE] for n in (10, 40)}
    assert len(trained) == 1 + 3 * 2 * 2

    pretraining = folder / "runs" / document["pretraining"]["run"]
    tokenizer = (pretraining / "tokenizer.json").read_bytes()
    configs = {}
    for (arm, labels), row in rows.items():
        if arm == BASELINE:
            continue
        for seed, run in enumerate(runs_of(folder, row)):
            assert (run.path / "tokenizer.json").read_bytes() == tokenizer
            assert run.config()["seed"] == seed
            validations = [event["accuracy"] for event in run.events if event["event"] == "validation"]
            assert row["accuracy_by_epoch"][seed] == validations and len(validations) == 3
            assert row["values"][seed] == run.results()["metrics"]["test"]["accuracy"]
            # A tie goes to the lower loss, so the tested epoch has the best accuracy, not always the first.
            assert validations[row["best_epoch"][seed] - 1] == max(validations)
        configs[arm, labels] = next(runs_of(folder, row)).config()
        assert row["ours"] == statistics.fmean(row["values"]) and row["interval"] == student_interval(
            row["values"]
        )
    for labels in (10, 40):
        changed = {
            path
            for arm in ARMS
            for path in differences(configs[SCRATCH.name, labels], configs[arm.name, labels])
        }
        assert changed == {"training.freeze", "training.start_from"}

    before = backbone(pretraining)
    for run in runs_of(folder, rows[FROZEN.name, 10]):
        after = backbone(run.path)
        assert after.keys() == before.keys() and all(after[name].equal(before[name]) for name in before)
    scratch = backbone(next(runs_of(folder, rows[SCRATCH.name, 10])).path)
    assert not any(scratch[name].equal(before[name]) for name in before if before[name].ndim > 1)

    table = (folder / "table.md").read_text(encoding="utf-8")
    assert f"{100 * rows[SCRATCH.name, 40]['ours']:.1f} %" in table and "about 75 %" in table
    assert document["pretraining"]["text"]["sha256"] in table
    assert json.loads((folder / "results.json").read_bytes()) == document
    assert (folder / "curves.png").read_bytes()[:4] == b"\x89PNG" and (folder / "curves.svg").exists()


@pytest.fixture
def with_imported(study: TransferStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TransferStudy:
    """Return the study with one more arm, whose model is a tiny encoder that is fetched already."""
    monkeypatch.setenv("GLASSFORMER_DATA", str(tmp_path / "data"))
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = BertConfig(vocab_size=len(BERT_VOCABULARY), max_position_embeddings=80, **sizes)
    folder = save(BertModel(config), bert_tokenizer(), tmp_path / "data" / "models" / "tiny", BERT_SPECIAL)
    files = tuple(
        CatalogueFile(path.name, path.stat().st_size, file_sha256(path)) for path in folder.iterdir()
    )
    package = Package("PyPI", "tiny", "1.0", "tiny.whl", 1, "")
    model = CatalogueModel("tiny", "tiny", "MIT", "https://example.org", "BertModel", 1, package, files)
    monkeypatch.setitem(MODELS, "tiny", model)
    options = {"training.optimizer.learning_rate": 1e-3, "training.layerwise_lr_decay": 0.9}
    arm = ImportedArm("Tiny, pre-trained elsewhere", "tiny", "Nobody trained it.", options)
    return replace(study, imported=(arm,), seeds=1, labels=(10,))


def test_an_imported_model_is_one_more_arm(
    with_imported: TransferStudy, trained: list[str], tmp_path: Path
) -> None:
    folder, lines = tmp_path / "study", list[str]()
    document = reproduce(with_imported, folder, log=lines.append)
    rows = {row["arm"]: row for row in document["rows"]}
    name = with_imported.imported[0].name
    assert list(rows) == [*(arm.name for arm in ARMS), name, BASELINE]
    run = next(runs_of(folder, rows[name]))
    assert run.config()["training"]["start_from"] == str(folder / "runs" / "tiny")
    assert (
        run.config()["model"]["pooling"] == {"kind": "mean"}
        and "[CLS]" in run.task_state()["tokenizer"]["model"]["vocab"]
    )
    assert any(name in line and "1 runs" in line and "MiB of memory" in line for line in lines)
    assert trained[-1] == f"10 labels, {name}, seed 0"
    (record,) = document["imported"]
    assert record["licence"] == "MIT" and record["package"] == "PyPI tiny 1.0"
    table = (folder / "table.md").read_text(encoding="utf-8")
    assert f"**{name}** is another model" in table and "Nobody trained it." in table
    trained.clear()
    assert reproduce(with_imported, folder)["rows"][3] == rows[name] and not trained


def test_a_model_that_is_not_fetched_is_omitted(
    with_imported: TransferStudy, trained: list[str], tmp_path: Path
) -> None:
    (tmp_path / "data" / "models" / "tiny" / "config.json").unlink()
    document = reproduce(with_imported, tmp_path / "study")
    assert document["left_out"] == {
        "Tiny, pre-trained elsewhere": "the model is not on this machine: glassformer models fetch tiny"
    }
    assert not document["imported"] and len(trained) == 4


def test_the_rows_that_are_finished(with_imported: TransferStudy, trained: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "study"
    with pytest.raises(UserError, match="the pre-training has not finished"):
        reproduce(with_imported, folder, trains=False)
    reproduce(with_imported, folder)
    (run,) = (folder / "runs").glob("10-labels-Tiny*-seed-0-*/")
    (run / "results.json").unlink()
    trained.clear()
    document = reproduce(with_imported, folder, trains=False)
    assert document["missing"] == ["10 labels, Tiny, pre-trained elsewhere, seed 0"] and not trained
    assert [row["arm"] for row in document["rows"]] == [*(arm.name for arm in ARMS), BASELINE]
    assert "**Not finished:** 1 run" in (folder / "table.md").read_text(encoding="utf-8")


def test_rows_of_an_earlier_measurement_are_kept(
    with_imported: TransferStudy, trained: list[str], tmp_path: Path
) -> None:
    """Only the arm that the earlier table does not have is trained; there is no pre-training either."""
    first = reproduce(replace(with_imported, imported=()), tmp_path / "first")
    trained.clear()
    earlier = tmp_path / "first" / "results.json"
    document = reproduce(with_imported, tmp_path / "second", keep=earlier)
    name = with_imported.imported[0].name
    assert trained == [f"10 labels, {name}, seed 0"]
    rows = {row["arm"]: row for row in document["rows"]}
    assert list(rows) == [*(arm.name for arm in ARMS), name, BASELINE]
    assert [row for row in rows.values() if row.pop("kept", False)] == first["rows"]
    assert document["pretraining"] == first["pretraining"] and document["imported"]
    table = (tmp_path / "second" / "table.md").read_text(encoding="utf-8")
    assert f"Reused from an earlier measurement: {SCRATCH.name}, " in table
    trained.clear()
    again = reproduce(with_imported, tmp_path / "third", keep=tmp_path / "second" / "results.json")
    assert not trained and again["imported"] == document["imported"]
    assert [row["values"] for row in again["rows"]] == [row["values"] for row in document["rows"]]


def test_finished_runs_are_reused_and_a_changed_option_is_another_run(
    study: TransferStudy, trained: list[str], tmp_path: Path
) -> None:
    study = replace(study, labels=(10,), seeds=1)
    first = reproduce(study, tmp_path / "study")
    trained.clear()
    assert [row["values"] for row in reproduce(study, tmp_path / "study")["rows"]] == [
        row["values"] for row in first["rows"]
    ]
    assert trained == []
    longer = replace(study, options=replace(study.options, pretraining={"training.max_steps": 5}))
    reproduce(longer, tmp_path / "study")
    assert trained == [
        "pre-training",
        "10 labels, frozen backbone, seed 0",
        "10 labels, full fine-tuning, seed 0",
    ]


def test_without_scikit_learn_the_baseline_is_omitted_and_that_is_reported(
    study: TransferStudy, trained: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "has_baseline", lambda: False)
    lines: list[str] = []
    document = reproduce(replace(study, labels=(10,), seeds=1), tmp_path / "study", log=lines.append)
    assert [row["arm"] for row in document["rows"]] == [arm.name for arm in ARMS]
    hint = "pip install 'glassformer[classic]'"
    assert any(hint in line for line in lines)
    assert hint in (tmp_path / "study" / "table.md").read_text(encoding="utf-8")


def test_no_test_text_is_pretrained_on(study: TransferStudy, tmp_path: Path) -> None:
    assert study.text is not None
    task = resolve(study.classifier).task
    assert isinstance(task, ClassificationConfig)
    # A limit on the labels does not limit the texts, which are read without labels.
    text = gather_text(study.text, task.model_copy(update={"train_limit": 2}), tmp_path, is_quick=False)
    lines = text.path.read_text(encoding="utf-8").splitlines()
    assert text.record["left_out"] == {"holds a test text": 2, "duplicate": 1, "empty": 0}
    assert len(lines) == text.record["lines"] == sum(text.record["by_source"].values())
    assert set(lines) >= {text for split in ("train", "validation") for text, _ in reviews(20, 0, split)}
    assert not any(text in line for line in lines for text, _ in reviews(30, 0, "test"))


def test_a_text_is_found_in_any_case_and_punctuation() -> None:
    test = TestTexts(["it's so laddish and juvenile , only boys like it . ", "so dull .", "!!!"])
    assert test.occur_in("They say IT’S SO LADDISH and juvenile, only boys like it, and I agree.")
    assert test.occur_in("So dull!")
    assert not test.occur_in("It was so dull that I left.")
    assert not test.occur_in("It's so laddish and juvenile, only boys like that.")
    assert not test.occur_in("…")


def test_text_is_rewritten_as_the_sentences_are(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "Well-made, isn\'t it?<br /><br />Yes!"}\n', encoding="utf-8")
    source = TextSource({"train": str(tmp_path / "a.jsonl"), "columns": {"input": "text"}}, as_polarity=True)
    assert [" ".join(text.split()) for text in source.texts()] == ["well-made , isn't it ? yes !"]


def test_the_baseline_ignores_the_test_labels(study: TransferStudy, tmp_path: Path) -> None:
    task = resolve(study.classifier, {"task.train_limit": 30}).task
    assert isinstance(task, ClassificationConfig)
    control = measure_baseline(task)
    file = tmp_path / "test.tsv"
    swapped = (
        file.read_text(encoding="utf-8").replace("negative\t", "-\t").replace("positive\t", "negative\t")
    )
    file.write_text(swapped.replace("-\t", "positive\t"), encoding="utf-8")
    turned = measure_baseline(task)
    assert (control.labels, control.test_examples) == (30, 30)
    assert turned.strength == control.strength
    assert turned.validation_accuracy == control.validation_accuracy
    assert turned.test_accuracy == pytest.approx(1 - control.test_accuracy)
    assert control.interval[0] <= control.test_accuracy <= control.interval[1]


@pytest.mark.parametrize("is_quick", [False, True])
@pytest.mark.parametrize("study", TRANSFERS, ids=lambda study: study.name)
def test_the_pretrained_model_is_the_classifiers(
    study: TransferStudy, is_quick: bool, tmp_path: Path
) -> None:
    context = StudyContext(tmp_path, is_quick, 1, 1, 1, True, lambda text: None)
    text = PretrainingText(tmp_path / "text-0.txt", {"sha256": "0"}) if study.text else None
    pretraining = study._pretraining_job(context, text).config
    for arm in ARMS:
        for labels in study.quick_labels if is_quick else study.labels:
            config = study._config(arm, labels, is_quick)
            differing = differences(pretraining.model.dump(), config.model.dump())
            assert all(not MAY_DIFFER.isdisjoint(path.split(".")) for path in differing), differing
            assert config.task.dump()["unseen_only"] and config.training.validate_every is None


def test_a_chart_has_one_line_per_arm_and_the_baseline_as_a_level() -> None:
    runs = [[0.5, 0.6, 0.9], [0.7, 0.8]]
    rows: list[dict[str, Any]] = [{"labels": 10, "arm": "a", "accuracy_by_epoch": runs}]
    without = accuracy_chart(rows)
    with_level = accuracy_chart([*rows, {"labels": 10, "arm": "b", "control": {"validation_accuracy": 0.65}}])
    assert without.title == "10 labels" and without.level is None and with_level.level == (BASELINE, 0.65)
    (line,) = without.lines
    assert line.points == [(1, pytest.approx(0.6)), (2, pytest.approx(0.7))]


def test_a_signal_is_handed_on_to_the_runs(
    study: TransferStudy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Otherwise a stopped study would leave its training processes running."""
    endless = [sys.executable, "-c", "import time; time.sleep(60)"]
    begun: list[subprocess.Popen[str]] = []

    def train(job: Job, threads: int, log: Log, signals: StopSignals) -> dict[str, Any]:
        child = subprocess.Popen(endless, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        begun.append(child)
        os.kill(os.getpid(), signal.SIGTERM)
        jobs._wait(child, job, log, signals)
        return {}

    monkeypatch.setattr(jobs, "_train", train)
    with pytest.raises(SystemExit) as stopped:
        reproduce(study, tmp_path / "study")
    assert stopped.value.code == 143
    assert [child.returncode for child in begun] == [-signal.SIGTERM]
