"""Words of the rest of a text: never from another text, never a word of the piece."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from glassformer.blocks.heads import IGNORED
from glassformer.core.errors import UserError
from glassformer.data.token_rows import RaggedRows, Windows
from glassformer.data.tokenizers import BEGIN, END, RESERVED
from glassformer.runs.experiment import resolve
from glassformer.tasks.rest_of_text import RestOfTextTask


def build(folder: Path, lines: list[str], **options: object) -> RestOfTextTask:
    for name in ("train", "validation"):
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    data = {split: str(folder / f"{split}.txt") for split in ("train", "validation")}
    file = folder / "task.yaml"
    file.write_text("task: {kind: rest-of-text}\n", encoding="utf-8")
    task = resolve(str(file), {"task": {"data": data, "max_length": 6, **options}}).task.build(0)
    assert isinstance(task, RestOfTextTask)
    return task


def test_a_target_occurs_elsewhere_in_the_same_text(tmp_path: Path) -> None:
    lines = [" ".join(f"t{text}w{word % 11}" for word in range(19)) for text in range(7)]
    task = build(tmp_path, lines, predicted_fraction=1.0)
    count = len(task.splits["train"])
    asked = set()
    for epoch in range(20):
        batch = task.batch("train", np.arange(count), epoch)
        tokens_BL, targets_BL = batch.inputs["tokens"], batch.targets
        assert tokens_BL is not None and tokens_BL.shape[1] <= 6
        for row, targets in zip(tokens_BL.tolist(), targets_BL.tolist(), strict=True):
            shown = [token for token in row if token >= len(RESERVED)]
            wanted = [token for token in targets if token != IGNORED]
            assert row[0] == BEGIN and END not in row and not set(shown) & set(wanted)
            texts = {symbol.strip("▁").split("w")[0] for symbol in task.input_symbols(shown + wanted)}
            assert len(texts) <= 1
            asked |= set(wanted)
    assert asked == set(range(len(RESERVED), len(task.tokenizer)))


def test_draws_follow_from_the_epoch_and_the_number_alone(tmp_path: Path) -> None:
    task = build(
        tmp_path, [" ".join(f"w{(7 * word + text) % 40}" for word in range(30)) for text in range(4)]
    )
    both, alone = task.batch("train", np.array([5, 2]), 3), task.batch("train", np.array([2]), 3)
    assert both.targets[1, : alone.targets.shape[1]].tolist() == alone.targets[0].tolist()
    epochs = [task.batch("train", np.arange(8), epoch).targets.tolist() for epoch in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]


def test_frequent_words_are_asked_for_less_than_their_share(tmp_path: Path) -> None:
    rare = [f"w{word}" for word in range(60)]
    lines = [" ".join(word for pair in zip(["the"] * 60, rare, strict=True) for word in pair)] * 3
    task = build(tmp_path, lines, predicted_fraction=1.0, frequency_threshold=1 / 120)
    (the,) = task.tokenizer.encode("the")
    rows = [task._targets(np.array([BEGIN]), np.concatenate([task.tokenizer.encode(lines[0])]), draws)
            for draws in np.random.default_rng(0).random((4000, 1, 2))]  # fmt: skip
    # One word is 60 times as frequent as each other word, and is sampled √60 times as often.
    assert np.mean(np.array(rows) == the) == pytest.approx(60**0.5 / (60**0.5 + 60), abs=0.02)


def test_a_text_of_one_piece_asks_for_nothing(tmp_path: Path) -> None:
    task = build(tmp_path, ["a b c", *(" ".join("defghijklmnop"[i : i + 9]) for i in range(4))])
    first = task.batch("train", np.array([0]), 0)
    assert first.target_count() == 0


def test_a_running_text_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="one text"):
        build(tmp_path, ["a b c"], data={"train": str(tmp_path / "train.txt"), "format": "running-text"})


def test_outside_a_window_is_the_rest_of_its_document() -> None:
    rows = RaggedRows.of([np.arange(1, 8), np.arange(20, 23), np.arange(30, 41)])
    for within in (True, False):
        windows = Windows(rows, 3, within_documents=within)
        for number in range(len(windows)):
            own, others = windows[number], windows.outside(number)
            document = next(row for row in rows if own[0] in row) if within else np.concatenate(list(rows))
            assert sorted([*own, *others]) == document.tolist()
