"""Sentences of two clauses, the second of which may take up what the first has named."""

from __future__ import annotations

from glassformer.datasets.grammar.adjectives import ADJECTIVES, PREDICATIVE
from glassformer.datasets.grammar.clauses import EVENTS, GIVE, STATES, Clauses
from glassformer.datasets.grammar.lexicon import Noun
from glassformer.datasets.grammar.manners import Manner
from glassformer.datasets.grammar.nouns import NOUNS, nouns_of
from glassformer.datasets.grammar.phrases import PEOPLE
from glassformer.datasets.grammar.tree import Clause, Nominal, NounPhrase, Quality, Sentence
from glassformer.datasets.grammar.verbs import BE, REPORTING, verbs_of
from glassformer.datasets.grammar.words import (
    AND,
    BECAUSE,
    BUT,
    HE,
    IF,
    IT_FEMININE,
    IT_MASCULINE,
    NOT,
    SHE,
    THAT,
    THEY,
    THEY_FEMININE,
    WHEN,
    Pronoun,
    Tense,
)

_ANYBODY = nouns_of("people")
_THINGS_GOT = verbs_of("buy,find,take,choose,draw,write,receive,catch,hide")
_THEN_USED = (*GIVE, *verbs_of("sell,eat,wash,open,break,repair,keep,lose,close,forget"))
_PEOPLE_MET = verbs_of("meet,see,hear,wait for")
_THEN_HELPED = verbs_of("invite,help,call,follow,thank,listen to,answer")
_FOR_A_REASON = verbs_of("buy,choose,sell,love,hate,want")
_REASONS = frozenset(
    ADJECTIVES[name]
    for name in ("happy", "sad", "tired", "sick", "proud", "ready", "brave", "lazy", "shy", "jealous")
)


def pronoun_for(nominal: Nominal) -> Pronoun:
    """What takes up a phrase in the next clause."""
    if isinstance(nominal, Pronoun):
        return nominal
    if nominal.plural:
        return THEY_FEMININE if nominal.gender == "f" else THEY
    if isinstance(nominal, NounPhrase) and nominal.noun not in PEOPLE:
        return IT_FEMININE if nominal.gender == "f" else IT_MASCULINE
    return SHE if nominal.gender == "f" else HE


def subject_again(draw: Clauses) -> Sentence:
    """The queen is sad, but she smiles."""
    manner = Manner(draw.tense())
    if draw.chance(0.5):
        first, link = draw.quality(manner=manner), draw.pick((AND, BUT))
    else:
        first = draw.intransitive(EVENTS, manner=manner, adjunct=0.15)
        link = draw.pick((AND, BUT, BECAUSE, BECAUSE))
    if link is BECAUSE and manner.tense is Tense.FUTURE:
        manner = Manner(Tense.PRESENT)  # she will sleep because she is tired
    if draw.chance(0.25):
        manner = manner._replace(negation=NOT)
    noun = first.subject.noun if isinstance(first.subject, NounPhrase) else NOUNS["brother"]
    eventful = isinstance(first.complement, Quality) and draw.chance(0.6)
    second = _more_of(draw, pronoun_for(first.subject), noun, manner, first, eventful)
    return Sentence(first, link=link, second=second)


def _more_of(
    draw: Clauses, pronoun: Pronoun, noun: Noun, manner: Manner, first: Clause, eventful: bool
) -> Clause:
    """Something else that is true of a noun: what it does, or how it is."""
    verbs = [verb for verb in (EVENTS if eventful else STATES) if noun in verb.subjects]
    if verbs and (eventful or draw.chance(0.4)):
        return draw.intransitive(verbs, subject=pronoun, manner=manner, adjunct=0)
    said = first.complement.adjective if isinstance(first.complement, Quality) else None
    known = [word for word in PREDICATIVE[noun] if word is not said]
    if said is None:
        known = [word for word in known if word in _REASONS] or known
    adjective = draw.pick(known)
    return Clause(pronoun, BE, manner.tense, manner.negation, complement=Quality(adjective))


def object_again(draw: Clauses) -> Sentence:
    """Paul bought the dress and he gave it to Anna: the second subject is the first, so is the object."""
    tense = draw.tense()
    of_people = draw.chance(0.25)
    verb = draw.pick(_PEOPLE_MET if of_people else _THINGS_GOT)
    subject = draw.phrases.subject(_ANYBODY, they=False)
    then = _THEN_HELPED if of_people else _THEN_USED
    fit = [
        noun
        for noun in verb.objects
        if (noun in PEOPLE) == of_people and any(noun in following.objects for following in then)
    ]
    named = draw.phrases.phrase(fit, adjective=0.2)
    following = draw.pick([each for each in then if named.noun in each.objects])
    pronoun = pronoun_for(named)
    second = Clause(pronoun_for(subject), following, tense)
    if following.frame == "to":
        second = second._replace(indirect=pronoun)
    else:
        recipient = draw.phrases.person(adjective=0) if following.frame == "give" else None
        second = second._replace(direct=pronoun, indirect=recipient)
    return Sentence(Clause(subject, verb, tense, direct=named), link=AND, second=second)


def because_of_object(draw: Clauses) -> Sentence:
    """Paul bought the apples because they were red: nothing else in the sentence is `they` or `it`."""
    tense = draw.tense()
    verb = draw.pick(_FOR_A_REASON)
    nouns = [noun for noun in verb.objects if noun not in PEOPLE and PREDICATIVE[noun]]
    named = draw.phrases.phrase(nouns, "definite", adjective=0)
    subject = draw.phrases.subject(_ANYBODY, they=False)
    while subject.person == named.person == 5:
        subject = draw.phrases.subject(_ANYBODY, they=False)
    reason = Quality(draw.pick(PREDICATIVE[named.noun]))
    since = Tense.PAST if tense is Tense.PAST else Tense.PRESENT
    second = Clause(pronoun_for(named), BE, since, complement=reason)
    return Sentence(Clause(subject, verb, tense, direct=named), link=BECAUSE, second=second)


def reported(draw: Clauses) -> Sentence:
    """Alice says that …"""
    verb = draw.pick(tuple(REPORTING.values()))
    subject = draw.phrases.pronoun(they=False) if draw.chance(0.35) else draw.phrases.person(adjective=0)
    # What one hopes is to come.
    second = draw.any_clause(manner=Manner(Tense.FUTURE) if verb is REPORTING["hope"] else None)
    second = second._replace(time_first=False)
    return Sentence(Clause(subject, verb), link=THAT, second=second)


def condition(draw: Clauses) -> Sentence:
    """Anna will sing if Paul comes; but `when Paul comes` is in French `when Paul will come`."""
    first = draw.any_clause(manner=Manner(Tense.FUTURE))
    link = draw.pick((IF, WHEN))
    tense = Tense.FUTURE if link.english_present else Tense.PRESENT
    manner = Manner(tense, NOT if link is IF and draw.chance(0.25) else None)
    return Sentence(first, link=link, second=draw.intransitive(EVENTS, manner=manner, adjunct=0.15))
