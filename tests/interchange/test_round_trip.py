"""Round trips: a model that goes to Hugging Face and comes back has the same weights and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from glassformer.core.errors import UserError
from glassformer.data.imported_tokenizers import ImportedTokenizer
from glassformer.interchange.converters import CONVERTERS
from glassformer.interchange.export import ExportSource, Obstacle, compute_logits, greedy, make_target, verify
from glassformer.interchange.huggingface_classes import CLASSES
from glassformer.interchange.huggingface_export import HuggingFaceTarget, find_class
from glassformer.interchange.imports import import_model
from glassformer.runs.run import Run
from tests.interchange.foreign_models import llama_pieces, shaken, write_gguf
from tests.interchange.small_runs import LLAMA, random_run

Options = Mapping[str, Any]

SIZE = {"task.examples": 200, "task.max_length": 40, "model.input.kind": "tokens"}
PLAIN = {"model.input.scale": False, "model.position.kind": "learned"}
CAUSAL = {**SIZE, "task.kind": "language-model", "model.output_bias": False}
MASKED = {**SIZE, "task.kind": "masked-language-model"}
POST = {"model.norm_placement": "post"}
BERT = {**PLAIN, **POST, "model.embedding_norm": True}
TRANSFORM = {"model.output.kind": "transform", "model.norm.epsilon": 1e-5, "model.output.epsilon": 1e-5}
BPE = {"task.tokenizer.kind": "bpe", "task.tokenizer.vocabulary_size": 400}
MODELS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {**LLAMA, **SIZE, "model.input.scale": False, "model.num_key_value_heads": 2},
    "GPT2LMHeadModel": {**CAUSAL, **PLAIN},
    "BertForMaskedLM": {**MASKED, **BERT, **TRANSFORM},
    "BertForSequenceClassification": {
        **SIZE,
        **BERT,
        "task.kind": "classification",
        "model.pooling.kind": "first",
        "model.pooling.transform": True,
    },
    "MarianMTModel": {
        **SIZE,
        **PLAIN,
        **POST,
        **BPE,
        "task.kind": "translation",
    },
}
TOKENIZERS: dict[str, dict[str, Any]] = {
    "words": {"task.tokenizer.kind": "words"},
    "lower case": {"task.tokenizer.kind": "words", "task.tokenizer.lowercase": True},
    "characters": {"task.tokenizer.kind": "characters"},
    "bytes": {"task.tokenizer.kind": "bytes"},
    "bpe": BPE,
    "bpe without a space": {**BPE, "task.tokenizer.add_prefix_space": False},
    "unigram": {**BPE, "task.tokenizer.kind": "unigram"},
}


def exported(run: Run, folder: Path) -> Path:
    target, source = HuggingFaceTarget(), ExportSource.of(run)
    assert target.obstacles(source) == []
    folder.mkdir(parents=True)
    target.write(source, folder)
    return folder


def there_and_back(run: Run, path: Path) -> Run:
    return import_model(exported(run, path / "folder"), path / "run")


def assert_same_outputs(run: Run, again: Run) -> None:
    source = ExportSource.of(run)
    examples = source.examples(8)
    assert len(examples) > 1
    for example in examples:
        assert again.task.parse(example.text).tolist() == example.tokens, example.text
    ours, theirs = (compute_logits(each.model, examples) for each in (run, again))
    assert all((mine == other).all() for mine, other in zip(ours, theirs, strict=True))
    (tokens, texts), (other_tokens, other_texts) = (
        greedy(source, examples),
        greedy(ExportSource.of(again), examples),
    )
    assert tokens == other_tokens and texts == other_texts


def test_every_class_that_can_be_imported_is_tested() -> None:
    assert {kind.name for kind in CLASSES} & CONVERTERS.keys() == MODELS.keys()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_weights_and_outputs_are_identical(tmp_path: Path, name: str, tied: bool) -> None:
    options = {**MODELS[name], "model.tied_output": tied and name != "BertForSequenceClassification"}
    run = random_run(options)
    assert find_class(ExportSource.of(run)).name == name
    again = there_and_back(run, tmp_path)
    ours, theirs = run.model.state_dict(), again.model.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[key]) for key, tensor in ours.items())
    assert_same_outputs(run, again)


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "BertForMaskedLM"])
def test_scaled_embedding_is_stored_multiplied(tmp_path: Path, name: str) -> None:
    """The second export has the bits of the first one, also for options that no class has as such."""
    run = random_run({**MODELS[name], "model.input.scale": True, "model.tied_output": True})
    again = there_and_back(run, tmp_path)
    first, second = (
        load_file(folder / "model.safetensors")
        for folder in (tmp_path / "folder", exported(again, tmp_path / "again"))
    )
    assert first.keys() == second.keys()
    assert all(torch.equal(tensor, second[key]) for key, tensor in first.items())


@pytest.mark.thorough
@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("name", ["LlamaForCausalLM", "BertForMaskedLM", "MarianMTModel"])
def test_every_tokenizer_comes_back(tmp_path: Path, name: str, tokenizer: str) -> None:
    chosen = {key: value for key, value in MODELS[name].items() if not key.startswith("task.tokenizer")}
    run = random_run({**chosen, "task.max_length": 150, **TOKENIZERS[tokenizer]})
    assert_same_outputs(run, there_and_back(run, tmp_path))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Starcoder2ForCausalLM", {**CAUSAL, "model.position.kind": "rotary"}),
        ("EuroBertForMaskedLM", {**LLAMA, **MASKED}),
    ],
)
def test_classes_that_cannot_be_imported_are_refused_by_name(
    tmp_path: Path, name: str, options: Options
) -> None:
    folder = exported(random_run(options), tmp_path / "folder")
    with pytest.raises(UserError, match=f"models of the class '{name}' cannot be imported"):
        import_model(folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["BertForMaskedLM", "BertForSequenceClassification", "MarianMTModel"])
def test_imported_models_go_to_every_target(tmp_path: Path, name: str) -> None:
    """Special tokens of an imported model have ids and names of their own."""
    pytest.importorskip("onnxruntime")
    again = there_and_back(random_run(MODELS[name]), tmp_path)
    assert isinstance(again.task.tokenizer, ImportedTokenizer)  # type: ignore[attr-defined]
    assert_verified(again, tmp_path, refused={"gguf"})


@pytest.mark.thorough
def test_sentencepiece_goes_to_every_target(tmp_path: Path) -> None:
    """The begin token of Llama has the id 1, and not 2 as ours."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(llama_pieces()[0]),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
    )
    model = shaken(transformers.LlamaForCausalLM(config))
    run = import_model(write_gguf(tmp_path / "given.gguf", model, None), tmp_path / "run")
    assert assert_verified(run, tmp_path, refused=set()) == ["ctranslate2", "gguf", "huggingface", "onnx"]


def assert_verified(run: Run, folder: Path, refused: set[str]) -> list[str]:
    """Export to all targets with an engine in Python, and return those that were not refused."""
    source, exact = ExportSource.of(run), []
    for name in ("ctranslate2", "gguf", "huggingface", "onnx"):
        target = make_target(name)
        obstacles: list[Obstacle] = target.obstacles(source)
        if obstacles:
            assert name in refused or obstacles[0].option == "task.kind", obstacles
            continue
        (folder / name).mkdir()
        target.write(source, folder / name)
        found = verify(target, source, folder / name, source.examples(8))
        assert found.passed and found.same_outputs == 1, (name, found)
        exact.append(name)
    return exact
