"""English spelling of a derivation: inflection, auxiliaries, word order."""

from __future__ import annotations

from functools import cache

from glassformer.datasets.grammar.lexicon import PEOPLE_KINDS, Name, Pronoun, Tense, Verb
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
    Question,
    Sentence,
)
from glassformer.datasets.grammar.words import AS, LESS, NOT, THERE

# ---------------------------------------------------------------- words


def _present(verb: str, person: int) -> str:
    if verb == "be":
        return {0: "am", 2: "is"}.get(person, "are")
    if person != 2:
        return verb
    if verb == "have":
        return "has"
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb[:-1] + "ies"
    return verb + ("es" if verb.endswith(("s", "x", "ch", "sh", "o")) else "s")


def _past(verb: Verb, person: int) -> str:
    if verb.english_words[0] == "be":
        return "was" if person in (0, 2) else "were"
    return verb.english_past


_DOUBLED = frozenset({"stop", "run", "swim", "begin", "forget", "get"})
"""Verbs that double their last letter before -ing, such as `running`."""


def _progressive(verb: str) -> str:
    if verb in _DOUBLED:
        return verb + verb[-1] + "ing"
    return (verb[:-1] if verb.endswith("e") and not verb.endswith("ee") else verb) + "ing"


@cache
def _takes_an(word: str) -> bool:
    return word == "honest" or (word[0].lower() in "aeiou" and word != "useful")


# ---------------------------------------------------------------- phrases


def _determiner(phrase: NounPhrase, following: str) -> str:
    forms = phrase.determiner
    if phrase.plural:
        return forms.english_plural
    if phrase.mass:
        return forms.english_mass
    return "an" if forms.english == "a" and _takes_an(following) else forms.english


def _possessive(owner: Nominal) -> list[str]:
    words = _nominal(owner)
    ending = "'" if owner.plural and words[-1].endswith("s") else "'s"
    return [*words[:-1], words[-1] + ending]


def _noun_phrase(phrase: NounPhrase) -> list[str]:
    words = [word.english for word in phrase.adjectives]
    words.append(phrase.noun.english_plural if phrase.plural else phrase.noun.english)
    if phrase.number:
        words.insert(0, phrase.number.english)
    if phrase.owner:
        words = _possessive(phrase.owner) + words
    else:
        determiner = _determiner(phrase, words[0])
        if determiner:
            words.insert(0, determiner)
    if phrase.relative:
        of_people = isinstance(phrase.relative.subject, Gap) and phrase.noun.kind in PEOPLE_KINDS
        words += ["who" if of_people else "that", *_clause(phrase.relative)]
    return words


def _nominal(nominal: Nominal, *, subject: bool = False) -> list[str]:
    if isinstance(nominal, NounPhrase):
        return _noun_phrase(nominal)
    if isinstance(nominal, Pronoun):
        return [nominal.english if subject else nominal.english_object]
    if isinstance(nominal, Name):
        return [nominal.english]
    if isinstance(nominal, Pair):
        return [*_nominal(nominal.first), "and", *_nominal(nominal.second)]
    return []


def _complement(complement: Complement, plural: bool) -> list[str]:
    if isinstance(complement, Quality):
        degree = [complement.degree.english] if complement.degree else []
        return [*degree, complement.adjective.english]
    if isinstance(complement, Comparison):
        adjective, standard = complement.adjective, _nominal(complement.standard)
        if complement.grade is AS:
            return ["as", adjective.english, "as", *standard]
        if complement.grade is LESS:
            return ["less", adjective.english, "than", *standard]
        return [adjective.comparative, "than", *standard]
    if isinstance(complement, Age):
        return [complement.years.english, "years old"]
    profession = complement.profession.english
    if plural:
        return [profession + "s"]
    return ["an" if _takes_an(profession) else "a", profession]


def _adjunct(adjunct: Prepositional | Abroad) -> list[str]:
    if isinstance(adjunct, Abroad):
        return [adjunct.preposition.english, adjunct.country.english]
    return [adjunct.preposition.english, *_nominal(adjunct.nominal)]


# ---------------------------------------------------------------- clauses


def _is_progressive(clause: Clause) -> bool:
    return bool(clause.time and clause.time.progressive and clause.verb.progressive and not clause.modal)


def _verb_group(clause: Clause, person: int, asked: bool) -> tuple[list[str], list[str]]:
    """Return the auxiliary verb (empty if none), and the other words of the verb with its adverbs."""
    verb, tense = clause.verb, clause.tense
    first, *rest = verb.english_words
    negated = clause.negation is NOT
    between = [word.english for word in (clause.negation, clause.frequency) if word and word.english]
    if clause.modal and clause.modal.english_negated:
        return [clause.modal.english_negated if negated else clause.modal.english], [first, *rest]
    if clause.modal:
        wish, *to = clause.modal.english.split(" ")
        first, rest = wish, [*to, first, *rest]
    if _is_progressive(clause):
        return [_present("be", person)], [*between, _progressive(first), *rest]
    if tense is Tense.FUTURE:
        return ["will"], [*between, first, *rest]
    finite = _present(first, person) if tense is Tense.PRESENT else _past(verb, person)
    if first == "be":
        return [finite], [*between, *rest]
    if negated or asked:
        do = "did" if tense is Tense.PAST else _present("do", person)
        return [do], [*between, first, *rest]
    return [], [*between, finite, *rest]


def _clause(clause: Clause, *, asked: bool = False) -> list[str]:
    """Return the words of a clause. If `asked`, the auxiliary verb precedes the subject."""
    subject = _nominal(clause.subject, subject=True)
    agreement = clause.direct if clause.subject is THERE and clause.direct else clause.subject
    auxiliary, words = _verb_group(clause, agreement.person, asked)
    words = [*auxiliary, *subject, *words] if asked else [*subject, *auxiliary, *words]
    if clause.direct:
        words += _nominal(clause.direct)
    if clause.indirect:
        if clause.verb.frame == "give":
            words.append("to")
        words += _nominal(clause.indirect)
    if clause.complement:
        words += _complement(clause.complement, clause.subject.plural)
    for adjunct in clause.adjuncts:
        words += _adjunct(adjunct)
    if clause.time is None:
        return words
    return [clause.time.english + ",", *words] if clause.time_first else [*words, clause.time.english]


def _front(question: Question | None) -> list[str]:
    if question is None or question.front is None:
        return []
    if isinstance(question.front, NounPhrase):
        return _noun_phrase(question.front)
    return [question.front.english]


def spell(sentence: Sentence) -> str:
    main, question, second = sentence.main, sentence.question, sentence.second
    asked = question is not None and not question.of_subject
    text = " ".join([*_front(question), *_clause(main, asked=asked)])
    if second and sentence.link:
        if sentence.link.english_present:
            second = second._replace(tense=Tense.PRESENT)
        comma = "," if sentence.link.comma else ""
        text = f"{text}{comma} {sentence.link.english} {' '.join(_clause(second))}"
    if sentence.address:
        text = f"{sentence.address.english}, {text}"
    return text[0].upper() + text[1:] + ("?" if question else ".")
