"""Function words used by the rules: determiners, pronouns, copulas, negations, prepositions, conjunctions."""

from __future__ import annotations

from glassformer.datasets.grammar.lexicon import (
    NAMES,
    Address,
    Determiner,
    Gender,
    Link,
    Modal,
    Pronoun,
    Verb,
    Word,
    by_english,
)

# ---------------------------------------------------------------- determiners


def _possessive(english: str, masculine: str, feminine: str, plural: str) -> Determiner:
    # mon amie: before a vowel the feminine takes the form of the masculine.
    return Determiner(english, english, english, masculine, feminine, masculine, masculine, plural, plural)


BARE = Determiner("", "", "", "", "", "", "", "", "")
THE = Determiner("the", "the", "the", "le", "la", "le", "la", "les", "les")
GENERIC = Determiner("", "", "", "le", "la", "le", "la", "les", "les")
"""Generic determiner, as in `Paul loves cats`, `Paul aime les chats`. English uses no article here."""
A = Determiner("a", "", "", "un", "une", "un", "une", "", "")
SOME = Determiner(
    "", "some", "some", "du", "de la", "de le", "de la", "des", "des", "de", dropped_after_de=True
)
ANY = Determiner("a", "any", "any", "de", "de", "de", "de", "de", "de")
"""Indefinite determiner after a negation: he does not have a car, il n'a pas de voiture."""
NO = Determiner("no", "no", "no", "de", "de", "de", "de", "de", "de")
THIS = Determiner("this", "this", "these", "ce", "cette", "cet", "cette", "ces", "ces")
MANY = Determiner("", "", "many", "", "", "", "", "beaucoup de", "beaucoup de")
SEVERAL = Determiner("", "", "several", "", "", "", "", "plusieurs", "plusieurs")
ALL = Determiner("", "", "all the", "", "", "", "", "tous les", "toutes les")
WHICH = Determiner("which", "which", "which", "quel", "quelle", "quel", "quelle", "quels", "quelles")
HOW_MANY = Determiner("", "", "how many", "", "", "", "", "combien de", "combien de")
YOUR_FAMILIAR = _possessive("your", "ton", "ta", "tes")
YOUR_POLITE = _possessive("your", "votre", "votre", "vos")
POSSESSIVES = (
    _possessive("my", "mon", "ma", "mes"),
    _possessive("his", "son", "sa", "ses"),
    _possessive("her", "son", "sa", "ses"),
    _possessive("our", "notre", "notre", "nos"),
    _possessive("their", "leur", "leur", "leurs"),
)

# ---------------------------------------------------------------- persons

I = Pronoun("I", "me", "je", "me", "me", "moi", 0, "m", False)  # noqa: E741 - that is the word
HE = Pronoun("he", "him", "il", "le", "lui", "lui", 2, "m", False)
SHE = Pronoun("she", "her", "elle", "la", "lui", "elle", 2, "f", False)
WE = Pronoun("we", "us", "nous", "nous", "nous", "nous", 3, "m", True)
THEY = Pronoun("they", "them", "ils", "les", "leur", "eux", 5, "m", True)
"""Masculine `they`. `I`, `we`, and `they` without an antecedent are masculine by convention."""
THEY_FEMININE = Pronoun("they", "them", "elles", "les", "leur", "elles", 5, "f", True)
IT_MASCULINE = Pronoun("it", "it", "il", "le", "lui", "lui", 2, "m", False)
IT_FEMININE = Pronoun("it", "it", "elle", "la", "lui", "elle", 2, "f", False)
WHO = Pronoun("who", "who", "qui", "", "", "qui", 2, "m", False)
THERE = Pronoun("there", "", "il", "", "", "", 2, "m", False)
"""Subject of `there is`, `il y a`."""


def _you(french: str, person: int, gender: Gender, plural: bool) -> Pronoun:
    weak, strong = ("te", "toi") if french == "tu" else ("vous", "vous")
    return Pronoun("you", "you", french, weak, weak, strong, person, gender, plural)


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

# ---------------------------------------------------------------- copulas and modals


def _copula(english: str, past: str, french: str, *, with_etre: bool = False, stative: bool = True) -> Verb:
    return Verb(english, past, french, (), "none", (), (), False, with_etre, stative, not stative, "any")


BE = _copula("be", "was", "être")
SEEM = _copula("seem", "seemed", "sembler")
BECOME = _copula("become", "became", "devenir", with_etre=True, stative=False)
HAVE_YEARS = _copula("be", "was", "avoir")
"""Verb for ages: she is ten years old, elle a dix ans."""
THERE_BE = _copula("be", "was", "avoir")
"""Verb for the subject THERE: there is, il y a."""
REPORTING = by_english(
    [
        _copula("say", "said", "dire"),
        _copula("think", "thought", "penser"),
        _copula("know", "knew", "savoir"),
        _copula("believe", "believed", "croire"),
        _copula("hope", "hoped", "espérer"),
    ]
)
"""Verbs followed by a clause: she says that …"""
MODALS = (
    Modal("want to", "vouloir"),
    Modal("can", "pouvoir", "cannot"),
    Modal("must", "devoir", "must not"),
)

# ---------------------------------------------------------------- adverbs, conjunctions and prepositions

NOT = Word("not", "pas")
NO_VERB = Word("", "pas")
"""Negation without an English word, used with the determiner NO: he has no cat, il n'a pas de chat."""
NEVER = Word("never", "jamais")
NO_LONGER = Word("no longer", "plus")
FREQUENCIES = (
    Word("often", "souvent"),
    Word("always", "toujours"),
    Word("sometimes", "parfois"),
    Word("rarely", "rarement"),
)
DEGREES = (Word("very", "très"), Word("too", "trop"), Word("so", "si"))
MORE, LESS, AS = Word("more", "plus"), Word("less", "moins"), Word("as", "aussi")

AND = Link("and", "et")
BUT = Link("but", "mais", comma=True)
BECAUSE = Link("because", "parce que")
IF = Link("if", "si")
WHEN = Link("when", "quand", english_present=True)
THAT = Link("that", "que")

WITH, WITHOUT = Word("with", "avec"), Word("without", "sans")
TO, FROM = Word("to", "à"), Word("from", "de")
IN, AT, ON, UNDER = Word("in", "dans"), Word("at", "à"), Word("on", "sur"), Word("under", "sous")
BESIDE = (
    Word("near", "près de"),
    Word("behind", "derrière"),
    Word("in front of", "devant"),
    Word("next to", "à côté de"),
)

WHERE, WHEN_ASKED, WHY = Word("where", "où"), Word("when", "quand"), Word("why", "pourquoi")
WHAT, WHOM = Word("what", "que"), Word("who", "qui")
