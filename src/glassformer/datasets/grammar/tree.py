"""Derivations: syntax trees that represent a sentence before it is spelt in English and French.

A derivation holds lexical entries and choices (tense, number, negation), but no inflected words. Both
sentences are spelt from the same derivation, so that they have the same meaning.
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
    """Possessor, as in `Paul's car`, `la voiture de Paul`. It requires the determiner THE."""
    relative: Clause | None = None
    """Relative clause. It contains a Gap where this phrase would be: the car that Paul bought (gap)."""

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
    """Coordination of two people, such as `Paul and my sister`. It is feminine only if both are."""

    first: NounPhrase | Name
    second: NounPhrase | Name
    person: ClassVar[int] = 5
    plural: ClassVar[bool] = True

    def parts(self) -> tuple[tuple[str, NounPhrase | Name], ...]:
        return ("first", self.first), ("second", self.second)

    @property
    def gender(self) -> Gender:
        return "f" if self.first.gender == self.second.gender == "f" else "m"


class Gap(NamedTuple):
    """Empty subject or object position in a relative clause or question. Verbs agree with its noun."""

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
    """Location in a city or country. The city or country determines the French preposition: à Paris."""

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
    """Type of question. `front` is its question word or phrase, or None for a yes-or-no question."""

    front: Word | NounPhrase | None = None
    of_subject: bool = False
    """True if the question asks for the subject, as in `Who sings?`. The word order is unchanged."""
    short: bool = False
    """True if French inverts verb and subject instead of using `est-ce que`: Où est la clé ?"""


class Sentence(NamedTuple):
    main: Clause
    question: Question | None = None
    address: Address | None = None
    link: Link | None = None
    second: Clause | None = None
