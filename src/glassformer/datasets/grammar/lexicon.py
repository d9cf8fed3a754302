"""Lexicon: entry classes, and the nouns, adjectives, verbs and other open word classes read from tables.

An entry holds what no rule can derive: gender, irregular forms, and the words that it combines with. Entries
are compared by identity. English words are unique within a table, so that each has exactly one translation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Literal, TypeVar

from glassformer.datasets.tables import read_table

Gender = Literal["m", "f"]
Frame = Literal["none", "direct", "to", "of", "give", "move"]
"""Objects of a French verb: none, direct, with `à`, with `de`, direct and with `à`, or a location."""
Determination = Literal["any", "definite", "generic", "indefinite"]
"""Type of determiner that a verb accepts on its object."""


class Tense(Enum):
    PRESENT = "present"
    PAST = "past"
    FUTURE = "future"


@dataclass(frozen=True, slots=True, eq=False)
class Noun:
    english: str
    english_plural: str
    french: str
    french_plural: str
    gender: Gender
    kind: str
    """Semantic class, such as `animal`, by which the tables list the nouns of a verb or adjective."""


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Named list of nouns, kinds of nouns (semantic classes) and other groups."""

    name: str
    members: str


@dataclass(frozen=True, slots=True, eq=False)
class Adjective:
    english: str
    comparative: str
    """English comparative; empty if the adjective is never compared."""
    masculine: str
    feminine: str
    masculine_before_vowel: str
    comparative_masculine: str
    """Irregular French comparative, such as `meilleur`; empty if it is formed with `plus`."""
    comparative_feminine: str
    before_noun: bool
    attributive: bool
    predicative: bool
    nouns: tuple[Noun, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Verb:
    english: str
    """Complete expression: `look for`, `be hungry`. Only its first word is inflected."""
    english_past: str
    """Past tense of the first English word."""
    french: str
    """French infinitive of the inflected word, without `se`."""
    french_rest: tuple[str, ...]
    """French words after the infinitive, such as `faim` in `avoir faim`."""
    frame: Frame
    subjects: tuple[Noun, ...]
    objects: tuple[Noun, ...]
    reflexive: bool
    with_etre: bool
    stative: bool
    """True if the verb describes a state. Its French past tense is then the imperfect."""
    progressive: bool
    determiners: Determination

    @property
    def english_words(self) -> list[str]:
        return self.english.split(" ")


@dataclass(frozen=True, slots=True, eq=False)
class Determiner:
    """Forms of a determiner. The French form depends on gender, number and the following sound."""

    english: str
    english_mass: str
    english_plural: str
    masculine: str
    feminine: str
    masculine_before_vowel: str
    feminine_before_vowel: str
    masculine_plural: str
    feminine_plural: str
    plural_before_adjective: str = ""
    """French plural form before an adjective: `de` instead of `des`. Empty for other determiners."""
    dropped_after_de: bool = False
    """True if the determiner is dropped after `de`: besoin de + de l'argent = besoin d'argent."""


@dataclass(frozen=True, slots=True, eq=False)
class Pronoun:
    """Forms of a pronoun. `person` is 0 to 5 for je, tu, il, nous, vous, ils. A polite `vous` is singular."""

    english: str
    english_object: str
    french: str
    direct: str
    indirect: str
    strong: str
    person: int
    gender: Gender
    plural: bool

    @property
    def known_gender(self) -> Gender | None:
        """Gender of a third person; None for `I`, `we` and `you`, which show none."""
        return self.gender if self.person in (2, 5) else None

    @property
    def refers(self) -> bool:
        """False for `there` and `who`, which refer to nothing that has a number."""
        return bool(self.direct)


@dataclass(frozen=True, slots=True, eq=False)
class Name:
    """First name, spelt the same in both languages."""

    english: str
    gender: Gender
    person: ClassVar[int] = 2
    plural: ClassVar[bool] = False


@dataclass(frozen=True, slots=True, eq=False)
class Address:
    """Person or group addressed, as in `Anna, …`. It determines the French of `you` and `your`."""

    english: str
    french: str
    pronoun: Pronoun
    your: Determiner


@dataclass(frozen=True, slots=True, eq=False)
class Gendered:
    """Number or profession, with its French masculine and feminine forms."""

    english: str
    masculine: str
    feminine: str


@dataclass(frozen=True, slots=True, eq=False)
class Country:
    """Country or city with its French prepositions."""

    english: str
    french: str
    inside: str
    """French preposition for location and destination: en, au, aux or à."""
    origin: str
    """French preposition for origin: de, du or des."""


@dataclass(frozen=True, slots=True, eq=False)
class Word:
    """Word that is never inflected: an adverb, a negation or a preposition."""

    english: str
    french: str


@dataclass(frozen=True, slots=True, eq=False)
class Time:
    english: str
    french: str
    tense: Tense
    plain: bool
    """True if this adverb combines with every verb, stative and negated verbs included."""
    progressive: bool
    """True if English uses the progressive with the expression: now he is singing."""


@dataclass(frozen=True, slots=True, eq=False)
class Modal:
    """Modal verb, such as `can` or `want to`. It occurs only in the present tense."""

    english: str
    french: str
    english_negated: str = ""
    """Negated form, such as `cannot`. Modals without one use `do` in negations and questions."""


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """Conjunction that introduces the second clause, such as `because`."""

    english: str
    french: str
    comma: bool = False
    english_present: bool = False
    """True if English uses the present where French uses the future: when he arrives, quand il arrivera."""


# ---------------------------------------------------------------- tables


Entry = TypeVar("Entry", Noun, Adjective, Verb, Gendered)


def by_english(entries: Iterable[Entry]) -> dict[str, Entry]:
    """Return the entries by their English word; raise ValueError if an English word appears twice."""
    named: dict[str, Entry] = {}
    for entry in entries:
        if named.setdefault(entry.english, entry) is not entry:
            raise ValueError(
                f"{entry.english!r} appears twice in a table: one English word has one translation"
            )
    return named


NOUNS = by_english(read_table("grammar/nouns.tsv", Noun))
_GROUPS = {group.name: group.members for group in read_table("grammar/groups.tsv", Group)}
if clashes := NOUNS.keys() & ({noun.kind for noun in NOUNS.values()} | _GROUPS.keys()):
    raise ValueError(f"nouns with the name of a kind or group: {sorted(clashes)}")

MASS_KINDS = frozenset({"foodstuff", "drink", "cash"})
PEOPLE_KINDS = frozenset({"parent", "kin", "person"})


def nouns_of(names: str) -> tuple[Noun, ...]:
    """Return the nouns of a list of nouns, kinds and groups, separated by spaces. `-noun` removes one."""
    chosen: dict[Noun, None] = {}
    for name in names.split():
        if name.startswith("-"):
            del chosen[NOUNS[name[1:]]]
        elif name in NOUNS:
            chosen[NOUNS[name]] = None
        elif name in _GROUPS:
            chosen.update(dict.fromkeys(nouns_of(_GROUPS[name])))
        else:
            found = [noun for noun in NOUNS.values() if noun.kind == name]
            if not found:
                raise ValueError(f"no noun, kind or group is called {name!r}")
            chosen.update(dict.fromkeys(found))
    return tuple(chosen)


ADJECTIVES = by_english(read_table("grammar/adjectives.tsv", Adjective, {"nouns": nouns_of}))


def adjectives_of(names: str) -> frozenset[Adjective]:
    """Return the adjectives for a space-separated string of English names."""
    return frozenset(ADJECTIVES[name] for name in names.split())


ATTRIBUTIVE: dict[Noun, tuple[Adjective, ...]] = {
    noun: tuple(word for word in ADJECTIVES.values() if word.attributive and noun in word.nouns)
    for noun in NOUNS.values()
}
"""Adjectives that may directly modify each noun: the red car."""
PREDICATIVE: dict[Noun, tuple[Adjective, ...]] = {
    noun: tuple(word for word in ADJECTIVES.values() if word.predicative and noun in word.nouns)
    for noun in NOUNS.values()
}
"""Adjectives that may be the predicate of each noun: the car is red."""

VERBS = by_english(read_table("grammar/verbs.tsv", Verb, {"subjects": nouns_of, "objects": nouns_of}))


def verbs_of(names: str) -> tuple[Verb, ...]:
    """Return the verbs with these English names, separated by commas."""
    return tuple(VERBS[name] for name in names.split(","))


NUMBERS = by_english(read_table("grammar/numbers.tsv", Gendered))
NAMES = tuple(read_table("grammar/names.tsv", Name))
PROFESSIONS = tuple(read_table("grammar/professions.tsv", Gendered))
COUNTRIES = tuple(read_table("grammar/countries.tsv", Country))
_TIMES = read_table("grammar/times.tsv", Time)
TIMES = {tense: tuple(time for time in _TIMES if time.tense is tense) for tense in Tense}
