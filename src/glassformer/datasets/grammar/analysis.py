"""Analyses of generated sentence pairs: gender, number, tense and negation, and the links between words.

Both sentences are spelt from one derivation, so the links are known and need no annotation. As in Och and
Ney (2003), a link is sure if one word of each sentence carries the meaning of the same unit of the
derivation. All other pairs of words of a unit are possible links.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from glassformer.data.tokenizers import word_spans
from glassformer.datasets.grammar import english, french
from glassformer.datasets.grammar.origins import Traced, tracing
from glassformer.datasets.grammar.sentences import sentences
from glassformer.datasets.grammar.tree import Sentence

MOST_SENTENCES = 1_000_000
"""Number of generated sentences after which a text counts as one that the grammar has not generated."""


@dataclass(frozen=True)
class Segment:
    """Word or punctuation mark of a sentence."""

    start: int
    end: int
    heads: frozenset[str]
    units: frozenset[str]
    """Units that the word belongs to, the heads included."""
    gender: str | None
    number: str | None


@dataclass(frozen=True)
class Analysis:
    """Words of a sentence pair with their grammatical features, and the links between them."""

    source: str
    target: str
    tense: str
    is_negated: bool
    source_words: list[Segment]
    target_words: list[Segment]

    def links(self) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
        """Return the sure and the possible links, as pairs of word numbers. Sure links are possible too."""
        sure, possible = set(), set()
        singles = [
            {unit for unit, count in _counts(words).items() if count == 1}
            for words in (self.source_words, self.target_words)
        ]
        for row, one in enumerate(self.source_words):
            for column, other in enumerate(self.target_words):
                if one.units & other.units:
                    possible.add((row, column))
                if one.heads & other.heads & singles[0] & singles[1]:
                    sure.add((row, column))
        return sure, possible


def _counts(words: Iterable[Segment]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for word in words:
        for unit in word.heads:
            counts[unit] = counts.get(unit, 0) + 1
    return counts


def analyse(sentence: Sentence) -> Analysis:
    """Spell a derivation in both languages, and return the analysis of the pair."""
    with tracing():
        source, target = english.words(sentence), french.words(sentence)
    main = sentence.main
    return Analysis(
        "".join(source),
        "".join(target),
        main.tense.value,
        main.negation is not None,
        _segments(source),
        _segments(target),
    )


def _segments(parts: list[str]) -> list[Segment]:
    """Return the words of a text, each with the origins of the part that contains its first character."""
    text, ends, total = "".join(parts), [], 0
    for part in parts:
        total += len(part)
        ends.append(total)
    found, number, previous = [], 0, -1
    for start, end in word_spans(text):
        while ends[number] <= start:
            number += 1
        part = parts[number]
        origin = part if isinstance(part, Traced) else Traced(part)
        heads, units = frozenset(origin.heads), frozenset((*origin.heads, *origin.helps))
        is_mark = not text[start:end][0].isalnum()
        if is_mark:  # the comma after an expression of time corresponds only to another comma
            heads = units = frozenset(
                f"{unit}{text[start:end] if part[0].isalnum() else ''}" for unit in heads
            )
        elif number == previous and text[start - 1] in "'’":  # the s of `Anna's`
            heads = frozenset()
        plural = None if is_mark else origin.is_plural
        names = {None: None, True: "plural", False: "singular"}
        gender = {"m": "masculine", "f": "feminine"}.get(origin.gender or "")
        found.append(Segment(start, end, heads, units, None if is_mark else gender, names[plural]))
        previous = number
    return found


def analyses(texts: Iterable[str], seed: int, split: str) -> dict[str, Analysis]:
    """Return the analyses of generated English sentences, by text.

    The sentences are those of the stream for a seed and a split. A text that is not among them is left out.
    """
    missing = set(texts)
    found: dict[str, Analysis] = {}
    for number, sentence in enumerate(sentences(seed, split)):
        if not missing or number > MOST_SENTENCES:
            break
        source = english.spell(sentence)
        if source in missing:
            missing.remove(source)
            found[source] = analyse(sentence)
    return found


def first_analyses(count: int, seed: int, split: str) -> Iterator[Analysis]:
    """Yield the analyses of the first sentences of a seed and a split, repetitions included."""
    for _, sentence in zip(range(count), sentences(seed, split), strict=False):
        yield analyse(sentence)
