"""Noun phrases and places drawn at random, as a sentence needs them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Literal, NamedTuple, TypeVar

from glassformer.datasets.grammar.adjectives import ATTRIBUTIVE
from glassformer.datasets.grammar.lexicon import Adjective, Determination, Determiner, Noun, Number, Word
from glassformer.datasets.grammar.nouns import MASS_KINDS, NOUNS, nouns_of
from glassformer.datasets.grammar.tree import Abroad, Nominal, NounPhrase, Pair, Prepositional
from glassformer.datasets.grammar.words import (
    ALL,
    ANY,
    AT,
    BARE,
    BESIDE,
    COUNTRIES,
    FROM,
    GENERIC,
    HE,
    IN,
    MANY,
    NAMES,
    NO,
    NUMBERS,
    ON,
    POSSESSIVES,
    SEVERAL,
    SHE,
    SOME,
    THE,
    THEY,
    THIS,
    TO,
    UNDER,
    WE,
    A,
    Address,
    I,
    Name,
    Pronoun,
)

Item = TypeVar("Item")

PEOPLE = frozenset(nouns_of("people"))
KIN = nouns_of("kin parent")
_PERSONS = nouns_of("person")
_OWNED = frozenset(
    nouns_of("goods food drink money tale study home opening dog cat horse cow rabbit hen donkey")
)
_SINGULAR_ONLY = frozenset(noun for noun in NOUNS.values() if noun.kind in MASS_KINDS | {"parent"})
_SMALL_NUMBERS = tuple(NUMBERS[name] for name in ("two", "three", "four"))
_ALL_NUMBERS = (*NUMBERS.values(), *_SMALL_NUMBERS, *_SMALL_NUMBERS)

_INSIDE = nouns_of("house garden kitchen office village castle church forest park street city shop")
_OUTSIDE = nouns_of("garden park forest street village city")
_AT = nouns_of("school market station hotel hospital restaurant museum library farm")
_ON = nouns_of("beach bridge island")
_DESTINATIONS = (*_AT, *nouns_of("church castle beach village office park"))
_LANDMARKS = nouns_of("buildings -market tree park river bridge")
_SURFACES = nouns_of("table chair bed desk")

Use = Determination | Literal["negated", "negated indefinite", "negated subject", "there is no"]
"""How a phrase is used, which decides what it may be: as a verb asks for its object, or under negation."""


class Choice(NamedTuple):
    """A determiner, or none for a possessive; with a number after it; with an owner instead of it."""

    determiner: Determiner | None
    number: bool = False
    owner: bool = False


_POSSESSED = (Choice(None),) * 3 + (Choice(THE, owner=True),)
_DEFINITE = (Choice(THE),) * 4 + (Choice(THIS),)
_INDEFINITE_PLURAL = (Choice(SOME),) * 3 + (Choice(BARE, number=True),) * 3 + (Choice(MANY), Choice(SEVERAL))
_DEFINITE_PLURAL = (*_DEFINITE, Choice(ALL), Choice(THE, number=True))
_UNCOUNTED = frozenset({ALL, MANY, SEVERAL, SOME, BARE})


@cache
def _choices(noun: Noun, plural: bool, use: Use) -> tuple[Choice, ...]:
    known: tuple[Choice, ...] = _DEFINITE_PLURAL if plural else _DEFINITE
    if noun in KIN:
        known = (*_POSSESSED, Choice(None, number=True)) if plural else _POSSESSED
    elif noun in _OWNED:
        known = (*known, *_POSSESSED)
    indefinite: tuple[Choice, ...] = _INDEFINITE_PLURAL if plural else (Choice(A),) * 3
    if noun.kind in MASS_KINDS:
        indefinite = (Choice(SOME),) * 4
    everything = known if noun in KIN else (*known, *indefinite)
    by_use: dict[Use, tuple[Choice, ...]] = {
        "any": everything,
        "definite": known,
        "generic": known if noun in KIN else (*known, *(Choice(GENERIC),) * 4),
        "indefinite": indefinite,
        "negated": known if noun in KIN else (*known, *(Choice(ANY),) * 3),
        "negated indefinite": (Choice(ANY),),
        "there is no": (Choice(NO),),
        "negated subject": known,
    }
    choices = by_use[use]
    if use.startswith("negated"):
        # `pas trois livres`, `pas tous les livres`: what is denied there is another matter.
        choices = tuple(each for each in choices if each.determiner not in _UNCOUNTED and not each.number)
    return choices


class Phrases:
    """Draws phrases for one sentence: no name twice, and `your` only where somebody is addressed."""

    def __init__(self, source: random.Random) -> None:
        self.random = source.random
        self.address: Address | None = None
        self.asking = False
        self.used_names: list[Name] = []
        self.used_noun: Noun | None = None

    def start(self, address: Address | None = None, *, asking: bool = False) -> None:
        """Asking: about somebody known, and not about oneself."""
        self.address, self.asking = address, asking
        self.used_names = [name for name in NAMES if address and name.english == address.english]
        self.used_noun = None

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def pick(self, items: Sequence[Item]) -> Item:
        # Not random.choice, whose way of drawing may change with Python's version.
        return items[int(self.random() * len(items))]

    # ------------------------------------------------------------ nouns

    def noun(self, nouns: Sequence[Noun]) -> Noun:
        noun = self.pick(nouns)
        while noun is self.used_noun and len(nouns) > 1:
            noun = self.pick(nouns)
        self.used_noun = noun
        return noun

    def possessive(self) -> Determiner:
        if self.address and self.chance(0.6):
            return self.address.your
        return self.pick(POSSESSIVES)

    def phrase(
        self,
        nouns: Sequence[Noun],
        use: Use = "any",
        *,
        adjective: float = 0.28,
        plural: bool | None = None,
    ) -> NounPhrase:
        noun = self.noun(nouns)
        if noun in _SINGULAR_ONLY:
            plural = False
        elif plural is None:
            plural = self.chance(0.35)
        choice = self.pick(_choices(noun, plural, use))
        if choice.determiner is GENERIC and not plural and noun.kind not in MASS_KINDS:
            plural = True
        determiner = self.possessive() if choice.determiner is None else choice.determiner
        return NounPhrase(
            noun,
            plural,
            determiner,
            number=self._number(noun) if choice.number else None,
            adjectives=self.adjectives(noun, adjective) if determiner is not GENERIC else (),
            owner=self._owner(noun) if choice.owner else None,
        )

    def _number(self, noun: Noun) -> Number:
        return self.pick(_SMALL_NUMBERS if noun in KIN else _ALL_NUMBERS)

    def _owner(self, noun: Noun) -> Nominal:
        if noun in KIN or self.chance(0.5):
            return self.name()
        if self.chance(0.6):
            return NounPhrase(self.pick(KIN), False, self.possessive())
        person = self.pick(_PERSONS)
        return NounPhrase(person, self.chance(0.25), THE)

    def adjectives(self, noun: Noun, probability: float) -> tuple[Adjective, ...]:
        known = ATTRIBUTIVE[noun]
        if noun in KIN:
            probability *= 0.4
        if not known or not self.chance(probability):
            return ()
        first = self.pick(known)
        if first.before_noun and self.chance(0.15):
            after = [word for word in known if not word.before_noun]
            if after:
                return (first, self.pick(after))
        return (first,)

    # ------------------------------------------------------------ persons

    def name(self) -> Name:
        name = self.pick(NAMES)
        while name in self.used_names and len(self.used_names) < len(NAMES):
            name = self.pick(NAMES)
        self.used_names.append(name)
        return name

    def person(self, *, adjective: float = 0.1) -> NounPhrase | Name:
        """Somebody definite: a name, one of the family, a person that is known."""
        chance = self.random()
        if chance < 0.45:
            return self.name()
        if chance < 0.75:
            return self.phrase(KIN, "definite", adjective=adjective)
        return self.phrase(_PERSONS, "definite", adjective=adjective)

    def pair(self) -> Pair:
        return Pair(self._one_of_pair(), self._one_of_pair())

    def _one_of_pair(self) -> NounPhrase | Name:
        if self.chance(0.6):
            return self.name()
        return NounPhrase(self.noun(KIN), False, self.possessive())

    def pronoun(self, *, they: bool) -> Pronoun:
        """They: whether a pronoun may stand that refers to nobody named, and is masculine by convention."""
        if self.address and self.chance(0.6):
            return self.address.pronoun
        if self.asking:
            return self.pick((HE, SHE, THEY) if they else (HE, SHE))
        return self.pick((I, I, HE, HE, SHE, SHE, WE, WE, THEY) if they else (I, HE, SHE, WE))

    def subject(self, nouns: Sequence[Noun], *, they: bool, negated: bool = False) -> Nominal:
        """Nouns: who may do it, people before others."""
        use: Use = "negated subject" if negated or self.asking else "any"
        if nouns[0] not in PEOPLE or (nouns[-1] not in PEOPLE and self.chance(0.25)):
            return self.phrase([noun for noun in nouns if noun not in PEOPLE], use, adjective=0.2)
        chance = self.random()
        if chance < 0.42:
            return self.pronoun(they=they)
        if chance < 0.62:
            return self.name()
        if chance < 0.67 and not negated:
            return self.pair()
        return self.phrase(nouns, use, adjective=0.2)

    # ------------------------------------------------------------ places

    def _place(self, preposition: Word, nouns: Sequence[Noun]) -> Prepositional:
        noun = self.pick(nouns)
        determiner = self.possessive() if noun.kind == "home" and self.chance(0.25) else THE
        return Prepositional(
            preposition, NounPhrase(noun, False, determiner, None, self.adjectives(noun, 0.15))
        )

    def inside(self) -> Prepositional:
        """Where somebody is."""
        chance = self.random()
        if chance < 0.4:
            return self._place(IN, _INSIDE)
        if chance < 0.68:
            return self._place(AT, _AT)
        if chance < 0.8:
            return self._place(ON, _ON)
        return self._place(self.pick(BESIDE), _LANDMARKS)

    def outside(self) -> Prepositional:
        if self.chance(0.5):
            return self._place(IN, _OUTSIDE)
        return self._place(self.pick(BESIDE), _LANDMARKS)

    def around(self) -> Prepositional:
        """Where a thing lies."""
        if self.chance(0.3):
            return self._place(IN, _INSIDE[:4])
        return self._place(ON if self.chance(0.6) else UNDER, _SURFACES)

    def destination(self) -> Prepositional | Abroad:
        return self._place(TO, _DESTINATIONS) if self.chance(0.6) else Abroad(TO, self.pick(COUNTRIES))

    def origin(self) -> Prepositional | Abroad:
        return self._place(FROM, _DESTINATIONS) if self.chance(0.6) else Abroad(FROM, self.pick(COUNTRIES))

    def residence(self) -> Prepositional | Abroad:
        if self.chance(0.6):
            return Abroad(IN, self.pick(COUNTRIES))
        return self._place(IN, (NOUNS["house"], NOUNS["village"], NOUNS["castle"], NOUNS["city"]))

    def country(self) -> Abroad:
        return Abroad(IN, self.pick([each for each in COUNTRIES if each.inside != "à"]))
