"""Sentences that ask, and sentences that address somebody: the only ones with `you` and `your`."""

from __future__ import annotations

from glassformer.datasets.grammar.clauses import DIRECT, DIRECT_TO_PEOPLE, EVENTS, Clauses
from glassformer.datasets.grammar.manners import Manner
from glassformer.datasets.grammar.nouns import MASS_KINDS, NOUNS, nouns_of
from glassformer.datasets.grammar.tree import Clause, Gap, NounPhrase, Question, Sentence
from glassformer.datasets.grammar.verbs import BE, verbs_of
from glassformer.datasets.grammar.words import (
    ADDRESSES,
    HOW_MANY,
    WHAT,
    WHEN_ASKED,
    WHERE,
    WHICH,
    WHO,
    WHOM,
    WHY,
    Tense,
)

_TENSES = tuple(Tense)
_ABOUT_THINGS = tuple(verb for verb in DIRECT if NOUNS["woman"] not in verb.objects)
_SOUGHT = nouns_of(
    "key umbrella book cat dog bag hat car newspaper ball station hotel hospital library museum"
)
_SOMEWHERE = verbs_of("work,sleep,live,go,stay,sing,dance,wait,rest,get lost,fall")


def yes_or_no(draw: Clauses) -> Sentence:
    while True:
        draw.phrases.start(asking=True)
        clause = draw.any_clause(they=True)
        if not clause.negation and not clause.time_first:
            return Sentence(clause, Question())


def where_when_why(draw: Clauses) -> Sentence:
    draw.phrases.start(asking=True)
    if draw.chance(0.25):
        sought = draw.phrases.phrase(_SOUGHT, "negated subject", adjective=0.2)
        return Sentence(Clause(sought, BE), Question(WHERE, short=True))
    front = draw.pick((WHERE, WHEN_ASKED, WHY))
    verb = draw.pick(_SOMEWHERE if front is WHERE else EVENTS)
    subject = draw.phrases.subject(verb.subjects, they=True)
    return Sentence(Clause(subject, verb, draw.pick(_TENSES)), Question(front))


def who(draw: Clauses) -> Sentence:
    draw.phrases.start(asking=True)
    tense = draw.pick(_TENSES)
    chance = draw.random()
    if chance < 0.3:
        verb = draw.pick(DIRECT_TO_PEOPLE)
        subject = draw.phrases.subject(verb.subjects, they=True)
        return Sentence(Clause(subject, verb, tense), Question(WHOM))
    question = Question(of_subject=True)
    if chance < 0.7:
        return Sentence(draw.transitive(subject=WHO, manner=Manner(tense), place=0), question)
    return Sentence(draw.giving(subject=WHO, manner=Manner(tense)), question)


def what(draw: Clauses) -> Sentence:
    """What, which or how many: a participle agrees with what is asked for, as it comes before."""
    draw.phrases.start(asking=True)
    tense, verb = draw.pick(_TENSES), draw.pick(_ABOUT_THINGS)
    if draw.chance(0.35):
        subject = draw.phrases.subject(verb.subjects, they=True)
        return Sentence(Clause(subject, verb, tense), Question(WHAT))
    noun = draw.phrases.noun(verb.objects)
    plural = noun.kind not in MASS_KINDS and draw.chance(0.6)
    determiner = HOW_MANY if plural and draw.chance(0.6) else WHICH
    front = NounPhrase(noun, plural, determiner, None, draw.phrases.adjectives(noun, 0.15))
    subject = draw.phrases.subject(verb.subjects, they=True)
    return Sentence(Clause(subject, verb, tense, direct=Gap(noun, plural)), Question(front))


def addressed(draw: Clauses) -> Sentence:
    """Anna, did you see my key?"""
    address, asked = draw.pick(ADDRESSES), draw.chance(0.35)
    while True:
        draw.phrases.start(address, asking=asked)
        clause = draw.with_pronoun() if draw.chance(0.35) else draw.any_clause()
        if not clause.time_first and not (asked and clause.negation):
            return Sentence(clause, Question() if asked else None, address)
