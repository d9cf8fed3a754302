"""French spelling of a derivation: conjugation, agreement, elision, clitics, negation, word order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from glassformer.datasets.grammar.lexicon import Adjective, Gender, Name, Pronoun, Tense
from glassformer.datasets.grammar.origins import changed, described, head, helper, merged, within
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
    return "".join(elided(words))


def elided(words: Sequence[str]) -> list[str]:
    """Return the parts of a text with French elision, in order: words, and the spaces between them."""
    parts: list[str] = []
    for word, following in pairwise(words):
        is_si = word == "si" and following in ("il", "ils")
        if is_si or (word in _ELIDED and opens_with_vowel(following)):
            parts.append(changed(word, word[:-1] + "'"))
        else:
            parts += [word, " "]
    return [*parts, words[-1]]


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
    words = head("noun", [noun.french_plural if plural else noun.french])
    adjective_first = False
    for index, adjective in enumerate(phrase.adjectives):
        unit = f"adjective {index}"
        form = adjective_form(adjective, gender, plural)
        if not adjective.before_noun:
            words += head(unit, [form])
            continue
        if gender == "m" and not plural and opens_with_vowel(words[0]):
            form = adjective.masculine_before_vowel
        words[:0] = head(unit, [form])
        adjective_first = True
    if phrase.number:
        form = phrase.number.masculine if gender == "m" else phrase.number.feminine
        words[:0] = head("number", [form])
    words[:0] = head("determiner", _determiner(phrase, words[0], adjective_first))
    words = described(words, gender, plural)
    if phrase.owner:
        (preposition,) = helper("owner.possessive", ["de"])
        words += _after(preposition, phrase.owner, "owner")
    if phrase.relative:
        words += _relative(phrase.relative)
    return words


def _relative(clause: Clause) -> list[str]:
    preposition: list[str] = []
    if isinstance(clause.subject, Gap):
        pronoun = "qui"
    elif isinstance(clause.direct, Gap):
        pronoun = "que"
    elif clause.verb.frame == "of":
        pronoun = "dont"
    else:
        preposition, pronoun = helper("relative pronoun", ["à"]), "qui"
    return [*preposition, *head("relative pronoun", [pronoun]), *within("relative", _clause(clause))]


def _nominal(nominal: Nominal) -> list[str]:
    """Return the words of a noun phrase, name, pair or pronoun. A pronoun has its strong form: moi, lui."""
    if isinstance(nominal, NounPhrase):
        return _noun_phrase(nominal)
    if isinstance(nominal, Name):
        return described(head("name", [nominal.english]), nominal.gender, nominal.plural)
    if isinstance(nominal, Pronoun):
        return _pronoun(nominal, nominal.strong)
    if isinstance(nominal, Pair):
        first, second = (within(name, _nominal(each)) for name, each in nominal.parts())
        return [*first, *head("and", ["et"]), *second]
    return []


def _pronoun(pronoun: Pronoun, form: str) -> list[str]:
    mark = helper if pronoun is THERE else head
    word = mark("pronoun", [form])
    return described(word, pronoun.known_gender, pronoun.plural) if pronoun.refers else word


_CONTRACTED = {"à": {"le": "au", "les": "aux"}, "de": {"le": "du", "les": "des"}}


def _after(preposition: str, nominal: Nominal, unit: str) -> list[str]:
    """Return the words of a nominal after `à` or `de`, contracted with the article: au, aux, du, des."""
    if isinstance(nominal, Pair):
        first, second = (_after(preposition, each, f"{unit}.{name}") for name, each in nominal.parts())
        return [*first, *head(f"{unit}.and", ["et"]), *second]
    if preposition == "de" and isinstance(nominal, NounPhrase) and nominal.determiner.dropped_after_de:
        nominal = nominal._replace(determiner=BARE)
    article, *rest = within(unit, _nominal(nominal))
    if article in _CONTRACTED[preposition] and not (article == "le" and opens_with_vowel(rest[0])):
        return [merged(preposition, article, _CONTRACTED[preposition][article]), *rest]
    return [preposition, article, *rest]


def _complement(complement: Complement, gender: Gender, plural: bool) -> list[str]:
    if isinstance(complement, Quality):
        form = adjective_form(complement.adjective, gender, plural)
        degree = head("degree", [complement.degree.french]) if complement.degree else []
        return [*degree, *head("adjective", [form])]
    if isinstance(complement, Comparison):
        adjective, standard = complement.adjective, within("standard", _nominal(complement.standard))
        standard = [*head("than", ["que"]), *standard]
        if complement.grade is MORE and adjective.comparative_masculine:
            better = agree(adjective.comparative_masculine, adjective.comparative_feminine, gender, plural)
            return [*head("adjective", [better]), *standard]
        grade = helper("adjective", head("grade", [complement.grade.french]))
        return [*grade, *head("adjective", [adjective_form(adjective, gender, plural)]), *standard]
    if isinstance(complement, Age):
        return [*head("number", [complement.years.masculine]), *head("years", ["ans"])]
    profession = complement.profession
    return head("profession", [agree(profession.masculine, profession.feminine, gender, plural)])


def _adjunct(adjunct: Prepositional | Abroad) -> list[str]:
    if isinstance(adjunct, Abroad):
        country = adjunct.country
        preposition = country.origin if adjunct.preposition is FROM else country.inside
        return [*head("preposition", [preposition]), *head("country", [country.french])]
    *first, last = head("preposition", adjunct.preposition.french.split(" "))
    if last in _CONTRACTED:
        return [*first, *_after(last, adjunct.nominal, "of")]
    return [*first, last, *within("of", _nominal(adjunct.nominal))]


# ---------------------------------------------------------------- clauses

_REFLEXIVES = ("me", "te", "se", "nous", "vous", "se")


def _clitics(clause: Clause) -> list[str]:
    """Return the pronouns before the verb in French order: me le, te la, le lui, les leur."""
    if clause.subject is THERE:
        return helper("verb", helper("subject.pronoun", ["y"]))
    clitics = helper("verb", [_REFLEXIVES[clause.subject.person]]) if clause.verb.reflexive else []
    if isinstance(clause.direct, Pronoun):
        clitics += within("direct", _pronoun(clause.direct, clause.direct.direct))
    if isinstance(clause.indirect, Pronoun):
        at = len(clitics) if clause.indirect.person in (2, 5) else 0
        clitics[at:at] = within("indirect", _pronoun(clause.indirect, clause.indirect.indirect))
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
        finite = head("modal", [present(clause.modal.french, person)])
        tail = [*clitics, *head("verb", [verb.french])]
        clitics = []
    elif clause.tense is Tense.PRESENT:
        finite = head("verb", [present(verb.french, person)])
    elif clause.tense is Tense.FUTURE:
        finite = head("verb", [future(verb.french, person)])
    elif verb.stative:
        finite = head("verb", [imperfect(verb.french, person)])
    else:
        finite = helper("verb", [present("être" if verb.with_etre else "avoir", person)])
        tail = head("verb", [_participle(clause)])
    words = [*clitics, *finite]
    if clause.negation:
        words = [*helper("negation", ["ne"]), *words, *head("negation", [clause.negation.french])]
    if clause.frequency:
        words += head("frequency", [clause.frequency.french])
    return [*words, *tail, *helper("verb", head("verb rest", verb.french_rest))]


def _clause(clause: Clause) -> list[str]:
    subject = clause.subject
    words = _pronoun(subject, subject.french) if isinstance(subject, Pronoun) else _nominal(subject)
    words = [*within("subject", words), *_verb_group(clause)]
    if clause.direct and not isinstance(clause.direct, Pronoun):
        words += within("direct", _nominal(clause.direct))
    if clause.indirect and not isinstance(clause.indirect, Pronoun | Gap):
        (preposition,) = head("to", ["de" if clause.verb.frame == "of" else "à"])
        words += _after(preposition, clause.indirect, "indirect")
    if clause.complement:
        words += within("complement", _complement(clause.complement, subject.gender, subject.plural))
    for number, adjunct in enumerate(clause.adjuncts):
        words += within(f"adjunct {number}", _adjunct(adjunct))
    if clause.time is None:
        return words
    time = head("time", [clause.time.french + "," if clause.time_first else clause.time.french])
    return [*time, *words] if clause.time_first else [*words, *time]


def _question(sentence: Sentence) -> list[str]:
    question, main = sentence.question, sentence.main
    if question is None or question.of_subject:
        return _clause(main)
    front: list[str] = []
    if isinstance(question.front, NounPhrase):
        front = within("front", _noun_phrase(question.front))
    elif question.front is not None:
        front = head("front", [question.front.french])
    if question.short:
        return [*front, *_verb_group(main), *within("subject", _nominal(main.subject))]
    return [*front, *helper("question", ["est-ce", "que"]), *_clause(main)]


def words(sentence: Sentence) -> list[str]:
    """Return the parts of the sentence in order; joined, they are its text."""
    found = elided(_question(sentence))
    if sentence.second and sentence.link:
        link = head("link", sentence.link.french.split(" "))
        found += [", " if sentence.link.comma else " "]
        found += elided([*link, *within("second", _clause(sentence.second))])
    if sentence.address:
        found[:0] = [*head("address", [sentence.address.french + ","]), " "]
    first = changed(found[0], found[0][0].upper() + found[0][1:])
    end = [" ", *head("end", ["?"])] if sentence.question else head("end", ["."])
    return [first, *found[1:], *end]


def spell(sentence: Sentence) -> str:
    return "".join(words(sentence))
