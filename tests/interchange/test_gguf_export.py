"""Target `gguf`: llama.cpp has our token ids, log-probabilities and texts, or the export is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer.cli import main
from glassformer.core.errors import UserError
from glassformer.interchange.export import ExportExample, ExportSource, Verification, greedy, verify
from glassformer.interchange.gguf_export import GGUFTarget
from glassformer.interchange.imports import import_model
from glassformer.runs.run import Run
from tests.interchange.foreign_models import llama_pieces, shaken, write_gguf
from tests.interchange.small_runs import LLAMA, random_run, small_run

gguf = pytest.importorskip("gguf")
pytest.importorskip("xllamacpp")

SMALL = {**LLAMA, "task.examples": 200}
BYTES = {"task.tokenizer.kind": "bytes", "task.max_length": 64}
BPE = {
    "task.tokenizer.kind": "bpe",
    "task.tokenizer.vocabulary_size": 400,
    "task.tokenizer.add_prefix_space": False,
    "task.max_length": 64,
}
CHARACTERS = {"task.tokenizer.kind": "characters", "task.max_length": 64}
UNIGRAM = {"task.tokenizer.kind": "unigram", "task.tokenizer.vocabulary_size": 400}
ODD_TEXTS = [
    "<end>",
    "a <mask> b <|im_end|> </s> <0x41>",
    "\t\n  x ",
    "é 字 😀 e\u0301 ‹ü›",
    "\u200b\u00a0",
    '"\\ {}',
    "  two  spaces  ",
    "don't I'll 12,345.67 WE'RE 's",
    "line\r\nbreak\n\n\nx",
    "▁x Ġy",
]


def verified(
    run: Run, folder: Path, quantization: str | None = None, texts: list[str] | None = None
) -> Verification:
    target, source = GGUFTarget(quantization), ExportSource.of(run)
    assert target.obstacles(source) == []
    target.write(source, folder)
    examples = source.examples(16)
    if texts is not None:
        examples = [ExportExample(text, run.task.parse(text).tolist()) for text in texts]
    return verify(target, source, folder, examples)


def test_language_model_is_verified_by_llama_cpp(tmp_path: Path) -> None:
    found = verified(random_run(SMALL), tmp_path)
    assert found.passed and found.same_outputs == 1 and found.examples == 16, found
    assert found.engine == "llama.cpp" and found.largest_difference < 1e-5
    assert "unknown token" in found.notes[0]
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


@pytest.mark.parametrize("options", [BYTES, BPE], ids=["bytes", "bpe"])
def test_every_text_has_the_same_tokens_and_continuation(tmp_path: Path, options: dict[str, Any]) -> None:
    found = verified(random_run({**SMALL, **options}), tmp_path, texts=ODD_TEXTS)
    assert found.passed and found.same_outputs == 1, found.first_difference
    assert found.notes == []


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{}, CHARACTERS], ids=["words", "characters"])
def test_every_known_text_has_the_same_tokens(tmp_path: Path, options: dict[str, Any]) -> None:
    run = random_run({**SMALL, **options, "task.examples": 1000})
    texts = [" ".join(text.split(" ")[-9:]) for text in run.task.input_texts("test", range(40))]
    texts = [text for text in texts if text[0].isalpha()]
    if options:
        texts = [text[:50] for text in texts]
        texts += [f" {texts[0]}", f"{texts[0][:20]}  two   spaces ", texts[1].replace(" ", "")]
    assert len(texts) > 20
    found = verified(run, tmp_path, texts=texts)
    assert found.same_outputs == 1 and found.examples == len(texts), found.first_difference


def test_unknown_words_of_the_data_are_an_obstacle() -> None:
    (found,) = GGUFTarget().obstacles(
        ExportSource.of(random_run({**SMALL, "task.tokenizer.min_frequency": 9}))
    )
    assert found.option == "task.tokenizer.kind"
    assert re.search(r"splits unknown words differently, and the data have [\d,]+ of them", found.reason)


@pytest.mark.parametrize(
    ("option", "reason", "remedy", "options"),
    [
        ("task.kind", "runs causal language models", "onnx", {"task.kind": "reversal"}),
        ("task.kind", "no tokenizer", "huggingface", {"task.kind": "random-tokens", "task.target": "next"}),
        (
            "task.tokenizer.add_prefix_space",
            "adds no space",
            "train with task.tokenizer.add_prefix_space=false",
            {**SMALL, **BPE, "task.tokenizer.add_prefix_space": True},
        ),
        ("task.tokenizer.kind", "does not know bytes", "tokenizer.kind=bpe", {**SMALL, **UNIGRAM}),
        (
            "task.tokenizer.lowercase",
            "lower case",
            "task.tokenizer.lowercase=false",
            {**SMALL, "task.tokenizer.lowercase": True},
        ),
        (
            "task.tokenizer.marks_spaces",
            "keeps the spaces",
            "task.tokenizer.marks_spaces=true",
            {**SMALL, "task.tokenizer.marks_spaces": False},
        ),
        (
            "model.output_bias",
            "no bias in its last layer",
            "train with model.output_bias=false",
            {**SMALL, "model.output_bias": True},
        ),
        (
            "model.position.kind",
            "the Llama of llama.cpp has rotary positions",
            "model.position.kind=rotary, or export to onnx",
            {**SMALL, "model.position.kind": "alibi"},
        ),
    ],
)
def test_what_llama_cpp_cannot_hold_is_refused_by_name(
    option: str, reason: str, remedy: str, options: dict[str, Any]
) -> None:
    rest = {name: value for name, value in SMALL.items() if name.startswith("model.")}
    (found,) = GGUFTarget().obstacles(ExportSource.of(random_run({**rest, **options})))
    assert found.option == option and reason in found.reason and remedy in found.remedy


@pytest.mark.thorough
@pytest.mark.parametrize("options", [BYTES, BPE], ids=["bytes", "bpe"])
def test_file_is_read_again_with_identical_weights(tmp_path: Path, options: dict[str, Any]) -> None:
    model = {"model.bias": True, "model.num_key_value_heads": 2, "model.input.scale": False}
    run = random_run({**SMALL, **options, **model})
    GGUFTarget().write(ExportSource.of(run), tmp_path)
    again = import_model(tmp_path / "model.gguf", tmp_path / "run")
    ours, theirs = run.model.state_dict(), again.model.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    examples = [ExportExample(text, run.task.parse(text).tolist()) for text in ("The room was é", *ODD_TEXTS)]
    assert all(again.task.parse(example.text).tolist() == example.tokens for example in examples)
    assert greedy(ExportSource.of(again), examples) == greedy(ExportSource.of(run), examples)


@pytest.mark.thorough
def test_imported_llama_goes_back(tmp_path: Path) -> None:
    """Pieces of SentencePiece have other special ids, and scores that are read from the merges."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(llama_pieces()[0]),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    model = shaken(transformers.LlamaForCausalLM(config))
    run = import_model(write_gguf(tmp_path / "given.gguf", model, None), tmp_path / "run")
    (tmp_path / "out").mkdir()
    found = verified(run, tmp_path / "out", texts=["once the note", " the  the then", "é 字 x"])
    assert found.passed and found.same_outputs == 1, found.first_difference


def test_other_types_are_refused() -> None:
    with pytest.raises(UserError, match="does not have this type"):
        GGUFTarget("q4_0")


@pytest.mark.thorough
def test_command_exports_and_quantises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = {"model.hidden_dim": 64, "model.feed_forward_dim": 80, "model.num_layers": 4}
    run = small_run(tmp_path / "run", {**LLAMA, **model, "training.max_steps": 60})
    sizes, differences = [], []
    for kind in (None, "f16", "q8_0"):
        out = tmp_path / str(kind)
        options = [] if kind is None else ["--quantization", kind]
        command = ["export", str(run.path), "--to", "gguf", "--out", str(out), "--json", *options]
        assert main(command) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["verified"]["passed"] and document["verified"]["examples"] == 64
        assert {"model.gguf", "README.md", "verification.json"} <= set(document["files"])
        sizes.append((out / "model.gguf").stat().st_size)
        differences.append(document["verified"]["largest_difference"])
    assert sizes[1] < 0.6 * sizes[0] and sizes[2] < 0.4 * sizes[0]
    assert differences[0] < 1e-4 < differences[1] < differences[2]
    assert main(["export", str(run.path), "--to", "gguf", "--out", str(tmp_path / "text")]) == 0
    said = capsys.readouterr().out
    assert "verified with llama.cpp" in said and "note: llama.cpp splits words" in said
