"""Random sentences, and translation pairs in three splits that share no sentence.

Each English sentence must have exactly one French translation, so it must not be ambiguous. `you` occurs only
with an address such as `Anna, …`. `it` and a feminine `they` occur only if the first clause contains their
antecedent. `they` without an antecedent is masculine and occurs only in sentences with one clause.

The splits differ in their word combinations. Some combinations of a verb with its object, or of an adjective
with its noun, are held out for validation and some for test. No training sentence contains one of them. Every
word and every construction occurs in training.
"""

from __future__ import annotations

import random
import zlib
from bisect import bisect
from collections.abc import Callable, Iterator
from functools import cache
from itertools import accumulate

from glassformer.core.errors import user_error
from glassformer.datasets.grammar import english, french, words
from glassformer.datasets.grammar.clauses import (
    DIRECT,
    DIRECT_EVENTS,
    DIRECT_TO_PEOPLE,
    EVENTS,
    GIVE,
    KIN,
    OF,
    PEOPLE,
    STATES,
    TO,
    Clauses,
    Manner,
)
from glassformer.datasets.grammar.lexicon import (
    MASS_KINDS,
    NOUNS,
    PREDICATIVE,
    TIMES,
    Adjective,
    Noun,
    Pronoun,
    Tense,
    Verb,
    adjectives_of,
    nouns_of,
    verbs_of,
)
from glassformer.datasets.grammar.tree import (
    Clause,
    Comparison,
    Gap,
    Nominal,
    NounPhrase,
    Pair,
    Prepositional,
    Quality,
    Question,
    Sentence,
)

_KNOWN = tuple(verb for verb in DIRECT if verb.determiners != "indefinite")
_KNOWN_OF = {noun: tuple(verb for verb in _KNOWN if noun in verb.objects) for noun in NOUNS.values()}

# Tenses of a relative clause by the tense of the main clause: a lost key was not bought tomorrow.
_INNER_TENSES = {
    Tense.PAST: (Tense.PAST,),
    Tense.PRESENT: (Tense.PRESENT, Tense.PAST, Tense.PAST, Tense.FUTURE),
    Tense.FUTURE: (Tense.PRESENT, Tense.PAST, Tense.FUTURE),
}


def _manner(draw: Clauses, verb: Verb, outer: Tense | None = None) -> Manner:
    tense = draw.pick(_INNER_TENSES[outer]) if outer else None
    frequency = 0.0 if verb is words.BE else 0.08
    return draw.manner(verb, tense=tense, negation=0.12, frequency=frequency, time=0.0)


def _head(draw: Clauses, gap: Gap, relative: Clause, *, article_a: bool = False) -> NounPhrase:
    determiner = words.A if article_a and not gap.plural and gap.noun.kind not in MASS_KINDS else words.THE
    return NounPhrase(
        gap.noun, gap.plural, determiner, None, draw.adjectives(gap.noun, 0.12), relative=relative
    )


def _gap(draw: Clauses, nouns: tuple[Noun, ...]) -> Gap:
    noun = draw.noun(tuple(noun for noun in nouns if noun not in KIN))
    return Gap(noun, noun.kind not in MASS_KINDS and draw.chance(0.35))


def _doing(draw: Clauses, gap: Gap, verb: Verb, manner: Manner) -> Clause:
    """Return a random relative clause whose subject is the gap: (the man) who sings."""
    if verb.frame == "direct":
        return draw.transitive((verb,), subject=gap, manner=manner, location=0)
    return draw.intransitive((verb,), subject=gap, manner=manner, adjunct=0.3)


def _done(draw: Clauses, gap: Gap, verb: Verb, manner: Manner) -> Clause:
    """Return a random relative clause whose object is the gap: (the car) that Paul bought."""
    subject = draw.subject(verb.subjects, they=False, negated=manner.negated)
    clause = Clause(subject, verb, manner.tense, manner.negation, manner.frequency)
    return clause._replace(direct=gap) if verb.frame == "direct" else clause._replace(indirect=gap)


def of_subject(draw: Clauses) -> Sentence:
    """Draw a sentence whose subject has a relative clause: the man who sings knows my sister."""
    verb = draw.pick(EVENTS if draw.chance(0.6) else DIRECT_EVENTS)
    gap = _gap(draw, verb.subjects)
    acts = gap.noun in PEOPLE and draw.chance(0.5)
    outer_verb = draw.pick(DIRECT) if acts else words.BE
    manner = _manner(draw, outer_verb)
    head = _head(draw, gap, _doing(draw, gap, verb, _manner(draw, verb, manner.tense)))
    if acts:
        return Sentence(draw.transitive((outer_verb,), subject=head, manner=manner))
    return Sentence(draw.quality(subject=head, manner=manner))


def of_object(draw: Clauses) -> Sentence:
    """Draw a sentence with an object relative clause: the car that Paul bought is red."""
    verb = draw.pick(draw.pick((_KNOWN, _KNOWN, OF, TO)))
    gap = _gap(draw, tuple(noun for noun in verb.objects if PREDICATIVE[noun]))
    manner = _manner(draw, words.BE)
    relative = _done(draw, gap, verb, _manner(draw, verb, manner.tense))
    head = NounPhrase(gap.noun, gap.plural, words.THE, relative=relative)
    return Sentence(draw.quality(subject=head, manner=manner))


def at_end(draw: Clauses) -> Sentence:
    """Draw a sentence that ends with a relative clause: Paul lost the key that Anna found."""
    verb = draw.pick(_KNOWN)
    tense = draw.manner(verb, negation=0).tense
    gap = _gap(draw, tuple(noun for noun in verb.objects if len(_KNOWN_OF[noun]) > 1))
    if gap.noun in PEOPLE and draw.chance(0.7):
        inner = draw.pick(EVENTS if draw.chance(0.5) else DIRECT_EVENTS)
        relative = _doing(draw, gap, inner, _manner(draw, inner, tense))
    else:
        inner = draw.pick([each for each in _KNOWN_OF[gap.noun] if each is not verb])
        relative = _done(draw, gap, inner, _manner(draw, inner, tense))
    head = _head(draw, gap, relative, article_a=verb.determiners == "any" and draw.chance(0.3))
    subject = draw.subject(verb.subjects, they=False)
    return Sentence(Clause(subject, verb, tense, direct=head))


_TENSES = tuple(Tense)
_ABOUT_THINGS = tuple(verb for verb in DIRECT if NOUNS["woman"] not in verb.objects)
_SOUGHT = nouns_of("sought")
_SOMEWHERE = verbs_of("work,sleep,live,go,stay,sing,dance,wait,rest,get lost,fall")


def yes_or_no(draw: Clauses) -> Sentence:
    while True:
        draw.start(asking=True)
        clause = draw.any_clause(they=True)
        if not clause.negation and not clause.time_first:
            return Sentence(clause, Question())


def where_when_why(draw: Clauses) -> Sentence:
    draw.start(asking=True)
    if draw.chance(0.25):
        sought = draw.phrase(_SOUGHT, "negated subject", adjective=0.2)
        return Sentence(Clause(sought, words.BE), Question(words.WHERE, short=True))
    front = draw.pick((words.WHERE, words.WHEN_ASKED, words.WHY))
    verb = draw.pick(_SOMEWHERE if front is words.WHERE else EVENTS)
    subject = draw.subject(verb.subjects, they=True)
    return Sentence(Clause(subject, verb, draw.pick(_TENSES)), Question(front))


def who(draw: Clauses) -> Sentence:
    draw.start(asking=True)
    tense = draw.pick(_TENSES)
    chance = draw.random()
    if chance < 0.3:
        verb = draw.pick(DIRECT_TO_PEOPLE)
        subject = draw.subject(verb.subjects, they=True)
        return Sentence(Clause(subject, verb, tense), Question(words.WHOM))
    question = Question(of_subject=True)
    if chance < 0.7:
        return Sentence(draw.transitive(subject=words.WHO, manner=Manner(tense), location=0), question)
    return Sentence(draw.giving(subject=words.WHO, manner=Manner(tense)), question)


def what(draw: Clauses) -> Sentence:
    """Draw a question with `what`, `which` or `how many`."""
    draw.start(asking=True)
    tense, verb = draw.pick(_TENSES), draw.pick(_ABOUT_THINGS)
    if draw.chance(0.35):
        subject = draw.subject(verb.subjects, they=True)
        return Sentence(Clause(subject, verb, tense), Question(words.WHAT))
    noun = draw.noun(verb.objects)
    plural = noun.kind not in MASS_KINDS and draw.chance(0.6)
    determiner = words.HOW_MANY if plural and draw.chance(0.6) else words.WHICH
    front = NounPhrase(noun, plural, determiner, None, draw.adjectives(noun, 0.15))
    subject = draw.subject(verb.subjects, they=True)
    return Sentence(Clause(subject, verb, tense, direct=Gap(noun, plural)), Question(front))


def addressed(draw: Clauses) -> Sentence:
    """Draw a sentence or question with an address: Anna, did you see my key?"""
    address, asked = draw.pick(words.ADDRESSES), draw.chance(0.35)
    while True:
        draw.start(address, asking=asked)
        clause = draw.with_pronoun() if draw.chance(0.35) else draw.any_clause()
        if not clause.time_first and not (asked and clause.negation):
            return Sentence(clause, Question() if asked else None, address)


_ANYBODY = nouns_of("people")
_THINGS_GOT = verbs_of("buy,find,take,choose,draw,write,receive,catch,hide")
_THEN_USED = (*GIVE, *verbs_of("sell,eat,wash,open,break,repair,keep,lose,close,forget"))
_PEOPLE_MET = verbs_of("meet,see,hear,wait for")
_THEN_HELPED = verbs_of("invite,help,call,follow,thank,listen to,answer")
_FOR_A_REASON = verbs_of("buy,choose,sell,love,hate,want")
_REASONS = adjectives_of("happy sad tired sick proud ready brave lazy shy jealous")


def pronoun_for(nominal: Nominal) -> Pronoun:
    """Return the pronoun that refers back to a noun phrase, name or pair, such as `she` for `the queen`."""
    if isinstance(nominal, Pronoun):
        return nominal
    if nominal.plural:
        return words.THEY_FEMININE if nominal.gender == "f" else words.THEY
    if isinstance(nominal, NounPhrase) and nominal.noun not in PEOPLE:
        return words.IT_FEMININE if nominal.gender == "f" else words.IT_MASCULINE
    return words.SHE if nominal.gender == "f" else words.HE


def subject_again(draw: Clauses) -> Sentence:
    """Draw two clauses with the same subject: the queen is sad, but she smiles."""
    manner = Manner(draw.tense())
    if draw.chance(0.5):
        first, link = draw.quality(manner=manner), draw.pick((words.AND, words.BUT))
    else:
        first = draw.intransitive(EVENTS, manner=manner, adjunct=0.15)
        link = draw.pick((words.AND, words.BUT, words.BECAUSE, words.BECAUSE))
    if link is words.BECAUSE and manner.tense is Tense.FUTURE:
        manner = Manner(Tense.PRESENT)  # for example: she will sleep because she is tired
    if draw.chance(0.25):
        manner = manner._replace(negation=words.NOT)
    noun = first.subject.noun if isinstance(first.subject, NounPhrase) else NOUNS["brother"]
    eventful = isinstance(first.complement, Quality) and draw.chance(0.6)
    second = _more_of(draw, pronoun_for(first.subject), noun, manner, first, eventful)
    return Sentence(first, link=link, second=second)


def _more_of(
    draw: Clauses, pronoun: Pronoun, noun: Noun, manner: Manner, first: Clause, eventful: bool
) -> Clause:
    """Return a random second clause about the subject of the first: an action or an adjective."""
    verbs = [verb for verb in (EVENTS if eventful else STATES) if noun in verb.subjects]
    if verbs and (eventful or draw.chance(0.4)):
        return draw.intransitive(verbs, subject=pronoun, manner=manner, adjunct=0)
    mentioned = first.complement.adjective if isinstance(first.complement, Quality) else None
    known = [word for word in PREDICATIVE[noun] if word is not mentioned]
    if mentioned is None:
        known = [word for word in known if word in _REASONS] or known
    adjective = draw.pick(known)
    return Clause(pronoun, words.BE, manner.tense, manner.negation, complement=Quality(adjective))


def object_again(draw: Clauses) -> Sentence:
    """Draw two clauses with the same subject and object: Paul bought the dress and he gave it to Anna."""
    tense = draw.tense()
    of_people = draw.chance(0.25)
    verb = draw.pick(_PEOPLE_MET if of_people else _THINGS_GOT)
    subject = draw.subject(_ANYBODY, they=False)
    then = _THEN_HELPED if of_people else _THEN_USED
    usable = {noun for following in then for noun in following.objects}
    fit = [noun for noun in verb.objects if (noun in PEOPLE) == of_people and noun in usable]
    named = draw.phrase(fit, adjective=0.2)
    following = draw.pick([each for each in then if named.noun in each.objects])
    pronoun = pronoun_for(named)
    second = Clause(pronoun_for(subject), following, tense, direct=pronoun)
    if following.frame == "to":
        second = second._replace(direct=None, indirect=pronoun)
    elif following.frame == "give":
        second = second._replace(indirect=draw.person())
    return Sentence(Clause(subject, verb, tense, direct=named), link=words.AND, second=second)


def because_of_object(draw: Clauses) -> Sentence:
    """Draw a sentence with a reason about its object: Paul bought the apples because they were red."""
    tense = draw.tense()
    verb = draw.pick(_FOR_A_REASON)
    nouns = [noun for noun in verb.objects if noun not in PEOPLE and PREDICATIVE[noun]]
    named = draw.phrase(nouns, "definite", adjective=0)
    subject = draw.subject(_ANYBODY, they=False)
    while subject.person == named.person == 5:
        subject = draw.subject(_ANYBODY, they=False)
    reason = Quality(draw.pick(PREDICATIVE[named.noun]))
    since = Tense.PAST if tense is Tense.PAST else Tense.PRESENT
    second = Clause(pronoun_for(named), words.BE, since, complement=reason)
    return Sentence(Clause(subject, verb, tense, direct=named), link=words.BECAUSE, second=second)


def reported(draw: Clauses) -> Sentence:
    """Draw a sentence with reported speech or thought: Alice says that Paul is tired."""
    verb = draw.pick(tuple(words.REPORTING.values()))
    subject = draw.pronoun(they=False) if draw.chance(0.35) else draw.person()
    # Hopes concern the future.
    second = draw.any_clause(manner=Manner(Tense.FUTURE) if verb is words.REPORTING["hope"] else None)
    second = second._replace(time_first=False)
    return Sentence(Clause(subject, verb), link=words.THAT, second=second)


def condition(draw: Clauses) -> Sentence:
    """Draw a sentence with `if` or `when`: Anna will sing if Paul comes."""
    first = draw.any_clause(manner=Manner(Tense.FUTURE))
    link = draw.pick((words.IF, words.WHEN))
    tense = Tense.FUTURE if link.english_present else Tense.PRESENT
    manner = Manner(tense, words.NOT if link is words.IF and draw.chance(0.25) else None)
    return Sentence(first, link=link, second=draw.intransitive(EVENTS, manner=manner, adjunct=0.15))


_MODAL_TIMES = (*TIMES[Tense.FUTURE], TIMES[Tense.PRESENT][0])


Construction = Callable[[Clauses], Sentence]


def _single(clause: Callable[..., Clause]) -> Construction:
    """Return a function that draws a sentence with one clause, made by this method of `Clauses`."""
    return lambda draw: Sentence(clause(draw, they=True))


def modal(draw: Clauses) -> Sentence:
    time = draw.pick(_MODAL_TIMES) if draw.chance(0.25) else None
    negation = words.NOT if draw.chance(0.25) else None
    manner = Manner(negation=negation, time=time, modal=draw.pick(words.MODALS))
    chance = draw.random()
    if chance < 0.35:
        return Sentence(draw.transitive(DIRECT_EVENTS, manner=manner, they=True, location=0.05))
    if chance < 0.65:
        return Sentence(draw.intransitive(EVENTS, manner=manner, they=True, adjunct=0.25))
    if chance < 0.8:
        return Sentence(draw.giving(manner=manner, they=True))
    people = tuple(verb for verb in DIRECT_TO_PEOPLE if not verb.stative)
    return Sentence(draw.with_pronoun(people, manner=manner, they=True))


_WEIGHTS: dict[Construction, float] = {
    _single(Clauses.transitive): 20,
    _single(Clauses.intransitive): 8,
    _single(Clauses.giving): 6,
    _single(Clauses.oblique): 6,
    _single(Clauses.moving): 6,
    _single(Clauses.quality): 8,
    _single(Clauses.trade_or_age): 3,
    _single(Clauses.comparison): 4,
    lambda draw: Sentence(draw.existence()): 4,
    _single(Clauses.with_pronoun): 9,
    modal: 5,
    yes_or_no: 3,
    where_when_why: 3,
    who: 2,
    what: 3,
    addressed: 9,
    of_subject: 3,
    of_object: 4,
    at_end: 4,
    subject_again: 4,
    object_again: 4,
    because_of_object: 3,
    reported: 5,
    condition: 3,
}
CONSTRUCTIONS = tuple(_WEIGHTS)
"""Functions that each draw one type of sentence. Every split contains all types."""
_CUMULATED = tuple(accumulate(_WEIGHTS.values()))


def draw_sentence(draw: Clauses) -> Sentence:
    """Return a random sentence of a random type, by the weights in `_WEIGHTS`."""
    draw.start()
    return CONSTRUCTIONS[bisect(_CUMULATED, draw.random() * _CUMULATED[-1])](draw)


SPLITS = ("train", "validation", "test")

_HELD_OUT = {"validation": range(0, 6), "test": range(6, 12)}
"""Hash values (0 to 99) of the word combinations in each held-out split; all others belong to train."""
_MIN_COMBINATIONS = 4
"""Minimum number of nouns of one gender per verb or adjective; with fewer, all combinations are in train."""

Combination = tuple[Verb | Adjective, Noun]


@cache
def split_of(combination: Combination) -> str:
    """Return the split of a word combination. It depends on the words alone, not on the seed."""
    word, noun = combination
    nouns = word.objects if isinstance(word, Verb) else word.nouns
    if sum(other.gender == noun.gender for other in nouns) < _MIN_COMBINATIONS:
        return "train"
    bucket = zlib.crc32(f"{word.english}+{noun.english}".encode()) % 100
    return next((split for split, buckets in _HELD_OUT.items() if bucket in buckets), "train")


def combinations(sentence: Sentence) -> Iterator[Combination]:
    """Yield the word combinations in a sentence: each verb with its objects, each adjective with its noun."""
    yield from _of_clause(sentence.main)
    if sentence.second:
        yield from _of_clause(sentence.second)
    if sentence.question and isinstance(sentence.question.front, NounPhrase):
        yield from _of_nominal(sentence.question.front)


def _of_clause(clause: Clause) -> Iterator[Combination]:
    verb, complement = clause.verb, clause.complement
    yield from _of_nominal(clause.subject)
    for what in (clause.direct, clause.indirect):
        if what is None:
            continue
        yield from _of_nominal(what)
        # The recipient of `give` may be anybody, so it does not count as a combination.
        if isinstance(what, NounPhrase | Gap) and (what is clause.direct or verb.frame != "give"):
            yield verb, what.noun
    if isinstance(complement, Quality | Comparison):
        if isinstance(clause.subject, NounPhrase):
            yield complement.adjective, clause.subject.noun
        if isinstance(complement, Comparison):
            yield from _of_nominal(complement.standard)
    for adjunct in clause.adjuncts:
        if isinstance(adjunct, Prepositional):
            yield from _of_nominal(adjunct.nominal)


def _of_nominal(nominal: Nominal) -> Iterator[Combination]:
    if isinstance(nominal, NounPhrase):
        for adjective in nominal.adjectives:
            yield adjective, nominal.noun
        if nominal.owner:
            yield from _of_nominal(nominal.owner)
        if nominal.relative:
            yield from _of_clause(nominal.relative)
    elif isinstance(nominal, Pair):
        yield from _of_nominal(nominal.first)
        yield from _of_nominal(nominal.second)


def belongs(sentence: Sentence, split: str) -> bool:
    """Return True if a sentence may be used in a split.

    A training sentence has no held-out word combination. A validation or test sentence has at least one of
    its own split, and none of the other.
    """
    found = {split_of(combination) for combination in combinations(sentence)} - {"train"}
    return not found if split == "train" else found == {split}


def sentences(seed: int, split: str) -> Iterator[Sentence]:
    """Yield an endless stream of random sentences that belong to a split."""
    if split not in SPLITS:
        raise user_error("no such split", path="split", value=split, allowed=SPLITS)
    draw = Clauses(random.Random(f"translation {seed} {split}"))
    while True:
        sentence = draw_sentence(draw)
        if belongs(sentence, split):
            yield sentence


def translation_pairs(count: int, seed: int, split: str) -> list[tuple[str, str]]:
    """Return the first `count` pairs of English and French of the stream for this seed and split."""
    pairs: dict[str, str] = {}
    for sentence in sentences(seed, split):
        if len(pairs) >= count:
            break
        source = english.spell(sentence)
        if source not in pairs:
            pairs[source] = french.spell(sentence)
    return list(pairs.items())
