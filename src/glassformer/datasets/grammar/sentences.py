"""Whole sentences drawn at random, by construction.

English has to determine French, so whatever English leaves open is settled by what else is in the sentence:
`you` occurs only where somebody is addressed, `it` and a feminine `they` only where the first clause names
what they stand for. A `they` or `them` that stands for nobody named is masculine, and occurs only in
sentences of one clause.
"""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Callable
from itertools import accumulate

from glassformer.datasets.grammar import compounds, questions, relatives
from glassformer.datasets.grammar.clauses import DIRECT_EVENTS, DIRECT_TO_PEOPLE, EVENTS, Clauses
from glassformer.datasets.grammar.manners import Manner
from glassformer.datasets.grammar.tree import Sentence
from glassformer.datasets.grammar.words import MODALS, NOT, TIMES, Tense

_MODAL_TIMES = (*TIMES[Tense.FUTURE], TIMES[Tense.PRESENT][0])


def transitive(draw: Clauses) -> Sentence:
    return Sentence(draw.transitive(they=True))


def intransitive(draw: Clauses) -> Sentence:
    return Sentence(draw.intransitive(they=True))


def giving(draw: Clauses) -> Sentence:
    return Sentence(draw.giving(they=True))


def oblique(draw: Clauses) -> Sentence:
    return Sentence(draw.oblique(they=True))


def moving(draw: Clauses) -> Sentence:
    return Sentence(draw.moving(they=True))


def quality(draw: Clauses) -> Sentence:
    return Sentence(draw.quality(they=True))


def trade_or_age(draw: Clauses) -> Sentence:
    return Sentence(draw.trade_or_age(they=True))


def comparison(draw: Clauses) -> Sentence:
    return Sentence(draw.comparison(they=True))


def existence(draw: Clauses) -> Sentence:
    return Sentence(draw.existence())


def clitic(draw: Clauses) -> Sentence:
    """Pronouns before the verb: Paul la voit, Anna lui donne le livre."""
    return Sentence(draw.with_pronoun(they=True))


def modal(draw: Clauses) -> Sentence:
    time = draw.pick(_MODAL_TIMES) if draw.chance(0.25) else None
    manner = Manner(negation=NOT if draw.chance(0.25) else None, time=time, modal=draw.pick(MODALS))
    chance = draw.random()
    if chance < 0.35:
        return Sentence(draw.transitive(DIRECT_EVENTS, manner=manner, they=True, place=0.05))
    if chance < 0.65:
        return Sentence(draw.intransitive(EVENTS, manner=manner, they=True, adjunct=0.25))
    if chance < 0.8:
        return Sentence(draw.giving(manner=manner, they=True))
    people = tuple(verb for verb in DIRECT_TO_PEOPLE if not verb.stative)
    return Sentence(draw.with_pronoun(people, manner=manner, they=True))


_WEIGHTS: dict[Callable[[Clauses], Sentence], float] = {
    transitive: 20,
    intransitive: 8,
    giving: 6,
    oblique: 6,
    moving: 6,
    quality: 8,
    trade_or_age: 3,
    comparison: 4,
    existence: 4,
    clitic: 9,
    modal: 5,
    questions.yes_or_no: 3,
    questions.where_when_why: 3,
    questions.who: 2,
    questions.what: 3,
    questions.addressed: 9,
    relatives.of_subject: 3,
    relatives.of_object: 4,
    relatives.at_end: 4,
    compounds.subject_again: 4,
    compounds.object_again: 4,
    compounds.because_of_object: 3,
    compounds.reported: 5,
    compounds.condition: 3,
}
CONSTRUCTIONS = tuple(_WEIGHTS)
"""Functions that draw a sentence; every split has all of them."""
_CUMULATED = tuple(accumulate(_WEIGHTS.values()))


class Sentences:
    """Draws sentences from a source of random numbers, and from nothing else."""

    def __init__(self, source: random.Random) -> None:
        self.clauses = Clauses(source)

    def draw(self) -> Sentence:
        self.clauses.phrases.start()
        place = bisect(_CUMULATED, self.clauses.random() * _CUMULATED[-1])
        return CONSTRUCTIONS[place](self.clauses)
