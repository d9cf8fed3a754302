"""Task types: what a task asks of a model. A model kind builds itself for one, or says why not."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TaskType:
    """Token numbers below `vocabulary` come in, at most `max_length` of them."""

    vocabulary: int
    max_length: int


@dataclass(frozen=True)
class TokenClassification(TaskType):
    """A class for each position."""

    classes: int


@dataclass(frozen=True)
class SequenceClassification(TaskType):
    """One answer for the whole sequence: a class, or a real number."""

    outputs: int
    is_real: bool = False


@dataclass(frozen=True)
class CausalLM(TaskType):
    """Each position predicts the token after it."""


@dataclass(frozen=True)
class MaskedLM(TaskType):
    """Hidden positions are predicted from both sides."""


@dataclass(frozen=True)
class Seq2Seq(TaskType):
    """Another sequence is written, token by token."""

    target_vocabulary: int
    max_target_length: int
    is_shared_vocabulary: bool = False
