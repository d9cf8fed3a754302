"""How a clause is said, drawn at random: tense, negation, frequency, time."""

from __future__ import annotations

from typing import NamedTuple

from glassformer.datasets.grammar.lexicon import Verb, Word
from glassformer.datasets.grammar.phrases import Phrases
from glassformer.datasets.grammar.words import FREQUENCIES, NEVER, NO_LONGER, NOT, TIMES, Modal, Tense, Time

_TENSES = (Tense.PRESENT,) * 8 + (Tense.PAST,) * 7 + (Tense.FUTURE,) * 5
_NEGATIONS: tuple[Word, ...] = (NOT,) * 6 + (NEVER,) * 2 + (NO_LONGER,)
_NEGATIONS_OF_PAST_EVENTS = (NOT,) * 3 + (NEVER,)
_NEGATIONS_OF_LASTING_STATES: tuple[Word, ...] = (NOT,) * 4 + (NO_LONGER,)


class Manner(NamedTuple):
    """It is chosen before the objects, as a negation decides on their determiners."""

    tense: Tense = Tense.PRESENT
    negation: Word | None = None
    frequency: Word | None = None
    time: Time | None = None
    time_first: bool = False
    modal: Modal | None = None

    @property
    def negated(self) -> bool:
        return self.negation is not None


class Manners:
    """Draws manners, with the random numbers of the phrases."""

    def __init__(self, phrases: Phrases) -> None:
        self.phrases = phrases
        self.random, self.chance, self.pick = phrases.random, phrases.chance, phrases.pick

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
        """The numbers are probabilities."""
        tense = tense or self.tense()
        # To love does not come and go: `il aimait toujours` would say that he still did.
        lasts = verb.stative and verb.frame in ("direct", "move")
        if lasts:
            time = frequency = 0.0
        if self.chance(negation):
            negations = _NEGATIONS_OF_LASTING_STATES if lasts else _NEGATIONS
            if tense is Tense.PAST and not verb.stative:
                negations = _NEGATIONS_OF_PAST_EVENTS
            denied = self.pick(negations)
            if denied is not NOT:
                return Manner(tense, denied)
            return Manner(tense, NOT, None, *self._time(tense, time, plain=True))
        if self.chance(frequency):
            return Manner(tense, None, self.pick(FREQUENCIES))
        return Manner(tense, None, None, *self._time(tense, time, plain=verb.stative))

    def _time(self, tense: Tense, probability: float, *, plain: bool) -> tuple[Time | None, bool]:
        if not self.chance(probability * 0.7 if plain else probability):
            return None, False
        times = TIMES[tense]
        if plain:
            times = tuple(time for time in times if time.plain)
        return self.pick(times), self.chance(0.35)
