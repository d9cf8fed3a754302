"""Foreign tokenizers as a `tokenizer.json` that names the roles of its special tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as HuggingFaceTokenizer

from glassformer.data.imported_tokenizers import ROLES, ImportedTokenizer, vocabulary
from glassformer.data.tokenizers import sentencepiece_bpe
from glassformer.interchange.foreign import TokenizerFile, refuse

PROBE = "The cat sat."
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Types of tokens in GGUF files, which are those of SentencePiece."""
SPECIAL = (UNKNOWN, CONTROL, UNUSED)
"""Types of the tokens that are not text."""

_GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS: dict[str, pre_tokenizers.PreTokenizer] = {
    "gpt-2": _GPT2,
    "default": _GPT2,
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _GPT2]),
    "llama-bpe": pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_LLAMA3), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    ),
}
"""Ways to split text before the merges, by their names in llama.cpp (`tokenizer.ggml.pre`)."""


def complete(file: TokenizerFile, size: int, path: Path) -> ImportedTokenizer:
    """Return the tokenizer of a model with `size` token ids, and refuse one that does not fit the model."""
    tree = {**file.tree, "truncation": None, "padding": None}
    tree.setdefault("added_tokens", [])
    try:
        full = _load(tree)
        added = [dict(token) for token in tree["added_tokens"] or ()]
        names = dict(vocabulary(tree))
        roles = _roles(file.roles, tree, full, names, added)
        tree["added_tokens"] = _added_tokens(added, names, roles, size)
        tree["post_processor"] = _template(full, roles, tree["added_tokens"])
        if not names or min(names) < 0 or max(names) >= size:
            raise ValueError(
                f"it has ids up to {max(names, default=-1):,}, and the model has {size:,} tokens"
            )
        tokenizer = ImportedTokenizer(json.loads(json.dumps(tree)))
        tokenizer.encode(PROBE)
        return tokenizer
    except Exception as error:  # the library raises plain Exceptions
        raise refuse(f"the tokenizer cannot be used: {error}", path) from None
    except BaseException as error:
        if type(error).__name__ == "PanicException":  # an error inside of the library
            raise refuse("the tokenizer cannot be used: it is damaged", path) from None
        raise


def _load(tree: Mapping[str, Any]) -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer.from_str(json.dumps(tree))


def _affixes(full: HuggingFaceTokenizer) -> tuple[list[int], list[int]]:
    """Return the ids that the tokenizer itself puts before and after a text."""
    plain = full.encode(PROBE, add_special_tokens=False).ids
    whole = full.encode(PROBE).ids
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return whole[:start], whole[start + len(plain) :]
    return [], []


def _roles(
    given: Mapping[str, int],
    tree: Mapping[str, Any],
    full: HuggingFaceTokenizer,
    names: Mapping[int, str],
    added: Sequence[Mapping[str, Any]],
) -> dict[str, int]:
    """Return the id of each special token by role. What the tokenizer adds to a text is begin and end."""
    roles = dict(given)
    unknown = tree["model"].get("unk_id")
    if unknown is None and tree["model"].get("unk_token") is not None:
        unknown = full.token_to_id(tree["model"]["unk_token"])
    if unknown is not None:
        roles["unknown"] = int(unknown)
    before, after = _affixes(full)
    if len(before) > 1 or len(after) > 1:
        raise ValueError("it adds more than one token before or after a text")
    if before and "begin" not in given:
        roles["begin"] = before[0]
    roles |= {"begin": before[0]} if before else {}
    roles |= {"end": after[0]} if after else {}
    roles.setdefault("end", roles.get("begin", roles.get("pad", -1)))
    roles.setdefault("begin", roles["end"])
    known = {*names, *(int(token["id"]) for token in added)}
    missing = [role for role in ("begin", "end") if roles[role] not in known]
    if missing:
        raise ValueError("it has neither a begin nor an end token")
    return {role: roles[role] for role in ROLES if role in roles and roles[role] in known}


def _added_tokens(
    added: Sequence[Mapping[str, Any]], names: Mapping[int, str], roles: Mapping[str, int], size: int
) -> list[dict[str, Any]]:
    """Return the added tokens with their roles; every id below `size` has a name afterwards."""
    entries = {int(token["id"]): _entry(token["content"], int(token["id"]), token) for token in added}
    for number in set(roles.values()) - entries.keys():
        entries[number] = _entry(names[number], number, {})
    for number in range(size):
        if number not in names and number not in entries:
            entries[number] = _entry(f"<unused-{number}>", number, {})
    for number, entry in entries.items():
        own = [role for role in ROLES if roles.get(role) == number]
        if own:
            entry |= {"special": True, "roles": own}
    too_large = [number for number in entries if number >= size]
    if any("roles" in entries[number] or not entries[number]["special"] for number in too_large):
        raise ValueError(f"it has the id {max(too_large):,}, and the model has {size:,} tokens")
    return [entry for number, entry in sorted(entries.items()) if number < size]


def _entry(content: object, number: int, given: Mapping[str, Any]) -> dict[str, Any]:
    flags = {name: bool(given.get(name, False)) for name in ("single_word", "lstrip", "rstrip", "normalized")}
    return {"id": number, "content": str(content), **flags, "special": bool(given.get("special", True))}


def _template(
    full: HuggingFaceTokenizer, roles: Mapping[str, int], added: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Return a post-processor that adds what the tokenizer itself adds to a text."""
    before, after = _affixes(full)
    if not before and not after:
        return None
    names = {int(token["id"]): str(token["content"]) for token in added}

    def special(numbers: Sequence[int], segment: int = 0) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": names[number], "type_id": segment}} for number in numbers]

    first, second = ({"Sequence": {"id": name, "type_id": number}} for number, name in enumerate("AB"))
    return {
        "type": "TemplateProcessing",
        "single": [*special(before), first, *special(after)],
        "pair": [*special(before), first, *special(after), second, *special(after, 1)],
        "special_tokens": {
            names[number]: {"id": names[number], "ids": [number], "tokens": [names[number]]}
            for number in {*before, *after}
        },
    }


def sentencepiece_tree(
    pieces: Sequence[str], scores: Sequence[float], types: Sequence[int], *, begin: int | None
) -> dict[str, Any]:
    """Return the `tokenizer.json` of a SentencePiece model of Llama, from its pieces in the order of ids.

    With `begin`, a text begins with this token.
    """
    tokenizer = HuggingFaceTokenizer(sentencepiece_bpe(pieces, scores, types))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    return with_begin(json.loads(tokenizer.to_str()), pieces, types, begin)


def byte_level_tree(
    tokens: Sequence[str], merges: Sequence[str], types: Sequence[int], split: str, *, begin: int | None
) -> dict[str, Any]:
    """Return the `tokenizer.json` of a byte-level BPE, as of GPT-2. `split` is a key of `SPLITS`.

    Merges of two special tokens are left out, because no text has them.
    """
    vocabulary = {token: number for number, token in enumerate(tokens)}
    special = {token for token, kind in zip(tokens, types, strict=True) if kind in SPECIAL}
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    pairs = [pair for pair in pairs if not special.issuperset(pair)]
    tokenizer = HuggingFaceTokenizer(models.BPE(vocabulary, pairs))
    tokenizer.pre_tokenizer = SPLITS[split]
    tokenizer.decoder = decoders.ByteLevel()
    return with_begin(json.loads(tokenizer.to_str()), tokens, types, begin)


def with_begin(
    tree: dict[str, Any], names: Sequence[str], types: Sequence[int], begin: int | None
) -> dict[str, Any]:
    """Add the control tokens, and a post-processor that puts the begin token before a text."""
    special = [number for number, kind in enumerate(types) if kind in SPECIAL]
    text = [number for number, kind in enumerate(types) if kind == USER_DEFINED]
    tree["added_tokens"] = [
        _entry(names[number], number, {"special": number in special}) for number in sorted([*special, *text])
    ]
    if begin is not None:
        name = names[begin]
        sequence = {"Sequence": {"id": "A", "type_id": 0}}
        token = {"SpecialToken": {"id": name, "type_id": 0}}
        tree["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [token, sequence],
            "pair": [token, sequence, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {name: {"id": name, "ids": [begin], "tokens": [name]}},
        }
    return tree
