"""What a sentence means, before it is said in either language.

A derivation holds lexical entries and choices (tense, number, negation), never a word form: both sides are
spelt from it alone, which is why they mean the same.
"""

from __future__ import annotations

from typing import NamedTuple

from glassformer.datasets.grammar.lexicon import (
    Adjective,
    Country,
    Determiner,
    Gender,
    Noun,
    Number,
    Profession,
    Verb,
    Word,
)
from glassformer.datasets.grammar.nouns import MASS_KINDS
from glassformer.datasets.grammar.words import Address, Link, Modal, Name, Pronoun, Tense, Time


class NounPhrase(NamedTuple):
    noun: Noun
    plural: bool
    determiner: Determiner
    number: Number | None = None
    adjectives: tuple[Adjective, ...] = ()
    owner: Nominal | None = None
    """Whose it is; the determiner is then THE: Paul's car, la voiture de Paul."""
    relative: Clause | None = None
    """It holds a Gap in the place of this phrase."""

    @property
    def gender(self) -> Gender:
        return self.noun.gender

    @property
    def person(self) -> int:
        return 5 if self.plural else 2

    @property
    def mass(self) -> bool:
        return self.noun.kind in MASS_KINDS


class Pair(NamedTuple):
    """Paul and my sister: feminine only if both are."""

    first: NounPhrase | Name
    second: NounPhrase | Name

    @property
    def gender(self) -> Gender:
        return "f" if self.first.gender == self.second.gender == "f" else "m"

    @property
    def person(self) -> int:
        return 5

    @property
    def plural(self) -> bool:
        return True


class Gap(NamedTuple):
    """The place that a relative or a question has left empty; verbs and participles agree with it."""

    noun: Noun
    plural: bool

    @property
    def gender(self) -> Gender:
        return self.noun.gender

    @property
    def person(self) -> int:
        return 5 if self.plural else 2


Nominal = NounPhrase | Name | Pair | Pronoun | Gap


class Quality(NamedTuple):
    adjective: Adjective
    degree: Word | None = None


class Comparison(NamedTuple):
    adjective: Adjective
    grade: Word
    standard: Nominal


class Trade(NamedTuple):
    profession: Profession


class Age(NamedTuple):
    years: Number


Complement = Quality | Comparison | Trade | Age


class Prepositional(NamedTuple):
    preposition: Word
    nominal: Nominal


class Abroad(NamedTuple):
    """A city or a country, which decides on its preposition itself."""

    preposition: Word
    country: Country


class Clause(NamedTuple):
    subject: Nominal
    verb: Verb
    tense: Tense = Tense.PRESENT
    negation: Word | None = None
    frequency: Word | None = None
    modal: Modal | None = None
    direct: Nominal | None = None
    indirect: Nominal | None = None
    complement: Complement | None = None
    adjuncts: tuple[Prepositional | Abroad, ...] = ()
    time: Time | None = None
    time_first: bool = False


class Question(NamedTuple):
    """What is asked for; nothing in front asks for yes or no."""

    front: Word | NounPhrase | None = None
    of_subject: bool = False
    """The subject is asked for: no other order of words."""
    short: bool = False
    """Où est la clé ? instead of est-ce que."""


class Sentence(NamedTuple):
    main: Clause
    question: Question | None = None
    address: Address | None = None
    link: Link | None = None
    second: Clause | None = None
