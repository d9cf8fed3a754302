"""Vocabularies of exports, and `tokenizer.json` files whose token ids and texts equal those of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from glassformer.data.imported_tokenizers import ImportedTokenizer
from glassformer.data.tokenizers import MASK, RESERVED, UNKNOWN, Tokenizer, without_space_before
from glassformer.models.task_types import CausalLM, Seq2Seq
from glassformer.tasks.arithmetic import ArithmeticTask
from glassformer.tasks.base import Seq2SeqTask, Task
from glassformer.tasks.language import CausalLanguageTask, MaskedLanguageTask
from glassformer.tasks.sequences import SequenceTask
from glassformer.tasks.text import TextTask
from glassformer.tasks.tokens import TokensTask
from glassformer.tasks.translation import TranslationTask

if TYPE_CHECKING:
    from glassformer.interchange.export import ExportExample

PADDING = "<pad>"
"""Token that is added to a vocabulary without reserved tokens."""
ROLES = {
    "pad": "pad_token",
    "unknown": "unk_token",
    "begin": "bos_token",
    "end": "eos_token",
    "mask": "mask_token",
}
"""Names of the special tokens in `tokenizer_config.json`, by our names."""


@dataclass(frozen=True)
class ExportedVocabulary:
    """Tokens of a vocabulary as unique strings, and the ids of its special tokens."""

    tokens: list[str]
    """String of each token id, from 0 on."""
    tokenizer: Tokenizer | None = None
    """Tokenizer of a text task; None if the task splits its inputs by itself."""
    pad: int | None = None
    unknown: int | None = None
    begin: int | None = None
    end: int | None = None
    mask: int | None = None

    @property
    def special(self) -> dict[str, int]:
        """Ids of the special tokens by role: pad, unknown, begin, end and mask, as far as they exist."""
        roles = {name: getattr(self, name) for name in ROLES}
        return {name: number for name, number in roles.items() if number is not None}


def text_vocabulary(tokenizer: Tokenizer) -> ExportedVocabulary:
    """Return the vocabulary of a tokenizer, with the special tokens that it has."""
    ids = {role: int(getattr(tokenizer, role)) for role in ROLES}
    roles = {role: number if number >= 0 else None for role, number in ids.items()}
    return ExportedVocabulary(tokenizer.token_strings(), tokenizer, **roles)


def source_vocabulary(task: Task) -> ExportedVocabulary:
    """Return the vocabulary of the inputs of a task."""
    if isinstance(task, TextTask):
        return text_vocabulary(task.tokenizer)
    return _symbol_vocabulary(task, task.input_symbols(range(task.task_type.vocabulary)))


def target_vocabulary(task: Task) -> ExportedVocabulary:
    """Return the vocabulary of the outputs of an encoder-decoder with two vocabularies."""
    if isinstance(task, TranslationTask):
        return text_vocabulary(task.target_tokenizer)
    size = int(getattr(task.task_type, "target_vocabulary", task.task_type.vocabulary))
    return _symbol_vocabulary(task, task.output_symbols(range(size)), is_target=True)


def _symbol_vocabulary(task: Task, symbols: Sequence[str], *, is_target: bool = False) -> ExportedVocabulary:
    begin = end = None
    is_shared = isinstance(task.task_type, Seq2Seq) and task.task_type.is_shared_vocabulary
    if isinstance(task, Seq2SeqTask) and (is_target or is_shared):
        begin, end = task.begin, task.end
    unknown = next((number for number in range(len(symbols)) if task.is_unknown(number)), None)
    return ExportedVocabulary(list(symbols), None, None, unknown, begin, end)


def padding_id(task: Task) -> int:
    """Return the id of the padding token of a classifier's inputs.

    If the vocabulary has no such token, it is added as the last one.
    """
    pad = source_vocabulary(task).pad
    return task.task_type.vocabulary if pad is None else pad


@dataclass(frozen=True)
class ExportedTokenizer:
    """Contents of a `tokenizer.json`, and the names of the special tokens for `tokenizer_config.json`."""

    document: dict[str, Any]
    roles: dict[str, str]


def can_split(task: Task) -> bool:
    """Return True if a `tokenizer.json` can split the inputs of the task."""
    return isinstance(task, (TextTask, SequenceTask, TokensTask, ArithmeticTask))


def source_tokenizer(task: Task) -> ExportedTokenizer:
    """Return the tokenizer that reads the inputs of a task."""
    vocabulary = source_vocabulary(task)
    if vocabulary.tokenizer is not None:
        is_masked = isinstance(task, MaskedLanguageTask)
        document = tokenizer_document(vocabulary.tokenizer, input_template(task), reads_mask=is_masked)
        return ExportedTokenizer(document, _names(vocabulary.tokens, vocabulary.special))
    special = dict(vocabulary.special)
    tokens = list(vocabulary.tokens)
    if isinstance(task, Seq2SeqTask):
        special.setdefault("pad", special.get("end", special.get("unknown", 0)))
    elif not isinstance(task.task_type, CausalLM):
        special["pad"] = len(tokens)
        tokens.append(PADDING)
    return ExportedTokenizer(_symbol_document(task, tokens, special), _names(tokens, special))


def target_tokenizer(task: Task) -> ExportedTokenizer:
    """Return the tokenizer that decodes the outputs of an encoder-decoder with two vocabularies."""
    vocabulary = target_vocabulary(task)
    special = dict(vocabulary.special)
    if vocabulary.tokenizer is not None:
        document = tokenizer_document(vocabulary.tokenizer, [vocabulary.begin, None, vocabulary.end])
        return ExportedTokenizer(document, _names(vocabulary.tokens, special))
    if vocabulary.end is not None:
        special["pad"] = vocabulary.end
    document = _symbol_document(task, vocabulary.tokens, special)
    return ExportedTokenizer(document, _names(vocabulary.tokens, special))


def _names(tokens: Sequence[str], special: dict[str, int]) -> dict[str, str]:
    return {ROLES[role]: tokens[number] for role, number in special.items()}


def tokenizer_document(
    tokenizer: Tokenizer, template: Sequence[int | None], *, reads_mask: bool = False
) -> dict[str, Any]:
    """Return the contents of a `tokenizer.json` with the ids of `tokenizer`, reserved ones included.

    `template` is the sequence of special tokens around a text, in which None marks the text. With
    `reads_mask`, `<mask>` in a text becomes the mask token, together with the spaces before it.
    """
    tree = tokenizer.json_tree()
    tokens = tokenizer.token_strings()
    if isinstance(tokenizer, ImportedTokenizer):
        known = [{name: token[name] for name in token if name != "roles"} for token in tree["added_tokens"]]
        return {**tree, "added_tokens": known, "post_processor": _template(template, tokens)}
    model = dict(tree["model"])
    if model["type"] == "Unigram":
        scores = dict(model["vocab"])
        lowest = min(scores.values(), default=0.0)
        model["vocab"] = [[token, scores.get(token, lowest - 100)] for token in tokens]
        model["unk_id"] = UNKNOWN
    else:
        model["vocab"] = {token: number for number, token in enumerate(tokens)}
        if model.get("unk_token") is not None:
            model["unk_token"] = RESERVED[UNKNOWN]
    added = [_added_token(number, RESERVED[number]) for number in range(len(RESERVED))]
    if reads_mask and tokenizer.has_space_before:
        tree = _with_mask(tree, added[MASK])
    return {
        **tree,
        "model": model,
        "added_tokens": added,
        "post_processor": _template(template, tokens),
    }


def _with_mask(tree: dict[str, Any], mask: dict[str, Any]) -> dict[str, Any]:
    """Return a tokenizer that reads `<mask>`, with the spaces before it, which belong to the predicted word.

    The mask is found in the normalized text, so that no space is added before the text after it.
    """
    mask["normalized"] = True
    steps = [*_steps(tree["normalizer"]), _replace(f" *{RESERVED[MASK]}", f" {RESERVED[MASK]}")]
    splitter = without_space_before(tree, "first")["pre_tokenizer"]
    return {**tree, "normalizer": {"type": "Sequence", "normalizers": steps}, "pre_tokenizer": splitter}


def _replace(regex: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": regex}, "content": content}


def _steps(normalizer: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return the steps of a normalizer."""
    if normalizer is None:
        return []
    return list(normalizer["normalizers"]) if normalizer["type"] == "Sequence" else [normalizer]


def _added_token(number: int, content: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": content, **flags, "special": True}


def _template(template: Sequence[int | None], tokens: Sequence[str]) -> dict[str, Any] | None:
    """Return the post-processor that puts special tokens around a text."""
    special = [number for number in template if number is not None]
    if not special:
        return None
    single = [
        {"Sequence": {"id": "A", "type_id": 0}}
        if number is None
        else {"SpecialToken": {"id": tokens[number], "type_id": 0}}
        for number in template
    ]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {
            tokens[number]: {"id": tokens[number], "ids": [number], "tokens": [tokens[number]]}
            for number in special
        },
    }


def input_template(task: Task) -> list[int | None]:
    """Return the special tokens that a task puts around its inputs; None marks the text."""
    if isinstance(task, ArithmeticTask):
        return [task.begin, None, task.end]
    if not isinstance(task, TextTask):
        return [None]
    tokenizer = task.tokenizer
    if isinstance(task, TranslationTask):
        return [None, tokenizer.end]
    if isinstance(task, MaskedLanguageTask):
        return [tokenizer.begin, None, tokenizer.end]
    if isinstance(task, CausalLanguageTask):
        has_begin = tokenizer.begins_prompts and not task.config.is_running
        return [tokenizer.begin, None] if has_begin else [None]
    return [tokenizer.begin, None, *([tokenizer.end] if tokenizer.ends_inputs else [])]


def _symbol_document(task: Task, tokens: Sequence[str], special: dict[str, int]) -> dict[str, Any]:
    """Return the contents of a `tokenizer.json` that splits a text into symbols as the task does."""
    model: dict[str, Any] = {
        "type": "WordLevel",
        "vocab": {token: number for number, token in enumerate(tokens)},
        # A symbol that is not in the vocabulary is an error, as in the task, if there is no unknown token.
        "unk_token": tokens[special["unknown"]] if "unknown" in special else " ",
    }
    added = sorted({number: tokens[number] for number in special.values()}.items())
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(number, token) for number, token in added],
        "normalizer": _symbol_normalizer(task),
        "pre_tokenizer": _symbol_splitter(task),
        "post_processor": _template(input_template(task), tokens),
        "decoder": {"type": "Fuse"} if _separator(task) == "" else None,
        "model": model,
    }


def _separator(task: Task) -> str | None:
    """Return the text between two tokens; None for white space, and "" if each character is a token."""
    return task.config.separator if isinstance(task, TokensTask) else None


def _symbol_normalizer(task: Task) -> dict[str, Any] | None:
    if isinstance(task, SequenceTask):  # 007 is 7
        return {"type": "Replace", "pattern": {"Regex": r"\b0+(?=\d)"}, "content": ""}
    if _separator(task) == "":
        return {"type": "Strip", "strip_left": True, "strip_right": True}
    return None


def _symbol_splitter(task: Task) -> dict[str, Any]:
    if isinstance(task, SequenceTask):  # 3 1 4, or 3,1,4, or [3, 1, 4]
        return _split({"Regex": r"[\s,\[\]()]+"}, "Removed")
    separator = _separator(task)
    if separator is None:
        return {"type": "WhitespaceSplit"}
    return (
        _split({"Regex": r"[\s\S]"}, "Isolated")
        if not separator
        else _split({"String": separator}, "Removed")
    )


def _split(pattern: dict[str, str], behavior: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": False}


def symbol_text(task: Task, example: ExportExample) -> str:
    """Return the input of a task on symbols as the exported tokenizer reads it."""
    if not isinstance(task, ArithmeticTask):
        return example.text
    return " ".join(task.input_symbols(example.tokens[1:-1]))
