"""Model cards: true to the run's files, valid as metadata, and closed to markup in names and labels."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from glassformer.data import catalogue
from glassformer.data.catalogue import CatalogueFile, DataSet
from glassformer.interchange import model_card
from glassformer.interchange.export import ExportSource, LoadingScript, Verification, make_target
from glassformer.interchange.imports import import_model
from glassformer.interchange.model_card import CARD, FOLDERS, MAP, RunFacts, write_card
from glassformer.plotting.markup import code_block, escape_markdown, markdown_code
from glassformer.runs.experiment import resolve
from glassformer.runs.folder import RunFolder
from glassformer.runs.run import Run
from glassformer.runs.session import TrainingSession
from tests.interchange.foreign_models import write_llama2c
from tests.interchange.small_runs import LANGUAGE, small_run

SMALL = {
    "model.num_layers": 1,
    "model.num_heads": 2,
    "model.hidden_dim": 16,
    "model.feed_forward_dim": 16,
    "training.max_steps": 2,
    "training.threads": 1,
}
PROOF = Verification(64, 2.5e-7, 1.0, 1e-5, "onnxruntime", "1.0", "test")
HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "[click](https://evil.example)",
    "![x](https://evil.example/x.png)",
    "`code` | cell \\| *bold* _under_",
    "--- # not: {a: [yaml",
    "---",
    "!!python/object:os.system",
    "https://evil.example www.evil.example someone@evil.example",
    "\u202eright to left\u202c",
]


def card_of(run: Run, folder: Path, to: str = "onnx", **options: Any) -> tuple[str, dict[str, Any]]:
    """Write the card of a run; return its Markdown and its metadata."""
    source = ExportSource.of(run)
    folder.mkdir()
    write_card(make_target(to, **options), source, folder, PROOF, source.examples(8))
    text = (folder / CARD).read_text(encoding="utf-8")
    _, head, body = text.split("---\n", 2) if text.count("\n---\n") == 1 else ("", "", "")
    assert head, "the metadata do not end at the first ---"
    return body, yaml.safe_load(head)


def elements(body: str) -> list[Token]:
    """Return all tokens of a page, nested ones included."""
    tokens = MarkdownIt("commonmark", {"html": True, "linkify": False}).enable("table").parse(body)
    return [each for token in tokens for each in (token, *(token.children or ()))]


def table(folder: Path, labels: list[str], name: str = "reviews.tsv") -> Path:
    """Write a table of texts with these labels."""
    rows = [
        f"the film number {row} was {'good' if row % 2 else 'bad'}\t{labels[row % len(labels)]}"
        for row in range(120)
    ]
    path = folder / name
    path.write_text("text\tlabel\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path


def classifier(folder: Path, labels: list[str], **more: Any) -> Run:
    options = {
        **SMALL,
        "task.data.train": str(table(folder, labels, more.pop("file", "reviews.tsv"))),
        "task.tokenizer.kind": "words",
        "task.max_length": 12,
        "task.data.test_fraction": 0.2,
    }
    path = folder / more.pop("run", "run")
    TrainingSession(resolve("classification", {**options, **more}), RunFolder(path)).run()
    return Run(path, device="cpu")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return classifier(tmp_path_factory.mktemp("card"), ["good", "bad"])


def test_every_number_comes_from_the_run(run: Run, tmp_path: Path) -> None:
    body, head = card_of(run, tmp_path / "out")
    results = json.loads((run.path / "results.json").read_text())
    about = json.loads((run.path / "environment.json").read_text())
    own = head["glassformer"]
    assert own["parameters"] == results["parameters"] and own["seed"] == results["seed"]
    assert own["data_sha256"] == about["data_sha256"] and own["versions"]["torch"] == about["torch"]
    assert own["verification"] == PROOF.document()
    assert own["data_licence"] == "not stated"
    (index,) = head["model-index"]
    found = {
        (each["dataset"]["split"], one["type"]): one for each in index["results"] for one in each["metrics"]
    }
    for split, metrics in results["metrics"].items():
        for name, value in metrics.items():
            assert found[split, name]["value"] == value
            assert found[split, name].get("interval") == results["intervals"][split].get(name)
    assert "2.5e-07" in body and about["data_sha256"] in body
    assert (tmp_path / "out" / MAP).read_bytes().startswith(b"\x89PNG")
    assert f"]({MAP})" in body and "from run import Model" in body


def test_files_have_checksums_and_no_folders(run: Run, tmp_path: Path) -> None:
    body, head = card_of(run, tmp_path / "out")
    data = Path(run.config.task.data.train)  # type: ignore[attr-defined]
    assert head["glassformer"]["data_files"] == {
        "train: reviews.tsv": hashlib.sha256(data.read_bytes()).hexdigest()
    }
    assert str(data.parent) not in body and str(data.parent) not in json.dumps(head)
    assert "task.data.train=reviews.tsv" in head["glassformer"]["train_command"]


def test_licence_of_a_known_file(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Path(run.config.task.data.train)  # type: ignore[attr-defined]
    file = CatalogueFile("a.tsv", data.stat().st_size, hashlib.sha256(data.read_bytes()).hexdigest())
    known = DataSet("films", "", "CC BY 4.0 (someone)", "https://films.example", (file,), ())
    monkeypatch.setitem(catalogue.CATALOGUE, "films", known)
    body, head = card_of(run, tmp_path / "out")
    assert head["glassformer"]["data_licence"] == "CC BY 4.0 (someone)" and head["datasets"] == ["films"]
    assert "films/a.tsv" in body and "<https://films.example>" in body


def test_changed_data_are_not_listed(tmp_path: Path) -> None:
    run = classifier(tmp_path, ["good", "bad"])
    table(tmp_path, ["bad", "good"])
    body, head = card_of(Run(run.path), tmp_path / "out")
    assert "have changed since the training" in body and not head["glassformer"]["data_files"]


def test_results_of_another_checkpoint_are_left_out(run: Run, tmp_path: Path) -> None:
    document = json.loads((run.path / "results.json").read_text())
    facts = RunFacts.read(ExportSource.of(run))
    assert facts.metrics
    run.checkpoint, best = "step-00000001", run.checkpoint
    try:
        body, head = card_of(run, tmp_path / "out")
    finally:
        run.checkpoint = best
    assert "model-index" not in head and f"belong to the checkpoint `{best}`" in body
    assert str(document["metrics"]["test"]["loss"]) not in body


@pytest.mark.thorough
def test_quantised_weights_are_named(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", {**LANGUAGE, "model.position.kind": "rotary"})
    body, _ = card_of(run, tmp_path / "out", "ctranslate2", quantization="int8")
    assert "measured before the weights were quantised" in body


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    """Labels, file and run names that look like YAML, Markdown and HTML."""
    run = classifier(tmp_path, HOSTILE, file="<b>[x](y)|`--- .tsv", run="# <i>run")
    body, head = card_of(run, tmp_path / "out")
    found = elements(body)
    assert not [each for each in found if each.type.startswith("html") or each.type == "link_open"]
    assert [each.attrs["src"] for each in found if each.type == "image"] == [MAP]
    headings = [found[number + 1].content for number, each in enumerate(found) if each.type == "heading_open"]
    assert headings[1:] == ["Warnings", "Load it", "Results", "Data", "Training", "Proof", "Attention"]
    codes = {each.content for each in found if each.type == "code_inline"}
    assert {"<img src=x onerror=alert(1)>", "`code` | cell \\| *bold* _under_", "---"} <= codes
    assert "\u202e" not in body
    assert set(head) == {"library_name", "pipeline_tag", "tags", "model-index", "glassformer"}
    rows = [each for each in found if each.type == "td_open"]
    assert rows and len(rows) % 4 == 0  # a bar in a name does not add a cell
    assert head["model-index"][0]["name"] == "# <i>run"


def test_metadata_are_those_of_a_model_card(run: Run, tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    card_of(run, tmp_path / "out")
    card = hub.ModelCard.load(tmp_path / "out" / CARD)
    assert card.data.library_name == "onnxruntime" and card.data.pipeline_tag == "text-classification"
    assert {result.metric_type for result in card.data.eval_results} >= {"accuracy", "loss"}


@pytest.mark.thorough
def test_imported_model_states_its_origin(tmp_path: Path) -> None:
    source = write_llama2c(tmp_path / "foreign")
    provenance = {"licence": "mit", "address": "https://origin.example/<x>"}
    run = import_model(source, tmp_path / "run", provenance=provenance)
    body, head = card_of(run, tmp_path / "out")
    sums = head["glassformer"]["imported"]["sha256"]
    assert sums["tiny.bin"] == hashlib.sha256(source.read_bytes()).hexdigest() and sums["tiny.bin"] in body
    assert head["license"] == "mit" and "licence of the model: mit" in body
    assert "not the data of the original training" in body and "## Training" not in body
    assert "https://origin.example/<x>" not in body  # it is text, not a link
    unknown, head = card_of(import_model(source, tmp_path / "other"), tmp_path / "without")
    assert "licence of the model: not stated" in unknown and "license" not in head


@pytest.mark.thorough
def test_large_models_show_some_heads(tmp_path: Path) -> None:
    options = {"model.num_layers": 6, "model.num_heads": 8, "model.hidden_dim": 16}
    run = classifier(tmp_path, ["good", "bad"], **options)
    body, _ = card_of(run, tmp_path / "out")
    assert "Shown: layers 0, 2, 3, 5 of 6, 6 of 8 heads." in body


def test_config_without_a_preset_is_shown(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_card, "train_command", lambda *arguments: None)
    body, head = card_of(run, tmp_path / "out")
    assert "```yaml\ntask:\n  kind: classification" in body and head["glassformer"]["train_command"] is None


def test_folders_leave_a_text() -> None:
    text = "WARNING: test (/home/me/my.csv:3) and /data/a.tsv; and/or https://a.b/c/d, 1/2, ../x/y"
    assert FOLDERS.sub("", text) == text.replace("/home/me/", "").replace("/data/", "")


@given(st.text(max_size=60))
def test_escaped_text_is_one_paragraph(text: str) -> None:
    body = f"- {escape_markdown(text)} {markdown_code(text)}"
    kinds = {each.type for each in elements(body)}
    expected = {"bullet_list_open", "list_item_open", "paragraph_open", "inline", "text", "code_inline"}
    expected |= {kind.replace("open", "close") for kind in expected}
    assert kinds <= {*expected, "text_special"}


@given(st.text(st.sampled_from("`~ \nabc"), max_size=40))
def test_block_of_code_ends_at_its_end(text: str) -> None:
    block, after = [
        each for each in elements(f"{code_block('sh', text)}\n\nafter") if each.type in ("fence", "inline")
    ]
    assert block.content.strip() == text.rstrip().strip() or not text.strip()
    assert after.content == "after"


@given(st.text(max_size=40), st.text(max_size=40))
def test_script_holds_any_text(folder: str, text: str) -> None:
    """Strings of the script are those given, as far as they can be printed."""
    code = LoadingScript("", "values = [FOLDER, TEXT]").fill(folder, text)
    values = yaml.safe_load(code.partition("= ")[2]) if code.isascii() else None
    if values is not None and "/" not in text + folder:
        assert values == [folder, text]
    assert "\n" not in code
