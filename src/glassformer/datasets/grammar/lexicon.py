"""What a word is: the entries that both languages share, and how the tables of words are read.

An entry holds what a rule cannot know (gender, an irregular form, what goes with what). It must not know
how a sentence is made, nor how a word is inflected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

Gender = Literal["m", "f"]
Frame = Literal["none", "direct", "to", "of", "give", "move"]
"""What follows a verb in French: nothing, a direct object, `à`, `de`, both objects, a place."""
Determination = Literal["any", "definite", "generic", "indefinite"]
"""Which determiners an object takes."""


@dataclass(frozen=True, slots=True, eq=False)
class Noun:
    english: str
    english_plural: str
    french: str
    french_plural: str
    gender: Gender
    kind: str


@dataclass(frozen=True, slots=True, eq=False)
class Adjective:
    english: str
    comparative: str
    """Empty: it is not compared."""
    masculine: str
    feminine: str
    masculine_before_vowel: str
    own_comparative: tuple[str, str] | None
    """Masculine and feminine of a word of its own, such as `meilleur`; none: it is made with `plus`."""
    before_noun: bool
    attributive: bool
    predicative: bool
    nouns: tuple[Noun, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Verb:
    english: str
    """The whole of it: `look for`, `be hungry`. Its first word is the one that is inflected."""
    english_past: str
    """Of the first word."""
    french: str
    """The infinitive of the word that is inflected, without `se`."""
    french_rest: tuple[str, ...]
    """`faim` of `avoir faim`."""
    frame: Frame
    reflexive: bool
    with_etre: bool
    stative: bool
    """Its past is an imperfect."""
    progressive: bool
    determiners: Determination
    subjects: tuple[Noun, ...]
    objects: tuple[Noun, ...]

    @property
    def english_words(self) -> list[str]:
        return self.english.split(" ")


@dataclass(frozen=True, slots=True, eq=False)
class Determiner:
    """Its forms. French ones are chosen by gender, number and the sound that follows."""

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
    """`de` instead of `des`, where an adjective comes first; empty: no such form."""
    lost_after_de: bool = False
    """`de` swallows it: besoin de + de l'argent = besoin d'argent."""


@dataclass(frozen=True, slots=True, eq=False)
class Number:
    english: str
    masculine: str
    feminine: str


@dataclass(frozen=True, slots=True, eq=False)
class Word:
    """A fixed expression: an adverb, a time, a preposition."""

    english: str
    french: str


@dataclass(frozen=True, slots=True, eq=False)
class Profession:
    english: str
    masculine: str
    feminine: str


@dataclass(frozen=True, slots=True, eq=False)
class Country:
    english: str
    french: str
    inside: str
    """en, au, aux or à"""
    outof: str
    """de, du or des"""


Entry = TypeVar("Entry")


def rows(table: str, separator: str = ",") -> Iterator[list[str]]:
    """The cells of each line of a table; a cell may be empty, a line without any is skipped."""
    for line in table.strip().splitlines():
        if line.strip():
            yield [cell.strip() for cell in line.split(separator)]


def by_name(entries: Sequence[Entry], name: Callable[[Entry], str]) -> dict[str, Entry]:
    named = {name(entry): entry for entry in entries}
    if len(named) != len(entries):
        raise ValueError("a word stands twice in a table: one English word has one translation")
    return named


def pool(names: str, nouns: Mapping[str, Noun], groups: Mapping[str, str]) -> tuple[Noun, ...]:
    """The nouns meant by a list of nouns, kinds and groups; `-name` takes one out again."""
    chosen: dict[Noun, None] = {}
    for name in names.split():
        if name.startswith("-"):
            del chosen[nouns[name[1:]]]
        elif name in nouns:
            chosen[nouns[name]] = None
        elif name in groups:
            chosen.update(dict.fromkeys(pool(groups[name], nouns, groups)))
        else:
            found = [noun for noun in nouns.values() if noun.kind == name]
            if not found:
                raise ValueError(f"no noun, kind or group is called {name!r}")
            chosen.update(dict.fromkeys(found))
    return tuple(chosen)
