"""English spelling of a derivation: inflection, auxiliaries, word order."""

from __future__ import annotations

from functools import cache

from glassformer.datasets.grammar.lexicon import PEOPLE_KINDS, Name, Pronoun, Tense, Verb
from glassformer.datasets.grammar.origins import changed, described, head, helper, within
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
    return [*words[:-1], *helper("possessive", [changed(words[-1], words[-1] + ending)])]


def _noun_phrase(phrase: NounPhrase) -> list[str]:
    words: list[str] = []
    for number, word in enumerate(phrase.adjectives):
        words += head(f"adjective {number}", [word.english])
    words += head("noun", [phrase.noun.english_plural if phrase.plural else phrase.noun.english])
    if phrase.number:
        words[:0] = head("number", [phrase.number.english])
    if phrase.owner:
        words[:0] = within("owner", _possessive(phrase.owner))
    else:
        determiner = _determiner(phrase, words[0])
        if determiner:
            words[:0] = head("determiner", [determiner])
    words = described(words, phrase.gender, phrase.plural)
    if phrase.relative:
        of_people = isinstance(phrase.relative.subject, Gap) and phrase.noun.kind in PEOPLE_KINDS
        words += head("relative pronoun", ["who" if of_people else "that"])
        words += within("relative", _clause(phrase.relative))
    return words


def _nominal(nominal: Nominal, *, subject: bool = False) -> list[str]:
    if isinstance(nominal, NounPhrase):
        return _noun_phrase(nominal)
    if isinstance(nominal, Pronoun):
        word = head("pronoun", [nominal.english if subject else nominal.english_object])
        return described(word, nominal.known_gender, nominal.plural) if nominal.refers else word
    if isinstance(nominal, Name):
        return described(head("name", [nominal.english]), nominal.gender, nominal.plural)
    if isinstance(nominal, Pair):
        first, second = (within(name, _nominal(each)) for name, each in nominal.parts())
        return [*first, *head("and", ["and"]), *second]
    return []


def _complement(complement: Complement, plural: bool) -> list[str]:
    if isinstance(complement, Quality):
        degree = head("degree", [complement.degree.english]) if complement.degree else []
        return [*degree, *head("adjective", [complement.adjective.english])]
    if isinstance(complement, Comparison):
        adjective, standard = complement.adjective, within("standard", _nominal(complement.standard))
        plain = head("adjective", [adjective.english])
        if complement.grade is AS:
            return [*head("grade", ["as"]), *plain, *head("than", ["as"]), *standard]
        if complement.grade is LESS:
            return [*head("grade", ["less"]), *plain, *head("than", ["than"]), *standard]
        return [*head("adjective", [adjective.comparative]), *head("than", ["than"]), *standard]
    if isinstance(complement, Age):
        return [*head("number", [complement.years.english]), *head("years", ["years old"])]
    profession = complement.profession.english
    if plural:
        return head("profession", [profession + "s"])
    return ["an" if _takes_an(profession) else "a", *head("profession", [profession])]


def _adjunct(adjunct: Prepositional | Abroad) -> list[str]:
    preposition = head("preposition", [adjunct.preposition.english])
    if isinstance(adjunct, Abroad):
        return [*preposition, *head("country", [adjunct.country.english])]
    return [*preposition, *within("of", _nominal(adjunct.nominal))]


# ---------------------------------------------------------------- clauses


def _is_progressive(clause: Clause) -> bool:
    return bool(clause.time and clause.time.progressive and clause.verb.progressive and not clause.modal)


def _verb_group(clause: Clause, person: int, asked: bool) -> tuple[list[str], list[str]]:
    """Return the auxiliary verb (empty if none), and the other words of the verb with its adverbs."""
    verb, tense = clause.verb, clause.tense
    first, *rest = verb.english_words
    rest = helper("verb", head("verb rest", rest))
    negated = clause.negation is NOT
    between: list[str] = []
    for unit, word in (("negation", clause.negation), ("frequency", clause.frequency)):
        between += head(unit, [word.english]) if word and word.english else []
    if clause.modal and clause.modal.english_negated:
        form = clause.modal.english_negated if negated else clause.modal.english
        modal = head("modal", [form])
        return helper("negation", modal) if negated else modal, [*head("verb", [first]), *rest]
    unit = "verb"
    if clause.modal:
        wish, *to = clause.modal.english.split(" ")
        rest = [*helper("modal", to), *head("verb", [first]), *rest]
        first, unit = wish, "modal"
    if _is_progressive(clause):
        return helper(unit, [_present("be", person)]), [*between, *head(unit, [_progressive(first)]), *rest]
    if tense is Tense.FUTURE:
        return helper(unit, ["will"]), [*between, *head(unit, [first]), *rest]
    finite = _present(first, person) if tense is Tense.PRESENT else _past(verb, person)
    if first == "be":
        return head(unit, [finite]), [*between, *rest]
    if negated or asked:
        do = "did" if tense is Tense.PAST else _present("do", person)
        return helper(unit, [do]), [*between, *head(unit, [first]), *rest]
    return [], [*between, *head(unit, [finite]), *rest]


def _clause(clause: Clause, *, asked: bool = False) -> list[str]:
    """Return the words of a clause. If `asked`, the auxiliary verb precedes the subject."""
    subject = within("subject", _nominal(clause.subject, subject=True))
    agreement = clause.direct if clause.subject is THERE and clause.direct else clause.subject
    auxiliary, words = _verb_group(clause, agreement.person, asked)
    words = [*helper("question", auxiliary), *subject, *words] if asked else [*subject, *auxiliary, *words]
    if clause.direct:
        words += within("direct", _nominal(clause.direct))
    if clause.indirect:
        if clause.verb.frame == "give":
            words += head("to", ["to"])
        words += within("indirect", _nominal(clause.indirect))
    if clause.complement:
        words += within("complement", _complement(clause.complement, clause.subject.plural))
    for number, adjunct in enumerate(clause.adjuncts):
        words += within(f"adjunct {number}", _adjunct(adjunct))
    if clause.time is None:
        return words
    time = head("time", [clause.time.english + "," if clause.time_first else clause.time.english])
    return [*time, *words] if clause.time_first else [*words, *time]


def _front(question: Question | None) -> list[str]:
    if question is None or question.front is None:
        return []
    if isinstance(question.front, NounPhrase):
        return within("front", _noun_phrase(question.front))
    return head("front", [question.front.english])


def words(sentence: Sentence) -> list[str]:
    """Return the parts of the sentence in order; joined, they are its text."""
    main, question, second = sentence.main, sentence.question, sentence.second
    asked = question is not None and not question.of_subject
    found = _spaced([*_front(question), *_clause(main, asked=asked)])
    if second and sentence.link:
        if sentence.link.english_present:
            second = second._replace(tense=Tense.PRESENT)
        link = head("link", [sentence.link.english])
        found += [", " if sentence.link.comma else " "]
        found += _spaced([*link, *within("second", _clause(second))])
    if sentence.address:
        found[:0] = [*head("address", [sentence.address.english + ","]), " "]
    first = changed(found[0], found[0][0].upper() + found[0][1:])
    return [first, *found[1:], *head("end", ["?" if question else "."])]


def _spaced(found: list[str]) -> list[str]:
    return [part for word in found for part in (word, " ")][:-1]


def spell(sentence: Sentence) -> str:
    return "".join(words(sentence))
