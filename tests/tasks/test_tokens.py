"""Token sequences from files: each type of target, from the file to the restored task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassformer.blocks.heads import IGNORED
from glassformer.core.config import validate
from glassformer.core.errors import ErrorDetail, UserError
from glassformer.models.task_types import Seq2Seq, SequenceClassification, TokenClassification
from glassformer.tasks.base import LabelTypes
from glassformer.tasks.tokens import TokensConfig, TokensTask

TAGGED = [("the cat sat", "D N V"), ("a dog ran off", "D N V P"), ("cats", "N"), ("dogs ran", "N V")]


def build(
    folder: Path, rows: dict[str, list[tuple[Any, Any]]], data: dict[str, Any] | None = None, **options: Any
) -> TokensTask:
    """Build a task from one TSV file per split."""
    files = {}
    for split, pairs in rows.items():
        path = folder / f"{split}.tsv"
        path.write_text("input\ttarget\n" + "".join(f"{a}\t{b}\n" for a, b in pairs))
        files[split] = str(path)
    return validate(TokensConfig, {"data": {**files, **(data or {})}, **options}).build(0)


def shown(task: TokensTask, split: str) -> list[tuple[str, str]]:
    """Examples as readable text."""
    examples = task.splits[split]
    return [
        (" ".join(task.input_symbols(row)), task.show_output(np.atleast_1d(target)))
        for row, target in zip(examples.inputs, examples.targets, strict=True)
    ]


def test_a_label_for_each_token(tmp_path: Path) -> None:
    task = build(tmp_path, {"train": TAGGED, "validation": TAGGED[:2]})
    assert task.task_type == TokenClassification(vocabulary=9 + 1, max_length=4, classes=4)
    assert shown(task, "train") == TAGGED
    assert set(task.splits) == {"train", "validation"}
    batch = task.batch("train", np.array([0, 2]))
    assert batch.targets.tolist()[1] == [task.target_vocabulary.ids["N"], IGNORED, IGNORED]
    assert batch.target_count() == 4


def test_a_label_for_the_sequence(tmp_path: Path) -> None:
    rows = [("good film", "yes"), ("bad film", "no"), ("good good", "yes")]
    task = build(tmp_path, {"train": rows, "validation": rows, "test": rows}, target="label")
    assert task.task_type == SequenceClassification(vocabulary=4, max_length=2, outputs=2)
    assert shown(task, "test") == rows
    assert task.batch("train", np.arange(3)).targets.tolist() == [1, 0, 1]


def test_a_number_for_the_sequence(tmp_path: Path) -> None:
    rows = [("good film", "1.5"), ("bad film", "-2"), ("film", "1e-3")]
    task = build(tmp_path, {"train": rows, "validation": rows}, target="number")
    numbers = np.array([1.5, -2, 1e-3], dtype=np.float32)
    task_type = task.task_type
    assert isinstance(task_type, SequenceClassification)
    assert (task_type.vocabulary, task_type.max_length, task_type.is_regression) == (4, 2, True)
    assert task_type.target_mean == pytest.approx(numbers.mean())
    assert task_type.target_scale == pytest.approx(numbers.std())
    assert task.config.restore(task.state()).task_type == task_type
    without = {name: value for name, value in task.state().items() if name != "targets"}
    old = task.config.restore(without).task_type
    assert isinstance(old, SequenceClassification) and (old.target_mean, old.target_scale) == (0.0, 1.0)
    batch = task.batch("train", np.arange(3))
    assert batch.targets.tolist() == pytest.approx([1.5, -2.0, 0.001])
    assert batch.targets.is_floating_point()
    assert task.primary_metric == "mean_absolute_error"


@pytest.mark.parametrize("is_shared", [False, True])
def test_another_sequence(tmp_path: Path, is_shared: bool) -> None:
    rows = [("a b", "B A"), ("b", "B"), ("a a b", "B A A")]
    task = build(
        tmp_path, {"train": rows, "validation": rows}, target="sequence", shared_vocabulary=is_shared
    )
    assert isinstance(task.task_type, Seq2Seq)
    assert task.task_type.is_shared_vocabulary == is_shared
    assert (task.task_type.vocabulary == task.task_type.target_vocabulary) == is_shared
    assert (task.task_type.max_length, task.task_type.max_target_length) == (3, 5)
    assert shown(task, "train") == rows
    for target in task.splits["train"].targets:
        assert (target[0], target[-1]) == (task.begin, task.end)
    assert task.splits["train"].lengths().tolist() == [4, 3, 5]


def test_every_kind_is_restored_without_its_files(tmp_path: Path) -> None:
    rows = [("a b", "1 2"), ("b", "2"), ("a a b", "1 1 2")]
    for target in ("token-labels", "label", "sequence"):
        task = build(tmp_path, {"train": rows, "validation": rows}, target=target)
        state = json.loads(json.dumps(task.state()))
        restored = task.config.restore(state)
        assert restored.task_type == task.task_type
        assert restored.checksum() == task.checksum()
        (tmp_path / "train.tsv").unlink()
        again = task.config.restore(state)
        assert again.parse("b a").tolist() == task.parse("b a").tolist()
        assert again.show_output([0]) == task.show_output([0])
        with pytest.raises(UserError, match="no such file"):
            _ = again.splits


def test_a_restored_task_rejects_labels_that_came_later(tmp_path: Path) -> None:
    rows = [("a", "x"), ("b", "y"), ("c", "x")]
    task = build(tmp_path, {"train": rows, "validation": rows}, target="label")
    (tmp_path / "validation.tsv").write_text("input\ttarget\na\tx\nb\tz\n")
    with pytest.raises(UserError, match="unknown label") as caught:
        _ = task.config.restore(task.state()).splits
    assert caught.value.details[0].path == f"{tmp_path / 'validation.tsv'}, line 3"


def test_characters_as_tokens(tmp_path: Path) -> None:
    rows = [("ACGT", "HHEC"), ("AC", "HE")]
    task = build(tmp_path, {"train": rows, "validation": rows}, separator="")
    assert task.task_type == TokenClassification(vocabulary=5, max_length=4, classes=3)
    assert task.input_symbols(task.parse("GATA")) == ["G", "A", "T", "A"]
    assert task.show_output(task.splits["train"].targets[0]) == "HHEC"


def test_another_separator(tmp_path: Path) -> None:
    rows = [("new york|is|big", "P|V|A"), ("paris|is", "P|V")]
    task = build(tmp_path, {"train": rows, "validation": rows}, separator="|")
    assert task.input_symbols(task.parse("new york|is")) == ["new york", "is"]
    assert task.show_output([1, 2]) == "P|V"


def test_lists_and_numbers_from_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    lines = [{"words": ["new york", 7, True], "tags": [1, 2, 1]}, {"words": "a b", "tags": "1 2"}]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    data = {"train": str(path), "validation": str(path), "columns": {"input": "words", "target": "tags"}}
    task = validate(TokensConfig, {"data": data}).build(0)
    assert task.input_symbols(task.splits["train"].inputs[0]) == ["new york", "7", "true"]
    assert shown(task, "train")[1] == ("a b", "1 2")


def test_tokens_of_a_list_keep_their_spaces(tmp_path: Path) -> None:
    rows = [(["new york", "is", "big"], ["N", "V", "A"]), (["rome", "is", "big"], ["N", "V", "A"])]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"input": a, "target": b}) + "\n" for a, b in rows))
    task = validate(TokensConfig, {"data": {"train": str(path), "validation": str(path)}}).build(0)
    for value, labels, warning in (
        (["san jose", "is", "rome"], ["‹san jose›", "is", "rome"], "1 of 3 tokens are unknown"),
        (["is", "to new york", "york"], ["is", "‹to new york›", "‹york›"], "2 of 3 tokens are unknown"),
        (["new york", "is", "dull"], ["new york", "is", "‹dull›"], "1 of 3 tokens are unknown"),
    ):
        tokens, text = task.read_input(value)
        assert text == " ".join(value) and task.input_labels(tokens.tolist(), text) == labels
        assert warning in str(task.warning(tokens.tolist(), text))
        again, text = task.read_input(text)  # as the warnings of an inspection read it
        assert again.tolist() == tokens.tolist() and task.input_labels(tokens.tolist(), text) == labels
    (first,) = task.input_texts("validation", [0])
    assert task.read_input(first)[0].tolist() == task.splits["validation"].inputs[0].tolist()


def test_labels_have_notes_on_types_and_spaces() -> None:
    types = LabelTypes()
    for index, value in enumerate(("pos", "pos ", "neg")):
        types.add(value.strip(), value, index)
    assert types.notes() == ["train: white space around 1 labels is not read"]
    types = LabelTypes()
    for index, value in enumerate((True, 0)):
        types.add(str(value), value, index)
    [warning] = types.notes()
    assert warning == "WARNING: train: the labels have different types, such as True (bool), 0 (int)"


class TestSplitting:
    ROWS = [(f"{n // 10} {n % 10}", str(n % 3)) for n in range(60)]  # noqa: RUF012

    def test_a_validation_set_is_split_off_the_same_way_each_time(self, tmp_path: Path) -> None:
        first, second = (build(tmp_path, {"train": self.ROWS}, target="label") for _ in range(2))
        assert first.checksum() == second.checksum()
        assert sorted(shown(first, "train") + shown(first, "validation")) == sorted(self.ROWS)
        assert len(first.splits["validation"]) == 6
        assert "test" not in first.splits
        assert first.notes[1] == "validation: 6 of 60 training rows, split off"
        other = build(tmp_path, {"train": self.ROWS}, target="label", data_seed=1)
        assert other.checksum() != first.checksum()

    def test_equal_inputs_stay_together(self, tmp_path: Path) -> None:
        rows = [(f"a b c{n % 10}", "x") for n in range(200)]
        task = build(tmp_path, {"train": rows}, target="label")
        assert len(task.splits["validation"]) == 20
        inputs = {split: {row.tobytes() for row in task.splits[split].inputs} for split in task.splits}
        assert len(inputs["validation"]) == 1
        assert not inputs["train"] & inputs["validation"]

    def test_the_fraction_is_an_option(self, tmp_path: Path) -> None:
        data = {"validation_fraction": 0.5}
        assert len(build(tmp_path, {"train": self.ROWS}, data, target="label").splits["validation"]) == 30

    def test_too_few_rows_are_rejected(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="1 different example cannot be split 2 ways"):
            build(tmp_path, {"train": [("a", "x"), ("a", "x")]}, target="label")


def test_what_train_does_not_have_is_reported(tmp_path: Path) -> None:
    train, test = [("a b", "x"), ("b", "y")], [("a q q", "x"), ("b", "z")]
    task = build(tmp_path, {"train": train, "validation": train, "test": test}, target="label")
    assert shown(task, "test") == [("a <unknown> <unknown>", "x")]
    assert task.target_vocabulary.symbols == ["x", "y"], "the labels of train alone"
    *notes, left_out, rare_test, rare_validation = task.notes[3:]
    assert rare_test.endswith("fewer than 5 examples, so that metrics are uncertain for them: 'y': 0, 'x': 1")
    assert rare_validation.startswith("WARNING: validation: 2 of 2 labels have fewer than 5 examples")
    assert left_out == (
        "WARNING: test: left out, because train does not have their labels: 1 of 2 rows, 'z' "
        f"({tmp_path / 'test.tsv'}, line 3)"
    )
    assert notes == [
        "test: input symbols that train does not have: 'q' (2 in total)",
        "test: target symbols that train does not have: 'z' (1 in total)",
        "WARNING: test: 1 of 2 inputs also appear in train",
        "WARNING: validation: 2 of 2 inputs also appear in train",
    ]


def test_many_labels_that_train_does_not_have_are_refused(tmp_path: Path) -> None:
    train, test = [("a b", "x y"), ("b", "y")], [("a b", "x y"), *[("b a", "z q")] * 4]
    with pytest.raises(UserError, match="4 of 5 rows have labels that train does not have: 'z', 'q'"):
        build(tmp_path, {"train": train, "validation": train, "test": test})


def test_unknown_target_symbols_of_a_sequence_are_marked(tmp_path: Path) -> None:
    train, test = [("a", "x"), ("b", "y")], [("a", "x z")]
    task = build(tmp_path, {"train": train, "validation": train, "test": test}, target="sequence")
    assert shown(task, "test") == [("a", "x <unknown>")]


@pytest.mark.parametrize(
    ("target", "row", "message"),
    [
        ("token-labels", "a b\tx", "2 tokens but 1 labels"),
        ("token-labels", "\tx", "the input has no tokens"),
        ("label", "a\t ", "the label is empty"),
        ("number", "a\tseven", "not a number"),
        ("number", "a\tnan", "not a number"),
        ("number", "a\tinf", "the number is infinite"),
        ("label", "a <unknown>\tx", "symbol is reserved"),
        ("sequence", "a\tx <end>", "symbol is reserved"),
    ],
)
def test_wrong_rows_are_named(tmp_path: Path, target: str, row: str, message: str) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text(f"input\ttarget\na\t1\n\n{row}\n")
    with pytest.raises(UserError) as caught:
        validate(TokensConfig, {"data": {"train": str(path)}, "target": target}).build(0)
    detail = caught.value.details[0]
    assert message in detail.message
    assert detail.path == f"{path}, line 4"


@pytest.mark.parametrize("value", [None, {"a": 1}, [["a"]], [None]])
def test_cells_that_are_no_tokens_are_named(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"input": value, "target": "x"}))
    with pytest.raises(UserError, match="expected text or a number") as caught:
        validate(TokensConfig, {"data": {"train": str(path)}}).build(0)
    assert caught.value.details[0].path == f"{path}, line 1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the line is empty"),
        ("the cat sat sat sat", "too long: 5 tokens, and the model reads at most 4"),
    ],
)
def test_rejected_inputs_are_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    task = build(tmp_path, {"train": TAGGED, "validation": TAGGED})
    with pytest.raises(ErrorDetail) as caught:
        task.parse(text)
    assert message in caught.value.message and "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("text", "symbols", "warning"),
    [
        ("the cow", ["the", "<unknown>"], "1 of 2 tokens are unknown to the model: ‹cow›"),
        (
            "the catt",
            ["the", "<unknown>"],
            "1 of 2 tokens are unknown to the model: ‹catt›; did you mean 'cat'?",
        ),
        ("<unknown>", ["<unknown>"], "1 of 1 tokens are unknown to the model: ‹<unknown>›"),
        ("the cat", ["the", "cat"], None),
    ],
)
def test_an_unseen_symbol_is_an_unknown_token_with_a_warning(
    tmp_path: Path, text: str, symbols: list[str], warning: str | None
) -> None:
    task = build(tmp_path, {"train": TAGGED, "validation": TAGGED})
    tokens = task.parse(text).tolist()
    assert task.input_symbols(tokens) == symbols
    assert task.warning(tokens, text) == warning


def test_the_unknown_token_is_trained_on_rare_symbols(tmp_path: Path) -> None:
    rows = [(f"often rare{n}", "x y") for n in range(200)]
    task = build(tmp_path, {"train": rows, "validation": rows})
    indices = np.arange(200)

    def unknown(epoch: int | None) -> np.ndarray:
        tokens_BL = task.batch("train", indices, epoch).inputs["tokens"]
        return (tokens_BL == task.vocabulary.ids["<unknown>"]).double().mean(0).numpy()

    often, rare = np.mean([unknown(epoch) for epoch in range(20)], axis=0)
    assert rare == pytest.approx(0.2, abs=0.03) and 0 < often < 0.01
    assert not unknown(None).any(), "evaluation reads all symbols"
    np.testing.assert_array_equal(unknown(3), unknown(3))


def test_options_are_checked() -> None:
    with pytest.raises(UserError) as caught:
        validate(TokensConfig, {"data": {"trian": "x.tsv"}})
    assert "data.trian" in str(caught.value) and "train" in str(caught.value)
    with pytest.raises(UserError) as caught:
        validate(TokensConfig, {"data": {"train": "x.tsv"}, "target": "labels"})
    assert "token-labels" in str(caught.value)
