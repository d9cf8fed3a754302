"""Task types: the inputs and outputs that a task requires of a model.

    gf.CausalLM(vocabulary=256, max_length=1024)
    gf.SequenceClassification(vocabulary=256, max_length=128, outputs=3)

A model's config builds a model for a task type, or raises an error if it does not support the task type.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import ClassVar

from glassformer.core.errors import user_error


@dataclass(frozen=True)
class TaskType:
    """Base class of task types. Inputs are at most `max_length` token ids, which are below `vocabulary`."""

    vocabulary: int
    max_length: int
    name: ClassVar[str]
    """Name of the type in words, such as `token classification`."""

    def __post_init__(self) -> None:
        for each in fields(self):
            size = getattr(self, each.name)
            if each.type == "int" and (not isinstance(size, int) or size < 1):
                raise user_error("must be a whole number from 1", path=each.name, value=size, hint="256")

    @property
    def num_outputs(self) -> int:
        """Number of classes or tokens among which the model chooses; 1 for a regression."""
        return self.vocabulary

    def describe(self) -> str:
        """Return the type in words, such as `token classification` or `regression`."""
        return self.name


@dataclass(frozen=True)
class TokenClassification(TaskType):
    """Classification of each token into one of `classes` classes."""

    classes: int
    name: ClassVar[str] = "token classification"

    @property
    def num_outputs(self) -> int:
        return self.classes


@dataclass(frozen=True)
class SequenceClassification(TaskType):
    """Classification of whole sequences into `outputs` classes, or regression if `is_regression`.

    A regression model is trained on standardised targets, `(target - target_mean) / target_scale`, and
    predicts in the unit of the targets. `outputs` is required for classes; a regression has one output.
    """

    outputs: int = 0
    is_regression: bool = False
    target_mean: float = 0.0
    target_scale: float = 1.0
    name: ClassVar[str] = "sequence classification"

    def describe(self) -> str:
        return "regression" if self.is_regression else self.name

    @property
    def num_outputs(self) -> int:
        return self.outputs

    @property
    def digits(self) -> int:
        """Number of significant digits, at least 6, that show a value to a thousandth of `target_scale`."""
        ratio = max(abs(self.target_mean) / self.target_scale, 1.0)
        return max(6, 4 + math.floor(math.log10(ratio)))

    def resolution(self, value: float) -> float:
        """Return one unit of the last significant digit with which a value is shown."""
        return 10.0 ** (math.floor(math.log10(abs(value))) + 1 - self.digits) if value else 0.0

    def __post_init__(self) -> None:
        if self.is_regression and not self.outputs:
            object.__setattr__(self, "outputs", 1)
        if self.outputs < 1:
            raise user_error(
                "the number of classes is required",
                path="outputs",
                hint="gf.SequenceClassification(vocabulary=256, max_length=128, outputs=3)",
            )
        super().__post_init__()


@dataclass(frozen=True)
class CausalLM(TaskType):
    """Language model that predicts the next token at each position."""

    name: ClassVar[str] = "language model"


@dataclass(frozen=True)
class MaskedLM(TaskType):
    """Language model that predicts masked tokens from bidirectional context."""

    name: ClassVar[str] = "masked language model"


@dataclass(frozen=True)
class Seq2Seq(TaskType):
    """Generation of a target sequence, token by token, from a source sequence.

    If `is_shared_vocabulary` is True, source and target share one embedding table.
    """

    target_vocabulary: int
    max_target_length: int
    is_shared_vocabulary: bool = False
    name: ClassVar[str] = "sequence to sequence"

    @property
    def num_outputs(self) -> int:
        return self.target_vocabulary
