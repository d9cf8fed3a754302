"""Arithmetic task, digit by digit: `BOS NEGATIVE 3 0 subtract NEGATIVE 3 4 EOS` → `BOS POSITIVE 0 4 EOS`.

Expressions are generated, or read from a file. Both are converted to integers first, so that each expression
has one spelling: zero is POSITIVE.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_letters
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from glassformer.core.errors import ErrorDetail, UserError, shorten, user_error
from glassformer.core.registry import register
from glassformer.data.batching import Examples, Vocabulary
from glassformer.data.readers import DataConfig, Rows
from glassformer.data.splits import split_off
from glassformer.models.task_types import Seq2Seq
from glassformer.tasks.base import Labels, Patterns, Seq2SeqTask, TaskConfig
from glassformer.tasks.sequences import Space, choose_rows

SYMBOLS = [*"0123456789", "BOS", "EOS", "POSITIVE", "NEGATIVE", "add", "subtract", "multiply"]
BOS, EOS, POSITIVE, NEGATIVE = range(10, 14)

ROLES = {"input": "inp_expression", "target": "out_expression"}
FILE_TEST_FRACTION = 0.1
LABELS = {
    "carry": "some column of digits carries or borrows, a label of the whole expression",
    "sign": "sign of the result, a label of the whole expression",
    "digit": "digit of the result with the same power of ten as an operand's digit, or as the next output",
}
"""Labels that a probe may look for, with their meaning."""


@dataclass(frozen=True)
class Operation:
    compute: Callable[[Any, Any], Any]
    words: tuple[str, ...]
    """Words and signs that a user may type."""


OPERATIONS = {
    "add": Operation(lambda a, b: a + b, ("+", "add", "plus")),
    "subtract": Operation(lambda a, b: a - b, ("-", "subtract", "minus")),
    "multiply": Operation(lambda a, b: a * b, ("*", "×", "·", "x", "multiply", "times")),
}
OPERATION_OF_WORD = {word: name for name, operation in OPERATIONS.items() for word in operation.words}

_DIGITS = r"(?:POSITIVE|NEGATIVE)\s*\d(?:\s*\d)*|[+-]?\s*\d+"
_OPERAND = rf"({_DIGITS}|\(\s*(?:{_DIGITS})\s*\))"
_WORDS = "|".join(re.escape(word) for word in OPERATION_OF_WORD)
EXPRESSION = re.compile(
    rf"(?:BOS\s*)?{_OPERAND}\s*({_WORDS})\s*{_OPERAND}\s*(?:EOS|=\s*\??)?", re.ASCII | re.IGNORECASE
)
_RESULT = re.compile(rf"(?:BOS\s*)?{_OPERAND}\s*(?:EOS)?", re.ASCII | re.IGNORECASE)
# Typographic variants of hyphen, plus, times and space.
TYPED = str.maketrans("−–—－﹣＋＊\u00a0\u202f", "-----+*  ")
_KNOWN = re.compile(rf"(?:BOS|EOS|POSITIVE|NEGATIVE|{_WORDS}|\d+|[()=?]|\s+)*", re.ASCII | re.IGNORECASE)


@register
class ArithmeticConfig(TaskConfig):
    """Sums, differences and, optionally, products of integers, generated digit by digit.

    Use it to see cross-attention find the digits of the same power of ten.
    """

    kind: Literal["arithmetic"] = "arithmetic"
    roles: ClassVar[Mapping[str, str]] = ROLES
    digits: int = Field(2, ge=1, le=18, description="digits per operand")
    smallest: int | None = Field(
        None, description="smallest operand; none: the smallest whose sums fit into digits, -49 for 2 digits"
    )
    largest: int | None = Field(
        None, description="largest operand; none: the largest whose sums fit into digits, 49 for 2 digits"
    )
    operations: list[Literal["add", "subtract", "multiply"]] = Field(
        ["add", "subtract"], min_length=1, description="operations between the two operands"
    )
    train_fraction: float = Field(0.6, gt=0, lt=1, description="fraction of expressions for training")
    validation_fraction: float = Field(
        0.02, gt=0, lt=1, description="fraction for validation; the rest is the test set"
    )
    max_examples: int = Field(
        100_000, ge=3, description="maximum number of expressions; a random sample if there are more"
    )
    overfit: bool = Field(
        False,
        description="train and evaluate on the same max_examples expressions, to test memorisation",
    )
    data: DataConfig | None = Field(None, description="your own expressions; none: generated expressions")
    leaky: bool = Field(
        False, description="split the rows of a file without removing duplicates across splits"
    )
    data_seed: int = Field(0, ge=0, description="seed of the examples, independent of the seed of the run")

    @model_validator(mode="after")
    def _check(self) -> Self:
        limit = 10**self.digits - 1
        for name, value in (("smallest", self.smallest), ("largest", self.largest)):
            if value is not None and abs(value) > limit:
                raise ErrorDetail(
                    f"has more than {self.digits} digits", path=name, value=value, hint="increase task.digits"
                )
        low, high = self.operand_range
        if low > high:
            raise ErrorDetail(
                f"must be at most {high}, the largest operand", path="smallest", value=low, hint="swap them"
            )
        if len(set(self.operations)) != len(self.operations):
            raise ErrorDetail("an operation appears twice", path="operations", value=self.operations)
        if "multiply" in self.operations and self.digits > 9:
            raise ErrorDetail("at most 9 to multiply", path="digits", value=self.digits, hint="task.digits=9")
        if self.train_fraction + self.validation_fraction >= 1:
            raise ErrorDetail(
                "leaves nothing for the test set", path="train_fraction", value=self.train_fraction
            )
        if self.leaky and self.data is None:
            raise ErrorDetail(
                "applies only to data from a file", path="leaky", value=True, hint="task.data.train=FILE.json"
            )
        return self

    @property
    def operand_range(self) -> tuple[int, int]:
        limit = 10**self.digits // 2 - 1
        low = -limit if self.smallest is None else self.smallest
        return low, limit if self.largest is None else self.largest

    @property
    def result_digits(self) -> int:
        """Number of digits per result: that of the operands, or more if the largest result needs more."""
        ends = self.operand_range
        results = [OPERATIONS[name].compute(a, b) for name in self.operations for a in ends for b in ends]
        return max(self.digits, *(len(str(abs(result))) for result in results))

    @property
    def symbols(self) -> list[str]:
        return SYMBOLS if "multiply" in self.operations else SYMBOLS[:-1]

    @property
    def fractions(self) -> dict[str, float]:
        """Fractions of the training file to split off, by split. By default, 80 % remain for training."""
        if self.data is None:
            return {}
        found = {} if self.data.validation else {"validation": self.data.validation_fraction}
        return found if self.data.validation or self.data.test else {**found, "test": FILE_TEST_FRACTION}

    def build(self, seed: int) -> ArithmeticTask:
        task = ArithmeticTask(self)
        if self.data is not None:
            _ = task.splits  # report errors in the file now, not at the first batch
        return task

    def restore(self, state: Mapping[str, Any], seed: int = 0) -> ArithmeticTask:
        return ArithmeticTask(self)

    def space(self) -> Space:
        """Return the space of all expressions: rows of first operand, operation index, second operand."""
        low, high = self.operand_range
        operands, operations = high - low + 1, len(self.operations)
        size = operands * operands * operations

        def enumerate_all() -> np.ndarray:
            first, operation, second = np.unravel_index(np.arange(size), (operands, operations, operands))
            return np.stack([first + low, operation, second + low], axis=1)

        def draw(rng: np.random.Generator, count: int) -> np.ndarray:
            first, second = (rng.integers(low, high, count, endpoint=True) for _ in range(2))
            return np.stack([first, rng.integers(0, operations, count), second], axis=1)

        return Space(size, enumerate_all, draw)

    def counts(self) -> dict[str, int]:
        """Return the number of generated expressions in each split."""
        total = min(self.max_examples, self.space().size)
        if self.overfit:
            return {"train": total}
        if total < 3:
            raise user_error(f"only {total} expressions exist, too few for three splits", path="task.largest")
        train = min(max(1, round(total * self.train_fraction)), total - 2)
        validation = min(max(1, round(total * self.validation_fraction)), total - train - 1)
        return {"train": train, "validation": validation, "test": total - train - validation}

    def notes(self) -> list[str]:
        if self.overfit:
            return ["validation and test are the training examples, as task.overfit requests"]
        total, size = sum(self.counts().values()), self.space().size
        return [f"{total:,} of {size:,} expressions were drawn"] if total < size and self.data is None else []


class ArithmeticTask(Seq2SeqTask):
    """Seq2seq task on expressions. Before encoding, a row is (operand, operation index, operand)."""

    begin, end = BOS, EOS
    pattern_explanations: ClassVar[Mapping[str, str]] = {
        "same digit": "share of attention on operand digits of the same power of ten as the generated digit",
        "same digit, other operand": (
            "share of attention of an operand's digit on the other operand's digit of the same power of ten"
        ),
    }

    def __init__(self, config: ArithmeticConfig) -> None:
        self.config = config
        self.vocabulary = Vocabulary(config.symbols)
        task_type = Seq2Seq(
            vocabulary=len(self.vocabulary),
            max_length=2 * config.digits + 5,
            target_vocabulary=len(self.vocabulary),
            max_target_length=config.result_digits + 3,
            is_shared_vocabulary=True,
        )
        super().__init__(task_type, self._encode_splits, config.notes())

    def _encode_splits(self) -> dict[str, Examples]:
        if self.config.data is None:
            rows = choose_rows(self.config.space(), self.config.counts(), self.config.data_seed)
        else:
            rows = self._read(self.config.data)
        if self.config.overfit:
            rows = dict.fromkeys(("train", "validation", "test"), rows["train"][: self.config.max_examples])
        return {
            split: Examples(self._encode_inputs(part), self._encode_numbers(self._compute(part)))
            for split, part in rows.items()
        }

    def _read(self, data: DataConfig) -> dict[str, np.ndarray]:
        """Read the expressions from files. Splits without a file are split off from train."""
        config = self.config
        given = {split: data.read(split, ROLES) for split in ("train", "validation", "test")}
        rows = {split: self._check_rows(part) for split, part in given.items() if part is not None}
        self.notes += [note for part in given.values() if part is not None for note in part.notes]
        if not config.leaky:
            rows = self._without_duplicates(rows)
        train = rows.pop("train")
        keys = range(len(train)) if config.leaky else [tuple(row) for row in train.tolist()]
        parts = split_off(keys, config.fractions, config.data_seed, f"task.data.train: {data.train}")
        rows |= {split: train[indices] for split, indices in parts.items()}
        if config.leaky:
            learned = {tuple(row) for row in rows["train"].tolist()}
            for split in sorted(rows.keys() - {"train"}):
                leaked, total = sum(tuple(row) in learned for row in rows[split].tolist()), len(rows[split])
                self.notes.append(f"{leaked:,} of {total:,} {split} expressions also appear in train")
        return rows

    def _check_rows(self, rows: Rows) -> np.ndarray:
        """Return the parsed expressions of a file; raise UserError for malformed rows and wrong results."""
        expressions, details = [], []
        pairs = zip(rows.values["input"], rows.values["target"], strict=True)
        for index, (question, result) in enumerate(pairs):
            try:
                row = self._read_expression(str(question))
                correct, stated = int(self._compute(np.array([row]))[0]), self._read_result(str(result))
                if stated != correct:
                    raise ErrorDetail(
                        f"{shorten(str(question), 60)!r} is {correct}, but the file has {stated}"
                    )
                expressions.append(row)
            except ErrorDetail as detail:
                details.append(ErrorDetail(detail.message, path=rows.location(index)))
        if details:
            details[0].hint = f"correct or remove {len(details):,} of {len(rows):,} rows"
            raise UserError(*details)
        return np.array(expressions, dtype=np.int64)

    def _without_duplicates(self, rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Remove duplicates. An expression stays only in the first of train, validation, test that has it."""
        seen: set[tuple[int, ...]] = set()
        unique = {}
        for split, part in rows.items():
            fresh = list(dict.fromkeys(row for row in map(tuple, part.tolist()) if row not in seen))
            if not fresh:
                raise user_error("every expression also appears in train", path=f"task.data.{split}")
            if len(fresh) < len(part):
                self.notes.append(f"{split}: {len(part):,} rows, of which {len(fresh):,} are new and used")
            seen.update(fresh)
            unique[split] = np.array(fresh)
        return unique

    def _compute(self, rows: np.ndarray) -> np.ndarray:
        computed = [OPERATIONS[name].compute(rows[:, 0], rows[:, 2]) for name in self.config.operations]
        return np.choose(rows[:, 1], computed)

    def _encode_inputs(self, rows: np.ndarray) -> np.ndarray:
        digits, ones = self.config.digits, np.ones((len(rows), 1), dtype=np.uint8)
        operation_tokens = np.array(self.vocabulary.encode(self.config.operations), dtype=np.uint8)
        first, second = (_spell(rows[:, side], digits) for side in (0, 2))
        return np.hstack([ones * BOS, first, operation_tokens[rows[:, 1], None], second, ones * EOS])

    def _encode_numbers(self, numbers: np.ndarray) -> np.ndarray:
        ones = np.ones((len(numbers), 1), dtype=np.uint8)
        return np.hstack([ones * BOS, _spell(numbers, self.config.result_digits), ones * EOS])

    def parse(self, text: str) -> np.ndarray:
        """Return the tokens of `4 + -11`, `4+-11`, `4 add -11` or `BOS POSITIVE 04 add NEGATIVE 11 EOS`."""
        return self._encode_inputs(np.array([self._read_expression(text)]))[0].astype(np.int64)

    def _read_expression(self, text: str) -> tuple[int, int, int]:
        text = text.translate(TYPED).strip()
        match = EXPRESSION.fullmatch(text)
        if match is None:
            raise _explain(text)
        first, word, second = match.groups()
        operation = OPERATION_OF_WORD[word.lower()]
        if operation not in self.config.operations:
            known = " and ".join(self.config.operations)
            raise ErrorDetail(f"cannot {operation}: the model can only {known}")
        low, high = self.config.operand_range
        for operand in (first, second):
            if not low <= _read_number(operand) <= high:
                raise ErrorDetail(
                    f"{shorten(operand, 40)} is out of range: operands range from {low} to {high}"
                )
        return _read_number(first), self.config.operations.index(operation), _read_number(second)

    def _read_result(self, text: str) -> int:
        match = _RESULT.fullmatch(text.translate(TYPED).strip())
        if match is None:
            raise ErrorDetail(f"the result is not a number: {shorten(repr(text), 60)}")
        return _read_number(match.group(1))

    def input_symbols(self, tokens: Sequence[int]) -> list[str]:
        return self.vocabulary.decode(tokens)

    def show_input(self, tokens: Sequence[int]) -> str:
        """Return the expression as a user would type it, such as `4 + -11`."""
        first, operation, second = self._read_expression(" ".join(self.input_symbols(tokens)))
        return f"{first} {OPERATIONS[self.config.operations[operation]].words[0]} {second}"

    def output_symbols(self, tokens: Sequence[int]) -> list[str]:
        return self.vocabulary.decode(tokens)

    def show_output(self, tokens: Sequence[int]) -> str:
        """Return the number, such as `-7`, or the joined tokens if they do not form a number."""
        sign, *digits = [token for token in tokens if token not in (BOS, EOS)] or [BOS]
        if sign not in (POSITIVE, NEGATIVE) or not digits or max(digits) > 9:
            return super().show_output(tokens)
        return ("-" if sign == NEGATIVE else "") + str(int("".join(map(str, digits))))

    def solve(self, tokens: Sequence[int]) -> list[int]:
        row = self._read_expression(" ".join(self.input_symbols(tokens)))
        return self._encode_numbers(self._compute(np.array([row])))[0, 1:-1].tolist()

    def label_names(self) -> Mapping[str, str]:
        return LABELS

    def position_labels(self, name: str, split: str, indices: Sequence[int]) -> list[Labels]:
        return [self._labels(name, self.splits[split].inputs[index].tolist()) for index in indices]

    def _labels(self, name: str, tokens: Sequence[int]) -> Labels:
        first, operation, second = self._read_expression(" ".join(self.input_symbols(tokens)))
        result = [BOS, *self.solve(tokens)]  # the decoder reads it
        lengths = {"encoder": len(tokens), "decoder": len(result)}
        if name == "digit":
            digits = dict(zip(_significance(result).tolist(), result, strict=True))
            operands, generated = _significance(tokens), _significance([*result, EOS][1:])
            return {
                "encoder": [None if power < 0 else digits[power] for power in operands.tolist()],
                "decoder": [None if power < 0 else digits[power] for power in generated.tolist()],
            }
        if name == "sign":
            label: str | None = SYMBOLS[result[1]]
        else:
            word = self.config.operations[operation]
            label = None if word == "multiply" else _carry(first, -second if word == "subtract" else second)
        return {stack: [label] * length for stack, length in lengths.items()}

    def attention_patterns(self, tokens: Sequence[int], generated: Sequence[int] = ()) -> Patterns:
        """Return patterns in which each digit attends to operand digits of the same power of ten."""
        operands, result = _significance(tokens), _significance(generated)
        is_digit, is_generated = operands >= 0, result >= 0
        same = (operands[:, None] == operands) & is_digit[:, None]
        patterns = {"encoder": {"same digit, other operand": same & ~np.eye(len(operands), dtype=bool)}}
        if len(result):
            patterns["cross"] = {"same digit": (result[:, None] == operands) & is_generated[:, None]}
        return patterns


def _carry(a: int, b: int) -> str:
    """Return `carry` if a column of a + b carries or, for unequal signs, borrows; else `no carry`."""
    high, low = max(abs(a), abs(b)), min(abs(a), abs(b))
    has_equal_signs = (a < 0) == (b < 0)
    while high or low:
        ones, others = high % 10, low % 10
        if (ones + others > 9) if has_equal_signs else (ones < others):
            return "carry"
        high, low = high // 10, low // 10
    return "no carry"


def _spell(numbers: np.ndarray, digits: int) -> np.ndarray:
    """Return the tokens of each number: a sign and a fixed number of digits."""
    signs = np.where(numbers < 0, NEGATIVE, POSITIVE)
    values = np.abs(numbers)[:, None] // 10 ** np.arange(digits)[::-1] % 10
    return np.hstack([signs[:, None], values]).astype(np.uint8)


def _significance(tokens: Sequence[int]) -> np.ndarray:
    """Return the power of ten of each digit: 0 for ones, 1 for tens. Other tokens have −1."""
    exponents, exponent = [], -1
    for token in reversed(tokens):
        exponent = exponent + 1 if token < BOS else -1
        exponents.append(exponent)
    return np.array(exponents[::-1], dtype=np.int64)


def _read_number(text: str) -> int:
    digits = re.sub(r"\D", "", text).lstrip("0") or "0"
    # Python rejects numbers of thousands of digits; a number of 20 digits is out of range in any case.
    return (-1 if "-" in text or "NEGATIVE" in text.upper() else 1) * int(digits[:20])


def _explain(text: str) -> ErrorDetail:
    """Return an error that explains why a line is not an expression."""
    if not text:
        return ErrorDetail("the line is empty: no expression to compute", hint="type 4 + -11")
    known = _KNOWN.match(text)
    if known is not None and known.end() < len(text):
        start = len(text[: known.end()]) - len(text[: known.end()].rstrip(ascii_letters))
        word = re.findall(r"[^\W\d_]+|.", text[known.end() - start :], re.DOTALL)[0]
        return ErrorDetail(f"unknown symbol {shorten(repr(word), 40)}", hint="type 4 + -11")
    if len(re.findall(r"\d+", text)) > 2 and not re.search("POSITIVE|NEGATIVE", text, re.IGNORECASE):
        return ErrorDetail("too long: expected one operation between two numbers, such as 4 + -11")
    return ErrorDetail(f"not one operation between two numbers, such as 4 + -11: {shorten(repr(text), 60)}")
