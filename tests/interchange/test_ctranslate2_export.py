"""Export to CTranslate2: its own engine has our log-probabilities and outputs, or the export is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from glassformer.cli import main
from glassformer.core.errors import UserError
from glassformer.interchange.ctranslate2_export import CTranslate2Target
from glassformer.interchange.export import ExportSource, Verification, verify
from glassformer.runs.run import Run
from tests.interchange.small_runs import LANGUAGE, LLAMA, random_run, small_run

ctranslate2 = pytest.importorskip("ctranslate2")

TRANSLATION = {"task.kind": "translation", "task.examples": 1300, "task.max_length": 40}
BPE = {"task.tokenizer.kind": "bpe", "task.tokenizer.vocabulary_size": 400}
ARITHMETIC = {"task.kind": "arithmetic"}
TASKS: dict[str, dict[str, Any]] = {
    "translation, bpe": {**TRANSLATION, **BPE},
    "translation, unigram": {**TRANSLATION, **BPE, "task.tokenizer.kind": "unigram"},
    "translation, words": {**TRANSLATION, "task.tokenizer.kind": "words"},
    "translation, characters": {
        **TRANSLATION,
        "task.tokenizer.kind": "characters",
        "task.max_length": 100,
    },
    "translation, bytes": {**TRANSLATION, "task.tokenizer.kind": "bytes", "task.max_length": 120},
    "translation, two vocabularies": {**TRANSLATION, **BPE, "task.shared_vocabulary": False},
    "arithmetic": ARITHMETIC,
    "language model, words": LANGUAGE,
    "language model, bpe": {**LANGUAGE, **BPE},
    "language model, bytes": {**LANGUAGE, "task.tokenizer.kind": "bytes"},
    "language model, characters": {**LANGUAGE, "task.tokenizer.kind": "characters"},
    "counting": {"task.kind": "random-tokens", "task.target": "next"},
}


def verified(options: dict[str, Any], folder: Path, quantization: str | None = None) -> Verification:
    run = random_run(options)
    target, source = CTranslate2Target(quantization), ExportSource.of(run)
    assert not target.obstacles(source)
    target.write(source, folder)
    return verify(target, source, folder, source.examples())


@pytest.fixture(scope="module")
def translation(tmp_path_factory: pytest.TempPathFactory) -> Run:
    options = {**TRANSLATION, **BPE, "model.position.kind": "rotary"}
    return small_run(tmp_path_factory.mktemp("translation") / "run", options)


@pytest.fixture(scope="module")
def exported(translation: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return translation.export("ctranslate2", tmp_path_factory.mktemp("exported") / "out").folder


@pytest.mark.thorough
def test_translation_model_is_verified(exported: Path) -> None:
    found = json.loads((exported / "verification.json").read_text())
    assert found["engine"] == "ctranslate2" and found["examples"] == 64 and found["passed"]
    assert found["same_outputs"] == 1 and found["largest_difference"] < 1e-4
    names = {path.name for path in exported.iterdir()}
    assert {"model.bin", "config.json", "shared_vocabulary.json", "tokenizer.json", "options.json"} < names


@pytest.mark.thorough
def test_vocabulary_has_real_tokens(exported: Path, translation: Run) -> None:
    tokens = json.loads((exported / "shared_vocabulary.json").read_text())
    assert tokens[:5] == ["<pad>", "<unknown>", "<begin>", "<end>", "<mask>"] and len(set(tokens)) == len(
        tokens
    )
    assert len(tokens) == translation.task.task_type.vocabulary and "the" in "".join(tokens)


def test_language_model_is_verified(tmp_path: Path) -> None:
    found = verified({**LLAMA, "task.examples": 100}, tmp_path)
    assert found.passed and found.same_outputs == 1 and found.engine == "ctranslate2"


@pytest.mark.thorough
@pytest.mark.parametrize("name", TASKS)
def test_every_tokenizer_and_task(name: str, tmp_path: Path) -> None:
    found = verified({"model.position.kind": "rotary", **TASKS[name]}, tmp_path)
    assert found.passed and found.same_outputs == 1, found.first_difference


@pytest.mark.thorough
def test_int8_is_verified_with_its_own_limits(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", {**LLAMA, "training.max_steps": 60})
    found = run.export("ctranslate2", tmp_path / "out", quantization="int8").verification
    assert found.passed and 1e-4 < found.largest_difference < 1 and found.required_outputs == 0.5
    model = (tmp_path / "out" / "model.bin").stat().st_size
    run.export("ctranslate2", tmp_path / "float")
    assert model < 0.4 * (tmp_path / "float" / "model.bin").stat().st_size


def test_other_types_are_refused() -> None:
    with pytest.raises(UserError, match="does not have this type"):
        CTranslate2Target("int4")


def test_model_that_it_cannot_represent_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = small_run(tmp_path / "run", {**LANGUAGE, "model.position.kind": "t5"})
    code = main(["export", str(run.path), "--to", "ctranslate2", "--out", str(tmp_path / "out")])
    said = capsys.readouterr().err
    assert code == 2 and "model.position.kind: cannot go to ctranslate2" in said
    assert "train with model.position.kind=rotary, or export to onnx" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.thorough
def test_texts_with_odd_characters_have_the_same_tokens(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    texts = ["<end>", "a <mask> b", "\t\n  x", "é 字 😀", "\u200b", '"\\', "  two  spaces  "]
    for name in ("translation, bpe", "translation, bytes", "translation, unigram", "language model, words"):
        folder = tmp_path / name.replace(", ", "-")
        folder.mkdir()
        run = random_run(TASKS[name])
        CTranslate2Target().write(ExportSource.of(run), folder)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.encode_special_tokens = True
        vocabulary = json.loads(next(folder.glob("*vocabulary.json")).read_text())
        for text in texts:
            tokens, _ = run.task.read_input(text) if text.strip() else ([3], "")
            encoded = tokenizer.encode(text)
            if text.strip():
                assert encoded.ids == tokens.tolist(), (name, text)
            assert encoded.tokens == [vocabulary[number] for number in encoded.ids]
