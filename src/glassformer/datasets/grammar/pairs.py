"""Pairs of sentences in three splits that share no sentence, and differ in what is combined with what.

Some combinations of a verb with its object, or of an adjective with its noun, are kept for validation and
some for test; no sentence of train holds one of them. Every word and every construction is in train.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from functools import cache

from glassformer.core.errors import user_error
from glassformer.datasets.grammar import english, french
from glassformer.datasets.grammar.lexicon import Adjective, Noun, Verb
from glassformer.datasets.grammar.sentences import Sentences
from glassformer.datasets.grammar.tree import (
    Clause,
    Comparison,
    Gap,
    Nominal,
    NounPhrase,
    Pair,
    Prepositional,
    Quality,
    Sentence,
)

SPLITS = ("train", "validation", "test")

_HELD_OUT = {"validation": range(0, 6), "test": range(6, 12)}
"""Of 100 combinations; the others are train's."""
_FEWEST = 4
"""A word that has fewer combinations than this with one gender keeps them in train, which has every form."""

Combination = tuple[Verb | Adjective, Noun]


@cache
def split_of(combination: Combination) -> str:
    """Where a combination belongs: a function of its words alone, so that no seed moves it."""
    word, noun = combination
    nouns = word.objects if isinstance(word, Verb) else word.nouns
    if sum(other.gender == noun.gender for other in nouns) < _FEWEST:
        return "train"
    place = zlib.crc32(f"{word.english}+{noun.english}".encode()) % 100
    return next((split for split, places in _HELD_OUT.items() if place in places), "train")


def combinations(sentence: Sentence) -> Iterator[Combination]:
    """Every verb with an object, and every adjective with a noun, of a sentence."""
    yield from _of_clause(sentence.main)
    if sentence.second:
        yield from _of_clause(sentence.second)
    if sentence.question and isinstance(sentence.question.front, NounPhrase):
        yield from _of_nominal(sentence.question.front)


def _of_clause(clause: Clause) -> Iterator[Combination]:
    verb, complement = clause.verb, clause.complement
    yield from _of_nominal(clause.subject)
    for what in (clause.direct, clause.indirect):
        if what is None:
            continue
        yield from _of_nominal(what)
        # Whom something is given to is anybody; it is no combination.
        if isinstance(what, NounPhrase | Gap) and (what is clause.direct or verb.frame != "give"):
            yield verb, what.noun
    if isinstance(complement, Quality | Comparison):
        if isinstance(clause.subject, NounPhrase):
            yield complement.adjective, clause.subject.noun
        if isinstance(complement, Comparison):
            yield from _of_nominal(complement.standard)
    for adjunct in clause.adjuncts:
        if isinstance(adjunct, Prepositional):
            yield from _of_nominal(adjunct.nominal)


def _of_nominal(nominal: Nominal) -> Iterator[Combination]:
    if isinstance(nominal, NounPhrase):
        for adjective in nominal.adjectives:
            yield adjective, nominal.noun
        if nominal.owner:
            yield from _of_nominal(nominal.owner)
        if nominal.relative:
            yield from _of_clause(nominal.relative)
    elif isinstance(nominal, Pair):
        yield from _of_nominal(nominal.first)
        yield from _of_nominal(nominal.second)


def belongs(sentence: Sentence, split: str) -> bool:
    """In a held-out split a sentence holds one of its combinations at least, and none of the other one's."""
    found = {split_of(combination) for combination in combinations(sentence)} - {"train"}
    return not found if split == "train" else found == {split}


def sentences(seed: int, split: str) -> Iterator[Sentence]:
    """Sentences of a split, without end."""
    if split not in SPLITS:
        raise user_error("no such split", path="split", value=split, allowed=SPLITS)
    source = Sentences(random.Random(f"translation {seed} {split}"))
    while True:
        sentence = source.draw()
        if belongs(sentence, split):
            yield sentence


def translation_pairs(count: int, seed: int, split: str) -> list[tuple[str, str]]:
    """English sentences and their French, no English sentence twice; fewer are the beginning of more."""
    pairs: dict[str, str] = {}
    for sentence in sentences(seed, split):
        if len(pairs) >= count:
            break
        source = english.spell(sentence)
        if source not in pairs:
            pairs[source] = french.spell(sentence)
    return list(pairs.items())
