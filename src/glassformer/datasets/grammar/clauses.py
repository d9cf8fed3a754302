"""Clauses drawn at random: a verb with who, what, where and when.

Throughout, `they` says whether a masculine `they` or `them` may stand for somebody whom the sentence does not
name, and a subject or a manner that is given is not drawn.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from glassformer.datasets.grammar.adjectives import ADJECTIVES, PREDICATIVE
from glassformer.datasets.grammar.lexicon import Frame, Noun, Verb
from glassformer.datasets.grammar.manners import Manner, Manners
from glassformer.datasets.grammar.nouns import NOUNS, nouns_of
from glassformer.datasets.grammar.phrases import KIN, PEOPLE, Phrases, Use
from glassformer.datasets.grammar.tree import (
    Abroad,
    Age,
    Clause,
    Comparison,
    Complement,
    Gap,
    Nominal,
    NounPhrase,
    Prepositional,
    Quality,
    Trade,
)
from glassformer.datasets.grammar.verbs import BE, BECOME, HAVE_YEARS, SEEM, THERE_BE, VERBS, verbs_of
from glassformer.datasets.grammar.words import (
    AS,
    DEGREES,
    LESS,
    MORE,
    NEVER,
    NO_VERB,
    NOT,
    NUMBERS,
    PROFESSIONS,
    THERE,
    WITH,
    WITHOUT,
    Pronoun,
)


def _framed(frame: Frame) -> tuple[Verb, ...]:
    return tuple(verb for verb in VERBS.values() if verb.frame == frame)


def _by_kind(nouns: Sequence[Noun]) -> tuple[tuple[Noun, ...], ...]:
    """Nouns that can be compared with each other: two at least of a kind."""
    kinds = dict.fromkeys(noun.kind for noun in nouns)
    groups = (tuple(noun for noun in nouns if noun.kind == kind) for kind in kinds)
    return tuple(group for group in groups if len(group) > 1)


INTRANSITIVE, DIRECT, GIVE = _framed("none"), _framed("direct"), _framed("give")
TO, OF, MOVE = _framed("to"), _framed("of"), _framed("move")
EVENTS = tuple(verb for verb in INTRANSITIVE if not verb.stative)
STATES = tuple(verb for verb in INTRANSITIVE if verb.stative)
DIRECT_EVENTS = tuple(verb for verb in DIRECT if not verb.stative)
DIRECT_TO_PEOPLE = tuple(verb for verb in DIRECT if NOUNS["woman"] in verb.objects)

_WITH_PLACE = frozenset(
    verbs_of("buy,sell,eat,drink,see,find,lose,look for,wait for,break,draw,write,hear,meet,hide")
)
_WITH_COMPANY = frozenset(
    verbs_of("work,sing,dance,swim,run,walk,leave,come,arrive,go out,rest,have fun,go for a walk,play tennis")
)
_PERSONAL = PREDICATIVE[NOUNS["brother"]]
_ACQUIRED = frozenset(
    ADJECTIVES[name]
    for name in ("rich", "poor", "famous", "sad", "jealous", "serious", "lazy", "strong", "brave", "kind")
)
_COMPARED = tuple(word for word in ADJECTIVES.values() if word.comparative and word.predicative)
_ALIKE = {word: _by_kind(word.nouns) for word in _COMPARED}
_QUALIFIED = tuple(noun for noun in NOUNS.values() if PREDICATIVE[noun])
_YOUNGER = nouns_of("brother sister son daughter friend neighbor")

_WHERE: dict[Verb, Callable[[Phrases], Prepositional | Abroad]] = {
    **dict.fromkeys(verbs_of("work,sleep,sing,dance,wait,rest,cry,have fun,play cards"), Phrases.inside),
    **dict.fromkeys(verbs_of("run,walk,go for a walk,fall,get lost"), Phrases.outside),
    VERBS["travel"]: Phrases.country,
    VERBS["go"]: Phrases.destination,
    VERBS["come back"]: Phrases.origin,
    VERBS["live"]: Phrases.residence,
    VERBS["stay"]: Phrases.inside,
}
_WHAT_THERE_IS = (
    (nouns_of("person"), Phrases.inside),
    (nouns_of("object container text snack clothes"), Phrases.around),
    (nouns_of("animal plant vehicle"), Phrases.outside),
)


class Clauses(Manners):
    def __init__(self, source: random.Random) -> None:
        super().__init__(Phrases(source))

    def any_clause(self, *, they: bool = False, manner: Manner | None = None) -> Clause:
        """A manner that is given has to suit an event."""
        chance = self.random()
        if chance < 0.36 or (manner and chance > 0.88):
            return self.transitive(DIRECT_EVENTS if manner else DIRECT, they=they, manner=manner)
        if chance < 0.58:
            return self.intransitive(EVENTS if manner else INTRANSITIVE, they=they, manner=manner)
        if chance < 0.7:
            return self.giving(they=they, manner=manner)
        if chance < 0.8:
            return self.oblique(TO if manner else (*TO, *OF), they=they, manner=manner)
        if chance < 0.88:
            return self.moving(they=they, manner=manner)
        return self.quality(they=they)

    # ------------------------------------------------------------ parts

    def _subject(self, verb: Verb, manner: Manner, they: bool) -> Nominal:
        return self.phrases.subject(verb.subjects, they=they, negated=manner.negated)

    def _use(self, verb: Verb, manner: Manner) -> Use:
        """What the verb's object may be."""
        if not manner.negated:
            return verb.determiners
        if verb.determiners == "indefinite":
            return "negated indefinite"
        # Only a direct object turns to `de` under negation; others are kept definite.
        direct = verb.frame in ("direct", "give") and verb.determiners == "any"
        return "negated" if direct else "negated subject"

    def _object(self, verb: Verb, manner: Manner) -> Nominal:
        use = self._use(verb, manner)
        phrase = self.phrases.phrase(verb.objects, use)
        if phrase.noun in PEOPLE and "indefinite" not in use and self.chance(0.3):
            return self.phrases.name()
        return phrase

    def _other_pronoun(self, subject: Nominal, they: bool) -> Pronoun:
        """Not the subject over again: neither `I see me` nor `we see me`."""
        pronoun = self.phrases.pronoun(they=they)
        while any(subject.person in ours and pronoun.person in ours for ours in ((0, 3), (1, 4))):
            pronoun = self.phrases.pronoun(they=they)
        return pronoun

    def _company(self, subject: Nominal, they: bool) -> Prepositional:
        preposition = WITH if self.chance(0.75) else WITHOUT
        if self.chance(0.4):
            return Prepositional(preposition, self._other_pronoun(subject, they))
        return Prepositional(preposition, self.phrases.person(adjective=0))

    # ------------------------------------------------------------ doing

    def intransitive(
        self,
        verbs: Sequence[Verb] = INTRANSITIVE,
        *,
        subject: Nominal | None = None,
        manner: Manner | None = None,
        they: bool = False,
        adjunct: float = 0.4,
    ) -> Clause:
        verb = self.pick(verbs)
        manner = manner or self.manner(verb)
        subject = subject or self._subject(verb, manner, they)
        adjuncts: tuple[Prepositional | Abroad, ...] = ()
        if self.chance(adjunct):
            if verb in _WITH_COMPANY and _is_human(subject) and self.chance(0.4):
                adjuncts = (self._company(subject, they),)
            elif verb in _WHERE:
                adjuncts = (_WHERE[verb](self.phrases),)
        return _clause(subject, verb, manner, adjuncts=adjuncts)

    def transitive(
        self,
        verbs: Sequence[Verb] = DIRECT,
        *,
        subject: Nominal | None = None,
        manner: Manner | None = None,
        they: bool = False,
        place: float = 0.12,
    ) -> Clause:
        verb = self.pick(verbs)
        manner = manner or self.manner(verb)
        subject = subject or self._subject(verb, manner, they)
        direct = self._object(verb, manner)
        adjuncts: tuple[Prepositional, ...] = ()
        if verb in _WITH_PLACE and not manner.time and self.chance(place):
            adjuncts = (self.phrases.inside(),)
        return _clause(subject, verb, manner, direct=direct, adjuncts=adjuncts)

    def oblique(
        self, verbs: Sequence[Verb] = (*TO, *OF), *, manner: Manner | None = None, they: bool = False
    ) -> Clause:
        """A verb with `à` or `de`."""
        verb = self.pick(verbs)
        manner = manner or self.manner(verb)
        subject = self._subject(verb, manner, they)
        return _clause(subject, verb, manner, indirect=self._object(verb, manner))

    def giving(
        self, *, subject: Nominal | None = None, manner: Manner | None = None, they: bool = False
    ) -> Clause:
        verb = self.pick(GIVE)
        manner = manner or self.manner(verb)
        subject = subject or self._subject(verb, manner, they)
        direct = self.phrases.phrase(verb.objects, self._use(verb, manner), adjective=0.2)
        return _clause(subject, verb, manner, direct=direct, indirect=self.phrases.person())

    def with_pronoun(
        self, verbs: Sequence[Verb] = (), *, manner: Manner | None = None, they: bool = False
    ) -> Clause:
        """Somebody is an object, and a pronoun."""
        verb = self.pick(verbs or self.pick((DIRECT_TO_PEOPLE, DIRECT_TO_PEOPLE, TO, GIVE)))
        manner = manner or self.manner(verb)
        subject = self._subject(verb, manner, they)
        pronoun = self._other_pronoun(subject, they)
        if verb.frame == "direct":
            return _clause(subject, verb, manner, direct=pronoun)
        given = self.phrases.phrase(verb.objects, self._use(verb, manner)) if verb.frame == "give" else None
        return _clause(subject, verb, manner, direct=given, indirect=pronoun)

    def moving(self, *, manner: Manner | None = None, they: bool = False) -> Clause:
        verb = self.pick(MOVE)
        manner = manner or self.manner(verb)
        subject = self._subject(verb, manner, they)
        place = _WHERE[verb](self.phrases)
        company = (self._company(subject, they),) if self.chance(0.15) else ()
        return _clause(subject, verb, manner, adjuncts=(place, *company))

    # ------------------------------------------------------------ being

    def quality(
        self, *, subject: Nominal | None = None, manner: Manner | None = None, they: bool = False
    ) -> Clause:
        """X is, seems or becomes so."""
        negated = manner.negated if manner else self.chance(0.2)
        if subject is None:
            if self.chance(0.55):
                subject = self.phrases.subject(KIN, they=they, negated=negated)
            else:
                use: Use = "negated subject" if negated else "definite"
                subject = self.phrases.phrase(_QUALIFIED, use, adjective=0)
        human = _is_human(subject)
        adjective = self.pick(PREDICATIVE[subject.noun] if isinstance(subject, NounPhrase) else _PERSONAL)
        verb = BE
        if human and self.chance(0.2):
            verb = BECOME if adjective in _ACQUIRED else SEEM
        if manner is None:
            sometimes = 0.1 if human and verb is BE else 0.0
            manner = self.manner(verb, negation=float(negated), frequency=sometimes, time=0.12)
            if manner.negation is NEVER and not human:
                manner = manner._replace(negation=NOT)
        degree = self.pick(DEGREES) if adjective.comparative and self.chance(0.25) else None
        return _clause(subject, verb, manner, complement=Quality(adjective, degree))

    def trade_or_age(self, *, they: bool = False) -> Clause:
        """X is a baker, X is ten years old."""
        manner = Manner(self.tense(), NOT if self.chance(0.15) else None)
        subject: Nominal
        if self.chance(0.35):
            subject = self.phrases.pronoun(they=they)
        elif self.chance(0.4):
            subject = self.phrases.name()
        else:
            subject = self.phrases.phrase(_YOUNGER, "definite", adjective=0)
        if self.chance(0.55):
            return _clause(subject, BE, manner, complement=Trade(self.pick(PROFESSIONS)))
        return _clause(subject, HAVE_YEARS, manner, complement=Age(self.pick(tuple(NUMBERS.values()))))

    def comparison(self, *, they: bool = False) -> Clause:
        adjective = self.pick(_COMPARED)
        subject: Nominal
        standard: Nominal
        if NOUNS["brother"] in adjective.nouns and self.chance(0.75):
            subject = (
                self.phrases.pronoun(they=they) if self.chance(0.3) else self.phrases.person(adjective=0)
            )
            if self.chance(0.25):
                standard = self._other_pronoun(subject, they)
            else:
                standard = self.phrases.person(adjective=0)
        else:
            kind = self.pick(_ALIKE[adjective])
            subject = self.phrases.phrase(kind, "negated subject", adjective=0)
            standard = self.phrases.phrase(kind, "negated subject", adjective=0)
        manner = Manner(self.tense(), NOT if self.chance(0.15) else None)
        grade = self.pick((MORE, MORE, LESS, AS))
        return _clause(subject, BE, manner, complement=Comparison(adjective, grade, standard))

    def existence(self) -> Clause:
        """There is …"""
        manner = Manner(self.tense(), NO_VERB if self.chance(0.2) else None)
        nouns, where = self.pick(_WHAT_THERE_IS)
        there = self.phrases.phrase(nouns, "there is no" if manner.negated else "indefinite")
        return _clause(THERE, THERE_BE, manner, direct=there, adjuncts=(where(self.phrases),))


def _is_human(nominal: Nominal) -> bool:
    if isinstance(nominal, NounPhrase | Gap):
        return nominal.noun in PEOPLE
    return not isinstance(nominal, Pronoun) or nominal.english != "it"


def _clause(
    subject: Nominal,
    verb: Verb,
    manner: Manner,
    *,
    direct: Nominal | None = None,
    indirect: Nominal | None = None,
    complement: Complement | None = None,
    adjuncts: tuple[Prepositional | Abroad, ...] = (),
) -> Clause:
    return Clause(
        subject,
        verb,
        manner.tense,
        manner.negation,
        manner.frequency,
        manner.modal,
        direct,
        indirect,
        complement,
        adjuncts,
        manner.time,
        manner.time_first,
    )
