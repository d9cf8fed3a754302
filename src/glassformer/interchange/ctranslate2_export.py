"""Target `ctranslate2`: folders that `Translator` and `Generator` of CTranslate2 load, with real tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from glassformer.core.errors import user_error
from glassformer.generation.ctranslate2 import Quantization, Vocabulary, limits, write_model
from glassformer.interchange.export import (
    ExportExample,
    ExportPlan,
    ExportSource,
    LoadingScript,
    Obstacle,
    Outputs,
    Target,
)
from glassformer.interchange.exported_tokenizer import (
    ExportedVocabulary,
    can_split,
    source_tokenizer,
    symbol_text,
    target_tokenizer,
)
from glassformer.models.task_types import Seq2Seq
from glassformer.storage.files import json_bytes
from glassformer.tasks.base import CausalLMTask, Seq2SeqTask
from glassformer.tasks.text import TextTask

INT8: Quantization = "int8"
INT8_TOLERANCE = 1.0
"""Largest allowed difference of a log-probability with int8 weights. About 0.2 is usual."""
INT8_SAME_OUTPUTS = 0.5
"""Smallest allowed fraction of identical greedy outputs with int8 weights."""
SCRIPT = """\
import json

from ctranslate2 import ENGINE
from tokenizers import Tokenizer

folder, text = FOLDER, TEXT
options = json.load(open(f"{folder}/options.json", encoding="utf-8"))
tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
tokenizer.encode_special_tokens = True  # the text `<end>` is not an end token
tokens = tokenizer.encode(text).tokens
"""
TRANSLATE = """\
(result,) = Translator(folder).translate_batch([tokens], **options)
print(tokenizer.decode([tokenizer.token_to_id(token) for token in result.hypotheses[0]]))
"""
TRANSLATE_INTO_OTHER_VOCABULARY = """\
(result,) = Translator(folder).translate_batch([tokens], **options)
target = Tokenizer.from_file(f"{folder}/target_tokenizer.json")
print(target.decode([target.token_to_id(token) for token in result.hypotheses[0]]))
"""
GENERATE = """\
(result,) = Generator(folder).generate_batch([tokens], max_length=LENGTH - len(tokens), **options)
print(tokenizer.decode(result.sequences_ids[0]))
"""
SYMBOLS = """\
import json

from ctranslate2 import ENGINE

folder, tokens = FOLDER, TEXT.split(" ")
options = json.load(open(f"{folder}/options.json", encoding="utf-8"))
"""
"""Beginning of the script if the task splits its inputs in a way that no `tokenizer.json` can."""
TRANSLATE_SYMBOLS = """\
(result,) = Translator(folder).translate_batch([tokens], **options)
print(*result.hypotheses[0])
"""
GENERATE_SYMBOLS = """\
(result,) = Generator(folder).generate_batch([tokens], max_length=LENGTH - len(tokens), **options)
print(*result.sequences[0])
"""
OPTIONS = "options.json"
"""File with the keyword arguments of `translate_batch` or `generate_batch`."""


class CTranslate2Target(Target):
    """Export to CTranslate2: `model.bin`, vocabularies of token strings, decoding options and tokenizer."""

    name = "ctranslate2"
    tolerance = 1e-4
    packages = ("ctranslate2",)
    engine = "run_ctranslate2.py"
    library = "ctranslate2"
    options: ClassVar[tuple[str, ...]] = ("quantization",)

    def __init__(self, quantization: str | None = None) -> None:
        if quantization not in (None, INT8):
            raise user_error(
                "the target ctranslate2 does not have this type",
                path="--quantization",
                value=quantization,
                allowed=[INT8],
            )
        self.is_quantized = quantization == INT8
        if self.is_quantized:
            self.tolerance, self.required_outputs = INT8_TOLERANCE, INT8_SAME_OUTPUTS

    def obstacles(self, plan: ExportPlan) -> list[Obstacle]:
        return [
            Obstacle(limit.path, limit.message, limit.hint) for limit in limits(plan.model, plan.task_type)
        ]

    def write(self, source: ExportSource, folder: Path) -> None:
        target = source.target_tokens
        names = _names(target)
        write_model(
            source.run.model,
            folder,
            Vocabulary(source.source_tokens.tokens, **names),
            Vocabulary(target.tokens, **names),
            INT8 if self.is_quantized else None,
        )
        (folder / OPTIONS).write_bytes(json_bytes(decoding_options(source)))
        _write_tokenizers(source, folder)

    def loading_script(self, source: ExportSource) -> LoadingScript:
        is_seq2seq, is_split = isinstance(source.task_type, Seq2Seq), can_split(source.task)
        if not is_split:
            last = TRANSLATE_SYMBOLS if is_seq2seq else GENERATE_SYMBOLS
        elif is_seq2seq and source.target_tokens is not source.source_tokens:
            last = TRANSLATE_INTO_OTHER_VOCABULARY
        else:
            last = TRANSLATE if is_seq2seq else GENERATE
        code = (SCRIPT if is_split else SYMBOLS) + last
        code = code.replace("ENGINE", "Translator" if is_seq2seq else "Generator")
        code = code.replace("LENGTH", str(source.task_type.max_length))
        return LoadingScript("ctranslate2 tokenizers" if is_split else "ctranslate2", code)

    def prepare(self, source: ExportSource, examples: Sequence[ExportExample]) -> list[ExportExample]:
        """Return the examples with texts as the exported tokenizer reads them; without one, its tokens."""
        if can_split(source.task):
            return [replace(example, text=symbol_text(source.task, example)) for example in examples]
        tokens = source.source_tokens.tokens
        return [replace(each, text=" ".join(tokens[number] for number in each.tokens)) for each in examples]

    def request(self, source: ExportSource, examples: Sequence[ExportExample]) -> dict[str, Any]:
        is_seq2seq = isinstance(source.task_type, Seq2Seq)
        room = [max(1, source.task_type.max_length - len(example.tokens)) for example in examples]
        has_texts = isinstance(source.task, TextTask)
        return {"is_seq2seq": is_seq2seq, "rooms": room, "has_texts": has_texts}

    def reference(self, source: ExportSource, examples: Sequence[ExportExample], positions: int) -> Outputs:
        """Return log-probabilities: of all tokens, or of the target tokens of an encoder-decoder.

        CTranslate2's `Translator` does not return others.
        """
        ours = super().reference(source, examples, positions)
        logs = [torch.from_numpy(logits).log_softmax(-1).numpy() for logits in ours.logits]
        if isinstance(source.task, Seq2SeqTask):
            targets = [example.target for example in examples if example.target is not None]
            logs = [
                rows[range(len(rows)), [*target[1:], source.task.end][-len(rows) :]]
                for rows, target in zip(logs, targets, strict=True)
            ]
        return Outputs(logs, ours.tokens, ours.texts, ours.inputs)


def _names(vocabulary: ExportedVocabulary) -> dict[str, str]:
    """Return the begin, end and unknown tokens. If there is none, the name is one that no token has."""
    ids = {"begin": vocabulary.begin, "end": vocabulary.end, "unknown": vocabulary.unknown}
    missing = {"begin": "<s>", "end": "</s>", "unknown": "<unk>"}
    names = {}
    for role, number in ids.items():
        name = missing[role]
        while number is None and name in vocabulary.tokens:
            name = f"<{name}>"
        names[role] = name if number is None else vocabulary.tokens[number]
    return names


def decoding_options(source: ExportSource) -> dict[str, Any]:
    """Return the keyword arguments with which CTranslate2 decodes as we do, greedily."""
    task, tokens = source.task, source.target_tokens.tokens
    if isinstance(task, Seq2SeqTask):
        forbidden = [task.begin, *task.forbidden]
        assert isinstance(task.task_type, Seq2Seq)
        own = {
            "beam_size": 1,
            "max_decoding_length": task.task_type.max_target_length,
            "min_decoding_length": 0,
            "max_input_length": task.task_type.max_length,
        }
    else:
        assert isinstance(task, CausalLMTask)
        forbidden = list(task.forbidden)
        own = {"include_prompt_in_result": False}
    suppressed = [[tokens[number]] for number in forbidden]
    return own | ({"suppress_sequences": suppressed} if suppressed else {})


def _write_tokenizers(source: ExportSource, folder: Path) -> None:
    task = source.task
    if not can_split(task):
        return
    documents = {"tokenizer.json": source_tokenizer(task).document}
    if source.target_tokens is not source.source_tokens:
        documents["target_tokenizer.json"] = target_tokenizer(task).document
    for name, document in documents.items():
        (folder / name).write_bytes(json_bytes(document))
