"""Origins of words: the unit of a derivation, such as `subject.noun`, that each spelt word comes from.

English and French give the same names to the units of one derivation, so that words of both sentences can be
linked. Words carry origins only inside `tracing()`. Outside, the functions return their words unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Self

from glassformer.datasets.grammar.lexicon import Gender

_is_tracing = ContextVar("is_tracing", default=False)


class Traced(str):
    """Word that knows its origins."""

    heads: tuple[str, ...] = ()
    """Units whose meaning the word carries, such as `subject.noun`."""
    helps: tuple[str, ...] = ()
    """Units that the word belongs to without carrying their meaning, such as an auxiliary of a verb."""
    gender: Gender | None = None
    is_plural: bool | None = None

    def like(self, text: str) -> Self:
        """Return another text with the same origins."""
        return self.derived(text, self.heads, self.helps)

    def derived(self, text: str, heads: tuple[str, ...], helps: tuple[str, ...]) -> Self:
        other = type(self)(text)
        other.heads, other.helps = heads, helps
        other.gender, other.is_plural = self.gender, self.is_plural
        return other


@contextmanager
def tracing() -> Iterator[None]:
    """Give origins to all words that are spelt inside a `with` block."""
    token = _is_tracing.set(True)
    try:
        yield
    finally:
        _is_tracing.reset(token)


def _traced(word: str) -> Traced:
    return word if isinstance(word, Traced) else Traced(word)


def head(unit: str, words: Sequence[str]) -> list[str]:
    """Return words that carry the meaning of a unit."""
    if not _is_tracing.get():
        return list(words)
    found = map(_traced, words)
    return [word.derived(word, (*word.heads, unit), word.helps) for word in found]


def helper(unit: str, words: Sequence[str]) -> list[str]:
    """Return words that belong to a unit without carrying its meaning."""
    if not _is_tracing.get():
        return list(words)
    found = map(_traced, words)
    return [word.derived(word, word.heads, (*word.helps, unit)) for word in found]


def within(unit: str, words: Sequence[str]) -> list[str]:
    """Return the words of a part of a unit. The names of their units become longer."""
    if not _is_tracing.get():
        return list(words)
    return [
        word.derived(
            word,
            tuple(f"{unit}.{name}" for name in word.heads),
            tuple(f"{unit}.{name}" for name in word.helps),
        )
        for word in map(_traced, words)
    ]


def described(words: Sequence[str], gender: Gender | None, is_plural: bool) -> list[str]:
    """Return words with the gender and number of their noun, unless they have those of an inner one."""
    if not _is_tracing.get():
        return list(words)
    found: list[str] = []
    for word in map(_traced, words):
        word = word.like(word)
        if word.is_plural is None:
            word.gender, word.is_plural = gender, is_plural
        found.append(word)
    return found


def changed(word: str, text: str) -> str:
    """Return a text, such as an elided form, with the origins of a word."""
    return word.like(text) if isinstance(word, Traced) else text


def merged(first: str, second: str, text: str) -> str:
    """Return the contraction of two words, such as `au` for `à le`, with the origins of both."""
    if not isinstance(first, Traced) or not isinstance(second, Traced):
        return text
    return second.derived(text, first.heads + second.heads, first.helps + second.helps)
