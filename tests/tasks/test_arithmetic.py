"""Arithmetic, compared with Python over complete spaces, with files, and with typed expressions."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassformer.core.config import validate
from glassformer.core.errors import ErrorDetail, UserError
from glassformer.data.readers import DataConfig
from glassformer.tasks.arithmetic import BOS, EOS, ArithmeticConfig, ArithmeticTask

SIGNS = {"add": "+", "subtract": "-", "multiply": "*"}


def expressions(task: ArithmeticTask, split: str) -> list[str]:
    return [" ".join(task.input_symbols(row)) for row in task.splits[split].inputs]


def compute(tokens: list[str], digits: int) -> int:
    """Compute the result in Python from the tokens, without code of the task."""

    def number(part: list[str]) -> int:
        return int("".join(part[1:])) * {"POSITIVE": 1, "NEGATIVE": -1}[part[0]]

    assert tokens[0] == "BOS" and tokens[-1] == "EOS"
    first, operation, second = tokens[1 : digits + 2], tokens[digits + 2], tokens[digits + 3 : -1]
    assert len(second) == digits + 1
    a, b = number(first), number(second)
    return {"add": a + b, "subtract": a - b, "multiply": a * b}[operation]


@pytest.mark.parametrize(
    ("options", "space", "result_length"),
    [
        ({}, 99 * 99 * 2, 5),
        ({"operations": ["add", "subtract", "multiply"]}, 99 * 99 * 3, 7),
        ({"digits": 1}, 9 * 9 * 2, 4),
        ({"digits": 1, "smallest": 0, "largest": 9, "operations": ["add"]}, 100, 5),
        ({"digits": 3, "smallest": -12, "largest": -5}, 8 * 8 * 2, 6),
    ],
)
def test_every_result_of_the_whole_space(options: dict[str, Any], space: int, result_length: int) -> None:
    config = ArithmeticConfig(**options)
    task = config.build(0)
    assert task.task_type.max_length == 2 * config.digits + 5
    assert task.task_type.max_target_length == result_length
    seen = set()
    for examples in task.splits.values():
        assert examples.inputs.dtype == np.uint8
        for row, target in zip(examples.inputs[:500], examples.targets, strict=False):
            assert task.solve(row) == target[1:-1].tolist()
        for row, target in zip(examples.inputs, examples.targets, strict=True):
            right = compute(task.input_symbols(row), config.digits)
            assert task.show_output(target) == str(right)
            assert task.output_symbols(target)[1] == ("NEGATIVE" if right < 0 else "POSITIVE")
            assert len(target) == result_length and (target[0], target[-1]) == (BOS, EOS)
            seen.add(row.tobytes())
    assert len(seen) == space == sum(len(examples) for examples in task.splits.values())
    assert not task.notes


def test_the_published_form() -> None:
    task = ArithmeticConfig().build(0)
    tokens = task.parse("BOS NEGATIVE 30 subtract NEGATIVE 34 EOS")
    assert " ".join(task.input_symbols(tokens)) == "BOS NEGATIVE 3 0 subtract NEGATIVE 3 4 EOS"
    assert " ".join(task.output_symbols([BOS, *task.solve(tokens), EOS])) == "BOS POSITIVE 0 4 EOS"
    assert task.task_type.vocabulary == task.task_type.target_vocabulary == 16
    assert ArithmeticConfig(operations=["add", "multiply"]).build(0).task_type.vocabulary == 17
    assert (task.begin, task.end, task.primary_metric) == (BOS, EOS, "exact_match")


def test_splits_have_their_share() -> None:
    splits = ArithmeticConfig().build(0).splits
    assert {split: len(examples) for split, examples in splits.items()} == {
        "train": 11_761,  # 60 % of 19,602
        "validation": 392,
        "test": 7_449,
    }


def test_large_spaces_are_drawn_from() -> None:
    task = ArithmeticConfig(digits=18, max_examples=1_000).build(0)
    drawn = [text for split in task.splits for text in expressions(task, split)]
    assert len(drawn) == len(set(drawn)) == 1_000
    assert "1,000 of" in task.notes[0]
    for examples in task.splits.values():
        for row, target in zip(examples.inputs, examples.targets, strict=True):
            assert task.show_output(target) == str(compute(task.input_symbols(row), 18))


def test_products_of_nine_digits_do_not_overflow() -> None:
    options = {"digits": 9, "smallest": -999_999_999, "largest": 999_999_999, "operations": ["multiply"]}
    task = ArithmeticConfig(max_examples=100, **options).build(0)
    tokens = task.parse("-999999999 * 999999999")
    assert task.show_output(task.solve(tokens)) == str(-999_999_999 * 999_999_999)


def test_overfitting_measures_on_the_training_examples() -> None:
    task = ArithmeticConfig(max_examples=64, overfit=True).build(0)
    assert {len(examples) for examples in task.splits.values()} == {64}
    assert expressions(task, "train") == expressions(task, "test") == expressions(task, "validation")
    assert "the training examples" in task.notes[0]


def test_the_smallest_space_has_three_splits() -> None:
    task = ArithmeticConfig(digits=1, smallest=0, largest=1, operations=["add"]).build(0)
    assert {split: len(examples) for split, examples in task.splits.items()} == {
        "train": 2,
        "validation": 1,
        "test": 1,
    }
    with pytest.raises(UserError, match="too few for three splits"):
        _ = ArithmeticConfig(digits=1, smallest=0, largest=0).build(0).splits


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"smallest": -100}, "smallest"),
        ({"largest": 1000}, "largest"),
        ({"smallest": 5, "largest": 4}, "smallest"),
        ({"operations": ["add", "add"]}, "operations"),
        ({"operations": []}, "operations"),
        ({"operations": ["divide"]}, "operations.0"),
        ({"operations": ["multiply"], "digits": 10}, "digits"),
        ({"train_fraction": 0.99}, "train_fraction"),
        ({"leaky": True}, "leaky"),
        ({"digits": 0}, "digits"),
    ],
)
def test_wrong_options_name_their_path(options: dict[str, Any], path: str) -> None:
    with pytest.raises(UserError) as caught:
        validate(ArithmeticConfig, options)
    assert caught.value.details[0].path == path


class TestTyping:
    task = ArithmeticConfig(operations=["add", "subtract", "multiply"]).build(0)

    @pytest.mark.parametrize(
        "text",
        [
            "4 + -11",
            "4+-11",
            "  4  +  - 11 ",
            "4 + −11",
            "4 add -11",
            "4 ADD -11",
            "+4 plus -11",
            "04 + -011",
            "4 + (-11) =",
            "4 + -11 = ?",
            "POSITIVE 04 add NEGATIVE 11",
            "positive 4 add negative 11",
            "BOS POSITIVE 04 add NEGATIVE 11 EOS",
            "BOS POSITIVE 0 4 add NEGATIVE 1 1 EOS",
        ],
    )
    def test_forms(self, text: str) -> None:
        tokens = self.task.parse(text)
        assert " ".join(self.task.input_symbols(tokens)) == "BOS POSITIVE 0 4 add NEGATIVE 1 1 EOS"
        assert self.task.show_output(self.task.solve(tokens)) == "-7"

    @pytest.mark.parametrize(
        ("text", "result"),
        [
            ("4 - 11", "-7"),
            ("4--11", "15"),
            ("-4-11", "-15"),
            ("4 − −11", "15"),
            ("4*-11", "-44"),
            ("4 × 3", "12"),
        ],
    )
    def test_operations(self, text: str, result: str) -> None:
        assert self.task.show_output(self.task.solve(self.task.parse(text))) == result

    @pytest.mark.parametrize("text", ["-0 + 3", "NEGATIVE 00 add POSITIVE 03", "0 + 3"])
    def test_zero_is_positive(self, text: str) -> None:
        tokens = self.task.parse(text)
        assert " ".join(self.task.input_symbols(tokens)) == "BOS POSITIVE 0 0 add POSITIVE 0 3 EOS"
        assert self.task.output_symbols(self.task.solve(self.task.parse("-3 + 3"))) == ["POSITIVE", *"0000"]

    def test_inputs_are_shown_as_they_are_typed(self) -> None:
        for text in ("4 + -11", "-49 - 0", "0 + 7"):
            assert self.task.show_input(self.task.parse(text).tolist()) == text

    def test_round_trip_over_all_expressions(self) -> None:
        """Every expression is parsed correctly, typed with signs or as tokens."""
        task = ArithmeticConfig().build(0)
        for split in task.splits:
            for row in task.splits[split].inputs:
                symbols = task.input_symbols(row)
                first, second = (
                    "-" * (symbols[at] == "NEGATIVE") + "".join(symbols[at + 1 : at + 3]) for at in (1, 5)
                )
                # The last digits choose the form, so that both are tested often at half the time.
                typed = f"{first} {SIGNS[symbols[4]]} {second}" if row[3] % 2 else " ".join(symbols)
                assert task.parse(typed).tolist() == row.tolist()

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "the line is empty"),
            ("  ", "the line is empty"),
            ("4 / 3", "unknown symbol '/'"),
            ("4 + foo", "unknown symbol 'foo'"),
            ("4 xyz 3", "unknown symbol 'xyz'"),
            ("4.5 + 1", "unknown symbol '.'"),
            ("4² + 1", "unknown symbol '²'"),
            ("٣ + 1", "unknown symbol '٣'"),
            ("4 + 3 + 2", "too long"),
            ("70 + 3", "70 is out of range: operands range from -49 to 49"),
            ("3 + " + "9" * 10_000, "is out of range"),
            ("4", "not one operation between two numbers"),
            ("4 +", "not one operation between two numbers"),
            ("+", "not one operation between two numbers"),
            ("4 + - - 3", "not one operation between two numbers"),
            ("BOS EOS", "not one operation between two numbers"),
        ],
    )
    def test_errors_are_one_clear_line(self, text: str, message: str) -> None:
        with pytest.raises(ErrorDetail) as caught:
            self.task.parse(text)
        assert message in caught.value.message
        assert "\n" not in caught.value.message and len(caught.value.message) < 160

    def test_an_operation_that_was_not_learned(self) -> None:
        with pytest.raises(ErrorDetail, match="cannot multiply"):
            ArithmeticConfig().build(0).parse("4 * 3")

    def test_outputs_other_than_numbers_are_shown_as_tokens(self) -> None:
        task = ArithmeticConfig().build(0)
        encode = task.vocabulary.encode
        assert task.show_output(encode(["NEGATIVE", "0", "7", "EOS"])) == "-7"
        assert task.show_output(encode(["NEGATIVE", "0", "0"])) == "-0"
        assert task.show_output(encode(["0", "POSITIVE", "7"])) == "0 POSITIVE 7"
        assert task.show_output(encode(["POSITIVE"])) == "POSITIVE"
        assert task.show_output([]) == ""


def write(path: Path, pairs: list[tuple[str, str]]) -> DataConfig:
    questions, results = zip(*pairs, strict=True)
    path.write_text(json.dumps({"inp_expression": questions, "out_expression": results}))
    return DataConfig(train=str(path))


def pairs(count: int) -> list[tuple[str, str]]:
    return [(f"BOS POSITIVE 10 add POSITIVE {n:02} EOS", f"BOS POSITIVE {10 + n} EOS") for n in range(count)]


class TestFile:
    def test_duplicates_do_not_cross_splits(self, tmp_path: Path) -> None:
        data = write(tmp_path / "sums.json", pairs(40) * 5)
        task = ArithmeticConfig(data=data).build(0)
        assert {split: len(part) for split, part in task.splits.items()} == {
            "train": 32,
            "validation": 4,
            "test": 4,
        }
        everything = [text for split in task.splits for text in expressions(task, split)]
        assert len(set(everything)) == len(everything) == 40
        sentence, note = task.notes
        assert "sums.json is read as JSON objects: input = 'inp_expression'" in sentence
        assert note == "train: 200 rows, of which 40 are new and used"

    def test_leaky_keeps_and_reports_duplicates(self, tmp_path: Path) -> None:
        data = write(tmp_path / "sums.json", pairs(40) * 5)
        task = ArithmeticConfig(data=data, leaky=True).build(0)
        assert sum(len(part) for part in task.splits.values()) == 200
        learned = set(expressions(task, "train"))
        leaked = sum(text in learned for text in expressions(task, "test"))
        assert leaked > 10
        assert f"{leaked} of 20 test expressions also appear in train" in task.notes

    def test_files_for_the_other_splits(self, tmp_path: Path) -> None:
        train = write(tmp_path / "train.json", pairs(20))
        test = write(tmp_path / "test.json", pairs(30))
        task = ArithmeticConfig(data=DataConfig(train=train.train, test=test.train)).build(0)
        assert {split: len(part) for split, part in task.splits.items()} == {
            "train": 18,
            "validation": 2,
            "test": 10,
        }
        with pytest.raises(UserError, match="every expression also appears in train"):
            ArithmeticConfig(data=DataConfig(train=test.train, test=train.train)).build(0)

    def test_minus_zero_is_zero(self, tmp_path: Path) -> None:
        extra = ("BOS NEGATIVE 00 add POSITIVE 10 EOS", "BOS POSITIVE 10 EOS")
        other = ("BOS NEGATIVE 10 add POSITIVE 10 EOS", "BOS NEGATIVE 00 EOS")
        task = ArithmeticConfig(data=write(tmp_path / "sums.json", [*pairs(9), extra, other])).build(0)
        outputs = {
            text: " ".join(task.output_symbols(target))
            for split, part in task.splits.items()
            for text, target in zip(expressions(task, split), part.targets, strict=True)
        }
        assert "BOS POSITIVE 0 0 add POSITIVE 1 0 EOS" in outputs
        assert outputs["BOS NEGATIVE 1 0 add POSITIVE 1 0 EOS"] == "BOS POSITIVE 0 0 EOS"

    @pytest.mark.parametrize(
        ("pair", "message"),
        [
            (("BOS POSITIVE 10 add POSITIVE 05 EOS", "BOS POSITIVE 16 EOS"), "is 15, but the file has 16"),
            (("BOS POSITIVE 10 add 5 6 EOS", "BOS POSITIVE 15 EOS"), "not one operation"),
            (("BOS POSITIVE 10 add POSITIVE 05 EOS", "BOS 1 POSITIVE EOS"), "the result is not a number"),
            (("BOS POSITIVE 10 add POSITIVE 99 EOS", "BOS POSITIVE 109 EOS"), "99 is out of range"),
            (("BOS POSITIVE 10 multiply POSITIVE 02 EOS", "BOS POSITIVE 20 EOS"), "cannot multiply"),
            ((None, "BOS POSITIVE 20 EOS"), "unknown symbol"),
        ],
    )
    def test_wrong_rows_are_named(self, tmp_path: Path, pair: tuple[Any, str], message: str) -> None:
        path = tmp_path / "sums.json"
        with pytest.raises(UserError) as caught:
            ArithmeticConfig(data=write(path, [*pairs(7), pair, *pairs(2)])).build(0)
        (detail,) = caught.value.details
        assert message in detail.message
        assert detail.path == f"{path}, row 8"
        assert detail.hint == "correct or remove 1 of 10 rows"

    def test_restoring_reads_no_file(self, tmp_path: Path) -> None:
        config = ArithmeticConfig(data=write(tmp_path / "sums.json", pairs(20)))
        built = config.build(0)
        restored = config.restore(built.state())
        assert restored.checksum() == built.checksum()
        (tmp_path / "sums.json").unlink()
        assert config.restore(built.state()).parse("4 + 3").tolist() == built.parse("4 + 3").tolist()
        with pytest.raises(UserError, match="no such file"):
            config.build(0)


@pytest.mark.skipif("GLASSFORMER_DATA" not in os.environ, reason="GLASSFORMER_DATA names no data folder")
def test_the_published_file() -> None:
    path = Path(os.environ["GLASSFORMER_DATA"]) / "two_digit_op" / "two_digit_op.json"
    data = DataConfig(train=str(path))
    clean, leaky = ArithmeticConfig(data=data).build(0), ArithmeticConfig(data=data, leaky=True).build(0)
    assert {split: len(part) for split, part in clean.splits.items()} == {
        "train": 3_528,
        "validation": 441,
        "test": 441,
    }
    assert {split: len(part) for split, part in leaky.splits.items()} == {
        "train": 4_000,
        "validation": 500,
        "test": 500,
    }
    published = json.loads(path.read_text())

    ours = {text for split in clean.splits for text in expressions(clean, split)}
    assert {text.replace(" ", "") for text in published["inp_expression"]} == {
        text.replace(" ", "") for text in ours
    }
