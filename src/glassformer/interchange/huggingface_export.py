"""Target `huggingface`: folders that `AutoModel…` of `transformers` loads without custom code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from glassformer.interchange.export import (
    ExportExample,
    ExportPlan,
    ExportSource,
    LoadingScript,
    Obstacle,
    Target,
)
from glassformer.interchange.exported_tokenizer import (
    ExportedTokenizer,
    can_split,
    padding_id,
    source_tokenizer,
    symbol_text,
    target_tokenizer,
)
from glassformer.interchange.huggingface_classes import CLASSES, ModelClass
from glassformer.interchange.huggingface_seq2seq import EncoderDecoderClass
from glassformer.models.task_types import CausalLM, MaskedLM, Seq2Seq
from glassformer.models.transformer import TransformerConfig
from glassformer.storage.files import json_bytes
from glassformer.tasks.base import Seq2SeqTask
from glassformer.tasks.classification import ClassificationTask
from glassformer.tasks.language import MASKED, CausalLanguageTask, MaskedLanguageTask
from glassformer.tasks.text import TextTask

GENERATED = ("CausalLM", "Seq2Seq")
"""Task types whose outputs are generated token by token."""
SCRIPT = """\
from transformers import {auto_class}, AutoTokenizer

folder, text = FOLDER, TEXT
tokenizer = AutoTokenizer.from_pretrained(folder)
model = {auto_class}.from_pretrained(folder)
inputs = tokenizer(text, return_tensors="pt")
"""
GENERATE = """\
output = model.generate(**inputs)[0]
print(tokenizer.decode(output, skip_special_tokens=True))
"""
GENERATE_IN_OTHER_VOCABULARY = """\
output = model.generate(**inputs)[0]
target = AutoTokenizer.from_pretrained(folder, subfolder="target_tokenizer")
print(target.decode(output, skip_special_tokens=True))
"""
FILL = """\
logits = model(**inputs).logits[0]
logits[:, tokenizer.all_special_ids] = float("-inf")
is_mask = inputs["input_ids"][0] == tokenizer.mask_token_id
filled = inputs["input_ids"][0].where(~is_mask, logits.argmax(-1))
print(tokenizer.decode(filled, skip_special_tokens=True))
"""
CLASSIFY = """\
classes = model(**inputs).logits.argmax(-1).flatten()
print(*(model.config.id2label[number] for number in classes.tolist()))
"""
MEASURE = """\
print(model(**inputs).logits.item())
"""
TARGET_TOKENIZER = "target_tokenizer"
"""Folder with the tokenizer of the outputs, if an encoder-decoder has two vocabularies."""


class HuggingFaceTarget(Target):
    """Export to `transformers`: config, weights, generation config and tokenizer of a stock class."""

    name = "huggingface"
    tolerance = 1e-4
    packages = ("transformers",)
    engine = "run_huggingface.py"
    library = "transformers"

    def obstacles(self, plan: ExportPlan) -> list[Obstacle]:
        if not isinstance(plan.model, TransformerConfig):
            reason = "transformers has no stock class for models of this kind"
            return [Obstacle("model.kind", reason, "train with model.kind=transformer")]
        if not can_split(plan.task):
            reason = "no tokenizer.json splits inputs as this task does"
            return [Obstacle("task.kind", reason, "export to onnx")]
        # The nearest class is the one with the fewest obstacles, of those that other options could reach.
        found = [(bool(kind.final_obstacles(plan)), kind.obstacles(plan)) for kind in _classes(plan)]
        return min(found, key=lambda each: (each[0], len(each[1])))[1]

    def write(self, source: ExportSource, folder: Path) -> None:
        kind = find_class(source)
        special = _special_ids(source)
        config = {**kind.config(source), **special, **_labels(source), "dtype": "float32"}
        _write_json(folder / "config.json", config)
        tensors = {name: tensor.detach().contiguous().clone() for name, tensor in kind.weights(source)}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        if isinstance(source.task_type, (CausalLM, Seq2Seq)):
            _write_json(folder / "generation_config.json", {**special, **_generation_config(source)})
        _write_tokenizer(source_tokenizer(source.task), source, folder)
        if _has_two_tokenizers(source):
            (folder / TARGET_TOKENIZER).mkdir()
            _write_tokenizer(target_tokenizer(source.task), source, folder / TARGET_TOKENIZER)

    def loading_script(self, source: ExportSource) -> LoadingScript:
        code = SCRIPT.format(auto_class=find_class(source).auto_class) + _last_lines(source)
        return LoadingScript("transformers torch", code)

    def request(self, source: ExportSource, examples: Sequence[ExportExample]) -> dict[str, Any]:
        kind = find_class(source)
        return {
            "auto_class": kind.auto_class,
            "outputs": _outputs(source),
            "begin": _special_ids(source).get("decoder_start_token_id"),
            "end": _special_ids(source)["eos_token_id"],
            "mask": source.source_tokens.mask,
            "forbidden": source.task.tokenizer.special_ids if isinstance(source.task, TextTask) else [],
            "target_tokenizer": TARGET_TOKENIZER if _has_two_tokenizers(source) else "",
            "is_cut": isinstance(source.task, ClassificationTask),
            "has_texts": isinstance(source.task, TextTask) and _outputs(source) in GENERATED,
        }

    def prepare(self, source: ExportSource, examples: Sequence[ExportExample]) -> list[ExportExample]:
        """Return the examples with texts as the exported tokenizer reads them."""
        mask = source.source_tokens.mask
        if isinstance(source.task, MaskedLanguageTask) and mask is not None:
            name = source.source_tokens.tokens[mask]
            return [replace(example, text=example.text.replace(MASKED, name)) for example in examples]
        return [replace(example, text=symbol_text(source.task, example)) for example in examples]


def _last_lines(source: ExportSource) -> str:
    """Return the end of the loading script, which depends on the outputs of the model."""
    outputs = _outputs(source)
    if outputs in GENERATED:
        return GENERATE_IN_OTHER_VOCABULARY if _has_two_tokenizers(source) else GENERATE
    if outputs == "MaskedLM":
        return FILL
    return MEASURE if getattr(source.task_type, "is_regression", False) else CLASSIFY


def _outputs(source: ExportSource) -> str:
    """Return how the engine computes the outputs: by generation, or as the best class of each position."""
    if isinstance(source.task_type, MaskedLM) and not isinstance(source.task, MaskedLanguageTask):
        return "classes"
    name = type(source.task_type).__name__
    return name if name in (*GENERATED, "MaskedLM") else "classes"


def _classes(plan: ExportPlan) -> list[ModelClass | EncoderDecoderClass]:
    return [kind for kind in CLASSES if isinstance(plan.task_type, kind.task_type)]


def find_class(plan: ExportPlan) -> ModelClass | EncoderDecoderClass:
    """Return the first class that can represent the model."""
    return next(kind for kind in _classes(plan) if not kind.obstacles(plan))


def _has_two_tokenizers(source: ExportSource) -> bool:
    return isinstance(source.task_type, Seq2Seq) and source.source_tokens is not source.target_tokens


def _special_ids(source: ExportSource) -> dict[str, int | None]:
    """Return the ids of the special tokens, as configs of models and of generation name them."""
    vocabulary = source.target_tokens
    if isinstance(source.task, Seq2SeqTask):
        pad = vocabulary.end if vocabulary.pad is None else vocabulary.pad
        ids = {"pad_token_id": pad, "bos_token_id": vocabulary.begin, "eos_token_id": vocabulary.end}
        return {**ids, "decoder_start_token_id": vocabulary.begin}
    if vocabulary.tokenizer is not None:
        return {
            "pad_token_id": vocabulary.pad,
            "bos_token_id": vocabulary.begin,
            "eos_token_id": vocabulary.end,
        }
    pad = None if isinstance(source.task_type, CausalLM) else padding_id(source.task)
    return {"pad_token_id": pad, "bos_token_id": None, "eos_token_id": None}


def _labels(source: ExportSource) -> dict[str, Any]:
    """Return the names of the classes of a classifier; nothing for other models."""
    count = getattr(source.task_type, "classes", None) or getattr(source.task_type, "outputs", None)
    if count is None:
        return {}
    names = [" ".join(source.task.output_symbols([number])) for number in range(count)]
    return {
        "num_labels": count,
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
    }


def _generation_config(source: ExportSource) -> dict[str, Any]:
    """Return the options with which `model.generate(**inputs)` gives the outputs of `glassformer predict`."""
    task, task_type = source.task, source.task_type
    never: list[int] = []
    length = task_type.max_length
    if isinstance(task, Seq2SeqTask) and isinstance(task_type, Seq2Seq):
        never = [task.begin, *task.forbidden]
        length = task_type.max_target_length + 1  # with the begin token
    elif isinstance(task, CausalLanguageTask):
        never = list(task.forbidden)
    found: dict[str, Any] = {"do_sample": False, "num_beams": 1, "max_length": length}
    return {**found, "suppress_tokens": sorted(never)} if never else found


def _write_tokenizer(tokenizer: ExportedTokenizer, source: ExportSource, folder: Path) -> None:
    _write_json(folder / "tokenizer.json", tokenizer.document)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": source.task_type.max_length,
        "padding_side": "left" if isinstance(source.task_type, CausalLM) else "right",
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": not isinstance(source.task_type, MaskedLM),
        **tokenizer.roles,
    }
    _write_json(folder / "tokenizer_config.json", config)


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    path.write_bytes(json_bytes(document))
