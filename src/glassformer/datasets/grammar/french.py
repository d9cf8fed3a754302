"""French spelling of a derivation: conjugation, agreement, elision, clitics, negation, word order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from glassformer.datasets.grammar.lexicon import Adjective, Gender, Name, Pronoun, Tense
from glassformer.datasets.grammar.tree import (
    Abroad,
    Age,
    Clause,
    Comparison,
    Complement,
    Gap,
    Nominal,
    NounPhrase,
    Pair,
    Prepositional,
    Quality,
    Sentence,
)
from glassformer.datasets.grammar.words import BARE, FROM, MORE, THERE
from glassformer.datasets.tables import read_table

# ---------------------------------------------------------------- word forms


@dataclass(frozen=True, slots=True, eq=False)
class Conjugation:
    infinitive: str
    present: tuple[str, ...]
    """Present-tense forms for je, tu, il, nous, vous, ils."""
    participle: str
    """Masculine singular past participle."""
    future_stem: str


_CONJUGATIONS = {verb.infinitive: verb for verb in read_table("grammar/conjugations.tsv", Conjugation)}
_FUTURE = ("ai", "as", "a", "ons", "ez", "ont")
_IMPERFECT = ("ais", "ais", "ait", "ions", "iez", "aient")


def present(infinitive: str, person: int) -> str:
    """Return the present-tense form. `person` is 0 to 5 for je, tu, il, nous, vous, ils."""
    return _CONJUGATIONS[infinitive].present[person]


def future(infinitive: str, person: int) -> str:
    return _CONJUGATIONS[infinitive].future_stem + _FUTURE[person]


def imperfect(infinitive: str, person: int) -> str:
    stem = "ét" if infinitive == "être" else present(infinitive, 3).removesuffix("ons")
    return stem + _IMPERFECT[person]


def participle(infinitive: str, gender: Gender, plural: bool) -> str:
    """Return the past participle of a verb that agrees in gender and number."""
    masculine = _CONJUGATIONS[infinitive].participle
    return agree(masculine, masculine.replace("û", "u") + "e", gender, plural)


def _plural(masculine: str) -> str:
    if masculine.endswith(("s", "x", "z")):
        return masculine
    if masculine.endswith("al"):
        return masculine[:-2] + "aux"
    return masculine + ("x" if masculine.endswith("eau") else "s")


def agree(masculine: str, feminine: str, gender: Gender, plural: bool) -> str:
    if gender == "f":
        return feminine + "s" if plural else feminine
    return _plural(masculine) if plural else masculine


@cache
def adjective_form(adjective: Adjective, gender: Gender, plural: bool) -> str:
    return agree(adjective.masculine, adjective.feminine, gender, plural)


_VOWELS = frozenset("aâàeéèêiîoôœuûh")
# Words with an initial vowel or h before which nothing is elided.
_UNELIDED = frozenset({"hibou", "hiboux", "héros", "hache", "haches", "huit", "onze"})


@cache
def opens_with_vowel(word: str) -> bool:
    return word == "y" or (word[0].lower() in _VOWELS and word not in _UNELIDED)


_ELIDED = frozenset({"je", "me", "te", "se", "le", "la", "ne", "de", "que"})


def join(words: Sequence[str]) -> str:
    """Join words into text with French elision: l'homme, qu'Anna, s'il."""
    joined: list[str] = []
    for word, following in pairwise(words):
        if word in _ELIDED and opens_with_vowel(following):
            joined.append(word[:-1] + "'")
        elif word == "si" and following in ("il", "ils"):
            joined.append("s'")
        else:
            joined.append(word + " ")
    return "".join(joined) + words[-1]


# ---------------------------------------------------------------- phrases


def _determiner(phrase: NounPhrase, following: str, adjective_first: bool) -> list[str]:
    forms, masculine = phrase.determiner, phrase.gender == "m"
    if phrase.plural:
        if adjective_first and forms.plural_before_adjective:
            form = forms.plural_before_adjective
        else:
            form = forms.masculine_plural if masculine else forms.feminine_plural
    elif opens_with_vowel(following):
        form = forms.masculine_before_vowel if masculine else forms.feminine_before_vowel
    else:
        form = forms.masculine if masculine else forms.feminine
    return form.split(" ") if form else []


def _noun_phrase(phrase: NounPhrase) -> list[str]:
    noun, gender, plural = phrase.noun, phrase.noun.gender, phrase.plural
    words = [noun.french_plural if plural else noun.french]
    adjective_first = False
    for adjective in phrase.adjectives:
        form = adjective_form(adjective, gender, plural)
        if not adjective.before_noun:
            words.append(form)
            continue
        if gender == "m" and not plural and opens_with_vowel(words[0]):
            form = adjective.masculine_before_vowel
        words.insert(0, form)
        adjective_first = True
    if phrase.number:
        words.insert(0, phrase.number.masculine if gender == "m" else phrase.number.feminine)
    words[:0] = _determiner(phrase, words[0], adjective_first)
    if phrase.owner:
        words += _after("de", phrase.owner)
    if phrase.relative:
        words += _relative(phrase.relative)
    return words


def _relative(clause: Clause) -> list[str]:
    if isinstance(clause.subject, Gap):
        pronoun = ["qui"]
    elif isinstance(clause.direct, Gap):
        pronoun = ["que"]
    else:
        pronoun = ["dont"] if clause.verb.frame == "of" else ["à", "qui"]
    return pronoun + _clause(clause)


def _nominal(nominal: Nominal) -> list[str]:
    """Return the words of a noun phrase, name, pair or pronoun. A pronoun has its strong form: moi, lui."""
    if isinstance(nominal, NounPhrase):
        return _noun_phrase(nominal)
    if isinstance(nominal, Name):
        return [nominal.english]
    if isinstance(nominal, Pronoun):
        return [nominal.strong]
    if isinstance(nominal, Pair):
        return [*_nominal(nominal.first), "et", *_nominal(nominal.second)]
    return []


_CONTRACTED = {"à": {"le": "au", "les": "aux"}, "de": {"le": "du", "les": "des"}}


def _after(preposition: str, nominal: Nominal) -> list[str]:
    """Return the words of a nominal after `à` or `de`, contracted with the article: au, aux, du, des."""
    if isinstance(nominal, Pair):
        return [*_after(preposition, nominal.first), "et", *_after(preposition, nominal.second)]
    if preposition == "de" and isinstance(nominal, NounPhrase) and nominal.determiner.dropped_after_de:
        nominal = nominal._replace(determiner=BARE)
    article, *rest = _nominal(nominal)
    if article in _CONTRACTED[preposition] and not (article == "le" and opens_with_vowel(rest[0])):
        return [_CONTRACTED[preposition][article], *rest]
    return [preposition, article, *rest]


def _complement(complement: Complement, gender: Gender, plural: bool) -> list[str]:
    if isinstance(complement, Quality):
        form = adjective_form(complement.adjective, gender, plural)
        return [complement.degree.french, form] if complement.degree else [form]
    if isinstance(complement, Comparison):
        adjective, standard = complement.adjective, _nominal(complement.standard)
        if complement.grade is MORE and adjective.comparative_masculine:
            better = agree(adjective.comparative_masculine, adjective.comparative_feminine, gender, plural)
            return [better, "que", *standard]
        return [complement.grade.french, adjective_form(adjective, gender, plural), "que", *standard]
    if isinstance(complement, Age):
        return [complement.years.masculine, "ans"]
    profession = complement.profession
    return [agree(profession.masculine, profession.feminine, gender, plural)]


def _adjunct(adjunct: Prepositional | Abroad) -> list[str]:
    if isinstance(adjunct, Abroad):
        country = adjunct.country
        return [country.origin if adjunct.preposition is FROM else country.inside, country.french]
    *head, preposition = adjunct.preposition.french.split(" ")
    if preposition in _CONTRACTED:
        return [*head, *_after(preposition, adjunct.nominal)]
    return [*head, preposition, *_nominal(adjunct.nominal)]


# ---------------------------------------------------------------- clauses

_REFLEXIVES = ("me", "te", "se", "nous", "vous", "se")


def _clitics(clause: Clause) -> list[str]:
    """Return the pronouns before the verb in French order: me le, te la, le lui, les leur."""
    if clause.subject is THERE:
        return ["y"]
    clitics = [_REFLEXIVES[clause.subject.person]] if clause.verb.reflexive else []
    if isinstance(clause.direct, Pronoun):
        clitics.append(clause.direct.direct)
    if isinstance(clause.indirect, Pronoun):
        third_person = clause.indirect.person in (2, 5)
        clitics.insert(len(clitics) if third_person else 0, clause.indirect.indirect)
    return clitics


def _participle(clause: Clause) -> str:
    """Return the past participle. It agrees with the subject (être) or a preceding direct object (avoir)."""
    verb, direct = clause.verb, clause.direct
    if verb.with_etre:
        return participle(verb.french, clause.subject.gender, clause.subject.plural)
    if isinstance(direct, Pronoun | Gap):
        return participle(verb.french, direct.gender, direct.plural)
    return participle(verb.french, "m", False)


def _verb_group(clause: Clause) -> list[str]:
    verb, person, clitics = clause.verb, clause.subject.person, _clitics(clause)
    tail: list[str] = []
    if clause.modal:
        finite = present(clause.modal.french, person)
        tail = [*clitics, verb.french]
        clitics = []
    elif clause.tense is Tense.PRESENT:
        finite = present(verb.french, person)
    elif clause.tense is Tense.FUTURE:
        finite = future(verb.french, person)
    elif verb.stative:
        finite = imperfect(verb.french, person)
    else:
        finite = present("être" if verb.with_etre else "avoir", person)
        tail = [_participle(clause)]
    words = [*clitics, finite]
    if clause.negation:
        words = ["ne", *words, clause.negation.french]
    if clause.frequency:
        words.append(clause.frequency.french)
    return [*words, *tail, *verb.french_rest]


def _clause(clause: Clause) -> list[str]:
    subject = clause.subject
    words = [subject.french] if isinstance(subject, Pronoun) else _nominal(subject)
    words += _verb_group(clause)
    if clause.direct and not isinstance(clause.direct, Pronoun):
        words += _nominal(clause.direct)
    if clause.indirect and not isinstance(clause.indirect, Pronoun | Gap):
        words += _after("de" if clause.verb.frame == "of" else "à", clause.indirect)
    if clause.complement:
        words += _complement(clause.complement, subject.gender, subject.plural)
    for adjunct in clause.adjuncts:
        words += _adjunct(adjunct)
    if clause.time is None:
        return words
    return [clause.time.french + ",", *words] if clause.time_first else [*words, clause.time.french]


def _question(sentence: Sentence) -> list[str]:
    question, main = sentence.question, sentence.main
    if question is None or question.of_subject:
        return _clause(main)
    front: list[str] = []
    if isinstance(question.front, NounPhrase):
        front = _noun_phrase(question.front)
    elif question.front is not None:
        front = [question.front.french]
    if question.short:
        return [*front, *_verb_group(main), *_nominal(main.subject)]
    return [*front, "est-ce", "que", *_clause(main)]


def spell(sentence: Sentence) -> str:
    text = join(_question(sentence))
    if sentence.second and sentence.link:
        comma = "," if sentence.link.comma else ""
        text += comma + " " + join([*sentence.link.french.split(" "), *_clause(sentence.second)])
    if sentence.address:
        text = f"{sentence.address.french}, {text}"
    return text[0].upper() + text[1:] + (" ?" if sentence.question else ".")
