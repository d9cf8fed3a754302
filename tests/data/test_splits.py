"""Splits: equal texts are found in partitions, with the same result as in memory."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glassformer.core.errors import UserError
from glassformer.data import splits
from glassformer.data.splits import (
    RowKeys,
    copy_from_first,
    first_rows,
    is_contained,
    rare_labels,
    split_off,
    split_off_rows,
    uneven_split,
)

quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
TEXTS = st.lists(st.integers(0, 40).map(str), min_size=1, max_size=200)


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small limits, so that few texts need many blocks and many partitions on disk."""
    monkeypatch.setattr(splits, "KEYS_PER_BLOCK", 7)
    monkeypatch.setattr(splits, "KEYS_IN_MEMORY", 11)


def firsts(texts: Iterable[str]) -> list[bool]:
    seen: set[str] = set()
    return [not (text in seen or seen.add(text)) for text in texts]  # type: ignore[func-returns-value]


@quick
@given(TEXTS)
def test_first_rows(tmp_path: Path, texts: list[str]) -> None:
    assert first_rows(RowKeys(texts, tmp_path)).tolist() == firsts(texts)


@quick
@given(TEXTS)
def test_a_value_is_that_of_the_first_equal_row(tmp_path: Path, texts: list[str]) -> None:
    values = np.arange(len(texts))
    copy_from_first(values, RowKeys(texts, tmp_path))
    assert values.tolist() == [texts.index(text) for text in texts]


@quick
@given(st.lists(st.integers(0, 400).map(str), max_size=100), TEXTS, st.integers(0, 9))
def test_texts_contained_in_another_file(tmp_path: Path, few: list[str], many: list[str], seed: int) -> None:
    few_keys, many_keys = RowKeys(few, tmp_path), RowKeys(many, tmp_path)
    assert is_contained(few_keys, many_keys).tolist() == [text in many for text in few]
    is_meant = np.random.default_rng(seed).random(len(many)) < 0.5
    meant = {text for text, is_one in zip(many, is_meant, strict=True) if is_one}
    assert is_contained(few_keys, many_keys, is_meant).tolist() == [text in meant for text in few]


@quick
@given(TEXTS, st.floats(0.01, 0.99), st.floats(0.01, 0.3) | st.none(), st.integers(0, 3))
def test_the_same_parts_are_split_off(
    tmp_path: Path, texts: list[str], fraction: float, test_fraction: float | None, seed: int
) -> None:
    """Recorded results depend on which examples are in which split."""
    fractions = {"validation": fraction} | ({} if test_fraction is None else {"test": test_fraction})
    keys = RowKeys(texts, tmp_path)
    if len(set(texts)) <= len(fractions):
        with pytest.raises(UserError, match="cannot be split"):
            split_off_rows(keys, fractions, seed, "here")
        return
    for classes in (None, np.array([int(text) % 3 for text in texts])):
        expected = split_off(texts, fractions, seed, "here", classes)
        found = split_off_rows(keys, fractions, seed, "here", classes)
        assert {split: np.flatnonzero(part).tolist() for split, part in found.items()} == {
            split: rows.tolist() for split, rows in expected.items()
        }


@quick
@given(st.lists(st.integers(0, 4), min_size=20, max_size=200), st.floats(0.05, 0.4), st.integers(0, 3))
def test_each_split_has_its_share_of_every_class(labels: list[int], fraction: float, seed: int) -> None:
    classes = np.array(labels)
    parts = split_off(range(len(labels)), {"validation": fraction, "test": 0.2}, seed, "here", classes)
    without_classes = split_off(range(len(labels)), {"validation": fraction, "test": 0.2}, seed, "here")
    assert {split: len(rows) for split, rows in parts.items()} == {
        split: len(rows) for split, rows in without_classes.items()
    }
    taken, total = classes[parts["validation"]], np.bincount(classes)
    is_drawable = total > 1
    share = len(taken) / total[is_drawable].sum()
    assert (np.abs(np.bincount(taken, minlength=len(total)) - share * total)[is_drawable] <= 1).all()
    assert set(classes[parts["train"]]) >= set(np.flatnonzero(total == 1))
    again = split_off(range(len(labels)), {"validation": fraction, "test": 0.2}, seed, "here", classes)
    assert all((again[split] == rows).all() for split, rows in parts.items())


def test_labels_with_few_examples_are_listed() -> None:
    assert not rare_labels("validation", {"a": 5, "b": 9})
    [warning] = rare_labels("test", {"a": 4, "b": 9, "c": 0})
    assert warning == (
        "WARNING: test: 2 of 3 labels have fewer than 5 examples, so that metrics are uncertain for them:"
        " 'c': 0, 'a': 4"
    )


def test_any_text_has_a_key_and_no_file_is_left(tmp_path: Path) -> None:
    texts = ["", "\udc80", "a\x00b", *map(str, range(100))]
    assert first_rows(RowKeys(texts, tmp_path)).all() and not list(tmp_path.iterdir())


def test_a_split_far_from_its_fraction_has_a_reason() -> None:
    assert uneven_split(81, 800, 0.1) == ""
    assert "equal inputs stay in one split" in uneven_split(400, 800, 0.1)
