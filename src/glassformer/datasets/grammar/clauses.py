"""Random noun phrases and clauses: a verb with its subject, objects, location and time.

In all methods, `they=True` permits a masculine `they` or `them` without an antecedent in the sentence. If no
subject or manner (tense, negation and adverbs) is passed, a random one is drawn.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Literal, NamedTuple, TypeVar

from glassformer.datasets.grammar import words
from glassformer.datasets.grammar.lexicon import (
    ADJECTIVES,
    ATTRIBUTIVE,
    COUNTRIES,
    MASS_KINDS,
    NAMES,
    NOUNS,
    NUMBERS,
    PREDICATIVE,
    PROFESSIONS,
    TIMES,
    VERBS,
    Address,
    Adjective,
    Determination,
    Determiner,
    Frame,
    Gendered,
    Modal,
    Name,
    Noun,
    Pronoun,
    Tense,
    Time,
    Verb,
    Word,
    adjectives_of,
    nouns_of,
    verbs_of,
)
from glassformer.datasets.grammar.tree import (
    Abroad,
    Age,
    Clause,
    Comparison,
    Gap,
    Nominal,
    NounPhrase,
    Pair,
    Prepositional,
    Quality,
    Trade,
)

Item = TypeVar("Item")

PEOPLE = frozenset(nouns_of("people"))
KIN = nouns_of("kin parent")
_PERSONS = nouns_of("person")
_OWNED = frozenset(nouns_of("owned"))
_SINGULAR_ONLY = frozenset(noun for noun in NOUNS.values() if noun.kind in MASS_KINDS | {"parent"})
_SMALL_NUMBERS = tuple(NUMBERS[name] for name in ("two", "three", "four"))
_ALL_NUMBERS = (*NUMBERS.values(), *_SMALL_NUMBERS, *_SMALL_NUMBERS)

_INSIDE = nouns_of("house garden kitchen office village castle church forest park street city shop")
_OUTSIDE = nouns_of("garden park forest street village city")
_AT = nouns_of("school market station hotel hospital restaurant museum library farm")
_ON = nouns_of("beach bridge island")
_DESTINATIONS = (*_AT, *nouns_of("church castle beach village office park"))
_LANDMARKS = nouns_of("buildings -market tree park river bridge")
_SURFACES = nouns_of("table chair bed desk")

Use = Determination | Literal["negated", "negated indefinite", "negated subject", "there is no"]
"""Context of a noun phrase that limits its determiners, such as an object or a negated clause."""


class Choice(NamedTuple):
    """Determiner of a noun phrase; None means a possessive such as `my`.

    `number` adds a numeral (`the three keys`), `owner` a possessor (`Anna's key`).
    """

    determiner: Determiner | None
    number: bool = False
    owner: bool = False


_POSSESSED = (Choice(None),) * 3 + (Choice(words.THE, owner=True),)
_DEFINITE = (Choice(words.THE),) * 4 + (Choice(words.THIS),)
_INDEFINITE_PLURAL = (
    (Choice(words.SOME),) * 3
    + (Choice(words.BARE, number=True),) * 3
    + (Choice(words.MANY), Choice(words.SEVERAL))
)
_DEFINITE_PLURAL = (*_DEFINITE, Choice(words.ALL), Choice(words.THE, number=True))
_UNCOUNTED = frozenset({words.ALL, words.MANY, words.SEVERAL, words.SOME, words.BARE})


@cache
def _choices(noun: Noun, plural: bool, use: Use) -> tuple[Choice, ...]:
    known: tuple[Choice, ...] = _DEFINITE_PLURAL if plural else _DEFINITE
    if noun in KIN:
        known = (*_POSSESSED, Choice(None, number=True)) if plural else _POSSESSED
    elif noun in _OWNED:
        known = (*known, *_POSSESSED)
    indefinite: tuple[Choice, ...] = _INDEFINITE_PLURAL if plural else (Choice(words.A),) * 3
    if noun.kind in MASS_KINDS:
        indefinite = (Choice(words.SOME),) * 4
    by_use: dict[Use, tuple[Choice, ...]] = {
        "any": known if noun in KIN else (*known, *indefinite),
        "definite": known,
        "generic": known if noun in KIN else (*known, *(Choice(words.GENERIC),) * 4),
        "indefinite": indefinite,
        "negated": known if noun in KIN else (*known, *(Choice(words.ANY),) * 3),
        "negated indefinite": (Choice(words.ANY),),
        "there is no": (Choice(words.NO),),
        "negated subject": known,
    }
    choices = by_use[use]
    if use.startswith("negated"):
        # `pas trois livres`, `pas tous les livres`: there the negation applies to the quantity.
        choices = tuple(each for each in choices if each.determiner not in _UNCOUNTED and not each.number)
    return choices


class Phrases:
    """Generator of random phrases for one sentence at a time.

    No name occurs twice in a sentence. `your` occurs only in a sentence with an address, as in `Anna, …`.
    """

    def __init__(self, source: random.Random) -> None:
        self.random = source.random
        self.address: Address | None = None
        self.asking = False
        self.used_names: list[Name] = []
        self.used_noun: Noun | None = None

    def start(self, address: Address | None = None, *, asking: bool = False) -> None:
        """Reset the state for a new sentence. Questions (`asking`) do not have the subjects `I` and `we`."""
        self.address, self.asking = address, asking
        self.used_names = [name for name in NAMES if address and name.english == address.english]
        self.used_noun = None

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def pick(self, items: Sequence[Item]) -> Item:
        # random.choice may draw differently in another version of Python.
        return items[int(self.random() * len(items))]

    # ------------------------------------------------------------ nouns

    def noun(self, nouns: Sequence[Noun]) -> Noun:
        noun = self.pick(nouns)
        while noun is self.used_noun and len(nouns) > 1:
            noun = self.pick(nouns)
        self.used_noun = noun
        return noun

    def possessive(self) -> Determiner:
        if self.address and self.chance(0.6):
            return self.address.your
        return self.pick(words.POSSESSIVES)

    def phrase(
        self,
        nouns: Sequence[Noun],
        use: Use = "any",
        *,
        adjective: float = 0.28,
        plural: bool | None = None,
    ) -> NounPhrase:
        noun = self.noun(nouns)
        if noun in _SINGULAR_ONLY:
            plural = False
        elif plural is None:
            plural = self.chance(0.35)
        choice = self.pick(_choices(noun, plural, use))
        if choice.determiner is words.GENERIC and not plural and noun.kind not in MASS_KINDS:
            plural = True
        determiner = self.possessive() if choice.determiner is None else choice.determiner
        return NounPhrase(
            noun,
            plural,
            determiner,
            number=self._number(noun) if choice.number else None,
            adjectives=self.adjectives(noun, adjective) if determiner is not words.GENERIC else (),
            owner=self._owner(noun) if choice.owner else None,
        )

    def _number(self, noun: Noun) -> Gendered:
        return self.pick(_SMALL_NUMBERS if noun in KIN else _ALL_NUMBERS)

    def _owner(self, noun: Noun) -> Nominal:
        if noun in KIN or self.chance(0.5):
            return self.name()
        if self.chance(0.6):
            return NounPhrase(self.pick(KIN), False, self.possessive())
        person = self.pick(_PERSONS)
        return NounPhrase(person, self.chance(0.25), words.THE)

    def adjectives(self, noun: Noun, probability: float) -> tuple[Adjective, ...]:
        known = ATTRIBUTIVE[noun]
        if noun in KIN:
            probability *= 0.4
        if not known or not self.chance(probability):
            return ()
        first = self.pick(known)
        if first.before_noun and self.chance(0.15):
            after = [word for word in known if not word.before_noun]
            if after:
                return (first, self.pick(after))
        return (first,)

    # ------------------------------------------------------------ persons

    def name(self) -> Name:
        name = self.pick(NAMES)
        while name in self.used_names and len(self.used_names) < len(NAMES):
            name = self.pick(NAMES)
        self.used_names.append(name)
        return name

    def person(self, *, adjective: float = 0.0) -> NounPhrase | Name:
        """Return a random person: a name, a relative such as `my sister`, or a noun such as `the doctor`."""
        chance = self.random()
        if chance < 0.45:
            return self.name()
        if chance < 0.75:
            return self.phrase(KIN, "definite", adjective=adjective)
        return self.phrase(_PERSONS, "definite", adjective=adjective)

    def pair(self) -> Pair:
        return Pair(self._one_of_pair(), self._one_of_pair())

    def _one_of_pair(self) -> NounPhrase | Name:
        if self.chance(0.6):
            return self.name()
        return NounPhrase(self.noun(KIN), False, self.possessive())

    def pronoun(self, *, they: bool) -> Pronoun:
        """Return a random subject pronoun. `they=True` permits a masculine `they` without an antecedent."""
        if self.address and self.chance(0.6):
            return self.address.pronoun
        if self.asking:
            return self.pick((words.HE, words.SHE, words.THEY) if they else (words.HE, words.SHE))
        return self.pick(
            (words.I, words.I, words.HE, words.HE, words.SHE, words.SHE, words.WE, words.WE, words.THEY)
            if they
            else (words.I, words.HE, words.SHE, words.WE)
        )

    def subject(self, nouns: Sequence[Noun], *, they: bool, negated: bool = False) -> Nominal:
        """Return a random subject: a pronoun, name, pair or noun phrase. In `nouns`, people come first."""
        use: Use = "negated subject" if negated or self.asking else "any"
        if nouns[0] not in PEOPLE or (nouns[-1] not in PEOPLE and self.chance(0.25)):
            return self.phrase([noun for noun in nouns if noun not in PEOPLE], use, adjective=0.2)
        chance = self.random()
        if chance < 0.42:
            return self.pronoun(they=they)
        if chance < 0.62:
            return self.name()
        if chance < 0.67 and not negated:
            return self.pair()
        return self.phrase(nouns, use, adjective=0.2)

    # ------------------------------------------------------------ locations

    def _location(self, preposition: Word, nouns: Sequence[Noun]) -> Prepositional:
        noun = self.pick(nouns)
        determiner = self.possessive() if noun.kind == "home" and self.chance(0.25) else words.THE
        adjectives = self.adjectives(noun, 0.15)
        return Prepositional(preposition, NounPhrase(noun, False, determiner, None, adjectives))

    def inside(self) -> Prepositional:
        """Return a random location for people, such as `in the garden` or `at the market`."""
        chance = self.random()
        if chance < 0.4:
            return self._location(words.IN, _INSIDE)
        if chance < 0.68:
            return self._location(words.AT, _AT)
        if chance < 0.8:
            return self._location(words.ON, _ON)
        return self._location(self.pick(words.BESIDE), _LANDMARKS)

    def outside(self) -> Prepositional:
        if self.chance(0.5):
            return self._location(words.IN, _OUTSIDE)
        return self._location(self.pick(words.BESIDE), _LANDMARKS)

    def around(self) -> Prepositional:
        """Return a random location for objects, such as `under the table`."""
        if self.chance(0.3):
            return self._location(words.IN, _INSIDE[:4])
        return self._location(words.ON if self.chance(0.6) else words.UNDER, _SURFACES)

    def end_of_journey(self, preposition: Word) -> Prepositional | Abroad:
        if self.chance(0.6):
            return self._location(preposition, _DESTINATIONS)
        return Abroad(preposition, self.pick(COUNTRIES))

    def residence(self) -> Prepositional | Abroad:
        if self.chance(0.6):
            return Abroad(words.IN, self.pick(COUNTRIES))
        return self._location(words.IN, (NOUNS["house"], NOUNS["village"], NOUNS["castle"], NOUNS["city"]))

    def country(self) -> Abroad:
        return Abroad(words.IN, self.pick([each for each in COUNTRIES if each.inside != "à"]))


# ---------------------------------------------------------------- clauses

_TENSES = (Tense.PRESENT,) * 8 + (Tense.PAST,) * 7 + (Tense.FUTURE,) * 5
_NEGATIONS: tuple[Word, ...] = (words.NOT,) * 6 + (words.NEVER,) * 2 + (words.NO_LONGER,)
_NEGATIONS_OF_PAST_EVENTS = (words.NOT,) * 3 + (words.NEVER,)
_NEGATIONS_OF_LASTING_STATES: tuple[Word, ...] = (words.NOT,) * 4 + (words.NO_LONGER,)


class Manner(NamedTuple):
    """Tense, negation, adverb of frequency, expression of time and modal verb of a clause."""

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
    """Return groups of nouns of the same kind, which can be compared; each has at least two nouns."""
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
_ACQUIRED = adjectives_of("rich poor famous sad jealous serious lazy strong brave kind")
_COMPARED = tuple(word for word in ADJECTIVES.values() if word.comparative and word.predicative)
_COMPARABLE = {word: _by_kind(word.nouns) for word in _COMPARED}
_QUALIFIED = tuple(noun for noun in NOUNS.values() if PREDICATIVE[noun])
_YOUNGER = nouns_of("brother sister son daughter friend neighbor")

_WHERE: dict[Verb, Callable[[Phrases], Prepositional | Abroad]] = {
    **dict.fromkeys(verbs_of("work,sleep,sing,dance,wait,rest,cry,have fun,play cards"), Phrases.inside),
    **dict.fromkeys(verbs_of("run,walk,go for a walk,fall,get lost"), Phrases.outside),
    VERBS["travel"]: Phrases.country,
    VERBS["go"]: lambda draw: draw.end_of_journey(words.TO),
    VERBS["come back"]: lambda draw: draw.end_of_journey(words.FROM),
    VERBS["live"]: Phrases.residence,
    VERBS["stay"]: Phrases.inside,
}
_WHAT_THERE_IS = (
    (nouns_of("person"), Phrases.inside),
    (nouns_of("object container text snack clothes"), Phrases.around),
    (nouns_of("animal plant vehicle"), Phrases.outside),
)


class Clauses(Phrases):
    """Generator of random clauses: a verb with its subject, objects, location and time."""

    def any_clause(self, *, they: bool = False, manner: Manner | None = None) -> Clause:
        """Return a random clause of any type; only of an event if `manner` (tense, adverbs) is given."""
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
        """Return random tense, negation and adverbs. `negation`, `frequency`, `time` are probabilities."""
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
        """Return a clause with a random verb, manner and subject, without objects."""
        verb = self.pick(verbs)
        manner = manner or self.manner(verb)
        subject = subject or self.subject(verb.subjects, they=they, negated=manner.negated)
        return Clause(subject, verb, **manner._asdict())

    def _use(self, clause: Clause) -> Use:
        """Return the `Use` of the clause's object, such as `negated`, which limits its determiners."""
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
        phrase = self.phrase(clause.verb.objects, use)
        if phrase.noun in PEOPLE and "indefinite" not in use and self.chance(0.3):
            return self.name()
        return phrase

    def _other_pronoun(self, subject: Nominal, they: bool) -> Pronoun:
        """Return a random pronoun that does not include the subject: neither `I see me` nor `we see me`."""
        pronoun = self.pronoun(they=they)
        while any(subject.person in ours and pronoun.person in ours for ours in ((0, 3), (1, 4))):
            pronoun = self.pronoun(they=they)
        return pronoun

    def _company(self, subject: Nominal, they: bool) -> Prepositional:
        preposition = words.WITH if self.chance(0.75) else words.WITHOUT
        other = self._other_pronoun(subject, they) if self.chance(0.4) else self.person()
        return Prepositional(preposition, other)

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
                return clause._replace(adjuncts=(_WHERE[clause.verb](self),))
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
            return clause._replace(adjuncts=(self.inside(),))
        return clause

    def oblique(
        self, verbs: Sequence[Verb] = (*TO, *OF), *, manner: Manner | None = None, they: bool = False
    ) -> Clause:
        """Return a random clause whose French verb takes an object with `à` or `de`."""
        clause = self._start(verbs, manner, they)
        return clause._replace(indirect=self._object(clause))

    def giving(
        self, *, subject: Nominal | None = None, manner: Manner | None = None, they: bool = False
    ) -> Clause:
        clause = self._start(GIVE, manner, they, subject)
        given = self.phrase(clause.verb.objects, self._use(clause), adjective=0.2)
        return clause._replace(direct=given, indirect=self.person(adjective=0.1))

    def with_pronoun(
        self, verbs: Sequence[Verb] = (), *, manner: Manner | None = None, they: bool = False
    ) -> Clause:
        """Return a random clause whose object is a personal pronoun, such as `Paul sees her`."""
        clause = self._start(verbs or self.pick((DIRECT_TO_PEOPLE, DIRECT_TO_PEOPLE, TO, GIVE)), manner, they)
        pronoun = self._other_pronoun(clause.subject, they)
        if clause.verb.frame == "direct":
            return clause._replace(direct=pronoun)
        if clause.verb.frame == "give":
            clause = clause._replace(direct=self.phrase(clause.verb.objects, self._use(clause)))
        return clause._replace(indirect=pronoun)

    def moving(self, *, manner: Manner | None = None, they: bool = False) -> Clause:
        clause = self._start(MOVE, manner, they)
        location = _WHERE[clause.verb](self)
        company = (self._company(clause.subject, they),) if self.chance(0.15) else ()
        return clause._replace(adjuncts=(location, *company))

    # ------------------------------------------------------------ states

    def quality(
        self, *, subject: Nominal | None = None, manner: Manner | None = None, they: bool = False
    ) -> Clause:
        """Return a random clause with an adjective, such as `she is rich` or `Paul seems sad`."""
        negated = manner.negated if manner else self.chance(0.2)
        if subject is None:
            if self.chance(0.55):
                subject = self.subject(KIN, they=they, negated=negated)
            else:
                use: Use = "negated subject" if negated else "definite"
                subject = self.phrase(_QUALIFIED, use, adjective=0)
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
        """Return a random clause with a profession or an age: `Anna is a baker`, `he is ten years old`."""
        tense, negation = self.tense(), words.NOT if self.chance(0.15) else None
        subject: Nominal
        if self.chance(0.35):
            subject = self.pronoun(they=they)
        elif self.chance(0.4):
            subject = self.name()
        else:
            subject = self.phrase(_YOUNGER, "definite", adjective=0)
        if self.chance(0.55):
            return Clause(subject, words.BE, tense, negation, complement=Trade(self.pick(PROFESSIONS)))
        age = Age(self.pick(tuple(NUMBERS.values())))
        return Clause(subject, words.HAVE_YEARS, tense, negation, complement=age)

    def comparison(self, *, they: bool = False) -> Clause:
        adjective = self.pick(_COMPARED)
        subject: Nominal
        standard: Nominal
        if NOUNS["brother"] in adjective.nouns and self.chance(0.75):
            subject = self.pronoun(they=they) if self.chance(0.3) else self.person()
            standard = self._other_pronoun(subject, they) if self.chance(0.25) else self.person()
        else:
            kind = self.pick(_COMPARABLE[adjective])
            subject = self.phrase(kind, "negated subject", adjective=0)
            standard = self.phrase(kind, "negated subject", adjective=0)
        tense, negation = self.tense(), words.NOT if self.chance(0.15) else None
        grade = self.pick((words.MORE, words.MORE, words.LESS, words.AS))
        return Clause(subject, words.BE, tense, negation, complement=Comparison(adjective, grade, standard))

    def existence(self) -> Clause:
        """Return a random clause with `there is` or `there are`."""
        manner = Manner(self.tense(), words.NO_VERB if self.chance(0.2) else None)
        nouns, where = self.pick(_WHAT_THERE_IS)
        there = self.phrase(nouns, "there is no" if manner.negated else "indefinite")
        return Clause(words.THERE, words.THERE_BE, **manner._asdict(), direct=there, adjuncts=(where(self),))


def _is_human(nominal: Nominal) -> bool:
    if isinstance(nominal, NounPhrase | Gap):
        return nominal.noun in PEOPLE
    return not isinstance(nominal, Pronoun) or nominal.english != "it"
