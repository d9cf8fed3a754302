"""Random noun phrases, persons and locations."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Literal, NamedTuple, TypeVar

from glassformer.datasets.grammar import words
from glassformer.datasets.grammar.lexicon import (
    ATTRIBUTIVE,
    COUNTRIES,
    MASS_KINDS,
    NAMES,
    NOUNS,
    NUMBERS,
    Address,
    Adjective,
    Determination,
    Determiner,
    Gendered,
    Name,
    Noun,
    Pronoun,
    Word,
    nouns_of,
)
from glassformer.datasets.grammar.tree import Abroad, Nominal, NounPhrase, Pair, Prepositional

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
"""Use of a phrase, which limits its determiners: as the object of a verb, or under negation."""


class Choice(NamedTuple):
    """Determiner of a phrase (None: a possessive), with an optional number or possessor."""

    determiner: Determiner | None
    number: bool = False
    owner: bool = False


_POSSESSED = (Choice(None),) * 3 + (Choice(words.THE, owner=True),)
_DEFINITE = (Choice(words.THE),) * 4 + (Choice(words.THIS),)
_INDEFINITE_PLURAL = (
    (Choice(words.SOME),) * 3
    + (Choice(words.BARE, number=True),) * 3
    + (Choice(words.MANY), Choice(words.SEVERAL))
)
_DEFINITE_PLURAL = (*_DEFINITE, Choice(words.ALL), Choice(words.THE, number=True))
_UNCOUNTED = frozenset({words.ALL, words.MANY, words.SEVERAL, words.SOME, words.BARE})


@cache
def _choices(noun: Noun, plural: bool, use: Use) -> tuple[Choice, ...]:
    known: tuple[Choice, ...] = _DEFINITE_PLURAL if plural else _DEFINITE
    if noun in KIN:
        known = (*_POSSESSED, Choice(None, number=True)) if plural else _POSSESSED
    elif noun in _OWNED:
        known = (*known, *_POSSESSED)
    indefinite: tuple[Choice, ...] = _INDEFINITE_PLURAL if plural else (Choice(words.A),) * 3
    if noun.kind in MASS_KINDS:
        indefinite = (Choice(words.SOME),) * 4
    everything = known if noun in KIN else (*known, *indefinite)
    by_use: dict[Use, tuple[Choice, ...]] = {
        "any": everything,
        "definite": known,
        "generic": known if noun in KIN else (*known, *(Choice(words.GENERIC),) * 4),
        "indefinite": indefinite,
        "negated": known if noun in KIN else (*known, *(Choice(words.ANY),) * 3),
        "negated indefinite": (Choice(words.ANY),),
        "there is no": (Choice(words.NO),),
        "negated subject": known,
    }
    choices = by_use[use]
    if use.startswith("negated"):
        # `pas trois livres`, `pas tous les livres`: there the negation applies to the quantity.
        choices = tuple(each for each in choices if each.determiner not in _UNCOUNTED and not each.number)
    return choices


class Phrases:
    """Draw the phrases of one sentence: no name twice, and `your` only with an address."""

    def __init__(self, source: random.Random) -> None:
        self.random = source.random
        self.address: Address | None = None
        self.asking = False
        self.used_names: list[Name] = []
        self.used_noun: Noun | None = None

    def start(self, address: Address | None = None, *, asking: bool = False) -> None:
        """Start a sentence. A question (`asking`) is about definite persons, not about the speaker."""
        self.address, self.asking = address, asking
        self.used_names = [name for name in NAMES if address and name.english == address.english]
        self.used_noun = None

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def pick(self, items: Sequence[Item]) -> Item:
        # random.choice may draw differently in another version of Python.
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
        return self.pick(words.POSSESSIVES)

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
        if choice.determiner is words.GENERIC and not plural and noun.kind not in MASS_KINDS:
            plural = True
        determiner = self.possessive() if choice.determiner is None else choice.determiner
        return NounPhrase(
            noun,
            plural,
            determiner,
            number=self._number(noun) if choice.number else None,
            adjectives=self.adjectives(noun, adjective) if determiner is not words.GENERIC else (),
            owner=self._owner(noun) if choice.owner else None,
        )

    def _number(self, noun: Noun) -> Gendered:
        return self.pick(_SMALL_NUMBERS if noun in KIN else _ALL_NUMBERS)

    def _owner(self, noun: Noun) -> Nominal:
        if noun in KIN or self.chance(0.5):
            return self.name()
        if self.chance(0.6):
            return NounPhrase(self.pick(KIN), False, self.possessive())
        person = self.pick(_PERSONS)
        return NounPhrase(person, self.chance(0.25), words.THE)

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
        """Draw a definite person: a name, a relative, or a definite noun."""
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
        """Draw a subject pronoun. `they` permits a THEY without an antecedent, masculine by convention."""
        if self.address and self.chance(0.6):
            return self.address.pronoun
        if self.asking:
            return self.pick((words.HE, words.SHE, words.THEY) if they else (words.HE, words.SHE))
        return self.pick(
            (words.I, words.I, words.HE, words.HE, words.SHE, words.SHE, words.WE, words.WE, words.THEY)
            if they
            else (words.I, words.HE, words.SHE, words.WE)
        )

    def subject(self, nouns: Sequence[Noun], *, they: bool, negated: bool = False) -> Nominal:
        """Draw a subject from `nouns`, which lists people first."""
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

    # ------------------------------------------------------------ locations

    def _location(self, preposition: Word, nouns: Sequence[Noun]) -> Prepositional:
        noun = self.pick(nouns)
        determiner = self.possessive() if noun.kind == "home" and self.chance(0.25) else words.THE
        return Prepositional(
            preposition, NounPhrase(noun, False, determiner, None, self.adjectives(noun, 0.15))
        )

    def inside(self) -> Prepositional:
        """Draw a location for people."""
        chance = self.random()
        if chance < 0.4:
            return self._location(words.IN, _INSIDE)
        if chance < 0.68:
            return self._location(words.AT, _AT)
        if chance < 0.8:
            return self._location(words.ON, _ON)
        return self._location(self.pick(words.BESIDE), _LANDMARKS)

    def outside(self) -> Prepositional:
        if self.chance(0.5):
            return self._location(words.IN, _OUTSIDE)
        return self._location(self.pick(words.BESIDE), _LANDMARKS)

    def around(self) -> Prepositional:
        """Draw a location for objects."""
        if self.chance(0.3):
            return self._location(words.IN, _INSIDE[:4])
        return self._location(words.ON if self.chance(0.6) else words.UNDER, _SURFACES)

    def destination(self) -> Prepositional | Abroad:
        return self._end_of_journey(words.TO)

    def origin(self) -> Prepositional | Abroad:
        return self._end_of_journey(words.FROM)

    def _end_of_journey(self, preposition: Word) -> Prepositional | Abroad:
        if self.chance(0.6):
            return self._location(preposition, _DESTINATIONS)
        return Abroad(preposition, self.pick(COUNTRIES))

    def residence(self) -> Prepositional | Abroad:
        if self.chance(0.6):
            return Abroad(words.IN, self.pick(COUNTRIES))
        return self._location(words.IN, (NOUNS["house"], NOUNS["village"], NOUNS["castle"], NOUNS["city"]))

    def country(self) -> Abroad:
        return Abroad(words.IN, self.pick([each for each in COUNTRIES if each.inside != "à"]))
