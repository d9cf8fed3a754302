"""Generated reviews: an independent form of the rule agrees with every label; a bag of words fails."""

from __future__ import annotations

import re
import time
from collections import Counter

import pytest

from glassformer.core.errors import UserError
from glassformer.datasets.reviews import review_texts, reviews

LIKED = {"good", "nice", "pleasant", "impressive", "satisfying", "appealing", "lovely", "remarkable"}
DISLIKED = {"bad", "poor", "unpleasant", "disappointing", "weak", "dull", "annoying", "unattractive"}
FELT = {"Wonderful": 3, "What": 3, "Well": 2, "Happily": 2, "Fair": 1, "Fine": 1} | {
    "Oh": -1, "Still": -1, "Sadly": -2, "Alas": -2, "Horrible": -3, "Shame": -3
}  # fmt: skip
THEN = dict.fromkeys(["Friends", "Five", "Tomorrow", "Smiling", "Thanks"], 1) | dict.fromkeys(
    ["Never", "One", "Angry", "Money", "Complaints"], -1
)


def clauses(sentence: str, *, contrast: bool) -> list[str]:
    """Split off the clauses that count."""
    if not contrast:
        return re.split(r", (?:but |although |even though )?", sentence)
    if sentence.startswith("Although "):
        return [sentence.split(", ", 1)[1]]
    if ", but " in sentence:
        return [sentence.split(", but ", 1)[1]]
    return [re.split(r", (?:although|even though) ", sentence)[0]]


def score(clause: str, *, negation: bool, intensity: bool) -> int:
    words = re.findall(r"\w+", clause.lower())
    side = sum((word in LIKED) - (word in DISLIKED) for word in words)
    denied = bool({"not", "hardly", "never", "nobody"} & set(words)) or "anything but" in clause
    if denied and negation:
        side = -side
    if not intensity:
        return side
    found = set(words)
    if denied:
        strong, weak = "at all" in clause or "anything but" in clause, bool({"very", "hardly"} & found)
    else:
        strong = bool({"very", "really", "extremely"} & found)
        weak = bool({"fairly", "rather", "somewhat"} & found)
    return side * (3 if strong else 1 if weak else 2)


def total(text: str, *, negation: bool = True, contrast: bool = True, intensity: bool = True) -> int:
    return sum(
        score(clause, negation=negation, intensity=intensity)
        for sentence in re.findall(r"[^.]+\.", text)
        for clause in clauses(sentence.strip(), contrast=contrast)
    )


@pytest.fixture(scope="module")
def train() -> list[tuple[str, str]]:
    return reviews(3_000, 1, "train")


def test_every_label_follows_from_the_rule(train: list[tuple[str, str]]) -> None:
    for text, label in train + reviews(1_000, 1, "validation") + reviews(1_000, 1, "test"):
        assert abs(total(text)) >= 2, text
        assert label == ("positive" if total(text) > 0 else "negative"), text


@pytest.mark.parametrize("ignored", ["negation", "contrast", "intensity"])
def test_negation_contrast_and_intensity_decide(ignored: str, train: list[tuple[str, str]]) -> None:
    """Ignoring one of them causes errors."""
    right = sum((total(text, **{ignored: False}) > 0) == (label == "positive") for text, label in train)
    assert right / len(train) < 0.95


def test_a_bag_of_words_does_not_solve_it(train: list[tuple[str, str]]) -> None:
    text_features = pytest.importorskip("sklearn.feature_extraction.text")
    linear_model = pytest.importorskip("sklearn.linear_model")
    test = reviews(1_000, 1, "test")
    vectorizer = text_features.CountVectorizer()
    model = linear_model.LogisticRegression(max_iter=500)
    model.fit(vectorizer.fit_transform([text for text, _ in train]), [label for _, label in train])
    accuracy = model.score(vectorizer.transform([text for text, _ in test]), [label for _, label in test])
    assert accuracy < 0.85


def test_labels_are_balanced_and_texts_have_several_sentences(train: list[tuple[str, str]]) -> None:
    labels = Counter(label for _, label in train)
    assert set(labels) == {"positive", "negative"}
    assert min(labels.values()) > 0.45 * len(train)
    for text, _ in train:
        assert 3 <= text.count(".") <= 9
        assert re.fullmatch(r"(?:[A-Z][^.]*\.(?: |$))+", text), text


def test_splits_share_no_text_for_any_seed(train: list[tuple[str, str]]) -> None:
    texts = {split: {text for text, _ in reviews(1_000, 2, split)} for split in ("validation", "test")}
    texts["train"] = {text for text, _ in train}
    assert len(texts["train"]) == 3_000
    assert not texts["train"] & texts["test"]
    assert not texts["train"] & texts["validation"]
    assert not texts["validation"] & texts["test"]
    # Text for pre-training contains no held-out review, with or without its last sentence.
    unlabelled = "\n".join(review_texts(3_000, 1))
    assert not any(text in unlabelled for text in list(texts["test"] | texts["validation"])[:500])


def test_unlabelled_text_reveals_the_opinion_by_first_words() -> None:
    """The first word of a reaction or consequence fits the weight of the preceding opinion or review."""
    felt = followed = 0
    for text in review_texts(1_000, 3):
        plain: list[str] = []
        for sentence in re.findall(r"[^.!]+[.!]", text):
            first = re.findall(r"\w+", sentence)[0]
            if first in FELT:
                felt += 1
                assert FELT[first] == total(plain[-1]), text
            elif first in THEN:
                followed += 1
                assert (THEN[first] > 0) == (total("".join(plain)) > 0), text
                assert text.endswith(sentence)
            else:
                plain.append(sentence)
    assert 500 < followed < 900
    assert 700 < felt < 2_000


def test_they_are_functions_of_their_arguments() -> None:
    assert reviews(20, 3, "train") == reviews(50, 3, "train")[:20]
    assert review_texts(20, 3) == review_texts(50, 3)[:20]
    assert reviews(20, 3, "train") != reviews(20, 4, "train")
    assert review_texts(20, 3) != review_texts(20, 4)
    assert reviews(0, 3, "test") == []


def test_an_unknown_split_is_rejected() -> None:
    with pytest.raises(UserError, match="no such split"):
        reviews(1, 0, "dev")


def test_it_is_fast() -> None:
    start = time.process_time()
    reviews(5_000, 9, "train")
    assert time.process_time() - start < 1.5
