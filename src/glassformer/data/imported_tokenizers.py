"""Tokenizer of an imported model, whose tokens and special tokens keep their ids."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from tokenizers import Tokenizer as HuggingFaceTokenizer

from glassformer.data.tokenizers import Tokenizer

Tree = Mapping[str, Any]

ROLES = ("pad", "unknown", "begin", "end", "mask")
NO_ID = -1
"""Id of a special token that the vocabulary does not have. No token of a text equals it."""
_HIDDEN = "\uffff"
"""Prefix of the names of special tokens in the inner tokenizer, so that no text matches them."""


class ImportedTokenizer(Tokenizer):
    """Tokenizer of an imported model, from a `tokenizer.json` that names the roles of its special tokens.

    Each entry of `added_tokens` may have a list `roles`, of pad, unknown, begin, end and mask; Hugging Face's
    library ignores this key. Special tokens that occur in a user's text are text, as for every tokenizer. The
    post-processor determines whether a prompt begins with the begin token, and whether an input of a
    classifier ends with the end token.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = dict(tree)
        names = dict(vocabulary(tree))
        added = {int(token["id"]): token for token in tree["added_tokens"]}
        names |= {number: str(token["content"]) for number, token in added.items()}
        special = {number for number, token in added.items() if token["special"]}
        self._special_names = {number: names[number] for number in special}
        for role in ROLES:
            holders = [number for number, token in added.items() if role in token.get("roles", ())]
            setattr(self, role, holders[0] if holders else NO_ID)
        template = (tree.get("post_processor") or {}).get("single", [])
        self.begins_prompts = bool(template) and "SpecialToken" in template[0]
        self.ends_inputs = bool(template) and "SpecialToken" in template[-1]
        self._inner = HuggingFaceTokenizer.from_str(json.dumps(_without_special(tree, self._special_names)))
        number_of = {name: number for number, name in names.items()}
        inner = self._inner.get_vocab(with_added_tokens=True)
        self._outer_ids = np.full(max(inner.values()) + 1, self.unknown, dtype=np.int64)
        self._inner_ids = [NO_ID] * (max(names) + 1)
        for name, inner_id in inner.items():
            number = number_of[name.removeprefix(_HIDDEN)]
            self._outer_ids[inner_id] = number
            self._inner_ids[number] = inner_id

    @cached_property
    def is_text(self) -> np.ndarray:
        is_text = np.array(self._inner_ids) != NO_ID
        is_text[list(self._special_names)] = False
        return is_text

    def _special_symbol(self, number: int) -> str:
        return self._special_names.get(number, f"<unused-{number}>")

    def token_strings(self) -> list[str]:
        """Return the name of each token id in the foreign file."""
        names = self._special_names
        return [
            names.get(number) or str(self._inner.id_to_token(inner))
            for number, inner in enumerate(self._inner_ids)
        ]

    def json_tree(self) -> dict[str, Any]:
        return self._tree


def vocabulary(tree: Tree) -> Iterable[tuple[int, str]]:
    """Yield id and name of each token of the model of a `tokenizer.json`, without its added tokens."""
    tokens = tree["model"]["vocab"]
    if isinstance(tokens, Mapping):
        return ((int(number), name) for name, number in tokens.items())
    return ((number, str(piece)) for number, (piece, _) in enumerate(tokens))


def _without_special(tree: Tree, special: Mapping[int, str]) -> dict[str, Any]:
    """Return a `tokenizer.json` that does not find special tokens in text, because their names are hidden."""
    hidden = {name: _HIDDEN + name for name in special.values()}
    model = dict(tree["model"])
    if isinstance(model["vocab"], Mapping):
        model["vocab"] = {hidden.get(name, name): number for name, number in model["vocab"].items()}
    else:
        model["vocab"] = [[hidden.get(piece, piece), score] for piece, score in model["vocab"]]
    if model.get("unk_token") is not None:
        model["unk_token"] = hidden.get(model["unk_token"], model["unk_token"])
    if "merges" in model:
        model["merges"] = [pair for pair in map(_pair, model["merges"]) if "".join(pair) not in hidden]
    added = [token for token in tree["added_tokens"] if not token["special"]]
    unused = {"post_processor": None, "padding": None, "truncation": None}
    return {**tree, "model": model, "added_tokens": added, **unused}


def _pair(merge: str | list[str]) -> list[str]:
    """Return a merge of a BPE model as a pair. Older files have a text with a space between its parts."""
    return merge.split(" ") if isinstance(merge, str) else merge
