"""Random clauses: a verb with its subject, objects, location and time.

In all methods, `they` permits a masculine `they` or `them` without an antecedent in the sentence. A subject
or manner is drawn unless it is passed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from glassformer.datasets.grammar import words
from glassformer.datasets.grammar.lexicon import (
    ADJECTIVES,
    NOUNS,
    NUMBERS,
    PREDICATIVE,
    PROFESSIONS,
    TIMES,
    VERBS,
    Frame,
    Modal,
    Noun,
    Pronoun,
    Tense,
    Time,
    Verb,
    Word,
    nouns_of,
    verbs_of,
)
from glassformer.datasets.grammar.phrases import KIN, PEOPLE, Phrases, Use
from glassformer.datasets.grammar.tree import (
    Abroad,
    Age,
    Clause,
    Comparison,
    Gap,
    Nominal,
    NounPhrase,
    Prepositional,
    Quality,
    Trade,
)

_TENSES = (Tense.PRESENT,) * 8 + (Tense.PAST,) * 7 + (Tense.FUTURE,) * 5
_NEGATIONS: tuple[Word, ...] = (words.NOT,) * 6 + (words.NEVER,) * 2 + (words.NO_LONGER,)
_NEGATIONS_OF_PAST_EVENTS = (words.NOT,) * 3 + (words.NEVER,)
_NEGATIONS_OF_LASTING_STATES: tuple[Word, ...] = (words.NOT,) * 4 + (words.NO_LONGER,)


class Manner(NamedTuple):
    """Tense, negation and adverbs. Drawn before the objects, because a negation limits their determiners."""

    tense: Tense = Tense.PRESENT
    negation: Word | None = None
    frequency: Word | None = None
    time: Time | None = None
    time_first: bool = False
    modal: Modal | None = None

    @property
    def negated(self) -> bool:
        return self.negation is not None


def _framed(frame: Frame) -> tuple[Verb, ...]:
    return tuple(verb for verb in VERBS.values() if verb.frame == frame)


def _by_kind(nouns: Sequence[Noun]) -> tuple[tuple[Noun, ...], ...]:
    """Group nouns that can be compared with each other: at least two of the same kind."""
    kinds = dict.fromkeys(noun.kind for noun in nouns)
    groups = (tuple(noun for noun in nouns if noun.kind == kind) for kind in kinds)
    return tuple(group for group in groups if len(group) > 1)


INTRANSITIVE, DIRECT, GIVE = _framed("none"), _framed("direct"), _framed("give")
TO, OF, MOVE = _framed("to"), _framed("of"), _framed("move")
EVENTS = tuple(verb for verb in INTRANSITIVE if not verb.stative)
STATES = tuple(verb for verb in INTRANSITIVE if verb.stative)
DIRECT_EVENTS = tuple(verb for verb in DIRECT if not verb.stative)
DIRECT_TO_PEOPLE = tuple(verb for verb in DIRECT if NOUNS["woman"] in verb.objects)

_WITH_LOCATION = frozenset(
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
_COMPARABLE = {word: _by_kind(word.nouns) for word in _COMPARED}
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


class Clauses:
    """Draw clauses."""

    def __init__(self, source: random.Random) -> None:
        self.phrases = Phrases(source)
        self.random, self.chance, self.pick = self.phrases.random, self.phrases.chance, self.phrases.pick

    def any_clause(self, *, they: bool = False, manner: Manner | None = None) -> Clause:
        """Draw a clause of any type. A `manner` that is passed must suit an event."""
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

    # ------------------------------------------------------------ manners

    def tense(self) -> Tense:
        return self.pick(_TENSES)

    def manner(
        self,
        verb: Verb,
        *,
        tense: Tense | None = None,
        negation: float = 0.2,
        frequency: float = 0.1,
        time: float = 0.22,
    ) -> Manner:
        """Draw a manner; `negation`, `frequency` and `time` are probabilities."""
        tense = tense or self.tense()
        # Lasting states take no frequency: `il aimait toujours` would mean that he still loved.
        lasts = verb.stative and verb.frame in ("direct", "move")
        if lasts:
            time = frequency = 0.0
        if self.chance(negation):
            negations = _NEGATIONS_OF_LASTING_STATES if lasts else _NEGATIONS
            if tense is Tense.PAST and not verb.stative:
                negations = _NEGATIONS_OF_PAST_EVENTS
            drawn = self.pick(negations)
            if drawn is not words.NOT:
                return Manner(tense, drawn)
            return Manner(tense, words.NOT, None, *self._time(tense, time, plain=True))
        if self.chance(frequency):
            return Manner(tense, None, self.pick(words.FREQUENCIES))
        return Manner(tense, None, None, *self._time(tense, time, plain=verb.stative))

    def _time(self, tense: Tense, probability: float, *, plain: bool) -> tuple[Time | None, bool]:
        if not self.chance(probability * 0.7 if plain else probability):
            return None, False
        times = TIMES[tense]
        if plain:
            times = tuple(time for time in times if time.plain)
        return self.pick(times), self.chance(0.35)

    # ------------------------------------------------------------ parts

    def _start(
        self, verbs: Sequence[Verb], manner: Manner | None, they: bool, subject: Nominal | None = None
    ) -> Clause:
        """Draw a verb, its manner and its subject, in this order."""
        verb = self.pick(verbs)
        manner = manner or self.manner(verb)
        subject = subject or self.phrases.subject(verb.subjects, they=they, negated=manner.negated)
        return Clause(subject, verb, **manner._asdict())

    def _use(self, clause: Clause) -> Use:
        """Determiners that the object of the verb may take."""
        verb = clause.verb
        if not clause.negation:
            return verb.determiners
        if verb.determiners == "indefinite":
            return "negated indefinite"
        # Only a direct object takes `de` under negation; other objects stay definite.
        direct = verb.frame in ("direct", "give") and verb.determiners == "any"
        return "negated" if direct else "negated subject"

    def _object(self, clause: Clause) -> Nominal:
        use = self._use(clause)
        phrase = self.phrases.phrase(clause.verb.objects, use)
        if phrase.noun in PEOPLE and "indefinite" not in use and self.chance(0.3):
            return self.phrases.name()
        return phrase

    def _other_pronoun(self, subject: Nominal, they: bool) -> Pronoun:
        """Draw a pronoun that does not overlap with the subject: neither `I see me` nor `we see me`."""
        pronoun = self.phrases.pronoun(they=they)
        while any(subject.person in ours and pronoun.person in ours for ours in ((0, 3), (1, 4))):
            pronoun = self.phrases.pronoun(they=they)
        return pronoun

    def _company(self, subject: Nominal, they: bool) -> Prepositional:
        preposition = words.WITH if self.chance(0.75) else words.WITHOUT
        if self.chance(0.4):
            return Prepositional(preposition, self._other_pronoun(subject, they))
        return Prepositional(preposition, self.phrases.person(adjective=0))

    # ------------------------------------------------------------ actions

    def intransitive(
        self,
        verbs: Sequence[Verb] = INTRANSITIVE,
        *,
        subject: Nominal | None = None,
        manner: Manner | None = None,
        they: bool = False,
        adjunct: float = 0.4,
    ) -> Clause:
        clause = self._start(verbs, manner, they, subject)
        if self.chance(adjunct):
            if clause.verb in _WITH_COMPANY and _is_human(clause.subject) and self.chance(0.4):
                return clause._replace(adjuncts=(self._company(clause.subject, they),))
            if clause.verb in _WHERE:
                return clause._replace(adjuncts=(_WHERE[clause.verb](self.phrases),))
        return clause

    def transitive(
        self,
        verbs: Sequence[Verb] = DIRECT,
        *,
        subject: Nominal | None = None,
        manner: Manner | None = None,
        they: bool = False,
        location: float = 0.12,
    ) -> Clause:
        clause = self._start(verbs, manner, they, subject)
        clause = clause._replace(direct=self._object(clause))
        if clause.verb in _WITH_LOCATION and not clause.time and self.chance(location):
            return clause._replace(adjuncts=(self.phrases.inside(),))
        return clause

    def oblique(
        self, verbs: Sequence[Verb] = (*TO, *OF), *, manner: Manner | None = None, they: bool = False
    ) -> Clause:
        """Draw a clause whose verb takes `à` or `de`."""
        clause = self._start(verbs, manner, they)
        return clause._replace(indirect=self._object(clause))

    def giving(
        self, *, subject: Nominal | None = None, manner: Manner | None = None, they: bool = False
    ) -> Clause:
        clause = self._start(GIVE, manner, they, subject)
        given = self.phrases.phrase(clause.verb.objects, self._use(clause), adjective=0.2)
        return clause._replace(direct=given, indirect=self.phrases.person())

    def with_pronoun(
        self, verbs: Sequence[Verb] = (), *, manner: Manner | None = None, they: bool = False
    ) -> Clause:
        """Draw a clause whose object is a personal pronoun."""
        clause = self._start(verbs or self.pick((DIRECT_TO_PEOPLE, DIRECT_TO_PEOPLE, TO, GIVE)), manner, they)
        pronoun = self._other_pronoun(clause.subject, they)
        if clause.verb.frame == "direct":
            return clause._replace(direct=pronoun)
        if clause.verb.frame == "give":
            clause = clause._replace(direct=self.phrases.phrase(clause.verb.objects, self._use(clause)))
        return clause._replace(indirect=pronoun)

    def moving(self, *, manner: Manner | None = None, they: bool = False) -> Clause:
        clause = self._start(MOVE, manner, they)
        location = _WHERE[clause.verb](self.phrases)
        company = (self._company(clause.subject, they),) if self.chance(0.15) else ()
        return clause._replace(adjuncts=(location, *company))

    # ------------------------------------------------------------ states

    def quality(
        self, *, subject: Nominal | None = None, manner: Manner | None = None, they: bool = False
    ) -> Clause:
        """Draw a subject with an adjective: X is, seems or becomes rich."""
        negated = manner.negated if manner else self.chance(0.2)
        if subject is None:
            if self.chance(0.55):
                subject = self.phrases.subject(KIN, they=they, negated=negated)
            else:
                use: Use = "negated subject" if negated else "definite"
                subject = self.phrases.phrase(_QUALIFIED, use, adjective=0)
        human = _is_human(subject)
        adjective = self.pick(PREDICATIVE[subject.noun] if isinstance(subject, NounPhrase) else _PERSONAL)
        verb = words.BE
        if human and self.chance(0.2):
            verb = words.BECOME if adjective in _ACQUIRED else words.SEEM
        if manner is None:
            sometimes = 0.1 if human and verb is words.BE else 0.0
            manner = self.manner(verb, negation=float(negated), frequency=sometimes, time=0.12)
            if manner.negation is words.NEVER and not human:
                manner = manner._replace(negation=words.NOT)
        degree = self.pick(words.DEGREES) if adjective.comparative and self.chance(0.25) else None
        return Clause(subject, verb, **manner._asdict(), complement=Quality(adjective, degree))

    def trade_or_age(self, *, they: bool = False) -> Clause:
        """Draw a profession or an age: X is a baker, X is ten years old."""
        manner = Manner(self.tense(), words.NOT if self.chance(0.15) else None)
        subject: Nominal
        if self.chance(0.35):
            subject = self.phrases.pronoun(they=they)
        elif self.chance(0.4):
            subject = self.phrases.name()
        else:
            subject = self.phrases.phrase(_YOUNGER, "definite", adjective=0)
        if self.chance(0.55):
            return Clause(subject, words.BE, **manner._asdict(), complement=Trade(self.pick(PROFESSIONS)))
        return Clause(
            subject, words.HAVE_YEARS, **manner._asdict(), complement=Age(self.pick(tuple(NUMBERS.values())))
        )

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
            kind = self.pick(_COMPARABLE[adjective])
            subject = self.phrases.phrase(kind, "negated subject", adjective=0)
            standard = self.phrases.phrase(kind, "negated subject", adjective=0)
        manner = Manner(self.tense(), words.NOT if self.chance(0.15) else None)
        grade = self.pick((words.MORE, words.MORE, words.LESS, words.AS))
        return Clause(
            subject, words.BE, **manner._asdict(), complement=Comparison(adjective, grade, standard)
        )

    def existence(self) -> Clause:
        """Draw `there is …`."""
        manner = Manner(self.tense(), words.NO_VERB if self.chance(0.2) else None)
        nouns, where = self.pick(_WHAT_THERE_IS)
        there = self.phrases.phrase(nouns, "there is no" if manner.negated else "indefinite")
        return Clause(
            words.THERE, words.THERE_BE, **manner._asdict(), direct=there, adjuncts=(where(self.phrases),)
        )


def _is_human(nominal: Nominal) -> bool:
    if isinstance(nominal, NounPhrase | Gap):
        return nominal.noun in PEOPLE
    return not isinstance(nominal, Pronoun) or nominal.english != "it"
