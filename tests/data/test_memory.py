"""Data in memory: columns that do not belong together, and values that may be of another type."""

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


def test_an_array_of_one_text_is_not_a_list_of_characters() -> None:
    with pytest.raises(UserError, match="not a list"):
        plain_list(np.array("text"), "inputs")
