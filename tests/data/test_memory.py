"""Data in memory: columns that do not belong together, and values that may be of another type."""

from decimal import Decimal
from typing import Any

import numpy as np
import pandas
import polars
import pytest

from glassformer.core.errors import UserError
from glassformer.data.memory import MemoryRows, plain_list

LABELS = ["pos", "neg"] * 5
TABLE = {"title": [f"title {n}" for n in range(10)], "body": [f"body {n}" for n in range(10)], "y": LABELS}


@pytest.mark.parametrize("library", [pandas, polars])
def test_a_column_that_equals_the_targets_is_refused(library: Any) -> None:
    table = library.DataFrame(TABLE)
    with pytest.raises(UserError, match="the column 'y' equals the targets") as error:
        MemoryRows("", table, table["y"])
    assert "inputs=df[['title', 'body']]" in str(error.value)
    assert not MemoryRows("", table[["title", "body"]], table["y"]).warnings


def test_a_column_that_determines_the_targets_is_a_warning() -> None:
    table = pandas.DataFrame(TABLE)
    [warning] = MemoryRows("", table, [1 if label == "pos" else 0 for label in LABELS]).warnings
    assert "the column 'y' determines the targets one to one" in warning


def test_columns_with_indexes_in_different_orders_are_refused() -> None:
    table = pandas.DataFrame(TABLE)
    shuffled = table.sample(frac=1, random_state=0)
    with pytest.raises(UserError, match="same index in different orders"):
        MemoryRows("", table["title"], shuffled["y"])
    assert not MemoryRows("", shuffled["title"], shuffled["y"]).warnings
    assert not MemoryRows("", table["title"], shuffled["y"].to_list()).warnings
    [warning] = MemoryRows("validation", table["title"][5:], table["y"][:5]).warnings
    assert "validation.inputs and validation.targets have different indexes" in warning


def test_whole_floats_may_be_labels() -> None:
    texts = [f"text {n}" for n in range(10)]
    [warning] = MemoryRows("", texts, [0.0, 1.0] * 5).type_warnings("regression")
    assert "whole floats with only 2 distinct values" in warning and 'task="classification"' in warning
    [warning] = MemoryRows("", [[1, 2]] * 10, [0.0, 1.0] * 5).type_warnings("sequence-regression")
    assert 'task="sequence-classification"' in warning
    assert not MemoryRows("", texts, [0.5, 1.0] * 5).type_warnings("regression")
    assert not MemoryRows("", texts, [float(n) for n in range(10)]).type_warnings("regression")


def test_swapped_inputs_and_targets_are_named() -> None:
    numbers, texts, tokens = [0, 1] * 10, [f"text {n}" for n in range(20)], [[n, 1] for n in range(20)]
    for inputs, targets in ((numbers, texts), (["a", "b"] * 10, tokens)):
        with pytest.raises(UserError, match="inputs and targets may be swapped"):
            MemoryRows("", inputs, targets)
    with pytest.raises(UserError, match="2 distinct values and the targets 20"):
        MemoryRows("", ["a", "b"] * 10, texts).reject_swapped()
    MemoryRows("", texts, texts).reject_swapped()


def test_targets_that_may_mean_labels_have_a_warning() -> None:
    tokens = [[n % 5, n % 3, 1] for n in range(12)]
    [warning] = MemoryRows("", tokens, np.eye(4, dtype=int)[[0, 1, 3] * 4]).type_warnings("x")
    assert "look one-hot" in warning and "targets.argmax(1)" in warning
    [warning] = MemoryRows("", tokens, [[n % 2] for n in range(12)]).type_warnings("x")
    assert "targets.ravel()" in warning
    assert not MemoryRows("", tokens, [[0, 1, 1, n % 2] for n in range(12)]).type_warnings("x")
    texts, tags = ["the dog runs", "a cat sleeps"] * 6, ["DET NOUN VERB"] * 12
    [warning] = MemoryRows("", texts, tags).type_warnings("classification")
    assert "if they are labels of the words" in warning
    for labels in (["very good", "bad"] * 6, ["one", "two"] * 6):
        assert not MemoryRows("", texts, labels).type_warnings("classification")


def test_labels_per_token_that_may_be_a_sequence_have_a_note() -> None:
    tokens = np.random.default_rng(0).integers(0, 4, (20, 5))
    [note] = MemoryRows("", tokens, tokens[:, ::-1]).hints("token-classification")
    assert 'task="sequence-to-sequence"' in note
    assert not MemoryRows("", tokens, tokens % 2).hints("token-classification")
    assert not MemoryRows("", tokens, tokens[:, ::-1]).hints("sequence-to-sequence")


def test_equal_inputs_with_different_labels_are_counted() -> None:
    rows = MemoryRows("", ["a", "b", "c", "a", "b"], [0, 1, 1, 1, 1])
    assert rows.contradictions() == ["inputs: 2 of 5 rows have the input of a row with another label"]
    assert not MemoryRows("", ["a", "b", "a"], [0, 1, 0]).contradictions()


@pytest.mark.parametrize(
    ("inputs", "targets", "hint"),
    [
        (np.ones((3, 2)), [0, 1, 0], ".astype(int)"),
        ([[1, 2]] * 3, [[0.5, 1.5]] * 3, "one run per value"),
        ([b"a", b"b", b"c"], [0, 1, 0], ".decode()"),
        (["a", "b", "c"], [Decimal("1.5")] * 3, "float(value)"),
        (["a", "b", "c"], np.zeros((3, 1), dtype=int), "targets.ravel()"),
    ],
)
def test_values_of_another_type_have_a_conversion(inputs: Any, targets: Any, hint: str) -> None:
    with pytest.raises(UserError) as error:
        MemoryRows("", inputs, targets)
    assert hint in error.value.details[0].hint


def test_an_array_of_one_text_is_not_a_list_of_characters() -> None:
    with pytest.raises(UserError, match="not a list"):
        plain_list(np.array("text"), "inputs")
