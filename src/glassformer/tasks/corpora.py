"""The texts that a language model reads: as often as one likes, as tokens, and as splits are compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from glassformer.data.streams import Stream
from glassformer.data.token_cache import cache_folder, open_or_build
from glassformer.data.token_rows import RaggedRows
from glassformer.data.tokenizers import BEGIN, END, UNKNOWN, Tokenizer
from glassformer.tasks.text import Told, changed_sets, read_as, texts_of

TEXTS_AT_A_TIME = 256
WORDS_OF_A_LINE = 5
"""Of a running text, below which a line may well be in another one too."""
MOST_CHARACTERS_OF_A_LINE = 1 << 18


class Corpus:
    """The texts of a split, to be read as often as one likes, and as tokens."""

    def __init__(self, texts: Stream | Sequence[str], identity: Mapping[str, Any] | None = None) -> None:
        """`identity` is all that decides, besides the bytes of the files, which texts these are."""
        self._texts = texts
        self._identity = dict(identity or {})
        self.name = str(self._identity.get("split", ""))
        self.is_running = isinstance(texts, Stream) and texts.is_running

    def __iter__(self) -> Iterator[str]:
        if isinstance(self._texts, Stream):
            return texts_of(self._texts, "input")
        return iter(self._texts)

    def notes(self) -> list[str]:
        """How its files were read, and whether they are what their names say."""
        if not isinstance(self._texts, Stream):
            return []
        return [*self._texts.notes, *changed_sets(self.name, self._texts)]

    def comparable(self) -> Iterator[str]:
        """What it would be odd to find in another split too: texts with words, or long lines of one text."""
        parts = _lines(self) if self.is_running else self
        least = WORDS_OF_A_LINE if self.is_running else 1
        return (part for part in parts if len(part.split(maxsplit=least - 1)) >= least)

    def rows(self, tokenizer: Tokenizer, told: Told) -> tuple[RaggedRows, int]:
        """Its tokens, kept on disk where it comes from files, and how many characters they predict."""
        facts = {"characters": 0, "tokens": 0, "unknown": 0}
        if not isinstance(self._texts, Stream):
            rows = RaggedRows.of(row for (row,) in self._encode(tokenizer, facts))
            return rows, facts["characters"]
        store = open_or_build(
            cache_folder() / "tokens",
            {"tokenizer": tokenizer.fingerprint, "texts": self._identity, **read_as(self._texts)},
            lambda: self._encode(tokenizer, facts),
            told.notes.append,
            columns=["tokens"],
            sources=self._texts.files,
            facts=facts,
        )
        told.count(store.facts["unknown"], store.facts["tokens"], f"{self.name}: tokens that are unknown")
        return store["tokens"], store.facts["characters"]

    def _encode(self, tokenizer: Tokenizer, facts: dict[str, int]) -> Iterator[tuple[np.ndarray]]:
        texts = iter(self)
        is_first = True
        while block := list(islice(texts, TEXTS_AT_A_TIME)):
            for text, tokens in zip(block, tokenizer.encode_all(block), strict=True):
                facts["characters"] += len(text) if self.is_running else len(text) + 1
                if self.is_running and is_first:
                    facts["characters"] -= len(tokenizer.decode(tokens[:1]))
                is_first = False
                facts["tokens"] += len(tokens)
                facts["unknown"] += int((tokens == UNKNOWN).sum())
                yield (tokens if self.is_running else np.concatenate([[BEGIN], tokens, [END]]),)


def _lines(blocks: Iterable[str]) -> Iterator[str]:
    """Of a running text; what has no line ends is cut somewhere, so that it need not be held as a whole."""
    rest = ""
    for block in blocks:
        *lines, rest = (rest + block).split("\n")
        yield from lines
        if len(rest) > MOST_CHARACTERS_OF_A_LINE:
            yield rest
            rest = ""
    yield rest
