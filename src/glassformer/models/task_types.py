"""Task types: the inputs and outputs that a task requires of a model.

    gf.CausalLM(vocabulary=256, max_length=1024)
    gf.SequenceClassification(vocabulary=256, max_length=128, outputs=3)

A model's config builds a model for a task type, or raises an error if it does not support the task type.
"""

from __future__ import annotations

from dataclasses import dataclass

from glassformer.core.errors import user_error


@dataclass(frozen=True)
class TaskType:
    """Base class of task types. Inputs are at most `max_length` token ids, which are below `vocabulary`."""

    vocabulary: int
    max_length: int


@dataclass(frozen=True)
class TokenClassification(TaskType):
    """Classification of each token into one of `classes` classes."""

    classes: int


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

    def __post_init__(self) -> None:
        if self.is_regression and not self.outputs:
            object.__setattr__(self, "outputs", 1)
        if self.outputs < 1:
            raise user_error(
                "the number of classes is required",
                path="outputs",
                hint="gf.SequenceClassification(vocabulary=256, max_length=128, outputs=3)",
            )


@dataclass(frozen=True)
class CausalLM(TaskType):
    """Language model that predicts the next token at each position."""


@dataclass(frozen=True)
class MaskedLM(TaskType):
    """Language model that predicts masked tokens from bidirectional context."""


@dataclass(frozen=True)
class Seq2Seq(TaskType):
    """Generation of a target sequence, token by token, from a source sequence.

    If `is_shared_vocabulary` is True, source and target share one embedding table.
    """

    target_vocabulary: int
    max_target_length: int
    is_shared_vocabulary: bool = False
