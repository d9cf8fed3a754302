"""Text classification and regression: selected examples, truncation, masking, and rejected data."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import glassformer.tasks  # noqa: F401  registers the kinds
from glassformer.core.config import validate
from glassformer.core.errors import ErrorDetail, UserError
from glassformer.data.batching import generator
from glassformer.data.tokenizers import BEGIN, MASK, RESERVED, UNKNOWN
from glassformer.evaluation.evaluate import EvaluationConfig, measure
from glassformer.models.base import Model
from glassformer.models.transformer import TransformerConfig
from glassformer.tasks.base import TaskConfig
from glassformer.tasks.classification import ClassificationTask

SMALL = TransformerConfig(num_layers=1, num_heads=2, hidden_dim=8, feed_forward_dim=8)

Rows = Sequence[tuple[str, object]]
ROWS: Rows = [(f"text number {number}", ["good", "bad", "so so"][number % 3]) for number in range(12)]
TEST: Rows = [("a new text", "good"), ("text number one", "bad"), ("text", "good")]

Make = Callable[..., ClassificationTask]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def write(name: str, rows: Rows) -> str:
        lines = [json.dumps({"text": text, "label": label}) + "\n" for text, label in rows]
        (tmp_path / name).write_text("".join(lines), encoding="utf-8")
        return str(tmp_path / name)

    def build(
        train: Rows = ROWS, test: Rows | None = TEST, data: dict[str, Any] | None = None, **options: Any
    ) -> ClassificationTask:
        files: dict[str, Any] = {"train": write("train.jsonl", train)}
        if test is not None:
            files |= {"validation": write("validation.jsonl", test), "test": write("test.jsonl", test)}
        tree = {"kind": "classification", "max_length": 8, **options, "data": {**files, **(data or {})}}
        task = validate(TaskConfig, tree).build(seed=0)
        assert isinstance(task, ClassificationTask)
        return task

    return build


def model_of(task: ClassificationTask) -> Model:
    torch.manual_seed(0)
    return SMALL.build(task.task_type).eval()


def texts_of(task: ClassificationTask, split: str = "train") -> list[str]:
    return [task.show_input(row.tolist()) for row in task.splits[split].inputs]


def labels_of(task: ClassificationTask, split: str = "train") -> list[str]:
    return task.output_symbols(np.asarray(task.splits[split].targets).tolist())


class TestLabels:
    def test_as_in_the_file(self, make: Make) -> None:
        task = make()
        assert task.labels.symbols == ["bad", "good", "so so"] and task.task_type.outputs == 3
        assert list(zip(texts_of(task), labels_of(task), strict=True)) == list(ROWS)
        assert all(row[0] == BEGIN for row in task.splits["train"].inputs)
        assert UNKNOWN in task.tokenizer.encode("new"), "a word that only test has"
        restored = task.config.restore(json.loads(json.dumps(task.state())))
        assert restored.task_type == task.task_type and restored.checksum() == task.checksum()

    def test_spaces_around_and_numbers_and_truths(self, make: Make) -> None:
        task = make(train=[("a", " yes "), ("b", "no"), ("c", "yes")], test=[("d", "yes")])
        assert task.labels.symbols == ["no", "yes"] and labels_of(task) == ["yes", "no", "yes"]
        assert make(train=[("a", 1), ("b", 0)], test=[("d", "1")]).labels.symbols == ["0", "1"]
        assert make(train=[("a", True), ("b", False)], test=[("d", True)]).labels.symbols == ["False", "True"]

    def test_a_label_that_only_test_has_is_not_a_class(self, make: Make) -> None:
        task = make(test=[*TEST, ("odd", "other")])
        assert task.labels.symbols == ["bad", "good", "so so"]
        assert len(task.splits["test"]) == len(TEST)
        (note,) = [note for note in task.notes if note.startswith("WARNING: test: left out")]
        assert "1 of 4 rows, 'other' (" in note and "test.jsonl, line 4)" in note
        restored = task.config.restore(json.loads(json.dumps(task.state())))
        assert restored.checksum() == task.checksum()

    def test_many_rows_with_labels_that_train_does_not_have_are_refused(self, make: Make) -> None:
        with pytest.raises(UserError) as error:
            make(test=[(label, text) for text, label in ROWS])
        assert "rows have labels that train does not have: 'text number" in str(error.value)
        assert "train has 'bad', 'good', 'so so'" in str(error.value)
        few = [("a text", "good")] * 500 + [("a text", "other")] * 5
        assert len(make(test=few).splits["test"]) == 500, "5 of 505 rows are at most 1 %"
        with pytest.raises(UserError, match="5 of 405 rows have labels"):
            make(test=few[100:])

    def test_a_label_that_occurs_once_is_in_train(self, make: Make) -> None:
        rows = [(f"text {n}", f"label {n}" if n > 150 else f"{n % 2}") for n in range(200)]
        task = make(train=rows, test=None)
        assert len(task.labels) == 51 and len(task.splits["validation"]) == 20

    def test_a_label_of_the_split_off_part_alone_is_not_a_class(self, make: Make) -> None:
        """Equal texts stay together, also if the label of the second one occurs nowhere else."""
        rows = [
            (f"text {n // 2}", f"label {n}" if n > 150 and n % 2 else f"{n // 2 % 2}") for n in range(200)
        ]
        task = make(train=rows, test=None)
        assert set(labels_of(task)) == set(task.labels.symbols)
        left_out = 25 - sum(symbol.startswith("label") for symbol in task.labels.symbols)
        assert left_out and len(task.splits["validation"]) == 20 - left_out
        assert any(note.startswith("WARNING: validation: left out") for note in task.notes)

    def test_metrics_are_named_by_label(self, make: Make) -> None:
        task = make()
        measured = measure(model_of(task), task, "test", EvaluationConfig())
        assert {"accuracy", "macro_f1", "loss"} <= measured.metrics.keys()
        assert measured.details["classes"] == ["bad", "good", "so so"]

    def test_what_is_not_read_of_a_typed_text_is_reported(self, make: Make) -> None:
        task = make()
        long, exact = "text number 1 text number 2 text number", "text number 1 text number 2 text"
        assert task.warning(task.parse(long).tolist(), long) == "only the first 7 of 8 tokens are read"
        assert task.warning(task.parse(exact).tolist(), exact) is None
        long = "xyzzy " + long
        message = task.warning(task.parse(long).tolist(), long)
        unknown = "1 of 7 tokens are unknown to the model: ‹xyzzy›"
        assert message == f"only the first 7 of 9 tokens are read; {unknown}"

    def test_the_output_is_a_label(self, make: Make) -> None:
        task = make()
        model = model_of(task)
        [[prediction]] = task.predict(model, [task.parse("text number 5")])
        assert task.show_output(prediction.tokens) in task.labels.symbols
        with pytest.raises(ErrorDetail, match="empty"):
            task.parse("  ")
        assert len(task.parse("text " * 50)) == 8, "longer than the model reads: its beginning"

    @pytest.mark.parametrize(
        ("rows", "message"),
        [
            ([("a", "x"), ("b", "")], "the label is empty"),
            ([("a", "x"), ("b", "  ")], "the label is empty"),
            ([("a", "x"), ("b", "y"), ("c", None)], "the target is null"),
            ([("a", "x"), ("b", "x")], "only one label, 'x'"),
            ([(f"text {i}", f"label {i}") for i in range(1001)], "more than 1,000 different labels"),
        ],
    )
    def test_what_is_rejected(self, make: Make, rows: Rows, message: str) -> None:
        with pytest.raises(UserError, match=message) as refusal:
            make(train=rows, test=rows[:1])
        assert "train.jsonl" in str(refusal.value) and "try:" in str(refusal.value)

    def test_a_label_that_was_not_there_when_it_was_trained(self, make: Make, tmp_path: Path) -> None:
        task = make()
        path = tmp_path / "test.jsonl"
        with open(path, "a", encoding="utf-8") as file:
            file.write('{"text": "x", "label": "goood"}\n')
        restored = task.config.restore(task.state())
        with pytest.raises(UserError, match="unknown label") as refusal:
            _ = restored.splits
        assert f"{path}, line 4" in str(refusal.value) and "did you mean 'good'?" in str(refusal.value)

    def test_values_other_than_text_are_rejected(self, make: Make) -> None:
        with pytest.raises(UserError, match="expected text"):
            make(train=[("a", "x"), (None, "y")])  # type: ignore[list-item]


class TestNumbers:
    ROWS: ClassVar[Rows] = [("a", 1.5), ("b", "-2"), ("c", 1e-3), ("d", 7)]

    def test_real_targets(self, make: Make) -> None:
        task = make(train=self.ROWS, test=self.ROWS[:2], target="number")
        assert task.task_type.is_regression and task.task_type.outputs == 1
        np.testing.assert_allclose(task.splits["train"].targets, [1.5, -2.0, 1e-3, 7.0])
        model = model_of(task)
        measured = measure(model, task, "test", EvaluationConfig())
        values = [prediction.value for [prediction] in task.predict(model, list(task.splits["test"].inputs))]
        error = np.abs(np.array(values) - [1.5, -2.0]).mean()
        assert measured.metrics["mean_absolute_error"] == pytest.approx(error, rel=1e-5)
        restored = task.config.restore(task.state())
        assert restored.task_type == task.task_type and restored.checksum() == task.checksum()

    def test_the_unit_of_the_targets_does_not_matter(self, make: Make) -> None:
        """Standardised targets: the same loss, and predictions that are scaled in the same way."""
        rows = [(text, float(value)) for text, value in self.ROWS]
        scaled: Rows = [(text, 1000 + 300 * value) for text, value in rows]
        found = []
        for given in (list(rows), scaled):
            task = make(train=given, test=given, target="number")
            model = model_of(task)
            values = task.predict(model, list(task.splits["test"].inputs))
            metrics = measure(model, task, "test", EvaluationConfig()).metrics
            found.append((metrics, np.array([best.value for [best] in values])))
        (small, values), (large, large_values) = found
        assert small["loss"] == pytest.approx(large["loss"], rel=1e-4)
        assert 300 * small["mean_absolute_error"] == pytest.approx(large["mean_absolute_error"], rel=1e-4)
        np.testing.assert_allclose(1000 + 300 * values, large_values, rtol=1e-5)

    def test_a_run_of_an_older_version_has_targets_as_they_are(self, make: Make) -> None:
        task = make(train=self.ROWS, test=self.ROWS, target="number")
        state = {name: value for name, value in task.state().items() if name != "targets"}
        old = task.config.restore(state)
        assert (old.task_type.target_mean, old.task_type.target_scale) == (0.0, 1.0)
        assert old.state() == state

    @pytest.mark.parametrize("value", ["good", "", None, True, "nan", "1e400", [1], "1,5", "1e300"])
    def test_what_is_no_number(self, make: Make, value: object) -> None:
        messages = {"1e400": "infinite", "1e300": r"too large \(at most 3.4e\+38\)"}
        message = messages.get(str(value), "not a number")
        with pytest.raises(UserError, match=message) as refusal:
            make(train=[*self.ROWS, ("e", value)], test=self.ROWS, target="number")
        assert "train.jsonl, line 5" in str(refusal.value)

    def test_labels_of_different_types_are_a_warning(self, make: Make) -> None:
        rows = [("a", 3), ("b", "3"), ("c", 4), ("d", "x")]
        task = make(train=rows, test=rows)
        assert task.labels.symbols == ["3", "4", "x"] and task.label_values == {"4": 4}
        warning = "WARNING: train: the labels have different types, such as 4 (int), 'x' (str)"
        assert warning in task.notes

    def test_equal_numbers_are_refused(self, make: Make) -> None:
        with pytest.raises(UserError, match=r"all 4 training targets are 0\.1: nothing to predict"):
            make(train=[(word, 0.1) for word in "abcd"], test=self.ROWS, target="number")

    def test_numbers_far_from_0_keep_their_digits(self, make: Make) -> None:
        """A float32 near 1.7e9 is a multiple of 128."""
        rows = [(word, 1.7e9 + 100 * number) for number, word in enumerate("abcd")]
        task = make(train=rows, test=rows, target="number")
        assert task.splits["train"].targets.tolist() == [target for _, target in rows]
        assert task.batch("train", np.arange(4)).targets.tolist() == [target for _, target in rows]
        model = model_of(task)
        values = [best.value for [best] in task.predict(model, list(task.splits["test"].inputs))]
        error = measure(model, task, "test", EvaluationConfig()).metrics["mean_absolute_error"]
        assert error == pytest.approx(np.mean([abs(v - t) for v, (_, t) in zip(values, rows, strict=True)]))
        assert len(set(values)) == 4 and task.output_symbols([1.7e9 + 0.25]) == ["1700000000.2"]


class TestWhichExamples:
    LOPSIDED: ClassVar[Rows] = [
        (f"text {i}", "rare" if i % 10 == 0 else "common" if i % 10 < 8 else "some") for i in range(100)
    ]

    def test_a_limit_is_even_over_the_labels(self, make: Make) -> None:
        for limit, counts in (
            (6, {"rare": 2, "common": 2, "some": 2}),
            (30, {"rare": 10, "common": 10, "some": 10}),
            (60, {"rare": 10, "common": 30, "some": 20}),
        ):
            task = make(train=self.LOPSIDED, test=self.LOPSIDED, train_limit=limit)
            assert Counter(labels_of(task)) == counts
            assert f"train: omitted by task.train_limit: {100 - limit} of 100" in task.notes
        whole = make(train=self.LOPSIDED, test=self.LOPSIDED, train_limit=1000)
        assert len(whole.splits["train"]) == 100

    def test_a_limit_keeps_every_label(self, make: Make) -> None:
        with pytest.raises(UserError, match="fewer examples than labels: train has 3 labels"):
            make(train=self.LOPSIDED, test=None, train_limit=2)

    @pytest.mark.parametrize("limit", [3, 9, 31, 60, 61, 99, 100, 500])
    def test_a_limit_takes_those_that_it_always_took(self, make: Make, limit: int) -> None:
        """Sort a fixed order by the number of preceding examples with the same label; take the first ones."""
        seen = Counter[object]()
        ranked = []
        for index in generator(0, "limit").permutation(len(self.LOPSIDED)).tolist():
            label = self.LOPSIDED[index][1]
            ranked.append((seen[label], len(ranked), index))
            seen[label] += 1
        expected = [self.LOPSIDED[i][0] for i in sorted(index for *_, index in sorted(ranked)[:limit])]
        task = make(train=self.LOPSIDED, test=self.LOPSIDED, train_limit=limit)
        assert texts_of(task) == expected

    def test_a_smaller_part_is_a_part_of_the_larger(self, make: Make) -> None:
        parts = [set(texts_of(make(train=self.LOPSIDED, train_limit=n, test=None))) for n in (3, 9, 40, 80)]
        assert all(small < large for small, large in pairwise(parts))
        other = make(train=self.LOPSIDED, train_limit=9, test=None, data_seed=1)
        assert set(texts_of(other)) != parts[1]

    def test_the_limit_leaves_the_other_splits_alone(self, make: Make) -> None:
        whole, few = (make(train=self.LOPSIDED, test=None, train_limit=n) for n in (None, 6))
        assert texts_of(whole, "validation") == texts_of(few, "validation")
        assert not set(texts_of(few)) & set(texts_of(few, "validation"))
        assert len(few.tokenizer) < len(whole.tokenizer), "it learns its words from what it trains on"

    def test_a_test_set_is_split_off(self, make: Make) -> None:
        rows = [(text, label) for text, label in self.LOPSIDED for _ in range(2)]
        of_bytes = {"tokenizer": {"kind": "bytes"}, "max_length": 10}
        task = make(train=rows, test=None, data={"test_fraction": 0.2}, **of_bytes)
        parts = {split: texts_of(task, split) for split in task.splits}
        assert {split: len(part) for split, part in parts.items()} == {
            "train": 140,
            "validation": 20,
            "test": 40,
        }
        assert len(set().union(*parts.values())) == 100 == sum(len(set(part)) for part in parts.values())
        assert "test: 40 of 200 training examples, split off, 20 different inputs" in task.notes
        again = make(train=rows, test=None, data={"test_fraction": 0.2}, **of_bytes)
        assert again.checksum() == task.checksum()

    def test_what_is_cut_is_counted(self, make: Make) -> None:
        long = [("one two three four five six seven", "good"), ("a b c d e f g h", "bad")]
        task = make(train=[*ROWS, *long], test=[*TEST, long[1], ("", "good")])
        assert "train: truncated to 8 tokens: 1 of 14" in task.notes
        assert "test: truncated to 8 tokens: 1 of 5" in task.notes
        assert "WARNING: test: texts without tokens: 1 of 5" in task.notes
        assert len(task.splits["train"]) == 14 and task.splits["train"].lengths().max() == 8
        assert texts_of(task)[-1] == "a b c d e f g"

    def test_what_is_unknown_is_counted(self, make: Make) -> None:
        """The count is the same for tokens cached by a previous run."""
        for _ in range(2):
            task = make(test=[("never read before", "good"), (ROWS[0][0], "bad")])
            assert [note for note in task.notes if "unknown tokens" in note] == [
                "validation: unknown tokens: 3 of 6",
                "test: unknown tokens: 3 of 6",
            ]

    def test_some_of_a_training_text_is_hidden(self, make: Make) -> None:
        rows = [(" ".join(f"w{i * j % 90}" for j in range(1 + i % 9)), f"{i % 2}") for i in range(200)]
        task = make(train=rows, test=rows, masked_fraction=0.3, max_length=12)
        every = np.arange(len(rows))
        plain = make(train=rows, test=rows, max_length=12).batch("train", every)
        first, later = (task.batch("train", every, epoch) for epoch in (1, 2))
        seen, tokens = first.inputs["tokens"], plain.inputs["tokens"]
        assert seen is not None and tokens is not None
        is_hidden = seen == MASK
        may_be = tokens >= len(RESERVED)
        assert not (is_hidden & ~may_be).any() and torch.equal(seen[~is_hidden], tokens[~is_hidden])
        assert abs(float(is_hidden.sum() / may_be.sum()) - 0.3) < 0.06
        assert not torch.equal(seen, later.inputs["tokens"])
        for index in (0, 8, 150):  # independent of the other rows
            alone = task.batch("train", np.array([index]), 1).inputs["tokens"]
            assert alone is not None and torch.equal(alone[0], seen[index, : alone.shape[1]])
        for split in ("train", "test"):
            measured = task.batch(split, np.arange(3)).inputs["tokens"]
            assert measured is not None and not (measured == MASK).any()

    def test_what_also_appears_in_train(self, make: Make) -> None:
        test = [*TEST, ROWS[0], (ROWS[1][0], "good")]
        assert "WARNING: test examples whose input also appears in train: 2 of 5" in make(test=test).notes
        empty = make(train=[*ROWS, ("", "good")], test=[*TEST, ("", "bad"), (" ", "bad")])
        assert not any("also appears in train" in note for note in empty.notes)
        task = make(test=test, unseen_only=True)
        assert "test: omitted, also in train: 2 of 5" in task.notes
        assert len(task.splits["test"]) == 3

    def test_a_folder_of_classes(self, make: Make, tmp_path: Path) -> None:
        for name, lines in (("a.neg", "bad film\nworse\n"), ("a.pos", "good film\nbest\n")):
            (tmp_path / "films").mkdir(exist_ok=True)
            (tmp_path / "films" / name).write_text(lines, encoding="utf-8")
        data = {
            "train": str(tmp_path / "films"),
            "classes": {"negative": "a.neg", "positive": "a.pos"},
            "test_fraction": 0.25,
        }
        task = make(test=None, data=data)
        pairs = {
            pair
            for split in task.splits
            for pair in zip(task.splits[split].lengths().tolist(), labels_of(task, split), strict=True)
        }
        assert task.labels.symbols == ["negative", "positive"] and len(task.splits["test"]) == 1
        assert pairs == {(2, "negative"), (3, "negative"), (2, "positive"), (3, "positive")}


def test_offline_reviews_follow_from_the_config() -> None:
    options = {"kind": "classification", "examples": 60}
    task = validate(TaskConfig, options).build(seed=0)
    assert len(task.splits["train"]) == 60 and len(task.labels.symbols) == 2
    assert validate(TaskConfig, {**options, "data_seed": 1}).build(seed=0).checksum() != task.checksum()
