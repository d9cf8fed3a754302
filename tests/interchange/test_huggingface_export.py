"""Target `huggingface`: every combination of options is exact in a stock class, or refused by name."""

from __future__ import annotations

import importlib.util
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassformer.interchange import export as flow
from glassformer.interchange.export import ENGINES, ExportPlan, ExportSource, Outputs, verify
from glassformer.interchange.exported_tokenizer import source_tokenizer
from glassformer.interchange.huggingface_export import HuggingFaceTarget, _write_tokenizer, find_class
from glassformer.tasks.base import Task
from tests.interchange.small_runs import random_run, small_config

transformers = pytest.importorskip("transformers")

Options = Mapping[str, Any]
TARGET = HuggingFaceTarget()
LANGUAGE = {"task.kind": "language-model", "task.examples": 200, "task.max_length": 24}
MASKED = {**LANGUAGE, "task.kind": "masked-language-model"}
SEQUENCES = {"task.train_examples": 50, "task.validation_examples": 30, "task.test_examples": 30}
LABELS = {"task.kind": "reversal", "task.length": 12, **SEQUENCES}
CLASSES = {"task.kind": "random-tokens", "task.length": 12, "task.categories": 20, **SEQUENCES}
REVIEWS = {"task.kind": "classification", "task.examples": 200, "task.max_length": 24}
PAIRS = {
    "task.kind": "translation",
    "task.examples": 300,
    "task.max_length": 40,
    "task.tokenizer.kind": "bpe",
    "task.tokenizer.vocabulary_size": 400,
}
TWO_VOCABULARIES = {
    "task.kind": "translation",
    "task.examples": 300,
    "task.tokenizer.kind": "words",
    "task.shared_vocabulary": False,
}
ROTARY = {"model.position.kind": "rotary"}
GATED = {**ROTARY, "model.norm.kind": "rms", "model.feed_forward.kind": "swiglu"}
PLAIN = {"model.output_bias": False}
LAST = {"model.is_causal": True, "model.pooling.kind": "last", **PLAIN}
FIRST = {"model.pooling.kind": "first", "model.pooling.transform": True}
POST = {"model.norm_placement": "post"}
BERT = {**POST, "model.embedding_norm": True}
TRANSFORM = {"model.output.kind": "transform"}
_tasks: dict[str, Task] = {}


@pytest.fixture(autouse=True, scope="module")
def engine_in_this_process() -> Iterator[None]:
    """Run the engine without a child process, because importing transformers takes seconds."""
    specification = importlib.util.spec_from_file_location("engine", ENGINES / TARGET.engine)
    assert specification is not None and specification.loader is not None
    engine = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(engine)

    def run(script: Path, folder: Path, request: Mapping[str, Any]) -> tuple[Outputs, dict[str, Any]]:
        (folder / "request").write_text(json.dumps(request))
        engine.main(str(folder), str(folder / "request"), str(folder / "answer"))
        document = json.loads((folder / "answer.json").read_text())
        with np.load(folder / "answer.npz") as arrays:
            logits = [arrays[str(number)] for number in range(len(arrays.files))]
        return Outputs(logits, document["tokens"], document.get("texts"), document["inputs"]), document

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flow, "run_engine", run)
        patch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        yield


def task_of(options: Options) -> Task:
    """Return the task with these options, built once."""
    key = json.dumps({name: value for name, value in options.items() if name.startswith("task.")})
    if key not in _tasks:
        _tasks[key] = small_config(options).task.build(0)
    return _tasks[key]


def source(options: Options) -> ExportSource:
    return ExportSource.of(random_run(options, task_of(options)))


def check(options: Options, folder: Path, name: str | None = None, count: int = 8) -> None:
    """Export a random model, run it with transformers, and compare all outputs."""
    model = source(options)
    assert TARGET.obstacles(model) == []
    folder.mkdir()
    TARGET.write(model, folder)
    found = verify(TARGET, model, folder, model.examples(count))
    assert found.passed, (options, found)
    assert name is None or find_class(model).name == name


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("LlamaForCausalLM", {**LANGUAGE, **GATED, **PLAIN, "model.bias": False}),
        ("Starcoder2ForCausalLM", {**LANGUAGE, **ROTARY, **PLAIN, "model.num_key_value_heads": 2}),
        ("GPT2LMHeadModel", {**LANGUAGE, **PLAIN, "model.position.kind": "learned"}),
        ("EuroBertForMaskedLM", {**MASKED, **GATED, "model.tied_output": True}),
        ("BertForMaskedLM", {**MASKED, **BERT, **TRANSFORM, "model.position.kind": "learned"}),
        ("XLMRobertaXLForMaskedLM", {**MASKED, **TRANSFORM}),
        ("EuroBertForTokenClassification", {**LABELS, **GATED}),
        ("BertForTokenClassification", {**LABELS, **BERT}),
        ("XLMRobertaXLForTokenClassification", {**LABELS, "model.input.kind": "one-hot"}),
        ("LlamaForTokenClassification", {**LABELS, **GATED, "model.is_causal": True}),
        ("GPT2ForTokenClassification", {**LABELS, "model.is_causal": True}),
        ("LlamaForSequenceClassification", {**CLASSES, **GATED, **LAST}),
        ("Starcoder2ForSequenceClassification", {**CLASSES, **ROTARY, **LAST}),
        ("BertForSequenceClassification", {**CLASSES, **BERT, **FIRST}),
        ("BertForSequenceClassification", {**REVIEWS, **BERT, **FIRST}),
        ("MarianMTModel", {**PAIRS, **POST, "model.tied_output": True}),
        ("MarianMTModel", {**PAIRS, **POST, "task.shared_vocabulary": False}),
        ("PegasusForConditionalGeneration", {**PAIRS, "model.num_key_value_heads": 1}),
        ("BlenderbotForConditionalGeneration", {**PAIRS, "model.position.kind": "learned"}),
        ("BlenderbotForConditionalGeneration", {"task.kind": "arithmetic", "model.position.kind": "learned"}),
        ("LlamaForCausalLM", {**CLASSES, "task.target": "next", **GATED, **PLAIN}),
    ],
)
def test_each_class_gives_the_same_outputs(tmp_path: Path, name: str, options: Options) -> None:
    check(options, tmp_path / "out", name)


@pytest.mark.parametrize(
    ("option", "reason", "options"),
    [
        ("model.output_bias", "no bias in its last layer", {**LANGUAGE, **GATED}),
        ("model.position.kind", "rotary positions", {**LANGUAGE, **PLAIN, "model.position.kind": "alibi"}),
        ("model.position.kind", "no encoder-decoder", {**PAIRS, **ROTARY}),
        ("model.pooling.kind", "pools by mean", CLASSES),
        ("model.pooling.transform", "pools by first", {**CLASSES, **BERT, "model.pooling.kind": "first"}),
        ("model.norm_placement", "after the sublayers", {**CLASSES, **FIRST}),
        ("model.norm_placement", "before the sublayers", {**LANGUAGE, **PLAIN, **POST}),
        ("model.final_norm", "no norm after the last block", {**PAIRS, **POST, "model.final_norm": True}),
        ("model.norm.epsilon", "add 1e-05", {**PAIRS, "model.norm.epsilon": 1e-3}),
        ("model.output.kind", "one linear output layer", {**LABELS, "model.output.kind": "mlp"}),
        ("model.embedding_norm", "a norm after the embedding", {**LABELS, **POST}),
        ("model.feed_forward.kind", "networks of two layers", {**PAIRS, "model.feed_forward.kind": "swiglu"}),
        ("model.norm_placement", "after the sublayers", TWO_VOCABULARIES),
    ],
)
def test_what_no_class_represents_is_refused_with_a_remedy(
    option: str, reason: str, options: Options
) -> None:
    found = TARGET.obstacles(source(options))
    assert option in [obstacle.option for obstacle in found]
    (chosen,) = [obstacle for obstacle in found if obstacle.option == option]
    assert reason in chosen.reason
    assert "onnx" in chosen.remedy


ALL_POSITIONS = ("none", "sinusoidal", "learned", "simple", "relative", "t5", "alibi", "rotary")
TABLES = ("none", "sinusoidal", "learned", "simple")
NETWORKS = ("relu", "gelu", "silu", "swiglu")


def combinations() -> Iterator[dict[str, Any]]:
    """Return every combination of norm, placement, network, key/value heads, tying and scale."""
    names = (
        "model.norm.kind",
        "model.norm_placement",
        "model.feed_forward.kind",
        "model.num_key_value_heads",
        "model.tied_output",
        "model.input.scale",
        "model.bias",
    )
    values = (
        ("layer", "rms", "none"),
        ("pre", "post"),
        NETWORKS,
        (None, 2),
        (False, True),
        (False, True),
        (False, True),
    )
    for chosen in itertools.product(*values):
        yield {"model.input.kind": "tokens", **dict(zip(names, chosen, strict=True))}


def is_expected(task: str, position: str, options: Options) -> bool:
    """Return True if a class of the issue's table has these options: written down apart from the code."""
    norm, placement = options["model.norm.kind"], options["model.norm_placement"]
    is_gated = options["model.feed_forward.kind"] == "swiglu"
    llama = position == "rotary" and norm == "rms" and placement == "pre" and is_gated
    plain = norm == "layer" and not is_gated
    if task == "causal":
        return llama or (plain and placement == "pre" and position in (*TABLES, "rotary"))
    if task == "pairs":
        return plain and position in TABLES
    return llama or (plain and placement == "pre" and position in TABLES and task == "labels")


@pytest.mark.thorough
@pytest.mark.parametrize("position", ALL_POSITIONS)
@pytest.mark.parametrize("task", ["causal", "masked", "labels", "pairs"])
def test_every_combination_is_exact_or_refused(tmp_path: Path, task: str, position: str) -> None:
    base = {
        "causal": {**LANGUAGE, **PLAIN},
        "masked": MASKED,
        "labels": LABELS,
        "pairs": PAIRS,
    }[task]
    for number, options in enumerate(combinations()):
        if task == "labels" and options["model.tied_output"]:
            continue
        chosen = {**base, "model.position.kind": position, **options}
        obstacles = TARGET.obstacles(ExportPlan(small_config(chosen).model, task_of(chosen)))
        assert bool(obstacles) != is_expected(task, position, options), (chosen, obstacles)
        if not obstacles:
            check(chosen, tmp_path / str(number), count=3)


@pytest.mark.thorough
@pytest.mark.parametrize("position", [*TABLES, "rotary"])
@pytest.mark.parametrize("network", ["relu", "gelu", "silu"])
@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_every_masked_model_with_a_transform(
    tmp_path: Path, position: str, network: str, scale: bool, tied: bool
) -> None:
    for shape, name in ((BERT, "BertForMaskedLM"), ({}, "XLMRobertaXLForMaskedLM")):
        options = {
            **MASKED,
            **shape,
            **TRANSFORM,
            "model.position.kind": position,
            "model.feed_forward.kind": network,
            "model.input.kind": "tokens",
            "model.input.scale": scale,
            "model.tied_output": tied,
        }
        if position == "rotary" or (shape and network != "gelu"):
            assert TARGET.obstacles(source(options))
        else:
            check(options, tmp_path / name, name)


TEXTS = [
    "</s> hello <s> [MASK]",
    "é漢字 ‹ü› \u0301 x",
    "  two  spaces ",
    "tab\tand\nline",
    "don't I'll 12,345.67",
    "▁x Ġy <0x41>",
]
NAMES = "The <pad> was <begin><end> nice <unknown> <mask>."
MASKS = ["<mask> the <mask>, <mask>.", "x<mask><mask>y", "a   <mask>   b", "<mask>tour", "(<mask>)"]
TOKENIZERS: dict[str, dict[str, Any]] = {
    "words": {"kind": "words"},
    "lower case": {"kind": "words", "lowercase": True},
    "no spaces": {"kind": "words", "marks_spaces": False},
    "characters": {"kind": "characters"},
    "bytes": {"kind": "bytes"},
    "bpe": {"kind": "bpe", "vocabulary_size": 400},
    "unigram": {"kind": "unigram", "vocabulary_size": 400},
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizer_gives_the_same_ids_and_texts(tmp_path: Path, name: str, masked: bool) -> None:
    options = {f"task.tokenizer.{option}": value for option, value in TOKENIZERS[name].items()}
    model = source({**(MASKED if masked else LANGUAGE), **options, "task.max_length": 200})
    _write_tokenizer(source_tokenizer(model.task), model, tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = model.source_tokens.tokenizer
    assert ours is not None
    for text in [f"{text} <mask>" for text in TEXTS] + MASKS if masked else [*TEXTS, NAMES]:
        ids = model.task.parse(text).tolist()
        assert tokenizer(text)["input_ids"] == ids, text
        plain = [number for number in ids if number >= 5]
        assert tokenizer.decode(plain, skip_special_tokens=True) == ours.decode(plain)
    assert (tokenizer.pad_token_id, tokenizer.mask_token_id) == (0, 4)


def test_padded_batches_generate_what_single_texts_do(tmp_path: Path) -> None:
    model = source({**LANGUAGE, **GATED, **PLAIN})
    TARGET.write(model, tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    exported = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    texts = ["The room was", "We stayed there for three nights and the room was"]
    batch = exported.generate(**tokenizer(texts, padding=True, return_tensors="pt"), max_new_tokens=5)
    for row, text in zip(batch, texts, strict=True):
        alone = exported.generate(**tokenizer(text, return_tensors="pt"), max_new_tokens=5)[0]
        assert row[-5:].tolist() == alone[-5:].tolist()


def test_symbols_that_a_task_does_not_know_are_an_error(tmp_path: Path) -> None:
    model = source(LABELS)
    _write_tokenizer(source_tokenizer(model.task), model, tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer("[3, 01,4]")["input_ids"] == [3, 1, 4]
    with pytest.raises(Exception, match="UNK"):
        tokenizer("3 x")
