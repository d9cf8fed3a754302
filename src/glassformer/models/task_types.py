"""Task types: the inputs and outputs that a task requires of a model.

    gf.CausalLM(vocabulary=256, max_length=1024)
    gf.SequenceClassification(vocabulary=256, max_length=128, outputs=3)

A model kind builds a model for a task type, or refuses it with a reason.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TaskType:
    """Base class. Inputs are token numbers below `vocabulary`, at most `max_length` per sequence."""

    vocabulary: int
    max_length: int


@dataclass(frozen=True)
class TokenClassification(TaskType):
    """One class for each position."""

    classes: int


@dataclass(frozen=True)
class SequenceClassification(TaskType):
    """One output for the whole sequence: one of `outputs` classes, or a real value if `is_regression`."""

    outputs: int = 1
    is_regression: bool = False


@dataclass(frozen=True)
class CausalLM(TaskType):
    """Language model that predicts the next token at each position."""


@dataclass(frozen=True)
class MaskedLM(TaskType):
    """Language model that predicts masked tokens from both sides."""


@dataclass(frozen=True)
class Seq2Seq(TaskType):
    """One sequence in, another one generated token by token.

    With `is_shared_vocabulary`, source and target share one embedding table.
    """

    target_vocabulary: int
    max_target_length: int
    is_shared_vocabulary: bool = False
