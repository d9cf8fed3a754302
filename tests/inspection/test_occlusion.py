"""Occlusion on hand-made models whose word effects are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from glassformer.blocks.heads import ClassHead, Head, RegressionHead
from glassformer.core.errors import ErrorDetail
from glassformer.inspection import attribution
from glassformer.inspection.attribution import outputs, word_effects
from glassformer.models.base import Model
from glassformer.models.task_types import SequenceClassification
from glassformer.tasks.base import Piece, SequenceClassificationTask

GOOD = {"good": 2.0, "fine": 1.0, "bad": -3.0}


class Letters(SequenceClassificationTask):
    """Task in which every letter is a token, so that a word has several."""

    def __init__(self, is_regression: bool = False) -> None:
        super().__init__(
            SequenceClassification(128, 60, outputs=1 if is_regression else 2, is_regression=is_regression),
            {},
        )

    def parse(self, text: str) -> np.ndarray:
        if not text.strip():
            raise ErrorDetail("the line is empty")
        return np.array([ord(letter) for letter in text])

    def input_symbols(self, tokens: Sequence[int]) -> list[str]:
        return [chr(token) for token in tokens]

    def pieces(self, text: str) -> list[Piece]:
        return [Piece(index, index + 1) for index, letter in enumerate(text) if letter.strip()]


class Words(Letters):
    """Task in which every word is a token."""

    def pieces(self, text: str) -> list[Piece]:
        return SequenceClassificationTask.pieces(self, text)


class WordSum(Model):
    """Model that sums the known values of the words `good` and `bad` and ignores the rest."""

    def __init__(self, is_regression: bool = False) -> None:
        super().__init__(Letters(is_regression).task_type)
        self.head: Head = (RegressionHead if is_regression else ClassHead)(1, 1 if is_regression else 2)
        self.is_regression = is_regression
        self.batches: list[int] = []

    def forward(self, **inputs: Tensor | None) -> Tensor:
        tokens, attention_mask = inputs["tokens"], inputs["mask"]
        assert tokens is not None
        self.batches.append(len(tokens))
        scores = []
        for number, row in enumerate(tokens):
            kept = row if attention_mask is None else row[attention_mask[number]]
            text = "".join(map(chr, kept.tolist()))
            scores.append(sum(worth for word, worth in GOOD.items() if word in text))
        worth = torch.tensor(scores)[:, None]
        return worth if self.is_regression else torch.cat([torch.zeros_like(worth), worth], 1)


def test_the_one_word_that_matters() -> None:
    task, model = Letters(), WordSum()
    effects = word_effects(model, task, "a  really good\tbook, again")
    assert [effect.word for effect in effects] == ["a", "really", "good", "book,", "again"]
    fall = np.log(torch.sigmoid(torch.tensor(2.0)).item()) - np.log(0.5)
    assert [effect.effect for effect in effects] == pytest.approx([0, 0, fall, 0, 0], abs=1e-6)
    assert model.batches == [6]


def test_the_effect_on_the_probability() -> None:
    effects = word_effects(WordSum(), Letters(), "so good")
    probability = torch.sigmoid(torch.tensor(2.0)).item()
    assert [effect.probability_effect for effect in effects] == pytest.approx(
        [0, probability - 0.5], abs=1e-6
    )
    numbers = word_effects(WordSum(is_regression=True), Letters(is_regression=True), "so good")
    assert [effect.probability_effect for effect in numbers] == [None, None]


def test_a_single_word_is_not_split_into_letters_by_a_word_model() -> None:
    (alone,) = word_effects(WordSum(), Words(), "good")
    assert (alone.word, alone.effect, alone.probability_effect) == ("good", None, None)


def test_a_word_against_the_decision_has_a_negative_effect() -> None:
    by_word = {effect.word: effect.effect for effect in word_effects(WordSum(), Letters(), "good but bad")}
    # Together they sum to -1: the first class is predicted, and "bad" supports it.
    assert by_word["bad"] > 0.5 and by_word["good"] < -0.2 and by_word["but"] == pytest.approx(0)


def test_no_space_is_left_where_the_last_word_was() -> None:
    read: list[str] = []

    class Listening(Letters):
        def parse(self, text: str) -> np.ndarray:
            read.append(text)
            return super().parse(text)

    word_effects(WordSum(), Listening(), "a good  book")
    assert read[1:] == ["good  book", "a book", "a good"]


def test_a_number_changes_by_what_the_word_is_worth() -> None:
    effects = word_effects(WordSum(is_regression=True), Letters(is_regression=True), "fine and bad")
    assert [effect.effect for effect in effects] == pytest.approx([1, 0, -3])


def test_a_text_without_spaces_falls_apart_into_its_characters() -> None:
    effects = word_effects(WordSum(is_regression=True), Letters(is_regression=True), "xbady")
    assert [effect.word for effect in effects] == list("xbady")
    assert [effect.effect for effect in effects] == pytest.approx([0, -3, -3, -3, 0])
    (alone,) = word_effects(WordSum(), Letters(), "x")
    assert (alone.word, alone.effect) == ("x", None)


def test_long_texts_are_read_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "so good so fine so bad so so"
    whole = word_effects(WordSum(), Letters(), text)
    monkeypatch.setattr(attribution, "TOKENS_PER_BATCH", 3 * len(text))
    model = WordSum()
    assert word_effects(model, Letters(), text) == whole
    assert model.batches == [3, 3, 3]


class Truncating(Letters):
    """Task that truncates a text to its first letters."""

    def __init__(self, length: int, is_regression: bool = False) -> None:
        super().__init__(is_regression)
        self.task_type = replace(self.task_type, max_length=length)

    def parse(self, text: str) -> np.ndarray:
        return super().parse(text)[: self.task_type.max_length]


def test_words_beyond_the_maximum_length_have_no_effect() -> None:
    text = "so good so well bad fine"
    effects = word_effects(WordSum(is_regression=True), Truncating(12, is_regression=True), text)
    assert [effect.is_read for effect in effects] == [True, True, True, True, False, False]
    assert [effect.effect for effect in effects] == pytest.approx([0, 2, 0, 0, None, None])
    # If "so so " were removed before truncation, "bad" would move into view.
    effects = word_effects(
        WordSum(is_regression=True), Truncating(14, is_regression=True), "so so so good bad"
    )
    assert [effect.effect for effect in effects] == pytest.approx([0, 0, 0, 2, None])


@pytest.mark.parametrize("length", range(1, 26))
def test_truncation_at_every_length(length: int) -> None:
    text = "so good so  well bad fine"
    effects = word_effects(WordSum(is_regression=True), Truncating(length, is_regression=True), text)
    starts = [0, 3, 8, 12, 17, 21]
    assert [effect.is_read for effect in effects] == [start < length for start in starts]
    worth = {"good": 2.0 if length >= 7 else 0.0, "bad": -3.0 if length >= 20 else 0.0}
    if length > 2:  # a shorter text is empty without its only word
        known = {effect.word: effect.effect for effect in effects if effect.is_read}
        for word in worth.keys() & known.keys():
            assert known[word] == pytest.approx(worth[word])


def test_characters_beyond_the_maximum_length() -> None:
    effects = word_effects(WordSum(is_regression=True), Truncating(4, is_regression=True), "xbadbad")
    assert [effect.is_read for effect in effects] == [True] * 4 + [False] * 3
    assert [effect.effect for effect in effects[:4]] == pytest.approx([0, -3, -3, -3])


def test_outputs_are_log_probabilities() -> None:
    task = Letters()
    log_probabilities = outputs(WordSum(), task, [task.parse("good"), task.parse("nothing here")])
    assert log_probabilities.exp().sum(1).tolist() == pytest.approx([1, 1])
    assert log_probabilities[1].exp().tolist() == pytest.approx([0.5, 0.5])
