"""Derivations: the meaning of a sentence, before it is spelt in either language.

A derivation holds lexical entries and choices (tense, number, negation), never word forms. Both languages are
spelt from it alone, so the two sentences mean the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from glassformer.datasets.grammar.lexicon import (
    MASS_KINDS,
    Address,
    Adjective,
    Country,
    Determiner,
    Gender,
    Gendered,
    Link,
    Modal,
    Name,
    Noun,
    Pronoun,
    Tense,
    Time,
    Verb,
    Word,
)


class NounPhrase(NamedTuple):
    noun: Noun
    plural: bool
    determiner: Determiner
    number: Gendered | None = None
    adjectives: tuple[Adjective, ...] = ()
    owner: Nominal | None = None
    """Possessor, which requires the determiner THE: Paul's car, la voiture de Paul."""
    relative: Clause | None = None
    """Relative clause, with a Gap at the position of this phrase."""

    @property
    def gender(self) -> Gender:
        return self.noun.gender

    @property
    def person(self) -> int:
        return 5 if self.plural else 2

    @property
    def mass(self) -> bool:
        return self.noun.kind in MASS_KINDS


@dataclass(frozen=True, slots=True)
class Pair:
    """Two coordinated persons, feminine only if both are: Paul and my sister."""

    first: NounPhrase | Name
    second: NounPhrase | Name
    person: ClassVar[int] = 5
    plural: ClassVar[bool] = True

    @property
    def gender(self) -> Gender:
        return "f" if self.first.gender == self.second.gender == "f" else "m"


class Gap(NamedTuple):
    """Position that a relative clause or a question leaves empty. Verbs and participles agree with it."""

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
    profession: Gendered


class Age(NamedTuple):
    years: Gendered


Complement = Quality | Comparison | Trade | Age


class Prepositional(NamedTuple):
    preposition: Word
    nominal: Nominal


class Abroad(NamedTuple):
    """City or country, which determines its own French preposition."""

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
    """Question word or phrase in front; None asks a yes-or-no question."""

    front: Word | NounPhrase | None = None
    of_subject: bool = False
    """Asks for the subject, which keeps the word order of a statement."""
    short: bool = False
    """Inversion instead of est-ce que: Où est la clé ?"""


class Sentence(NamedTuple):
    main: Clause
    question: Question | None = None
    address: Address | None = None
    link: Link | None = None
    second: Clause | None = None
