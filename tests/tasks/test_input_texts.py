"""Inputs as they are written in the data, with unknown pieces marked, for every task on texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassformer.core.config import validate
from glassformer.data.tokenizers import MASK, UNKNOWN, BPEConfig, CharactersConfig, WordsConfig
from glassformer.runs.experiment import ExperimentConfig
from glassformer.tasks.base import Task, evaluated_rows, mark_unknown

TRAIN = [f"the cat sat on mat {number % 3}" for number in range(30)]
OTHER = ["The cat  sat, déjà vu", "nothing known here", "the dog sat on mat 1", "cat"] * 3


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLASSFORMER_CACHE", str(tmp_path / "cache"))


def build(folder: Path, kind: str, **options: Any) -> Task:
    texts = {"train": TRAIN, "validation": OTHER}
    for split, lines in texts.items():
        targets = (["a", "b"] * len(lines))[: len(lines)]
        rows = lines if "language" in kind else list(map("\t".join, zip(lines, targets, strict=True)))
        (folder / f"{split}.tsv").write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    data: dict[str, Any] = {split: str(folder / f"{split}.tsv") for split in texts}
    data["format"] = "text" if "language" in kind else "tsv"
    if "language" not in kind:
        data |= {"columns": {"input": 0, "target": 1}, "header": False}
    tree = {"task": {"kind": kind, "data": data, **options}}
    return validate(ExperimentConfig, ExperimentConfig.fill_kinds(tree)).task.build(0)


@pytest.mark.parametrize("kind", ["classification", "translation"])
def test_a_pair_task_has_the_texts_of_its_file(tmp_path: Path, kind: str) -> None:
    task = build(tmp_path, kind, tokenizer={"kind": "words"}, max_length=8)
    assert task.input_texts("validation", [2, 0]) == [OTHER[2], OTHER[0]]


def test_tokens_are_those_of_the_file(tmp_path: Path) -> None:
    task = build(tmp_path, "tokens", target="label")
    (text,) = task.input_texts("validation", [1])
    assert text == "nothing known here"
    assert mark_unknown(task, "the dog sat") == [("the ", False), ("dog", True), (" sat", False)]
    row = task.splits["validation"].inputs[1]
    assert task.input_labels(row.tolist(), text) == ["‹nothing›", "‹known›", "‹here›"]


@pytest.mark.parametrize("kind", ["tokens", "classification"])
def test_texts_stay_with_their_rows_if_rows_are_left_out(tmp_path: Path, kind: str) -> None:
    train = [(text, "ab"[number % 2]) for number, text in enumerate(TRAIN)]
    rows = [("the cat", "new"), *train[:20]]
    for split, lines in (("train", train), ("validation", rows)):
        (tmp_path / f"{split}.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in lines))
    data = {"train": str(tmp_path / "train.tsv"), "validation": str(tmp_path / "validation.tsv")}
    data |= {"format": "tsv", "columns": {"input": 0, "target": 1}, "header": False}
    tree = {"task": {"kind": kind, "data": data} | ({"target": "label"} if kind == "tokens" else {})}
    task = validate(ExperimentConfig, ExperimentConfig.fill_kinds(tree)).task.build(0)
    assert task.input_texts("validation", [0, 19]) == [TRAIN[0], TRAIN[19]]


@pytest.mark.parametrize("tokenizer", ["words", "characters", "bpe", "bytes"])
@pytest.mark.parametrize("across", [True, False])
def test_windows_of_a_language_model_are_its_texts(tmp_path: Path, tokenizer: str, across: bool) -> None:
    options = {"tokenizer": {"kind": tokenizer}, "max_length": 7, "across_texts": across}
    task = build(tmp_path, "language-model", **options)
    for split, texts in (("train", TRAIN), ("validation", OTHER)):
        windows = task.splits[split].inputs
        shown = task.input_texts(split, range(len(windows)))
        assert all("⁇" not in text and "<unknown>" not in text for text in shown)
        whole = " ".join(texts)
        assert all(" ".join(text.split()) in " ".join(whole.split()) for text in shown)
        halves = [np.asarray(row)[:3] for row in windows]
        for half, text in zip(task.input_texts(split, range(len(windows)), halves), shown, strict=True):
            assert text.startswith(half)


def test_labels_of_a_text_that_is_cut(tmp_path: Path) -> None:
    task = build(tmp_path, "classification", tokenizer={"kind": "words"}, max_length=4)
    text = "the zebra sat near cat yaks"
    assert task.input_labels(task.parse(text).tolist(), text) == ["<begin>", "▁the", "‹zebra›", "▁sat"]
    assert task.input_labels(task.parse(text).tolist(), "other text") == [
        "<begin>",
        "▁the",
        "<unknown>",
        "▁sat",
    ]
    assert "<unknown>" in task.input_labels(task.parse(text).tolist())


def test_masked_tokens_are_shown_as_masks(tmp_path: Path) -> None:
    task = build(tmp_path, "masked-language-model", tokenizer={"kind": "words"}, max_length=12)
    row = np.array(task.splits["validation"].inputs[0])
    assert task.input_texts("validation", [0])[0].startswith("The cat  sat, déjà vu")
    rows = evaluated_rows(task, "validation", range(3))
    assert any((each == MASK).any() for each in rows)
    for each, text in zip(rows, task.input_texts("validation", range(3), rows), strict=True):
        assert text.count("<mask>") == (each == MASK).sum()
    row[2] = MASK
    text = task.input_texts("validation", [0], [row])[0]
    assert text.startswith("The <mask>  sat, déjà vu")
    labels = task.input_labels(row.tolist(), text)
    assert labels[1:3] == ["‹The›", "<mask>"] and "<unknown>" not in labels
    assert all(label.startswith("‹") for label, token in zip(labels, row, strict=True) if token == UNKNOWN)


@pytest.mark.parametrize(
    "config", [WordsConfig(), CharactersConfig(), BPEConfig(), WordsConfig(lowercase=True)]
)
def test_spans_are_the_tokens_of_a_text(config: Any) -> None:
    tokenizer = config.train(lambda: TRAIN)
    for text in [*OTHER, "  cat 😀é don't  日本 ", ""]:
        spans = tokenizer.spans(text)
        assert [token for token, _, _ in spans] == tokenizer.encode(text).tolist()
        assert all(0 <= start <= end <= len(text) for _, start, end in spans)
    words = {"the zebra sat"[start:end]: token for token, start, end in tokenizer.spans("the zebra sat")}
    if isinstance(config, WordsConfig):
        assert words["zebra"] == UNKNOWN and words["the"] != UNKNOWN and words["sat"] != UNKNOWN
