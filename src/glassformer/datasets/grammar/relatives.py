"""Sentences with a relative clause: qui, que, dont, à qui."""

from __future__ import annotations

from glassformer.datasets.grammar.adjectives import PREDICATIVE
from glassformer.datasets.grammar.clauses import DIRECT, DIRECT_EVENTS, EVENTS, OF, TO, Clauses
from glassformer.datasets.grammar.lexicon import Noun, Verb
from glassformer.datasets.grammar.manners import Manner
from glassformer.datasets.grammar.nouns import MASS_KINDS, NOUNS
from glassformer.datasets.grammar.phrases import KIN, PEOPLE
from glassformer.datasets.grammar.tree import Clause, Gap, NounPhrase, Sentence
from glassformer.datasets.grammar.verbs import BE
from glassformer.datasets.grammar.words import THE, A, Tense

_KNOWN = tuple(verb for verb in DIRECT if verb.determiners != "indefinite")
_KNOWN_OF = {noun: tuple(verb for verb in _KNOWN if noun in verb.objects) for noun in NOUNS.values()}

# A relative that goes with the tense around it: what was lost yesterday was not bought tomorrow.
_INNER_TENSES = {
    Tense.PAST: (Tense.PAST,),
    Tense.PRESENT: (Tense.PRESENT, Tense.PAST, Tense.PAST, Tense.FUTURE),
    Tense.FUTURE: (Tense.PRESENT, Tense.PAST, Tense.FUTURE),
}


def _manner(draw: Clauses, verb: Verb, outer: Tense | None = None) -> Manner:
    tense = draw.pick(_INNER_TENSES[outer]) if outer else None
    return draw.manner(verb, tense=tense, negation=0.12, frequency=0.0 if verb is BE else 0.08, time=0.0)


def _head(draw: Clauses, gap: Gap, relative: Clause, *, article_a: bool = False) -> NounPhrase:
    determiner = A if article_a and not gap.plural and gap.noun.kind not in MASS_KINDS else THE
    return NounPhrase(
        gap.noun, gap.plural, determiner, None, draw.phrases.adjectives(gap.noun, 0.12), relative=relative
    )


def _gap(draw: Clauses, nouns: tuple[Noun, ...]) -> Gap:
    noun = draw.phrases.noun(tuple(noun for noun in nouns if noun not in KIN))
    return Gap(noun, noun.kind not in MASS_KINDS and draw.chance(0.35))


def _doing(draw: Clauses, gap: Gap, verb: Verb, manner: Manner) -> Clause:
    """A clause whose subject is the gap."""
    if verb.frame == "direct":
        return draw.transitive((verb,), subject=gap, manner=manner, place=0)
    return draw.intransitive((verb,), subject=gap, manner=manner, adjunct=0.3)


def _done(draw: Clauses, gap: Gap, verb: Verb, manner: Manner) -> Clause:
    """A clause whose object is the gap."""
    subject = draw.phrases.subject(verb.subjects, they=False, negated=manner.negated)
    clause = Clause(subject, verb, manner.tense, manner.negation, manner.frequency)
    return clause._replace(direct=gap) if verb.frame == "direct" else clause._replace(indirect=gap)


def of_subject(draw: Clauses) -> Sentence:
    """The man who sings knows my sister."""
    verb = draw.pick(EVENTS if draw.chance(0.6) else DIRECT_EVENTS)
    gap = _gap(draw, verb.subjects)
    if gap.noun in PEOPLE and draw.chance(0.5):
        outer_verb = draw.pick(DIRECT)
        manner = _manner(draw, outer_verb)
        head = _head(draw, gap, _doing(draw, gap, verb, _manner(draw, verb, manner.tense)))
        return Sentence(draw.transitive((outer_verb,), subject=head, manner=manner))
    manner = _manner(draw, BE)
    head = _head(draw, gap, _doing(draw, gap, verb, _manner(draw, verb, manner.tense)))
    return Sentence(draw.quality(subject=head, manner=manner))


def of_object(draw: Clauses) -> Sentence:
    """The car that Paul bought is red; the dog that I am afraid of, le chien dont j'ai peur."""
    verb = draw.pick(draw.pick((_KNOWN, _KNOWN, OF, TO)))
    gap = _gap(draw, tuple(noun for noun in verb.objects if PREDICATIVE[noun]))
    manner = _manner(draw, BE)
    relative = _done(draw, gap, verb, _manner(draw, verb, manner.tense))
    head = NounPhrase(gap.noun, gap.plural, THE, relative=relative)
    return Sentence(draw.quality(subject=head, manner=manner))


def at_end(draw: Clauses) -> Sentence:
    """Paul lost the key that Anna found; Paul meets a woman who sings."""
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
    subject = draw.phrases.subject(verb.subjects, they=False)
    return Sentence(Clause(subject, verb, tense, direct=head))
