"""The small words: determiners, numbers, pronouns, names, adverbs, times, prepositions, countries."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from glassformer.datasets.grammar.lexicon import (
    Country,
    Determiner,
    Gender,
    Number,
    Profession,
    Word,
    by_name,
    rows,
)


class Tense(Enum):
    PRESENT = "present"
    PAST = "past"
    FUTURE = "future"


@dataclass(frozen=True, slots=True, eq=False)
class Pronoun:
    """Its person counts je, tu, il, nous, vous, ils from 0; a polite `vous` is plural for the verb alone."""

    english: str
    english_object: str
    french: str
    direct: str
    indirect: str
    strong: str
    person: int
    gender: Gender
    plural: bool


@dataclass(frozen=True, slots=True, eq=False)
class Name:
    english: str
    gender: Gender
    person: int = 2
    plural: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Address:
    """Whom a sentence is spoken to: it decides what `you` and `your` are in French."""

    english: str
    french: str
    pronoun: Pronoun
    your: Determiner


@dataclass(frozen=True, slots=True, eq=False)
class Time:
    english: str
    french: str
    tense: Tense
    plain: bool
    """It also goes with a state, and with what did not happen."""
    progressive: bool


@dataclass(frozen=True, slots=True, eq=False)
class Modal:
    """A verb before an infinitive; it is said in the present only."""

    english: str
    french: str
    english_denied: str = ""
    """Of an auxiliary; without it, the modal is denied and asked as any verb is, with `do`."""


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """What ties a second clause to the first."""

    english: str
    french: str
    comma: bool = False
    english_present: bool = False
    """English says the second clause's future in the present: when he arrives, quand il arrivera."""


# ---------------------------------------------------------------- determiners


def _possessive(english: str, masculine: str, feminine: str, plural: str) -> Determiner:
    # mon amie: before a vowel the feminine takes the masculine's form.
    return Determiner(english, english, english, masculine, feminine, masculine, masculine, plural, plural)


BARE = Determiner("", "", "", "", "", "", "", "", "")
THE = Determiner("the", "the", "the", "le", "la", "le", "la", "les", "les")
GENERIC = Determiner("", "", "", "le", "la", "le", "la", "les", "les")
"""All of a kind: Paul loves cats, Paul aime les chats."""
A = Determiner("a", "", "", "un", "une", "un", "une", "", "")
SOME = Determiner("", "some", "some", "du", "de la", "de le", "de la", "des", "des", "de", lost_after_de=True)
ANY = Determiner("a", "any", "any", "de", "de", "de", "de", "de", "de")
"""An indefinite under negation: he does not have a car, il n'a pas de voiture."""
NO = Determiner("no", "no", "no", "de", "de", "de", "de", "de", "de")
THIS = Determiner("this", "this", "these", "ce", "cette", "cet", "cette", "ces", "ces")
MANY = Determiner("", "", "many", "", "", "", "", "beaucoup de", "beaucoup de")
SEVERAL = Determiner("", "", "several", "", "", "", "", "plusieurs", "plusieurs")
ALL = Determiner("", "", "all the", "", "", "", "", "tous les", "toutes les")
WHICH = Determiner("which", "which", "which", "quel", "quelle", "quel", "quelle", "quels", "quelles")
HOW_MANY = Determiner("", "", "how many", "", "", "", "", "combien de", "combien de")
MY = _possessive("my", "mon", "ma", "mes")
YOUR_FAMILIAR = _possessive("your", "ton", "ta", "tes")
YOUR_POLITE = _possessive("your", "votre", "votre", "vos")
POSSESSIVES = (
    MY,
    _possessive("his", "son", "sa", "ses"),
    _possessive("her", "son", "sa", "ses"),
    _possessive("our", "notre", "notre", "nos"),
    _possessive("their", "leur", "leur", "leurs"),
)

NUMBERS = by_name(
    [
        Number(english, masculine, feminine or masculine)
        for english, masculine, feminine in rows(
            """
            two, deux,
            three, trois,
            four, quatre,
            five, cinq,
            six, six,
            seven, sept,
            eight, huit,
            ten, dix,
            eleven, onze,
            twelve, douze,
            twenty, vingt,
            twenty-one, vingt et un, vingt et une
            """
        )
    ],
    lambda number: number.english,
)

# ---------------------------------------------------------------- persons

I = Pronoun("I", "me", "je", "me", "me", "moi", 0, "m", False)  # noqa: E741 - that is the word
HE = Pronoun("he", "him", "il", "le", "lui", "lui", 2, "m", False)
SHE = Pronoun("she", "her", "elle", "la", "lui", "elle", 2, "f", False)
WE = Pronoun("we", "us", "nous", "nous", "nous", "nous", 3, "m", True)
THEY = Pronoun("they", "them", "ils", "les", "leur", "eux", 5, "m", True)
"""`I`, `we` and a `they` that stands for nobody in the sentence are masculine, or English would not tell."""
THEY_FEMININE = Pronoun("they", "them", "elles", "les", "leur", "elles", 5, "f", True)
IT_MASCULINE = Pronoun("it", "it", "il", "le", "lui", "lui", 2, "m", False)
IT_FEMININE = Pronoun("it", "it", "elle", "la", "lui", "elle", 2, "f", False)
WHO = Pronoun("who", "who", "qui", "", "", "qui", 2, "m", False)
THERE = Pronoun("there", "", "il", "", "", "", 2, "m", False)
"""The subject of `there is`, `il y a`."""


def _you(french: str, person: int, gender: Gender, plural: bool) -> Pronoun:
    weak, strong = ("te", "toi") if french == "tu" else ("vous", "vous")
    return Pronoun("you", "you", french, weak, weak, strong, person, gender, plural)


NAMES = (
    Name("Paul", "m"),
    Name("Pierre", "m"),
    Name("Marc", "m"),
    Name("Antoine", "m"),
    Name("Anna", "f"),
    Name("Alice", "f"),
    Name("Marie", "f"),
    Name("Julie", "f"),
)

ADDRESSES = (
    *(
        Address(name.english, name.english, _you("tu", 1, name.gender, False), YOUR_FAMILIAR)
        for name in NAMES
    ),
    Address("Sir", "Monsieur", _you("vous", 4, "m", False), YOUR_POLITE),
    Address("Madam", "Madame", _you("vous", 4, "f", False), YOUR_POLITE),
    Address("My friends", "Mes amis", _you("vous", 4, "m", True), YOUR_POLITE),
    Address("Children", "Les enfants", _you("vous", 4, "m", True), YOUR_POLITE),
    Address("Girls", "Les filles", _you("vous", 4, "f", True), YOUR_POLITE),
)

PROFESSIONS = tuple(
    Profession(*cells)
    for cells in rows(
        """
        teacher, professeur, professeure
        baker, boulanger, boulangère
        singer, chanteur, chanteuse
        nurse, infirmier, infirmière
        student, étudiant, étudiante
        lawyer, avocat, avocate
        dancer, danseur, danseuse
        painter, peintre, peintre
        writer, écrivain, écrivaine
        """
    )
)

# ---------------------------------------------------------------- adverbs and times

NOT = Word("not", "pas")
NO_VERB = Word("", "pas")
"""English puts the negation into the determiner: there is no cat, il n'y a pas de chat."""
NEVER = Word("never", "jamais")
NO_LONGER = Word("no longer", "plus")

FREQUENCIES = (
    Word("often", "souvent"),
    Word("always", "toujours"),
    Word("sometimes", "parfois"),
    Word("rarely", "rarement"),
)
DEGREES = (Word("very", "très"), Word("too", "trop"), Word("so", "si"))
MORE = Word("more", "plus")
LESS = Word("less", "moins")
AS = Word("as", "aussi")

MODALS = (
    Modal("want to", "vouloir"),
    Modal("can", "pouvoir", "cannot"),
    Modal("must", "devoir", "must not"),
)

# Flags: s plain, p makes the English present progressive.
_TIMES = {
    Tense.PAST: """
        yesterday, hier, s
        last night, hier soir, s
        this morning, ce matin, s
        last week, la semaine dernière,
        last year, l'année dernière, s
        two days ago, il y a deux jours,
        an hour ago, il y a une heure,
        """,
    Tense.PRESENT: """
        today, aujourd'hui, s
        now, maintenant, sp
        every day, tous les jours,
        every morning, tous les matins,
        on Sundays, le dimanche,
        """,
    Tense.FUTURE: """
        tomorrow, demain, s
        soon, bientôt,
        tonight, ce soir, s
        next week, la semaine prochaine,
        next year, l'année prochaine, s
        in three days, dans trois jours,
        in an hour, dans une heure,
        """,
}

TIMES = {
    tense: tuple(
        Time(english, french, tense, "s" in flags, "p" in flags) for english, french, flags in rows(table)
    )
    for tense, table in _TIMES.items()
}

# ---------------------------------------------------------------- links and prepositions

AND = Link("and", "et")
BUT = Link("but", "mais", comma=True)
BECAUSE = Link("because", "parce que")
IF = Link("if", "si")
WHEN = Link("when", "quand", english_present=True)
THAT = Link("that", "que")

WITH = Word("with", "avec")
WITHOUT = Word("without", "sans")
TO = Word("to", "à")
FROM = Word("from", "de")
IN = Word("in", "dans")
AT = Word("at", "à")
ON = Word("on", "sur")
UNDER = Word("under", "sous")
BESIDE = (
    Word("near", "près de"),
    Word("behind", "derrière"),
    Word("in front of", "devant"),
    Word("next to", "à côté de"),
)

WHERE = Word("where", "où")
WHEN_ASKED = Word("when", "quand")
WHY = Word("why", "pourquoi")
WHAT = Word("what", "que")
WHOM = Word("who", "qui")

COUNTRIES = tuple(
    Country(*cells)
    for cells in rows(
        """
        France, France, en, de
        Italy, Italie, en, de
        Spain, Espagne, en, de
        Germany, Allemagne, en, de
        Japan, Japon, au, du
        Canada, Canada, au, du
        Portugal, Portugal, au, du
        the United States, États-Unis, aux, des
        Paris, Paris, à, de
        London, Londres, à, de
        Athens, Athènes, à, de
        Geneva, Genève, à, de
        """
    )
)
