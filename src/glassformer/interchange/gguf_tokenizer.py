"""Tokenizers of runs as fields of a GGUF file, such that llama.cpp splits and joins text in the same way.

llama.cpp has a few fixed tokenizers. Byte-level BPE becomes `gpt2`, pieces of SentencePiece become `llama`.
Characters and words become the unigram model `t5`, in which every known word is cheaper than its parts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenizers import pre_tokenizers

from glassformer.data.imported_tokenizers import ImportedTokenizer
from glassformer.data.token_rows import Windows
from glassformer.data.tokenizers import CHARACTER_PATTERN, WORD_PATTERN, Tokenizer
from glassformer.interchange.export import Obstacle
from glassformer.interchange.exported_tokenizer import text_vocabulary
from glassformer.interchange.tokenizer_files import BYTE, CONTROL, NORMAL, SPLITS, UNKNOWN, UNUSED
from glassformer.tasks.language import CausalLanguageTask

Tree = Mapping[str, Any]

SPACE = "▁"
"""Character that represents a space in the tokens of `llama` and `t5`."""
WORD_SCORE, NEVER = -1.0, -1e9
"""Scores of a word and of a reserved token. The fewest tokens have the highest sum."""
NO_MERGE = "<pad> <pad>"
"""Merge that no text has. llama.cpp requires a list of merges, and its writer refuses an empty one."""
OTHER = "export to onnx, ctranslate2 or huggingface"
_BYTES = [f"<0x{number:02X}>" for number in range(256)]
_SPACES = [
    {"type": "Prepend", "prepend": SPACE},
    {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
]
"""Steps of the normalizer of a SentencePiece model without rules of its own, as in Llama 2."""


@dataclass(frozen=True)
class GGUFTokenizer:
    """Fields of a GGUF file that describe a tokenizer."""

    model: str
    """Kind of tokenizer in llama.cpp: gpt2, llama or t5."""
    tokens: list[str]
    types: list[int]
    roles: dict[str, int]
    """Ids of the special tokens: pad, unknown, begin, end and mask, as far as they exist."""
    scores: list[float] | None = None
    merges: list[str] | None = None
    split: str | None = None
    """Name of the way to split text before the merges (`tokenizer.ggml.pre`)."""
    flags: dict[str, bool] = field(default_factory=dict)
    """Other fields, by their names without `tokenizer.ggml.`"""


def describe_tokenizer(task: CausalLanguageTask) -> GGUFTokenizer | Obstacle:
    """Return the tokenizer of a task for llama.cpp, or why llama.cpp cannot split text as it does."""
    tree = task.tokenizer.json_tree()
    if any(step["type"] == "Lowercase" for step in _steps(tree["normalizer"])):
        reason = "llama.cpp does not convert text to lower case"
        return Obstacle(
            "task.tokenizer.lowercase", reason, f"train with task.tokenizer.lowercase=false, or {OTHER}"
        )
    kind = tree["model"]["type"]
    found: GGUFTokenizer | Obstacle | None = None
    if kind == "BPE":
        found = _sentencepiece(task.tokenizer, tree) or _byte_level(task.tokenizer, tree)
    elif kind == "WordLevel":
        found = _words(task, tree)
    elif kind == "Unigram":
        reason = "the unigram model of llama.cpp does not know bytes, and this tokenizer's pieces are bytes"
        found = _other_kind(reason)
    if found is None:
        found = _other_kind("llama.cpp does not split text as this tokenizer does")
    if isinstance(found, GGUFTokenizer) and len(set(found.tokens)) < len(found.tokens):
        return _other_kind("llama.cpp requires different names for all tokens")
    return found


def _other_kind(reason: str) -> Obstacle:
    remedy = "train with task.tokenizer.kind=bpe and task.tokenizer.add_prefix_space=false"
    return Obstacle("task.tokenizer.kind", reason, f"{remedy}, or {OTHER}")


def _steps(part: Any) -> list[dict[str, Any]]:
    """Return the steps of a normalizer or a pre-tokenizer."""
    if part is None:
        return []
    inner = part.get("normalizers", part.get("pretokenizers"))
    return [part] if inner is None else [step for each in inner for step in _steps(each)]


def _types(tokenizer: Tokenizer) -> list[int]:
    """Return the type of each token.

    Reserved tokens are unused, so that no text becomes one of them. Those of an imported model are control
    tokens, because prompts of a chat contain them.
    """
    special = CONTROL if isinstance(tokenizer, ImportedTokenizer) else UNUSED
    return [NORMAL if is_text else special for is_text in tokenizer.is_text.tolist()]


def _merges(tree: Tree) -> list[str]:
    merges = tree["model"]["merges"]
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]


_PLAIN_BPE = ("dropout", "continuing_subword_prefix", "end_of_word_suffix")


def _byte_level(tokenizer: Tokenizer, tree: Tree) -> GGUFTokenizer | Obstacle | None:
    """Return a byte-level BPE as in GPT-2; None if the tokenizer is another one."""
    model, steps = tree["model"], _steps(tree["normalizer"])
    if any(model.get(name) for name in (*_PLAIN_BPE, "byte_fallback")):
        return None
    if steps == [{"type": "Prepend", "prepend": " "}]:
        reason = "llama.cpp adds no space before the text of a byte-level BPE"
        remedy = f"train with task.tokenizer.add_prefix_space=false, or {OTHER}"
        return Obstacle("task.tokenizer.add_prefix_space", reason, remedy)
    merges = _merges(tree)
    split = _split_name(tree["pre_tokenizer"], bool(merges))
    has_bytes = set(pre_tokenizers.ByteLevel.alphabet()) <= set(tokenizer.token_strings())
    if steps or split is None or not has_bytes or bool(model.get("ignore_merges")) != (split == "llama-bpe"):
        return None
    return GGUFTokenizer(
        "gpt2",
        tokenizer.token_strings(),
        _types(tokenizer),
        text_vocabulary(tokenizer).special,
        merges=merges or [NO_MERGE],
        split=split,
    )


def _split_name(splitter: Any, has_merges: bool) -> str | None:
    """Return the name of a pre-tokenizer in llama.cpp, or None if it has no name."""
    given = _comparable(_steps(splitter))
    if not has_merges and given == _comparable([{"type": "ByteLevel", "use_regex": False}]):
        return "gpt-2"  # without merges, all ways to split the text give the same bytes
    for name in ("gpt-2", "smollm", "llama-bpe"):
        known = json.loads(SPLITS[name].__getstate__())
        if given == _comparable(_steps(known)):
            return name
    return None


def _comparable(steps: Sequence[Tree]) -> list[dict[str, Any]]:
    """Return the steps of a pre-tokenizer without the options that do not change how it splits."""
    defaults = {"ByteLevel": {"add_prefix_space": False, "use_regex": True}}
    return [
        {**defaults.get(step["type"], {}), **{key: step[key] for key in step if key != "trim_offsets"}}
        for step in steps
    ]


def _sentencepiece(tokenizer: Tokenizer, tree: Tree) -> GGUFTokenizer | None:
    """Return the pieces of a SentencePiece BPE as in Llama 2; None if the tokenizer is another one."""
    model, splitter = tree["model"], tree["pre_tokenizer"]
    is_plain = not any(model.get(name) for name in _PLAIN_BPE) and model.get("byte_fallback")
    if not is_plain or splitter is not None or _steps(tree["normalizer"]) != _SPACES:
        return None
    names, types = tokenizer.token_strings(), _types(tokenizer)
    scores = _scores(names, _merges(tree))
    if scores is None or not set(_BYTES) <= set(names):
        return None
    roles = text_vocabulary(tokenizer).special
    for number, name in enumerate(names):
        types[number] = BYTE if name in _BYTES else types[number]
    if "unknown" in roles:
        types[roles["unknown"]] = UNKNOWN
    return GGUFTokenizer("llama", names, types, roles, scores=scores, flags={"add_space_prefix": True})


def _scores(names: Sequence[str], merges: Sequence[str]) -> list[float] | None:
    """Return the score of each piece, such that pieces that are merged earlier have a higher one.

    llama.cpp merges two pieces whenever the vocabulary has the result, so every such pair must be a merge.
    """
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    rank: dict[str, int] = {}
    for left, right in pairs:
        rank.setdefault(left + right, len(rank))
    known, listed = set(names), set(pairs)
    for name in rank:
        splits = ((name[:middle], name[middle:]) for middle in range(1, len(name)))
        if any(pair not in listed for pair in splits if known.issuperset(pair)):
            return None
    return [-float(rank.get(name, len(rank))) for name in names]


def _words(task: CausalLanguageTask, tree: Tree) -> GGUFTokenizer | Obstacle | None:
    """Return words or characters as a unigram model.

    Our words are such that no word contains the boundary between two others. So every way to split a known
    text into words refines ours, and ours has the fewest words.
    """
    tokenizer = task.tokenizer
    steps, splits = _steps(tree["normalizer"]), _steps(tree["pre_tokenizer"])
    if splits and splits[0]["type"] == "WhitespaceSplit":
        reason = "llama.cpp keeps the spaces between words"
        remedy = f"train with task.tokenizer.marks_spaces=true, or {OTHER}"
        return Obstacle("task.tokenizer.marks_spaces", reason, remedy)
    if len(splits) != 1 or splits[0]["type"] != "Split":
        return None
    is_words, is_characters = (
        splits[0]["pattern"] == {"Regex": pattern} for pattern in (WORD_PATTERN, CHARACTER_PATTERN)
    )
    has_space = steps == [{"type": "Prepend", "prepend": " "}]
    if not (is_words and has_space) and not (is_characters and not steps):
        return None
    names = [name.replace(" ", SPACE) for name in tokenizer.token_strings()]
    if any(SPACE in name for name in tokenizer.token_strings()):
        return _other_kind(f"llama.cpp reads the character {SPACE} as a space, and the vocabulary has it")
    unknown = count_unknown(task)
    if unknown:
        what = "words" if is_words else "characters"
        reason = f"llama.cpp splits unknown {what} differently, and the data have {unknown:,} of them"
        return _other_kind(reason)
    types = _types(tokenizer)
    return GGUFTokenizer(
        "t5",
        names,
        types,
        text_vocabulary(tokenizer).special,
        scores=[WORD_SCORE if kind == NORMAL else NEVER for kind in types],
        flags={"add_space_prefix": has_space, "remove_extra_whitespaces": False},
    )


def count_unknown(task: CausalLanguageTask) -> int:
    """Return the number of unknown tokens in all splits of the data."""
    count = 0
    for examples in task.splits.values():
        assert isinstance(examples.inputs, Windows)
        rows = examples.inputs.rows
        step = 1 << 22
        for start in range(0, rows.token_count, step):
            tokens = rows.tokens(start, min(start + step, rows.token_count))
            count += int((tokens == task.tokenizer.unknown).sum())
    return count
