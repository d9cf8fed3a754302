"""Description of how a run reads its inputs and shows its outputs, as data for programs without Glassformer.

The programs are `text.py` and `text.js` of an exported folder. They split text with regular expressions that
mean the same in Python and in JavaScript: character classes are spelt out as ranges.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from tokenizers import Regex, normalizers, pre_tokenizers

from glassformer.data.imported_tokenizers import ImportedTokenizer
from glassformer.data.tokenizers import (
    CHARACTER_PATTERN,
    MASK,
    RESERVED,
    UNREADABLE,
    UNSPACED,
    WORD_PATTERN,
    Tokenizer,
)
from glassformer.interchange.exported_tokenizer import input_template
from glassformer.models.task_types import MaskedLM, Seq2Seq, SequenceClassification, TokenClassification
from glassformer.tasks import arithmetic, tokens
from glassformer.tasks.arithmetic import ArithmeticTask
from glassformer.tasks.base import CausalLMTask, Seq2SeqTask, Task
from glassformer.tasks.classification import ClassificationTask
from glassformer.tasks.language import MaskedLanguageTask
from glassformer.tasks.sequences import SequenceTask
from glassformer.tasks.text import TextTask
from glassformer.tasks.tokens import TokensTask
from glassformer.tasks.translation import TranslationTask

INPUT_FILE, TARGET_FILE = "tokenizer.json", "target_tokenizer.json"

_CLASSES = {
    "L": r"\p{L}",
    "M": r"\p{M}",
    "N": r"\p{N}",
    "S": r"\s",
    "U": UNSPACED,
    "W": rf"[\p{{L}}\p{{M}}\p{{N}}_]&&[^{UNSPACED}]",
}
"""Character classes of the library's regular expressions, by the letter that represents them below."""
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?[{L}]+| ?[{N}]+| ?[^{S}{L}{N}]+|[{S}]+(?![^{S}])|[{S}]+"
_WORDS = r" ?[{U}]| ?[{W}]+['’]?| ?[^{S}{L}{M}{N}_]|[{S}]"
_NOT_SPACE = r"[^{S}]+"
_DECODERS = {"Fuse", "ByteLevel", "WordPiece", "Strip"}
_SPLITS = {WORD_PATTERN: _WORDS, CHARACTER_PATTERN: CHARACTER_PATTERN}
"""Portable form of each regular expression that our tokenizers split text with."""


@cache
def every_character() -> str:
    """Return all characters of the planes of Unicode that have letters, marks, digits or spaces, in order."""
    return "".join(map(chr, (*range(0xD800), *range(0xE000, 0x40000), *range(0xE0000, 0xE1000))))


@cache
def lowercase() -> dict[str, str]:
    """Return the lower case of each character that has one, as the library maps it."""
    lower = normalizers.Lowercase().normalize_str
    mapped = ((character, lower(character)) for character in every_character())
    return {character: by for character, by in mapped if by != character}


@cache
def character_class(letter: str) -> str:
    """Return a character class as ranges of characters, found by asking the library about every character."""
    every = every_character()
    split = pre_tokenizers.Split(Regex(f"[{_CLASSES[letter]}]+"), behavior="removed", invert=True)
    spans = (span for _, span in split.pre_tokenize_str(every))
    return "".join(f"{every[start]}-{every[stop - 1]}" for start, stop in spans)


def portable(pattern: str) -> str:
    """Return a regular expression in which `{L}` and other letters are replaced by their characters."""
    return re.sub(r"\{([A-Z])\}", lambda match: character_class(match[1]), pattern)


def needs_library(tokenizer: Tokenizer) -> bool:
    """Return True if the tokenizer has a step that `text.py` and `text.js` do not know.

    They do not know special tokens with other ids either, which the tokenizer of an imported model has.
    """
    if isinstance(tokenizer, ImportedTokenizer):
        return True
    tree = tokenizer.json_tree()
    return not (
        {step["type"] for step in _steps(tree["normalizer"], "normalizers")} <= {"Lowercase", "Prepend"}
        and None not in [_split(step) for step in _steps(tree["pre_tokenizer"], "pretokenizers")]
        and {step["type"] for step in _steps(tree["decoder"], "decoders")} <= _DECODERS
        and _is_plain_model(tree["model"])
    )


def describe_tokenizer(tokenizer: Tokenizer, file: str) -> dict[str, Any]:
    """Return how `text.py` and `text.js` apply the tokenizer in a `tokenizer.json`.

    A tokenizer with steps that these programs do not know is described as `{"library": true}`.
    """
    tree = tokenizer.json_tree()
    hidden = {tokenizer.pad, tokenizer.begin, tokenizer.end} - {tokenizer.unknown}
    common = {
        "file": file,
        "reserved": len(RESERVED),
        "special": tokenizer.special_ids,
        "hidden": sorted(number for number in hidden if number >= 0),
        "has_space_before": tokenizer.has_space_before,
        "omits_spaces": tokenizer.omits_spaces,
    }
    if needs_library(tokenizer):
        return {**common, "library": True}
    pre = _steps(tree["pre_tokenizer"], "pretokenizers")
    decoders = [step["type"] for step in _steps(tree["decoder"], "decoders")]
    return {
        **common,
        "library": False,
        "model": tree["model"]["type"],
        "normalize": [_normalizer(step) for step in _steps(tree["normalizer"], "normalizers")],
        "split": [portable(pattern) for pattern in map(_split, pre) if pattern],
        "has_bytes": any(step["type"] == "ByteLevel" for step in pre),
        "joins_words": "WordPiece" in decoders,
        "unreadable": UNREADABLE,
    }


def _steps(node: dict[str, Any] | None, children: str) -> list[dict[str, Any]]:
    """Return the steps of a part of `tokenizer.json`; a sequence may hold others."""
    if node is None:
        return []
    if node["type"] != "Sequence":
        return [node]
    return [step for child in node[children] for step in _steps(child, children)]


def _normalizer(step: dict[str, Any]) -> list[Any]:
    """Return a normaliser as a list of a name and its argument."""
    return ["replace", lowercase()] if step["type"] == "Lowercase" else ["prepend", step["prepend"]]


def _split(step: dict[str, Any]) -> str | None:
    """Return the pattern whose matches are the parts of a text, "" for no split, or None if unknown."""
    if step["type"] == "WhitespaceSplit":
        return _NOT_SPACE
    if step["type"] == "ByteLevel" and not step["add_prefix_space"]:
        return _GPT2 if step["use_regex"] else ""
    if step["type"] == "Split" and step["behavior"] == "Isolated" and not step["invert"]:
        return _SPLITS.get(step["pattern"].get("Regex"))
    return None


def _is_plain_model(model: dict[str, Any]) -> bool:
    """Return True for a model without options that change how a word is split."""
    if model["type"] == "Unigram":
        return model.get("unk_id") is None and not model.get("byte_fallback")
    options = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges")
    if model["type"] == "BPE":
        return model.get("unk_token") is None and not any(model.get(option) for option in options)
    return bool(model["type"] == "WordLevel")


def tokenizers_of(task: Task) -> dict[str, Tokenizer]:
    """Return the tokenizers of a task by the name of their file; empty if it does not read text."""
    if not isinstance(task, TextTask):
        return {}
    found = {INPUT_FILE: task.tokenizer}
    if isinstance(task, TranslationTask) and not task.config.shared_vocabulary:
        found[TARGET_FILE] = task.target_tokenizer
    return found


def describe_text(task: Task) -> dict[str, Any]:
    """Return how the inputs of a task are read, how its outputs are chosen and shown, and its tokenizers."""
    return {
        "input": _input(task),
        "output": _output(task),
        "tokenizers": {
            file: describe_tokenizer(tokenizer, file) for file, tokenizer in tokenizers_of(task).items()
        },
    }


def _input(task: Task) -> dict[str, Any]:
    """Return how an input is read: as text, numbers, symbols, an expression, or as plain token ids.

    `trained_length`, `unknown` and `untrained` are for the warnings of `Task.warning`.
    """
    length = {"max_length": task.task_type.max_length}
    if isinstance(task, TextTask):
        template = input_template(task)
        at = template.index(None)
        return {
            "kind": "masked" if isinstance(task, MaskedLanguageTask) else "text",
            "tokenizer": INPUT_FILE,
            "before": template[:at],
            "after": template[at + 1 :],
            "is_cut": isinstance(task, ClassificationTask),
            "may_be_blank": isinstance(task, CausalLMTask),
            "mask": task.tokenizer.mask,
            "mask_name": RESERVED[MASK],
            "unknown": task.tokenizer.unknown,
            "untrained": sorted(task.untrained) if isinstance(task, TranslationTask) else [],
            **length,
        }
    if isinstance(task, ArithmeticTask):
        return _expression(task) | length
    if isinstance(task, SequenceTask):
        trained_length = {"trained_length": task.config.length}
        return {"kind": "numbers", "categories": task.config.categories, **trained_length, **length}
    if isinstance(task, TokensTask):
        return {
            "kind": "symbols",
            "separator": task.config.separator,
            "symbols": task.vocabulary.symbols,
            "reserved": tokens.RESERVED,
            "unknown": task.vocabulary.ids[tokens.UNKNOWN],
            **length,
        }
    return {"kind": "ids", **length}


def _expression(task: ArithmeticTask) -> dict[str, Any]:
    config = task.config
    ids = task.vocabulary.ids
    spaces = "[ \\t\\n\\r\\f\\v]"
    return {
        "kind": "expression",
        "pattern": arithmetic.EXPRESSION.pattern.replace("\\s", spaces),
        "typed": {chr(code): by for code, by in arithmetic.TYPED.items()},
        "operations": {
            word: ids[name]
            for word, name in arithmetic.OPERATION_OF_WORD.items()
            if name in config.operations
        },
        "digits": config.digits,
        "smallest": str(config.operand_range[0]),
        "largest": str(config.operand_range[1]),
        "before": [arithmetic.BOS],
        "after": [arithmetic.EOS],
        "signs": [arithmetic.POSITIVE, arithmetic.NEGATIVE],
    }


def _output(task: Task) -> dict[str, Any]:
    """Return how the outputs of the model become an answer, and how the answer is shown."""
    task_type = task.task_type
    if isinstance(task_type, SequenceClassification):
        if task_type.is_regression:
            return {"kind": "number", "digits": task_type.digits}
        return {"kind": "label", "symbols": _symbols(task, task_type.outputs)}
    if isinstance(task_type, TokenClassification):
        return {
            "kind": "labels",
            "symbols": _symbols(task, task_type.classes),
            "separator": _separator(task),
            "forbidden": [],
        }
    if isinstance(task_type, MaskedLM):
        is_filled = isinstance(task, MaskedLanguageTask)
        return {
            "kind": "filled" if is_filled else "labels",
            "forbidden": task.tokenizer.special_ids if isinstance(task, MaskedLanguageTask) else [],
            **_shown(task),
        }
    if isinstance(task_type, Seq2Seq):
        assert isinstance(task, Seq2SeqTask)
        return {
            "kind": "generated",
            "begin": task.begin,
            "end": task.end,
            "forbidden": sorted({task.begin, *task.forbidden}),
            "max_length": task_type.max_target_length,
            **_shown(task),
        }
    assert isinstance(task, CausalLMTask)
    return {
        "kind": "continued",
        "end": task.end,
        "forbidden": sorted(task.forbidden),
        "max_length": task_type.max_length,
        **_shown(task),
    }


def _shown(task: Task) -> dict[str, Any]:
    """Return how output tokens are shown: by a tokenizer, as a number, or as symbols."""
    if isinstance(task, TextTask):
        return {"tokenizer": list(tokenizers_of(task))[-1]}
    task_type = task.task_type
    size = task_type.target_vocabulary if isinstance(task_type, Seq2Seq) else task_type.vocabulary
    found: dict[str, Any] = {"symbols": _symbols(task, size), "separator": _separator(task)}
    if isinstance(task, ArithmeticTask):
        found["signs"] = [arithmetic.POSITIVE, arithmetic.NEGATIVE]
    return found


def _symbols(task: Task, count: int) -> list[str]:
    return [task.output_symbols([number])[0] for number in range(count)]


def _separator(task: Task) -> str:
    """Return the text between shown symbols."""
    return task.join_symbols(["", ""]) if isinstance(task, TokensTask) else " "
