"""Generated sequences: targets, splits, and typed input."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.core.errors import ErrorDetail, UserError
from glassformer.runs.experiment import Experiment, resolve
from glassformer.tasks.base import Task
from glassformer.tasks.sequences import (
    CopyConfig,
    PalindromeConfig,
    ReversalConfig,
    SequencesConfig,
    ShiftConfig,
    SortConfig,
    repeat_to,
    share,
)

SMALL = {"train_examples": 300, "validation_examples": 40, "test_examples": 60}
EXPECTED = {
    ReversalConfig: lambda row: row[::-1],
    CopyConfig: lambda row: row,
    SortConfig: sorted,
    ShiftConfig: lambda row: row[-1:] + row[:-1],
    PalindromeConfig: lambda row: int(row == row[::-1]),
}


def distinct(task: Task, split: str) -> set[bytes]:
    return {np.asarray(row).tobytes() for row in task.splits[split].inputs}


@pytest.mark.parametrize("kind", EXPECTED)
def test_targets_are_right(kind: type[SequencesConfig]) -> None:
    task = kind(length=9, categories=7, **SMALL).build(0)
    for examples in task.splits.values():
        for row, target in zip(examples.inputs.tolist(), examples.targets.tolist(), strict=True):
            assert target == EXPECTED[kind](row)


@pytest.mark.parametrize("kind", EXPECTED)
def test_the_task_solves_its_own_examples(kind: type[SequencesConfig]) -> None:
    task = kind(length=9, categories=7, **SMALL).build(0)
    examples = task.splits["test"]
    for row, target in zip(examples.inputs, examples.targets, strict=True):
        assert task.solve(row) == np.atleast_1d(target).tolist()


@pytest.mark.parametrize("kind", EXPECTED)
@pytest.mark.parametrize(("length", "categories"), [(4, 5), (5, 4), (9, 7), (40, 300)])
def test_splits_are_disjoint_and_as_large_as_asked(
    kind: type[SequencesConfig], length: int, categories: int
) -> None:
    config = kind(
        length=length, categories=categories, train_examples=90, validation_examples=10, test_examples=20
    )
    task = config.build(0)
    if not task.notes:
        assert {split: len(examples) for split, examples in task.splits.items()} == config.sizes()
        assert len(distinct(task, "train")) == 90
    assert len(task.splits["train"]) == 90
    train, validation, test = (distinct(task, split) for split in ("train", "validation", "test"))
    assert not train & validation and not train & test and not validation & test
    inputs = task.splits["train"].inputs
    assert inputs.dtype == (np.uint8 if categories <= 256 else np.uint16)
    assert inputs.max() == categories - 1


def test_published_sizes_are_the_default() -> None:
    config = ReversalConfig()
    assert (config.length, config.categories) == (100, 10)
    assert config.sizes() == {"train": 50_000, "validation": 1_000, "test": 10_000}
    assert ReversalConfig().build(0).drop_last


def test_the_data_follow_from_the_data_seed_alone() -> None:
    config = ReversalConfig(length=12, **SMALL)
    assert config.build(0).checksum() == config.build(7).checksum() == config.restore({}, 3).checksum()
    assert config.build(0).checksum() != ReversalConfig(length=12, data_seed=1, **SMALL).build(0).checksum()


def test_more_training_examples_leave_the_test_set_alone() -> None:
    few, many = (ReversalConfig(length=12, train_examples=n).build(0).splits for n in (100, 5_000))
    assert (few["test"].inputs == many["test"].inputs).all()
    assert (few["validation"].inputs == many["validation"].inputs).all()


def test_nothing_is_generated_before_it_is_asked_for() -> None:
    task = ReversalConfig(length=1_000_000, categories=1_000_000, train_examples=10**9).build(0)
    assert task.parse("3 1 4").tolist() == [3, 1, 4]
    assert "splits" not in vars(task)


def test_the_largest_published_size_is_quick() -> None:
    def seconds() -> float:
        start = time.process_time()
        assert len(ReversalConfig(length=1000, categories=20).build(0).splits["train"]) == 50_000
        return time.process_time() - start

    # Up to three times, because another process may slow down one measurement.
    assert any(seconds() < 2 for _ in range(3))


def test_a_tiny_space_is_shared_out() -> None:
    task = ReversalConfig(length=3, categories=3).build(0)
    sizes = {split: len(distinct(task, split)) for split in task.splits}
    assert sum(sizes.values()) == 27
    assert sizes == {"train": 22, "validation": 1, "test": 4}
    assert len(task.splits["train"]) == 50_000
    assert len(task.splits["validation"]) == 1
    (note,) = task.notes
    assert "only 27 sequences exist" in note and "train 22, validation 1, test 4" in note


def test_a_space_too_small_for_its_splits_is_rejected() -> None:
    with pytest.raises(UserError, match="only 2 different examples exist"):
        ReversalConfig(length=1, categories=2).build(0)
    task = ReversalConfig(length=1, categories=2, test_examples=0).build(0)
    assert set(task.splits) == {"train", "validation"}


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 500), st.dictionaries(st.sampled_from("abc"), st.integers(0, 300), min_size=1, max_size=3)
)
def test_shares_fill_the_space_and_no_more(size: int, wanted: dict[str, int]) -> None:
    asked = {split: count for split, count in wanted.items() if count}
    if size < len(asked):
        with pytest.raises(UserError):
            share(size, wanted)
        return
    counts = share(size, wanted)
    assert counts.keys() == asked.keys()
    assert all(count >= 1 for count in counts.values())
    assert sum(counts.values()) == min(size, sum(asked.values()))


def test_repetition_ends_where_asked() -> None:
    assert repeat_to(np.arange(3), 7).tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert repeat_to(np.arange(3), 2).tolist() == [0, 1, 2]


class TestPalindrome:
    @pytest.mark.parametrize("length", [4, 5, 12, 13])
    def test_classes_are_balanced_in_every_split(self, length: int) -> None:
        task = PalindromeConfig(length=length, categories=6, **SMALL).build(0)
        for examples in task.splits.values():
            assert examples.targets.mean() == 0.5

    @pytest.mark.parametrize("length", [4, 5, 12, 13])
    def test_counting_tokens_tells_nothing(self, length: int) -> None:
        """Each other sequence has exactly the tokens of its palindrome."""
        examples = PalindromeConfig(length=length, categories=6, **SMALL).build(0).splits["train"]
        palindromes = np.sort(examples.inputs[examples.targets == 1], axis=1)
        others = np.sort(examples.inputs[examples.targets == 0], axis=1)
        assert sorted(palindromes.tolist()) == sorted(others.tolist())

    def test_the_others_are_nearly_palindromes(self) -> None:
        examples = PalindromeConfig(length=13, categories=6, **SMALL).build(0).splits["train"]
        others = examples.inputs[examples.targets == 0]
        assert ((others != others[:, ::-1]).sum(axis=1) == 4).all()

    def test_no_position_reveals_the_label(self) -> None:
        examples = PalindromeConfig(length=8, categories=4).build(0).splits["train"]
        broken = (examples.inputs != examples.inputs[:, ::-1])[examples.targets == 0]
        assert np.allclose(broken.mean(axis=0), 0.5, atol=0.03)

    def test_every_usable_palindrome_of_a_tiny_space_is_used(self) -> None:
        task = PalindromeConfig(length=5, categories=3).build(0)
        palindromes = {
            row.tobytes()
            for examples in task.splits.values()
            for row in examples.inputs[examples.targets == 1]
        }
        assert len(palindromes) == (3**2 - 3) * 3 == 18
        assert "only 18 usable palindromes exist" in task.notes[0]

    def test_labels_have_names(self) -> None:
        task = PalindromeConfig(length=6, **SMALL).build(0)
        assert task.show_output(task.solve(task.parse("123321"))) == "palindrome"
        assert task.show_output(task.solve(task.parse("123312"))) == "no palindrome"


class TestTyping:
    task = ReversalConfig(length=6, categories=10, **SMALL).build(0)

    @pytest.mark.parametrize("text", ["3 1 4", "3,1,4", " 3, 1, 4 ", "314", "[3, 1, 4]", "(3 1 4)", "03 1 4"])
    def test_forms(self, text: str) -> None:
        assert self.task.parse(text).tolist() == [3, 1, 4]
        assert self.task.solve([3, 1, 4]) == [4, 1, 3]

    def test_two_digits_are_one_category_if_there_are_more_than_ten(self) -> None:
        task = ReversalConfig(length=6, categories=20, **SMALL).build(0)
        assert task.parse("12").tolist() == [12]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "the line is empty"),
            (" ,, ", "the line is empty"),
            ("3 x 4", "unknown symbol 'x' at position 1 (counted from 0): expected numbers from 0 to 9"),
            ("3 10", "unknown symbol '10' at position 1"),
            ("3 -1", "unknown symbol '-1'"),
            ("3 1.5", "unknown symbol '1.5'"),
            ("٣ 1", "unknown symbol '٣'"),
            ("1_0 1", "unknown symbol '1_0'"),
            ("9" * 5000 + " 1", "unknown symbol"),
            ("1234567", "too long: 7 tokens, and the model reads at most 6"),
        ],
    )
    def test_errors_are_one_clear_line(self, text: str, message: str) -> None:
        with pytest.raises(ErrorDetail) as caught:
            self.task.parse(text)
        assert message in caught.value.message
        assert "\n" not in caught.value.message and len(caught.value.message) < 160

    def test_every_example_can_be_typed(self) -> None:
        examples = self.task.splits["test"]
        for row in examples.inputs:
            assert self.task.parse(" ".join(self.task.input_symbols(row))).tolist() == row.tolist()


def test_another_length_than_in_training_is_a_warning() -> None:
    task = Experiment(resolve("reversal", {"task.length": 16})).task
    assert task.warning([1] * 16) is None
    assert "16" in (task.warning([1] * 5) or "")
