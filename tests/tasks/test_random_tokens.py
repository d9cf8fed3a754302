"""Random tokens: correct labels, disjoint splits, and a learnable rule."""

from __future__ import annotations

import numpy as np
import pytest

from glassformer.core.errors import ErrorDetail
from glassformer.data.batching import Examples
from glassformer.models.task_types import CausalLM, SequenceClassification
from glassformer.runs.experiment import Experiment, resolve
from glassformer.tasks.random_tokens import MajorityTask, RandomTokensConfig, RepetitionTask

SIZES = {"train_examples": 500, "validation_examples": 40, "test_examples": 60}


def rows_of(examples: Examples) -> list[tuple[int, ...]]:
    return [tuple(map(int, row)) for row in examples.inputs]


@pytest.mark.parametrize("target", ["class", "next"])
def test_splits_have_their_size_and_share_nothing(target: str) -> None:
    config = RandomTokensConfig.model_validate({"target": target, **SIZES})
    task = config.build(seed=0)
    rows = {split: rows_of(examples) for split, examples in task.splits.items()}
    assert {split: len(part) for split, part in rows.items()} == {"train": 500, "validation": 40, "test": 60}
    assert len(set().union(*rows.values())) == 600
    assert task.checksum() == config.build(seed=1).checksum(), "a run's seed does not change the data"


def test_the_class_is_where_most_tokens_are() -> None:
    task = RandomTokensConfig.model_validate(
        {"target": "class", "length": 7, "categories": 10, **SIZES}
    ).build(0)
    assert isinstance(task, MajorityTask) and task.task_type == SequenceClassification(10, 7, outputs=2)
    examples = task.splits["train"]
    for row, label in zip(examples.inputs, examples.targets, strict=True):
        assert label == (sum(token >= 5 for token in row) >= 4)
    assert 0.4 < np.mean(examples.targets) < 0.6
    assert task.output_symbols(task.solve([9, 9, 0])) == ["high"]
    assert task.output_symbols(task.solve([9, 0])) == ["low"]


@pytest.mark.parametrize("length", [8, 9])
def test_the_second_half_repeats_the_first(length: int) -> None:
    config = RandomTokensConfig.model_validate(
        {"target": "next", "length": length, "categories": 10, **SIZES}
    )
    task = config.build(0)
    assert isinstance(task, RepetitionTask) and task.task_type == CausalLM(10, length)
    period = (length + 1) // 2
    for row in task.splits["train"].inputs:
        assert len(row) == length
        assert list(row[period:]) == list(row[: length - period])
    row = task.splits["test"].inputs[0].tolist()
    assert task.solve(row[: period + 1]) == row[period + 1 :]
    assert task.solve(row[: period - 1]) is None
    batch = task.batch("test", np.arange(3))
    tokens = batch.inputs["tokens"]
    assert tokens is not None and tokens.shape == batch.targets.shape == (3, length - 1)


def test_typed_input_is_parsed_or_rejected() -> None:
    task = RandomTokensConfig.model_validate(
        {"target": "next", "length": 4, "categories": 10, **SIZES}
    ).build(0)
    assert task.parse("3 1 4").tolist() == [3, 1, 4]
    assert task.output_symbols([1]) == ["1"]
    for line in ("", "3 11", "1 2 3 4 5", "1 2 3 4"):
        with pytest.raises(ErrorDetail):
            task.parse(line)


def test_a_language_model_continues_up_to_its_length() -> None:
    config = resolve(
        "counting-language-model", {"model.num_layers": 1, "model.hidden_dim": 8, "task.length": 10}
    )
    experiment = Experiment(config)
    model = experiment.build_model().eval()
    rows = [np.array([1, 2, 3]), np.array([4, 5, 6, 7, 8])]
    together = experiment.task.predict(model, rows)
    assert [len(outputs[0].tokens) for outputs in together] == [7, 5]
    for row, outputs in zip(rows, together, strict=True):
        (alone,) = experiment.task.predict(model, [row])
        assert alone[0].tokens == outputs[0].tokens
