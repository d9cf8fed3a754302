"""BLEU, chrF and TER equal those of sacreBLEU's command line, and handle empty and odd texts."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest

from glassformer.evaluation.text_scores import bleu, one_line, score_corpus, sentence_table

WORDS = [
    "the",
    "a",
    "cat",
    "l'été",
    "œuvre",
    "12.5",
    "don't",
    "(so)",
    "—",
    "«",
    "»",
    "日本",
    "sees,",
    "\u2028",
    "co-op.",
]


def corpus(sentences: int, seed: int = 0) -> tuple[list[str], list[str]]:
    """References, and hypotheses that keep, change, move and lose words."""
    draw = random.Random(seed)
    references = [
        " ".join(draw.choice(WORDS) for _ in range(draw.randint(1, 14))) + "." for _ in range(sentences)
    ]
    hypotheses = []
    for reference in references:
        words = [word if draw.random() < 0.8 else draw.choice(WORDS) for word in reference.split(" ")]
        turn = draw.randrange(len(words)) if draw.random() < 0.3 else 0
        hypotheses.append(" ".join([*words[turn:], *words[:turn]][: draw.randint(1, 16)]))
    hypotheses[3], hypotheses[5], references[8] = "", "two\nlines\r\nhere", ""
    return hypotheses, references


def test_equal_to_the_command_line(tmp_path: Path) -> None:
    hypotheses, references = corpus(120)
    (tmp_path / "hyp").write_bytes("".join(f"{one_line(line)}\n" for line in hypotheses).encode())
    (tmp_path / "ref").write_bytes("".join(f"{line}\n" for line in references).encode())
    options = ["-i", "hyp", "-m", "bleu", "chrf", "ter", "-w", "4", "--confidence"]
    command = [sys.executable, "-m", "sacrebleu", "ref", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    theirs = json.loads(done.stdout)
    ours = score_corpus(hypotheses, references)
    assert [score["name"] for score in theirs] == ["BLEU", "chrF2", "TER"]
    for their, our in zip(theirs, ours.by_name().values(), strict=True):
        assert 5 < our.value < 95
        assert their["score"] == round(our.value, 4)
        assert f"{their['name']}|{their['signature']}" == our.signature
        assert "bs:1000|seed:12345" in our.signature
        # sacreBLEU prints half the width of the same interval.
        low, high = our.interval
        assert low < our.value < high
        assert (high - low) / 2 == pytest.approx(their["confidence_var"], abs=2e-4)
    assert bleu(hypotheses, references) == ours.bleu.value
    scores_only = subprocess.run(
        [*command[:-1], "-b", "-f", "text"], cwd=tmp_path, capture_output=True, check=True, text=True
    )
    assert scores_only.stdout.split() == [f"{score.value:.4f}" for score in ours.by_name().values()]


@pytest.mark.parametrize(
    ("hypotheses", "references", "expected"),
    [
        (["a small cat sleeps here"], ["a small cat sleeps here"], (100, 100, 0)),
        (["", ""], ["a cat", "a dog"], (0, 0, 100)),
        (["", ""], ["", ""], (0, 0, 0)),
        (["a cat"], [""], (0, 0, 100)),
        ([" \n\t"], ["a"], (0, 0, 100)),
    ],
)
def test_empty_and_odd_texts(
    hypotheses: list[str], references: list[str], expected: tuple[float, float, float]
) -> None:
    scores = list(score_corpus(hypotheses, references).by_name().values())
    assert [score.value for score in scores] == pytest.approx(expected)
    for score in scores:
        assert score.interval is None  # all resamples have the same score
    sentence_table(hypotheses, hypotheses, references)


def test_no_sentence_at_all() -> None:
    assert all(math.isnan(score.value) for score in score_corpus([], []).by_name().values())
    assert math.isnan(bleu([], []))
    assert sentence_table([], [], []) == {"best": [], "typical": [], "worst": []}
    with pytest.raises(ValueError, match="1 hypotheses for 2"):
        score_corpus(["a"], ["a", "b"])


def test_best_typical_and_worst_sentences() -> None:
    words = [f"word{number}" for number in range(10)]
    references = [" ".join(words)] * 11
    # Hypothesis 1 has no correct word, hypothesis 2 has one, …, hypothesis 11 has all ten.
    hypotheses = [" ".join([*words[:right], *["no"] * (10 - right)]) for right in range(11)]
    table = sentence_table([f"source {line}" for line in range(1, 12)], hypotheses, references, 3)
    numbers = {which: [sentence.number for sentence in found] for which, found in table.items()}
    assert numbers == {"best": [11, 10, 9], "typical": [7, 6, 5], "worst": [1, 2, 3]}
    best, worst = table["best"][0], table["worst"][0]
    assert (best.source, best.hypothesis) == ("source 11", references[0])
    assert (best.bleu, best.chrf) == pytest.approx((100, 100))
    assert worst.bleu == 0 and worst.reference == references[0]
    # With few sentences there are no repetitions.
    few = sentence_table(hypotheses[:4], hypotheses[:4], references[:4], 3)
    numbers = {which: [sentence.number for sentence in found] for which, found in few.items()}
    assert numbers == {"best": [4, 3, 2], "typical": [], "worst": [1]}


def test_of_equally_good_sentences_the_longer_is_shown() -> None:
    texts = ["Yes.", "The old man reads a long book.", "No, no."]
    assert [sentence.number for sentence in sentence_table(texts, texts, texts, 1)["best"]] == [2]
